"""CPU kernels of a `.pte` computed by torch, found by their registered names.

ATen names are torch's own out-variants. The few name spaces that torch does not have are written here after the
runtime's behaviour: ``dim_order_ops``, ``et_copy``, ``executorch_prim`` and ``quantized_decomposed``.
Results can differ from the runtime's portable kernels in the last bits of floating point, as two correct
implementations may.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # noqa: F401  registers quantized_decomposed
from torch._ops import OpOverload

from arm_lower.errors import ArmLowerError

Scalar = int | float | bool
Results = dict[int, Any]
"""Position among the arguments -> the value that the kernel leaves there; tensors written in place are not listed."""


def call(name: str, args: Sequence[Any]) -> Results:
    """Runs the kernel ``name``, for example ``aten::add.out``.

    Args:
        args: Schema inputs, out tensors, then the returned value, as a `.pte` lists them. Tensors are torch tensors
            over the program's memory and are written in place; lists are Python lists; null is None.

    Returns:
        What replaces arguments: computed scalars, and views that take the place of an out tensor.

    Raises:
        ArmLowerError: No such kernel, wrong arguments, or torch's own refusal.
    """
    special = _SPECIAL.get(name)
    try:
        if special is not None:
            return special(*args)
        if name.startswith("quantized_decomposed::"):
            return _quantized(name, args)
        return _aten(name, args)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise ArmLowerError(f"kernel {name}: {error}") from error


def overload(name: str) -> OpOverload:
    """torch's operator of a registered name.

    Raises:
        ArmLowerError: torch has none.
    """
    namespace, _, rest = name.partition("::")
    base, _, variant = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), base, None), variant or "default", None)
    if not isinstance(found, OpOverload):
        raise ArmLowerError(f"kernel {name} has no counterpart in torch, the host cannot run it")
    return found


def _aten(name: str, args: Sequence[Any]) -> Results:
    op = overload(name)
    schema = op._schema.arguments
    if len(args) < len(schema):
        raise ArmLowerError(f"kernel {name}: {len(args)} arguments, {len(schema)} and the returned value are needed")
    for s, a in zip(schema, args):
        _check_kind(s.name, str(s.real_type), a)
    positional = [a for s, a in zip(schema, args) if not s.kwarg_only]
    keywords = {s.name: a for s, a in zip(schema, args) if s.kwarg_only}
    op(*positional, **keywords)
    return {}


def _check_kind(name: str, kind: str, value: Any) -> None:
    """The runtime aborts on an Int where the schema says float or bool; torch would take it."""
    wanted = {"float": float, "Optional[float]": float, "bool": bool, "Optional[bool]": bool}.get(kind)
    if wanted is not None and value is not None and type(value) is not wanted:
        raise TypeError(f"argument {name} is {value!r}, the runtime needs a {wanted.__name__}")


def _quantized(name: str, args: Sequence[Any]) -> Results:
    """A functional operator whose results are copied to the out tensors that follow its arguments."""
    functional = {"out": "default", "Tensor_out": "tensor"}
    base, _, variant = name.partition(".")
    op = overload(f"{base}.{functional.get(variant, variant)}")
    schema = op._schema.arguments
    outs = args[len(schema):len(schema) + len(op._schema.returns)]
    if len(outs) != len(op._schema.returns):
        raise ArmLowerError(f"kernel {name}: {len(args)} arguments, {len(schema)} and the out tensors are needed")
    types = {s.name: str(s.real_type) for s in schema}
    values = {s.name: _dtype(a) if "ScalarType" in types[s.name] else a for s, a in zip(schema, args)}
    keywords = {s.name: values[s.name] for s in schema if s.kwarg_only}
    result = op(*(values[s.name] for s in schema if not s.kwarg_only), **keywords)
    for out, value in zip(outs, result if isinstance(result, tuple) else (result,)):
        _fill(out, value)
    return {}


_SCALAR_TYPES: Mapping[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 11: torch.bool, 15: torch.bfloat16, 27: torch.uint16, 28: torch.uint32, 29: torch.uint64,
}


def _dtype(number: int | None) -> torch.dtype | None:
    return None if number is None else torch_dtype(number)


def torch_dtype(number: int) -> torch.dtype:
    """torch's type of a scalar type's number in the schema.

    Raises:
        ArmLowerError: The host has no such type.
    """
    if number not in _SCALAR_TYPES:
        raise ArmLowerError(f"scalar type number {number} cannot be computed on the host")
    return _SCALAR_TYPES[number]


def _fill(out: torch.Tensor, value: torch.Tensor) -> None:
    """``value`` into ``out``, which takes its size if it may (a fresh, empty tensor)."""
    if out.numel() == 0 and value.numel():
        out.resize_(value.shape)
    if out.shape != value.shape or out.dtype != value.dtype:
        raise ValueError(f"result is {value.dtype} {list(value.shape)}, "
                         f"the out tensor is {out.dtype} {list(out.shape)}")
    out.copy_(value)


def _copy(source: torch.Tensor, *rest: Any) -> Results:
    """A copy of logical elements into the out tensor, whatever the two layouts are."""
    out: torch.Tensor = rest[-1]
    _fill(out, source.to(out.dtype))
    return {}


def _as_strided(
    source: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int | None, out: torch.Tensor,
    *rest: Any,
) -> Results:
    """A view of the tensor's memory; the runtime counts the offset from the tensor, torch from its storage."""
    _fill(out, source.as_strided(tuple(sizes), tuple(strides), source.storage_offset() + (offset or 0)))
    return {}


