"""In-place operators to functional ones, in one walk and without a trace.

A value changed in place is replaced by a new value for all later readers. This is exact as long as no
other live value shares its storage; `run` finds out from the operators' schemas and gives up otherwise
(the caller then asks torch, which re-traces the program).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from arm_lower.edge.meta import describe, fake_result, op_name
from arm_lower.errors import ArmLowerError

# Return their first argument as it is, though the schema says nothing about aliases.
_SILENT_ALIASES = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})
# Same elements at the same place if they alias at all.
_WHOLE = _SILENT_ALIASES | frozenset({"alias", "detach", "contiguous", "to", "lift_fresh", "lift", "positive"})


def run(graph: fx.Graph, inputs: set[fx.Node], mode: FakeTensorMode) -> dict[fx.Node, Any] | None:
    """Make ``graph`` functional in place.

    Args:
        graph: ATen graph; every node has ``meta["val"]`` if it is `needed`.
        inputs: Placeholders of the caller's tensors. A change of one of them is seen by later readers in
            the graph but not written back to the caller.
        mode: For dtype questions.

    Returns:
        Placeholder -> its final value, for every placeholder that was changed. None if a changed value
        shares storage with another live value; the graph is then no longer usable.

    Raises:
        ArmLowerError: An in-place operator that has no functional form.
    """
    nodes = list(graph.nodes)
    if not needed(graph):
        return {}
    position = {n: i for i, n in enumerate(nodes)}
    last_use = {n: max((position[u] for u in n.users), default=-1) for n in nodes}
    state = _Aliases()
    current: dict[fx.Node, Any] = {}
    for node in nodes:
        written = _written_argument(node) if _writes(node) else None
        if written is not None:
            if state.conflict(written, position[node], last_use, inputs):
                return None
            state.same(node, written)
        elif node.op == "call_function":
            state.visit(node)
        _read_current(node, state, current)
        if written is not None:
            current[state.whole(written)] = _functional(graph, node, mode)
    return {n: v for n, v in current.items() if n.op == "placeholder"}


def needed(graph: fx.Graph) -> bool:
    """Whether there is an in-place operator."""
    return any(_writes(n) for n in graph.nodes)


class _Aliases:
    """Which nodes share storage: `root` for any overlap, `whole` for the very same elements."""

    def __init__(self) -> None:
        self._root: dict[fx.Node, fx.Node] = {}
        self._whole: dict[fx.Node, fx.Node] = {}
        self._members: dict[fx.Node, list[fx.Node]] = {}

    def whole(self, node: fx.Node) -> fx.Node:
        return self._whole.get(node, node)

    def root(self, node: fx.Node) -> fx.Node:
        return self._root.get(node, node)

    def same(self, node: fx.Node, source: fx.Node) -> None:
        self._whole[node] = self.whole(source)
        self._join(node, source)

    def _join(self, node: fx.Node, source: fx.Node) -> None:
        root = self.root(source)
        self._root[node] = root
        self._members.setdefault(root, [root]).append(node)

    def visit(self, node: fx.Node) -> None:
        """Note what an operator that writes nothing shares with its input."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return
        if node.target is operator.getitem:
            self._join(node, source)
        elif isinstance(node.target, torch._ops.OpOverload):
            name = op_name(node.target)
            aliases = name in _SILENT_ALIASES or any(r.alias_info is not None for r in node.target._schema.returns)
            if aliases and name in _WHOLE:
                self.same(node, source)
            elif aliases:
                self._join(node, source)

    def conflict(self, node: fx.Node, at: int, last_use: dict[fx.Node, int], inputs: set[fx.Node]) -> bool:
        """True if a write to ``node`` at position ``at`` would be seen through another live value."""
        root, whole = self.root(node), self.whole(node)
        if root is not whole and root.op == "placeholder" and root not in inputs:
            return True
        others = (m for m in self._members.get(root, ()) if self.whole(m) is not whole)
        return any(last_use[m] > at for m in others)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _written_argument(node: fx.Node) -> fx.Node:
    """The tensor that an in-place operator changes: its first argument."""
    schema = node.target._schema  # type: ignore[union-attr]
    written = [i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    target = node.args[0] if node.args else None
    if written != [0] or not isinstance(target, fx.Node):
        raise ArmLowerError(f"{describe(node)} changes its arguments and cannot be made functional",
                            "call model.eval() before export, or write it out of place")  # fmt: skip
    return target


def _read_current(node: fx.Node, state: _Aliases, current: dict[fx.Node, Any]) -> None:
    if not current:
        return

    def newest(arg: fx.Node) -> Any:
        return current.get(state.whole(arg), arg)

    node.args = fx.map_arg(node.args, newest)
    node.kwargs = fx.map_arg(node.kwargs, newest)


def _functional(graph: fx.Graph, node: fx.Node, mode: FakeTensorMode) -> fx.Node:
    """Turn an in-place node into a functional one; the node that holds the new value of its first argument."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    name, written = op_name(target), node.args[0]
    source = node.args[1] if len(node.args) > 1 else None
    if name == "copy_" and isinstance(source, fx.Node) and _same_type(source, written):
        return source
    packet = getattr(getattr(torch.ops, target.namespace), name.removesuffix("_"), None)
    overload = getattr(packet, target._overloadname, None) if name.endswith("_") else None
    if overload is None or overload._schema.is_mutable:
        raise ArmLowerError(f"{describe(node)} has no functional form", "write it out of place in the model")
    node.target = overload
    dtype = written.meta["val"].dtype if isinstance(written, fx.Node) and "val" in written.meta else None
    if dtype is None or all(_dtype(n) == dtype for n in node.all_input_nodes):
        return node
    found = fake_result(mode, overload, node.args, dict(node.kwargs)).dtype
    if found == dtype:
        return node
    # In place, the result takes the dtype of the tensor it is written to.
    value, node.meta["val"] = node.meta["val"], node.meta["val"].to(found)
    with graph.inserting_after(node):
        cast = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
    cast.meta = {**node.meta, "val": value}
    return cast


def _dtype(node: fx.Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _same_type(a: Any, b: Any) -> bool:
    va, vb = (n.meta.get("val") if isinstance(n, fx.Node) else None for n in (a, b))
    if not isinstance(va, torch.Tensor) or not isinstance(vb, torch.Tensor):
        return False
    return va.shape == vb.shape and va.dtype == vb.dtype
