"""Convolutions and linear layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from arm_lower.errors import Unsupported
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import (
    Constant,
    Floats,
    Lowered,
    QParams,
    Real,
    Value,
    accumulator,
    contiguous,
    from_nhwc,
    integer_bounds,
    logical,
    nhwc,
    quant,
    quantized,
    view,
)
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType, Tensor

Ints = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Accumulators:
    """int32 results of one or more convolutions that together are the layer's output.

    Each part is rescaled on its own, because Vela joins a RESCALE to the convolution in front of it only, and
    miscompiles one behind a CONCAT on U55 (docs/formulations.md 0.2); ``join`` then makes one tensor of the
    rescaled parts.

    Attributes:
        parts: Accumulators and, for each of their channels, the layer's output channel.
        join: The stored [N, H, W, C] from the rescaled parts.
    """

    parts: list[tuple[Tensor, Ints]]
    join: Callable[[list[Tensor]], Tensor]

    def real(self, b: Builder, scale: Floats, shape: Sequence[int]) -> Real:
        """The layer's output; ``scale`` has one entry for each output channel, ``shape`` is logical."""

        def emit(q: QParams, low: float, high: float) -> Value:
            bounds = integer_bounds(q, low, high)
            done = [
                b.clamp(b.rescale(acc, scale[channels] / q.scalar, q.dtype, output_zp=q.zero_point), *bounds)
                for acc, channels in self.parts
            ]
            return from_nhwc(self.join(done), len(shape), q)

        return Real(tuple(shape), emit)


@dataclass(frozen=True)
class Window:
    """How a kernel moves over a feature map.

    Attributes:
        stride: Along H and W.
        pad: Top, bottom, left, right.
        dilation: Along H and W.
    """

    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)

    def out(self, axis: int, size: int, kernel: int) -> int:
        """Size of the result along an axis, 0 for H and 1 for W."""
        padded = size + self.pad[2 * axis] + self.pad[2 * axis + 1]
        return (padded - self.dilation[axis] * (kernel - 1) - 1) // self.stride[axis] + 1


def single(acc: Tensor) -> Accumulators:
    return Accumulators([(acc, np.arange(acc.shape[3]))], lambda parts: parts[0])


def pair(values: int | Sequence[int], rank: int = 2) -> tuple[int, int]:
    """Height and width of a parameter given for both, or for the only axis of a 1-D operator (which lies on W)."""
    if isinstance(values, int):
        values = [values]
    if len(values) == 1:
        return (values[0], values[0]) if rank == 2 else (1, values[0])
    return values[0], values[1]


def padding_pair(values: int | Sequence[int], rank: int) -> tuple[int, int]:
    """As `pair`, for what the missing axis has none of."""
    return pair(values) if rank == 2 else (0, pair(values, 1)[1])


def weight_of(w: Lowered) -> tuple[Ints, Floats]:
    """Integers of a constant weight and its scale for each output channel (axis 0), or one scale."""
    if not isinstance(w, Value) or w.q is None or not w.is_const:
        raise Unsupported(
            "the weight is not a quantized constant", "quantize the module, or keep its weight a parameter"
        )
    if w.q.axis not in (None, 0):
        raise Unsupported(f"weight quantized along axis {w.q.axis}; axis 0 is allowed")
    stored: Any = w.numpy()
    integers: Ints = np.subtract(stored, w.q.zero_point, dtype=np.int16) if np.any(w.q.zero_point) else stored
    return integers, np.atleast_1d(np.asarray(w.q.scale, np.float64))


def bias_of(bias: Lowered | None, channels: int, scale: Floats) -> Ints:
    """Integers of a bias on the accumulator's own scale."""
    if bias is None:
        return np.zeros(channels, np.int64)
    if (
        isinstance(bias, Value)
        and bias.is_const
        and bias.q is not None
        and np.array_equal(np.broadcast_to(bias.q.scale, channels), np.broadcast_to(scale, channels))
    ):
        return bias.numpy().astype(np.int64)
    if not isinstance(bias, Constant) and not (isinstance(bias, Value) and bias.is_const):
        raise Unsupported("the bias is not constant")
    real = bias.array if isinstance(bias, Constant) else bias.real()
    integers: Ints = np.clip(np.rint(real / scale), -(2**31), 2**31 - 1).astype(np.int64)
    return integers


