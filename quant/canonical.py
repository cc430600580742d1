"""Operators that are other names or compositions of annotated ones, written as those."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

aten = torch.ops.aten

MOST = 4
"""Operators that one may become: more (a norm, a recurrent layer) would be quantized step by step, not as itself."""


def write_canonical(gm: fx.GraphModule, known: Collection[Any]) -> None:
    """Replaces every operator outside ``known`` that PyTorch defines by a few operators inside, by these.

    For example ``clip`` by ``clamp``, ``mT`` by ``transpose``, ``addcmul`` by ``mul`` and ``add``. An operator of which
    any part is not in ``known`` stays as it is.
    """
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target in known or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target in _EXTREMA:
            _only_values(gm, node)
            continue
        written = _definition(node)
        if written is None or not _is_known(written, known):
            continue
        node.replace_all_uses_with(_inlined(gm, node, written))
        gm.graph.erase_node(node)


def _inlined(gm: fx.GraphModule, node: fx.Node, written: fx.GraphModule) -> fx.Node:
    """The result of ``written`` in the place and on the tensors of ``node``."""
    tensors = [n for n in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(n, fx.Node)]
    inner = [n for n in written.graph.nodes if n.op == "placeholder"]
    moved = dict(zip(inner, tensors, strict=True))
    with gm.graph.inserting_before(node):
        for n in written.graph.nodes:
            if n.op == "call_function":
                moved[n] = gm.graph.node_copy(n, moved.__getitem__)
                moved[n].meta = {**node.meta, "val": n.meta["val"]}
    result: fx.Node = moved[written.graph.output_node().args[0]]
    return result


_EXTREMA: dict[Any, Any] = {aten.max.dim: aten.amax.default, aten.min.dim: aten.amin.default}


def _only_values(gm: fx.GraphModule, node: fx.Node) -> None:
    """``max`` or ``min`` along an axis of which nobody reads the indices."""
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users if user.users):
        return
    x, dim, *keep = node.args
    for user in list(node.users):
        if user.users:
            with gm.graph.inserting_before(user):
                values = gm.graph.call_function(_EXTREMA[node.target], (x, [dim], *keep), dict(node.kwargs))
            values.meta = dict(user.meta)
            user.replace_all_uses_with(values)
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _definition(node: fx.Node) -> fx.GraphModule | None:
    """The operator on its own in PyTorch's terms, or None if it is not one tensor's function of tensors."""
    from torch._decomp import core_aten_decompositions  # these two take a third of a second to import
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    values = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
    given = [v for v, leaf in zip(values, leaves) if isinstance(leaf, fx.Node)]
    if not isinstance(node.meta.get("val"), torch.Tensor) or not all(isinstance(v, torch.Tensor) for v in given):
        return None

    def call(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        filled = [next(rest) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    try:
        return make_fx(call, decomposition_table=dict(core_aten_decompositions()))(*given)
    except Exception:  # whatever PyTorch cannot take apart stays whole
        return None


def _is_known(written: fx.GraphModule, known: Collection[Any]) -> bool:
    calls = [n for n in written.graph.nodes if n.op not in ("placeholder", "output")]
    return (
        len(calls) <= MOST
        and isinstance(written.graph.output_node().args[0], fx.Node)
        and all(n.target in known and isinstance(n.meta.get("val"), torch.Tensor) for n in calls)
    )
