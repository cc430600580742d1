"""Elementwise operators of one and two tensors. Scalar operands stay scalars."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx
from torchao.quantization.pt2e.quantizer import FixedQParamsQuantizationSpec

from quant.annotate.context import ACTIVATIONS, Annotator, aten, constant, has_scalar_bounds, is_constant
from quant.annotate.registry import annotates


def fixed_int8(scale: float, zero_point: int) -> FixedQParamsQuantizationSpec:
    """Parameters known from the range of the function, whatever the data."""
    return FixedQParamsQuantizationSpec(
        dtype=torch.int8,
        scale=scale,
        zero_point=zero_point,
        quant_min=-128,
        quant_max=127,
        qscheme=torch.per_tensor_affine,
    )


UNIT_RANGE = fixed_int8(1 / 256, -128)
"""[0, 1): what sigmoid, hardsigmoid and softmax produce."""

SIGNED_UNIT_RANGE = fixed_int8(1 / 128, 0)
"""[-1, 1): what tanh produces."""


GENTLE = frozenset(
    {
        *ACTIVATIONS,
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
"""Functions of one variable that are nowhere steep: an observer may weigh its error behind them."""


def gentle_function(gm: fx.GraphModule, node: fx.Node) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What ``node`` computes of its first operand, if it is one of `GENTLE` or a prelu (with the quadratic mean
    of its slopes); else None."""
    if node.target is aten.prelu.default:
        slopes = constant(gm, node.args[1])
        if slopes is None:
            return None
        slope = float(slopes.detach().double().square().mean().sqrt())
        return lambda x: torch.where(x > 0, x, slope * x)
    if node.target not in GENTLE or len(node.all_input_nodes) != 1:
        return None
    target: Callable[..., torch.Tensor] = node.target
    return lambda x: target(x, *node.args[1:], **node.kwargs)


@annotates(
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
)
def arithmetic(a: Annotator, node: fx.Node) -> None:
    """Each operand and the result have their own parameters; a clamp behind it is taken in."""
    a.quantize_inputs(node)
    a.quantize_output(node)


@annotates(aten.minimum.default, aten.maximum.default, aten.min.other, aten.max.other)
def choice(a: Annotator, node: fx.Node) -> None:
    """The result holds values of the operands, so all have equal parameters."""
    a.share(node, node.all_input_nodes)


@annotates(
    aten.abs.default,
    aten.celu.default,
    aten.cos.default,
    aten.elu.default,
    aten.erf.default,
    aten.exp.default,
    aten.expm1.default,
    aten.gelu.default,
    aten.hardswish.default,
    aten.leaky_relu.default,
    aten.log.default,
    aten.log1p.default,
    aten.log_sigmoid.default,
    aten.mish.default,
    aten.neg.default,
    aten.pow.Tensor_Scalar,
    aten.reciprocal.default,
    aten.rsqrt.default,
    aten.selu.default,
    aten.silu.default,
    aten.sin.default,
    aten.softplus.default,
    aten.sqrt.default,
    aten.square.default,
)
def function(a: Annotator, node: fx.Node) -> None:
    """A function of one variable: input and output each have their own parameters."""
    a.quantize_inputs(node)
    a.quantize_output(node)


@annotates(aten.prelu.default)
def prelu(a: Annotator, node: fx.Node) -> None:
    """Each slope has its own scale, which keeps it exact."""
    x, slopes = node.args
    if is_constant(slopes):
        a.quantize_input(node, x)
        a.quantize_weight(node, slopes, ch_axis=0)
        a.quantize_output(node)


@annotates(*ACTIVATIONS)
def clamp(a: Annotator, node: fx.Node) -> None:
    """A clamp that no operator took in: like any function of one variable."""
    if has_scalar_bounds(node):
        function(a, node)


@annotates(aten.sigmoid.default, aten.hardsigmoid.default)
def sigmoid(a: Annotator, node: fx.Node) -> None:
    a.quantize_inputs(node)
    a.quantize_output(node, fixed=UNIT_RANGE)


@annotates(aten.tanh.default)
def tanh(a: Annotator, node: fx.Node) -> None:
    a.quantize_inputs(node)
    a.quantize_output(node, fixed=SIGNED_UNIT_RANGE)


@annotates(aten.softmax.int, aten._softmax.default)
def softmax(a: Annotator, node: fx.Node) -> None:
    a.quantize_inputs(node)
    a.quantize_output(node, fixed=UNIT_RANGE)


@annotates(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(a: Annotator, node: fx.Node) -> None:
    a.quantize_inputs(node)
    a.quantize_output(node)
