"""Calls of ATen operators by kind: every place for a dimension or an index, every pair of dtypes, any number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from one_call import Call
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (*WHOLE, torch.float16, torch.bfloat16, torch.float32, torch.float64)

MIXED = (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32)
"""Of each kind and width; the pairs of all take twice the time."""

# ---------------------------------------------------------------- dimensions and indices

BLOCK = ((torch.arange(24) * 7) % 29 - 9).reshape(2, 3, 4).float()  # no two elements are equal
NUMBER = torch.tensor(1.5)

PLACES = frozenset({"dim", "dims", "axis", "start", "end", "start_dim", "end_dim", "dim0", "dim1", "axis0", "axis1",
                    "source", "destination", "shifts", "index"})  # fmt: skip
ALONE = frozenset({"dim1", "axis1", "end_dim"})
"""The second of two dimensions, which is always the first dimension of the tensor."""
NO_OPERATORS = frozenset({"set", "size", "stride", "sym_size", "sym_stride", "slice_inverse"})
"""About memory and shapes, not elements; no exported program has them."""


def dimension_calls() -> Iterator[Call]:
    """Every operator that takes a dimension, a start, an end or an index: of rank 3 and of rank 0, also negative."""
    for target in functional():
        arguments = target._schema.arguments
        if not any(a.name in PLACES for a in arguments):
            continue
        for x, dim in ((BLOCK, -1), (BLOCK, -2), (BLOCK, 0), (NUMBER, -1), (NUMBER, 0)):
            choices = [list(values(a, x, dim)) for a in arguments]
            for chosen in itertools.product(*choices):
                named = list(zip(arguments, chosen, strict=True))
                yield Call(
                    target,
                    tuple(v for a, v in named if not a.kwarg_only),
                    {a.name: v for a, v in named if a.kwarg_only},
                )


def functional() -> Iterator[OpOverload]:
    """The public functional ATen operators that are not random."""
    names = {n.split("::")[1].split(".")[0] for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")}
    for name in sorted(names - NO_OPERATORS):
        packet = getattr(aten, name, None)
        if packet is None or name.startswith("_") or name.endswith("_backward"):
            continue
        for overload in packet.overloads():
            target = getattr(packet, overload)
            random = torch.Tag.nondeterministic_seeded in target.tags
            outs = any(a.is_out for a in target._schema.arguments)
            if not (random or outs or target._schema.is_mutable) and str(target) not in LEGACY:
                yield target


LEGACY = frozenset({"aten.split.default"})  # TorchScript's; the dispatcher does not have it


def values(argument: Any, x: Tensor, dim: int) -> Iterator[Any]:
    """What to give for an argument; nothing if it is not known what it means."""
    name, kind = argument.name, str(argument.type)
    integer, integers = kind in ("int", "Optional[int]"), "List[int]" in kind
    by_name: dict[tuple[str, bool], list[Any]] = {
        **{(place, True): [0 if place in ALONE else dim] for place in PLACES},
        ("start", True): [-2, -1, 0, 1], ("index", True): [-2, -1, 0, 1], ("end", True): [-1, 2, -7, 9],
        ("length", True): [1, 2],
    }  # fmt: skip
    if integer and (name, True) in by_name:
        yield from by_name[name, True]
    elif integers and name in PLACES:
        yield from [[-1], [5]] if name == "shifts" else [[0]] if name == "destination" else [[dim]]
    elif name in ("index", "indices") and kind == "Tensor":
        yield torch.zeros([1] * x.dim(), dtype=torch.int64)
    elif name in ("values", "src", "source", "other", "mat2", "tensor2", "end") and kind == "Tensor":
        yield x
    elif kind == "bool" and name == "keepdim":
        yield from (False, True)
    elif argument.has_default_value():
        yield argument.default_value
    else:
        yield from {
            "Tensor": [x], "List[Tensor]": [[x, x]], "number": [2], "bool": [True, False], "int": [2],
            "List[int]": [[1], [1] * x.dim()],
        }.get(kind, [])  # fmt: skip


# ---------------------------------------------------------------- dtypes

MASK = torch.tensor([[True, False, True], [False, True, True]])


def tensor(dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Small whole numbers, negative ones too; fractions for the first operand if its type has them."""
    x = torch.randint(-5, 6, (2, 3), generator=torch.Generator().manual_seed(seed))
    x = (x.abs() if dtype == torch.uint8 else x).to(dtype)
    return x + 0.5 if dtype.is_floating_point and seed == 0 else x


