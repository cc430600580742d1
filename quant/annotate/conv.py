"""Convolutions and linear layers: int8 input, int8 weight per output channel, int32 bias, one int8 output
behind the batch norm and the clamp that belong to them."""

from __future__ import annotations

from torch import fx

from quant.annotate.context import Annotator
from quant.annotate.registry import annotates
from quant.bias import weight_axis
from quant.nodes import WEIGHTED, argument, aten, is_constant, is_float_tensor


@annotates(*WEIGHTED)
def weighted(a: Annotator, node: fx.Node) -> None:
    """(input, weight, bias, ...): only a constant weight can be quantized per output channel."""
    source, weight, bias = (argument(node, i) for i in range(3))
    if not is_constant(weight) or not is_float_tensor(source):
        return
    a.quantize_input(node, source)
    a.quantize_weight(node, weight, weight_axis(node, weight.meta["val"].shape))
    if is_constant(bias):
        a.quantize_bias(node, bias, source, weight)
    a.quantize_output(node)


@annotates(aten.matmul.default, aten.bmm.default, aten.mm.default)
def matmul(a: Annotator, node: fx.Node) -> None:
    """Both operands are activations, the output has its own parameters."""
    a.quantize_inputs(node)
    a.quantize_output(node)
