"""Softmax and log_softmax with int8 accuracy on every target.

The exponential has 14 bits: one int8 TABLE for its upper and one for its lower part, both behind the same
subtraction, so that the sum of many small terms is right. The reciprocal and the logarithm of the sum come
from int8 TABLEs over its mantissa (docs/formulations.md 10, with the residual of the sum).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arm_lower.errors import Unsupported
from arm_lower.ops.elementwise import ADD_SHIFT
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import (
    Floats,
    Lowered,
    QParams,
    Real,
    Value,
    integer_bounds,
    quant,
    quantized,
    stored,
    unflattened,
)
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType, Tensor

PEAK = 255  # the largest exponential, exp(0), in units of the upper byte


MANY_ROWS = 16
FRACTION = 6  # bits of the lower byte


@dataclass(frozen=True)
class Rows:
    """int8 rows of K elements, their maximum, and how to get back.

    Few rows are stored [1, 1, R, K] with one number for each row as [1, 1, R, 1]. Many are stored [1, 1, K, R] with
    [1, 1, 1, R]: along C the NPU works on eight rows at once, where a reduction over C uses one lane of eight.

    Attributes:
        axis: Stored axis of the K elements, 3 or 2.
        order: Axis ``i`` of the tensor before it was flattened to rows is logical axis ``order[i]``.
    """

    x: Tensor
    peak: Tensor
    axis: int
    scale: float
    order: list[int]
    shape: tuple[int, ...]

    def read(self, b: Builder, y: Tensor, q: QParams) -> Value:
        perm = tuple(self.order.index(i) for i in range(len(self.order)))
        return Value(b.reshape(y, [self.shape[i] for i in self.order]), perm, self.shape, q)

    def sum(self, b: Builder, x: Tensor, zero_point: int) -> Tensor:
        """int32 sum over the K elements. REDUCE_SUM is native over C only, so many rows are turned for it."""
        turned = x if self.axis == 3 else b.op("TRANSPOSE", [x], perms=(0, 1, 3, 2))
        total = b.op("REDUCE_SUM", [b.rescale(turned, 1.0, DType.INT32, input_zp=zero_point)], axis=3)
        return total if self.axis == 3 else b.reshape(total, (1, 1, 1, total.size))


def rows_of(b: Builder, x: Value, dim: int) -> Rows:
    q = quant(x)
    if q.dtype is not DType.INT8:
        raise Unsupported(f"softmax of {q.dtype}; int8 is allowed")
    x = unflattened(x, b)
    dim %= len(x.shape)
    others = [x.perm.index(i) for i in range(len(x.perm)) if x.perm.index(i) != dim]
    k = x.shape[dim]
    count = x.tensor.size // k
    many = count >= MANY_ROWS
    order = [dim, *others] if many else [*others, dim]
    rows = b.reshape(stored(x, order, b), (1, 1, k, count) if many else (1, 1, count, k))
    axis = 2 if many else 3
    return Rows(rows, b.op("REDUCE_MAX", [rows], axis=axis), axis, q.scalar, order, x.shape)


def below_peak(b: Builder, rows: Rows) -> Tensor:
    """x - max in -255..0 as int8 index + 127.

    Made again for each reader, so that its TABLE fuses with the subtraction.
    """
    difference = b.op("SUB", [b.rescale(rows.x, 1.0, DType.INT32), b.rescale(rows.peak, 1.0, DType.INT32)])
    return b.rescale(difference, 1.0, DType.INT8, output_zp=127)


def exponential(rows: Rows) -> tuple[Floats, Floats]:
    """255 exp(x - max) for x - max = -255..0 steps, and its rounding to the upper byte."""
    exact = PEAK * np.exp(rows.scale * np.arange(-255, 1))
    return exact, np.rint(exact)


def total_of(b: Builder, rows: Rows, upper: Tensor, lower: Tensor | None) -> Tensor:
    """Sum of the exponentials of each row in 1/64 of the upper byte's unit, int32."""
    high = b.op("LOGICAL_LEFT_SHIFT", [rows.sum(b, upper, -128), scalar(b, FRACTION)])
    return high if lower is None else b.op("ADD", [high, rows.sum(b, lower, 0)])


def upper_bytes(b: Builder, rows: Rows) -> Tensor:
    """255 exp(x - max) rounded, stored less 128."""
    return b.table(below_peak(b, rows), exponential(rows)[1] - 128)


def lower_bytes(b: Builder, rows: Rows) -> Tensor:
    """What the upper bytes lost to rounding, in 1/64 of their unit."""
    exact, rounded = exponential(rows)
    return b.table(below_peak(b, rows), np.rint((exact - rounded) * (1 << FRACTION)))


def scalar(b: Builder, value: int) -> Tensor:
    return b.const(np.full((1, 1, 1, 1), value), DType.INT32)


def normalized(b: Builder, total: Tensor) -> tuple[Tensor, Tensor]:
    """The sum as 2^(30 - k) * m with 1 <= m < 2: the shift k and 2^30 * m, both int32."""
    k = b.op("SUB", [b.op("CLZ", [total]), scalar(b, 1)])
    return k, b.op("LOGICAL_LEFT_SHIFT", [total, k])


def mantissa_index(b: Builder, normal: Tensor) -> Tensor:
    """The upper bits of m as a TABLE's index (see `mantissas`). Made for each TABLE, so that it fuses with it."""
    return b.rescale(b.op("SUB", [normal, scalar(b, 3 << 29)]), 2.0**-22, DType.INT8)


