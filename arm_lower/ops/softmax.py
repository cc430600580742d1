"""Softmax and log_softmax with int8 accuracy on every target.

The exponential has 16 bits: one int8 TABLE for its upper and one for its lower byte, both behind the same
subtraction, so that the sum of many small terms is right. The reciprocal and the logarithm of the sum come
from int8 TABLEs over its mantissa (recipes_seq 1, small form).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arm_lower.errors import Unsupported
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import Lowered, QParams, Real, Value, integer_bounds, quant, quantized, stored, unflattened
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType, Tensor

PEAK = 255  # the largest exponential, exp(0), in units of the upper byte


@dataclass(frozen=True)
class Rows:
    """int8 rows as [1, 1, R, K], their maximum [1, 1, R, 1], and how to get back.

    ``order`` is the stored axis order: axis ``i`` of the stored tensor is logical axis ``order[i]``.
    """

    x: Tensor
    peak: Tensor
    scale: float
    order: list[int]
    shape: tuple[int, ...]

    def read(self, b: Builder, y: Tensor, q: QParams) -> Value:
        perm = tuple(self.order.index(i) for i in range(len(self.order)))
        return Value(b.reshape(y, [self.shape[i] for i in self.order]), perm, self.shape, q)


def rows_of(b: Builder, x: Value, dim: int) -> Rows:
    q = quant(x)
    if q.dtype is not DType.INT8:
        raise Unsupported(f"softmax of {q.dtype}; int8 is allowed")
    x = unflattened(x, b)
    dim %= len(x.shape)
    order = [x.perm.index(i) for i in range(len(x.perm)) if x.perm.index(i) != dim] + [dim]
    t = stored(x, order, b)
    k = x.shape[dim]
    rows = b.reshape(t, (1, 1, t.size // k, k))
    return Rows(rows, b.op("REDUCE_MAX", [rows], axis=3), q.scalar, order, x.shape)


def below_peak(b: Builder, rows: Rows) -> Tensor:
    """x - max in -255..0 as int8 index + 127; made again for each reader so that its TABLE fuses with the subtraction."""
    difference = b.op("SUB", [b.rescale(rows.x, 1.0, DType.INT32), b.rescale(rows.peak, 1.0, DType.INT32)])
    return b.rescale(difference, 1.0, DType.INT8, output_zp=127)


def exponentials(b: Builder, rows: Rows) -> tuple[Tensor, Tensor]:
    """Upper and lower byte of 255 exp(x - max), int8: upper is stored less 128, lower is a signed residual in 1/256."""
    steps = np.arange(-255, 1)
    exact = PEAK * np.exp(rows.scale * steps)
    upper = np.rint(exact)
    lower = np.clip(np.rint(256 * (exact - upper)), -128, 127)
    return b.table(below_peak(b, rows), upper - 128), b.table(below_peak(b, rows), lower)


def sums(b: Builder, upper: Tensor, lower: Tensor) -> Tensor:
    """Sum of the exponentials over the last axis, in 1/256 of the upper byte's unit: [1, 1, R, 1] int32."""
    high = b.op("REDUCE_SUM", [b.rescale(upper, 1.0, DType.INT32, input_zp=-128)], axis=3)
    low = b.op("REDUCE_SUM", [b.rescale(lower, 1.0, DType.INT32)], axis=3)
    shifted = b.op("LOGICAL_LEFT_SHIFT", [high, b.const(np.full((1, 1, 1, 1), 8), DType.INT32)])
    return b.op("ADD", [shifted, low])


def mantissa(b: Builder, total: Tensor) -> tuple[Tensor, Tensor]:
    """Shift k = clz(total) - 1 and int8 index i of the mantissa: total << k is 2^30 * m with m = 1.5 + i / 256."""
    one = b.const(np.full((1, 1, 1, 1), 1), DType.INT32)
    k = b.op("SUB", [b.op("CLZ", [total]), one])
    normal = b.op("LOGICAL_LEFT_SHIFT", [total, k])
    centred = b.op("SUB", [normal, b.const(np.full((1, 1, 1, 1), 3 << 29), DType.INT32)])
    return k, b.rescale(centred, 2.0**-22, DType.INT8)


def mantissas() -> np.ndarray:
    return 1.5 + np.arange(-128, 128) / 256


@lowers("aten.softmax.int", "aten._softmax.default")
def softmax(b: Builder, x: Lowered, dim: int, _: object) -> Real:
    value = quantized(x)

    def emit(q: QParams, low: float, high: float) -> Value:
        rows = rows_of(b, value, dim)
        upper, lower = exponentials(b, rows)
        k, index = mantissa(b, sums(b, upper, lower))
        reciprocal = np.rint(65535 / mantissas())
        r_high = b.rescale(b.table(index, (reciprocal // 256) - 128), 1.0, DType.INT32, input_zp=-128)
        r_low = b.rescale(b.table(index, (reciprocal % 256) - 128), 1.0, DType.INT32, input_zp=-128)
        r = b.op("ADD", [b.op("LOGICAL_LEFT_SHIFT", [r_high, b.const(np.full((1, 1, 1, 1), 8), DType.INT32)]), r_low])
        product = b.op("MUL", [b.rescale(upper, 1.0, DType.INT32, input_zp=-128), r], shift=0)
        # softmax = product * 2^(k - 38) ; in units of 1/256 that is a right shift by 30 - k
        shift = b.op("SUB", [b.const(np.full((1, 1, 1, 1), 30), DType.INT32), k])
        unit = b.op("ARITHMETIC_RIGHT_SHIFT", [product, shift], round=True)
        y = b.rescale(unit, 1 / 256 / q.scalar, q.dtype, output_zp=q.zero_point)
        return rows.read(b, b.clamp(y, *integer_bounds(q, low, high)), q)

    return Real(value.shape, emit)


@lowers("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(b: Builder, x: Lowered, dim: int, _: object) -> Real:
    value = quantized(x)

    def emit(q: QParams, low: float, high: float) -> Value:
        rows = rows_of(b, value, dim)
        k, index = mantissa(b, sums(b, *exponentials(b, rows)))
        # ln(total / (255 * 256)) = ln(m) + (30 - k) ln 2 - ln(65280), in units of ln 2 / 256 around the table's middle
        unit = np.log(2) / 256
        log_m = np.rint(np.log(mantissas()) / unit)
        table = b.rescale(b.table(index, np.clip(log_m, 0, 255) - 128), 1.0, DType.INT32, input_zp=-128)
        offset = int(np.rint((30 * np.log(2) - np.log(PEAK * 256)) / unit))
        eight = b.const(np.full((1, 1, 1, 1), 8), DType.INT32)
        constant = b.const(np.full((1, 1, 1, 1), offset), DType.INT32)
        log_total = b.op("SUB", [b.op("ADD", [table, constant]), b.op("LOGICAL_LEFT_SHIFT", [k, eight])])
        # both terms on one fine grid, small enough for the sum to stay in int32
        grid = rows.scale / 65536
        row = b.op("ADD", [b.rescale(rows.peak, 65536.0, DType.INT32), b.rescale(log_total, unit / grid, DType.INT32)])
        wide = b.op("SUB", [b.rescale(rows.x, 65536.0, DType.INT32), row])
        y = b.rescale(wide, grid / q.scalar, q.dtype, output_zp=q.zero_point)
        return rows.read(b, b.clamp(y, *integer_bounds(q, low, high)), q)

    return Real(value.shape, emit)