def one(x: Tensor) -> Tensor:
    return x[0, 1].clone()


def _elementwise(*targets: OpOverload, **kwargs: Any) -> dict[str, Callable[[Tensor, Tensor], list[Call]]]:
    def calls(target: OpOverload) -> Callable[[Tensor, Tensor], list[Call]]:
        return lambda x, y: [Call(target, pair, kwargs) for pair in ((x, y), (x, one(y)), (one(x), y))]

    return {f"{target}{kwargs or ''}": calls(target) for target in targets}


PAIRS: dict[str, Callable[[Tensor, Tensor], list[Call]]] = {
    **_elementwise(
        aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor, aten.mul.Tensor, aten.div.Tensor,
        aten.floor_divide.default, aten.fmod.Tensor, aten.remainder.Tensor, aten.maximum.default,
        aten.minimum.default, aten.atan2.default, aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor,
        aten.gt.Tensor, aten.ge.Tensor, aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default,
        aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor, aten.copy.default,
        aten.hypot.default, aten.copysign.Tensor, aten.xlogy.Tensor, aten.heaviside.default, aten.logaddexp.default,
    ),
    **_elementwise(aten.div.Tensor_mode, rounding_mode="floor"),
    **_elementwise(aten.div.Tensor_mode, rounding_mode="trunc"),
    **_elementwise(aten.add.Tensor, aten.sub.Tensor, alpha=-1),
    "pow": lambda x, y: [Call(aten.pow.Tensor_Tensor, (x, y.abs() if y.dtype != torch.bool else y))],
    "clamp": lambda x, y: [Call(aten.clamp.Tensor, (x, *limits)) for limits in ((y, y), (y,), (None, y))],
    "where": lambda x, y: [Call(aten.where.self, (m, a, b)) for m in (MASK, one(MASK))
                           for a, b in ((x, y), (one(x), y), (x, one(y)))],
    "cat": lambda x, y: [Call(aten.cat.default, ([x, y], 0)), Call(aten.cat.default, ([x, y, x], -1))],
    "stack": lambda x, y: [Call(aten.stack.default, ([x, y], 0)), Call(aten.stack.default, ([x, y, x], -1))],
    "masked_fill": lambda x, y: [Call(aten.masked_fill.Tensor, (x, MASK, one(y)))],
    "masked_scatter": lambda x, y: [Call(aten.masked_scatter.default, (x, MASK, y))],
    "select_scatter": lambda x, y: [Call(aten.select_scatter.default, (x, y[0].clone(), 0, -1))],
    "slice_scatter": lambda x, y: [Call(aten.slice_scatter.default, (x, y[:, :2].clone(), -1, -3, -1))],
    "index_put": lambda x, y: [Call(aten.index_put.default, (x, [torch.tensor([1, 0])], y)),
                               Call(aten.index_put.default, (x, [MASK], one(y)))],
    "fill": lambda x, y: [Call(aten.fill.Tensor, (x, one(y)))],
    "addcmul": lambda x, y: [Call(aten.addcmul.default, (x, y, y)), Call(aten.addcmul.default, (x, x, y))],
    "lerp": lambda x, y: [Call(aten.lerp.Tensor, (x, y, y))],
    "mm": lambda x, y: [Call(aten.mm.default, (x, y.t().contiguous()))],
    "linear": lambda x, y: [Call(aten.linear.default, (x, y))],
}  # fmt: skip


def dtype_calls() -> Iterator[Call]:
    """Every operator of several tensors, of every pair of dtypes, also with tensors of rank 0."""
    for calls in PAIRS.values():
        for a, b in itertools.product(MIXED, MIXED):
            yield from calls(tensor(a), tensor(b, 1))


# ---------------------------------------------------------------- numbers

