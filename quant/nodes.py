"""Small questions about FX nodes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import fx

aten = torch.ops.aten

CLAMPS = frozenset(
    {
        aten.relu.default,
        aten.relu6.default,
        aten.hardtanh.default,
        aten.clamp.default,
        aten.clamp_min.default,
        aten.clamp_max.default,
    }
)
"""Clamps that the NPU applies for free while it writes the result of another operator."""

WEIGHTED = frozenset(
    {
        aten.conv1d.default,
        aten.conv1d.padding,
        aten.conv2d.default,
        aten.conv2d.padding,
        aten.conv3d.default,
        aten.conv3d.padding,
        aten.conv_transpose1d.default,
        aten.conv_transpose2d.input,
        aten.conv_transpose3d.input,
        aten.linear.default,
    }
)
"""Operators (input, weight, bias, ...) with a constant weight."""


def is_float_tensor(x: object) -> TypeGuard[fx.Node]:
    """Whether ``x`` is a node that makes one float32 tensor: the only thing that is ever quantized."""
    if not isinstance(x, fx.Node):
        return False
    val = x.meta.get("val")
    return isinstance(val, torch.Tensor) and val.dtype is torch.float32


def is_constant(x: object) -> TypeGuard[fx.Node]:
    """Whether ``x`` reads a parameter, or a buffer that the graph does not change."""
    if not isinstance(x, fx.Node) or x.op != "get_attr":
        return False
    return not any(user.target is aten.copy_.default and user.args[0] is x for user in x.users)


def constant(gm: fx.GraphModule, node: object) -> torch.Tensor | None:
    """The value of a node that `is_constant`, or None."""
    if not is_constant(node):
        return None
    value: Any = gm
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


def only_user(node: fx.Node) -> fx.Node | None:
    """The one node that reads ``node``, or None if there are more or fewer."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def has_scalar_bounds(clamp: fx.Node) -> bool:
    """Whether the bounds of a clamp are numbers, not tensors."""
    return len(clamp.all_input_nodes) == 1


def argument(node: fx.Node, position: int, default: Any = None) -> Any:
    """Argument ``position`` of ``node``, by position or by the name in its schema."""
    if position < len(node.args):
        return node.args[position]
    schema = getattr(node.target, "_schema", None)
    if schema is None or position >= len(schema.arguments):
        return default
    return node.kwargs.get(schema.arguments[position].name, default)


def tensor_items(node: fx.Node) -> Sequence[fx.Node]:
    """The getitem nodes that take the results of a node which returns several tensors."""
    return [user for user in node.users if user.target is operator.getitem]
