"""Calls of the elementwise kernels: operators, data types, layouts, special numbers. `CASES` is the table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from one_op import OneOp
from torch import Tensor

from tosa_ref import kernels

B, U8, I8, I16, I32, I64, F32 = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32,
)  # fmt: skip
INTEGERS = (U8, I8, I16, I32, I64)
DTYPES = (B, *INTEGERS, F32)
PAIRS = tuple(itertools.product(DTYPES, DTYPES))
SOME_PAIRS = (*((d, d) for d in DTYPES), (U8, I8), (I8, I64), (I32, F32), (F32, U8), (B, I16), (I16, B), (B, F32))
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.5, -2.5, 1e30, -1e-30, 1e-40)


def values(dtype: torch.dtype, *shape: int, seed: int = 0, low: float = -6, high: float = 6) -> Tensor:
    """Numbers of all sizes: small ones, then (in every other place) extremes and special ones."""
    g = torch.Generator().manual_seed(seed)
    if dtype == B:
        return torch.rand(shape, generator=g) < 0.5
    if dtype == F32:
        x = torch.rand(shape, generator=g) * (high - low) + low
        special = torch.tensor(SPECIAL)
    else:
        info = torch.iinfo(dtype)
        x = torch.randint(max(info.min, -9), 10, shape, generator=g).to(dtype)
        special = torch.tensor([info.min, info.max, 0, 1, info.max - 1, info.min + 1], dtype=dtype)
    flat = x.reshape(-1)
    some = torch.rand(flat.shape, generator=g) < 0.35
    return torch.where(some, special[torch.randint(len(special), flat.shape, generator=g)], flat).reshape(shape)


def plain(dtype: torch.dtype, *shape: int, seed: int = 0, low: float = -3, high: float = 3) -> Tensor:
    """Small numbers, none of them 0 or (integers) -1."""
    g = torch.Generator().manual_seed(seed + 1)
    x = torch.rand(shape, generator=g) * (high - low) + low
    if dtype == F32:
        return x
    if dtype == B:
        return x > 0
    x = torch.randint(2, 9, shape, generator=g).to(dtype)
    return x if dtype == U8 else torch.where(torch.rand(shape, generator=g) < 0.5, -x, x)


_FUNCTIONAL = {"out": ("default", "Tensor"), "out_mode": ("Tensor_mode",)}


def functional(name: str, args: Sequence[Any]) -> list[Tensor]:
    """Results of the operator that the out-variant belongs to; it decides their data types."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, base)
    wanted = _FUNCTIONAL.get(overload, (overload.removesuffix("_out"),))
    op = next(getattr(packet, o) for o in wanted if o in packet.overloads())
    schema = kernels.overload(name)._schema.arguments
    keywords = {s.name: a for s, a in zip(schema, args) if s.kwarg_only and not s.is_out}
    result = op(*(a for s, a in zip(schema, args) if not s.kwarg_only), **keywords)
    return list(result) if isinstance(result, tuple) else [result]


def case(name: str, *args: Any, scale: float | Tensor = 0.0, ulps: float = 2.0) -> OneOp:
    """A call with torch's results. What torch refuses stays a case: the test then wants ours to refuse it for the
    reason that torch's words give, and fails on words that it does not know."""
    name = f"aten::{name}"
    try:
        results = functional(name, args)
        # the out-variant of clamp refuses to make floats of integers
        wanted = tuple(results) if name == "aten::clamp.out" else None
        return OneOp(name, args, tuple(r.dtype for r in results), wanted=wanted, scale=scale, ulps=ulps)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return OneOp(name, args, scale=scale, ulps=ulps)


# ------------------------------------------------------------ one operand

UNARY = (
    "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf exp expm1 floor isinf isnan log log10 log1p "
    "log2 logical_not neg reciprocal relu round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
).split()


