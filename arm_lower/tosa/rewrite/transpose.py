"""Transposes."""

from __future__ import annotations

from arm_lower.tosa.ir import Graph


def cancel_transposes(graph: Graph) -> bool:
    """A TRANSPOSE of a TRANSPOSE is one with the composed permutation, and none where that is the identity.

    An identity whose result is a graph output becomes IDENTITY.
    """
    changed = False
    makers = graph.producers()
    for op in graph.ops:
        if op.kind != "TRANSPOSE":
            continue
        perms = op.integers("perms")
        source = makers.get(op.inputs[0])
        if source is not None and source.kind == "TRANSPOSE":
            first = source.integers("perms")
            perms = tuple(first[p] for p in perms)
            op.inputs, op.attrs = [source.inputs[0]], {"perms": perms}
            changed = True
        if perms == tuple(range(len(perms))):
            if op.output in graph.outputs:
                op.kind, op.attrs = "IDENTITY", {}
            else:
                graph.replace(op.output, op.inputs[0])
            changed = True
    return changed
