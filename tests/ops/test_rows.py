"""Every NPU operator: one row each, on both NPU families, against the quantized model in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lowering
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from arm_lower.ops.pool import cascade


class Fn(nn.Module):
    """A function as a module; behind a 1x1 convolution where the function alone would only move data."""

    def __init__(self, fn: Callable[..., Any], conv: int = 0) -> None:
        super().__init__()
        self.fn = fn
        self.conv = nn.Conv2d(conv, conv, 1) if conv else nn.Identity()

    def forward(self, *args: torch.Tensor) -> Any:
        return self.fn(self.conv(args[0]), *args[1:])


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...] = ((1, 8, 12, 10),)
    lsb: float = 1.0
    scale: float = 1.0


def conv(*args: Any, **kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(*args, **kwargs)


def fn(f: Callable[..., Any], conv: int = 0) -> Callable[[], nn.Module]:
    return lambda: Fn(f, conv)


def bn_relu() -> nn.Module:
    m = nn.Sequential(nn.Conv2d(8, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU6(inplace=True))
    m[1].running_mean = torch.rand(12)
    m[1].running_var = torch.rand(12) + 0.5
    return m


def steep_prelu() -> nn.Module:
    m = nn.PReLU(8)
    m.weight.data = torch.linspace(-0.5, 1.4, 8)
    return m


def conv1d_cropped(channels: int, out: int, dilation: int) -> nn.Module:
    """A causal convolution as temporal convolutional networks have it: padded at both ends, then cut at the end."""
    pad = 2 * dilation
    conv = nn.Conv1d(channels, out, 3, padding=pad, dilation=dilation)
    return nn.Sequential(conv, fn(lambda x: x[:, :, :-pad])(), nn.ReLU())


def wide_prelu(prelu: nn.Module, conv: type[nn.Module] = nn.Conv2d) -> nn.Module:
    """The quantizer gives its input 16 bits, since the first convolution needs more memory."""
    return nn.Sequential(conv(8, 16, 1), conv(16, 8, 3, stride=4), prelu)


MAP = ((1, 8, 12, 10),)
TWO = ((1, 8, 12, 10), (1, 8, 12, 10))
LINE = ((1, 6, 40),)
FLAT = ((3, 20),)

# Functions that end a model: nothing but their own rule quantizes the result.
LAST: dict[str, Callable[..., Any]] = {
    "log2": lambda x: torch.log2(x.abs() + 1),
    "log10": lambda x: torch.log10(x.abs() + 1),
    "exp2": torch.exp2,
    "atan": torch.atan,
    "floor": torch.floor,
    "round": torch.round,
    "sign": torch.sign,
    "threshold": lambda x: F.threshold(x, 0.2, 0.0),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
}

ROWS = [
    Row("conv3x3", conv(8, 12, 3, padding=1)),
    Row("conv_nobias", conv(8, 12, (3, 1), bias=False)),
    Row("conv_stride", conv(8, 12, 3, stride=2, padding=1)),
    Row("conv_stride_uncovered", conv(8, 12, 3, stride=3)),
    Row("conv_dilation", conv(8, 12, 3, padding=2, dilation=2)),
    Row("conv_dilation_beyond_map", conv(8, 12, 3, padding=18, dilation=18)),
    Row("conv_dilation_one_axis_dead", conv(8, 12, 3, padding=11, dilation=11)),
    Row("conv_dilation3", conv(8, 12, 3, padding=3, dilation=3)),
    Row("conv_dilation_beyond_columns", conv(8, 12, (1, 3), padding=(0, 16), dilation=(1, 11))),
    Row("conv1d_dilation", lambda: nn.Conv1d(6, 8, 3, padding=8, dilation=8), LINE),
    Row("conv1d_dilation_uneven", lambda: nn.Conv1d(6, 8, 3, padding=5, dilation=7), LINE),
    Row("conv1d_dilation_depthwise", lambda: nn.Conv1d(6, 6, 3, padding=4, dilation=4, groups=6), LINE),
    Row("conv1d_dilation_strided", lambda: nn.Conv1d(6, 8, 3, padding=4, dilation=4, stride=2), LINE),
    Row("conv_rows_dilation", conv(8, 12, (3, 1), padding=(4, 0), dilation=(4, 1)), ((2, 8, 13, 10),)),
    Row("conv_cropped", lambda: nn.Sequential(conv1d_cropped(6, 8, 4), conv1d_cropped(8, 8, 8)), LINE),
    Row("conv_1x1_padded", lambda: nn.Sequential(conv(8, 8, 1, padding=1)(), nn.Conv2d(8, 8, 3, padding=4))),
    Row("conv_same", conv(8, 12, 4, padding="same")),
    Row("conv_stride4", conv(8, 12, 5, stride=4, padding=2)),
    Row("conv_patch", conv(3, 16, 4, stride=4), ((1, 3, 16, 24),)),
    Row("conv_1x1_stride4", conv(8, 12, 1, stride=4)),
    Row("conv_image_folded", conv(3, 32, 3, stride=2, padding=1), ((1, 3, 16, 20),)),
    Row("conv_mono_folded", conv(1, 16, 7, padding=3), ((1, 1, 12, 16),)),
    Row("conv_batch", conv(8, 12, 3, padding=1), ((3, 8, 7, 9),)),
    Row("depthwise", conv(8, 8, 3, padding=1, groups=8)),
    Row("depthwise_stride2", conv(8, 8, 3, stride=2, groups=8)),
    Row("depthwise_dilation3", conv(8, 8, 3, padding=3, dilation=3, groups=8)),
    Row("depthwise_stride4", conv(150, 150, 5, stride=4, padding=2, groups=150), ((1, 150, 12, 10),)),
    Row("depthwise_stride5", conv(8, 8, 3, stride=(1, 5), groups=8)),
    Row("grouped_stride4", conv(8, 8, 5, stride=4, padding=2, groups=2)),
    Row("depthwise_multiplier", conv(8, 24, 3, padding=1, groups=8)),
    Row("grouped_wide", conv(32, 16, 3, groups=2), ((1, 32, 8, 8),)),
    Row("grouped_narrow", conv(16, 32, 3, padding=1, groups=8), ((1, 16, 8, 8),)),
    Row("conv_bn_relu6", bn_relu),
    Row("conv1d", lambda: nn.Conv1d(6, 10, 5, stride=2, padding=3), LINE),
    Row("conv1d_chain", lambda: nn.Sequential(nn.Conv1d(6, 10, 3), nn.ReLU(), nn.Conv1d(10, 4, 3)), LINE, 1.0),
    Row("transposed_k2s2", lambda: nn.ConvTranspose2d(8, 6, 2, stride=2)),
    Row("transposed_k3s2", lambda: nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1)),
    Row("transposed_k5s3", lambda: nn.ConvTranspose2d(3, 1, 5, stride=3, padding=2), ((1, 3, 4, 4),)),
    Row("transposed_groups", lambda: nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1, groups=2)),
    Row("transposed_depthwise", lambda: nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1, groups=8)),
    Row("transposed_multiplier", lambda: nn.ConvTranspose2d(4, 8, 4, stride=2, groups=4), ((1, 4, 6, 5),)),
    Row("transposed_1d_depthwise", lambda: nn.ConvTranspose1d(6, 6, 4, stride=2, padding=1, groups=6), LINE),
    Row("transposed_1d", lambda: nn.ConvTranspose1d(6, 4, 4, stride=2, padding=1), LINE),
    Row("linear", lambda: nn.Linear(20, 7), FLAT),
    Row("linear_rows", lambda: nn.Linear(20, 7), ((2, 5, 20),)),
    Row(
        "linear_after_flatten",
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6 * 4 * 3, 5)),
        ((1, 4, 6, 5),),
    ),
    Row(
        "linear_after_permuted_flatten",
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), Fn(lambda x: x.permute(0, 3, 2, 1).reshape(1, -1)), nn.Linear(72, 5)),
        ((1, 4, 6, 5),),
    ),
    Row("batch_norm_alone", lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(8))),
    Row("relu", fn(F.relu, 8)),
    Row("relu_inplace", fn(lambda x: F.relu_(x + 0.1))),
    Row("relu6", fn(F.relu6), scale=4.0),
    Row("hardtanh", fn(lambda x: F.hardtanh(x, -0.3, 0.7))),
    Row("clamp", fn(lambda x: x.clamp(min=-0.2))),
    *(
        Row(name, fn(getattr(F, name)))
        for name in (
            "hardswish",
            "hardsigmoid",
            "sigmoid",
            "tanh",
            "silu",
            "gelu",
            "elu",
            "leaky_relu",
            "softplus",
            "mish",
            "selu",
        )
    ),
    *(Row(name, fn(getattr(torch, name))) for name in ("exp", "abs", "neg", "sin", "cos", "erf", "square")),
    Row("log", fn(lambda x: torch.log(x.abs() + 0.5)), lsb=2.0),
    Row("sqrt", fn(lambda x: torch.sqrt(x.abs())), lsb=2.0),
    Row("rsqrt", fn(lambda x: torch.rsqrt(x.abs() + 0.5)), lsb=2.0),
    Row("pow", fn(lambda x: x.abs() ** 1.5), lsb=2.0),
    Row("conv_then_table", lambda: nn.Sequential(nn.Conv2d(8, 12, 1), nn.Hardswish()), lsb=2.0),
    Row("prelu", lambda: nn.PReLU(8)),
    Row("prelu_steep", lambda: steep_prelu()),
    Row("prelu_one", lambda: nn.PReLU()),
    Row("prelu_16_bits", lambda: wide_prelu(nn.PReLU(8)), lsb=2.0),
    Row("prelu_16_bits_steep", lambda: wide_prelu(steep_prelu()), lsb=2.0),
    Row("prelu_16_bits_line", lambda: wide_prelu(nn.PReLU(8), nn.Conv1d), ((1, 8, 40),), 2.0),
    Row("prelu_16_bits_flat", lambda: nn.Sequential(nn.Linear(20, 40), nn.Linear(40, 8), steep_prelu()), FLAT, 2.0),
    Row("add", fn(torch.add), TWO),
    Row("add_relu", fn(lambda x, y: F.relu(x + y)), TWO),
    Row("add_broadcast", fn(torch.add), ((1, 8, 12, 10), (1, 8, 1, 1))),
    Row("add_lower_rank", fn(torch.add), ((2, 8, 5), (5,))),
    Row("add_self", fn(lambda x: x + x)),
    Row("add_scalar", fn(lambda x: x + 1.5)),
    Row("scalar_first", fn(lambda x: 3.0 - x)),
    Row("sub", fn(torch.sub), TWO),
    Row("sub_alpha", fn(lambda x, y: torch.sub(x, y, alpha=0.5)), TWO),
    Row("mul", fn(torch.mul), TWO),
    Row("mul_self", fn(lambda x: x * x)),
    Row("mul_scalar", fn(lambda x: x * -0.7)),
    Row("mul_channels", fn(torch.mul), ((1, 8, 12, 10), (1, 8, 1, 1))),
    Row("div_scalar", fn(lambda x: torch.sigmoid(x / 3))),
    Row("reciprocal", fn(lambda x: 2 / (x.abs() + 1)), lsb=2.0),
    Row("glu", fn(lambda x: F.glu(x, 1), 8)),
    Row("maximum", fn(torch.maximum), TWO),
    Row("minimum", fn(torch.minimum), TWO),
    Row("max_pool", lambda: nn.MaxPool2d(3, 2, 1)),
    Row("max_pool_ceil", lambda: nn.MaxPool2d(3, 2, ceil_mode=True), ((1, 8, 12, 11),)),
    Row("max_pool_stride4", lambda: nn.MaxPool2d(4, 4)),
    Row("max_pool_stride4_padded", lambda: nn.MaxPool2d(5, 4, 2)),
    Row("max_pool_stride4_padded_3", lambda: nn.MaxPool2d(3, 4, 1)),
    Row("max_pool_stride6_padded", lambda: nn.MaxPool2d(7, 6, 3)),
    Row("max_pool_stride4_overlapping", lambda: nn.MaxPool2d(5, 4)),
    Row("max_pool_stride4_padded_6", lambda: nn.MaxPool2d(6, 4, 3)),
    Row("max_pool_stride5", lambda: nn.MaxPool2d(3, 5)),
    Row("max_pool_dilated", lambda: nn.MaxPool2d(3, 1, dilation=2)),
    Row("max_pool_dilated_strided", lambda: nn.MaxPool2d(3, 2, 1, dilation=3), ((1, 8, 32, 32),)),
    Row("max_pool1d", lambda: nn.MaxPool1d(3, 2), LINE),
    Row("avg_pool", lambda: nn.AvgPool2d(2)),
    Row("avg_pool_pad", lambda: nn.AvgPool2d(3, 2, 1)),
    Row("avg_pool_pad_not_counted", lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    Row("avg_pool_ceil", lambda: nn.AvgPool2d(3, 2, ceil_mode=True), ((1, 8, 12, 11),)),
    Row("avg_pool_stride4", lambda: nn.AvgPool2d(4)),
    Row("avg_pool_whole", lambda: nn.AvgPool2d(8), ((1, 8, 8, 8),)),
    Row("avg_pool_large_kernel", lambda: nn.AvgPool2d((12, 10), 1)),
    Row("avg_pool1d", lambda: nn.AvgPool1d(4), LINE),
    Row("adaptive_one", lambda: nn.AdaptiveAvgPool2d(1)),
    Row("adaptive_even", lambda: nn.AdaptiveAvgPool2d((6, 5))),
    Row("adaptive_uneven", lambda: nn.AdaptiveAvgPool2d((5, 3))),
    Row("adaptive_large_stride", lambda: nn.AdaptiveAvgPool2d(3), ((1, 8, 24, 24),)),
    Row("mean_map", fn(lambda x: x.mean((2, 3), keepdim=True))),
    Row("mean_channels", fn(lambda x: x.mean(1))),
    Row("mean_long", fn(lambda x: x.mean((1, 2), keepdim=True)), ((1, 256, 400),)),
    Row("mean_all", fn(lambda x: x.mean()), ((1, 5, 7, 3),)),
    Row("sum", fn(lambda x: x.sum(-1)), FLAT),
    Row("amax", fn(lambda x: x.amax((2, 3)))),
    Row("amin", fn(lambda x: x.amin(1, keepdim=True))),
    Row("softmax", fn(lambda x: F.softmax(x, -1)), ((1, 10),), 1.5, 3.0),
    Row("softmax_rows", fn(lambda x: F.softmax(x, -1)), ((40, 12),), 1.5, 3.0),
    Row("softmax_channels", fn(lambda x: F.softmax(x, 1)), MAP, 1.5, 3.0),
    Row("log_softmax", fn(lambda x: F.log_softmax(x, -1)), ((1, 10),), 1.5, 3.0),
    Row("log_softmax_channels", fn(lambda x: F.log_softmax(x, 1)), MAP, 1.5, 3.0),
    Row("cat", fn(lambda x, y: torch.cat([x, y], 1), 8), TWO),
    Row("cat_width", fn(lambda x, y: torch.cat([x, y], 3), 8), TWO),
    Row("stack", fn(lambda x, y: torch.stack([x, y], 1), 8), TWO),
    Row("split", fn(lambda x: torch.split(x, 3, 1), 8)),
    Row("chunk_add", fn(lambda x: x.chunk(2, 1)[0] + x.chunk(2, 1)[1], 8)),
    Row("slice", fn(lambda x: x[:, 1:5, ::2, -3:], 8)),
    Row("select", fn(lambda x: x[:, 3], 8)),
    Row("pad", fn(lambda x: F.pad(x, (1, 2, 0, 1)), 8)),
    Row("pad_value", fn(lambda x: F.pad(x, (1, 2), value=0.25), 8)),
    Row("pad_negative", fn(lambda x: F.pad(x, (-1, 2)), 8)),
    Row("pad_conv", lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(8, 12, 3, 2))),
    Row("view", fn(lambda x: x.view(1, 4, 2, 12, 10), 8)),
    Row("permute", fn(lambda x: x.permute(0, 2, 3, 1), 8)),
    Row("permute_reshape", fn(lambda x: x.permute(0, 2, 1, 3).reshape(1, 12, 80), 8)),
    Row("transpose", fn(lambda x: x.transpose(1, 3), 8)),
    Row("flip", fn(lambda x: x.flip((2, -1)), 8)),
    Row("roll", fn(lambda x: x.roll((1, -3), (2, 3)), 8)),
    Row("squeeze", fn(lambda x: x.unsqueeze(2).squeeze(0), 8)),
    Row("expand", fn(lambda x: x[:, :, :1].expand(1, 8, 4, 10), 8)),
    Row("repeat", fn(lambda x: x.repeat(1, 2, 1, 1), 8)),
    Row("upsample_nearest", fn(lambda x: F.interpolate(x, scale_factor=2), 8)),
    Row("upsample_nearest_x3", fn(lambda x: F.interpolate(x, scale_factor=3), 8)),
    Row("upsample_nearest_uneven", fn(lambda x: F.interpolate(x, size=(17, 25)), 8)),
    Row("upsample_bilinear", fn(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 8)),
    Row(
        "upsample_bilinear_corners",
        fn(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True), 8),
    ),
    Row("upsample_bilinear_size", fn(lambda x: F.interpolate(x, size=(30, 30), mode="bilinear"), 8)),
    Row("upsample_line", lambda: nn.Sequential(nn.Conv1d(6, 6, 1), nn.Upsample(scale_factor=2)), LINE),
    Row("upsample_line_uneven", lambda: nn.Sequential(nn.Conv1d(6, 6, 1), nn.Upsample(50)), LINE),
    Row("upsample_line_linear", lambda: nn.Sequential(nn.Conv1d(6, 6, 1), nn.Upsample(70, mode="linear")), LINE),
    Row("pixel_shuffle", fn(lambda x: F.pixel_shuffle(x, 2), 8)),
    Row("pixel_unshuffle", fn(lambda x: F.pixel_unshuffle(x, 2), 8)),
    Row("channel_shuffle", fn(lambda x: F.channel_shuffle(x, 4), 8)),
    Row("local_response_norm", lambda: nn.LocalResponseNorm(5)),
    Row("local_response_norm_strong", lambda: nn.LocalResponseNorm(3, alpha=1.0, beta=0.5, k=2.0), MAP, 2.0),
    Row("linear_bn_relu", lambda: nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU()), FLAT),
    *(Row(f"last_{name}", fn(lambda x, f=f: f(x), 8)) for name, f in LAST.items()),
    Row("swish_by_hand", fn(lambda x: x * torch.sigmoid(x), 8)),
    Row("mish_by_hand", fn(lambda x: x * torch.tanh(F.softplus(x)), 8)),
    Row("hardswish_by_hand", fn(lambda x: x * F.relu6(x + 3) / 6, 8)),
    Row("softsign_by_hand", fn(lambda x: x / (1 + x.abs()), 8)),
    Row("gelu_by_hand", fn(lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x))), 8)),
    Row("snake_by_hand", fn(lambda x: x + torch.sin(x) ** 2, 8)),
    Row("tanhshrink_by_hand", fn(lambda x: x - torch.tanh(x), 8)),
    Row("relu_added", fn(lambda x: x + torch.relu(x), 8)),
    Row("residual", lambda: Residual()),
    Row("squeeze_excite", lambda: SqueezeExcite(), lsb=3.0),
]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.b(F.relu(self.a(x))) + x)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.up(F.relu(self.down(s))))


@pytest.mark.parametrize("target", lowering.TARGETS)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_row(row: Row, target: str) -> None:
    torch.manual_seed(0)
    lowering.check(row.make().eval(), lowering.samples(*row.shapes, scale=row.scale), target, row.lsb)


class InParts(nn.Module):
    """The first input of ``inner`` is a slice of a larger map, and its first result is joined to another map."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, whole: torch.Tensor, other: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        x = whole[..., 1:-2] if whole.dim() < 4 else whole[..., 2:-1, 1:-2]
        y = self.inner(x, *rest)
        return torch.cat([F.relu(other), y[0] if isinstance(y, (tuple, list)) else y], other.dim() - 1)