def unary() -> Iterator[OneOp]:
    for name, dtype in itertools.product(UNARY, DTYPES):
        if not (dtype == B and name == "relu"):  # torch's kernel refuses it, the out-variant says so only in words
            yield case(f"{name}.out", values(dtype, 5, 9, seed=len(name)))
    for name in UNARY:
        if name != "bitwise_not":
            yield case(f"{name}.out", plain(F32, 4, 33, low=-0.99, high=0.99))
            yield case(f"{name}.out", plain(F32, 70, low=0.01, high=20))
    for dtype in DTYPES:
        yield case("relu.out", values(dtype, 3, 4))
        x = values(dtype, 5, 9)
        yield case("logit.out", plain(F32, 50, low=0.01, high=0.99) if dtype == F32 else x, None, scale=1.0)
        yield case("hardtanh.out", x, -1, 2)
        yield case("hardtanh.out", x, 0.0, 6.0)
        yield case("leaky_relu.out", x, 0.01)
        yield case("elu.out", x, 1, 1, 1)
        # torch's vectors give NaN for inf here, its scalars inf
        finite = x.nan_to_num(math.nan, 9, -9) if dtype == F32 else x
        yield case("gelu.out", finite, "none", scale=x.abs() if dtype == F32 else 0.0)
        yield case("gelu.out", x, "tanh", scale=x.abs() if dtype == F32 else 0.0)
        yield case("glu.out", values(dtype, 4, 6, 3), 1, ulps=4)
    yield case("logit.out", plain(F32, 50, low=-0.2, high=1.2), 0.1, scale=1.0)
    yield case("elu.out", values(F32, 40), 1.5, 0.75, 2.0)
    yield case("leaky_relu.out", values(F32, 40), 2)
    yield case("hardtanh.out", values(F32, 40), 2.0, 1.0)
    yield case("hardtanh.out", values(F32, 40), 2.0, math.nan)
    yield case("gelu.out", values(F32, 40), "exact")
    for dim in (0, -1, 3, -3, 4):
        yield case("glu.out", plain(F32, 2, 4, 6), dim, ulps=4)
    yield case("glu.out", plain(F32, 2, 4, 3, 3).to(memory_format=torch.channels_last), 1, ulps=4)
    yield case("glu.out", torch.tensor(1.0), 0)
    yield case("glu.out", torch.zeros(2, 0), 1)


# ------------------------------------------------------------ two operands

PROMOTED = "add mul div floor_divide remainder maximum eq logical_and bitwise_and pow".split()
OTHERS = (
    "sub fmod atan2 minimum ne lt le gt ge logical_or logical_xor bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift"
).split()
OUT_OVERLOAD = {"pow": "Tensor_Tensor_out"}
OUT_OVERLOAD |= dict.fromkeys(("add", "sub", "mul", "div", "floor_divide", "maximum", "minimum", "atan2"), "out")
OUT_OVERLOAD |= dict.fromkeys(("logical_and", "logical_or", "logical_xor"), "out")
DIVIDES = ("floor_divide", "fmod", "remainder")


def second(name: str, dtype: torch.dtype, *shape: int) -> Tensor:
    """A right operand without what the machine under torch stops at: integer division of the smallest by -1."""
    if name in DIVIDES and dtype != F32:
        return plain(dtype, *shape) if dtype != B else torch.ones(shape, dtype=B)
    return values(dtype, *shape, seed=7)


def binary_case(name: str, x: Tensor, y: Tensor) -> OneOp:
    full = f"{name}.{OUT_OVERLOAD.get(name, 'Tensor_out')}"
    return case(full, x, y, 1, scale=sums(x, y)) if name in ("add", "sub") else case(full, x, y)


def sums(x: Tensor, y: Tensor | float, alpha: float = 1) -> Tensor:
    """Largest term of a sum."""
    y = torch.as_tensor(y).double() * alpha
    return torch.maximum(*torch.broadcast_tensors(x.double().abs(), y.abs())).nan_to_num(0, 0, 0)


ALPHAS = (
    (F32, F32, 2.5), (F32, F32, -3), (F32, I32, 0.5), (I8, I8, 7), (I8, I8, 1.5), (I8, I8, 300), (U8, U8, -1),
    (I64, I64, -(2**40)), (I32, I32, True), (B, B, 2), (B, B, True), (B, B, 0),
)  # fmt: skip


