"""Convolutions and linear layers: int8 input, int8 weight per output channel, int32 bias, one int8 output
behind the batch norm and the clamp that belong to them."""

from __future__ import annotations

from torch import fx

from quant.annotate.context import Annotator
from quant.annotate.registry import annotates
from quant.nodes import argument, aten, is_constant, is_float_tensor


def weighted(a: Annotator, node: fx.Node, ch_axis: int, repeat: int = 1, interleave: bool = False) -> None:
    """An operator (input, weight, bias, ...) whose weight is constant.

    Args:
        ch_axis: Axis of the weight that has one scale per index.
        repeat, interleave: Which output channels share a scale, see `BiasScale`.
    """
    source, weight, bias = (argument(node, i) for i in range(3))
    if not is_constant(weight) or not is_float_tensor(source):
        return
    a.quantize_input(node, source)
    a.quantize_weight(node, weight, ch_axis)
    if is_constant(bias):
        a.quantize_bias(node, bias, source, weight, repeat, interleave)
    a.quantize_output(node)


@annotates(
    aten.conv1d.default,
    aten.conv1d.padding,
    aten.conv2d.default,
    aten.conv2d.padding,
    aten.conv3d.default,
    aten.conv3d.padding,
    aten.linear.default,
)
def convolution(a: Annotator, node: fx.Node) -> None:
    """Weight (out, in / groups, ...): one scale per output channel."""
    weighted(a, node, ch_axis=0)


@annotates(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def transposed_convolution(a: Annotator, node: fx.Node) -> None:
    """Weight (in, out / groups, ...). Depthwise (one input channel per group): axis 0 counts the groups, and a
    scale serves the out / groups channels of its group. Else axis 1, and a scale serves one channel of
    every group."""
    weight, groups = argument(node, 1), argument(node, 6, 1)
    shape = weight.meta["val"].shape
    if groups > 1 and shape[0] == groups:
        weighted(a, node, ch_axis=0, repeat=shape[1], interleave=True)
    else:
        weighted(a, node, ch_axis=1, repeat=groups)


@annotates(aten.matmul.default, aten.bmm.default, aten.mm.default)
def matmul(a: Annotator, node: fx.Node) -> None:
    """Both operands are activations, the output has its own parameters."""
    a.quantize_inputs(node)
    a.quantize_output(node)
