"""Float kernels give the same bits on a Cortex-M55 in QEMU, vector code and all, as in the host build."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from arm_lower.program import to_edge
from fvp.native import Native
from fvp.runner import run

SAME_IN_ANY_LIBM = (
    "exp", "log", "log2", "log10", "sin", "cos", "cosh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "floor", "ceil",
    "round", "trunc", "sign", "relu",
)  # fmt: skip
OWN_IN_EACH_LIBM = ("expm1", "log1p", "tan", "asin", "acos", "atan", "sinh", "tanh", "asinh", "acosh", "atanh", "erf")
BINARY = ("add", "sub", "mul", "div", "pow", "fmod", "remainder", "maximum", "minimum")
ULPS = 8
"""Of functions that newlib and glibc approximate each in its own way; gelu's 1 + erf(x) multiplies that."""

Results = dict[str, Tensor]


def exact(x: Tensor, y: Tensor, image: Tensor, weight: Tensor, matrix: Tensor) -> Results:
    """By name, what has to be the same to the bit."""
    halves = image * 0.5
    return {
        **{name: getattr(torch, name)(x) for name in SAME_IN_ANY_LIBM},
        **{name: getattr(torch, name)(x, y) for name in BINARY},
        "silu": F.silu(x), "leaky_relu": F.leaky_relu(x), "hardswish": F.hardswish(x), "pow 3": torch.pow(x, 3),
        "pow 0.3": torch.pow(x, 0.3),
        "convolution": F.conv2d(image, weight), "transposed": F.conv_transpose2d(image, weight[:4]),
        "depthwise": F.conv2d(image, weight[:4, :1], groups=4, padding=1),
        "mean": image.mean((2, 3)), "var": image.var((1, 2)), "sum": image.sum(), "prod": halves.prod(),
        "cumsum": image.cumsum(2), "std": matrix.std(), "norm": matrix.norm(dim=1), "logsumexp": matrix.logsumexp(0),
        "layer_norm": F.layer_norm(image, (9, 7)), "group_norm": F.group_norm(image, 2),
        **{f"softmax {d}": F.softmax(image, d) for d in (0, 1, -1)},
        **{f"log_softmax {d}": F.log_softmax(image, d) for d in (1, -1)},
        "avg_pool": F.avg_pool2d(image, 3, 1, 1), "adaptive": F.adaptive_avg_pool2d(image, (4, 3)),
        "bilinear": F.interpolate(image, size=(20, 15), mode="bilinear"),
        "bicubic": F.interpolate(image, scale_factor=2, mode="bicubic"),
        "mm": matrix @ matrix, "linear": F.linear(matrix, matrix, matrix[0]), "columns": matrix.T @ matrix,
        "bmm": torch.bmm(matrix[None], matrix[None]), "vector": matrix[:1] @ matrix,
        "cdist": torch.cdist(matrix, matrix),
    }  # fmt: skip


def near(x: Tensor, y: Tensor) -> Results:
    """By name, what each C library approximates in its own way."""
    return {
        **{name: getattr(torch, name)(x) for name in OWN_IN_EACH_LIBM},
        "atan2": torch.atan2(x, y), "gelu": F.gelu(x), "gelu tanh": F.gelu(x, approximate="tanh"), "elu": F.elu(x),
        "softplus": F.softplus(x), "mish": F.mish(x), "logsigmoid": F.logsigmoid(x),
    }  # fmt: skip


class All(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor, image: Tensor, weight: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        return *exact(x, y, image, weight, matrix).values(), *near(x, y).values()


@pytest.fixture(scope="module")
def inputs() -> tuple[Tensor, ...]:
    torch.manual_seed(3)
    ends = torch.tensor([0.0, -0.0, 1, -1, math.inf, -math.inf, math.nan, 88, -88, 1e30, -1e30, 1e-30] * 8)
    x = torch.cat([torch.randn(3000) * 3, torch.randn(500) * 1e-3, torch.randn(500) * 40, ends])
    y = x[torch.randperm(x.numel())]
    return x, y, torch.randn(1, 4, 9, 7), torch.randn(6, 4, 3, 3), torch.randn(19, 19)


@pytest.fixture(scope="module")
def pairs(inputs: tuple[Tensor, ...]) -> dict[str, tuple[Any, Any]]:
    """Name -> result on the device, in the host build."""
    pte = to_edge(torch.export.export(All().eval(), inputs)).to_executorch().buffer
    arrays = [t.numpy() for t in inputs]
    names = [*exact(*inputs), *near(*inputs[:2])]
    return dict(zip(names, zip(run(pte, arrays, board="mps3-an547").outputs, Native(pte).run(arrays)), strict=True))


def steps(found: Any, wanted: Any) -> int:
    """How many float32 numbers lie between, at most; a NaN is only near a NaN."""
    if not np.array_equal(np.isnan(found), np.isnan(wanted)):
        return 1 << 32
    numbers = ~np.isnan(wanted)
    bits = [np.ascontiguousarray(v[numbers]).view(np.int32).astype(np.int64) for v in (found, wanted)]
    a, b = (np.where(i < 0, -(i & 0x7FFFFFFF), i) for i in bits)
    return int(np.abs(a - b).max(initial=0))


def test_same_bits(pairs: dict[str, tuple[Any, Any]], inputs: tuple[Tensor, ...]) -> None:
    apart = {name: steps(*pairs[name]) for name in exact(*inputs)}
    assert {name: n for name, n in apart.items() if n} == {}


def test_functions_of_libm(pairs: dict[str, tuple[Any, Any]], inputs: tuple[Tensor, ...]) -> None:
    apart = {name: steps(*pairs[name]) for name in near(*inputs[:2])}
    assert {name: n for name, n in apart.items() if n > ULPS} == {}
    assert any(apart.values())