def binary() -> Iterator[OneOp]:
    for name in (*PROMOTED, *OTHERS):
        for a, b in PAIRS if name in PROMOTED else SOME_PAIRS:
            yield binary_case(name, values(a, 3, 4, 5), second(name, b, 4, 1))
        for a, b in ((I8, I64), (I64, U8), (F32, I32), (U8, F32), (I16, I16)):
            yield binary_case(name, values(a, 6), second(name, b))
            yield binary_case(name, values(a), second(name, b, 6))
            yield binary_case(name, values(a), second(name, b))
            yield binary_case(name, values(a, 0, 3), second(name, b, 1, 3))
    for name in ("floor_divide", "div"):
        for mode in (None, "trunc", "floor", "up"):
            overload = "div.out_mode"
            for a, b in SOME_PAIRS if name == "div" else ():
                yield case(overload, values(a, 40), second("fmod", b, 40), mode)
    for name in ("floor_divide", "fmod", "remainder"):
        yield binary_case(name, plain(I32, 4), torch.tensor([1, 2, 0, 3], dtype=I32))
        yield binary_case(name, plain(F32, 300, low=-50, high=50), plain(F32, 300, seed=3))
    big = plain(F32, 200, low=0.01, high=8)
    yield case("pow.Tensor_Tensor_out", big, plain(F32, 200, seed=5))
    yield case("atan2.out", plain(F32, 200), plain(F32, 200, seed=5))
    for a, b, alpha in ALPHAS:
        x, y = values(a, 4, 5), values(b, 5, seed=3)
        yield case("add.out", x, y, alpha, scale=sums(x, y, alpha))
        yield case("sub.out", x, y, alpha, scale=sums(x, y, alpha))


# ------------------------------------------------------------ a number

NUMBERS = (2, -3, 1.5, True, 300, 0.5, -1, 2**40)
WITH_NUMBER = (
    "mul.Scalar_out div.Scalar_out eq.Scalar_out ne.Scalar_out lt.Scalar_out le.Scalar_out gt.Scalar_out "
    "ge.Scalar_out fmod.Scalar_out remainder.Scalar_out pow.Tensor_Scalar_out bitwise_and.Scalar_out "
    "bitwise_or.Scalar_out bitwise_xor.Scalar_out bitwise_left_shift.Tensor_Scalar_out "
    "bitwise_right_shift.Tensor_Scalar_out fill.Scalar_out"
).split()


def with_number() -> Iterator[OneOp]:
    for name, dtype, number in itertools.product(WITH_NUMBER, DTYPES, NUMBERS):
        bad = "pow" in name and dtype == B  # torch decides by the value of the exponent there
        # the smallest integer divided by -1 stops torch
        x = plain(dtype, 20) if number == -1 and ("fmod" in name or "remainder" in name) else values(dtype, 20)
        if not bad:
            yield case(name, x, number)
    for name, dtype, number in itertools.product(("add", "sub", "rsub"), DTYPES, NUMBERS):
        x = values(dtype, 4, 5)
        yield case(f"{name}.Scalar_out", x, number, 1, scale=sums(x, float(number)))
    for name in ("add", "sub", "rsub"):
        x = plain(F32, 4, 5)
        yield case(f"{name}.Scalar_out", x, 1.5, 2.5, scale=sums(x * 2.5, 1.5 * 2.5))
        yield case(f"{name}.Scalar_out", plain(I16, 9), 3, -2)
        yield case(f"{name}.Scalar_out", plain(I16, 9), 3, 0.5)
    for dtype, base in itertools.product((*INTEGERS, F32), (2, -3, 1.5, 1, 0.0)):
        yield case("pow.Scalar_out", base, values(dtype, 30))
    for exponent in (0.5, -0.5, 2, 3.0, -1.0, -2, 0, 1, 0.3, math.inf, math.nan):
        yield case("pow.Tensor_Scalar_out", values(F32, 64), exponent)
        yield case("pow.Tensor_Scalar_out", plain(F32, 64, low=0.01, high=9), exponent)
    for mode in (None, "trunc", "floor", "floor "):
        for dtype, number in itertools.product((U8, I8, I64, F32), (3, -2, 0.7)):
            yield case("div.Scalar_mode_out", values(dtype, 30), number, mode)
    for dtype, number in itertools.product(INTEGERS, (0, 0.0)):
        yield case("remainder.Scalar_out", values(dtype, 8), number)
        yield case("fmod.Scalar_out", values(dtype, 8), number)


# ------------------------------------------------------------ limits and choices

LIMITS = ((-1, 2), (None, 3), (0.5, None), (None, None), (2, 1), (-0.5, 1.5), (300, None), (True, 5), (-1.0, -1.0))


