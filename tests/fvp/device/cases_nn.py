"""Calls of the neural-network, reduction and quantize kernels.

`CASES` has results to compare: integers exactly; floats against torch in float64, within 2 ulp of the sum of the
absolute values (``scale``) unless a case says otherwise. `REFUSED` has calls that must end in a status.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # noqa: F401  registers quantized_decomposed
from one_op import EPS, OneOp
from torch import Tensor

from tosa_ref import kernels

B, U8, I8, I16, I32, I64, F32, F64 = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64,
)  # fmt: skip
INTEGERS = (U8, I8, I16, I32, I64)
QUANTIZED = {U8: 0, I8: 1, I16: 2, I32: 3}
LAST = torch.channels_last
NAN, INF = math.nan, math.inf

FUNCTIONAL = {
    "mean.out": "mean.dim", "mean.dtype_out": "mean.default", "sum.IntList_out": "sum.dim_IntList",
    "any.all_out": "any.default", "any.dims_out": "any.dims", "any.out": "any.dim", "max.dim_max": "max.dim",
    "max.unary_out": "max.default", "min.dim_min": "min.dim", "min.unary_out": "min.default",
    "prod.out": "prod.default", "prod.int_out": "prod.dim_int", "var.out": "var.dim",
    "var.correction_out": "var.correction", "var_mean.correction_out": "var_mean.correction",
    "_native_batch_norm_legit.no_stats_out": "_native_batch_norm_legit.no_stats",
    "upsample_bilinear2d.vec_out": "upsample_bilinear2d.vec", "upsample_nearest2d.vec_out": "upsample_nearest2d.vec",
}  # fmt: skip
"""Out-variant -> the operator that it belongs to, where that is not ``default``."""


def operator(name: str) -> Any:
    base, _, overload = FUNCTIONAL.get(name, name.replace(".out", ".default")).partition(".")
    return getattr(getattr(torch.ops.aten, base), overload)


def functional(name: str, args: Sequence[Any]) -> list[Tensor]:
    op = operator(name)
    schema = [a for a in kernels.overload(f"aten::{name}")._schema.arguments if not a.is_out]
    values = {s.name: kernels._dtype(a) if "ScalarType" in str(s.real_type) else a for s, a in zip(schema, args)}
    known = {a.name for a in op._schema.arguments}
    keywords = {s.name: values[s.name] for s in schema if s.kwarg_only and s.name in known}
    result = op(*(values[s.name] for s in schema if not s.kwarg_only), **keywords)
    return list(result) if isinstance(result, tuple) else [result]


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return change(value)
    return value


def case(name: str, *args: Any, scale: float | Tensor | None = None, ulps: float = 2.0, layout: Any = None) -> OneOp:
    """Results of torch in float64; ``scale`` None is the operator's result for absolute values."""
    wide = [changed(a, lambda t: t.double()) for a in args]
    wanted = [w.float() if w.dtype == F64 else w for w in functional(name, wide)]
    if scale is None:
        scale = functional(name, [changed(a, torch.abs) for a in wide])[0]
    if layout is not None:
        wanted = [w.to(memory_format=layout) if w.dim() == 4 else w for w in wanted]
    return OneOp(f"aten::{name}", args, tuple(w.dtype for w in wanted), wanted=tuple(wanted), scale=scale, ulps=ulps)


def exact(name: str, *args: Any, layout: Any = None, outs: Sequence[torch.dtype] | None = None) -> OneOp:
    """Results of torch itself, which must be met exactly."""
    wanted = functional(name, args)
    if outs is not None:
        wanted = [w.to(o) for w, o in zip(wanted, outs)]
    if layout is not None:
        wanted = [w.to(memory_format=layout) if w.dim() == 4 else w for w in wanted]
    return OneOp(f"aten::{name}", args, tuple(w.dtype for w in wanted), wanted=tuple(wanted), ulps=0)


def normal(*shape: int, seed: int = 0, mean: float = 0.0, std: float = 1.0, layout: Any = None) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std + mean
    return x if layout is None else x.contiguous(memory_format=layout)


def whole(dtype: torch.dtype, *shape: int, seed: int = 0, layout: Any = None) -> Tensor:
    """Integers over the whole range of the type."""
    g = torch.Generator().manual_seed(seed)
    if dtype == B:
        x = torch.rand(shape, generator=g) < 0.4
    else:
        info = torch.iinfo(dtype)
        x = torch.randint(info.min, info.max, shape, generator=g, dtype=I64).to(dtype)
    return x if layout is None else x.contiguous(memory_format=layout)


# ------------------------------------------------------------ quantize and dequantize


def quantized(name: str, *args: Any, outs: Sequence[torch.dtype], layout: Any = None) -> OneOp:
    functional_name = {"out": "default", "Tensor_out": "tensor"}
    base, _, variant = name.partition(".")
    op = kernels.overload(f"quantized_decomposed::{base}.{functional_name[variant]}")
    schema = op._schema.arguments
    values = {s.name: kernels._dtype(a) if "ScalarType" in str(s.real_type) else a for s, a in zip(schema, args)}
    keywords = {s.name: values[s.name] for s in schema if s.kwarg_only}
    result = op(*(values[s.name] for s in schema if not s.kwarg_only), **keywords)
    wanted = result if isinstance(result, tuple) else (result,)
    if layout is not None:
        wanted = tuple(w.contiguous(memory_format=layout) for w in wanted)
    return OneOp(f"quantized_decomposed::{name}", args, tuple(outs), wanted=wanted, ulps=0)


def numbers(scale: float, n: int, seed: int = 0) -> Tensor:
    """Ties, the ends of float32, and everything between."""
    g = torch.Generator().manual_seed(seed)
    ties = (torch.randint(-300, 300, (n,), generator=g) + 0.5) * scale
    bits = torch.randint(-(2**31), 2**31, (n,), generator=g, dtype=I64).to(I32).view(F32)
    special = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e38, -1e38, 1e-40])
    return torch.cat([ties, bits, torch.randn(n, generator=g) * 90 * scale, special])


