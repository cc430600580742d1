"""How operators without a portable kernel are computed by operators that have one.

A rule is a plain function in torch operators with the signature of the ATen overload; it runs on fake tensors
under the recorder of `arm_lower.edge.decompose`. It may use operators that have rules themselves, and
returns ``NotImplemented`` for operands it does not cover.
"""

# torch.ops is untyped.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeVar

import torch
import torch.ao.quantization.fx._decomposed  # defines torch.ops.quantized_decomposed
from torch import Tensor
from torch._ops import OpOverload

_aten = torch.ops.aten
_Rule = TypeVar("_Rule", bound=Callable[..., Any])
Number = float | int

RULES: dict[OpOverload, Callable[..., Any]] = {}
"""Operator -> its rule."""


def rule(*targets: OpOverload) -> Callable[[_Rule], _Rule]:
    """Registers a function as the rule of ``targets``."""

    def register(function: _Rule) -> _Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return register


# ---------------------------------------------------------------- one variable


@rule(_aten.hardsigmoid.default)
def hardsigmoid(x: Tensor) -> Tensor:
    return _aten.clamp.default(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


@rule(_aten.hardswish.default)
def hardswish(x: Tensor) -> Tensor:
    return x * hardsigmoid(x)


@rule(_aten.silu.default)
def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@rule(_aten.softplus.default)
def softplus(x: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    """Above ``threshold`` torch returns x; the form here, max(x, 0) + log1p(exp(-|x|)), is that within float32."""
    z = x * float(beta)
    y = torch.relu(z) + torch.log1p(torch.exp(-torch.abs(z)))
    y = y * (1.0 / float(beta))
    return y if threshold >= 17 else torch.where(z > threshold, x, y)


@rule(_aten.mish.default)
def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(softplus(x))


@rule(_aten.log_sigmoid.default)
def log_sigmoid(x: Tensor) -> Tensor:
    return -softplus(-x)


@rule(_aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    return log_sigmoid(x), x.new_zeros([0])


@rule(_aten.relu6.default)
def relu6(x: Tensor) -> Tensor:
    return _aten.hardtanh.default(x, 0.0, 6.0)


@rule(_aten.celu.default)
def celu(x: Tensor, alpha: Number = 1.0) -> Tensor:
    return _aten.elu.default(x, alpha, 1.0, 1.0 / alpha)


@rule(_aten.selu.default)
def selu(x: Tensor) -> Tensor:
    """Constants: Klambauer et al. 2017, Self-Normalizing Neural Networks."""
    return _aten.elu.default(x, 1.6732632423543772, 1.0507009873554805, 1.0)


@rule(_aten.prelu.default, _aten._prelu_kernel.default)
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() <= 1 and x.dim() > 1:
        weight = weight.reshape([-1] + [1] * (x.dim() - 2))
    return torch.where(x > 0, x, x * weight)


@rule(_aten.threshold.default)
def threshold(x: Tensor, threshold: Number, value: Number) -> Tensor:
    return torch.where(x > threshold, x, torch.full([], value, dtype=x.dtype))


@rule(_aten.hardshrink.default)
def hardshrink(x: Tensor, lambd: Number = 0.5) -> Tensor:
    return torch.where(torch.abs(x) > lambd, x, torch.zeros([], dtype=x.dtype))


@rule(_aten.softshrink.default)
def softshrink(x: Tensor, lambd: Number = 0.5) -> Tensor:
    return x - _aten.clamp.default(x, -lambd, lambd)


@rule(_aten.exp2.default)
def exp2(x: Tensor) -> Tensor:
    return torch.exp(_float(x) * math.log(2.0))


@rule(_aten.erfc.default, _aten.special_erfc.default)
def erfc(x: Tensor) -> Tensor:
    return 1.0 - torch.erf(x)


@rule(_aten.frac.default)
def frac(x: Tensor) -> Tensor:
    return x - torch.trunc(x)


@rule(_aten.sgn.default)
def sgn(x: Tensor) -> Tensor:
    return torch.sign(x) if not x.is_complex() else NotImplemented


@rule(_aten.ceil.default, _aten.floor.default, _aten.trunc.default)
def whole(x: Tensor) -> Tensor:
    return NotImplemented if x.is_floating_point() else x


@rule(_aten.square.default)
def square(x: Tensor) -> Tensor:
    return x * x


@rule(_aten.round.decimals)
def round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    if decimals == 0:
        return torch.round(x)
    scale = 10.0 ** abs(decimals)
    return torch.round(x * scale) / scale if decimals > 0 else torch.round(x / scale) * scale


@rule(_aten.clamp_min.default)
def clamp_min(x: Tensor, low: Number) -> Tensor:
    return _aten.clamp.default(x, low, None)


@rule(_aten.clamp_max.default)
def clamp_max(x: Tensor, high: Number) -> Tensor:
    return _aten.clamp.default(x, None, high)


@rule(_aten.clamp_min.Tensor)
def clamp_min_tensor(x: Tensor, low: Tensor) -> Tensor:
    return torch.maximum(x, low)


@rule(_aten.clamp_max.Tensor)
def clamp_max_tensor(x: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(x, high)


@rule(_aten.hypot.default)
def hypot(x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(x * x + y * y)


@rule(_aten.isfinite.default)
def isfinite(x: Tensor) -> Tensor:
    return torch.logical_not(torch.logical_or(torch.isnan(x), torch.isinf(x)))


@rule(_aten.signbit.default)
def signbit(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.reciprocal(_float(x)), _float(x)) < 0


@rule(_aten.remainder.Scalar, _aten.remainder.Tensor)
def remainder(x: Tensor, y: Any) -> Tensor:
    if isinstance(y, (int, float)):
        y = _number(y, torch.result_type(x, y))
    return x - torch.floor_divide(x, y) * y


@rule(_aten.add.Scalar)
def add_scalar(x: Tensor, y: Number, alpha: Number = 1) -> Tensor:
    return torch.add(x, _number(y, torch.result_type(x, y)), alpha=alpha)


@rule(_aten.sub.Scalar)
def sub_scalar(x: Tensor, y: Number, alpha: Number = 1) -> Tensor:
    return torch.sub(x, _number(y, torch.result_type(x, y)), alpha=alpha)


def _of_one_dtype(target: OpOverload) -> Callable[..., Tensor]:
    """``target`` of two operands in the dtype that torch computes in, without a factor."""

    def convert(x: Tensor, y: Tensor, **kwargs: Any) -> Tensor:
        dtype, alpha = torch.result_type(x, y), kwargs.pop("alpha", 1)
        a, b = (_cast(v, dtype) if isinstance(v, Tensor) else v for v in (x, y))
        if alpha != 1:
            return target(a, _cast(b * alpha, dtype) if isinstance(b, Tensor) else b * alpha)
        return NotImplemented if a is x and b is y else target(a, b, **kwargs)

    return convert


for _target in (
    _aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor_mode, _aten.floor_divide.default,
    _aten.fmod.Tensor, _aten.maximum.default, _aten.minimum.default, _aten.pow.Tensor_Tensor, _aten.eq.Tensor,
    _aten.ne.Tensor, _aten.lt.Tensor, _aten.le.Tensor, _aten.gt.Tensor, _aten.ge.Tensor, _aten.bitwise_and.Tensor,
    _aten.bitwise_or.Tensor, _aten.bitwise_xor.Tensor,
):  # fmt: skip
    rule(_target)(_of_one_dtype(_target))


@rule(_aten.clamp.default)
def clamp(x: Tensor, low: Number | None = None, high: Number | None = None) -> Tensor:
    """Of uint8: negative limits wrap around; a fraction makes a float of the result."""
    if torch.float32 in (torch.result_type(x, v) for v in (low, high) if v is not None):
        return _aten.clamp.default(_float(x), low, high)
    return _aten.clamp.default(x, *(v if v is None else int(v) % 256 for v in (low, high)))


@rule(_aten.hardtanh.default)
def hardtanh(x: Tensor, low: Number = -1, high: Number = 1) -> Tensor:
    """Of integers, whose limits are rounded to zero."""
    return _aten.clamp.default(x, int(low), int(high))


@rule(_aten.fmod.Scalar)
def fmod_scalar(x: Tensor, y: Number) -> Tensor:
    """Of uint8, where a negative divisor wraps around."""
    return _aten.fmod.Scalar(x, y % 256) if isinstance(y, int) else _aten.fmod.Scalar(_float(x), y)


@rule(_aten.__lshift__.Scalar)
def shift_left(x: Tensor, bits: Number) -> Tensor:
    return _aten.bitwise_left_shift.Tensor_Scalar(x, bits)


@rule(_aten.__rshift__.Scalar)
def shift_right(x: Tensor, bits: Number) -> Tensor:
    return _aten.bitwise_right_shift.Tensor_Scalar(x, bits)


@rule(_aten.bitwise_left_shift.Tensor_Scalar)
def shift_all_left(x: Tensor, bits: Number) -> Tensor:
    """By the width of the type or more: nothing is left."""
    y, distance, width = _shifted(x, bits)
    return _aten.bitwise_left_shift.Tensor_Scalar(y, distance) if distance < width else _nothing(y)


@rule(_aten.bitwise_right_shift.Tensor_Scalar)
def shift_all_right(x: Tensor, bits: Number) -> Tensor:
    """By the width of the type or more: what is left is the sign."""
    y, distance, width = _shifted(x, bits)
    if distance >= width and y.dtype == torch.uint8:
        return _nothing(y)
    return _aten.bitwise_right_shift.Tensor_Scalar(y, min(distance, width - 1))


def _shifted(x: Tensor, bits: Number) -> tuple[Tensor, int, int]:
    """What is shifted, how far (a distance wraps around in the type, a negative one is a large one), its width."""
    dtype = torch.result_type(x, bits)
    width = torch.iinfo(dtype).bits
    return _cast(x, dtype), int(bits) % 2**width, width


def _nothing(x: Tensor) -> Tensor:
    return _aten.bitwise_and.Scalar(x, 0)


@rule(_aten.pow.Tensor_Scalar)
def power(x: Tensor, exponent: Number) -> Tensor:
    """Of integers, by squaring: products wrap around."""
    if exponent < 0 or isinstance(exponent, float) or x.is_floating_point():
        return NotImplemented
    square = _cast(x, torch.result_type(x, exponent))
    result = None
    for bit in f"{int(exponent):b}"[::-1]:
        if bit == "1":
            result = square if result is None else result * square
        square = square * square
    return torch.ones_like(square) if result is None else result


@rule(_aten.rrelu.default)
def rrelu(x: Tensor, lower: Number = 0.125, upper: Number = 1 / 3, training: bool = False) -> Tensor:
    return NotImplemented if training else _aten.leaky_relu.default(x, (lower + upper) / 2)


# ---------------------------------------------------------------- softmax, normalization


@rule(_aten.softmax.int)
def softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return _aten._softmax.default(_cast(x, dtype), dim, False)


@rule(_aten.log_softmax.int)
def log_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return _aten._log_softmax.default(_cast(x, dtype), dim, False)


@rule(_aten._safe_softmax.default)
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax that gives zeros, not NaN, for a row of -inf."""
    x = _cast(x, dtype)
    empty = _aten.amax.default(x, [dim], True) == -math.inf
    return torch.where(empty, torch.zeros([], dtype=x.dtype), _aten._softmax.default(x, dim, False))


@rule(_aten.batch_norm.default)
def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    training: bool, momentum: float, eps: float, cudnn: bool,
) -> Tensor:  # fmt: skip
    if training or mean is None or var is None:
        result: Tensor = _aten._native_batch_norm_legit.no_stats(x, weight, bias, True, momentum, eps)[0]
        return result
    return _aten._native_batch_norm_legit_no_training.default(x, weight, bias, mean, var, momentum, eps)[0]


@rule(_aten.native_batch_norm.default)
def native_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    if training or mean is None or var is None:
        return NotImplemented
    return _aten._native_batch_norm_legit_no_training.default(x, weight, bias, mean, var, momentum, eps)


@rule(_aten.instance_norm.default)
def instance_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    use_input_stats: bool, momentum: float, eps: float, cudnn: bool,
) -> Tensor:  # fmt: skip
    if not use_input_stats:
        return batch_norm(x, weight, bias, mean, var, False, momentum, eps, cudnn)
    return group_norm(x, x.shape[1], weight, bias, eps)


@rule(_aten.group_norm.default)
def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:
    batch, channels = x.shape[0], x.shape[1]
    pixels = math.prod(x.shape[2:])
    return _aten.native_group_norm.default(x, weight, bias, batch, channels, pixels, groups, eps)[0]


@rule(_aten.layer_norm.default)
def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:  # fmt: skip
    return _aten.native_layer_norm.default(x, shape, weight, bias, eps)[0]


@rule(_aten.rms_norm.default)
def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    dims = list(range(-len(shape), 0))
    floor = torch.finfo(x.dtype).eps if eps is None else eps
    y = x * torch.rsqrt(torch.mean(x * x, dims, keepdim=True) + floor)
    return y if weight is None else y * weight


# ---------------------------------------------------------------- convolution, linear


@rule(_aten.linear.default)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _aten.linear.default(x.unsqueeze(0), weight, bias).squeeze(0) if x.dim() == 1 else NotImplemented


@rule(_aten._trilinear.default)
def trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand_a: Sequence[int], expand_b: Sequence[int], expand_c: Sequence[int],
    sum_dims: Sequence[int], unroll: int = 1,
) -> Tensor:  # fmt: skip
    """The product of three tensors, each with dimensions inserted, summed over some."""
    factors = []
    for factor, dims in ((a, expand_a), (b, expand_b), (c, expand_c)):
        for dim in sorted(dims):
            factor = factor.unsqueeze(dim)
        factors.append(factor)
    return (factors[0] * factors[1] * factors[2]).sum(list(sum_dims))


def _conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    rank = weight.dim() - 2
    per_dim = [_full(v, rank) for v in (stride, padding, dilation, output_padding)]
    batched = x if x.dim() == rank + 2 else x.unsqueeze(0)
    stride, padding, dilation, output_padding = per_dim
    if rank > 2:
        split = _conv_transposed_3d if transposed else _conv_3d
        y = split(batched, weight, bias, stride, padding, dilation, output_padding, groups)
    else:
        y = _aten.convolution.default(
            batched, weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )
    return y if batched is x else y.squeeze(0)


@rule(_aten.convolution.default)
def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    if weight.dim() <= 4 and x.dim() == weight.dim():
        return NotImplemented
    return _conv(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@rule(_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default)
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = (1,), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), groups: int = 1,
) -> Tensor:  # fmt: skip
    return _conv(x, weight, bias, stride, padding, dilation, False, (0,), groups)


@rule(_aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding)
def conv_padding(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = (1,), padding: str = "valid",
    dilation: Sequence[int] = (1,), groups: int = 1,
) -> Tensor:  # fmt: skip
    rank = weight.dim() - 2
    if padding == "valid":
        return _conv(x, weight, bias, stride, (0,), dilation, False, (0,), groups)
    totals = [d * (k - 1) for k, d in zip(weight.shape[2:], _full(dilation, rank), strict=True)]
    if any(t % 2 for t in totals):
        x = _aten.constant_pad_nd.default(x, [n for t in reversed(totals) for n in (0, t % 2)], 0.0)
    return _conv(x, weight, bias, stride, [t // 2 for t in totals], dilation, False, (0,), groups)


@rule(_aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input)
def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = (1,), padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,), groups: int = 1, dilation: Sequence[int] = (1,),
) -> Tensor:  # fmt: skip
    return _conv(x, weight, bias, stride, padding, dilation, True, output_padding, groups)


def _conv_3d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """A 3-D convolution as a sum of 2-D ones, one for each tap in depth."""
    if padding[0]:
        x = _aten.constant_pad_nd.default(x, [0, 0, 0, 0, padding[0], padding[0]], 0.0)
    batch, channels, depth, height, width = x.shape
    taps, step = weight.shape[2], dilation[0]
    out_depth = (depth - step * (taps - 1) - 1) // stride[0] + 1
    y = None
    for tap in range(taps):
        start = tap * step
        planes = x[:, :, start : start + (out_depth - 1) * stride[0] + 1 : stride[0]].permute(0, 2, 1, 3, 4)
        planes = planes.reshape(batch * out_depth, channels, height, width)
        term = _aten.convolution.default(
            planes, weight[:, :, tap], bias if y is None else None, stride[1:], padding[1:], dilation[1:],
            False, [0, 0], groups,
        )  # fmt: skip
        y = term if y is None else y + term
    assert y is not None
    return y.reshape(batch, out_depth, *y.shape[1:]).permute(0, 2, 1, 3, 4)


def _conv_transposed_3d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """A transposed 3-D convolution: each depth tap is a 2-D one whose planes land ``stride`` apart."""
    batch, channels, depth, height, width = x.shape
    taps, step = weight.shape[2], dilation[0]
    spread = (depth - 1) * stride[0] + 1
    full = spread + step * (taps - 1)
    planes = x.permute(0, 2, 1, 3, 4).reshape(batch * depth, channels, height, width)
    total = None
    for tap in range(taps):
        term = _aten.convolution.default(
            planes, weight[:, :, tap], None, stride[1:], padding[1:], dilation[1:], True, output_padding[1:], groups
        )
        _, out, high, wide = term.shape
        term = term.reshape(batch, depth, 1, out * high * wide)
        term = _aten.constant_pad_nd.default(term, [0, 0, 0, stride[0] - 1], 0.0)
        term = term.reshape(batch, depth * stride[0], out * high * wide)[:, :spread]
        term = _aten.constant_pad_nd.default(term, [0, 0, tap * step, full - spread - tap * step], 0.0)
        total = term if total is None else total + term
    assert total is not None
    wanted = full - 2 * padding[0] + output_padding[0]
    if padding[0] + wanted > full:
        total = _aten.constant_pad_nd.default(total, [0, 0, 0, padding[0] + wanted - full], 0.0)
    y = total[:, padding[0] : padding[0] + wanted].reshape(batch, wanted, out, high, wide).permute(0, 2, 1, 3, 4)
    return y if bias is None else y + bias.reshape(-1, 1, 1, 1)


# ---------------------------------------------------------------- pooling


@rule(_aten.max_pool2d.default)
def max_pool2d(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Tensor:
    return _aten.max_pool2d_with_indices.default(
        x, _full(kernel, 2), _full(stride or kernel, 2), _full(padding, 2), _full(dilation, 2), ceil
    )[0]


@rule(_aten.max_pool1d_with_indices.default)
def max_pool1d_with_indices(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Tensor, Tensor]:
    values, indices = _aten.max_pool2d_with_indices.default(
        x.unsqueeze(-2), [1, *_full(kernel, 1)], [1, *_full(stride or kernel, 1)], [0, *_full(padding, 1)],
        [1, *_full(dilation, 1)], ceil,
    )  # fmt: skip
    return values.squeeze(-2), indices.squeeze(-2)


@rule(_aten.max_pool1d.default)
def max_pool1d(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Tensor:
    return max_pool1d_with_indices(x, kernel, stride, padding, dilation, ceil)[0]


@rule(_aten.max_pool3d.default)
def max_pool3d(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Tensor:
    """Height and width first, then depth: the maximum is separable."""
    k, s, p, d = (_full(v, 3) for v in (kernel, stride or kernel, padding, dilation))

    def pool(planes: Tensor, axes: slice) -> Tensor:
        return max_pool2d(planes, _pair(k[axes], 1), _pair(s[axes], 1), _pair(p[axes], 0), _pair(d[axes], 1), ceil)

    return _by_planes(x, pool)


@rule(_aten.avg_pool1d.default)
def avg_pool1d(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, count_include_pad: bool = True
) -> Tensor:
    y = _aten.avg_pool2d.default(
        x.unsqueeze(-2), [1, *_full(kernel, 1)], [1, *_full(stride or kernel, 1)], [0, *_full(padding, 1)], ceil,
        count_include_pad,
    )  # fmt: skip
    return y.squeeze(-2)


@rule(_aten.avg_pool3d.default)
def avg_pool3d(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, count_include_pad: bool = True,
    divisor: int | None = None,
) -> Tensor:  # fmt: skip
    """Height and width first, then depth: sums and the counts they are divided by are both products."""
    k, s, p = (_full(v, 3) for v in (kernel, stride or kernel, padding))
    once = None if divisor is None else 1

    def pool(planes: Tensor, axes: slice) -> Tensor:
        return _aten.avg_pool2d.default(
            planes, _pair(k[axes], 1), _pair(s[axes], 1), _pair(p[axes], 0), ceil, count_include_pad, once
        )

    y = _by_planes(x, pool)
    return y if divisor is None else y * (1.0 / divisor)


@rule(_aten.adaptive_avg_pool1d.default)
def adaptive_avg_pool1d(x: Tensor, size: Any) -> Tensor:
    return _aten._adaptive_avg_pool2d.default(x.unsqueeze(-2), [1, *_full(size, 1)]).squeeze(-2)


@rule(_aten.adaptive_avg_pool3d.default, _aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(x: Tensor, size: Any) -> Tensor:
    depth, height, width = _full(size, 3)

    def pool(planes: Tensor, axes: slice) -> Tensor:
        target = [depth, planes.shape[-1]] if axes == _DEPTH else [height, width]
        return _aten._adaptive_avg_pool2d.default(planes, target)

    return _by_planes(x, pool)


@rule(_aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(x: Tensor, size: Any) -> Any:
    target = _full(size, 2)
    if any(n % t for n, t in zip(x.shape[-2:], target, strict=True)):
        return _adaptive_max_uneven(x, target)
    kernel = [n // t for n, t in zip(x.shape[-2:], target, strict=True)]
    return _aten.max_pool2d_with_indices.default(x, kernel, kernel)


def _adaptive_max_uneven(x: Tensor, target: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One pooling for each window: output i covers floor(i n / t) .. ceil((i + 1) n / t)."""
    height, width = x.shape[-2:]
    rows, columns = (
        [(i * n // t, -(-(i + 1) * n // t)) for i in range(t)] for n, t in zip((height, width), target, strict=True)
    )
    values, indices = [], []
    for top, bottom in rows:
        for left, right in columns:
            window = x[..., top:bottom, left:right]
            value, index = _aten.max_pool2d_with_indices.default(window, list(window.shape[-2:]))
            line = torch.div(index, right - left, rounding_mode="floor")
            values.append(value)
            indices.append(line * width + (index - line * (right - left)) + (top * width + left))
    shape = [*x.shape[:-2], *target]
    return tuple(torch.cat([p.squeeze(-1) for p in parts], -1).reshape(shape) for parts in (values, indices))  # type: ignore[return-value]


@rule(_aten.adaptive_max_pool1d.default)
def adaptive_max_pool1d(x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    values, indices = _aten.adaptive_max_pool2d.default(x.unsqueeze(-2), [1, *_full(size, 1)])
    return values.squeeze(-2), indices.squeeze(-2)


_DEPTH, _PLANE = slice(0, 1), slice(1, 3)


def _by_planes(x: Tensor, pool: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Pools a (N, C, D, H, W) or (C, D, H, W) tensor over H and W, then over D, by 2-D pooling."""
    *lead, depth, height, width = x.shape
    count = math.prod(lead)
    y = pool(x.reshape(count, depth, height, width), _PLANE)
    height, width = y.shape[-2:]
    y = pool(y.reshape(count, 1, depth, height * width), _DEPTH)
    return y.reshape(*lead, y.shape[-2], height, width)


def _pair(values: list[int], neutral: int) -> list[int]:
    return values if len(values) == 2 else [values[0], neutral]


# ---------------------------------------------------------------- resize, pad


@rule(_aten.upsample_bilinear2d.default)
def upsample_bilinear2d(
    x: Tensor, size: Sequence[int], align_corners: bool, scale_h: float | None = None, scale_w: float | None = None
) -> Tensor:
    scales = _usable_scales(x, size, (scale_h, scale_w))
    return _aten.upsample_bilinear2d.vec(x, None if scales else size, align_corners, scales)


@rule(_aten.upsample_nearest2d.default)
def upsample_nearest2d(
    x: Tensor, size: Sequence[int], scale_h: float | None = None, scale_w: float | None = None
) -> Tensor:
    scales = _usable_scales(x, size, (scale_h, scale_w))
    return _aten.upsample_nearest2d.vec(x, None if scales else size, scales)


@rule(_aten.upsample_nearest1d.default)
def upsample_nearest1d(x: Tensor, size: Sequence[int], scale: float | None = None) -> Tensor:
    return upsample_nearest2d(x.unsqueeze(-2), [1, *size], None if scale is None else 1.0, scale).squeeze(-2)


@rule(_aten.upsample_nearest1d.vec)
def upsample_nearest1d_vec(x: Tensor, size: Sequence[int] | None, scales: Sequence[float] | None) -> Tensor:
    wide = x.unsqueeze(-2)
    y = _aten.upsample_nearest2d.vec(
        wide, None if size is None else [1, *size], None if scales is None else [1.0, *scales]
    )
    return y.squeeze(-2)


@rule(_aten.upsample_linear1d.default)
def upsample_linear1d(x: Tensor, size: Sequence[int], align_corners: bool, scale: float | None = None) -> Tensor:
    y = upsample_bilinear2d(x.unsqueeze(-2), [1, *size], align_corners, None if scale is None else 1.0, scale)
    return y.squeeze(-2)


@rule(_aten.upsample_linear1d.vec)
def upsample_linear1d_vec(
    x: Tensor, size: Sequence[int] | None, align_corners: bool, scales: Sequence[float] | None
) -> Tensor:
    wide = x.unsqueeze(-2)
    y = _aten.upsample_bilinear2d.vec(
        wide, None if size is None else [1, *size], align_corners, None if scales is None else [1.0, *scales]
    )
    return y.squeeze(-2)


def _usable_scales(x: Tensor, size: Sequence[int], scales: Sequence[float | None]) -> list[float] | None:
    """Explicit scales, if there are any and they lead to ``size``; kernels take either sizes or scales."""
    if any(s is None for s in scales):
        return None
    known = [float(s) for s in scales if s is not None]
    fits = all(math.floor(n * s) == t for n, s, t in zip(x.shape[-2:], known, size, strict=True))
    return known if fits else None


_PADS = {
    ("reflect", 1): _aten.reflection_pad1d.default,
    ("reflect", 2): _aten.reflection_pad2d.default,
    ("reflect", 3): _aten.reflection_pad3d.default,
    ("replicate", 1): _aten.replication_pad1d.default,
    ("replicate", 2): _aten.replication_pad2d.default,
    ("replicate", 3): _aten.replication_pad3d.default,
}


@rule(_aten.constant_pad_nd.default)
def constant_pad(x: Tensor, padding: Sequence[int], value: Number = 0) -> Tensor:
    """Negative padding crops."""
    for i in range(len(padding) // 2):
        dim, before, after = x.dim() - 1 - i, max(-padding[2 * i], 0), max(-padding[2 * i + 1], 0)
        x = _aten.slice.Tensor(x, dim, before, x.shape[dim] - after)
    rest = [max(p, 0) for p in padding]
    return _aten.constant_pad_nd.default(x, rest, value) if any(rest) else x


@rule(_aten.pad.default)
def pad(x: Tensor, padding: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    if mode == "constant":
        return _aten.constant_pad_nd.default(x, padding, 0.0 if value is None else value)
    if mode == "circular":
        return _pad_circular(x, padding)
    target = _PADS.get((mode, len(padding) // 2))
    return NotImplemented if target is None else target(x, padding)


@rule(_aten._pad_circular.default)
def _pad_circular(x: Tensor, padding: Sequence[int]) -> Tensor:
    for i in range(len(padding) // 2):
        dim, (before, after) = x.dim() - 1 - i, padding[2 * i : 2 * i + 2]
        size = x.shape[dim]
        x = x.narrow(dim, max(-before, 0), size - max(-before, 0) - max(-after, 0))
        parts = [x]
        if before > 0:
            parts.insert(0, x.narrow(dim, x.shape[dim] - before, before))
        if after > 0:
            parts.append(x.narrow(dim, 0, after))
        x = torch.cat(parts, dim) if len(parts) > 1 else x
    return x


# ---------------------------------------------------------------- shapes, indices


@rule(_aten.narrow.default, _aten.narrow_copy.default)
def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    start += x.shape[dim] if start < 0 else 0
    return _aten.slice.Tensor(x, dim, start, start + length)


@rule(_aten.unfold.default)
def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    return NotImplemented if x.dim() else x.reshape([1])[:size]


@rule(_aten.roll.default)
def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Without dimensions the elements move through the whole tensor."""
    return NotImplemented if dims else _aten.roll.default(x.reshape(-1), shifts, [0]).reshape(x.shape)


@rule(_aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dtype = reduce(torch.promote_types, [t.dtype for t in tensors])
    if all(t.dtype == dtype for t in tensors):
        return NotImplemented
    return _aten.cat.default([_cast(t, dtype) for t in tensors], dim)


@rule(_aten.channel_shuffle.default, _aten.native_channel_shuffle.default)
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batch, channels, *rest = x.shape
    pixels = math.prod(rest)
    y = x.reshape(batch, groups, channels // groups, pixels).permute(0, 2, 1, 3)
    return y.reshape(x.shape)


@rule(_aten.gather.default)
def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    return NotImplemented if index.dtype == torch.int64 else _aten.gather.default(x, dim, _cast(index, torch.int64))


@rule(_aten.scatter.src)
def scatter_src(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return NotImplemented if index.dtype == torch.int64 else x.scatter(dim, _cast(index, torch.int64), src)


@rule(_aten.scatter.value)
def scatter_value(x: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    return NotImplemented if index.dtype == torch.int64 else x.scatter(dim, _cast(index, torch.int64), value)


@rule(_aten.scatter_add.default)
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return NotImplemented if index.dtype == torch.int64 else x.scatter_add(dim, _cast(index, torch.int64), src)


@rule(_aten.one_hot.default)
def one_hot(x: Tensor, classes: int = -1) -> Tensor:
    if classes < 0:
        return NotImplemented
    return (x.unsqueeze(-1) == torch.arange(classes, dtype=x.dtype)).to(torch.int64)


@rule(_aten.sort.default)
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    if x.dtype == torch.bool:
        values, indices = sort(_cast(x, torch.uint8), dim, descending)
        return _cast(values, torch.bool), indices
    values, indices = _aten.topk.default(x, x.shape[dim] if x.dim() else 1, dim, descending, True)
    return values, indices


@rule(_aten.sort.stable)
def sort_stable(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    return NotImplemented if stable else sort(x, dim, descending)


@rule(_aten.median.dim)
def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of the two middle values, as torch takes it."""
    if not x.dim():
        return x, torch.zeros([], dtype=torch.int64)
    middle = (x.shape[dim] - 1) // 2
    values, indices = (t.narrow(dim, middle, 1) for t in sort(x, dim))
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


@rule(_aten.all.default)
def all_default(x: Tensor) -> Tensor:
    return _truth(torch.logical_not(torch.any(torch.logical_not(x))), x)


@rule(_aten.all.dim)
def all_dim(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return _truth(torch.logical_not(_aten.any.dim(torch.logical_not(x), dim, keepdim)), x)


def _truth(result: Tensor, x: Tensor) -> Tensor:
    """torch's answer about uint8 is uint8."""
    return _cast(result, torch.uint8) if x.dtype == torch.uint8 else result


@rule(_aten.sum.default)
def sum_default(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _aten.sum.dim_IntList(x, list(range(x.dim())), False, dtype=dtype)


@rule(_aten.sum.dim_IntList, _aten.cumsum.default)
def sum_of_one(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of a tensor of rank 0, in the dtype of a sum."""
    total = x.dtype if x.is_floating_point() else torch.int64
    return NotImplemented if x.dim() else _cast(x, dtype or total)


@rule(_aten.std_mean.dim)
def std_mean(x: Tensor, dim: Sequence[int] | None, unbiased: bool = True, keepdim: bool = False) -> Any:
    return _aten.std_mean.correction(x, dim, correction=int(unbiased), keepdim=keepdim)


@rule(_aten.var_mean.correction)
def var_mean(x: Tensor, dim: Sequence[int] | None = None, *, correction: Number | None = None, keepdim: bool = False,
             ) -> tuple[Tensor, Tensor]:  # fmt: skip
    var = _aten.var.correction(x, dim, correction=correction, keepdim=keepdim)
    return var, _aten.mean.dim(x, dim, keepdim)


@rule(_aten.where.ScalarOther, _aten.where.ScalarSelf, _aten.where.Scalar)
def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    dtype = torch.result_type(x, y)
    a, b = (v if isinstance(v, Tensor) else _number(v, dtype) for v in (x, y))
    return torch.where(condition, a, b)


@rule(_aten.where.self)
def where_tensors(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    dtype = torch.result_type(x, y)
    return torch.where(condition, _cast(x, dtype), _cast(y, dtype)) if x.dtype != y.dtype else NotImplemented


@rule(_aten.masked_fill.Tensor)
def masked_fill(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    return torch.where(mask, _cast(value, x.dtype), x)


@rule(torch.ops.quantized_decomposed.quantize_per_channel.default)
def quantize_per_channel(
    x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    """The kernel wants float64 scales."""
    if scales.dtype == torch.float64:
        return NotImplemented
    return torch.ops.quantized_decomposed.quantize_per_channel.default(
        x, _cast(scales, torch.float64), zero_points, axis, low, high, dtype
    )


# ---------------------------------------------------------------- attention


@rule(_aten.scaled_dot_product_attention.default)
def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(q k^T scale + mask) v; a row that the mask blanks out gives zeros, as in torch."""
    if dropout:
        return NotImplemented
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = torch.matmul(q * factor, k.transpose(-2, -1))
    if is_causal:
        causal = torch.ones([q.shape[-2], k.shape[-2]], dtype=torch.bool).tril()
        scores = torch.where(causal, scores, torch.full([], -math.inf, dtype=scores.dtype))
    if mask is None:
        return torch.matmul(softmax(scores, -1), v)
    if mask.dtype == torch.bool:
        scores = torch.where(mask, scores, torch.full([], -math.inf, dtype=scores.dtype))
    else:
        scores = scores + mask
    return torch.matmul(safe_softmax(scores, -1), v)


# ---------------------------------------------------------------- recurrent networks

_Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


@rule(_aten.lstm.input)
def lstm(
    x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    projected = hx[0].shape[-1] != hx[1].shape[-1]

    def cell(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, _Step]:
        w_ih, w_hh, b_ih, b_hh = (*weights[:4],) if has_biases else (*weights[:2], None, None)
        w_out = weights[-1] if projected else None

        def step(gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            hidden, carry = state
            i, f, g, o = (gates + _aten.linear.default(hidden, w_hh, b_hh)).chunk(4, -1)
            carry = torch.sigmoid(f) * carry + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(carry)
            return hidden if w_out is None else _aten.linear.default(hidden, w_out, None), carry

        assert w_ih is not None
        return w_ih, b_ih, step

    return _recurrent(x, hx, params, num_layers, bidirectional, batch_first, cell)


@rule(_aten.gru.input)
def gru(
    x: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    def cell(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, _Step]:
        w_ih, w_hh, b_ih, b_hh = (*weights,) if has_biases else (*weights, None, None)

        def step(gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            (hidden,) = state
            xr, xz, xn = gates.chunk(3, -1)
            hr, hz, hn = _aten.linear.default(hidden, w_hh, b_hh).chunk(3, -1)
            update = torch.sigmoid(xz + hz)
            new = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
            return (new + update * (hidden - new),)

        assert w_ih is not None
        return w_ih, b_ih, step

    return _recurrent(x, (hx,), params, num_layers, bidirectional, batch_first, cell)


@rule(_aten.rnn_tanh.input)
def rnn_tanh(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return _elman(torch.tanh, x, *args)


@rule(_aten.rnn_relu.input)
def rnn_relu(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return _elman(torch.relu, x, *args)


def _elman(
    activation: Callable[[Tensor], Tensor], x: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    def cell(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, _Step]:
        w_ih, w_hh, b_ih, b_hh = (*weights,) if has_biases else (*weights, None, None)

        def step(gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (activation(gates + _aten.linear.default(state[0], w_hh, b_hh)),)

        assert w_ih is not None
        return w_ih, b_ih, step

    return _recurrent(x, (hx,), params, num_layers, bidirectional, batch_first, cell)


def _recurrent(
    x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], num_layers: int, bidirectional: bool,
    batch_first: bool, cell: Callable[[Sequence[Tensor]], tuple[Tensor, Tensor | None, _Step]],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Output sequence and final states of a stacked recurrent network.

    The input projection of all steps is one linear operator; ``cell`` gives its weight, its bias and the step.
    """
    if batch_first:
        x = x.transpose(0, 1)
    directions = 2 if bidirectional else 1
    per_cell = len(params) // (num_layers * directions)
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            w_ih, b_ih, step = cell(params[index * per_cell : (index + 1) * per_cell])
            gates = _aten.linear.default(x, w_ih, b_ih)
            state = tuple(s.select(0, index) for s in states)
            steps: list[Tensor] = []
            order = range(x.shape[0])
            for t in reversed(order) if direction else order:
                state = step(gates.select(0, t), state)
                steps.append(state[0])
            outputs.append(torch.stack(steps[::-1] if direction else steps, 0))
            finals.append(state)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    result = x.transpose(0, 1) if batch_first else x
    return (result, *(torch.stack(parts, 0) for parts in zip(*finals, strict=True)))


# ---------------------------------------------------------------- helpers


def _cast(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x if dtype is None or x.dtype == dtype else _aten._to_copy.default(x, dtype=dtype)


def _float(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else _cast(x, torch.get_default_dtype())


def _number(value: Number, dtype: torch.dtype) -> Tensor:
    """A number as an operand; integers wrap around as in torch's operators."""
    if not dtype.is_floating_point and dtype != torch.bool:
        lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        value = (int(value) - lowest) % (highest - lowest + 1) + lowest
    return torch.full([], value, dtype=dtype)


def _full(value: Any, rank: int) -> list[int]:
    """A per-dimension list from a number or a list of one item."""
    values = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return values * rank if len(values) == 1 else values