TRIPLES = ((F32, F32, F32), (I8, I8, I8), (U8, I16, I8), (I32, F32, I32), (B, I8, I8), (B, B, B), (I64, I8, U8))


def limits() -> Iterator[OneOp]:
    for dtype, (low, high) in itertools.product(DTYPES, LIMITS):
        if not (dtype == B and low is True):
            yield case("clamp.out", values(dtype, 40), low, high)
    yield case("clamp.out", values(F32, 40), math.nan, None)
    yield case("clamp.out", values(F32, 40), 0.0, math.nan)
    for a, b, c in TRIPLES:
        yield case("clamp.Tensor_out", values(a, 4, 5), values(b, 5, seed=2), values(c, 4, 1, seed=3))
        yield case("clamp.Tensor_out", values(a, 4, 5), values(b, 5, seed=2), None)
        yield case("clamp.Tensor_out", values(a, 4, 5), None, values(c, seed=3))
        yield case("clamp.Tensor_out", values(a, 4, 5), None, None)


def choices() -> Iterator[OneOp]:
    for a, b in PAIRS:
        yield case("where.self_out", values(B, 4, 1), values(a, 4, 5), values(b, 5, seed=2))
    yield case("where.self_out", values(B), values(I8, 4), values(I64))
    yield case("where.self_out", values(U8, 4, 5), values(F32, 4, 5), values(F32))
    yield OneOp("aten::where.self_out", (values(I32, 4, 5), values(F32, 4, 5), values(F32)), (F32,))
    for dtype, number in itertools.product(DTYPES, NUMBERS):
        yield case("masked_fill.Scalar_out", values(dtype, 3, 4), values(B, 4), number)
    yield case("masked_fill.Scalar_out", values(F32, 4), values(B, 3, 4), -math.inf)
    yield case("masked_fill.Scalar_out", values(F32, 4), values(U8, 4), 1)
    yield case("fill.Scalar_out", values(F32, 4), math.nan)
    yield case("fill.Scalar_out", values(F32, 4), 1e300)
    for a, b in PAIRS:
        number = plain(b) if b == F32 else values(b)
        yield case("fill.Tensor_out", values(a, 3, 2), number.abs() if a == U8 and b == F32 else number)
    yield case("fill.Tensor_out", values(I8, 3), values(I8, 1))


# ------------------------------------------------------------ layouts

LAYOUTS = (
    ((2, 3, 4, 5), (0, 2, 3, 1)), ((2, 3, 4, 5), (0, 1, 2, 3)), ((2, 3, 4, 5), (3, 1, 0, 2)), ((3, 4), (1, 0)),
    ((2, 2, 3, 2, 2), (0, 2, 3, 4, 1)), ((1, 3, 1, 5), (0, 2, 3, 1)),
)  # fmt: skip


def in_order(t: Tensor, order: Sequence[int]) -> Tensor:
    """The same elements, the dimensions in this order in memory."""
    back = [list(order).index(d) for d in range(t.dim())]
    return t.permute(*order).contiguous().permute(*back)


def layouts() -> Iterator[OneOp]:
    """Every mixture of layouts, with and without broadcasting."""
    for (sizes, a), (other, b) in itertools.product(LAYOUTS, LAYOUTS):
        if len(sizes) != len(other) or sizes != other:
            continue
        out = in_order(torch.zeros(sizes), a)
        x, y = plain(F32, *sizes), plain(F32, *sizes, seed=4)
        for name, operands in {
            "add.out": (in_order(x, a), in_order(y, b), 1), "mul.out": (in_order(x, b), in_order(y, b)),
            "sin.out": (in_order(x, b),), "where.self_out": (in_order(x > 0, b), in_order(x, a), in_order(y, b)),
            "maximum.out": (in_order(x, b), y[..., :1].contiguous()), "sub.out": (y[:1], in_order(x, b), 2),
        }.items():  # fmt: skip
            yield OneOp(f"aten::{name}", operands, (out,), scale=9.0 if name in ("add.out", "sub.out") else 0.0)
        yield OneOp("aten::eq.Tensor_out", (in_order(x, b), in_order(x, a)), (out.bool(),))
    many = plain(I16, *[2] * 10)
    yield OneOp("aten::mul.out", (in_order(many, range(9, -1, -1)), many[0, 0]),
                (in_order(many, (*range(1, 10), 0)),))
    yield OneOp("aten::add.out", (plain(I8, *[1] * 15, 3), plain(I8, 2, *[1] * 15), 1), (I8,))
    # results of another type than the one computed in
    yield OneOp("aten::add.out", (values(I8, 9), values(I8, 9, seed=1), 1), (I32,))
    yield OneOp("aten::add.out", (values(I32, 9), values(I8, 9, seed=1), 1), (I8,))
    yield OneOp("aten::mul.out", (values(U8, 9), values(U8, 9, seed=1)), (F32,))
    yield OneOp("aten::mul.out", (values(U8, 9), values(I32)), (B,))
    yield OneOp("aten::mul.out", (values(F32, 9), values(U8, 9, seed=1)), (I32,))
    yield OneOp("aten::eq.Tensor_out", (values(F32, 9), values(U8, 9, seed=1)), (F32,))
    yield OneOp("aten::lt.Scalar_out", (values(I8, 9), 1), (I16,))
    yield OneOp("aten::logical_not.out", (values(F32, 9),), (U8,))
    # sizes that do not fit
    yield case("add.out", plain(F32, 3, 4), plain(F32, 3), 1)
    yield case("mul.out", plain(F32, 3, 0), plain(F32, 2))
    yield OneOp("aten::where.self_out", (values(B, 3), plain(F32, 2, 2), plain(F32, 1)), (F32,))


