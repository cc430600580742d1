"""Clamps."""

from __future__ import annotations

from arm_lower.tosa.ir import Graph


def merge_clamps(graph: Graph) -> bool:
    """CLAMP of CLAMP is one CLAMP; a CLAMP to bounds that its input keeps anyway goes.

    What a RESCALE saturates to (the bounds of its type) counts as such; so does a TABLE's content. Not where the
    result is a graph output.
    """
    changed = False
    makers = graph.producers()
    for op in graph.ops:
        if op.kind != "CLAMP":
            continue
        source = makers.get(op.inputs[0])
        low, high = int(op.attrs["min"]), int(op.attrs["max"])  # type: ignore[arg-type]
        if source is not None and source.kind == "CLAMP":
            below, above = int(source.attrs["min"]), int(source.attrs["max"])  # type: ignore[arg-type]
            low, high = min(max(below, low), high), min(max(above, low), high)  # the later clamp has the last word
            op.inputs, op.attrs = [source.inputs[0]], {**op.attrs, "min": low, "max": high}
            source = makers.get(op.inputs[0])
            changed = True
        smallest, largest = op.inputs[0].dtype.range
        if (
            source is not None
            and source.kind == "TABLE"
            and source.inputs[1].data is not None
            and source.inputs[1].data.size == 256
        ):
            smallest, largest = int(source.inputs[1].data.min()), int(source.inputs[1].data.max())
        if low <= smallest and high >= largest and op.output not in graph.outputs:
            graph.replace(op.output, op.inputs[0])
            changed = True
    return changed
