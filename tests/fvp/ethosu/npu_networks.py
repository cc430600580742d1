"""Small networks with realistic value ranges, made of TOSA operators."""

from __future__ import annotations

import numpy as np
from npu_harness import I8, I32, G

from arm_lower.tosa.ir import Tensor


def _quantize(g: G, acc: Tensor, taps: int, relu: bool) -> Tensor:
    y = g.rescale(acc, I8, 40.0 / (2400.0 * float(np.sqrt(taps))), ozp=-5, per_channel=True)
    return g.op("CLAMP", y, min=-5, max=127) if relu else y


def _pads(size: int, k: int, s: int) -> tuple[int, int]:
    total = max((-(-size // s) - 1) * s + k - size, 0)
    return total // 2, total - total // 2


def conv(g: G, x: Tensor, channels: int, k: int = 3, s: int = 1, relu: bool = True) -> Tensor:
    pad = (*_pads(x.shape[1], k, s), *_pads(x.shape[2], k, s))
    return _quantize(g, g.conv(x, channels, (k, k), (s, s), (1, 1), pad, zp=-5), k * k * x.shape[3], relu)


def depthwise(g: G, x: Tensor, s: int = 1) -> Tensor:
    pad = (*_pads(x.shape[1], 3, s), *_pads(x.shape[2], 3, s))
    return _quantize(g, g.depthwise(x, (3, 3), (s, s), (1, 1), pad, zp=-5), 9, True)


def add(g: G, x: Tensor, y: Tensor) -> Tensor:
    a, b = g.rescale(x, I32, 2.0**19, izp=-5), g.rescale(y, I32, 0.7 * 2.0**19, izp=-5)
    return g.rescale(g.op("ADD", a, b), I8, 2.0**-19, ozp=-5)


def _head(g: G, x: Tensor, classes: int) -> G:
    size = x.shape[1], x.shape[2]
    attrs = {
        "kernel": size,
        "stride": (1, 1),
        "pad": (0, 0, 0, 0),
        "acc_type": "int32",
        "input_zp": -5,
        "output_zp": -5,
    }
    return g.out(x, conv(g, g.op("AVG_POOL2D", x, **attrs), classes, 1, relu=False))


def mobilenet(width: float = 0.25, size: int = 64) -> G:
    g = G(7)
    x = conv(g, g.input((1, size, size, 3)), 8, 3, 2)
    for channels, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (1024, 2)):
        x = conv(g, depthwise(g, x, stride), max(8, int(channels * width)), 1)
    return _head(g, x, 10)


def inverted_residuals(size: int = 48) -> G:
    g = G(8)
    x = conv(g, g.input((1, size, size, 3)), 16, 3, 2)
    for channels, stride in ((16, 1), (24, 2), (24, 1), (40, 2), (40, 1), (40, 1)):
        y = depthwise(g, conv(g, x, x.shape[3] * 4, 1), stride)
        y = conv(g, y, channels, 1, relu=False)
        x = add(g, x, y) if y.shape == x.shape else y
    return _head(g, x, 12)


def residuals(size: int = 32) -> G:
    g = G(9)
    x = conv(g, g.input((1, size, size, 3)), 16)
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        y = conv(g, conv(g, x, channels, 3, stride), channels, relu=False)
        x = add(g, conv(g, x, channels, 3, stride, relu=False) if stride > 1 else x, y)
    return _head(g, x, 10)


def unet(size: int = 32) -> G:
    """Down, up by transposed convolution, and a CONCAT across."""
    g = G(10)
    a = conv(g, g.input((1, size, size, 3)), 16)
    pool = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0, 0, 0)}
    b = conv(g, g.op("MAX_POOL2D", a, **pool), 32)
    c = conv(g, g.op("MAX_POOL2D", b, **pool), 48)
    up = _quantize(g, g.transpose_conv(c, 32, (2, 2), (2, 2), (0, 0, 0, 0)), 48, True)
    d = conv(g, g.op("CONCAT", up, b, axis=3), 32)
    up = _quantize(g, g.transpose_conv(d, 16, (2, 2), (2, 2), (0, 0, 0, 0)), 32, True)
    return g.out(conv(g, g.op("CONCAT", up, a, axis=3), 4, 1, relu=False))


NETWORKS = {"mobilenet": mobilenet, "inverted_residuals": inverted_residuals, "residuals": residuals, "unet": unet}
