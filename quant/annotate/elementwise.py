"""Elementwise operators of one and two tensors. Scalar operands stay scalars."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from torchao.quantization.pt2e.quantizer import FixedQParamsQuantizationSpec

from quant.annotate.context import Annotator
from quant.annotate.regions import ARITHMETIC, FUNCTIONS, gentle_function
from quant.annotate.registry import annotates
from quant.nodes import CLAMPS, argument, aten, constant, has_scalar_bounds, is_constant
from quant.observers import Function


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


FIXED: dict[Any, FixedQParamsQuantizationSpec] = {
    aten.sigmoid.default: UNIT_RANGE,
    aten.hardsigmoid.default: UNIT_RANGE,
    aten.tanh.default: SIGNED_UNIT_RANGE,
}


@annotates(*ARITHMETIC)
def arithmetic(a: Annotator, node: fx.Node) -> None:
    """Each operand and the result have their own parameters; a clamp behind it is taken in."""
    a.quantize_inputs(node)
    a.quantize_output(node)


@annotates(aten.minimum.default, aten.maximum.default, aten.min.other, aten.max.other)
def choice(a: Annotator, node: fx.Node) -> None:
    """The result holds values of the operands, so all have equal parameters."""
    a.share(node, node.all_input_nodes)


@annotates(*(FUNCTIONS - CLAMPS - FIXED.keys()))
def function(a: Annotator, node: fx.Node) -> None:
    """A function of one variable: input and output each have their own parameters."""
    a.quantize_inputs(node)
    a.quantize_output(node)


@annotates(aten.prelu.default)
def prelu(a: Annotator, node: fx.Node) -> None:
    """Each slope has its own scale, which keeps it exact. With a slope for each channel the input has 16 bits if it
    is the result of an operator just for this, so that there is one rounding to 8 bits and not two."""
    x, slopes = argument(node, 0), argument(node, 1)
    if is_constant(slopes):
        a.quantize_input(node, x)
        a.quantize_weight(node, slopes, ch_axis=0)
        a.quantize_output(node)
        if slopes.meta["val"].numel() > 1:
            a.widen_input(node, x)


@annotates(*CLAMPS)
def clamp(a: Annotator, node: fx.Node) -> None:
    """A clamp that no operator took in: like any function of one variable."""
    if has_scalar_bounds(node):
        function(a, node)


@annotates(*FIXED)
def bounded(a: Annotator, node: fx.Node) -> None:
    """The output's parameters follow from the function's range, whatever the data."""
    a.quantize_inputs(node)
    a.quantize_output(node, fixed=FIXED[node.target])


@annotates(aten.glu.default)
def gated(a: Annotator, node: fx.Node) -> None:
    a.quantize_inputs(node)
    a.quantize_output(node)


@annotates(aten.softmax.int, aten._softmax.default)
def softmax(a: Annotator, node: fx.Node) -> None:
    a.quantize_inputs(node)
    a.quantize_output(node, fixed=UNIT_RANGE)


@annotates(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(a: Annotator, node: fx.Node) -> None:
    a.quantize_inputs(node)
    a.quantize_output(node)


SOFTMAXES = frozenset({aten.softmax.int, aten._softmax.default})


def softmax_margin(node: fx.Node, source: fx.Node) -> float:
    """How far below the largest number of a row others must be so that all of them together are half a step of the
    result, if ``node`` is a softmax of ``source``; else 0."""
    if node.target not in SOFTMAXES or node.args[0] is not source:
        return 0.0
    shape, dim = source.meta["val"].shape, int(argument(node, 1))
    return math.log(512 * (shape[dim] if shape else 1))


def reader_function(gm: fx.GraphModule, node: fx.Node, source: fx.Node) -> Function | None:
    """What ``node`` computes of ``source``, if it is a gentle function of that tensor alone or a prelu (with the
    quadratic mean of its slopes); else None."""
    if node.target is aten.prelu.default and node.args[0] is source:
        slopes = constant(gm, node.args[1])
        if slopes is None:
            return None
        slope = float(slopes.detach().double().square().mean().sqrt())
        return lambda x: torch.where(x > 0, x, slope * x)
    return gentle_function(node, source)
