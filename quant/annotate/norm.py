"""Local response normalisation, taken whole."""

from __future__ import annotations

from torch import fx

from quant.annotate.context import Annotator
from quant.annotate.registry import annotates, annotates_pattern
from quant.nodes import aten, only_user

_WINDOW = frozenset(
    {
        aten.view.default,
        aten.reshape.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.pad.default,
        aten.constant_pad_nd.default,
        aten.avg_pool2d.default,
        aten.avg_pool3d.default,
    }
)


@annotates(aten.batch_norm.default)
def batch_norm(a: Annotator, node: fx.Node) -> None:
    """Only while training: one that no layer took in."""
    a.quantize_input(node, node.args[0])
    a.quantize_output(node)


@annotates_pattern
def local_response_norm(a: Annotator, node: fx.Node) -> bool:
    """Only the input and the result are quantized; what lies between is the lowering's business."""
    inside = match_local_response_norm(node)
    if inside is None or any(a.config_of(n) is None for n in inside):
        return False
    a.quantize_input(inside[-1], node.args[0])
    a.quantize_input(node, node.args[0])
    a.quantize_output(node)
    a.claim([node, *inside])
    return True


def match_local_response_norm(node: fx.Node) -> list[fx.Node] | None:
    """The inside of ``x / (k + alpha * window_mean(x * x)) ** beta``, as `torch.export` writes
    `torch.nn.LocalResponseNorm`, if ``node`` is its division: every node between ``x`` and ``node``."""
    if node.target is not aten.div.Tensor or len(node.args) != 2:
        return None
    x, link = node.args
    inside: list[fx.Node] = []
    for target in (aten.pow.Tensor_Scalar, aten.add.Tensor, aten.mul.Tensor):
        if not isinstance(link, fx.Node) or link.target is not target or only_user(link) is None:
            return None
        if len(link.all_input_nodes) != 1:
            return None
        inside.append(link)
        link = link.args[0]
    pools = 0
    while isinstance(link, fx.Node) and link.target in _WINDOW and only_user(link) is not None:
        pools += link.target in (aten.avg_pool2d.default, aten.avg_pool3d.default)
        inside.append(link)
        link = link.args[0]
    if pools != 1 or not isinstance(link, fx.Node) or link.target is not aten.mul.Tensor:
        return None
    if link.args != (x, x) or only_user(link) is None:
        return None
    return [*inside, link]
