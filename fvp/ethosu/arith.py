"""The integer arithmetic of the output stage and of the multiply-accumulate array, exact in numpy.

Sums of products go through floating-point BLAS only where every partial sum is an integer that the format holds
exactly: below 2**24 in float32, below 2**53 in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Number = int | Array

NATURAL, DOUBLE, TO_ZERO, TO_LOWER, SYMMETRIC = "NATURAL", "DOUBLE", "TO_ZERO", "TO_LOWER", "SYMMETRIC"
_F32, _F64 = 1 << 24, 1 << 53


def _half(shift: Number) -> Number:
    """Half a unit in the last place of a right shift; 0 when nothing is shifted out."""
    if isinstance(shift, int):
        return (1 << shift) >> 1
    return np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)


def _shift_right(p: Array, acc_sign: Array | None, shift: Number, mode: str) -> Array:
    """``p >> shift`` with rounding; ``p`` is overwritten."""
    if mode == NATURAL or mode == DOUBLE:
        p += _half(shift)
        if mode == DOUBLE and acc_sign is not None:
            big = np.asarray(shift) > 31
            if big.any():
                p += np.where(big, np.where(acc_sign, -(1 << 30), 1 << 30), 0)
    elif mode == TO_ZERO:
        p += np.where(p < 0, (np.int64(1) << shift) - 1, 0)
    elif mode == SYMMETRIC:
        half = _half(shift)
        p += np.where(p < 0, np.maximum(half - 1, 0), half)
    np.right_shift(p, shift, out=p)
    return p


def _shift_right_wide(acc: Array, scale: Number, shift: Number, mode: str) -> Array:
    """As `_shift_right` of ``acc * scale`` when the product does not fit 64 bits.

    The product is kept as hi * 2**31 + lo with 0 <= lo < 2**31 after the rounding constant was added.
    """
    s = np.broadcast_to(np.asarray(shift, np.int64), acc.shape)
    hi = (acc >> 31) * scale
    lo = (acc & 0x7FFFFFFF) * scale
    hi, lo = hi + (lo >> 31), lo & 0x7FFFFFFF
    negative = hi < 0
    one = np.int64(1)
    if mode in (NATURAL, DOUBLE):
        half = _half(s)
        add_hi, add_lo = half >> 31, half & 0x7FFFFFFF
        if mode == DOUBLE:
            big = s > 31
            lo = lo + np.where(big, np.where(acc < 0, -(1 << 30), 1 << 30), 0)
    elif mode == TO_ZERO:
        ones = np.where(negative, (one << s) - 1, 0)
        add_hi, add_lo = ones >> 31, ones & 0x7FFFFFFF
    elif mode == SYMMETRIC:
        half = _half(s)
        half = np.where(negative, np.maximum(half - 1, 0), half)
        add_hi, add_lo = half >> 31, half & 0x7FFFFFFF
    else:
        add_hi = add_lo = np.zeros_like(s)
    lo = lo + add_lo
    hi, lo = hi + add_hi + (lo >> 31), lo & 0x7FFFFFFF
    return np.where(s >= 31, hi >> np.maximum(s - 31, 0), (hi << np.maximum(31 - s, 0)) + (lo >> np.minimum(s, 31)))


def rescale(acc: Array, scale: Number, shift: Number, mode: str, bound: int) -> Array:
    """``round(acc * scale / 2**shift)``.

    Args:
        acc: int64; overwritten.
        scale: Multiplier or one per channel (last axis), 0 <= scale < 2**32.
        shift: Right shift or one per channel, 0..63; 0 does not round.
        mode: NATURAL (half up), DOUBLE (TOSA's double rounding: another 2**30 away from zero when shift > 31),
            TO_ZERO, TO_LOWER, SYMMETRIC (half away from zero).
        bound: No |acc| is larger.

    Returns:
        int64.
    """
    top_scale = scale if isinstance(scale, int) else int(scale.max(initial=0))
    top_shift = shift if isinstance(shift, int) else int(shift.max(initial=0))
    if isinstance(shift, int) and shift == 0:
        if top_scale == 1 and isinstance(scale, int):
            return acc
        acc *= scale
        return acc
    if bound * top_scale + (1 << top_shift) + (1 << 31) >= 1 << 63:
        return _shift_right_wide(acc, scale, shift, mode)
    sign = acc < 0 if mode == DOUBLE and top_shift > 31 else None
    if not (isinstance(scale, int) and scale == 1):
        acc *= scale
    return _shift_right(acc, sign, shift, mode)


@dataclass
class Kernel:
    """Decoded weights of one operation in the forms the sums need; built once and cached.

    Attributes:
        w: int16 (O, KH, KW, I).
    """

    w: Array
    _chunks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @cached_property
    def sums(self) -> Array:
        """Sum of the weights of each output channel, int64."""
        total: Array = self.w.reshape(len(self.w), -1).sum(1, dtype=np.int64)
        return total

    @cached_property
    def norm(self) -> int:
        """Largest sum of absolute weights of an output channel."""
        return int(np.abs(self.w.reshape(len(self.w), -1).astype(np.int64)).sum(1).max(initial=0))

    @cached_property
    def matrix(self) -> Array:
        """float32 (KH*KW*I, O)."""
        return np.ascontiguousarray(self.w.reshape(len(self.w), -1).T.astype(np.float32))

    @cached_property
    def matrix64(self) -> Array:
        return self.matrix.astype(np.float64)

    @cached_property
    def taps(self) -> Array:
        """float32 (KH, KW, O) of a depthwise operation."""
        return np.ascontiguousarray(self.w[..., 0].transpose(1, 2, 0).astype(np.float32))

    def chunks(self, top: int) -> list[tuple[int, int]]:
        """Ranges of the sum that float32 holds exactly for |x| <= top."""
        if top not in self._chunks:
            k = self.matrix.shape[0]
            if self.norm * top < _F32:
                self._chunks[top] = [(0, k)]
            else:
                limit = max(1, _F32 // (max(1, top) * max(1, int(np.abs(self.matrix).max(initial=1)))) - 1)
                self._chunks[top] = [(i, min(k, i + limit)) for i in range(0, k, limit)]
        return self._chunks[top]


def dot(x: Array, kernel: Kernel, top: int) -> Array:
    """``x @ kernel.matrix`` exactly, as float32 or float64 holding integers.

    Args:
        x: (rows, K) float32 with integer values.
        kernel: Weights.
        top: No |x| is larger.
    """
    chunks = kernel.chunks(top) if top < 1 << 12 else []
    if len(chunks) == 1:
        return x @ kernel.matrix
    if chunks and len(chunks) <= 8:
        total: Array = (x[:, : chunks[0][1]] @ kernel.matrix[: chunks[0][1]]).astype(np.float64)
        for a, b in chunks[1:]:
            total += x[:, a:b] @ kernel.matrix[a:b]
        return total
    wide: Array = x.astype(np.float64) @ kernel.matrix64
    return wide


def float_type(bound: int) -> type[np.float32] | type[np.float64] | type[np.int64]:
    """The fastest type that holds every integer up to ``bound``."""
    return np.float32 if bound < _F32 else np.float64 if bound < _F64 else np.int64
