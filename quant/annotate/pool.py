"""Pooling and reductions."""

from __future__ import annotations

from torch import fx

from quant.annotate.context import Annotator
from quant.annotate.registry import annotates
from quant.nodes import aten


@annotates(
    aten.max_pool1d.default,
    aten.max_pool2d.default,
    aten.max_pool3d.default,
    aten.amax.default,
    aten.amin.default,
)
def selection(a: Annotator, node: fx.Node) -> None:
    """The result holds values of the input: equal parameters."""
    a.share(node, [node.args[0]])


@annotates(
    aten.avg_pool1d.default,
    aten.avg_pool2d.default,
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
)
def average_pool(a: Annotator, node: fx.Node) -> None:
    """Equal parameters, so that one AVG_POOL2D does it."""
    a.share(node, [node.args[0]])


@annotates(aten.mean.dim, aten.mean.default, aten.sum.dim_IntList, aten.sum.default)
def reduction(a: Annotator, node: fx.Node) -> None:
    """Sums are rescaled anyway, so the result has parameters of its own."""
    a.quantize_inputs(node)
    a.quantize_output(node)