def convolve(
    b: Builder,
    x: Value,
    w: Ints,
    w_scale: Floats,
    bias: Lowered | None,
    window: Window,
    groups: int,
) -> Real:
    """A 2-D convolution of a feature map; ``w`` is [O, I / groups, KH, KW]."""
    q = quant(x)
    channels = w.shape[0]
    scale = q.scalar * w_scale
    integers = bias_of(bias, channels, scale)
    t = nhwc(x, b)
    acc = accumulate(b, t, w, integers, window, groups, q.zero_point)
    out = [window.out(i, t.shape[i + 1], w.shape[i + 2]) for i in (0, 1)]
    return acc.real(b, np.broadcast_to(scale, channels), (x.shape[0], channels, *out[4 - len(x.shape) :]))


def accumulate(
    b: Builder, t: Tensor, w: Ints, bias: Ints, window: Window, groups: int, zero_point: int
) -> Accumulators:
    """int32 accumulators of a convolution in the formulation that runs best on the NPU."""
    w, window = written_out(*drop_dead_taps(w, window, t.shape), t.shape)
    if t.shape[1] == w.shape[2] == 1 and window.dilation[1] > 2:
        return upright(b, t, w, bias, window, groups, zero_point)
    if w.shape[3] == 1 and window.stride == (1, 1) and window.dilation[0] > 2 and not any(window.pad[2:]):
        return side_by_side(b, t, w, bias, window, groups, zero_point)
    c_in, c_out = t.shape[3], w.shape[0]
    if (
        w.shape[2:] == (1, 1)
        and not any(window.pad)
        and max(window.stride) > 3
        and t.shape[1] % window.stride[0] == t.shape[2] % window.stride[1] == 0
    ):
        t, window = picked(b, t, window.stride), replace(window, stride=(1, 1))
    if groups == c_in and c_out == c_in and c_in > 1:
        return depthwise(b, t, w.transpose(2, 3, 0, 1), bias, window, zero_point)
    if groups > 1:
        return grouped(b, t, w, bias, window, groups, zero_point)
    phases = best_fold(t.shape, w, window) if max(window.stride) <= 3 else 0
    if phases:
        return folded_width(b, t, w, bias, window, phases, zero_point)
    return single(dense(b, t, w, bias, window, zero_point))


def dense(b: Builder, t: Tensor, w: Ints, bias: Ints, window: Window, zero_point: int) -> Tensor:
    """An ungrouped convolution as one operator; ``w`` is [O, I, KH, KW]."""
    if max(window.stride) > 3:
        return large_stride(b, t, w, bias, window, zero_point)
    return convolution_of(b, t, w.transpose(0, 2, 3, 1), bias, window, zero_point)


