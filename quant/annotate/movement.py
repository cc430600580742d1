"""Operators that move data without changing it: equal parameters on both sides, and quantized only beside an
operator that is quantized for its own sake."""

from __future__ import annotations

import math

from torch import fx

from quant.annotate.context import Annotator
from quant.annotate.registry import annotates
from quant.nodes import argument, aten, tensor_items


@annotates(
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.dropout.default,
    aten.expand.default,
    aten.flatten.using_ints,
    aten.flip.default,
    aten.narrow.default,
    aten.permute.default,
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
    aten.channel_shuffle.default,
    aten.repeat.default,
    aten.reshape.default,
    aten.roll.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.t.default,
    aten.transpose.int,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.upsample_bilinear2d.default,
    aten.upsample_bilinear2d.vec,
    aten.upsample_linear1d.default,
    aten.upsample_linear1d.vec,
    aten.upsample_nearest1d.default,
    aten.upsample_nearest1d.vec,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest2d.vec,
    aten.view.default,
    aten._unsafe_view.default,
)
def movement(a: Annotator, node: fx.Node) -> None:
    a.share(node, [node.args[0]], moves=True)


@annotates(aten.cat.default, aten.concat.default, aten.stack.default)
def joining(a: Annotator, node: fx.Node) -> None:
    """All operands and the result; an operand with fixed parameters is requantized on the way in instead."""
    operands = node.args[0]
    if isinstance(operands, (list, tuple)):
        a.share(node, operands, moves=True)


@annotates(
    aten.chunk.default,
    aten.split.Tensor,
    aten.split.sizes,
    aten.split_with_sizes.default,
    aten.tensor_split.sections,
    aten.unbind.int,
)
def splitting(a: Annotator, node: fx.Node) -> None:
    """Each piece and the whole."""
    for item in tensor_items(node):
        a.share(item, [node.args[0]], reader=node, moves=True)


@annotates(aten.pad.default, aten.constant_pad_nd.default)
def padding(a: Annotator, node: fx.Node) -> None:
    """A finite constant lies within the observed range, because the result is observed too."""
    value = argument(node, 3 if node.target is aten.pad.default else 2)
    if value is None or math.isfinite(value):
        a.share(node, [node.args[0]], moves=True)
