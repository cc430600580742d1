"""Chains of elementwise operators that depend on one tensor: ``x * relu6(x + 3) / 6`` is one function of ``x``.

The NPU looks such a function up in one table, so only ``x`` and the result are quantized; a quantization of the
nodes between would cost accuracy and buy nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from quant.nodes import CLAMPS, argument, aten, is_float_tensor

_GENTLE = frozenset(
    {
        *CLAMPS,
        aten.celu.default,
        aten.elu.default,
        aten.erf.default,
        aten.gelu.default,
        aten.hardsigmoid.default,
        aten.hardswish.default,
        aten.leaky_relu.default,
        aten.log_sigmoid.default,
        aten.mish.default,
        aten.selu.default,
        aten.sigmoid.default,
        aten.silu.default,
        aten.softplus.default,
        aten.tanh.default,
    }
)
"""Functions of one variable that are nowhere steep."""

_STEEP = frozenset(
    {
        aten.abs.default,
        aten.acos.default,
        aten.acosh.default,
        aten.asin.default,
        aten.asinh.default,
        aten.atan.default,
        aten.atanh.default,
        aten.ceil.default,
        aten.cos.default,
        aten.cosh.default,
        aten.erfc.default,
        aten.erfinv.default,
        aten.exp.default,
        aten.exp2.default,
        aten.expm1.default,
        aten.floor.default,
        aten.fmod.Scalar,
        aten.frac.default,
        aten.hardshrink.default,
        aten.log.default,
        aten.log10.default,
        aten.log1p.default,
        aten.log2.default,
        aten.logit.default,
        aten.neg.default,
        aten.pow.Tensor_Scalar,
        aten.reciprocal.default,
        aten.remainder.Scalar,
        aten.round.default,
        aten.rsqrt.default,
        aten.sign.default,
        aten.sin.default,
        aten.sinh.default,
        aten.softshrink.default,
        aten.sqrt.default,
        aten.square.default,
        aten.tan.default,
        aten.threshold.default,
        aten.trunc.default,
    }
)

FUNCTIONS = _GENTLE | _STEEP
"""Operators of one tensor."""

ARITHMETIC = frozenset(
    {
        aten.add.Tensor,
        aten.add.Scalar,
        aten.sub.Tensor,
        aten.sub.Scalar,
        aten.rsub.Tensor,
        aten.rsub.Scalar,
        aten.mul.Tensor,
        aten.mul.Scalar,
        aten.div.Tensor,
        aten.div.Scalar,
    }
)
"""Operators of two operands, of which one may be a number."""

_SCALING = frozenset({aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar})


def find_regions(nodes: list[fx.Node], allowed: Callable[[fx.Node], bool]) -> dict[fx.Node, fx.Node]:
    """Member of a region -> the tensor that it is a function of; a node alone is a region of one.

    Args:
        nodes: Calls in topological order.
        allowed: Whether a node may be a member at all.
    """
    cut: set[fx.Node] = set()
    while True:
        base: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            if allowed(node):
                source = _base(node, base, cut)
                if source is not None:
                    base[node] = source
        exposed = {n for n in base if n not in cut and not _hidden(n, base) and any(u in base for u in n.users)}
        if not exposed:
            return base
        cut |= exposed


def interior(base: dict[fx.Node, fx.Node]) -> set[fx.Node]:
    """The members that only members of the same region read: they are not quantized."""
    return {node for node in base if _hidden(node, base)}


def _hidden(node: fx.Node, base: dict[fx.Node, fx.Node]) -> bool:
    return bool(node.users) and all(base.get(user) is base[node] for user in node.users)


def _base(node: fx.Node, base: dict[fx.Node, fx.Node], cut: set[fx.Node]) -> fx.Node | None:
    operands = [x for x in node.all_input_nodes if is_float_tensor(x) and x.op != "get_attr"]
    if not is_float_tensor(node) or len(operands) != len(node.all_input_nodes):
        return None
    sources = {base[x] if x in base and x not in cut else x for x in operands}
    if len(sources) != 1:
        return None
    (source,) = sources
    direct = [x for x in operands if x is source]
    if node.target in FUNCTIONS:
        return source if len(operands) == 1 else None
    if node.target not in ARITHMETIC:
        return None
    if (
        len(operands) == 1
        and any(x is operands[0] for x in node.args[1:2])
        and any(x is operands[0] for x in node.args[:1])
    ):
        return None if direct else source  # x * x is a product of two tensors, f(x) * f(x) a function
    if direct and len(operands) == 1 and node.target in _SCALING and len(source.users) > 1:
        return None  # scaling alone costs nothing: it renames the steps of x, which the other readers do not see
    return source


def gentle_function(node: fx.Node, base: fx.Node) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """``node`` as a function of ``base`` if it is nowhere steep, else None. It takes and returns float64."""
    steps: list[fx.Node] = []
    todo = [node]
    while todo:
        step = todo.pop()
        if step is base or step in steps:
            continue
        if step.target not in _GENTLE and step.target not in ARITHMETIC - {aten.div.Tensor}:
            if step.target is not aten.div.Tensor or isinstance(argument(step, 1), fx.Node):
                return None
        steps.append(step)
        todo += step.all_input_nodes
    # Read now: observers will be put between the nodes.
    plan: list[tuple[fx.Node, Any, Any, Any]] = [(n, n.target, n.args, n.kwargs) for n in sorted(steps)]

    def function(x: torch.Tensor) -> torch.Tensor:
        values: dict[fx.Node, Any] = {base: x}
        for step, target, step_args, step_kwargs in plan:
            args, kwargs = fx.map_arg((step_args, step_kwargs), values.__getitem__)
            values[step] = target(*args, **kwargs)
        result: torch.Tensor = values[node]
        return result

    return function
