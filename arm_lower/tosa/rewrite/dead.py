"""Removal of operators and inputs that no output needs."""

from __future__ import annotations

from arm_lower.tosa.ir import Graph


def remove_dead(graph: Graph) -> bool:
    """Drops operators whose results nobody reads. Graph inputs stay: they are the delegate's signature."""
    live = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if any(t in live for t in op.outputs):
            live.update(op.inputs)
            kept.append(op)
    changed = len(kept) != len(graph.ops)
    graph.ops = kept[::-1]
    return changed
