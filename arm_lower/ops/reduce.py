"""Sums, means and extrema over axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arm_lower.ops.pool import average
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import Lowered, Real, Value, accumulator, quant, quantized, unflattened, view
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType, Tensor

# AVG_POOL2D takes a whole map up to this many rows and pixels
MAX_POOL_ROWS, MAX_POOL_AREA = 256, 65536
MAX_AXIS = 65536


def axes_of(x: Value, dims: Sequence[int] | int | None) -> list[int]:
    rank = len(x.shape)
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    return sorted({d % rank for d in ([dims] if isinstance(dims, int) else dims)})


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def summed(b: Builder, x: Value, axes: Sequence[int], count: int, keepdim: bool) -> Real:
    """sum / count over logical axes: REDUCE_SUM over the stored ones in int32, neighbouring axes as one."""
    q = quant(x)
    x = unflattened(x, b)
    t: Tensor = b.rescale(x.tensor, 1.0, DType.INT32, input_zp=q.zero_point)
    for run in runs(sorted(x.perm[a] for a in axes if x.shape[a] != 1), t.shape):
        shape = t.shape
        merged = int(np.prod([shape[a] for a in run]))
        t = b.reshape(t, (*shape[: run[0]], merged, *shape[run[-1] + 1 :]))
        t = b.op("REDUCE_SUM", [t], axis=run[0])
        t = b.reshape(t, (*shape[: run[0]], *[1] * len(run), *shape[run[-1] + 1 :]))
    shape = reduced_shape(x.shape, axes, keepdim)
    return accumulator(
        lambda y, qy: view(Value(y, x.perm, tuple(y.shape[p] for p in x.perm), qy), shape),
        t,
        q.scalar / count,
        shape,
        b,
    )


def runs(axes: Sequence[int], shape: Sequence[int]) -> list[list[int]]:
    """Neighbouring axes together, while their product is a legal axis: [1, 2, 4] -> [[1, 2], [4]]; later axes first."""
    groups: list[list[int]] = []
    for a in reversed(axes):
        if groups and groups[-1][0] - 1 == a and np.prod([shape[i] for i in (a, *groups[-1])]) <= MAX_AXIS:
            groups[-1].insert(0, a)
        else:
            groups.append([a])
    return groups


@lowers("aten.mean.default")
def mean_all(b: Builder, x: Lowered, dtype: object) -> Real:
    return mean(b, x, None, False, dtype)


@lowers("aten.mean.dim")
def mean(b: Builder, x: Lowered, dim: Sequence[int] | None, keepdim: bool, dtype: object) -> Real:
    value = quantized(x)
    axes = axes_of(value, dim)
    shape = reduced_shape(value.shape, axes, keepdim)
    if (
        len(value.shape) == 4
        and axes == [2, 3]
        and value.shape[2] <= MAX_POOL_ROWS
        and value.shape[2] * value.shape[3] <= MAX_POOL_AREA
    ):
        size = (value.shape[2], value.shape[3])
        pooled = average(b, value, size, size, (0, 0), (1, 1), True, None)
        return Real(shape, lambda q, low, high: view(pooled.emit(q, low, high), shape))
    return summed(b, value, axes, int(np.prod([value.shape[a] for a in axes])), keepdim)


@lowers("aten.sum.default")
def sum_all(b: Builder, x: Lowered, dtype: object) -> Real:
    return sum_over(b, x, None, False, dtype)


@lowers("aten.sum.dim_IntList")
def sum_over(b: Builder, x: Lowered, dim: Sequence[int] | None, keepdim: bool, dtype: object) -> Real:
    value = quantized(x)
    return summed(b, value, axes_of(value, dim), 1, keepdim)


@lowers("aten.amax.default")
def amax(b: Builder, x: Lowered, dim: Sequence[int], keepdim: bool) -> Value:
    return extreme(b, "REDUCE_MAX", x, dim, keepdim)


@lowers("aten.amin.default")
def amin(b: Builder, x: Lowered, dim: Sequence[int], keepdim: bool) -> Value:
    return extreme(b, "REDUCE_MIN", x, dim, keepdim)


def extreme(b: Builder, kind: str, x: Lowered, dims: Sequence[int], keepdim: bool) -> Value:
    value = unflattened(quantized(x), b)
    axes = axes_of(value, dims)
    t = value.tensor
    for a in axes:
        if value.shape[a] != 1:
            t = b.op(kind, [t], axis=value.perm[a])
    kept = Value(t, value.perm, reduced_shape(value.shape, axes, True), value.q)
    return view(kept, reduced_shape(value.shape, axes, keepdim))
