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

UNARY = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid", "sqrt", "rsqrt", "reciprocal", "floor", "ceil", "round",
    "trunc", "sign", "relu",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "pow", "atan2", "fmod", "remainder", "maximum", "minimum")
ACTIVATIONS = ("silu", "leaky_relu", "hardswish", "gelu", "elu", "softplus", "mish", "logsigmoid")

Results = dict[str, Tensor]


def results(x: Tensor, y: Tensor, image: Tensor, weight: Tensor, matrix: Tensor) -> Results:
    """By name."""
    halves = image * 0.5
    return {
        **{name: getattr(torch, name)(x) for name in UNARY},
        **{name: getattr(torch, name)(x, y) for name in BINARY},
        **{name: getattr(F, name)(x) for name in ACTIVATIONS},
        "gelu tanh": F.gelu(x, approximate="tanh"), "pow 3": torch.pow(x, 3), "pow 0.3": torch.pow(x, 0.3),
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


class All(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor, image: Tensor, weight: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        return tuple(results(x, y, image, weight, matrix).values())


def numbers() -> Tensor:
    """Every exponent with either sign, and more where functions change: around 0 and 1, to where exp ends, at the ends
    of domains."""
    torch.manual_seed(3)
    exponents = torch.arange(256, dtype=torch.int32).repeat(32) << 23
    bits = exponents | torch.randint(1 << 23, exponents.shape, dtype=torch.int32)
    scales = [torch.randn(3000) * scale for scale in (1e-3, 1, 3, 40)]
    eps = 2.0**-24
    ones = 1 + torch.arange(-200, 400, 3) * eps
    ends = torch.tensor([0.0, math.inf, math.nan, 88, 1e30, 1e-30, 2.0**-149, 2.0**-126, 2.0**128 - 2.0**104] * 8)
    halves = [bits.view(torch.float32), ones, 1 + 0.1 * torch.randn(1000), torch.linspace(80, 90, 300), ends]
    return torch.cat([*scales, *halves, *(-h for h in halves)])


@pytest.fixture(scope="module")
def inputs() -> tuple[Tensor, ...]:
    x = numbers()
    y = x[torch.randperm(x.numel())]
    return x, y, torch.randn(1, 4, 9, 7), torch.randn(6, 4, 3, 3), torch.randn(19, 19)


def test_same_bits(inputs: tuple[Tensor, ...]) -> None:
    pte = to_edge(torch.export.export(All().eval(), inputs)).to_executorch().buffer
    arrays = [t.numpy() for t in inputs]
    found, wanted = run(pte, arrays, board="mps3-an547").outputs, Native(pte).run(arrays)
    apart = {name: differences(*pair) for name, pair in zip(results(*inputs), zip(found, wanted), strict=True)}
    assert len(apart) > 60 and {name: n for name, n in apart.items() if n} == {}


def differences(found: Any, wanted: Any) -> int:
    """How many numbers have other bits; NaN is NaN."""
    bits = [np.where(np.isnan(v), np.int32(-1), np.ascontiguousarray(v).view(np.int32)) for v in (found, wanted)]
    return int((bits[0] != bits[1]).sum())
