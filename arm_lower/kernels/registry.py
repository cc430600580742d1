"""The CPU remainder: which out-variant kernel runs an ATen operator, and with which arguments.

The names are data: ``portable.txt`` and ``quantized.txt`` list what the ExecuTorch 1.5.1 runtime registers.
Argument names, order, types and defaults come from torch's own schemas of the out-variants, so nothing here
repeats a signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch
from torch._ops import OpOverload

PORTABLE = "portable.txt"
QUANTIZED = "quantized.txt"

# Arguments of functional operators that the out-variant takes from its out tensor instead.
_IMPLIED_BY_OUT = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "implicit"})
# Same arguments under another name.
_RENAMED = {
    "aten::reshape": "aten::view",
    "aten::_reshape_alias": "aten::view",
    "aten::_unsafe_view": "aten::view",
    "aten::adaptive_avg_pool2d": "aten::_adaptive_avg_pool2d",
    "aten::unsafe_split": "aten::split",
    "aten::unsafe_split_with_sizes": "aten::split_with_sizes",
}


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel.

    Attributes:
        name: Name in the out-variant's schema.
        index: Position among the functional operator's arguments; the value for the kernel is found there.
        type: TorchScript type as text: ``Tensor``, ``Optional[int]``, ``List[int]``, ``number``, ...
        default: Default of the functional operator.
        length: Length that a single number stands for in a list argument (``int[2]``), else 0.
    """

    name: str
    index: int
    type: str
    default: object = None
    length: int = 0


@dataclass(frozen=True)
class Kernel:
    """An out-variant kernel for one functional operator.

    Attributes:
        name: Registered name with namespace, ``aten::add``.
        overload: ``out``, ``Tensor_out``, ...
        arguments: Inputs in the order of the kernel; out tensors follow them.
        out_count: Number of out tensors; 0 if the single out is a list (``Tensor(a!)[] out``).
    """

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    out_count: int

    def __str__(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload else self.name


@cache
def names(library: str = PORTABLE) -> frozenset[str]:
    """Registered names of a kernel library, ``PORTABLE`` or ``QUANTIZED``."""
    text = (files("arm_lower.kernels") / library).read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def library_of(name: str) -> str | None:
    """The library that has the kernel ``name`` (``aten::add.out``), or None."""
    return next((lib for lib in (PORTABLE, QUANTIZED) if name in names(lib)), None)


@cache
def kernel_for(target: OpOverload) -> Kernel | None:
    """The kernel that computes what a functional operator computes, or None.

    Views map to their copying kernels (``aten.view`` -> ``aten::view_copy.out``).
    """
    namespace = target.namespace
    if namespace == "quantized_decomposed":
        return _quantized(target)
    if namespace != "aten" or target._schema.is_mutable:
        return None
    name = _RENAMED.get(target._schema.name, target._schema.name)
    for candidate in (name, f"{name}_copy"):
        found = _best(candidate, target)
        if found is not None:
            return found
    return None


def _best(name: str, target: OpOverload) -> Kernel | None:
    """The registered out-variant called ``name`` that has the arguments of ``target``."""
    matches = [k for schema in _out_schemas(name) if (k := _match(schema, target)) is not None]
    return max(matches, key=lambda k: len(k.arguments), default=None)


def _out_schemas(name: str) -> Iterator[torch._C.FunctionSchema]:
    for schema in torch._C._jit_get_schemas_for_operator(name):
        registered = f"{schema.name}.{schema.overload_name}"
        if registered in names(PORTABLE) and any(a.is_out for a in schema.arguments):
            yield schema


def _match(schema: torch._C.FunctionSchema, target: OpOverload) -> Kernel | None:
    functional = {a.name: (i, a) for i, a in enumerate(target._schema.arguments)}
    position = {i: a for i, a in enumerate(target._schema.arguments)}
    wanted = [a for a in schema.arguments if not a.is_out]
    outs = [a for a in schema.arguments if a.is_out]
    arguments = []
    used = set()
    for place, arg in enumerate(wanted):
        index, source = functional.get(arg.name, (place, position.get(place)))
        if source is None or index in used or not _same_type(str(arg.type), str(source.type)):
            return None
        used.add(index)
        arguments.append(Argument(arg.name, index, str(arg.type), source.default_value, source.N or 0))  # type: ignore[attr-defined]
    unused = {a.name for i, a in position.items() if i not in used}
    if not unused <= _IMPLIED_BY_OUT or not _returns_fit(outs, target):
        return None
    is_list = str(outs[0].type) == "List[Tensor]"
    return Kernel(schema.name, schema.overload_name, tuple(arguments), 0 if is_list else len(outs))


def _same_type(kernel: str, functional: str) -> bool:
    return kernel == functional or functional == f"Optional[{kernel}]"


def _returns_fit(outs: list[torch._C.Argument], target: OpOverload) -> bool:
    returns = [str(r.type) for r in target._schema.returns]
    return [str(o.type) for o in outs] == returns


def _quantized(target: OpOverload) -> Kernel | None:
    """torch has no out-variants of these in Python; each takes the functional arguments and one out."""
    name = target._schema.name
    overload = {"default": "out", "tensor": "Tensor_out"}.get(target._overloadname)
    if overload is None or f"{name}.{overload}" not in names(QUANTIZED):
        return None
    arguments = tuple(Argument(a.name, i, str(a.type), a.default_value) for i, a in enumerate(target._schema.arguments))
    return Kernel(name, overload, arguments, len(target._schema.returns))