NUMBERS = (True, 0, 2, -1, 300, 1.5, -0.5)
SCALARS: dict[str, Callable[[Tensor, Any], list[Call]]] = {
    **{
        str(target): lambda x, n, target=target: [Call(target, (x, n))]  # type: ignore[misc]
        for target in (
            aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.floor_divide.default,
            aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.fmod.Scalar,
            aten.remainder.Scalar, aten.pow.Tensor_Scalar, aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar,
            aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar, aten.bitwise_and.Scalar, aten.bitwise_or.Scalar,
            aten.bitwise_xor.Scalar, aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_right_shift.Tensor_Scalar,
            aten.clamp_min.default, aten.clamp_max.default, aten.fill.Scalar, aten.full_like.default,
            aten.elu.default, aten.leaky_relu.default,
        )
    },
    "alpha": lambda x, n: [Call(t, (x, 2), {"alpha": n}) for t in (aten.add.Tensor, aten.sub.Tensor)]
    + [Call(t, (x, 2, n)) for t in (aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar)],
    "clamp": lambda x, n: [Call(aten.clamp.default, (x, *limits)) for limits in ((n, 3), (n,), (None, n), (-1, n))],
    "hardtanh": lambda x, n: [Call(aten.hardtanh.default, (x, n, 3)), Call(aten.hardtanh.default, (x, -4, n))],
    "where": lambda x, n: [Call(aten.where.ScalarOther, (MASK, x, n)), Call(aten.where.ScalarSelf, (MASK, n, x))],
    "masked_fill": lambda x, n: [Call(aten.masked_fill.Scalar, (x, MASK, n))],
    "pad": lambda x, n: [Call(aten.constant_pad_nd.default, (x, [1, 1], n))],
    "threshold": lambda x, n: [Call(aten.threshold.default, (x, n, n))],
    "scatter": lambda x, n: [Call(aten.scatter.value, (x, 0, torch.tensor([[1]]), n))],
}  # fmt: skip


def number_calls() -> Iterator[Call]:
    """Every operator of a tensor and a number: of a higher kind than the tensor, negative, too large for its type."""
    for calls in SCALARS.values():
        for dtype, number in itertools.product(MIXED, NUMBERS):
            yield from calls(tensor(dtype), number)


# ---------------------------------------------------------------- the rest of the edges


def edge_calls() -> Iterator[Call]:
    """No dimensions, no elements, what wraps around, and what is said of uint8."""
    x, u, none = BLOCK, BLOCK.abs().to(torch.uint8), torch.zeros(0, 3)
    for target in (aten.sum.dim_IntList, aten.mean.dim, aten.var.correction, aten.var_mean.correction):
        yield from (Call(target, (t, dims)) for t in (x, NUMBER) for dims in ([], None))
    for target in (aten.amax.default, aten.amin.default, aten.flip.default, aten.squeeze.dims):
        yield from (Call(target, (t, [])) for t in (x, NUMBER))
    for t in (u, x > 0, x):
        for target in (aten.all, aten.any):
            yield from (Call(target.default, (t,)), Call(target.dim, (t, -1)), Call(target.dims, (t, [0, -1])))
    yield from (Call(aten.roll.default, (t, [n])) for t in (x, NUMBER, none) for n in (5, -3, 0, 31))
    yield from (Call(aten.median.dim, (t, -1)) for t in (x, NUMBER))
    yield from (Call(aten.diff.default, (x, n, d)) for n in (1, 2) for d in (-1, -2, 0))
    yield from (Call(aten.cumsum.default, (torch.tensor(3, dtype=d), 0)) for d in DTYPES)
    yield from (Call(aten.sum.dim_IntList, (torch.tensor(3, dtype=d), [0], True)) for d in DTYPES)
    yield from (Call(aten.cat.default, (parts, 1)) for parts in ([none, none], [none.t(), x[0].t()]))
    yield from (Call(t, (none, 1)) for t in (aten.cumsum.default, aten.softmax.int, aten.argmax.default))
    yield from (Call(t, (none, [1])) for t in (aten.amax.default, aten.sum.dim_IntList, aten.flip.default))
    yield Call(aten.unfold.default, (NUMBER, 0, 1, 1))
    yield Call(aten.unfold.default, (x, -1, 2, 1))
    for dtype in WHOLE:
        large = torch.tensor([[1, -1, 127], [100, 3, 0]]).to(dtype) * (torch.iinfo(dtype).max // 127
                                                                       if dtype != torch.bool else True)  # fmt: skip
        yield from (Call(aten.pow.Tensor_Scalar, (large, n)) for n in (0, 1, 2, 3, 13))
        yield from (Call(t.default, (large,)) for t in (aten.ceil, aten.floor, aten.trunc, aten.round))
        for target in (aten.bitwise_left_shift, aten.bitwise_right_shift):
            yield from (Call(target.Tensor_Scalar, (large, n)) for n in (0, 1, 7, 8, 16, 32, 63, 64, 256, -1, -256))
    yield Call(aten.arange.default, (4,))
    yield Call(aten.index_fill.int_Scalar, (NUMBER, 0, torch.tensor([0]), 2))
