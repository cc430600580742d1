"""What a lowering sees and makes: values with quantization and lazy layout, and reals not yet quantized."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from arm_lower.errors import Unsupported
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType, Tensor

Floats = npt.NDArray[np.float64]
Fn = Callable[[Floats], Floats]


@dataclass(frozen=True)
class QParams:
    """real = scale * (integer - zero_point), per tensor (scale is a float) or along ``axis`` (an array).

    ``qmin`` and ``qmax`` bound the integers; ``dtype`` is how they are stored.
    """

    scale: float | Floats
    zero_point: int
    dtype: DType
    qmin: int
    qmax: int
    axis: int | None = None

    @property
    def scalar(self) -> float:
        """The scale of a per-tensor quantization."""
        if self.axis is not None:
            raise Unsupported("per-channel quantization of an activation")
        return float(self.scale)

    def dequantize(self, q: npt.NDArray[np.generic]) -> Floats:
        scale: Floats | float = self.scale
        if self.axis is not None:
            scale = np.asarray(self.scale).reshape([-1 if i == self.axis else 1 for i in range(q.ndim)])
        return np.asarray((q.astype(np.float64) - self.zero_point) * scale)

    def quantize(self, x: Floats | float) -> npt.NDArray[np.int64]:
        """Round half to even and saturate, as quantized_decomposed.quantize_per_tensor does (in float32)."""
        with np.errstate(over="ignore", invalid="ignore"):
            q = np.rint(
                np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=3e38, neginf=-3e38) * (1.0 / self.scalar)
            )
        integers: npt.NDArray[np.int64] = np.clip(q + self.zero_point, self.qmin, self.qmax).astype(np.int64)
        return integers

    def same_grid(self, other: QParams) -> bool:
        """Whether equal integers mean equal reals in both."""
        return (
            self.axis is None
            and other.axis is None
            and self.zero_point == other.zero_point
            and bool(self.scale == other.scale)
        )


@dataclass(frozen=True)
class Value:
    """An integer tensor of the TOSA graph and how it is read.

    The logical (PyTorch) tensor is ``reshape(transpose(tensor, perm), shape)``: a permutation costs nothing
    until an operator needs another order, and a flattened feature map stays as it is until someone needs it flat.

    Attributes:
        tensor: Where the data is.
        perm: Axis ``i`` of the permuted tensor is stored axis ``perm[i]``.
        shape: Logical shape.
        q: Quantization, or None for plain integers.
    """

    tensor: Tensor
    perm: tuple[int, ...]
    shape: tuple[int, ...]
    q: QParams | None = None

    @property
    def permuted_shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[p] for p in self.perm)

    @property
    def is_const(self) -> bool:
        return self.tensor.data is not None

    def is_same(self, other: Value) -> bool:
        """Whether both are one tensor read in one way: each reader of a tensor has a dequantize node of its own."""
        if self.q is None or other.q is None or not self.q.same_grid(other.q):
            return False
        return (self.tensor, self.perm, self.shape) == (other.tensor, other.perm, other.shape)

    def with_tensor(self, tensor: Tensor, q: QParams | None) -> Value:
        """The same view of another tensor of the same stored shape."""
        return replace(self, tensor=tensor, q=q)

    def numpy(self) -> npt.NDArray[np.generic]:
        """Integers of a constant in logical shape."""
        if self.tensor.data is None:
            raise Unsupported("an operand must be a constant")
        return np.transpose(self.tensor.data, self.perm).reshape(self.shape)

    def real(self) -> Floats:
        """Real numbers of a constant in logical shape."""
        return self.numpy().astype(np.float64) if self.q is None else self.q.dequantize(self.numpy())


@dataclass(frozen=True)
class Constant:
    """A float constant (an unquantized parameter) in logical shape."""

    array: Floats


Emit = Callable[[QParams, float, float], Value]


@dataclass(frozen=True)
class Real:
    """A real-valued result that gets its integers when the quantize node behind it is met.

    Attributes:
        shape: Logical shape.
        emit: Makes the quantized value, clamped to the two real bounds.
        low, high: Clamp (relu family) collected so far.
        base, fn: For a function of one quantized value: real = fn(base). Chains collapse into one TABLE.
    """

    shape: tuple[int, ...]
    emit: Emit
    low: float = -math.inf
    high: float = math.inf
    base: Value | None = None
    fn: Fn | None = field(default=None)

    def clamped(self, low: float, high: float) -> Real:
        return replace(self, low=min(max(self.low, low), high), high=max(min(self.high, high), low))

    def quantize(self, q: QParams) -> Value:
        return self.emit(q, self.low, self.high)


Lowered = Value | Real | Constant


def contiguous(tensor: Tensor, q: QParams | None = None) -> Value:
    """A tensor stored in logical order."""
    return Value(tensor, tuple(range(len(tensor.shape))), tensor.shape, q)


def channels_last(tensor: Tensor, q: QParams | None = None) -> Value:
    """A stored [N, H, W, C] read as logical [N, C, H, W]."""
    n, h, w, c = tensor.shape
    return Value(tensor, (0, 3, 1, 2), (n, c, h, w), q)


def quantized(x: Lowered, what: str = "input") -> Value:
    """``x`` as an integer value with per-tensor quantization.

    Raises:
        Unsupported: It has none: the model is not quantized here.
    """
    if isinstance(x, Value) and x.q is not None and x.q.axis is None:
        return x
    raise Unsupported(
        f"the {what} is not quantized", "quantize this module: see EthosUQuantizer.set_global and set_module_name"
    )


def quant(x: Value) -> QParams:
    if x.q is None:
        raise Unsupported("an operand is not quantized")
    return x.q


def permute(x: Value, perm: Sequence[int], b: Builder) -> Value:
    """The logical axes in another order; free unless a pending flatten has to be done first."""
    x = unflattened(x, b)
    perm = [p % len(x.shape) for p in perm]
    return Value(x.tensor, tuple(x.perm[p] for p in perm), tuple(x.shape[p] for p in perm), x.q)


def is_contiguous(x: Value) -> bool:
    """Whether the stored order is the logical order."""
    real = [p for p in x.perm if x.tensor.shape[p] != 1]
    return real == sorted(real)


def unflattened(x: Value, b: Builder) -> Value:
    """``x`` with a plain permutation: a pending reshape is done, moving no data where it only adds or drops ones."""
    if x.shape == x.permuted_shape:
        return x
    if is_contiguous(x):
        return contiguous(b.reshape(x.tensor, x.shape), x.q)
    axes = [p for p in x.perm if x.tensor.shape[p] != 1]
    if [x.tensor.shape[p] for p in axes] != [n for n in x.shape if n != 1]:
        return contiguous(logical(x, b), x.q)
    remaining = iter(axes)
    stored_axis = [next(remaining) if n != 1 else -1 for n in x.shape]
    order = sorted(range(len(x.shape)), key=lambda i: stored_axis[i])
    tensor = b.reshape(x.tensor, [x.shape[i] for i in order])
    return Value(tensor, tuple(order.index(i) for i in range(len(order))), x.shape, x.q)


def logical(x: Value, b: Builder) -> Tensor:
    """The tensor in logical order and shape."""
    return b.reshape(b.transpose(x.tensor, x.perm), x.shape)


def view(x: Value, shape: Sequence[int]) -> Value:
    """Another logical shape of the same elements; never moves data."""
    return Value(x.tensor, x.perm, tuple(shape), x.q)


def stored(x: Value, perm: Sequence[int], b: Builder) -> Tensor:
    """The tensor whose axis ``i`` is logical axis ``perm[i]``."""
    x = unflattened(x, b)
    return b.transpose(x.tensor, [x.perm[p] for p in perm])


def nhwc(x: Value, b: Builder) -> Tensor:
    """A logical [N, C, H, W] as stored [N, H, W, C]; [N, C, L] becomes [N, 1, L, C] (a line lies on W, never on H)."""
    if len(x.shape) == 3:
        n, c, length = x.shape
        if x.tensor.shape == (n, 1, length, c) and x.perm == (0, 3, 1, 2):
            return x.tensor
        return b.reshape(stored(x, (0, 2, 1), b), (n, 1, length, c))
    if len(x.shape) != 4:
        raise Unsupported(f"rank {len(x.shape)} where a feature map of rank 3 or 4 is needed")
    return stored(x, (0, 2, 3, 1), b)


def from_nhwc(tensor: Tensor, rank: int, q: QParams | None = None) -> Value:
    """The logical [N, C, H, W] of a stored [N, H, W, C], or the [N, C, L] of a [N, 1, L, C] when ``rank`` is 3."""
    value = channels_last(tensor, q)
    return value if rank == 4 else view(value, (value.shape[0], value.shape[1], value.shape[3]))


def integer_bounds(q: QParams, low: float, high: float) -> tuple[int, int]:
    """The clamp to real bounds in integers of ``q``."""
    lo, hi = q.qmin, q.qmax
    if math.isfinite(low):
        lo = max(lo, min(hi, int(q.quantize(low))))
    if math.isfinite(high):
        hi = min(hi, max(lo, int(q.quantize(high))))
    return lo, hi


def accumulator(
    view_of: Callable[[Tensor, QParams], Value], acc: Tensor, scale: float | Floats, shape: Sequence[int], b: Builder
) -> Real:
    """The real number scale * acc; ``scale`` has one entry for each element of the last stored axis, or is one number.

    ``view_of`` reads a tensor of acc's stored shape as the logical value.
    """

    def emit(q: QParams, low: float, high: float) -> Value:
        y = b.rescale(acc, np.asarray(scale) / q.scalar, q.dtype, output_zp=q.zero_point)
        return view_of(b.clamp(y, *integer_bounds(q, low, high)), q)

    return Real(tuple(shape), emit)


def pointwise(x: Value, fn: Fn, b: Builder) -> Real:
    """fn(x) for a function of one variable, as a TABLE."""
    qx = quant(x)

    def emit(q: QParams, low: float, high: float) -> Value:
        if qx.dtype is not DType.INT8 or q.dtype is not DType.INT8:
            raise Unsupported(f"a function of one variable from {qx.dtype} to {q.dtype}; int8 is allowed")
        codes = np.arange(-128, 128)
        with np.errstate(all="ignore"):
            reals = np.clip(fn(qx.dequantize(codes)), low, high)
        return x.with_tensor(b.table(x.tensor, q.quantize(reals)), q)

    return Real(x.shape, emit, base=x, fn=fn)


def requantized(x: Value, q: QParams, b: Builder, low: float = -math.inf, high: float = math.inf) -> Value:
    """``x`` on the grid of ``q``, clamped to real bounds."""
    qx = quant(x)
    if x.tensor.data is not None:
        fitted = np.clip(q.quantize(np.clip(qx.dequantize(x.tensor.data), low, high)), q.qmin, q.qmax)
        return x.with_tensor(b.const(fitted, q.dtype, x.tensor.name), q)
    bounds = integer_bounds(q, low, high)
    if qx.same_grid(q) and qx.dtype is q.dtype:
        return x.with_tensor(b.clamp(x.tensor, *bounds), q)
    y = b.rescale(x.tensor, qx.scalar / q.scalar, q.dtype, input_zp=qx.zero_point, output_zp=q.zero_point)
    return x.with_tensor(b.clamp(y, *bounds), q)


def linear_real(x: Value, b: Builder, low: float = -math.inf, high: float = math.inf) -> Real:
    """The real value of ``x`` itself, to be clamped and requantized."""
    return Real(x.shape, lambda q, lo, hi: requantized(x, q, b, lo, hi), low, high, base=x, fn=lambda r: r)
