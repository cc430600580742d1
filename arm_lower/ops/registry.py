"""The table of lowerings: one function for each operator, which is also the only support check.

`arm_lower.ops.walk` imports the modules that fill it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from arm_lower.errors import Unsupported

Lowering = Callable[..., Any]
AnyLowering = TypeVar("AnyLowering", bound=Lowering)

_LOWERINGS: dict[Any, Lowering] = {}


def lowers(*names: str) -> Callable[[AnyLowering], AnyLowering]:
    """Registers a function ``fn(b, *arguments)`` as the lowering of operators, named ``aten.add.Tensor``.

    The function gets the operator's arguments in schema order, defaults filled in, tensors as `Value`, `Real` or
    `Constant`. It returns one of these (or a tuple, for operators with several results) or raises `Unsupported`.
    """

    def register(fn: AnyLowering) -> AnyLowering:
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
    try:
        return _LOWERINGS[target]
    except KeyError:
        raise Unsupported(f"operator {target} has no NPU lowering") from None
