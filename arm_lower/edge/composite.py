"""Composite operators that torch.export takes apart but that the NPU does whole.

They are ordinary torch operators (CompositeImplicitAutograd), so they run in eager mode, trace, and decompose
again where they stay on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_LIBRARY = torch.library.Library("arm_lower", "FRAGMENT")
_LIBRARY.define("local_response_norm(Tensor x, int size, float alpha, float beta, float k) -> Tensor")


@torch.library.impl(_LIBRARY, "local_response_norm", "CompositeImplicitAutograd")
def _local_response_norm(x: torch.Tensor, size: int, alpha: float, beta: float, k: float) -> torch.Tensor:
    return torch.nn.functional.local_response_norm(x, size, alpha, beta, k)


aten = torch.ops.aten


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target is target


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _through(node: fx.Node, *targets: Any) -> fx.Node:
    """The first producer that is none of ``targets``, which only rearrange a tensor with one user."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets:
        node = node.args[0]  # type: ignore[assignment]
    return node


def match_local_response_norm(div: fx.Node) -> tuple[fx.Node, int, float, float, float] | None:
    """(x, size, alpha, beta, k) if ``div`` ends the graph that torch.nn.functional.local_response_norm exports to."""
    if not _is(div, aten.div.Tensor) or not _is(div.args[1], aten.pow.Tensor_Scalar):
        return None
    x, power = div.args
    base, beta = power.args  # type: ignore[union-attr]
    if not (
        _is(base, aten.add.Tensor) and _number(base.args[1]) and not base.kwargs and _is(base.args[0], aten.mul.Tensor)
    ):
        return None
    k, (pooled, alpha) = base.args[1], base.args[0].args
    pool = _through(pooled, aten.view.default, aten.reshape.default, aten.squeeze.dim)
    if not _number(alpha) or not (_is(pool, aten.avg_pool3d.default) or _is(pool, aten.avg_pool2d.default)):
        return None
    size, steps = pool.args[1][0], pool.args[2] if len(pool.args) > 2 else pool.args[1]
    if any(n != 1 for n in pool.args[1][1:]) or any(n != 1 for n in steps):
        return None
    padded = _through(pool.args[0], aten.view.default, aten.reshape.default, aten.unsqueeze.default)
    if not (_is(padded, aten.pad.default) or _is(padded, aten.constant_pad_nd.default)):
        return None
    if list(padded.args[1])[-2:] != [size // 2, (size - 1) // 2] or any(list(padded.args[1])[:-2]):
        return None
    square = _through(padded.args[0], aten.view.default, aten.reshape.default, aten.unsqueeze.default)
    # each reader has its own dequantize of one quantized tensor, so x may be another node with the same operands here
    if not _is(square, aten.mul.Tensor) or not all(_same_source(a, x) for a in square.args):
        return None
    return x, size, float(alpha), float(beta), float(k)  # type: ignore[return-value]


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
