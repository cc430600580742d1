"""The table of lowerings: one function for each operator, which is also the only support check."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from arm_lower.errors import Unsupported

Lowering = Callable[..., Any]

FAMILIES = (
    "quantize",
    "conv",
    "pointwise",
    "elementwise",
    "pool",
    "reduce",
    "softmax",
    "shape",
    "resize",
    "normalization",
)

_LOWERINGS: dict[Any, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers a function ``fn(b, *arguments)`` as the lowering of operators, named ``aten.add.Tensor``.

    The function gets the operator's arguments in schema order, defaults filled in, tensors as `Value`, `Real` or
    `Constant`. It returns one of these (or a tuple, for operators with several results) or raises `Unsupported`.
    """

    def register(fn: Lowering) -> Lowering:
        for name in names:
            namespace, op, overload = name.split(".")
            _LOWERINGS[getattr(getattr(getattr(torch.ops, namespace), op), overload)] = fn
        return fn

    return register


def lowering(target: Any) -> Lowering:
    """The lowering of an operator.

    Raises:
        Unsupported: There is none.
    """
    if not _LOWERINGS:
        for family in FAMILIES:
            importlib.import_module(f"arm_lower.ops.{family}")
    try:
        return _LOWERINGS[target]
    except KeyError:
        raise Unsupported(f"operator {target} has no NPU lowering") from None


def has_lowering(target: Any) -> bool:
    try:
        lowering(target)
    except Unsupported:
        return False
    return True