def depthwise(b: Builder, t: Tensor, w: Ints, bias: Ints, window: Window, zero_point: int) -> Accumulators:
    """A depthwise convolution, ``w`` is [KH, KW, C, M]; of a stride above 3 it does the largest divisor that the NPU
    has, and the rescaled result is subsampled: Vela mixes up the channels on Ethos-U85 and refuses it on the others.
    """
    steps = [max(d for d in (1, 2, 3) if s % d == 0) if s > 3 else s for s in window.stride]
    rest = [s // step for s, step in zip(window.stride, steps)]
    out = [window.out(axis, t.shape[axis + 1], w.shape[axis]) for axis in (0, 1)]
    acc = convolution_of(b, t, w, bias, replace(window, stride=(steps[0], steps[1])), zero_point, depthwise=True)
    if rest == [1, 1]:
        return single(acc)
    return Accumulators([(acc, np.arange(acc.shape[3]))], lambda parts: subsampled(b, parts[0], rest, out))


def convolution_of(
    b: Builder, t: Tensor, w: Ints, bias: Ints, window: Window, zero_point: int, depthwise: bool = False
) -> Tensor:
    """CONV2D with weights OHWI, or DEPTHWISE_CONV2D with weights HWCM, as one operator."""
    weights = b.const(w, DType.INT8, f"{b.stem}.weight")
    return b.conv2d(
        t,
        weights,
        bias_const(b, bias),
        pad=window.pad,
        stride=window.stride,
        dilation=window.dilation,
        input_zp=zero_point,
        depthwise=depthwise,
    )


def bias_const(b: Builder, bias: Ints) -> Tensor:
    return b.const(bias, DType.INT32, f"{b.stem}.bias")


def drop_dead_taps(w: Ints, window: Window, shape: Sequence[int]) -> tuple[Ints, Window]:
    """Cuts kernel rows and columns that only ever read padding.

    Dilated kernels larger than the map have such (docs/formulations.md 1a).
    """
    pads, dil = list(window.pad), list(window.dilation)
    for axis in (0, 1):
        size, s, d, first, last = shape[axis + 1], window.stride[axis], dil[axis], 2 * axis, 2 * axis + 1
        reach = (size + pads[first] + pads[last] - d * (w.shape[axis + 2] - 1) - 1) // s * s
        while w.shape[axis + 2] > 1 and pads[first] >= d and reach < pads[first]:
            w = w.take(range(1, w.shape[axis + 2]), axis + 2)
            pads[first] -= d
        while w.shape[axis + 2] > 1 and pads[last] >= d and (w.shape[axis + 2] - 1) * d - pads[first] >= size:
            w = w.take(range(w.shape[axis + 2] - 1), axis + 2)
            pads[last] -= d
        if w.shape[axis + 2] == 1:
            dil[axis] = 1
    return w, Window(window.stride, (pads[0], pads[1], pads[2], pads[3]), (dil[0], dil[1]))


def written_out(w: Ints, window: Window, shape: Sequence[int]) -> tuple[Ints, Window]:
    """Dilations larger than the map as zeros in the kernel: Vela miscompiles them."""
    beyond = [d > max(2, size) for d, size in zip(window.dilation, shape[1:3])]
    full = [d if b else 1 for d, b in zip(window.dilation, beyond)]
    kept = [1 if b else d for d, b in zip(window.dilation, beyond)]
    return dilated(w, (full[0], full[1])), replace(window, dilation=(kept[0], kept[1]))


def subsampled(b: Builder, t: Tensor, stride: Sequence[int], out: Sequence[int]) -> Tensor:
    """Every ``stride``-th row and column: how a stride beyond the limit is done behind an operator with less."""
    for axis in (1, 2):
        t = every(b, t, axis, stride[axis - 1], out[axis - 1])
    return t


def upright(
    b: Builder, t: Tensor, w: Ints, bias: Ints, window: Window, groups: int, zero_point: int
) -> Accumulators:
    """A convolution of a line, which lies on W, done on H."""
    n, _, length, channels = t.shape
    turned = Window(window.stride[::-1], (*window.pad[2:], 0, 0), (window.dilation[1], 1))
    column = b.reshape(t, (n, length, 1, channels))
    acc = accumulate(b, column, w.swapaxes(2, 3), bias, turned, groups, zero_point)

    def join(parts: list[Tensor]) -> Tensor:
        y = acc.join(parts)
        return b.reshape(y, (n, 1, y.shape[1], y.shape[3]))

    return Accumulators(acc.parts, join)


def side_by_side(
    b: Builder, t: Tensor, w: Ints, bias: Ints, window: Window, groups: int, zero_point: int
) -> Accumulators:
    """A kernel of one column and dilation ``d`` as one without: ``d`` rows lie side by side (docs/formulations.md 1b).

    What of the padding is no multiple of ``d`` is written into the map, and what is computed too much cut off.
    """
    d, (top, bottom) = window.dilation[0], window.pad[:2]
    first, last = top % d, bottom % d
    last += -(t.shape[1] + first + last) % d
    out = window.out(0, t.shape[1], w.shape[2])
    t = b.pad(t, (0, 0, first, last, 0, 0, 0, 0), zero_point)
    n, height, width, channels = t.shape
    undilated = replace(window, pad=(top // d, bottom // d, 0, 0), dilation=(1, window.dilation[1]))
    acc = accumulate(b, b.reshape(t, (n, height // d, d * width, channels)), w, bias, undilated, groups, zero_point)

    def join(parts: list[Tensor]) -> Tensor:
        y = acc.join(parts)
        y = b.reshape(y, (n, y.shape[1] * d, y.shape[2] // d, y.shape[3]))
        return b.slice(y, (0, 0, 0, 0), (n, out, *y.shape[2:]))

    return Accumulators(acc.parts, join)


def every(b: Builder, t: Tensor, axis: int, step: int, count: int) -> Tensor:
    """Elements 0, step, 2 * step ... along an axis, ``count`` of them."""
    if step == 1:
        sizes = list(t.shape)
        sizes[axis] = count
        return b.slice(t, [0] * len(sizes), sizes)
    if count == 1:
        return b.slice(t, [0] * len(t.shape), [1 if i == axis else n for i, n in enumerate(t.shape)])
    missing = count * step - t.shape[axis]
    if missing > 0:
        t = b.pad(t, [missing if i == 2 * axis + 1 else 0 for i in range(2 * len(t.shape))], 0)
    before, after = t.shape[:axis], t.shape[axis + 1 :]
    rows, columns = int(np.prod(before)), int(np.prod(after))
    t = b.slice(t, [0] * len(t.shape), [*before, count * step, *after])
    t = b.slice(b.reshape(t, (1, rows * count, step, columns)), (0, 0, 0, 0), (1, rows * count, 1, columns))
    return b.reshape(t, (*before, count, *after))


def picked(b: Builder, t: Tensor, stride: tuple[int, int]) -> Tensor:
    """Every stride-th row and column, for strides beyond the NPU's limit: one copy of what is read."""
    n, height, width, channels = t.shape
    (sh, sw), (rows, columns) = stride, (height // stride[0], width // stride[1])
    folded = b.reshape(t, (n, rows, sh * columns, sw * channels))
    return b.slice(folded, (0, 0, 0, 0), (n, rows, columns, channels))


def grouped(
    b: Builder, t: Tensor, w: Ints, bias: Ints, window: Window, groups: int, zero_point: int
) -> Accumulators:
    """Groups as one convolution each; narrow groups are merged block-diagonally until a convolution has 8 channels.

    A depthwise convolution with a multiplier is the extreme case (docs/formulations.md 8.1, 8.2).
    """
    c_in, c_out = t.shape[3], w.shape[0]
    i, o = c_in // groups, c_out // groups
    merge = (
        groups
        if w.shape[2] == w.shape[3] == 1
        else next(m for m in range(1, groups + 1) if groups % m == 0 and (m * i >= 8 or m == groups))
    )
    parts = []
    for g in range(0, groups, merge):
        block = np.zeros((merge * o, merge * i, *w.shape[2:]), np.int64)
        for m in range(merge):
            block[m * o : (m + 1) * o, m * i : (m + 1) * i] = w[(g + m) * o : (g + m + 1) * o]
        part = b.slice(t, [0, 0, 0, g * i], [t.shape[0], t.shape[1], t.shape[2], merge * i])
        channels = np.arange(g * o, (g + merge) * o)
        acc = dense(b, part, block, bias[channels], window, zero_point)
        parts.append((acc, channels))
    return Accumulators(parts, lambda done: b.concat(done, 3))


def fold_taps(phases: int, stride: int, pad: int, kernel: int) -> tuple[int, int]:
    """Folded columns left and right of an output column's own, when ``phases`` outputs share one folded column."""
    fold = phases * stride
    return -(-pad // fold), max(0, ((phases - 1) * stride - pad + kernel - 1) // fold)


def best_fold(shape: Sequence[int], w: Ints, window: Window) -> int:
    """How many output columns to compute together with their inputs folded into channels; 0 for not at all.

    The NPU works on 8 input channels at a time, so images and audio leave most of it idle (docs/formulations.md 2a).
    """
    channels, kernel, width, s, left = shape[3], w.shape[3], shape[2], window.stride[1], window.pad[2]
    if channels > 4 or kernel == 1 or window.dilation != (1, 1) or w.shape[0] < 16:
        return 0
    out = window.out(1, width, kernel)

    def cost(phases: int) -> int:
        lo, hi = fold_taps(phases, s, left, kernel)
        return (lo + hi + 1) * -(-channels * phases * s // 8)

    best, lowest = 0, kernel * 0.8
    for phases in (1, 2, 4) if channels == 1 and kernel >= 5 else (1,):
        lo, hi = fold_taps(phases, s, left, kernel)
        fits = width % (phases * s) == 0 and out % phases == 0 and out // phases - 1 + hi >= width // (phases * s) - 1
        if phases * s > 1 and fits and cost(phases) < lowest:
            best, lowest = phases, cost(phases)
    return best


def folded_width(
    b: Builder, t: Tensor, w: Ints, bias: Ints, window: Window, phases: int, zero_point: int
) -> Accumulators:
    """A convolution with ``phases * stride`` columns folded into channels (docs/formulations.md 2a).

    Exact for any zero point.
    """
    n, height, width, channels = t.shape
    c_out, _, kh, kw = w.shape
    (top, bottom, left, _), (sh, sw) = window.pad, window.stride
    fold, out = phases * sw, window.out(1, width, kw)
    lo, hi = fold_taps(phases, sw, left, kw)
    weights = np.zeros((phases, c_out, kh, (lo + hi + 1) * fold, channels), np.int64)
    for phase in range(phases):
        first = lo * fold - left + phase * sw
        weights[phase, :, :, first : first + kw] = w.transpose(0, 2, 3, 1)
    weights = weights.reshape(phases * c_out, kh, lo + hi + 1, fold * channels)
    x = b.reshape(t, (n, height, width // fold, fold * channels))
    right = out // phases - 1 + hi - (width // fold - 1)
    folded = Window((sh, 1), (top, bottom, lo, right))
    acc = convolution_of(b, x, weights, np.tile(bias, phases), folded, zero_point)
    return Accumulators(
        [(acc, np.tile(np.arange(c_out), phases))], lambda done: b.reshape(done[0], (n, acc.shape[1], out, c_out))
    )


def large_stride(b: Builder, t: Tensor, w: Ints, bias: Ints, window: Window, zero_point: int) -> Tensor:
    """A stride beyond the NPU's limit of 3, as a convolution with stride 1.

    Its input channels are blocks of stride x stride pixels (docs/formulations.md 3b).
    """
    w, stride, pad = dilated(w, window.dilation), window.stride, window.pad
    n, _, _, channels = t.shape
    out, blocks, padding, sizes = [], [], [0, 0], list(t.shape)
    for axis in (0, 1):
        size, k, s = t.shape[axis + 1], w.shape[axis + 2], stride[axis]
        out.append((size + pad[2 * axis] + pad[2 * axis + 1] - k) // s + 1)
        taps = -(-k // s)
        blocks.append(out[axis] + taps - 1)
        after = blocks[axis] * s - size - pad[2 * axis]
        padding += [pad[2 * axis], max(after, 0)]
        sizes[axis + 1] = size + min(after, 0)
        grow = [(0, 0)] * 4
        grow[axis + 2] = (0, taps * s - k)
        w = np.pad(w, grow)
    t = b.pad(b.slice(t, [0] * 4, sizes), [*padding, 0, 0], zero_point)
    (sh, sw), (ph, pw) = stride, blocks
    t = b.reshape(t, (n, ph, sh * pw, sw * channels))
    t = b.concat([b.slice(t, (0, 0, i * pw, 0), (n, ph, pw, sw * channels)) for i in range(sh)], 3)
    o, c, kh, kw = w.shape
    weights = (
        w.reshape(o, c, kh // sh, sh, kw // sw, sw)
        .transpose(0, 2, 4, 3, 5, 1)
        .reshape(o, kh // sh, kw // sw, sh * sw * c)
    )
    return convolution_of(b, t, weights, bias, Window(), zero_point)


def dilated(w: Ints, dilation: tuple[int, int]) -> Ints:
    """The kernel with the zeros of its dilation written out."""
    if dilation == (1, 1):
        return w
    o, i, kh, kw = w.shape
    full = np.zeros((o, i, (kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1), w.dtype)
    full[:, :, :: dilation[0], :: dilation[1]] = w
    return full


def same_padding(padding: str, kernel: Sequence[int], dilation: tuple[int, int]) -> tuple[int, int, int, int]:
    """Padding "same" or "valid" in numbers; PyTorch puts the odd one at the end."""
    if padding == "valid":
        return (0, 0, 0, 0)
    h, w = (d * (k - 1) for k, d in zip(kernel, dilation))
    return (h // 2, h - h // 2, w // 2, w - w // 2)


@lowers("aten.conv2d.default", "aten.conv1d.default", "aten.conv2d.padding", "aten.conv1d.padding")
def conv(
    b: Builder,
    x: Lowered,
    weight: Lowered,
    bias: Lowered | None,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
) -> Real:
    x = quantized(x)
    w, scale = weight_of(weight)
    rank = w.ndim - 2
    w = w.reshape(*w.shape[:2], *([1] if rank == 1 else []), *w.shape[2:])
    dil = pair(dilation, rank)
    if isinstance(padding, str):
        pads = same_padding(padding, w.shape[2:], dil)
    else:
        ph, pw = padding_pair(padding, rank)
        pads = (ph, ph, pw, pw)
    return convolve(b, x, w, scale, bias, Window(pair(stride, rank), pads, dil), groups)


@lowers("aten.convolution.default")
def convolution(
    b: Builder,
    x: Lowered,
    weight: Lowered,
    bias: Lowered | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Real:
    if transposed:
        return conv_transpose(b, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(b, x, weight, bias, stride, padding, dilation, groups)


@lowers("aten.conv_transpose2d.input", "aten.conv_transpose1d.default")
def conv_transpose(
    b: Builder,
    x: Lowered,
    weight: Lowered,
    bias: Lowered | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Real:
    """Any stride and padding: one stride-1 convolution for each row phase, its column phases as output channels.

    Rows interleave because the results are concatenated along W before a reshape, columns because [W, phases * O]
    already is [W * phases, O] (docs/formulations.md 8.3).
    """
    x = quantized(x)
    w, scale = transposed_weight_of(weight, groups)
    rank = w.ndim - 2
    w = dilated(w.reshape(*w.shape[:2], *([1] if rank == 1 else []), *w.shape[2:]), pair(dilation, rank))
    (sh, sw), (ph, pw), (oph, opw) = pair(stride, rank), padding_pair(padding, rank), padding_pair(output_padding, rank)
    t = nhwc(x, b)
    n, height, width, c_in = t.shape
    c_out = w.shape[0]
    kh, kw = w.shape[2:]
    out_h = (height - 1) * sh - 2 * ph + kh + oph
    out_w = (width - 1) * sw - 2 * pw + kw + opw
    rows, columns = -(-out_h // sh), -(-out_w // sw)
    q = quant(x)
    integers = bias_of(bias, c_out, q.scalar * scale)
    x_lo, x_hi, x_taps = phase_taps(kw, sw, pw)
    i, o = c_in // groups, c_out // groups

    def row_phase(a: int) -> Tensor:
        taps = [(ky, (a + ph - ky) // sh) for ky in range(kh) if (a + ph - ky) % sh == 0] or [(-1, 0)]
        y_lo, y_hi = min(d for _, d in taps), max(d for _, d in taps)
        kernel = np.zeros((groups, sw, o, i, y_hi - y_lo + 1, x_hi - x_lo + 1), np.int64)
        for ky, dy in taps:
            for phase, kx, dx in x_taps:
                if ky >= 0:
                    kernel[:, phase, :, :, dy - y_lo, dx - x_lo] = w[:, :, ky, kx].reshape(groups, o, i)
        pads = (-y_lo, rows - 1 + y_hi - (height - 1), -x_lo, columns - 1 + x_hi - (width - 1))
        start = [max(-p, 0) for p in pads]
        part = b.slice(
            t, (0, start[0], start[2], 0), (n, height - start[0] - start[1], width - start[2] - start[3], c_in)
        )
        padded = tuple(max(p, 0) for p in pads)
        dense = np.zeros((sw, groups, o, groups, i, *kernel.shape[4:]), np.int64)
        for g in range(groups):
            dense[:, g, :, g] = kernel[g]
        dense = dense.reshape(sw * c_out, c_in, *kernel.shape[4:])
        weights = b.const(dense.transpose(0, 2, 3, 1), DType.INT8, f"{b.stem}.weight")
        return b.conv2d(part, weights, bias_const(b, np.tile(integers, sw)), pad=padded, input_zp=q.zero_point)

    channels = np.tile(np.arange(c_out), sw)

    def join(parts: list[Tensor]) -> Tensor:
        y = b.reshape(b.concat(parts, 2), (n, rows * sh, columns * sw, c_out))
        return b.slice(y, (0, 0, 0, 0), (n, out_h, out_w, c_out))

    shape = (n, c_out, out_h, out_w) if rank == 2 else (n, c_out, out_w)
    return Accumulators([(row_phase(a), channels) for a in range(sh)], join).real(
        b, np.broadcast_to(q.scalar * scale, c_out), shape
    )


def transposed_weight_of(weight: Lowered, groups: int) -> tuple[Ints, Floats]:
    """Weight [I, O / groups, ...] of a transposed convolution as [O, I / groups, ...], and its scale.

    The scale has one entry for each output channel, or one for all.
    """
    if not isinstance(weight, Value) or weight.q is None or not weight.is_const:
        raise Unsupported("the weight is not a quantized constant")
    w = np.subtract(weight.numpy(), weight.q.zero_point, dtype=np.int16)
    i, o = w.shape[:2]
    scale = np.atleast_1d(np.asarray(weight.q.scale, np.float64))
    if weight.q.axis == 1 and len(scale) > 1:
        scale = np.tile(scale, groups)
    elif weight.q.axis == 0 and i == groups:
        scale = np.repeat(scale, o)
    elif weight.q.axis is not None and len(scale) > 1:
        raise Unsupported(f"weight of a transposed convolution quantized along axis {weight.q.axis}; axis 1 is allowed")
    w = w.reshape(groups, i // groups, o, *w.shape[2:]).swapaxes(1, 2).reshape(groups * o, i // groups, *w.shape[2:])
    return w, scale


def phase_taps(kernel: int, stride: int, pad: int) -> tuple[int, int, list[tuple[int, int, int]]]:
    """The input offsets that the output phases of a transposed convolution read.

    Returns:
        The smallest, the largest, and all of them as (phase, tap, offset).
    """
    taps = [
        (a, k, (a + pad - k) // stride) for a in range(stride) for k in range(kernel) if (a + pad - k) % stride == 0
    ]
    offsets = [d for _, _, d in taps]
    return min(offsets), max(offsets), taps


@lowers("aten.linear.default")
def linear(b: Builder, x: Lowered, weight: Lowered, bias: Lowered | None) -> Real:
    """A 1x1 convolution over [1, 1, rows, I]: rows lie on W.

    A pending flatten is folded into the order of the weights.
    """
    x = quantized(x)
    w, scale = weight_of(weight)
    rows = int(np.prod(x.shape[:-1], dtype=np.int64))
    q = quant(x)
    t, w = flattened_rows(b, x, rows, w)
    factor = q.scalar * scale
    weights = b.const(w[:, None, None, :], DType.INT8, f"{b.stem}.weight")
    acc = b.conv2d(
        t, weights, bias_const(b, bias_of(bias, w.shape[0], factor)), pad=(0, 0, 0, 0), input_zp=q.zero_point
    )
    shape = (*x.shape[:-1], w.shape[0])
    return accumulator(lambda y, qy: view(contiguous(y, qy), shape), acc, np.broadcast_to(factor, w.shape[0]), shape, b)


def flattened_rows(b: Builder, x: Value, rows: int, w: Ints) -> tuple[Tensor, Ints]:
    """``x`` as [1, 1, rows, I] and the weights [O, I] in its order."""
    features = w.shape[1]
    inner = x.permuted_shape[1:]
    if len(x.shape) == 2 and x.permuted_shape[:1] == (rows,) and x.perm[0] == 0 and int(np.prod(inner)) == features:
        axes = x.perm[1:]
        order = sorted(range(len(axes)), key=lambda i: axes[i])
        w = w.reshape(-1, *inner).transpose(0, *(i + 1 for i in order)).reshape(-1, features)
        return b.reshape(x.tensor, (1, 1, rows, features)), w
    return b.reshape(logical(x, b), (1, 1, rows, features)), w


@lowers("aten.addmm.default")
def addmm(b: Builder, bias: Lowered, x: Lowered, weight: Lowered, beta: float, alpha: float) -> Real:
    if beta != 1 or alpha != 1:
        raise Unsupported("addmm with alpha or beta other than 1")
    return linear(b, x, transposed(weight), bias)


def transposed(weight: Lowered) -> Value:
    """A constant [I, O] weight as [O, I]."""
    if not isinstance(weight, Value) or weight.q is None or not weight.is_const or len(weight.shape) != 2:
        raise Unsupported("the weight is not a quantized constant")
    axis = None if weight.q.axis is None else 1 - weight.q.axis
    return Value(weight.tensor, (weight.perm[1], weight.perm[0]), weight.shape[::-1], replace(weight.q, axis=axis))