def quantize_per_tensor() -> Iterator[OneOp]:
    for (dtype, number), scale in itertools.product(QUANTIZED.items(), (0.5, 0.1, 0.0037, 1 / 3, 12.7, -0.25)):
        info = torch.iinfo(dtype)
        low, high = (info.min, info.max) if dtype != I32 else (-(2**31) + 128, 2**31 - 128)
        for seed, zero in enumerate((0, 3, info.max // 2)):
            x = numbers(scale, 200, seed)
            if dtype == I32:
                x = x[~x.isnan()]  # torch leaves it to the processor
            yield quantized("quantize_per_tensor.out", x, scale, zero, low, high, number, outs=(dtype,))
            q = whole(dtype, 300, seed=seed)
            yield quantized("dequantize_per_tensor.out", q, scale, zero, low, high, number, None, outs=(F32,))
        yield quantized("quantize_per_tensor.out", x, scale, 1, max(low, -5), 17, number, outs=(dtype,))
    for dtype, number in QUANTIZED.items():
        info = torch.iinfo(dtype)
        for kind in (F32, F64):
            scale_t, zero_t = torch.tensor([0.1], dtype=kind), torch.tensor(5, dtype=I64 if kind == F32 else I32)
            args = (info.min // 2, info.max // 2, number)
            yield quantized("quantize_per_tensor.Tensor_out", normal(99, std=4), scale_t, zero_t, *args, outs=(dtype,))
            yield quantized("dequantize_per_tensor.Tensor_out", whole(dtype, 99), scale_t, zero_t, *args, 6,
                            outs=(F32,))
        x = normal(2, 3, 4, 5, std=3)
        for a, b in itertools.product((torch.contiguous_format, LAST), repeat=2):
            params = (0.05, 1, 0 if dtype == U8 else -100, 100, number)
            yield quantized("quantize_per_tensor.out", x.contiguous(memory_format=a), *params, outs=(dtype,), layout=b)
            yield quantized("dequantize_per_tensor.out", whole(dtype, 2, 3, 4, 5, layout=a), *params, None, outs=(F32,),
                            layout=b)
    for shape in ((), (0,), (2, 0, 3), (1,), (1, 1, 1, 1)):
        yield quantized("quantize_per_tensor.out", normal(*shape), 0.05, 1, -128, 127, 1, outs=(I8,))
        yield quantized("dequantize_per_tensor.out", whole(I8, *shape), 0.05, 1, -128, 127, 1, None, outs=(F32,))


def quantize_many() -> Iterator[OneOp]:
    for (dtype, number), kind, axis in itertools.product(QUANTIZED.items(), (F32, F64), (0, 1, 3, -1)):
        info = torch.iinfo(dtype)
        low, high = (info.min, info.max) if dtype != I32 else (-(2**31) + 128, 2**31 - 128)
        for layout in (torch.contiguous_format, LAST):
            x = normal(3, 4, 2, 5, std=20, layout=layout)
            q = whole(dtype, 3, 4, 2, 5, layout=layout)
            n = x.shape[axis]
            scales = (torch.rand(n, generator=torch.Generator().manual_seed(axis)) + 0.05).to(kind)
            zeros = torch.arange(n, dtype=I64 if layout == LAST else I32)
            yield quantized("quantize_per_channel.out", x, scales, zeros, axis, low, high, number, outs=(dtype,),
                            layout=layout)
            yield quantized("dequantize_per_channel.out", q, scales, zeros, axis, low, high, number, None, outs=(F32,),
                            layout=layout)
        yield quantized("dequantize_per_channel.out", q, scales, None, axis, low, high, number, 6, outs=(F32,))
    for (dtype, number), kind, zero in itertools.product(QUANTIZED.items(), (F32, F64), (I32, I64)):
        info = torch.iinfo(dtype)
        low, high = (info.min, info.max) if dtype != I32 else (-(2**31) + 128, 2**31 - 128)
        for shape in ((7,), (3, 50), (2, 3, 8)):
            rows = (*shape[:-1], 1)
            scales = (torch.rand(rows, generator=torch.Generator().manual_seed(1)) + 0.05).to(kind)
            zeros = torch.arange(math.prod(rows), dtype=zero).reshape(rows)
            x = torch.cat([normal(*rows, std=3), (normal(*shape, std=30).round() + 0.5) * scales.float()], -1)
            yield quantized("quantize_per_token.out", x, scales, zeros, low, high, number, outs=(dtype,))
            yield quantized("dequantize_per_token.out", whole(dtype, *shape), scales, zeros, low, high, number, 6,
                            outs=(F32,))
    ends = torch.tensor([[torch.iinfo(I64).min], [torch.iinfo(I64).max]])  # less these, integers wrap around
    yield quantized("dequantize_per_token.out", whole(I8, 2, 4), torch.full((2, 1), 0.5), ends, -128, 127, 1, 6,
                    outs=(F32,))


def choose_qparams() -> Iterator[OneOp]:
    for seed, (low, high, number) in enumerate(((-128, 127, 1), (0, 255, 0), (-127, 127, 1), (-32768, 32767, 2))):
        for mean in (0.0, 5.0, -5.0, 1e-30):
            x = normal(3, 40, seed=seed, mean=mean)
            yield quantized("choose_qparams.Tensor_out", x, low, high, 1e-5, number, outs=(F64, I64))
    for x in (torch.zeros(4), torch.tensor([3.0]), normal(2, 3, 4, 5, layout=LAST)):
        yield quantized("choose_qparams.Tensor_out", x, -128, 127, 2.0**-12, 1, outs=(F64, I64))
    for shape in ((5,), (3, 7), (2, 3, 9), (1, 1)):
        for mean in (0.0, 3.0, -3.0, 1e-20):
            x = normal(*shape, mean=mean)
            yield quantized("choose_qparams_per_token_asymmetric.out", x, 1, outs=(F64, I64))
    yield quantized("choose_qparams_per_token_asymmetric.out", torch.zeros(2, 3), 1, outs=(F64, I64))


def quantized_add() -> Iterator[OneOp]:
    """Not in torch; by its parts."""
    q = torch.ops.quantized_decomposed
    for dtype in (U8, I8, I16):
        info = torch.iinfo(dtype)
        for a_layout, b_layout in itertools.product((torch.contiguous_format, LAST), repeat=2):
            a, b = whole(dtype, 2, 3, 4, 5, layout=a_layout), whole(dtype, 2, 3, 4, 5, seed=1, layout=b_layout)
            pa, pb = (0.11, 3, info.min, info.max), (0.07, 1, info.min, info.max)
            out = (0.2, 9, info.min + 5, info.max - 5)
            total = q.dequantize_per_tensor(a, *pa, dtype) + q.dequantize_per_tensor(b, *pb, dtype)
            yield OneOp("quantized_decomposed::add.out", (a, *pa, b, *pb, *out), (dtype,),
                        wanted=(q.quantize_per_tensor(total, *out, dtype).contiguous(memory_format=a_layout),))


# ------------------------------------------------------------ matrix products

MM_SHAPES = ((1, 1, 1), (3, 4, 5), (1, 300, 7), (7, 1, 40), (2, 65, 33), (4, 0, 3), (0, 3, 4), (3, 4, 0), (5, 257, 70))


def products() -> Iterator[OneOp]:
    for m, k, n in MM_SHAPES:
        a, b = normal(m, k), normal(k, n, seed=1)
        yield case("mm.out", a, b)
        yield case("mm.out", a + 5, b + 5)
        yield case("bmm.out", normal(3, m, k), normal(3, k, n, seed=1))
        for c in (normal(m, n), normal(n), normal(1, n), normal(m, 1), torch.tensor(2.5)):
            yield case("addmm.out", c, a, b, 1, 1)
        yield case("addmm.out", normal(m, n), a, b, 0.5, -2.0, scale=3 * (a.abs() @ b.abs()) + 3)
        yield case("linear.out", a, normal(n, k, seed=1), None)
        yield case("linear.out", normal(2, 3, m, k), normal(n, k, seed=1), normal(n, seed=2))
        for dtype in INTEGERS:
            x, y = whole(dtype, m, k), whole(dtype, k, n, seed=1)
            yield exact("mm.out", x, y)
            yield exact("bmm.out", torch.stack([x, x]), torch.stack([y, y]))
            if k:
                yield exact("addmm.out", whole(dtype, n), x, y, 127, -128)
                yield exact("linear.out", x, whole(dtype, n, k), whole(dtype, n, seed=3))
    yield case("linear.out", normal(5), normal(3, 5), normal(3))
    yield case("linear.out", normal(2, 3, 4, 5, layout=LAST), normal(6, 5), normal(6))
    yield case("linear.out", normal(2, 3, 4, 5), normal(6, 5), None, layout=LAST)
    yield case("addmm.out", torch.full((2, 3), NAN), normal(2, 4), normal(4, 3), 0, 1, scale=9)
    yield case("mm.out", torch.tensor([[INF, 1.0]]), torch.tensor([[1.0, 0.0, NAN], [2.0, 3.0, 4.0]]), scale=0)


def mixed_products() -> Iterator[OneOp]:
    """Not in torch. ``mixed_linear`` has a scale for each row of the weight, or for each group of neighbours in it."""
    for m, k, n in ((3, 8, 5), (1, 33, 2), (2, 0, 3), (0, 4, 3)):
        x, w = normal(m, k), whole(I8, n, k)
        scales = torch.rand(n, generator=torch.Generator().manual_seed(1)) + 0.1
        for groups in (0, 1, 2, 3) if k else (0,):
            s = torch.stack([scales + g for g in range(groups)], 1) if groups else scales
            spread = s.repeat_interleave(-(-k // groups), 1)[:, :k] if groups else s[:, None]
            yield mixed("mixed_linear", x, w, s, None, None, weight=(w.double() * spread).T)
        yield mixed("mixed_mm", x, w.T.contiguous(), normal(k), None, weight=w.T.double() * normal(k)[:, None])
    yield mixed("mixed_linear", x, w, scales, None, 6, weight=(w.double() * scales[:, None]).T)


def mixed(name: str, x: Tensor, *args: Any, weight: Tensor) -> OneOp:
    return OneOp(f"quantized_decomposed::{name}.out", (x, *args), (F32,), wanted=((x.double() @ weight).float(),),
                 scale=x.double().abs() @ weight.abs())


# ------------------------------------------------------------ convolution


def conv(x: Tensor, w: Tensor, bias: bool, stride: Sequence[int] = (1,), padding: Sequence[int] = (0,),
         dilation: Sequence[int] = (1,), transposed: bool = False, extra: Sequence[int] = (0,), groups: int = 1,
         layout: Any = None) -> OneOp:  # fmt: skip
    channels = w.shape[1] * groups if transposed else w.shape[0]
    b = normal(channels, seed=9) if bias else None
    return case("convolution.out", x, w, b, list(stride), list(padding), list(dilation), transposed, list(extra),
                groups, layout=layout)  # fmt: skip


def convolutions() -> Iterator[OneOp]:
    both = (torch.contiguous_format, LAST)
    for a, b, c in itertools.product(both, repeat=3):
        x, w = normal(2, 6, 7, 8, layout=a), normal(4, 6, 3, 2, seed=1, layout=b)
        yield conv(x, w, True, (2, 1), (1, 1), layout=c)
        yield conv(x, normal(6, 4, 3, 2, seed=1, layout=b), True, (2, 3), (1, 0), (1, 2), True, (1, 1), layout=c)
    x = normal(1, 8, 9, 10)
    options = itertools.product(((1, 1), (2, 3)), ((0, 0), (2, 1)), ((1, 1), (3, 2)), (1, 2, 4), (False, True))
    for stride, padding, dilation, groups, transposed in options:
        w = normal(8, 3, 3, 2, seed=1) if transposed else normal(12, 8 // groups, 3, 2, seed=1)
        yield conv(x, w, groups == 2, stride, padding, dilation, transposed, groups=groups)
    for layout in both:
        x = normal(1, 8, 5, 5, layout=layout)
        yield conv(x, normal(8, 1, 3, 3), True, padding=(1, 1), groups=8, layout=layout)  # depthwise
        yield conv(x, normal(16, 1, 3, 3), False, (2, 2), (1, 1), groups=8, layout=layout)
        yield conv(x, normal(4, 8, 1, 1), True, layout=layout)  # pointwise
        yield conv(x, normal(8, 2, 2, 2), True, (2, 2), (0, 0), (1, 1), True, groups=4, layout=layout)
    yield conv(normal(1, 3, 4, 4), normal(2, 3, 4, 4), True)
    yield conv(normal(1, 3, 4, 4), normal(2, 3, 6, 6), True, padding=(1, 1))
    yield conv(normal(1, 300, 2, 2), normal(3, 300, 1, 2), True)
    yield conv(normal(1, 1, 2, 70), normal(1, 1, 1, 65), True)
    yield conv(normal(1, 1, 2, 2), normal(1, 1, 1, 1), True, (3, 3), (5, 5), (7, 7))
    yield conv(normal(0, 3, 4, 4), normal(2, 3, 2, 2), True)
    yield conv(normal(1, 3, 4, 4), normal(3, 2, 2, 3), False, (2, 2), (1, 1), (2, 3), True, (1, 2))
    one = ((3, 1, 1, 1, 1), (5, 2, 0, 3, 2), (1, 4, 0, 1, 4), (2, 1, 2, 1, 1))
    for kernel, stride, padding, dilation, groups in one:
        x = normal(2, 4, 20)
        yield conv(x, normal(8, 4 // groups, kernel), True, (stride,), (padding,), (dilation,), groups=groups)
        if padding < kernel:
            yield conv(x, normal(4, 3, kernel), True, (stride,), (padding,), (dilation,), True, (stride - 1,), groups)


# ------------------------------------------------------------ pooling


def pools() -> Iterator[OneOp]:
    shapes = ((2, 3, 9, 10), (3, 9, 10), (1, 1, 5, 5))
    options = (
        ([2, 2], [], [0, 0], False), ([3, 2], [1, 2], [1, 1], False), ([3], [2], [1], True),
        ([3, 3], [2, 3], [1, 0], True), ([5, 5], [3, 3], [2, 2], True), ([1, 1], [2, 2], [0, 0], False),
        ([5, 4], [5, 4], [0, 0], False),
    )  # fmt: skip
    turn = itertools.cycle(INTEGERS)
    for shape, (kernel, stride, padding, ceil) in itertools.product(shapes, options):
        x = normal(*shape)
        for include, divisor in ((True, None), (False, None), (False, 7), (True, -3)):
            yield case("avg_pool2d.out", x, kernel, stride, padding, ceil, include, divisor)
        yield exact("avg_pool2d.out", whole(I64, *shape) // 64, kernel, stride, padding, ceil, False, None)
        for dilation in ([1, 1], [2]):
            if dilation == [2] and min(shape[-2:]) < 2 * kernel[0]:
                continue
            yield exact("max_pool2d_with_indices.out", x, kernel, stride, padding, dilation, ceil)
            y = whole(next(turn), *shape)
            yield exact("max_pool2d_with_indices.out", y, kernel, stride, padding, dilation, ceil)
        if len(shape) == 4:
            for a, b in itertools.product((torch.contiguous_format, LAST), repeat=2):
                y = x.contiguous(memory_format=a)
                yield exact("max_pool2d_with_indices.out", y, kernel, stride, padding, [1], ceil, layout=b)
                yield case("avg_pool2d.out", y, kernel, stride, padding, ceil, False, None, layout=b)
        for size in ([1, 1], [2, 3], [9, 10], [4, 11]):
            yield case("_adaptive_avg_pool2d.out", x, size)
    for a in (torch.contiguous_format, LAST):
        yield case("_adaptive_avg_pool2d.out", normal(2, 3, 7, 5, mean=3, layout=a), [3, 2], layout=LAST)
    x = normal(1, 2, 6, 6)
    x[0, 0, 2, 3], x[0, 0, 3, 3], x[0, 1] = NAN, NAN, -INF
    yield exact("max_pool2d_with_indices.out", x, [3, 3], [1, 1], [1, 1], [1, 1], False)
    yield case("avg_pool2d.out", x, [3, 3], [1, 1], [1, 1], False, True, None, scale=9)
    yield case("_adaptive_avg_pool2d.out", normal(1, 1, 100, 90, mean=1), [1, 1])


# ------------------------------------------------------------ softmax and normalization


def softmaxes() -> Iterator[OneOp]:
    for shape, std in itertools.product(((1,), (7,), (3, 10), (2, 1000), (2, 3, 4, 5), ()), (0.1, 1.0, 30.0)):
        x = normal(*shape, std=std)
        for dim in range(-1, max(len(shape), 1)):
            away = (x.double() - x.double().amax(dim, True)).abs()
            # exp of a number n eps away differs by n eps; its argument is rounded to |argument| eps / 2
            scale = torch.softmax(x.double(), dim) * (1 + away / 2)
            # results below the smallest normal number are 0
            yield case("_softmax.out", x, dim, False, scale=scale.clamp(min=torch.finfo(F32).tiny / EPS))
            yield case("_log_softmax.out", x, dim, False, scale=2 + away)
    for a, b in itertools.product((torch.contiguous_format, LAST), repeat=2):
        yield case("_softmax.out", normal(2, 3, 4, 5, layout=a), 1, False, layout=b, ulps=4)
        yield case("_log_softmax.out", normal(2, 3, 4, 5, layout=a), 3, False, layout=b, scale=9)
    for row in ([0.0, NAN, 1.0], [INF, 0.0, 1.0], [-INF, -INF], [-INF, 0.0, 3.0], [1e38, -1e38], [INF, INF]):
        yield case("_softmax.out", torch.tensor(row), 0, False, scale=0)
        yield case("_log_softmax.out", torch.tensor(row), 0, False, scale=9)
    yield case("_softmax.out", torch.zeros(2, 0), 1, False)
    yield case("_softmax.out", torch.zeros(0, 3), 1, False)


def norms() -> Iterator[OneOp]:
    for shape, count in (((4, 10), 1), ((2, 3, 100), 1), ((2, 3, 4, 5), 2), ((6,), 1), ((2, 3, 4, 5), 4), ((0, 3), 1)):
        for mean, affine in itertools.product((0.0, 10.0), (0, 1, 2, 3)):
            x, size = normal(*shape, mean=mean), shape[len(shape) - count:]
            w, b = normal(*size, seed=1) if affine & 1 else None, normal(*size, seed=2) if affine & 2 else None
            yield case("native_layer_norm.out", x, list(size), w, b, 1e-5, scale=8 + 4 * mean)
    for layout in (None, LAST):
        x = normal(2, 6, 4, 5, mean=2, layout=LAST)
        yield case("native_layer_norm.out", x, [4, 5], normal(4, 5), normal(4, 5), 1e-3, scale=20, layout=layout)
        yield case("native_group_norm.out", x, normal(6), normal(6), 2, 6, 20, 3, 1e-5, scale=20, layout=layout)
        yield case("_native_batch_norm_legit.no_stats_out", x, normal(6), normal(6), True, 0.1, 1e-5, scale=20,
                   layout=layout)
    for shape, groups in itertools.product(((2, 6, 5), (1, 6), (3, 6, 4, 5), (2, 6, 2, 2, 3)), (1, 2, 3, 6)):
        plane = math.prod(shape[2:])
        if len(shape) == 2 and groups == 6:
            continue  # a group of one number: its variance is 0 and nothing is left
        for affine in (0, 3):
            w, b = (normal(6, seed=1), normal(6, seed=2)) if affine else (None, None)
            x = normal(*shape, mean=1)
            yield case("native_group_norm.out", x, w, b, shape[0], 6, plane, groups, 1e-5, scale=20)
    for shape in ((4, 6), (2, 6, 5), (2, 6, 4, 5), (1, 6, 2, 3, 2)):
        x, mean, var = normal(*shape), normal(6, seed=3), normal(6, seed=4).abs() + 0.1
        for w, b in itertools.product((None, normal(6, seed=1)), (None, normal(6, seed=2))):
            args = (x, w, b, mean, var)
            yield case("_native_batch_norm_legit_no_training.out", *args, 0.1, 1e-5, scale=30)
            yield case("_native_batch_norm_legit.out", *args, False, 0.1, 1e-5, scale=30)
            yield case("_native_batch_norm_legit.out", *(a if a is None else a.clone() for a in args), True, 0.1, 1e-5,
                       scale=30)
            yield case("_native_batch_norm_legit.no_stats_out", x, w, b, True, 0.1, 1e-3, scale=30)


# ------------------------------------------------------------ reductions

SHAPES = ((3, 4, 5), (7,), (), (2, 3, 4, 5), (1, 1, 3), (2, 0, 3), (2, 1500))


def dims_of(shape: Sequence[int]) -> list[list[int]]:
    rank = max(len(shape), 1)
    found = [[], [0], [-1], list(range(rank))]
    return found + ([[0, rank - 1], [-2]] if rank > 1 else [])


@torch.no_grad()
def variance(*args: Any, **keywords: Any) -> OneOp:
    """Without torch's warnings of too few numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case(*args, **keywords)


def many_dims() -> Iterator[OneOp]:
    turn = itertools.cycle((B, *INTEGERS))
    for shape in SHAPES:
        for n, dims in enumerate([None, *dims_of(shape)]):
            keep = bool((n + len(shape)) % 2)
            x = normal(*shape, mean=0.3)
            yield case("mean.out", x, dims, keep, None)
            yield case("sum.IntList_out", x, dims, keep, None)
            yield case("sum.IntList_out", x * 1e6, dims, keep, 6)
            for dtype in (next(turn), next(turn)):
                yield exact("sum.IntList_out", whole(dtype, *shape), dims, keep, None)
            yield exact("sum.IntList_out", whole(I8, *shape), dims, keep, 1)
            yield case("sum.IntList_out", whole(I8, *shape).float(), dims, keep, None, scale=128 * 1500)
            yield exact("any.dims_out", whole(B, *shape), dims, keep)
            yield exact("any.dims_out", whole(U8, *shape) % 3, dims, keep)
            for correction in (None, 0, 2, 0.5):
                yield variance("var.correction_out", x, dims, correction, keep, scale=0, ulps=4)
            yield variance("var_mean.correction_out", x, dims, 1, keep, scale=1, ulps=4)
            yield variance("var.out", x, dims, True, keep, scale=0, ulps=4)
            yield variance("var.out", x * 3 + 1000, dims, False, keep, scale=0.03, ulps=4)
            if x.numel() and dims is not None:
                for name in ("amax.out", "amin.out"):
                    yield exact(name, x, dims, keep)
                    yield exact(name, whole(next(turn), *shape), dims, keep)
    yield case("mean.out", whole(I8, 3, 4), [1], False, 6, scale=128)
    for row in ([1e30, -1e30], [INF, 1.0], [3.0, NAN]):
        found = torch.var(torch.tensor(row), [0], correction=1)
        yield OneOp("aten::var.out", (torch.tensor(row), [0], True, False), (F32,), wanted=(found,))
    x = normal(2, 3, 4, 5, layout=LAST)
    for dims in ([1], [2, 3], [0, 2], [0, 1, 2, 3]):
        for name in ("mean.out", "sum.IntList_out"):
            yield case(name, x, dims, True, None, layout=LAST)
            yield case(name, x, dims, False, None)
        yield exact("amax.out", x, dims, True, layout=LAST)


def one_dim() -> Iterator[OneOp]:
    turn = itertools.cycle((B, *INTEGERS))
    for shape in SHAPES:
        for dim in range(-1, max(len(shape), 1)):
            keep = bool((dim + len(shape)) % 2)
            x = normal(*shape, mean=1, std=0.1)
            empty = x.numel() == 0 and shape[dim] == 0
            yield case("prod.int_out", x, dim, keep, None, ulps=40)
            yield exact("any.out", x > 1.1, dim, keep)
            yield case("cumsum.out", x - 1, dim, None, scale=torch.cumsum((x - 1).double().abs(), dim))
            for dtype in (next(turn), next(turn), next(turn)):
                y = whole(dtype, *shape)
                yield exact("prod.int_out", y, dim, keep, None)
                yield exact("prod.int_out", y, dim, keep, 4)
                yield exact("cumsum.out", y, dim, None)
                yield exact("any.out", y, dim, keep)
                if empty:
                    continue
                yield exact("max.dim_max", y, dim, keep)
                yield exact("min.dim_min", y, dim, keep)
                if dtype != B:
                    yield exact("argmax.out", y % 5, dim, keep)
                    yield exact("argmin.out", y % 5, dim, keep)
            if not empty:
                for name in ("max.dim_max", "min.dim_min", "argmax.out", "argmin.out"):
                    yield exact(name, x, dim, keep)
    x = normal(2, 3, 4, 5, layout=LAST)
    for dim in range(4):
        for name in ("max.dim_max", "argmin.out"):
            yield exact(name, x, dim, True, layout=LAST)
            yield exact(name, x, dim, False)
        yield case("cumsum.out", x, dim, None, layout=LAST, scale=5)
    for row in ([1.0, NAN, 3.0, NAN], [NAN, NAN], [-INF, -INF], [2.0, INF, INF], [0.0, -0.0]):
        y = torch.tensor(row)
        for name in ("max.dim_max", "min.dim_min", "argmax.out", "argmin.out"):
            yield exact(name, y, 0, False)
        for name in ("amax.out", "amin.out"):
            yield exact(name, y, [0], False)
        yield exact("max.unary_out", y)
        yield case("sum.IntList_out", y, None, False, None, scale=9)
        yield case("mean.dtype_out", y, None, scale=9)
        yield case("cumsum.out", y, 0, None, scale=9)
        yield exact("any.all_out", y)


def all_dims() -> Iterator[OneOp]:
    for shape in SHAPES:
        x = normal(*shape, mean=1, std=0.1)
        yield case("mean.dtype_out", x, None)
        yield case("mean.dtype_out", x, 6)
        yield case("prod.out", x, None, ulps=3000)
        yield exact("any.all_out", x)
        for dtype in (B, *INTEGERS):
            y = whole(dtype, *shape)
            yield exact("prod.out", y, None)
            yield exact("any.all_out", y)
            if y.numel():
                yield exact("max.unary_out", y)
                yield exact("min.unary_out", y)
                if dtype != B:
                    yield exact("argmax.out", y % 7, None, False)
                    yield exact("argmin.out", y % 7, None, True)
        if x.numel():
            for name in ("max.unary_out", "min.unary_out"):
                yield exact(name, x)
            for name in ("argmax.out", "argmin.out"):
                yield exact(name, x, None, False)
                yield exact(name, x, None, True)
    yield exact("argmax.out", normal(2, 3, 4, 5, layout=LAST), None, False)


# ------------------------------------------------------------ distances and images


def distances() -> Iterator[OneOp]:
    pairs = (((3, 4), (5, 4)), ((2, 3, 4), (2, 5, 4)), ((2, 1, 3, 4), (6, 5, 4)), ((3, 0), (2, 0)), ((0, 4), (2, 4)))
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF):
        ulps = 2 if p in (0, 1, 2, INF) else 60  # powers of sums of powers
        for a, b in pairs:
            yield case("_cdist_forward.out", normal(*a), normal(*b, seed=1), p, None, scale=0, ulps=ulps)
        for shape in ((5, 4), (2, 300), (1, 3)):
            yield case("_pdist_forward.out", normal(*shape), p, scale=0, ulps=ulps)
    yield case("_cdist_forward.out", normal(30, 4), normal(30, 4, seed=1), 2.0, 1, scale=0)


def images() -> Iterator[OneOp]:
    x = normal(2, 3, 5, 7)
    sizes = ([5, 7], [10, 14], [1, 1], [13, 3], [4, 20], [15, 21])
    factors = ([2.0, 2.0], [1.5, 0.7], [3.0, 1.0], [0.4, 2.3])
    for layout in (None, LAST):
        y = x if layout is None else x.contiguous(memory_format=layout)
        for size, factor in [*((s, None) for s in sizes), *((None, f) for f in factors)]:
            yield exact("upsample_nearest2d.vec_out", y, size, factor, layout=layout)
            yield exact("upsample_nearest2d.vec_out", whole(U8, 2, 3, 5, 7), size, factor)
            for align in (False, True):
                # positions are in float32 in torch too: an error of theirs is one of the result
                yield image("upsample_bilinear2d.vec_out", y, size, align, factor, layout=layout)
                if size is not None:
                    yield image("_upsample_bilinear2d_aa.out", y, size, align, None, None, layout=layout)
        yield image("_upsample_bilinear2d_aa.out", y, [2, 3], False, 0.4, 0.45, layout=layout)
        yield image("_upsample_bilinear2d_aa.out", y, [5, 9], False, 2.0, 1.3, layout=layout)


def image(name: str, x: Tensor, *args: Any, layout: Any = None) -> OneOp:
    wanted = functional(name, (x, *args))
    if layout is not None:
        wanted = [w.to(memory_format=layout) for w in wanted]
    return OneOp(f"aten::{name}", (x, *args), (F32,), wanted=tuple(wanted), scale=4.0, ulps=4)


def grids() -> Iterator[OneOp]:
    g = normal(2, 4, 6, 2, seed=5)
    for mode, padding, align in itertools.product((0, 1, 2), (0, 1, 2), (False, True)):
        for layout in (torch.contiguous_format, LAST):
            x = normal(2, 3, 5, 7, layout=layout)
            # positions that are halves round to either side
            far = g * 3 if mode != 1 else (g * 3 * 64).round() / 64 + 1 / 512
            yield image("grid_sampler_2d.out", x, far, mode, padding, align, layout=layout)


CASES: list[OneOp] = [
    *quantize_per_tensor(), *quantize_many(), *choose_qparams(), *quantized_add(), *products(), *mixed_products(),
    *convolutions(),
    *pools(), *softmaxes(), *norms(), *many_dims(), *one_dim(), *all_dims(), *distances(), *images(), *grids(),
]  # fmt: skip


# ------------------------------------------------------------ bad input

SENTENCES = {
    "arguments": "an operator has arguments that its schema does not allow",
    "dtype": "a kernel does not take this data type",
    "shape": "shapes do not fit the operator",
    "resize": "a result does not have the size that the file says",
    "index": "an index is out of range",
    "value": "an argument has a value that the operator does not allow",
}


def refused(status: str, argument: int, name: str, *args: Any, outs: Sequence[Tensor]) -> tuple[OneOp, str]:
    """A call, its out tensors, and the text of the error."""
    name = name if "::" in name else f"aten::{name}"
    where = f", argument {argument}" if argument >= 0 else ""
    return OneOp(name, args, tuple(outs), wanted=tuple(outs)), f"{SENTENCES[status]}: {name}, instruction 0{where}"


def z(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def bad_quantize() -> Iterator[tuple[OneOp, str]]:
    q, d = "quantized_decomposed::quantize_per_tensor.out", "quantized_decomposed::dequantize_per_tensor.out"
    i8, f = [z(3, dtype=I8)], [z(3)]
    yield refused("value", 1, q, z(3), 0.0, 0, -128, 127, 1, outs=i8)
    yield refused("value", 3, q, z(3), 1.0, 0, -129, 127, 1, outs=i8)
    yield refused("value", 3, q, z(3), 1.0, 0, -128, 128, 1, outs=i8)
    yield refused("value", 3, q, z(3), 1.0, 0, 5, 4, 1, outs=i8)
    yield refused("dtype", 5, q, z(3), 1.0, 0, -128, 127, 0, outs=i8)
    yield refused("dtype", 5, q, z(3), 1.0, 0, -128, 127, 6, outs=i8)
    yield refused("dtype", 5, q, z(3), 1.0, 0, -128, 127, 2**40, outs=i8)
    yield refused("dtype", 0, q, z(3, dtype=I32), 1.0, 0, -128, 127, 1, outs=i8)
    yield refused("arguments", 1, q, z(3), 1, 0, -128, 127, 1, outs=i8)
    yield refused("arguments", 2, q, z(3), 1.0, None, -128, 127, 1, outs=i8)
    yield refused("dtype", 5, d, z(3, dtype=I8), 1.0, 0, -128, 127, 0, None, outs=f)
    yield refused("dtype", 6, d, z(3, dtype=I8), 1.0, 0, -128, 127, 1, 7, outs=f)
    yield refused("dtype", 6, d, z(3, dtype=I8), 1.0, 0, -128, 127, 1, None, outs=[z(3, dtype=F64)])
    yield refused("dtype", 5, d, z(3), 1.0, 0, -128, 127, 6, None, outs=f)
    t = "quantized_decomposed::quantize_per_tensor.Tensor_out"
    yield refused("shape", 1, t, z(3), z(2), z(1, dtype=I64), -128, 127, 1, outs=i8)
    yield refused("shape", 2, t, z(3), z(1), z(0, dtype=I64), -128, 127, 1, outs=i8)
    yield refused("dtype", 1, t, z(3), z(1, dtype=I64), z(1, dtype=I64), -128, 127, 1, outs=i8)
    yield refused("dtype", 2, t, z(3), z(1), z(1), -128, 127, 1, outs=i8)
    yield refused("value", 1, t, z(3), z(1), z(1, dtype=I64), -128, 127, 1, outs=i8)
    c = "quantized_decomposed::quantize_per_channel.out"
    zero = z(3, dtype=I64)
    yield refused("index", 3, c, z(2, 3), z(3), zero, 2, -128, 127, 1, outs=[z(2, 3, dtype=I8)])
    yield refused("index", 3, c, z(), z(3), zero, 0, -128, 127, 1, outs=[z(dtype=I8)])
    yield refused("shape", 1, c, z(2, 3), z(2), zero, 1, -128, 127, 1, outs=[z(2, 3, dtype=I8)])
    yield refused("shape", 2, c, z(2, 3), z(3), zero[:2], 1, -128, 127, 1, outs=[z(2, 3, dtype=I8)])
    yield refused("shape", 1, c, z(2, 3), z(3, 1), zero, 1, -128, 127, 1, outs=[z(2, 3, dtype=I8)])
    yield refused("dtype", 1, c, z(2, 3), zero, zero, 1, -128, 127, 1, outs=[z(2, 3, dtype=I8)])
    yield refused("dtype", 2, c, z(2, 3), z(3), z(3), 1, -128, 127, 1, outs=[z(2, 3, dtype=I8)])
    k = "quantized_decomposed::dequantize_per_token.out"
    yield refused("shape", 1, k, z(2, 3, dtype=I8), z(2), z(2, 1, dtype=I64), -128, 127, 1, 6, outs=[z(2, 3)])
    yield refused("shape", 2, k, z(2, 3, dtype=I8), z(2, 1), z(2, 3, dtype=I64), -128, 127, 1, 6, outs=[z(2, 3)])
    p = "quantized_decomposed::choose_qparams.Tensor_out"
    outs = [z(1, dtype=F64), z(1, dtype=I64)]
    yield refused("value", 0, p, torch.tensor([1.0, NAN]), -128, 127, 1e-5, 1, outs=outs)
    yield refused("value", 1, p, z(2), 1, 127, 1e-5, 1, outs=outs)
    yield refused("shape", 0, p, z(0), -128, 127, 1e-5, 1, outs=outs)
    yield refused("dtype", 5, p, z(2), -128, 127, 1e-5, 1, outs=[z(1), outs[1]])
    a = "quantized_decomposed::add.out"
    x, params = z(3, dtype=I8), (1.0, 0, -128, 127)
    yield refused("shape", 5, a, x, *params, x[:2], *params, *params, outs=[x])
    yield refused("dtype", 5, a, x, *params, z(3, dtype=U8), *params, *params, outs=[x])
    yield refused("value", 10, a, x, *params, x, *params, 0.0, 0, -128, 127, outs=[x])


def bad_products() -> Iterator[tuple[OneOp, str]]:
    yield refused("shape", 1, "mm.out", z(2, 3), z(4, 5), outs=[z(2, 5)])
    yield refused("shape", 0, "mm.out", z(2), z(2, 5), outs=[z(2, 5)])
    yield refused("dtype", 1, "mm.out", z(2, 3), z(3, 5, dtype=I8), outs=[z(2, 5)])
    yield refused("dtype", 0, "mm.out", z(2, 3, dtype=B), z(3, 5, dtype=B), outs=[z(2, 5, dtype=B)])
    yield refused("dtype", 0, "mm.out", z(2, 3, dtype=F64), z(3, 5, dtype=F64), outs=[z(2, 5, dtype=F64)])
    yield refused("dtype", -1, "mm.out", z(2, 3, dtype=I8), z(3, 5, dtype=I8), outs=[z(2, 5, dtype=I32)])
    yield refused("shape", 1, "bmm.out", z(2, 2, 3), z(3, 3, 5), outs=[z(2, 2, 5)])
    yield refused("shape", 0, "bmm.out", z(2, 3), z(3, 5), outs=[z(2, 5)])
    yield refused("shape", 0, "addmm.out", z(4), z(2, 3), z(3, 5), 1, 1, outs=[z(2, 5)])
    yield refused("shape", 0, "addmm.out", z(1, 2, 5), z(2, 3), z(3, 5), 1, 1, outs=[z(2, 5)])
    yield refused("dtype", 0, "addmm.out", z(5, dtype=I32), z(2, 3), z(3, 5), 1, 1, outs=[z(2, 5)])
    yield refused("shape", 1, "linear.out", z(2, 3), z(5, 4), None, outs=[z(2, 5)])
    yield refused("shape", 2, "linear.out", z(2, 3), z(5, 3), z(4), outs=[z(2, 5)])
    yield refused("shape", 0, "linear.out", z(), z(5, 3), None, outs=[z(5)])
    for dtype, least, most in ((I8, -128, 127), (U8, -255, 255), (I32, -(2**31), 2**31 - 1)):
        y = (z(5, dtype=dtype), z(2, 3, dtype=dtype), z(3, 5, dtype=dtype))
        yield refused("value", 3, "addmm.out", *y, most + 1, 1, outs=[z(2, 5, dtype=dtype)])
        yield refused("value", 4, "addmm.out", *y, 1, least - 1, outs=[z(2, 5, dtype=dtype)])
    m, w = "quantized_decomposed::mixed_linear.out", z(5, 3, dtype=I8)
    yield refused("shape", 2, m, z(2, 3), w, z(3), None, None, outs=[z(2, 5)])
    yield refused("shape", 2, m, z(2, 3), w, z(5, 0), None, None, outs=[z(2, 5)])
    yield refused("shape", 1, m, z(2, 4), w, z(5), None, None, outs=[z(2, 5)])
    yield refused("value", 3, m, z(2, 3), w, z(5), z(5), None, outs=[z(2, 5)])
    yield refused("dtype", 4, m, z(2, 3), w, z(5), None, 7, outs=[z(2, 5)])
    yield refused("dtype", 1, m, z(2, 3), z(5, 3), z(5), None, None, outs=[z(2, 5)])


def bad_conv() -> Iterator[tuple[OneOp, str]]:
    def bad(status: str, argument: int, x: Sequence[int], w: Sequence[int], out: Sequence[int], *, bias: Any = None,
            stride: Any = (1, 1), padding: Any = (0, 0), dilation: Any = (1, 1), transposed: bool = False,
            extra: Any = (0, 0), groups: int = 1) -> tuple[OneOp, str]:  # fmt: skip
        return refused(status, argument, "convolution.out", z(*x), z(*w), bias, list(stride), list(padding),
                       list(dilation), transposed, list(extra), groups, outs=[z(*out)])  # fmt: skip

    x, w, y = (1, 4, 5, 5), (6, 4, 3, 3), (1, 6, 3, 3)
    yield bad("shape", 0, (1, 4, 5, 5, 5), (6, 4, 3, 3, 3), (1, 6, 3, 3, 3))
    yield bad("shape", 0, (4, 5), (6, 4), (6, 3))
    yield bad("shape", 1, x, (6, 4, 3), y)
    yield bad("shape", 1, x, (6, 3, 3, 3), y)
    yield bad("shape", 1, x, (6, 4, 0, 3), y)
    yield bad("shape", 1, (1, 0, 5, 5), (6, 0, 3, 3), y)
    yield bad("shape", 0, x, (6, 4, 6, 3), y)
    yield bad("shape", 0, x, w, y, dilation=(3, 1))
    yield bad("shape", 0, x, w, y, dilation=(2**31 - 1, 1))
    yield bad("shape", 0, x, w, y, padding=(2**31 - 1, 1))
    yield bad("shape", 0, x, (4, 6, 3, 3), y, transposed=True, padding=(4, 0))
    yield bad("shape", 0, x, (4, 6, 3, 3), y, transposed=True, stride=(2**30, 1))
    yield bad("shape", 0, (1, 4, 0, 5), (4, 6, 3, 3), y, transposed=True)
    yield bad("shape", 2, x, w, y, bias=z(5))
    yield bad("dtype", 2, x, w, y, bias=z(6, dtype=I32))
    for stride in ((0, 1), (1, -1), (2**40, 1), (), (1, 1, 1)):
        yield bad("value", 3, x, w, y, stride=stride)
    for padding in ((-1, 0), (0, 2**31), (1, 2, 3)):
        yield bad("value", 4, x, w, y, padding=padding)
    yield bad("value", 5, x, w, y, dilation=(0, 1))
    for extra in ((-1, 0), (1, 0)):
        yield bad("value", 7, x, (4, 6, 3, 3), y, transposed=True, extra=extra)
    yield bad("value", 7, x, w, y, extra=(0, -1))
    for groups in (0, -1, 4, 2**33):
        yield bad("value", 8, x, w, y, groups=groups)
    yield bad("shape", 1, x, w, y, groups=2)
    yield refused("dtype", 0, "convolution.out", z(*x, dtype=I8), z(*w, dtype=I8), None, [1, 1], [0, 0], [1, 1], False,
                  [0, 0], 1, outs=[z(*y, dtype=I8)])
    yield refused("arguments", 6, "convolution.out", z(*x), z(*w), None, [1, 1], [0, 0], [1, 1], 0, [0, 0], 1,
                  outs=[z(*y)])


def bad_pools() -> Iterator[tuple[OneOp, str]]:
    x, y = z(1, 2, 5, 5), [z(1, 2, 3, 3)]
    two = [*y, z(1, 2, 3, 3, dtype=I64)]
    average, greatest = ("avg_pool2d.out", (False, True, None), y), ("max_pool2d_with_indices.out", ([1], False), two)
    for name, rest, outs in (average, greatest):
        yield refused("value", 1, name, x, [0, 3], [1], [0], *rest, outs=outs)
        yield refused("value", 1, name, x, [3, 2**40], [1], [0], *rest, outs=outs)
        yield refused("value", 1, name, x, [], [1], [0], *rest, outs=outs)
        yield refused("value", 2, name, x, [3], [0], [0], *rest, outs=outs)
        yield refused("value", 2, name, x, [3], [1, 1, 1], [0], *rest, outs=outs)
        yield refused("value", 3, name, x, [3], [1], [2], *rest, outs=outs)
        yield refused("value", 3, name, x, [3], [1], [-1], *rest, outs=outs)
        yield refused("shape", 0, name, x, [6], [1], [0], *rest, outs=outs)
        yield refused("shape", 0, name, z(2, 5), [3], [1], [0], *rest, outs=outs)
        yield refused("shape", 0, name, z(1, 2, 0, 5), [1], [1], [0], *rest, outs=outs)
        yield refused("dtype", 0, name, z(1, 2, 5, 5, dtype=B), [3], [1], [0], *rest, outs=outs)
    yield refused("value", 6, "avg_pool2d.out", x, [3], [1], [0], False, True, 0, outs=y)
    yield refused("value", 4, "max_pool2d_with_indices.out", x, [3], [1], [0], [0], False, outs=two)
    yield refused("shape", 0, "max_pool2d_with_indices.out", x, [3], [1], [0], [2**30], False, outs=two)
    yield refused("dtype", 7, "max_pool2d_with_indices.out", x, [3], [1], [0], [1], False, outs=[y[0], y[0]])
    for size in ([-1, 3], [3], [3, 3, 3], []):
        yield refused("value", 1, "_adaptive_avg_pool2d.out", x, size, outs=y)
    yield refused("shape", 0, "_adaptive_avg_pool2d.out", z(1, 2, 0, 5), [3, 3], outs=y)
    integers = z(1, 2, 3, 3, dtype=I64)
    yield refused("dtype", 0, "_adaptive_avg_pool2d.out", z(1, 2, 5, 5, dtype=I64), [3, 3], outs=[integers])


def bad_norms() -> Iterator[tuple[OneOp, str]]:
    x = z(2, 6)
    yield refused("index", 1, "_softmax.out", x, 2, False, outs=[x])
    yield refused("value", 2, "_softmax.out", x, 1, True, outs=[x])
    yield refused("dtype", 0, "_log_softmax.out", z(2, dtype=I8), 0, False, outs=[z(2)])
    outs = [x, z(2, 1), z(2, 1)]
    yield refused("shape", 1, "native_layer_norm.out", x, [5], None, None, 1e-5, outs=outs)
    yield refused("shape", 1, "native_layer_norm.out", x, [], None, None, 1e-5, outs=outs)
    yield refused("shape", 1, "native_layer_norm.out", x, [1, 2, 6], None, None, 1e-5, outs=outs)
    yield refused("shape", 2, "native_layer_norm.out", x, [6], z(5), None, 1e-5, outs=outs)
    yield refused("shape", 3, "native_layer_norm.out", x, [6], None, z(1, 6), 1e-5, outs=outs)
    yield refused("dtype", 3, "native_layer_norm.out", x, [6], None, z(6, dtype=F64), 1e-5, outs=outs)
    outs = [x, z(2, 3), z(2, 3)]
    yield refused("value", 6, "native_group_norm.out", x, None, None, 2, 6, 1, 4, 1e-5, outs=outs)
    yield refused("value", 6, "native_group_norm.out", x, None, None, 2, 6, 1, 0, 1e-5, outs=outs)
    yield refused("shape", 5, "native_group_norm.out", x, None, None, 2, 6, 2, 3, 1e-5, outs=outs)
    yield refused("shape", 0, "native_group_norm.out", x, None, None, 3, 6, 1, 3, 1e-5, outs=outs)
    yield refused("shape", 1, "native_group_norm.out", x, z(5), None, 2, 6, 1, 3, 1e-5, outs=outs)
    name, outs = "_native_batch_norm_legit_no_training.out", [x, z(0), z(0)]
    yield refused("shape", 3, name, x, None, None, z(5), z(6), 0.1, 1e-5, outs=outs)
    yield refused("shape", 0, name, z(6), None, None, z(6), z(6), 0.1, 1e-5, outs=[z(6), z(0), z(0)])
    yield refused("value", 3, "_native_batch_norm_legit.no_stats_out", x, None, None, False, 0.1, 1e-5, outs=outs)


def bad_reductions() -> Iterator[tuple[OneOp, str]]:
    x, i = z(2, 3), z(2, 3, dtype=I8)
    yield refused("index", 1, "sum.IntList_out", x, [2], False, None, outs=[z(2)])
    yield refused("value", 1, "sum.IntList_out", x, [1, -1], False, None, outs=[z(2)])
    yield refused("dtype", 3, "sum.IntList_out", x, [1], False, 7, outs=[z(2)])
    yield refused("dtype", 0, "mean.out", i, [1], False, None, outs=[z(2)])
    yield refused("dtype", 0, "mean.dtype_out", i, None, outs=[z()])
    yield refused("dtype", -1, "mean.out", x, [1], False, None, outs=[z(2, dtype=I32)])
    yield refused("shape", 0, "amax.out", z(0, 3), [0], False, outs=[z(3)])
    yield refused("dtype", 3, "amax.out", i, [0], False, outs=[z(3)])
    yield refused("shape", 0, "max.unary_out", z(0), outs=[z()])
    yield refused("shape", 0, "argmin.out", z(0, 3), None, False, outs=[z(dtype=I64)])
    yield refused("dtype", 0, "argmax.out", z(3, dtype=B), None, False, outs=[z(dtype=I64)])
    yield refused("dtype", 3, "argmax.out", x, 1, False, outs=[z(2, dtype=I32)])
    yield refused("index", 1, "argmax.out", x, -3, False, outs=[z(2, dtype=I64)])
    yield refused("dtype", 4, "max.dim_max", x, 1, False, outs=[z(2), z(2)])
    yield refused("shape", 0, "max.dim_max", z(0, 0), 1, False, outs=[z(0), z(0, dtype=I64)])
    yield refused("shape", 0, "min.dim_min", z(3, 0), 1, False, outs=[z(3), z(3, dtype=I64)])
    yield refused("dtype", -1, "any.out", x, 1, False, outs=[z(2, dtype=I8)])
    yield refused("dtype", 0, "var.out", i, [1], True, False, outs=[z(2)])
    yield refused("index", 1, "cumsum.out", x, 2, None, outs=[x])
    yield refused("dtype", -1, "prod.int_out", x, 1, False, None, outs=[z(2, dtype=F64)])
    yield refused("arguments", 2, "sum.IntList_out", x, [1], 1, None, outs=[z(2)])


def bad_images() -> Iterator[tuple[OneOp, str]]:
    x, y = z(1, 2, 3, 4), [z(1, 2, 6, 8)]
    yield refused("value", 2, "_cdist_forward.out", x, x, -1.0, None, outs=[z(1, 2, 3, 3)])
    yield refused("shape", 1, "_cdist_forward.out", z(3, 4), z(3, 5), 2.0, None, outs=[z(3, 3)])
    yield refused("shape", 1, "_cdist_forward.out", z(2, 3, 4), z(3, 3, 4), 2.0, None, outs=[z(3, 3, 3)])
    yield refused("shape", 0, "_pdist_forward.out", x, 2.0, outs=[z(3)])
    yield refused("value", 1, "upsample_nearest2d.vec_out", x, None, None, outs=y)
    yield refused("value", 1, "upsample_nearest2d.vec_out", x, [6, 8], [2.0, 2.0], outs=y)
    yield refused("value", 1, "upsample_nearest2d.vec_out", x, [0, 8], None, outs=y)
    yield refused("value", 1, "upsample_nearest2d.vec_out", x, [6], None, outs=y)
    for factor in (NAN, 1e300, 0.0, -2.0):
        yield refused("value", 2, "upsample_nearest2d.vec_out", x, None, [factor, 2.0], outs=y)
        yield refused("value", 3, "upsample_bilinear2d.vec_out", x, None, False, [2.0, factor], outs=y)
    yield refused("shape", 0, "upsample_bilinear2d.vec_out", z(2, 3, 4), [6, 8], False, None, outs=[z(2, 6, 8)])
    yield refused("value", 1, "_upsample_bilinear2d_aa.out", x, [6, -8], False, None, None, outs=y)
    g = z(1, 6, 8, 2)
    yield refused("shape", 1, "grid_sampler_2d.out", x, z(1, 6, 8, 3), 0, 0, False, outs=y)
    yield refused("shape", 1, "grid_sampler_2d.out", x, z(2, 6, 8, 2), 0, 0, False, outs=y)
    yield refused("value", 2, "grid_sampler_2d.out", x, g, 3, 0, False, outs=y)
    yield refused("value", 3, "grid_sampler_2d.out", x, g, 0, -1, False, outs=y)
    yield refused("dtype", 1, "grid_sampler_2d.out", x, g.double(), 0, 0, False, outs=y)


REFUSED: list[tuple[OneOp, str]] = [
    *bad_quantize(), *bad_products(), *bad_conv(), *bad_pools(), *bad_norms(), *bad_reductions(), *bad_images(),
]  # fmt: skip
