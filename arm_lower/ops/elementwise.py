"""Operators of two tensors, with broadcasting, scalars and constant operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from arm_lower.errors import Unsupported
from arm_lower.ops.pointwise import Number, affine, apply
from arm_lower.ops.registry import lowers
from arm_lower.ops.shape import chunk
from arm_lower.ops.value import (
    Constant,
    Floats,
    Lowered,
    QParams,
    Real,
    Value,
    accumulator,
    is_contiguous,
    pointwise,
    quant,
    quantized,
    requantized,
    stored,
    unflattened,
    view,
)
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType, Tensor

Operand = Lowered | Number
Binary = Callable[[Floats, Floats], Floats]

# The larger of two scales of an addition becomes exactly this power of two: the one form that U55 fuses
# (docs/formulations.md 7.1).
ADD_SHIFT = {DType.INT8: 19, DType.INT16: 14}


def as_number(x: Operand) -> float | None:
    """The value of a number or of a one-element constant."""
    if isinstance(x, (int, float, bool)):
        return float(x)
    if isinstance(x, Constant) and x.array.size == 1:
        return float(x.array.reshape(()))
    if isinstance(x, Value) and x.is_const and x.tensor.size == 1 and x.q is not None:
        return float(x.real().reshape(()))
    return None


def one_variable(b: Builder, x: Operand, y: Operand, fn: Binary) -> Real | Constant | None:
    """fn(x, y) as a function of one quantized value, when that is what it is."""
    nx, ny = as_number(x), as_number(y)
    if ny is not None and not isinstance(x, (int, float, bool)):
        return apply(b, x, lambda r: fn(r, np.asarray(ny, np.float64)))
    if nx is not None and not isinstance(y, (int, float, bool)):
        return apply(b, y, lambda r: fn(np.asarray(nx, np.float64), r))
    if isinstance(x, Constant) and isinstance(y, Constant):
        return Constant(fn(x.array, y.array))
    fx, fy = _as_function(x), _as_function(y)
    if fx is None or fy is None or not fx[0].is_same(fy[0]) or (isinstance(x, Value) and isinstance(y, Value)):
        return None
    return pointwise(fx[0], lambda r: fn(fx[1](r), fy[1](r)), b)


def _as_function(x: Operand) -> tuple[Value, Callable[[Floats], Floats]] | None:
    if isinstance(x, Value) and x.q is not None and not x.is_const:
        return x, lambda r: r
    if isinstance(x, Real) and x.base is not None and x.fn is not None:
        fn, low, high = x.fn, x.low, x.high
        return x.base, lambda r: np.clip(fn(r), low, high)
    return None


def broadcast(
    b: Builder, x: Value, y: Value
) -> tuple[Tensor, Tensor, Callable[[Tensor, QParams], Value], tuple[int, ...]]:
    """Both operands in one stored order and rank, and how to read a result of theirs."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    if x.shape == y.shape and x.tensor.shape == y.tensor.shape and x.perm == y.perm:
        return x.tensor, y.tensor, x.with_tensor, shape
    rank = len(shape)
    leader = max((v for v in (x, y) if not v.is_const), key=lambda v: v.tensor.size, default=x)
    leader = unflattened(view(leader, (1,) * (rank - len(leader.shape)) + leader.shape), b)
    order = [leader.perm.index(i) for i in range(rank)]

    def placed(v: Value) -> Tensor:
        return stored(view(v, (1,) * (rank - len(v.shape)) + v.shape), order, b)

    return placed(x), placed(y), lambda t, q: Value(t, leader.perm, tuple(t.shape[p] for p in leader.perm), q), shape


def widened(b: Builder, x: Tensor, scale: float, zero_point: int) -> Tensor:
    return b.rescale(x, scale, DType.INT32, input_zp=zero_point)


def add_values(b: Builder, kind: str, x: Value, y: Value, y_factor: float = 1.0) -> Real:
    """x +- y_factor * y."""
    qx, qy = quant(x), quant(y)
    if qx.dtype is not qy.dtype or qx.dtype not in ADD_SHIFT:
        raise Unsupported(f"{kind} of {qx.dtype} and {qy.dtype}; both must be int8, or both int16")
    sx, sy = qx.scalar, qy.scalar * y_factor
    tx, ty, read, shape = broadcast(b, x, y)
    largest = max(sx, sy)
    unit = 1.0 if sx == sy else float(1 << ADD_SHIFT[qx.dtype])
    acc = b.op(
        kind, [widened(b, tx, sx / largest * unit, qx.zero_point), widened(b, ty, sy / largest * unit, qy.zero_point)]
    )
    return accumulator(read, acc, largest / unit, shape, b)


