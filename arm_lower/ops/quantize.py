"""quantize and dequantize: where a real number gets its integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from arm_lower.errors import Unsupported
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import Constant, Lowered, QParams, Real, Value, contiguous, requantized
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType

# torch reports nothing for the operators until the module that defines them is loaded
import torch.ao.quantization.fx._decomposed  # noqa: F401  isort: skip

_DTYPES = {torch.int8: DType.INT8, torch.int16: DType.INT16, torch.int32: DType.INT32}


def _dtype(dtype: torch.dtype) -> DType:
    if dtype not in _DTYPES:
        raise Unsupported(f"quantization to {dtype}; int8, int16 and int32 are allowed")
    return _DTYPES[dtype]


def _qmax(qmax: int, dtype: DType) -> int:
    return min(qmax, dtype.range[1])


@lowers("quantized_decomposed.quantize_per_tensor.default")
def quantize_per_tensor(
    b: Builder, x: Lowered, scale: float, zero_point: int, qmin: int, qmax: int, dtype: torch.dtype
) -> Value:
    t = _dtype(dtype)
    q = QParams(float(scale), int(zero_point), t, max(qmin, t.range[0]), _qmax(qmax, t))
    if isinstance(x, Real):
        return x.quantize(q)
    if isinstance(x, Constant):
        return contiguous(b.const(q.quantize(x.array), q.dtype), q)
    if x.q is None:
        raise Unsupported("quantize of a tensor that is not real")
    return requantized(x, q, b)


@lowers("quantized_decomposed.dequantize_per_tensor.default")
def dequantize_per_tensor(
    b: Builder, x: Lowered, scale: float, zero_point: int, qmin: int, qmax: int, dtype: torch.dtype, *_: Any
) -> Value:
    t = _dtype(dtype)
    if not isinstance(x, Value) or x.tensor.dtype is not t:
        raise Unsupported(f"dequantize of something that is not {t}")
    return Value(
        x.tensor, x.perm, x.shape, QParams(float(scale), int(zero_point), t, max(qmin, t.range[0]), _qmax(qmax, t))
    )


@lowers("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    b: Builder,
    x: Lowered,
    scales: Lowered,
    zero_points: Lowered | None,
    axis: int,
    qmin: int,
    qmax: int,
    dtype: torch.dtype,
    *_: Any,
) -> Value:
    t = _dtype(dtype)
    if not isinstance(x, Value) or not x.is_const or not isinstance(scales, Constant):
        raise Unsupported("per-channel quantization of something that is not constant")
    if isinstance(zero_points, (Value, Constant)):
        zeros = zero_points.numpy() if isinstance(zero_points, Value) else zero_points.array
        if np.any(zeros):
            raise Unsupported("per-channel zero points that are not zero")
    return Value(
        x.tensor,
        x.perm,
        x.shape,
        QParams(scales.array.astype(np.float64), 0, t, max(qmin, t.range[0]), _qmax(qmax, t), axis),
    )
