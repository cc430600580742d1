"""Which operators of a TOSA graph only bring data into another order, and for whose sake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from arm_lower.tosa.ir import Graph, Op, Tensor

_FREE = frozenset({"RESHAPE", "IDENTITY"})
_MOVES = _FREE | {"TRANSPOSE", "REVERSE"}
_VELA_MOVES = frozenset({"Transpose", "Reverse", "MemoryCopy", "Identity", "ReinterpretCast"})


@dataclass(frozen=True)
class Move:
    """A tensor that a data-moving operator makes.

    Attributes:
        border: ``input NAME`` or ``output NAME`` of the graph, or ``inside``.
        copies: It is made by a convolution that copies (each output channel is one input value).
    """

    border: str
    copies: bool

    def is_made_by(self, vela_op: str) -> bool:
        """Whether a row of Vela's table that ends with this tensor is for the move alone. Vela joins reshapes and
        transposes to an operator that computes; the row is then that operator's."""
        return self.copies or vela_op in _VELA_MOVES


def layout_moves(graph: Graph) -> dict[str, Move]:
    """Name of the output of each data-moving operator -> what it is for.

    Data-moving are TRANSPOSE, REVERSE, RESHAPE and IDENTITY, and a convolution that copies, with its RESCALE. A
    chain of them that starts at a graph input belongs to that input; else one that ends at a graph output belongs
    to that output; the others are inside.
    """
    producers, consumers = graph.producers(), graph.consumers()
    moves = {id(op) for op in graph.ops if _is_move(op, producers)}

    def origin(tensor: Tensor) -> Tensor:
        while (op := producers.get(tensor)) is not None and id(op) in moves:
            tensor = op.inputs[0]
        return tensor

    def destination(tensor: Tensor) -> Tensor | None:
        while tensor not in graph.outputs:
            readers = consumers.get(tensor, [])
            if len(readers) != 1 or id(readers[0]) not in moves:
                return None
            tensor = readers[0].output
        return tensor

    found = {}
    for op in graph.ops:
        if id(op) not in moves:
            continue
        source, target = origin(op.inputs[0]), destination(op.output)
        border = f"input {source.name}" if source in graph.inputs else f"output {target.name}" if target else "inside"
        found[op.output.name] = Move(border, _made_by_copy(op, producers))
    return found


def _is_move(op: Op, producers: Mapping[Tensor, Op]) -> bool:
    return op.kind in _MOVES or (op.kind in ("CONV2D", "RESCALE") and _made_by_copy(op, producers))


def _made_by_copy(op: Op, producers: Mapping[Tensor, Op]) -> bool:
    """Whether ``op`` is a convolution that copies, its RESCALE, or reshapes the result of one."""
    while op.kind in _FREE or op.kind == "RESCALE":
        source = producers.get(op.inputs[0])
        if source is None or (op.kind == "RESCALE" and source.kind != "CONV2D"):
            return False
        op = source
    return op.kind == "CONV2D" and _copies(op)


def _copies(conv: Op) -> bool:
    """Whether each output channel of a convolution is one input value, unchanged."""
    weight, bias = conv.inputs[1].data, conv.inputs[2].data
    if weight is None or bias is None or bias.any() or weight.dtype != np.int8:
        return False
    rows = weight.reshape(weight.shape[0], -1)
    return bool((np.count_nonzero(rows, axis=1) == 1).all() and (rows.max(axis=1) == 1).all())
