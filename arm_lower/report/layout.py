"""Which operators of a TOSA graph only bring data into another order, and for whose sake."""

from __future__ import annotations

import numpy as np

from arm_lower.tosa.ir import Graph, Op, Tensor

_MOVES = frozenset({"TRANSPOSE", "RESHAPE", "REVERSE", "IDENTITY"})


def layout_ops(graph: Graph) -> dict[str, str]:
    """Output tensor of each data-moving operator -> ``input NAME``, ``output NAME`` or ``inside``.

    A chain of such operators that starts at a graph input belongs to that input; else one that ends at a graph
    output belongs to that output; the others are inside. Data-moving are TRANSPOSE, RESHAPE, REVERSE and
    IDENTITY, and a convolution that copies (each output channel is one input value), with its RESCALE.
    """
    producers, consumers = graph.producers(), graph.consumers()
    moves = [op for op in graph.ops if _is_move(op, producers)]
    moving = set(map(id, moves))

    def origin(tensor: Tensor) -> Tensor:
        while (op := producers.get(tensor)) is not None and id(op) in moving:
            tensor = op.inputs[0]
        return tensor

    def destination(tensor: Tensor) -> Tensor | None:
        while tensor not in graph.outputs:
            readers = consumers.get(tensor, [])
            if len(readers) != 1 or id(readers[0]) not in moving:
                return None
            tensor = readers[0].output
        return tensor

    found = {}
    for op in moves:
        source = origin(op.inputs[0])
        target = destination(op.output)
        border = f"input {source.name}" if source in graph.inputs else f"output {target.name}" if target else "inside"
        found[op.output.name] = border
    return found


def _is_move(op: Op, producers: dict[Tensor, Op]) -> bool:
    if op.kind in _MOVES:
        return True
    if op.kind == "CONV2D":
        return _copies(op)
    if op.kind == "RESCALE":
        source = producers.get(op.inputs[0])
        return source is not None and source.kind == "CONV2D" and _copies(source)
    return False


def _copies(conv: Op) -> bool:
    """Whether each output channel of a convolution is one input value, unchanged."""
    weight, bias = conv.inputs[1].data, conv.inputs[2].data
    if weight is None or bias is None or bias.any() or weight.dtype != np.int8:
        return False
    rows = weight.reshape(weight.shape[0], -1)
    return bool((np.count_nonzero(rows, axis=1) == 1).all() and (rows.max(axis=1) == 1).all())
