"""Whether a TOSA graph is whole and legal."""

from __future__ import annotations

import numpy as np

from arm_lower.errors import TosaError
from arm_lower.tosa.ir import DType, Graph, Op, Tensor
from arm_lower.tosa.spec import infer, level_error


def verify(graph: Graph) -> None:
    """Checks names, topological order, every operator against TOSA 1.0, constants, and the limits of level 8K.

    Raises:
        TosaError: The first problem; names the graph, the operator, its result and its location.
    """
    names: dict[str, Tensor] = {}
    known: set[Tensor] = set()
    for t in graph.inputs:
        _add(graph, t, names)
        known.add(t)
        if t.data is not None:
            raise _error(graph, f"input {t.name!r} is a constant")
    results: set[Tensor] = set()
    for index, op in enumerate(graph.ops):
        for t in op.inputs:
            if t.data is not None and t not in known:
                _add(graph, t, names)
                known.add(t)
                _constant(graph, t)
            if t not in known:
                raise _op_error(graph, index, op, f"reads {t.name!r}, which nothing before it makes")
        _operator(graph, index, op)
        for t in op.outputs:
            _add(graph, t, names)
            known.add(t)
            results.add(t)
    if not graph.outputs:
        raise _error(graph, "it has no outputs")
    for t in graph.outputs:
        if t not in results:
            raise _error(graph, f"output {t.name!r} is not the result of an operator",
                         "insert an IDENTITY: Vela finds only results")
    if len(set(graph.outputs)) != len(graph.outputs):
        raise _error(graph, "an output is there twice", "insert an IDENTITY for the second")


def _add(graph: Graph, t: Tensor, names: dict[str, Tensor]) -> None:
    if t.name in names:
        what = "is there twice" if names[t.name] is t else "names two tensors"
        raise _error(graph, f"{t.name!r} {what}")
    names[t.name] = t


def _operator(graph: Graph, index: int, op: Op) -> None:
    try:
        wanted = infer(op.kind, op.inputs, op.attrs)
    except TosaError as error:
        raise _op_error(graph, index, op, error.message.removeprefix(f"{op.kind}: "), error.hint) from error
    if len(op.outputs) != len(wanted):
        raise _op_error(graph, index, op, f"has {len(op.outputs)} results, allowed is {len(wanted)}")
    for t, (shape, dtype) in zip(op.outputs, wanted):
        if t.data is not None:
            raise _op_error(graph, index, op, f"result {t.name!r} is a constant")
        if (t.shape, t.dtype) != (shape, dtype):
            raise _op_error(graph, index, op, f"result is {t.dtype} {list(t.shape)}, it must be {dtype} {list(shape)}")
    problem = level_error(op.kind, op.inputs, op.attrs, op.outputs)
    if problem:
        raise _op_error(graph, index, op, problem)


def _constant(graph: Graph, t: Tensor) -> None:
    assert t.data is not None  # the caller has looked
    if t.data.dtype != t.dtype.numpy or t.data.shape != t.shape:
        raise _error(graph, f"constant {t.name!r} holds {t.data.dtype} {list(t.data.shape)}, "
                            f"its tensor is {t.dtype} {list(t.shape)}, which is held in {t.dtype.numpy}")
    if t.dtype in (DType.INT4, DType.INT48) and t.size:
        low, high = t.dtype.range
        if t.dtype is DType.INT4:
            low = -7  # TOSA 1.0: int4 weights have no -8
        values = t.data.astype(np.int64)
        found = int(np.min(values)), int(np.max(values))
        if found[0] < low or found[1] > high:
            raise _error(graph, f"constant {t.name!r} has values {found[0]}..{found[1]}, "
                                f"allowed for {t.dtype} is {low}..{high}")


def _error(graph: Graph, message: str, hint: str = "") -> TosaError:
    return TosaError(f"graph {graph.name!r}: {message}", hint)


def _op_error(graph: Graph, index: int, op: Op, message: str, hint: str = "") -> TosaError:
    made = op.outputs[0].name if op.outputs else "nothing"
    place = f" from {op.location}" if op.location else ""
    return _error(graph, f"operator {index}, {op.kind} that makes {made!r}{place}: {message}", hint)
