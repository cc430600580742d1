"""Upsampling: the NPU's RESIZE where it is native and fast, else two 1-D linear maps as 1x1 convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from arm_lower.errors import Unsupported
from arm_lower.ops.conv import bias_const
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import Floats, Lowered, Value, channels_last, contiguous, nhwc, permute, quant, quantized, view
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType, Tensor

MAX_WEIGHT = 127


@lowers("aten.upsample_nearest2d.vec")
def nearest_vec(b: Builder, x: Lowered, size: Sequence[int] | None, factors: Sequence[float] | None) -> Value:
    return nearest(b, x, *_extent(x, size, factors))


@lowers("aten.upsample_nearest2d.default")
def nearest(b: Builder, x: Lowered, size: Sequence[int], scale_h: float | None, scale_w: float | None) -> Value:
    """By an integer factor: row phases as 1x1 convolutions that stack each pixel (docs/formulations.md 5a).

    By any other: two matrices, see `resample`.
    """
    value = quantized(x)
    _, _, h, w = _map_shape(value)
    if size[0] % h or size[1] % w or (scale_h and scale_h != size[0] / h) or (scale_w and scale_w != size[1] / w):
        return resample(
            b,
            value,
            size,
            lambda t, s, axis: torch.ops.aten.upsample_nearest2d.default(t, s, *_axis_scale(axis, scale_h, scale_w)),
        )
    q = quant(value)
    rows, columns = size[0] // h, size[1] // w
    t = nhwc(value, b)
    n, _, _, c = t.shape
    if rows == columns and b.family == "u85":
        y = b.op(
            "RESIZE",
            [t],
            scale=(2 * rows, 2, 2 * rows, 2),
            offset=(1 - rows, 1 - rows),
            border=(rows - 1, rows - 1),
            mode="nearest",
        )
        return channels_last(y, q)
    if q.dtype is not DType.INT8:
        raise Unsupported(f"upsampling of {q.dtype}; int8 is allowed")
    weights = b.const(np.tile(np.eye(c), (columns, 1))[:, None, None, :], DType.INT8, f"{b.stem}.weight")
    zero = bias_const(b, np.zeros(columns * c, np.int64))
    phases = [
        b.rescale(
            b.conv2d(t, weights, zero, pad=(0, 0, 0, 0), input_zp=q.zero_point), 1.0, DType.INT8, output_zp=q.zero_point
        )
        for _ in range(rows)
    ]
    return channels_last(b.reshape(b.concat(phases, 2), (n, size[0], size[1], c)), q)


@lowers("aten.upsample_bilinear2d.vec")
def bilinear_vec(
    b: Builder, x: Lowered, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None
) -> Value:
    extent, scale_h, scale_w = _extent(x, size, factors)
    return bilinear(b, x, extent, align_corners, scale_h, scale_w)


@lowers("aten.upsample_bilinear2d.default")
def bilinear(
    b: Builder, x: Lowered, size: Sequence[int], align_corners: bool, scale_h: float | None, scale_w: float | None
) -> Value:
    return resample(
        b,
        quantized(x),
        size,
        lambda t, s, axis: torch.ops.aten.upsample_bilinear2d.default(
            t, s, align_corners, *_axis_scale(axis, scale_h, scale_w)
        ),
    )


@lowers("aten.upsample_nearest1d.vec")
def nearest_line_vec(b: Builder, x: Lowered, size: Sequence[int] | None, factors: Sequence[float] | None) -> Value:
    return nearest_line(b, x, *_length(x, size, factors))


@lowers("aten.upsample_nearest1d.default")
def nearest_line(b: Builder, x: Lowered, size: Sequence[int], scale: float | None) -> Value:
    y = nearest(b, _line_as_map(x), (1, *size), None, scale)
    return view(y, (*y.shape[:2], y.shape[3]))


@lowers("aten.upsample_linear1d.vec")
def linear_line_vec(
    b: Builder, x: Lowered, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None
) -> Value:
    extent, scale = _length(x, size, factors)
    return linear_line(b, x, extent, align_corners, scale)


@lowers("aten.upsample_linear1d.default")
def linear_line(b: Builder, x: Lowered, size: Sequence[int], align_corners: bool, scale: float | None) -> Value:
    y = bilinear(b, _line_as_map(x), (1, *size), align_corners, None, scale)
    return view(y, (*y.shape[:2], y.shape[3]))


def _line_as_map(x: Lowered) -> Value:
    value = quantized(x)
    if len(value.shape) != 3:
        raise Unsupported(f"upsampling of rank {len(value.shape)}; rank 3 is allowed")
    return view(value, (*value.shape[:2], 1, value.shape[2]))


def _length(x: Lowered, size: Sequence[int] | None, factors: Sequence[float] | None) -> tuple[list[int], float | None]:
    wide = None if size is None else (1, *size)
    extent, _, scale = _extent(_line_as_map(x), wide, None if factors is None else (1.0, *factors))
    return extent[1:], scale


def _map_shape(x: Value) -> tuple[int, int, int, int]:
    if len(x.shape) != 4:
        raise Unsupported(f"upsampling of rank {len(x.shape)}; rank 4 is allowed")
    n, c, h, w = x.shape
    return n, c, h, w


def _extent(
    x: Lowered, size: Sequence[int] | None, factors: Sequence[float] | None
) -> tuple[list[int], float | None, float | None]:
    if size is not None:
        return list(size), None, None
    _, _, h, w = _map_shape(quantized(x))
    if factors is None:
        raise Unsupported("upsampling without size and factor")
    return [int(h * factors[0]), int(w * factors[1])], factors[0], factors[1]


def _axis_scale(axis: int, scale_h: float | None, scale_w: float | None) -> tuple[float | None, float | None]:
    """The factor along the axis that is resampled; the other axis keeps its size."""
    return (scale_h, None) if axis == 0 else (None, scale_w)


def axis_matrix(
    resize: Callable[[torch.Tensor, Sequence[int], int], torch.Tensor], size: int, out: int, axis: int
) -> Floats:
    """The linear map [out, size] along one axis: PyTorch's own operator applied to unit vectors."""
    units = torch.eye(size).reshape((1, size, size, 1) if axis == 0 else (1, size, 1, size))
    result = resize(units, (out, 1) if axis == 0 else (1, out), axis)
    return np.asarray(result.reshape(size, out).T.numpy(), np.float64)


