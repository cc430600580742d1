"""Batch norm that no convolution could take in, and local response normalization."""

from __future__ import annotations

import numpy as np

from arm_lower.errors import Unsupported
from arm_lower.ops.elementwise import depthwise_affine, mul_values
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import Constant, Floats, Lowered, QParams, Real, Value, from_nhwc, nhwc, quant, quantized
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType

import arm_lower.edge.composite  # noqa: F401  isort: skip  (defines arm_lower::local_response_norm)


def constant(x: Lowered | None, default: float, channels: int) -> Floats:
    if x is None:
        return np.full(channels, default)
    if isinstance(x, Constant):
        return x.array.reshape(-1)
    if isinstance(x, Value) and x.is_const:
        return x.real().reshape(-1)
    raise Unsupported("a parameter of the normalization is not constant")


@lowers("aten.batch_norm.default")
def batch_norm(
    b: Builder,
    x: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    mean: Lowered | None,
    var: Lowered | None,
    training: bool,
    momentum: float,
    eps: float,
    _: bool,
) -> Real:
    if training or mean is None or var is None:
        raise Unsupported("batch_norm in training mode", "call model.eval() before the export")
    value = quantized(x)
    c = value.shape[1]
    scale = constant(weight, 1.0, c) / np.sqrt(constant(var, 1.0, c) + eps)
    offset = constant(bias, 0.0, c) - constant(mean, 0.0, c) * scale
    if len(value.shape) == 2:
        return depthwise_affine(b, value, scale, offset)
    return depthwise_affine(b, from_nhwc(nhwc(value, b), len(value.shape), value.q), scale, offset)


@lowers("aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    b: Builder,
    x: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    mean: Lowered,
    var: Lowered,
    momentum: float,
    eps: float,
) -> tuple[Real, None, None]:
    return batch_norm(b, x, weight, bias, mean, var, False, momentum, eps, False), None, None


@lowers("arm_lower.local_response_norm.default")
def local_response_norm(b: Builder, x: Lowered, size: int, alpha: float, beta: float, k: float) -> Real:
    """x * (k + alpha / size * sum of squares)^-beta (docs/formulations.md 4).

    The window sum over channels is a 1x1 convolution with a band matrix, the power a TABLE behind it. The square
    has 16 bits where the denominator moves much, 8 where it hardly does.
    """
    value = quantized(x)
    q = quant(value)
    if len(value.shape) != 4 or q.dtype is not DType.INT8:
        raise Unsupported("local_response_norm of something that is not an int8 feature map")
    t = nhwc(value, b)
    c = t.shape[3]
    largest = max(abs(q.qmin - q.zero_point), abs(q.qmax - q.zero_point)) * q.scalar
    square_max = largest**2
    wide = alpha * square_max / k > 0.1
    square_q = (
        QParams(square_max / 32767, 0, DType.INT16, 0, 32767)
        if wide
        else QParams(square_max / 255, -128, DType.INT8, -128, 127)
    )
    same = Value(t, (0, 1, 2, 3), t.shape, q)
    square = mul_values(b, same, same).quantize(square_q).tensor
    band = np.zeros((c, c))
    for i in range(c):
        # torch pads size // 2 in front and (size - 1) // 2 behind
        band[i, max(i - size // 2, 0) : min(i + (size - 1) // 2 + 1, c)] = 1
    window = min(size, c)
    sum_scale = square_max * window / 255
    weights = b.const(band[:, None, None, :], DType.INT8, f"{b.stem}.weight")
    zeros = b.const(np.zeros(c), DType.INT48 if wide else DType.INT32, f"{b.stem}.bias")
    acc = b.conv2d(square, weights, zeros, pad=(0, 0, 0, 0), input_zp=square_q.zero_point)
    sums = b.rescale(acc, square_q.scalar / sum_scale, DType.INT8, output_zp=-128)
    power = (k + alpha / size * sum_scale * np.arange(256)) ** -beta
    factor_q = QParams(float(power.max()) / 255, -128, DType.INT8, -128, 127)
    factor = b.table(sums, factor_q.quantize(power))
    product = mul_values(b, same, Value(factor, same.perm, same.shape, factor_q))

    def emit(qy: QParams, lo: float, hi: float) -> Value:
        y = product.emit(qy, lo, hi)
        return from_nhwc(y.tensor, 4, qy)

    return Real(value.shape, emit)
