"""Reshapes."""

from __future__ import annotations

from arm_lower.tosa.ir import Graph


def merge_reshapes(graph: Graph) -> bool:
    """A RESHAPE of a RESHAPE reads the first one's input; one that keeps the shape goes.

    A reshape to the same shape stays where its result is a graph output.
    """
    changed = False
    makers = graph.producers()
    for op in graph.ops:
        if op.kind != "RESHAPE":
            continue
        source = makers.get(op.inputs[0])
        if source is not None and source.kind == "RESHAPE":
            op.inputs = [source.inputs[0]]
            changed = True
        if op.inputs[0].shape == op.output.shape and op.output not in graph.outputs:
            graph.replace(op.output, op.inputs[0])
            changed = True
    return changed