def _empty(sizes: Sequence[int], dim_order: Sequence[int] | None, out: torch.Tensor, *rest: Any) -> Results:
    """A tensor of any content."""
    if out.numel() == 0:
        out.resize_(tuple(sizes))
    if out.shape != torch.Size(sizes):
        raise ValueError(f"sizes {list(sizes)}, the out tensor has {list(out.shape)}")
    return {}


def _view(source: torch.Tensor, sizes: Sequence[int], out: torch.Tensor) -> Results:
    """The bytes of ``source`` under other sizes: no data moves."""
    shape = list(sizes)
    if shape.count(-1) == 1:
        known = -math.prod(shape)
        shape[shape.index(-1)] = source.numel() // known if known else 0
    if math.prod(shape) != source.numel():
        raise ValueError(f"view of {list(source.shape)} as {list(sizes)}")
    strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
    return {2: source.as_strided(shape, strides, source.storage_offset())}


def _copy_index(target: torch.Tensor, source: torch.Tensor, index: int) -> Results:
    """Appends slice ``index`` of a map's output."""
    if target.shape[1:] != source.shape or not 0 <= index < target.shape[0]:
        raise ValueError(f"slice {index} of {list(target.shape)} cannot take {list(source.shape)}")
    target[index].copy_(source)
    return {}


def _size(x: torch.Tensor, dim: int, result: int) -> Results:
    return {2: int(x.shape[dim])}


def _numel(x: torch.Tensor, result: int) -> Results:
    return {1: x.numel()}


def _item(x: torch.Tensor, result: Scalar) -> Results:
    return {1: x.item()}


def _scalar(function: Callable[..., Scalar]) -> Callable[..., Results]:
    """A function of scalars whose result replaces the last argument."""

    def kernel(*args: Any) -> Results:
        return {len(args) - 1: function(*args[:-1])}

    return kernel


_SYMBOLIC: Mapping[str, Callable[..., Scalar]] = {
    "add.Scalar": operator.add, "sub.Scalar": operator.sub, "mul.Scalar": operator.mul, "neg.Scalar": operator.neg,
    "floordiv.Scalar": operator.floordiv, "floordiv.int": operator.floordiv, "truediv.Scalar": operator.truediv,
    "mod.Scalar": operator.mod, "mod.int": operator.mod,
    "eq.Scalar": operator.eq, "gt.Scalar": operator.gt, "ge.Scalar": operator.ge, "lt.Scalar": operator.lt,
    "le.Scalar": operator.le, "ceil.Scalar": math.ceil, "round.Scalar": round, "trunc.Scalar": math.trunc,
    "sym_float.Scalar": float, "sym_int.Scalar": int, "sym_not.Scalar": operator.not_,
    "sym_max.Scalar": max, "sym_min.Scalar": min, "sym_ite.Scalar": lambda c, a, b: a if c else b,
}

_SPECIAL: Mapping[str, Callable[..., Results]] = {
    "aten::as_strided_copy.out": _as_strided,
    "aten::sym_size.int": _size,
    "aten::sym_numel": _numel,
    "aten::_local_scalar_dense": _item,
    "dim_order_ops::_clone_dim_order.out": _copy,
    "dim_order_ops::_to_dim_order_copy.out": _copy,
    "dim_order_ops::_empty_dim_order.out": _empty,
    "et_copy::_d2h_copy.out": _copy,
    "et_copy::_h2d_copy.out": _copy,
    "executorch_prim::et_view.default": _view,
    "executorch_prim::et_copy_index.tensor": _copy_index,
    **{f"executorch_prim::{name}": _scalar(function) for name, function in _SYMBOLIC.items()},
}