def add_sub(b: Builder, kind: str, x: Operand, y: Operand, alpha: Number) -> Lowered:
    sign = float(alpha) if kind == "ADD" else -float(alpha)
    ny, nx = as_number(y), as_number(x)
    if ny is not None and not isinstance(x, (int, float, bool)):
        return affine(b, x, 1.0, sign * ny)
    if nx is not None and not isinstance(y, (int, float, bool)):
        return affine(b, y, sign, nx)
    single = one_variable(b, x, y, lambda r, s: r + sign * s)
    if single is not None:
        return single
    vx, vy = operand(x, "first"), operand(y, "second")
    channel = channel_affine(b, vx, vy, lambda c: (np.ones_like(c), sign * c)) or channel_affine(
        b, vy, vx, lambda c: (np.full_like(c, sign), c)
    )
    if channel is not None:
        return channel
    x_value, y_value = needs_value(vx), needs_value(vy)
    return add_values(b, "ADD" if sign > 0 else "SUB", x_value, y_value, abs(sign))


def operand(x: Operand, which: str) -> Value | Constant:
    if isinstance(x, (int, float, bool)):
        return Constant(np.float64(x).reshape(()))
    return x if isinstance(x, Constant) else quantized(x, f"{which} operand")


def needs_value(x: Value | Constant) -> Value:
    if isinstance(x, Constant):
        raise Unsupported(
            "a constant operand is not quantized", "annotate the operator so that its constant is quantized too"
        )
    return x


def channel_affine(
    b: Builder, x: Value | Constant, c: Value | Constant, factors: Callable[[Floats], tuple[Floats, Floats]]
) -> Real | None:
    """x * f + g for constants that vary along the last stored axis only.

    It is a 1x1 depthwise convolution (docs/formulations.md 7.2, 7.3). ``factors`` gives (f, g) of the constant. None
    when the operands are not of this kind.
    """
    if (
        isinstance(x, Constant)
        or x.is_const
        or (isinstance(c, Value) and not c.is_const)
        or quant(x).dtype is not DType.INT8
    ):
        return None
    real = c.array if isinstance(c, Constant) else c.real()
    if real.ndim > len(x.shape) or np.broadcast_shapes(real.shape, x.shape) != x.shape:
        return None
    real = real.reshape((1,) * (len(x.shape) - real.ndim) + real.shape)
    axes = [i for i, n in enumerate(real.shape) if n != 1]
    x = unflattened(x, b)
    if len(axes) != 1 or x.perm[axes[0]] != len(x.shape) - 1:
        return None
    scale, offset = factors(real.reshape(-1))
    return depthwise_affine(b, x, scale, offset)