@pytest.mark.parametrize("target", lowering.TARGETS)
@pytest.mark.parametrize("row", [r for r in ROWS if len(r.shapes[0]) > 1], ids=lambda r: r.name)
def test_row_between_other_parts(row: Row, target: str) -> None:
    """Vela replaces slices and joins by offsets, and splits what is large: it must not lose them on the way."""
    torch.manual_seed(0)
    inner = row.make().eval()
    first, *rest = row.shapes
    whole = (*first[:-1], first[-1] + 3) if len(first) < 4 else (*first[:-2], first[-2] + 3, first[-1] + 3)
    y = inner(*(torch.zeros(s) for s in row.shapes))
    y = y[0] if isinstance(y, (tuple, list)) else y
    if y.dim() < 2:
        return
    module = InParts(inner).eval()
    lowering.check(module, lowering.samples(whole, tuple(y.shape), *rest, scale=row.scale), target, row.lsb + 1)


def test_a_cascade_of_pools_reads_what_the_pool_reads() -> None:
    for kernel in range(1, 40):
        for stride in range(4, 24):
            stages = cascade(kernel, stride)
            read = {0}
            for k, s in reversed(stages):
                read = {first * s + i for first in read for i in range(k)}
            if stages:
                assert read == set(range(kernel)) and math.prod(s for _, s in stages) == stride
