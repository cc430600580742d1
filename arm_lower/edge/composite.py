"""Composite operators that torch.export takes apart but that the NPU does whole.

They are ordinary torch operators (CompositeImplicitAutograd), so they run in eager mode, trace, and decompose
again where they stay on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_LIBRARY = torch.library.Library("arm_lower", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "local_response_norm(Tensor x, int size, float alpha, float beta, float k) -> Tensor"
)


@torch.library.impl(_LIBRARY, "local_response_norm", "CompositeImplicitAutograd")
def _local_response_norm(x: torch.Tensor, size: int, alpha: float, beta: float, k: float) -> torch.Tensor:
    return torch.nn.functional.local_response_norm(x, size, alpha, beta, k)


aten = torch.ops.aten


def _is(node: Any, *targets: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def _arg(node: fx.Node, i: int) -> Any:
    """Operand ``i`` of a node: a node, a number, a list ..., whatever the operator's schema has there."""
    return node.args[i]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _through(node: Any, *targets: Any) -> Any:
    """The first producer that is none of ``targets``, which only rearrange a tensor with one user."""
    while _is(node, *targets):
        node = _arg(node, 0)
    return node


def match_local_response_norm(div: fx.Node) -> tuple[fx.Node, int, float, float, float] | None:
    """(x, size, alpha, beta, k) if ``div`` ends the graph that torch.nn.functional.local_response_norm exports to."""
    if not _is(div, aten.div.Tensor) or not _is(_arg(div, 1), aten.pow.Tensor_Scalar):
        return None
    x, power = _arg(div, 0), _arg(div, 1)
    base, beta = _arg(power, 0), _arg(power, 1)
    if not _is(base, aten.add.Tensor) or not _number(_arg(base, 1)) or base.kwargs:
        return None
    product, k = _arg(base, 0), _arg(base, 1)
    if not _is(product, aten.mul.Tensor) or not _number(_arg(product, 1)):
        return None
    alpha = _arg(product, 1)
    pool = _through(_arg(product, 0), aten.view.default, aten.reshape.default, aten.squeeze.dim)
    if not _is(pool, aten.avg_pool3d.default, aten.avg_pool2d.default):
        return None
    kernel = _arg(pool, 1)
    size, steps = kernel[0], _arg(pool, 2) if len(pool.args) > 2 else kernel
    if any(n != 1 for n in kernel[1:]) or any(n != 1 for n in steps):
        return None
    padded = _through(_arg(pool, 0), aten.view.default, aten.reshape.default, aten.unsqueeze.default)
    if not _is(padded, aten.pad.default, aten.constant_pad_nd.default):
        return None
    pads = list(_arg(padded, 1))
    if pads[-2:] != [size // 2, (size - 1) // 2] or any(pads[:-2]):
        return None
    square = _through(_arg(padded, 0), aten.view.default, aten.reshape.default, aten.unsqueeze.default)
    # each reader has its own dequantize of one quantized tensor, so x may be another node with the same operands here
    if not _is(square, aten.mul.Tensor) or not all(_same_source(a, x) for a in square.args):
        return None
    return x, size, float(alpha), float(beta), float(k)


def _same_source(a: Any, x: Any) -> bool:
    if a is x:
        return True
    return (
        all(isinstance(n, fx.Node) and n.op == "call_function" for n in (a, x))
        and "dequantize" in str(a.target)
        and a.target is x.target
        and a.args == x.args
    )


def recognize(graph: fx.Graph) -> bool:
    """Puts composite operators in place of the subgraphs they decompose to; true if there was any."""
    changed = False
    for node in list(graph.nodes):
        found = match_local_response_norm(node) if node.op == "call_function" else None
        if found is None:
            continue
        with graph.inserting_before(node):
            whole = graph.call_function(torch.ops.arm_lower.local_response_norm.default, found)
        whole.meta = dict(node.meta)
        node.replace_all_uses_with(whole)
        changed = True
    if changed:
        graph.eliminate_dead_code()
    return changed
