"""Constant folding of operators that only rearrange."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arm_lower.tosa.ir import Graph, Op, Tensor


def _evaluate(op: Op) -> npt.NDArray[np.generic] | None:
    data = [t.data for t in op.inputs if t.data is not None]
    if not data or len(data) < len(op.inputs):
        return None
    x = data[0]
    if op.kind == "RESHAPE":
        return x.reshape(op.integers("shape"))
    if op.kind == "TRANSPOSE":
        return np.transpose(x, op.integers("perms"))
    if op.kind == "SLICE":
        return x[tuple(slice(s, s + n) for s, n in zip(op.integers("start"), op.integers("size"), strict=True))]
    if op.kind == "CONCAT":
        return np.concatenate(data, op.integer("axis"))
    if op.kind == "TILE":
        return np.tile(x, op.integers("multiples"))
    if op.kind == "IDENTITY":
        return x
    return None


def fold_constants(graph: Graph) -> bool:
    """An operator that only rearranges constants becomes a constant; not when its result is a graph output."""
    changed = False
    for op in graph.ops:
        if op.outputs[0] in graph.outputs:
            continue
        value = _evaluate(op)
        if value is None:
            continue
        out = op.output
        graph.replace(out, Tensor(out.name, out.shape, out.dtype, np.array(value, dtype=out.dtype.numpy, order="C")))
        changed = True
    if changed:
        graph.ops = [op for op in graph.ops if op.output in graph.outputs or _evaluate(op) is None]
    return changed
