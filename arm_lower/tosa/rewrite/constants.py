"""Constant folding of operators that only rearrange."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arm_lower.tosa.ir import Graph, Op, Tensor


def _evaluate(op: Op) -> npt.NDArray[np.generic] | None:
    a = op.attrs
    data = [t.data for t in op.inputs]
    if not data or any(d is None for d in data):
        return None
    x: npt.NDArray[np.generic] = data[0]  # type: ignore[assignment]
    if op.kind == "RESHAPE":
        return x.reshape(a["shape"])
    if op.kind == "TRANSPOSE":
        return np.transpose(x, a["perms"])
    if op.kind == "SLICE":
        return x[tuple(slice(s, s + n) for s, n in zip(a["start"], a["size"], strict=True))]  # type: ignore[arg-type]
    if op.kind == "CONCAT":
        return np.concatenate([d for d in data if d is not None], int(a["axis"]))  # type: ignore[arg-type]
    if op.kind == "TILE":
        return np.tile(x, a["multiples"])
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