def numerators(matrix: Floats) -> tuple[Floats, int]:
    """Integer weights of at most 127 and their common denominator; the finest one where no exact one exists."""
    for den in range(1, MAX_WEIGHT + 1):
        scaled = matrix * den
        if np.abs(scaled - np.rint(scaled)).max() < 1e-4:
            return np.rint(scaled), den
    rounded = np.rint(matrix * MAX_WEIGHT)
    rows = np.arange(len(matrix))
    rounded[rows, matrix.argmax(axis=1)] += MAX_WEIGHT - rounded.sum(axis=1)
    return rounded, MAX_WEIGHT


def resample(
    b: Builder, x: Value, size: Sequence[int], resize: Callable[[torch.Tensor, Sequence[int], int], torch.Tensor]
) -> Value:
    """Rows, then columns, each as a 1x1 convolution over that axis.

    The value between them has 16 bits (docs/formulations.md 5b).
    """
    q = quant(x)
    n, c, h, w = _map_shape(x)
    if n != 1 or q.dtype is not DType.INT8:
        raise Unsupported(f"upsampling of batch {n} and {q.dtype}; batch 1 and int8 are allowed")
    row_weights, row_den = numerators(axis_matrix(resize, h, size[0], 0))
    column_weights, column_den = numerators(axis_matrix(resize, w, size[1], 1))
    t = b.reshape(nhwc(x, b), (h, w, c))
    rows = mapped(b, b.transpose(t, (1, 2, 0)), row_weights, q.zero_point)
    rows = b.rescale(rows, 1.0, DType.INT16)
    # U85 fuses transposes of rank 3 into the convolutions, U55 takes those of rank 2 best
    order = (2, 1, 0) if b.family == "u85" else (1, 2, 0)
    columns = mapped(b, b.transpose(b.reshape(rows, (w, c, size[0])), order), column_weights, 0)
    y = b.rescale(columns, 1.0 / (row_den * column_den), DType.INT8, output_zp=q.zero_point)
    if b.family == "u85":
        return permute(contiguous(b.reshape(y, (1, size[0], c, size[1])), q), (0, 2, 1, 3), b)
    return contiguous(b.reshape(y, (1, c, size[0], size[1])), q)


def mapped(b: Builder, t: Tensor, weights: Floats, zero_point: int) -> Tensor:
    """The last axis through a matrix [out, in]: accumulators [1, 1, rows, out]."""
    rows = t.size // t.shape[-1]
    wide = t.dtype is DType.INT16
    bias = b.const(np.zeros(len(weights)), DType.INT48 if wide else DType.INT32, f"{b.stem}.bias")
    w = b.const(weights[:, None, None, :], DType.INT8, f"{b.stem}.weight")
    return b.conv2d(b.reshape(t, (1, 1, rows, t.shape[-1])), w, bias, pad=(0, 0, 0, 0), input_zp=zero_point)
