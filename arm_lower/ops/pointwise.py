"""Functions of one variable: a chain of them becomes one TABLE; the relu family becomes a clamp."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch

from arm_lower.errors import Unsupported
from arm_lower.ops.registry import lowers
from arm_lower.ops.value import Constant, Floats, Fn, Lowered, Real, Value, linear_real, pointwise, quantized
from arm_lower.tosa.builder import Builder

Number = float | int | bool


def apply(b: Builder, x: Lowered, fn: Fn) -> Real | Constant:
    """fn(x), joined to the functions that already wait on ``x``."""
    if isinstance(x, Constant):
        return Constant(fn(x.array))
    if isinstance(x, Real):
        if x.base is None or x.fn is None:
            raise Unsupported(
                "its input is not quantized: no quantize node lies between two operators",
                "annotate both operators, or fuse them into one pattern of the quantizer",
            )
        inner, low, high = x.fn, x.low, x.high
        return pointwise(x.base, lambda r: fn(np.clip(inner(r), low, high)), b)
    return pointwise(quantized(x), fn, b)


def clamp(b: Builder, x: Lowered, low: float, high: float) -> Real | Constant:
    if isinstance(x, Constant):
        return Constant(np.clip(x.array, low, high))
    if isinstance(x, Real):
        return x.clamped(low, high)
    return linear_real(quantized(x), b, low, high)


@lowers("aten.relu.default")
def relu(b: Builder, x: Lowered) -> Real | Constant:
    return clamp(b, x, 0.0, math.inf)


@lowers("aten.relu6.default")
def relu6(b: Builder, x: Lowered) -> Real | Constant:
    return clamp(b, x, 0.0, 6.0)


@lowers("aten.hardtanh.default", "aten.clamp.default")
def clamp_default(b: Builder, x: Lowered, low: Number | None, high: Number | None) -> Real | Constant:
    return clamp(b, x, -math.inf if low is None else float(low), math.inf if high is None else float(high))


@lowers("aten.clamp_min.default")
def clamp_min(b: Builder, x: Lowered, low: Number) -> Real | Constant:
    return clamp(b, x, float(low), math.inf)


@lowers("aten.clamp_max.default")
def clamp_max(b: Builder, x: Lowered, high: Number) -> Real | Constant:
    return clamp(b, x, -math.inf, float(high))


def torch_fn(op: torch._ops.OpOverload, *args: object, **kwargs: object) -> Fn:
    """A torch operator as a function of float64 arrays: the table then is PyTorch's own result."""

    def fn(x: Floats) -> Floats:
        return np.asarray(op(torch.from_numpy(np.ascontiguousarray(x)), *args, **kwargs).numpy(), np.float64)

    return fn


def _register(name: str) -> None:
    namespace, op, overload = name.split(".")
    target = getattr(getattr(getattr(torch.ops, namespace), op), overload)
    keywords = [a.name for a in target._schema.arguments if a.kwarg_only]

    def lower(b: Builder, x: Lowered, *args: object) -> Real | Constant:
        if any(isinstance(a, (Value, Real, Constant)) for a in args):
            raise Unsupported("more than one tensor operand")
        positional = args[: len(args) - len(keywords)]
        return apply(b, x, torch_fn(target, *positional, **dict(zip(keywords, args[len(positional) :]))))

    lowers(name)(lower)


# Every ATen function of one tensor and numbers: adding one is adding its name.
for _name in """
    sigmoid.default tanh.default hardswish.default hardsigmoid.default silu.default gelu.default elu.default celu.default
    selu.default leaky_relu.default mish.default softplus.default hardshrink.default softshrink.default threshold.default
    log_sigmoid.default logit.default
    exp.default exp2.default expm1.default log.default log2.default log10.default log1p.default sqrt.default rsqrt.default reciprocal.default
    square.default abs.default neg.default sign.default floor.default ceil.default round.default trunc.default frac.default
    sin.default cos.default tan.default asin.default acos.default atan.default sinh.default cosh.default asinh.default
    acosh.default atanh.default erf.default erfc.default erfinv.default
    pow.Tensor_Scalar remainder.Scalar fmod.Scalar floor_divide.Scalar
""".split():
    _namespace, _, _rest = f"aten.{_name}".partition(".")
    if (
        hasattr(torch.ops.aten, _name.split(".")[0])
        and _name.split(".")[1] in getattr(torch.ops.aten, _name.split(".")[0]).overloads()
    ):
        _register(f"aten.{_name}")


@lowers("aten.pow.Scalar")
def pow_scalar(b: Builder, base: Number, x: Lowered) -> Real | Constant:
    return apply(b, x, lambda r: np.power(float(base), r))


@lowers("aten.rsub.Scalar")
def rsub_scalar(b: Builder, x: Lowered, other: Number, alpha: Number) -> Real | Constant:
    return apply(b, x, lambda r: float(other) - float(alpha) * r)


def affine(b: Builder, x: Lowered, scale: float, offset: float) -> Lowered:
    """scale * x + offset. A positive factor alone is free: the integers stay, their scale changes."""
    if (
        isinstance(x, Value)
        and x.q is not None
        and x.q.axis is None
        and offset == 0
        and scale > 0
        and math.isfinite(scale)
    ):
        from dataclasses import replace

        return replace(x, q=replace(x.q, scale=x.q.scalar * scale))
    return apply(b, x, partial(_affine, scale, offset))


def _affine(scale: float, offset: float, r: Floats) -> Floats:
    return scale * r + offset
