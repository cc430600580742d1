"""Rescales."""

from __future__ import annotations

from arm_lower.tosa.ir import Graph, Op


def is_identity(op: Op) -> bool:
    """A RESCALE that gives every integer back: factor one, equal zero points and types."""
    a = op.attrs
    return (
        op.kind == "RESCALE"
        and not a["per_channel"]
        and a["input_zp"] == a["output_zp"]
        and op.inputs[0].dtype is op.output.dtype
        and not a["input_unsigned"]
        and not a["output_unsigned"]
        and a["multiplier"][0] == 1 << a["shift"][0]  # type: ignore[index, operator]
    )


def fuse_rescales(graph: Graph) -> bool:
    """A RESCALE by one without a change of zero point or type goes.

    Two rescales in a row are not merged: the first one rounds and saturates, so one alone gives other bytes.
    """
    changed = False
    for op in graph.ops:
        if is_identity(op) and op.output not in graph.outputs:
            graph.replace(op.output, op.inputs[0])
            changed = True
    if changed:
        graph.ops = [op for op in graph.ops if not (is_identity(op) and op.output not in graph.outputs)]
    return changed