# ------------------------------------------------------------ copies

WHOLE = (B, *INTEGERS, F32, torch.float64, torch.float16)


def number_cast(a: torch.dtype, b: torch.dtype, *shape: int) -> Tensor:
    """What `b` can hold of `a` where the conversion is defined."""
    if a == F32 and b != F32:
        x = plain(F32, *shape, low=-99 if b != U8 else 0, high=99)
        return torch.where(x.abs() < 30, torch.zeros(()), x)
    return values(a, *shape) if a in DTYPES else plain(F32, *shape).to(a)


def copies() -> Iterator[OneOp]:
    for a, b in itertools.product(DTYPES, DTYPES):
        x = number_cast(a, b, 2, 3, 4, 2)
        yield OneOp("aten::_to_copy.out", (x, False, None), (b,))
        yield OneOp("dim_order_ops::_to_dim_order_copy.out", (x, False, [0, 2, 3, 1]), (
            torch.zeros(x.shape, dtype=b).to(memory_format=torch.channels_last),))
        yield OneOp("aten::copy.out", (torch.zeros(2, 3, 4, 2, dtype=b), x[1, 0], False), (b,))
        yield OneOp("aten::copy_", (torch.zeros(2, 3, 4, 2, dtype=b), x[:1], False), ())
    for dtype in WHOLE:
        x = number_cast(dtype, dtype, 2, 3, 4, 5)
        for name in ("alias_copy", "detach_copy", "lift_fresh_copy"):
            yield OneOp(f"aten::{name}.out", (x,))
        yield OneOp("aten::clone.out", (x, None))
        yield OneOp("et_copy::_h2d_copy.out", (x,))
        yield OneOp("et_copy::_d2h_copy.out", (x,))
        yield OneOp("dim_order_ops::_clone_dim_order.out", (x, False, None))
        for order in ((0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)):
            out = in_order(torch.zeros(x.shape, dtype=dtype), order)
            yield OneOp("dim_order_ops::_to_dim_order_copy.out", (x, False, list(order)), (out,))
            yield OneOp("dim_order_ops::_clone_dim_order.out", (in_order(x, order), False, [0, 1, 2, 3]))
        yield OneOp("aten::native_dropout.out", (x, 0.5, False), (dtype, B))
    yield OneOp("aten::native_dropout.out", (plain(F32, 4), 0.0, True), (F32, B))
    for dtype in (F32, torch.float64):
        yield OneOp("aten::_conj_physical.out", (number_cast(dtype, dtype, 3),))
    yield OneOp("aten::copy.out", (plain(F32, 2), plain(F32, 2, 2), False))
    yield OneOp("aten::copy.out", (plain(F32, 2), plain(F32, 3), False))
    yield OneOp("aten::clone.out", (torch.zeros(0, 3), None))
    yield OneOp("aten::clone.out", (torch.tensor(3.5), None))


CASES: list[OneOp] = [
    *unary(), *binary(), *with_number(), *limits(), *choices(), *layouts(), *copies(),
]  # fmt: skip