def times_reciprocal(b: Builder, upper: Tensor, normal: Tensor) -> Tensor:
    """(upper + 128) * 65535 / m in int32, byte by byte of the reciprocal: MUL is one operator only for int8 by int8."""
    whole = np.rint(65535 / mantissas())
    high, low = (
        b.op("MUL", [b.rescale(upper, 1.0, DType.INT32, input_zp=-128), reciprocal_byte(b, normal, part)], shift=0)
        for part in (whole // 256, whole % 256)
    )
    return b.op("ADD", [b.op("LOGICAL_LEFT_SHIFT", [high, scalar(b, 8)]), low])


def reciprocal_byte(b: Builder, normal: Tensor, values: Floats) -> Tensor:
    """A byte that depends on the upper bits of m, in int32."""
    return b.rescale(b.table(mantissa_index(b, normal), values - 128), 1.0, DType.INT32, input_zp=-128)


def exact_quotient(b: Builder, upper: Tensor, lower: Tensor, normal: Tensor) -> Tensor:
    """(64 (upper + 128) + lower) * 2^16 / m in int32: all 14 bits of the exponential, and 16 of the reciprocal by a
    step of Newton's method. MUL of int32 is slow, so this is for few rows."""
    byte = reciprocal_byte(b, normal, np.clip(np.rint(256 / mantissas()), 0, 255))
    # not a factor of the RESCALE, which Vela repeats for each reader
    r = b.op("LOGICAL_LEFT_SHIFT", [byte, scalar(b, 8)])
    error = b.op("SUB", [scalar(b, 1 << 30), b.op("MUL", [normal, r], shift=16)])
    change = b.op("MUL", [error, r], shift=30)
    unit = 1 << ADD_SHIFT[DType.INT8]
    whole = b.rescale(upper, float(unit), DType.INT32, input_zp=-128)
    parts = b.op("ADD", [whole, b.rescale(lower, float(unit >> FRACTION), DType.INT32)])
    exponentials = b.rescale(parts, float(1 << FRACTION) / unit, DType.INT32)
    return b.op("MUL", [exponentials, b.op("ADD", [r, change])], shift=0)


def mantissas() -> Floats:
    """m for each index -128..127."""
    return 1.5 + np.arange(-128, 128) / 256


@lowers("aten.softmax.int", "aten._softmax.default")
def softmax(b: Builder, x: Lowered, dim: int, _: object) -> Real:
    value = quantized(x)

    def emit(q: QParams, low: float, high: float) -> Value:
        rows = rows_of(b, value, dim)
        upper, lower = upper_bytes(b, rows), lower_bytes(b, rows)
        k, normal = normalized(b, total_of(b, rows, upper, lower))
        # softmax = exponential / total, 2^16 / m of it in the reciprocal: in units of 1/256 a right shift by 38 - k,
        # and by 6 less where the exponential is not in 1/64
        few = rows.axis == 3
        product = exact_quotient(b, upper, lower, normal) if few else times_reciprocal(b, upper, normal)
        shift = b.op("SUB", [scalar(b, 30 + 8 - (0 if few else FRACTION)), k])
        unit = b.op("ARITHMETIC_RIGHT_SHIFT", [product, shift], round=True)
        y = b.rescale(unit, 1 / 256 / q.scalar, q.dtype, output_zp=q.zero_point)
        return rows.read(b, b.clamp(y, *integer_bounds(q, low, high)), q)

    return Real(value.shape, emit)


@lowers("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(b: Builder, x: Lowered, dim: int, _: object) -> Real:
    """(x - max) - ln(sum exp(x - max)); both terms have 8 bits, over 255 steps of x and over 0..ln K."""
    value = quantized(x)

    def emit(q: QParams, low: float, high: float) -> Value:
        rows = rows_of(b, value, dim)
        elements = rows.x.shape[rows.axis]
        # The K exponentials are rounded to 1/255 of the largest, which moves the logarithm by this much (four sigma).
        fine = 4 * (elements / 12) ** 0.5 / PEAK > q.scalar
        upper = upper_bytes(b, rows)
        k, normal = normalized(b, total_of(b, rows, upper, lower_bytes(b, rows) if fine else None))
        # ln(total / (255 * 64)) = ln(m) + (30 - 6 - k) ln 2 - ln(255), in units of ln 2 / 256
        unit = np.log(2) / 256
        log_m = np.clip(np.rint(np.log(mantissas()) / unit), 0, 255)
        table = b.rescale(b.table(mantissa_index(b, normal), log_m - 128), 1.0, DType.INT32, input_zp=-128)
        offset = int(np.rint(((30 - FRACTION) * np.log(2) - np.log(PEAK)) / unit))
        log_total = b.op(
            "SUB", [b.op("ADD", [table, scalar(b, offset)]), b.op("LOGICAL_LEFT_SHIFT", [k, scalar(b, 8)])]
        )
        step = np.log(elements + 1) / 255
        log8 = b.rescale(log_total, unit / step, DType.INT8, output_zp=-128)
        largest = max(rows.scale, step)
        whole = float(1 << ADD_SHIFT[DType.INT8])
        difference = b.rescale(below_peak(b, rows), rows.scale / largest * whole, DType.INT32, input_zp=127)
        wide = b.op("SUB", [difference, b.rescale(log8, step / largest * whole, DType.INT32, input_zp=-128)])
        y = b.rescale(wide, largest / whole / q.scalar, q.dtype, output_zp=q.zero_point)
        return rows.read(b, b.clamp(y, *integer_bounds(q, low, high)), q)

    return Real(value.shape, emit)
