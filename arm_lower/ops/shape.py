"""Operators that only move or select elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from arm_lower.errors import Unsupported
from arm_lower.ops.conv import bias_const, every
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import (
    Lowered,
    QParams,
    Real,
    Value,
    channels_last,
    contiguous,
    logical,
    nhwc,
    permute,
    quant,
    quantized,
    requantized,
    stored,
    unflattened,
    view,
)
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType, Tensor


def movable(x: Lowered) -> Value:
    """An integer value: quantized, or plain."""
    if isinstance(x, Value):
        return x
    return quantized(x)


def filled(shape: Sequence[int], size: int) -> list[int]:
    """The shape with its -1 worked out."""
    known = int(np.prod([n for n in shape if n != -1], dtype=np.int64))
    return [size // max(known, 1) if n == -1 else n for n in shape]


@lowers("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.view_copy.default")
def reshape(b: Builder, x: Lowered, shape: Sequence[int]) -> Value:
    value = movable(x)
    return view(value, filled(shape, value.tensor.size))


@lowers("aten.flatten.using_ints")
def flatten(b: Builder, x: Lowered, start: int, end: int) -> Value:
    value = movable(x)
    rank = max(len(value.shape), 1)
    first, last = start % rank, end % rank
    if not value.shape:
        return view(value, (1,))
    middle = int(np.prod(value.shape[first : last + 1], dtype=np.int64))
    return view(value, (*value.shape[:first], middle, *value.shape[last + 1 :]))


@lowers("aten.unflatten.int")
def unflatten(b: Builder, x: Lowered, dim: int, sizes: Sequence[int]) -> Value:
    value = movable(x)
    dim %= len(value.shape)
    return view(value, (*value.shape[:dim], *filled(sizes, value.shape[dim]), *value.shape[dim + 1 :]))


@lowers("aten.squeeze.default")
def squeeze(b: Builder, x: Lowered) -> Value:
    value = movable(x)
    return view(value, [n for n in value.shape if n != 1])


@lowers("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze_copy.dims")
def squeeze_dims(b: Builder, x: Lowered, dims: int | Sequence[int]) -> Value:
    value = movable(x)
    gone = {d % len(value.shape) for d in ([dims] if isinstance(dims, int) else dims)}
    return view(value, [n for i, n in enumerate(value.shape) if i not in gone or n != 1])


@lowers("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def unsqueeze(b: Builder, x: Lowered, dim: int) -> Value:
    value = movable(x)
    shape = list(value.shape)
    shape.insert(dim % (len(shape) + 1), 1)
    return view(value, shape)


@lowers("aten.permute.default", "aten.permute_copy.default")
def permute_dims(b: Builder, x: Lowered, dims: Sequence[int]) -> Value:
    return permute(movable(x), dims, b)


@lowers("aten.transpose.int", "aten.transpose_copy.int")
def transpose(b: Builder, x: Lowered, first: int, second: int) -> Value:
    value = movable(x)
    order = list(range(len(value.shape)))
    order[first], order[second] = order[second], order[first]
    return permute(value, order, b)


@lowers("aten.t.default", "aten.numpy_T.default")
def t(b: Builder, x: Lowered) -> Value:
    value = movable(x)
    return permute(value, range(len(value.shape))[::-1], b)


@lowers(
    "aten.contiguous.default",
    "aten.clone.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh_copy.default",
    "aten.dropout.default",
    "aten.feature_dropout.default",
)
def same(b: Builder, x: Lowered, *_: object) -> Lowered:
    return x


@lowers("aten.flip.default")
def flip(b: Builder, x: Lowered, dims: Sequence[int]) -> Value:
    value = unflattened(movable(x), b)
    tensor = value.tensor
    for dim in dims:
        tensor = b.op("REVERSE", [tensor], axis=value.perm[dim])
    return value.with_tensor(tensor, value.q)


@lowers("aten.roll.default")
def roll(b: Builder, x: Lowered, shifts: Sequence[int], dims: Sequence[int]) -> Value:
    value = unflattened(movable(x), b)
    if len(dims) != len(shifts):
        raise Unsupported("roll of the flattened tensor", "give the axes, or flatten it in the model")
    tensor = value.tensor
    for shift, dim in zip(shifts, dims):
        axis = value.perm[dim]
        sizes = list(tensor.shape)
        last, sizes[axis] = sizes[axis], shift % sizes[axis]
        if sizes[axis]:
            start = [last - sizes[axis] if i == axis else 0 for i in range(len(sizes))]
            front = b.slice(tensor, start, sizes)
            sizes[axis] = last - sizes[axis]
            tensor = b.concat([front, b.slice(tensor, [0] * len(sizes), sizes)], axis)
    return value.with_tensor(tensor, value.q)


@lowers("aten.expand.default", "aten.expand_copy.default")
def expand(b: Builder, x: Lowered, sizes: Sequence[int], _: bool) -> Value:
    value = movable(x)
    rank = len(sizes)
    shape = (1,) * (rank - len(value.shape)) + value.shape
    target = [n if s == -1 else s for s, n in zip(sizes, shape)]
    return tiled(b, view(value, shape), [s if n == 1 else 1 for s, n in zip(target, shape)])


@lowers("aten.repeat.default")
def repeat(b: Builder, x: Lowered, repeats: Sequence[int]) -> Value:
    value = movable(x)
    return tiled(b, view(value, (1,) * (len(repeats) - len(value.shape)) + value.shape), repeats)


def tiled(b: Builder, x: Value, multiples: Sequence[int]) -> Value:
    if all(m == 1 for m in multiples):
        return x
    x = unflattened(x, b)
    by_stored = tuple(multiples[x.perm.index(i)] for i in range(len(multiples)))
    y = (
        b.const(np.tile(x.tensor.data, by_stored), x.tensor.dtype)
        if x.tensor.data is not None
        else b.op("TILE", [x.tensor], multiples=by_stored)
    )
    return Value(y, x.perm, tuple(y.shape[p] for p in x.perm), x.q)


@lowers("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def cat(b: Builder, tensors: Sequence[Lowered], dim: int) -> Value | Real:
    values = [quantized(x) for x in tensors if not (isinstance(x, Value) and x.shape == (0,))]
    if len(values) == 1:
        return values[0]
    dim %= len(values[0].shape)
    if all(quant(v).same_grid(quant(values[0])) for v in values):
        return joined(b, values, dim)
    shape = list(values[0].shape)
    shape[dim] = sum(v.shape[dim] for v in values)

    def emit(q: QParams, low: float, high: float) -> Value:
        return requantized(joined(b, [requantized(v, q, b) for v in values], dim), q, b, low, high)

    return Real(tuple(shape), emit)


def joined(b: Builder, values: Sequence[Value], dim: int) -> Value:
    """CONCAT in the stored order of the largest operand."""
    leader = unflattened(max(values, key=lambda v: (not v.is_const, v.tensor.size)), b)
    order = [leader.perm.index(i) for i in range(len(leader.perm))]
    y = b.concat([stored(v, order, b) for v in values], leader.perm[dim])
    return Value(y, leader.perm, tuple(y.shape[p] for p in leader.perm), leader.q)


@lowers("aten.stack.default")
def stack(b: Builder, tensors: Sequence[Lowered], dim: int) -> Value | Real:
    rank = len(quantized(tensors[0]).shape) + 1
    return cat(b, [unsqueeze(b, x, dim % rank) for x in tensors], dim % rank)


def cut(b: Builder, x: Value, dim: int, start: int, size: int) -> Value:
    """``size`` elements from ``start`` along a logical axis."""
    if size == 0:
        raise Unsupported("a slice without elements")
    x = unflattened(x, b)
    axis = x.perm[dim]
    begin, sizes = [0] * len(x.shape), list(x.tensor.shape)
    begin[axis], sizes[axis] = start, size
    y = b.slice(x.tensor, begin, sizes)
    return Value(y, x.perm, tuple(y.shape[p] for p in x.perm), x.q)


@lowers("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_tensor(b: Builder, x: Lowered, dim: int, start: int | None, end: int | None, step: int) -> Value:
    value = movable(x)
    dim %= len(value.shape)
    first, last, _ = slice(start, end).indices(value.shape[dim])
    value = cut(b, value, dim, first, max(last - first, 0))
    if step == 1:
        return value
    y = every(b, value.tensor, value.perm[dim], step, -(-(last - first) // step))
    return Value(y, value.perm, tuple(y.shape[p] for p in value.perm), value.q)


@lowers("aten.narrow.default")
def narrow(b: Builder, x: Lowered, dim: int, start: int, length: int) -> Value:
    value = movable(x)
    return cut(b, value, dim % len(value.shape), start % max(value.shape[dim], 1), length)


@lowers("aten.select.int", "aten.select_copy.int")
def select(b: Builder, x: Lowered, dim: int, index: int) -> Value:
    value = movable(x)
    dim %= len(value.shape)
    y = cut(b, value, dim, index % value.shape[dim], 1)
    return view(y, (*y.shape[:dim], *y.shape[dim + 1 :]))


@lowers("aten.split_with_sizes.default", "aten.split_with_sizes_copy.default", "aten.split.sizes")
def split_with_sizes(b: Builder, x: Lowered, sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    value = unflattened(movable(x), b)
    dim %= len(value.shape)
    starts = np.cumsum([0, *sizes])
    return tuple(cut(b, value, dim, int(a), n) for a, n in zip(starts, sizes))


@lowers("aten.split.Tensor", "aten.split_copy.Tensor")
def split(b: Builder, x: Lowered, size: int, dim: int) -> tuple[Value, ...]:
    total = movable(x).shape[dim]
    return split_with_sizes(b, x, [min(size, total - a) for a in range(0, total, size)], dim)


@lowers("aten.chunk.default")
def chunk(b: Builder, x: Lowered, chunks: int, dim: int) -> tuple[Value, ...]:
    return split(b, x, -(-movable(x).shape[dim] // chunks), dim)


@lowers("aten.unbind.int", "aten.unbind_copy.int")
def unbind(b: Builder, x: Lowered, dim: int) -> tuple[Value, ...]:
    value = movable(x)
    return tuple(select(b, value, dim, i) for i in range(value.shape[dim]))


@lowers("aten.constant_pad_nd.default")
def constant_pad(b: Builder, x: Lowered, padding: Sequence[int], value: float) -> Value:
    """PAD with the integer of the value; negative padding cuts."""
    source = unflattened(quantized(x), b)
    q = quant(source)
    rank = len(source.shape)
    pairs = [(0, 0)] * rank
    for i in range(len(padding) // 2):
        pairs[rank - 1 - i] = (padding[2 * i], padding[2 * i + 1])
    for dim, (before, after) in enumerate(pairs):
        kept = source.shape[dim] + min(before, 0) + min(after, 0)
        source = cut(b, source, dim, max(-before, 0), kept)
    flat = [max(n, 0) for i in range(rank) for n in pairs[source.perm.index(i)]]
    filler = int(q.quantize(float(value) if math.isfinite(value) else math.copysign(3e38, value)))
    y = b.pad(source.tensor, flat, filler)
    return Value(y, source.perm, tuple(y.shape[p] for p in source.perm), q)


@lowers("aten.pad.default")
def pad(b: Builder, x: Lowered, padding: Sequence[int], mode: str, value: float | None) -> Value:
    if mode != "constant":
        raise Unsupported(f"padding mode {mode}; constant is allowed")
    return constant_pad(b, x, padding, value or 0.0)


@lowers("aten.pixel_shuffle.default")
def pixel_shuffle(b: Builder, x: Lowered, factor: int) -> Value:
    """Row phases picked by 1x1 convolutions, concatenated along W and reshaped (docs/formulations.md 8.3b)."""
    value = quantized(x)
    q = quant(value)
    if len(value.shape) != 4 or q.dtype is not DType.INT8:
        raise Unsupported("pixel_shuffle of something that is not an int8 feature map")
    t = nhwc(value, b)
    n, h, w, deep = t.shape
    c = deep // factor**2
    rows = []
    for i in range(factor):
        picks = [o * factor**2 + i * factor + j for j in range(factor) for o in range(c)]
        rows.append(selected_channels(b, t, picks, q))
    y = b.reshape(b.concat(rows, 2), (n, h * factor, w * factor, c))
    return channels_last(y, q)


def selected_channels(b: Builder, t: Tensor, picks: Sequence[int], q: QParams) -> Tensor:
    """Channels ``picks`` of a stored [N, H, W, C], by a convolution that copies."""
    weights = np.zeros((len(picks), 1, 1, t.shape[3]))
    weights[np.arange(len(picks)), 0, 0, picks] = 1
    acc = b.conv2d(
        t,
        b.const(weights, DType.INT8, f"{b.stem}.weight"),
        bias_const(b, np.zeros(len(picks), np.int64)),
        pad=(0, 0, 0, 0),
        input_zp=q.zero_point,
    )
    return b.rescale(acc, 1.0, DType.INT8, output_zp=q.zero_point)


@lowers("aten.pixel_unshuffle.default")
def pixel_unshuffle(b: Builder, x: Lowered, factor: int) -> Value:
    value = quantized(x)
    if len(value.shape) != 4:
        raise Unsupported("pixel_unshuffle of something that is not a feature map")
    n, c, h, w = value.shape
    split_up = contiguous(b.reshape(logical(value, b), (n, c, h // factor, factor, w // factor, factor)), value.q)
    moved = permute(split_up, (0, 1, 3, 5, 2, 4), b)
    return view(contiguous(logical(moved, b), value.q), (n, c * factor**2, h // factor, w // factor))


@lowers("aten.channel_shuffle.default")
def channel_shuffle(b: Builder, x: Lowered, groups: int) -> Value:
    value = quantized(x)
    q = quant(value)
    if len(value.shape) != 4 or q.dtype is not DType.INT8:
        raise Unsupported("channel_shuffle of something that is not an int8 feature map")
    channels = value.shape[1]
    picks = [g * (channels // groups) + i for i in range(channels // groups) for g in range(groups)]
    return channels_last(selected_channels(b, nhwc(value, b), picks, q), q)