def depthwise_affine(b: Builder, x: Value, scale: Floats, offset: Floats) -> Real:
    """scale * x + offset along the last stored axis of ``x``, exact but for the final rounding."""
    q = quant(x)
    channels = len(scale)
    unit = np.maximum(np.abs(scale), 1e-30) * q.scalar / 64
    bias = np.clip(np.rint(offset / unit), -(2**31), 2**31 - 1)
    wide = q.dtype is DType.INT16
    if np.any(np.abs(bias) > 2**30):
        raise Unsupported("a constant is too large against the factor beside it")
    t = b.reshape(x.tensor, (1, 1, x.tensor.size // channels, channels)) if len(x.tensor.shape) != 4 else x.tensor
    weights = b.const((np.sign(scale) * 64).reshape(1, 1, channels, 1), DType.INT8, f"{b.stem}.weight")
    offsets = b.const(bias, DType.INT48 if wide else DType.INT32, f"{b.stem}.bias")
    acc = b.conv2d(t, weights, offsets, pad=(0, 0, 0, 0), input_zp=q.zero_point, depthwise=True)
    stored_shape = x.tensor.shape
    return accumulator(lambda y, qy: Value(b.reshape(y, stored_shape), x.perm, x.shape, qy), acc, unit, x.shape, b)


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(b: Builder, x: Operand, y: Operand, alpha: Number) -> Lowered:
    return add_sub(b, "ADD", x, y, alpha)


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def sub(b: Builder, x: Operand, y: Operand, alpha: Number) -> Lowered:
    return add_sub(b, "SUB", x, y, alpha)


@lowers("aten.mul.Tensor", "aten.mul.Scalar")
def mul(b: Builder, x: Operand, y: Operand) -> Lowered:
    for value, factor in ((x, as_number(y)), (y, as_number(x))):
        if factor is not None and not isinstance(value, (int, float, bool)):
            return affine(b, value, factor, 0.0)
    single = one_variable(b, x, y, lambda r, s: r * s)
    if single is not None:
        return single
    vx, vy = operand(x, "first"), operand(y, "second")
    channel = channel_affine(b, vx, vy, lambda c: (c, np.zeros_like(c))) or channel_affine(
        b, vy, vx, lambda c: (c, np.zeros_like(c))
    )
    return channel if channel is not None else mul_values(b, needs_value(vx), needs_value(vy))


def mul_values(b: Builder, x: Value, y: Value) -> Real:
    """x * y.

    Each operand has its own RESCALE by one, also for x * x: Vela miscompiles a shared one (docs/formulations.md 0.2).
    """
    qx, qy = quant(x), quant(y)
    if qx.dtype is not qy.dtype:
        raise Unsupported(f"MUL of {qx.dtype} and {qy.dtype}; both must be the same")
    tx, ty, read, shape = broadcast(b, x, y)
    acc = b.op("MUL", [widened(b, tx, 1.0, qx.zero_point), widened(b, ty, 1.0, qy.zero_point)], shift=0)
    return accumulator(read, acc, qx.scalar * qy.scalar, shape, b)


@lowers("aten.div.Tensor", "aten.div.Scalar")
def div(b: Builder, x: Operand, y: Operand) -> Lowered:
    divisor = as_number(y)
    if divisor is not None and divisor != 0 and not isinstance(x, (int, float, bool)):
        return affine(b, x, 1.0 / divisor, 0.0)
    single = one_variable(b, x, y, lambda r, s: r / s)
    if single is not None:
        return single
    vx, vy = operand(x, "first"), operand(y, "second")
    channel = channel_affine(b, vx, vy, lambda c: (1.0 / c, np.zeros_like(c))) if not _has_zero(vy) else None
    if channel is None:
        raise Unsupported("division by a tensor that is not constant")
    return channel


def _has_zero(x: Value | Constant) -> bool:
    if isinstance(x, Value) and not x.is_const:
        return False
    return bool(np.any((x.array if isinstance(x, Constant) else x.real()) == 0))


def extremum(b: Builder, kind: str, x: Value, y: Value) -> Real:
    """MAXIMUM or MINIMUM on the grid of the result."""

    def emit(q: QParams, low: float, high: float) -> Value:
        tx, ty, read, _ = broadcast(b, requantized(x, q, b), requantized(y, q, b))
        wide = b.op(kind, [widened(b, tx, 1.0, q.zero_point), widened(b, ty, 1.0, q.zero_point)])
        return requantized(read(b.rescale(wide, 1.0, q.dtype, output_zp=q.zero_point), q), q, b, low, high)

    return Real(np.broadcast_shapes(x.shape, y.shape), emit)


@lowers("aten.maximum.default", "aten.max.other")
def maximum(b: Builder, x: Operand, y: Operand) -> Lowered:
    return _extremum(b, "MAXIMUM", x, y, np.maximum)


@lowers("aten.minimum.default", "aten.min.other")
def minimum(b: Builder, x: Operand, y: Operand) -> Lowered:
    return _extremum(b, "MINIMUM", x, y, np.minimum)


def _extremum(b: Builder, kind: str, x: Operand, y: Operand, fn: Binary) -> Lowered:
    single = one_variable(b, x, y, fn)
    if single is not None:
        return single
    return extremum(b, kind, needs_value(operand(x, "first")), needs_value(operand(y, "second")))


@lowers("aten.prelu.default")
def prelu(b: Builder, x: Lowered, slope: Lowered) -> Lowered:
    """One slope: a TABLE. A slope for each channel: max(x, a x), where a > 1 min(x, a x) (docs/formulations.md 7.5)."""
    x = quantized(x)
    a = as_number(slope)
    if a is not None:
        return apply(b, x, lambda r: np.where(r >= 0, r, a * r))
    if not isinstance(slope, Constant) and not (isinstance(slope, Value) and slope.is_const):
        raise Unsupported("the slope is not constant")
    slopes = (slope.array if isinstance(slope, Constant) else slope.real()).reshape(-1)
    value = channel_last(b, x)
    sign = np.where(slopes > 1, -1.0, 1.0)

    def emit(qy: QParams, low: float, high: float) -> Value:
        # min(x, a x) is the mirrored maximum of mirrored operands; q -> -q - 1 maps int8 onto itself: nothing is lost
        if np.all(sign > 0):
            return extremum(b, "MAXIMUM", value, scaled(qy, slopes).quantize(qy)).clamped(low, high).quantize(qy)
        second = scaled(qy, sign * slopes).quantize(qy)
        y = extremum(b, "MAXIMUM", mirrored(value, qy), second).quantize(qy)
        return requantized(mirrored(y, qy), qy, b, low, high)

    def scaled(qy: QParams, factors: Floats) -> Real:
        # the other families read the factors from flash again for every row
        if b.family == "u85" and quant(value).dtype is DType.INT16 and np.all(sign > 0):
            return times_channels(b, value, factors)
        return depthwise_affine(b, value, factors, offset_of(qy))

    def offset_of(qy: QParams) -> Floats:
        return np.where(sign < 0, -(2 * qy.zero_point + 1) * qy.scalar, 0.0)

    def mirrored(v: Value, qy: QParams) -> Value:
        """``v`` on the grid of the result, with q -> -q - 1 in the channels of a steep slope."""
        # On U85 an XOR: its mask has one byte for each channel where a convolution's scales have ten. It costs a pass
        # (8 % more cycles on MTCNN's R-Net, 430 bytes less). The other families have no bitwise operators.
        if b.family != "u85":
            return depthwise_affine(b, v, sign, offset_of(qy)).quantize(qy)
        same = requantized(v, qy, b)
        mask = b.const(
            np.where(sign < 0, -1, 0).reshape((1,) * (len(v.tensor.shape) - 1) + (-1,)), DType.INT8, f"{b.stem}.mask"
        )
        return same.with_tensor(b.op("BITWISE_XOR", [same.tensor, mask]), qy)

    return Real(x.shape, emit)


def times_channels(b: Builder, x: Value, factors: Floats) -> Real:
    """An int16 ``x`` times a factor for each index of its last stored axis: two bytes each, where a convolution has
    eleven."""
    scale = max(float(np.abs(factors).max()), 1e-30) / 32767
    constant = b.const(
        np.rint(factors / scale).reshape((1,) * (len(x.tensor.shape) - 1) + (-1,)), DType.INT16, f"{b.stem}.slope"
    )
    acc = b.op("MUL", [widened(b, x.tensor, 1.0, 0), widened(b, constant, 1.0, 0)], shift=0)
    return accumulator(x.with_tensor, acc, quant(x).scalar * scale, x.shape, b)


def channel_last(b: Builder, x: Value) -> Value:
    """``x`` stored with its logical axis 1 last; [N, C] as [1, 1, N, C], as a linear layer leaves it."""
    if len(x.shape) == 2 and is_contiguous(x):
        return Value(b.reshape(x.tensor, (1, 1, *x.shape)), (0, 1, 2, 3), x.shape, x.q)
    x = unflattened(x, b)
    rank = len(x.shape)
    if x.perm[1] == rank - 1:
        return x
    t = stored(x, [0, *range(2, rank), 1], b)
    return Value(t, (0, rank - 1, *range(1, rank - 1)), x.shape, x.q)


@lowers("aten.glu.default")
def glu(b: Builder, x: Lowered, dim: int) -> Real:
    """The first half times the sigmoid of the second, which has the fixed 8-bit grid of a sigmoid."""
    first, second = chunk(b, x, 2, dim)
    gate = apply(b, second, lambda r: 1 / (1 + np.exp(-r)))
    if not isinstance(gate, Real):
        raise Unsupported("glu of a constant")
    return mul_values(b, quantized(first), gate.quantize(QParams(1 / 256, -128, DType.INT8, -128, 127)))
