"""Pooling, also with kernels and strides beyond the NPU's limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arm_lower.errors import Unsupported
from arm_lower.ops.conv import bias_const, every, pair, subsampled
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import (
    Lowered,
    QParams,
    Real,
    Value,
    contiguous,
    from_nhwc,
    integer_bounds,
    nhwc,
    quant,
    quantized,
    requantized,
    view,
)
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType, Tensor

MAX_STRIDE = 3
MIN_SEPARATE = (
    7  # maps from this size on are averaged rows first; fewer columns would not average the rows' rounding out
)
MAX_ROUNDED_AREA = 784
Pads = tuple[int, int, int, int]


def with_batch(x: Value) -> Value:
    """A feature map of one image given without its batch axis."""
    return view(x, (1, *x.shape)) if len(x.shape) == 3 else x


def window(values: Sequence[int], default: Sequence[int] | None = None) -> tuple[int, int]:
    return pair(values if len(values) else default or (1, 1))


def out_size(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> int:
    """Output positions of a pool (torch.nn.MaxPool2d): with ceil_mode a last window must still start inside the map."""
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return span // stride + 1
    out = -(-span // stride) + 1
    return out - 1 if (out - 1) * stride >= size + pad else out


def fitted(
    b: Builder, t: Tensor, out: Sequence[int], kernel: Sequence[int], stride: Sequence[int], pad: int | Sequence[int]
) -> tuple[Tensor, Pads]:
    """The input and end padding that the windows cover exactly."""
    begin = pair(pad) if isinstance(pad, int) else (pad[0], pad[1])
    sizes, ends = list(t.shape), []
    for axis in (0, 1):
        end = (out[axis] - 1) * stride[axis] + kernel[axis] - t.shape[axis + 1] - begin[axis]
        sizes[axis + 1] += min(end, 0)
        ends.append(max(end, 0))
    return b.slice(t, (0, 0, 0, 0), sizes), (begin[0], ends[0], begin[1], ends[1])


@lowers("aten.max_pool2d.default")
def max_pool2d(
    b: Builder,
    x: Lowered,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Value:
    value = quantized(x)
    kernel = window(kernel_size)
    steps, pad, dil = window(stride, kernel), pair(padding), pair(dilation)
    t = nhwc(with_batch(value), b)
    out = [out_size(t.shape[i + 1], kernel[i], steps[i], pad[i], dil[i], ceil_mode) for i in (0, 1)]
    steps = (1 if out[0] == 1 else steps[0], 1 if out[1] == 1 else steps[1])
    if dil != (1, 1):
        y = dilated_max(b, t, kernel, steps, pad, dil, out)
    elif max(steps) > MAX_STRIDE:
        y = strided_max(b, t, kernel, steps, pad, out)
    else:
        t, pads = fitted(b, t, out, kernel, steps, pad)
        y = b.op("MAX_POOL2D", [t], kernel=kernel, stride=steps, pad=pads)
    result = from_nhwc(y, 4, value.q)
    return result if len(value.shape) == 4 else view(result, result.shape[1:])


@lowers("aten.max_pool2d_with_indices.default")
def max_pool2d_with_indices(b: Builder, *args: object) -> tuple[Value, None]:
    """Only the values; a use of the indices finds None and stays on the CPU."""
    return max_pool2d(b, *args), None  # type: ignore[arg-type]


@lowers("aten.max_pool1d.default")
def max_pool1d(
    b: Builder,
    x: Lowered,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Value:
    value = quantized(x)
    wide = view(value, (*value.shape[:-1], 1, value.shape[-1]))
    y = max_pool2d(
        b, wide, (1, kernel_size[0]), (1, (stride or kernel_size)[0]), (0, padding[0]), (1, dilation[0]), ceil_mode
    )
    return view(y, (*y.shape[:-2], y.shape[-1]))


def strided_max(
    b: Builder, t: Tensor, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int], out: Sequence[int]
) -> Tensor:
    """A stride above 3: a cascade of small pools where the stride factors (docs/formulations.md 3c).

    Otherwise a pool with stride one, subsampled.
    """
    if kernel[0] == kernel[1] and stride[0] == stride[1]:
        stages = cascade(kernel[0], stride[0])
        if stages:
            t, pads = fitted(b, t, out, kernel, stride, pad)
            if max(pads) >= stages[0][0]:  # more than the first small kernel may have
                t = b.pad(t, (0, 0, *pads, 0, 0), t.dtype.range[0])
                pads = (0, 0, 0, 0)
            for k, s in stages:
                t = b.op("MAX_POOL2D", [t], kernel=(k, k), stride=(s, s), pad=pads)
                pads = (0, 0, 0, 0)
            return t
    dense = [(n - 1) * s + 1 for n, s in zip(out, stride)]
    t, pads = fitted(b, t, dense, kernel, (1, 1), pad)
    return subsampled(b, b.op("MAX_POOL2D", [t], kernel=kernel, stride=(1, 1), pad=pads), stride, out)


def cascade(kernel: int, stride: int) -> list[tuple[int, int]]:
    """(kernel, stride) of pools with strides of 2 or 3 whose composition is one pool; empty if there is none.

    All but the last must read every element, so their kernels are not smaller than their strides.
    """
    if stride == 1:
        return [(kernel, 1)] if kernel > 1 else []
    if stride in (2, 3):
        return [(kernel, stride)]
    for s in (2, 3):
        if stride % s == 0 and kernel >= s:
            rest = -(-(kernel - s) // s) + 1
            first = kernel - s * (rest - 1)
            later = cascade(rest, stride // s)
            if first >= s and later:
                return [(first, s), *later]
    return []


def dilated_max(
    b: Builder,
    t: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    dilation: tuple[int, int],
    out: Sequence[int],
) -> Tensor:
    """A dilated pool as MAXIMUM of shifted slices, rows first."""
    for axis in (1, 2):
        k, d, p, s, n = kernel[axis - 1], dilation[axis - 1], pad[axis - 1], stride[axis - 1], out[axis - 1]
        span = (n - 1) * s + 1
        pads = [0] * 8
        pads[2 * axis], pads[2 * axis + 1] = p, max(span + d * (k - 1) - t.shape[axis] - p, 0)
        t = b.pad(t, pads, t.dtype.range[0])
        sizes = [span if i == axis else m for i, m in enumerate(t.shape)]
        parts = [b.slice(t, [tap * d if i == axis else 0 for i in range(4)], sizes) for tap in range(k)]
        t = parts[0]
        for part in parts[1:]:
            # back to the type of the input each time: Vela joins no RESCALE to a chain in int32, and loses slices then
            t = b.rescale(
                b.op("MAXIMUM", [b.rescale(t, 1.0, DType.INT32), b.rescale(part, 1.0, DType.INT32)]), 1.0, t.dtype
            )
        t = every(b, t, axis, s, n)
    return t


def average(
    b: Builder,
    x: Value,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    out: Sequence[int],
    include_pad: bool,
    divisor: int | None,
) -> Real:
    """Mean of windows, in one operator.

    It is AVG_POOL2D on the input's own grid, a depthwise convolution with ones on another.
    """
    q = quant(x)
    t = nhwc(x, b)
    stride = (1 if out[0] == 1 else stride[0], 1 if out[1] == 1 else stride[1])
    steps = stride if max(stride) <= MAX_STRIDE else (1, 1)
    dense = out if steps == stride else [(n - 1) * s + 1 for n, s in zip(out, stride)]
    if include_pad and any(pad):
        t = b.pad(t, (0, 0, pad[0], pad[0], pad[1], pad[1], 0, 0), q.zero_point)
        pad = (0, 0)
    t, pads = fitted(b, t, dense, kernel, steps, pad)

    def finished(y: Tensor, qy: QParams) -> Value:
        return from_nhwc(y if steps == stride else subsampled(b, y, stride, out), 4, qy)

    def emit(qy: QParams, low: float, high: float) -> Value:
        area = kernel[0] * kernel[1]
        small = kernel[0] <= 64 and area <= 4096 and not any(pads)
        if divisor is None and not any(pads) and (t.shape[1], t.shape[2]) == kernel and min(kernel) >= MIN_SEPARATE:
            y = whole_map(b, t, q, qy)
            if y is not None:
                return requantized(from_nhwc(y, 4, qy), qy, b, low, high)
        if divisor is None and (q.same_grid(qy) or not small):
            y = b.op(
                "AVG_POOL2D",
                [t],
                kernel=kernel,
                stride=steps,
                pad=pads,
                acc_type="int32",
                input_zp=q.zero_point,
                output_zp=q.zero_point,
            )
            return requantized(finished(y, q), qy, b, low, high)
        if not small:
            raise Unsupported(f"average pool with kernel {kernel} and a divisor of its own")
        channels = t.shape[3]
        ones = b.const(np.ones((*kernel, channels, 1)), DType.INT8, f"{b.stem}.weight")
        acc = b.conv2d(
            t,
            ones,
            bias_const(b, np.zeros(channels, np.int64)),
            pad=pads,
            stride=steps,
            input_zp=q.zero_point,
            depthwise=True,
        )
        y = b.rescale(acc, q.scalar / (divisor or area) / qy.scalar, qy.dtype, output_zp=qy.zero_point)
        return finished(b.clamp(y, *integer_bounds(qy, low, high)), qy)

    return Real((x.shape[0], x.shape[1], out[0], out[1]), emit)


def whole_map(b: Builder, t: Tensor, q: QParams, qy: QParams) -> Tensor | None:
    """Mean of a whole map, rows first and then columns: each window reads one line, where one window over all is slow.

    On the input's own grid by two AVG_POOL2D (within 1 LSB: the rounding of the rows averages out), for a large map or
    another grid by sums of 16 bits. None where the map is too large for these.
    """
    _, height, width, channels = t.shape
    if q.same_grid(qy) and height * width <= MAX_ROUNDED_AREA:
        for kernel in ((height, 1), (1, width)):
            t = b.op(
                "AVG_POOL2D",
                [t],
                kernel=kernel,
                stride=(1, 1),
                pad=(0, 0, 0, 0),
                acc_type="int32",
                input_zp=q.zero_point,
                output_zp=q.zero_point,
            )
        return t
    if height > 64 or q.dtype is not DType.INT8:
        return None
    ones = [
        b.const(np.ones((*kernel, channels, 1)), DType.INT8, f"{b.stem}.weight") for kernel in ((height, 1), (1, width))
    ]
    rows = b.conv2d(
        t, ones[0], bias_const(b, np.zeros(channels, np.int64)), pad=(0, 0, 0, 0), input_zp=q.zero_point, depthwise=True
    )
    total = b.conv2d(
        b.rescale(rows, 1.0, DType.INT16),
        ones[1],
        b.const(np.zeros(channels), DType.INT48, f"{b.stem}.bias"),
        pad=(0, 0, 0, 0),
        depthwise=True,
    )
    return b.rescale(total, q.scalar / (height * width) / qy.scalar, qy.dtype, output_zp=qy.zero_point)


@lowers("aten.avg_pool2d.default")
def avg_pool2d(
    b: Builder,
    x: Lowered,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Real:
    value = quantized(x)
    if len(value.shape) == 3:
        raise Unsupported("average pool without a batch axis")
    kernel = window(kernel_size)
    steps, pad = window(stride, kernel), pair(padding)
    out = [out_size(value.shape[i + 2], kernel[i], steps[i], pad[i], 1, ceil_mode) for i in (0, 1)]
    return average(b, value, kernel, steps, pad, out, count_include_pad, divisor_override)


@lowers("aten.avg_pool1d.default")
def avg_pool1d(
    b: Builder,
    x: Lowered,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
) -> Real:
    value = quantized(x)
    if len(value.shape) != 3:
        raise Unsupported("average pool without a batch axis")
    n, c, length = value.shape
    step, pad = (stride or kernel_size)[0], padding[0]
    out = [1, out_size(length, kernel_size[0], step, pad, 1, ceil_mode)]
    real = average(b, as_line(b, value), (1, kernel_size[0]), (1, step), (0, pad), out, count_include_pad, None)
    shape = (n, c, out[1])
    return Real(shape, lambda q, low, high: view(real.emit(q, low, high), shape))


def as_line(b: Builder, x: Value) -> Value:
    """A logical [N, C, L] as a feature map [N, C, 1, L]."""
    return from_nhwc(nhwc(x, b), 4, x.q)


@lowers("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(b: Builder, x: Lowered, output_size: Sequence[int]) -> Real:
    value = quantized(x)
    if len(value.shape) != 4:
        raise Unsupported("adaptive average pool without a batch axis")
    sizes, out = value.shape[2:], list(output_size)
    even = all(n % o == 0 for n, o in zip(sizes, out))
    strides = (sizes[0] // out[0], sizes[1] // out[1])
    if even and (max(strides) <= MAX_STRIDE or tuple(out) == (1, 1)):
        return average(b, value, strides, strides, (0, 0), out, True, None)
    return adaptive_by_matrix(b, value, out)


@lowers("aten.adaptive_avg_pool1d.default")
def adaptive_avg_pool1d(b: Builder, x: Lowered, output_size: Sequence[int]) -> Real:
    value = quantized(x)
    if len(value.shape) != 3:
        raise Unsupported("adaptive average pool without a batch axis")
    real = adaptive_avg_pool2d(b, as_line(b, value), (1, output_size[0]))
    shape = (*value.shape[:2], output_size[0])
    return Real(shape, lambda q, low, high: view(real.emit(q, low, high), shape))


def adaptive_by_matrix(b: Builder, x: Value, out: Sequence[int]) -> Real:
    """Uneven windows: pixels become channels of a 1x1 convolution with 0/1 weights.

    It has one output for each window (docs/formulations.md 3e).
    """
    q = quant(x)
    n, c, h, w = x.shape
    if n != 1:
        raise Unsupported(f"adaptive pool with uneven windows and batch {n}")
    if h * w > 8192:
        raise Unsupported(f"adaptive pool with uneven windows over {h}x{w} pixels")
    rows = [(o * h // out[0], -(-(o + 1) * h // out[0])) for o in range(out[0])]
    columns = [(o * w // out[1], -(-(o + 1) * w // out[1])) for o in range(out[1])]
    weights = np.zeros((len(rows), len(columns), h, w))
    for i, (top, bottom) in enumerate(rows):
        for j, (left, right) in enumerate(columns):
            weights[i, j, top:bottom, left:right] = 1
    weights = weights.reshape(-1, 1, 1, h * w)
    areas = weights.sum(axis=(1, 2, 3))
    t = b.reshape(b.transpose(nhwc(x, b), (0, 3, 1, 2)), (1, 1, c, h * w))
    acc = b.conv2d(
        t,
        b.const(weights, DType.INT8, f"{b.stem}.weight"),
        bias_const(b, np.zeros(len(areas), np.int64)),
        pad=(0, 0, 0, 0),
        input_zp=q.zero_point,
    )
    shape = (1, c, out[0], out[1])

    def emit(qy: QParams, low: float, high: float) -> Value:
        y = b.rescale(acc, q.scalar / areas / qy.scalar, qy.dtype, output_zp=qy.zero_point)
        return view(contiguous(b.clamp(y, *integer_bounds(qy, low, high)), qy), shape)

    return Real(shape, emit)
