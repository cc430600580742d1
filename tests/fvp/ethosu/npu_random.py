"""Random operators and random small networks, each a function of a seed."""

from __future__ import annotations

import numpy as np
from npu_harness import I8, I16, I32, TARGETS, G

from arm_lower.tosa.ir import DType, Tensor


def _pick(rng: np.random.Generator, *values: int) -> int:
    return int(rng.choice(values))


def _window(
    rng: np.random.Generator, x: Tensor, dilate: bool = True
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int, int, int]]:
    kernel, dilation, pads = [], [], []
    for size in x.shape[1:3]:
        d = _pick(rng, 1, 1, 1, 2) if dilate else 1
        k = int(rng.integers(1, 6))
        span = (k - 1) * d
        pad = span if rng.random() < 0.6 else 0
        if size + pad - span < 1:
            k, d, pad = 1, 1, 0
        kernel.append(k)
        dilation.append(d)
        pads += [pad // 2, pad - pad // 2]
    stride = (_pick(rng, 1, 1, 2, 3), _pick(rng, 1, 1, 2, 3))
    return (kernel[0], kernel[1]), stride, (dilation[0], dilation[1]), (pads[0], pads[1], pads[2], pads[3])


def _zp(rng: np.random.Generator, dtype: DType) -> int:
    return int(rng.integers(-128, 128)) if dtype is I8 else 0


def _shape(rng: np.random.Generator, rank4: bool = True) -> tuple[int, ...]:
    h, w, c = int(rng.integers(1, 25)), int(rng.integers(1, 25)), int(rng.integers(1, 100))
    return (1, h, w, c)


def _binary(g: G, x: Tensor, y: Tensor, kind: str) -> Tensor:
    rng = g.rng
    if kind == "MUL":
        a, b = g.rescale(x, I32, 1.0, izp=_zp(rng, x.dtype)), g.rescale(y, I32, 1.0, izp=_zp(rng, y.dtype))
        low = {I8: 2.0**-8, I16: 2.0**-17}[x.dtype]
        return g.rescale(g.op("MUL", a, b, shift=0), x.dtype, low * rng.uniform(0.3, 1), ozp=_zp(rng, x.dtype))
    if kind in ("MAXIMUM", "MINIMUM"):
        a, b = g.rescale(x, I32, 1.0), g.rescale(y, I32, 1.0)
        return g.rescale(g.op(kind, a, b), x.dtype, 1.0)
    one = 2.0 ** (19 if x.dtype is I8 else 14)
    s = [rng.uniform(0.05, 1.0), 1.0]
    rng.shuffle(s)
    a, b = g.rescale(x, I32, one * s[0], izp=_zp(rng, x.dtype)), g.rescale(y, I32, one * s[1], izp=_zp(rng, y.dtype))
    return g.rescale(g.op(kind, a, b), x.dtype, rng.uniform(0.3, 1.0) / one, ozp=_zp(rng, x.dtype))


def _conv_scale(k: int, dtype: DType) -> float:
    top = 1.5e4 if dtype is I8 else 3e6
    return (60.0 if dtype is I8 else 15000.0) / (top / 3 * float(np.sqrt(k)))


def convolve(g: G, x: Tensor, depthwise: bool, channels: int = 0) -> Tensor:
    """A convolution with its RESCALE."""
    rng = g.rng
    kernel, stride, dilation, pad = _window(rng, x)
    zp = _zp(rng, x.dtype)
    if depthwise:
        y = g.depthwise(x, kernel, stride, dilation, pad, zp)
        k = kernel[0] * kernel[1]
    else:
        spread = _pick(rng, 127, 127, 7, 1)
        o = channels or int(rng.integers(1, 100))
        y = g.conv(x, o, kernel, stride, dilation, pad, zp, weights=(-spread, spread), sparse=rng.random() < 0.15)
        k = kernel[0] * kernel[1] * x.shape[3] * max(1, spread * spread // 16129)
    rounding = "double" if rng.random() < 0.2 and x.dtype is I8 else "single"
    return g.rescale(
        y, x.dtype, _conv_scale(k, x.dtype), ozp=_zp(rng, x.dtype), per_channel=rng.random() < 0.7, rounding=rounding
    )


def operator(seed: int) -> tuple[G, str]:
    """One random operator (with the RESCALEs that belong to it) and a random target."""
    g = G(seed)
    rng = g.rng
    dtype = I8 if rng.random() < 0.75 else I16
    x = g.input(_shape(rng), dtype)
    kind = rng.choice(
        ["conv", "depthwise", "max", "avg", "ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "rescale", "matmul", "table"]
    )
    if kind in ("conv", "depthwise"):
        y = convolve(g, x, kind == "depthwise")
    elif kind in ("max", "avg"):
        kernel, stride, _, pad = _window(rng, x, dilate=False)
        pads = list(pad)
        for a in (0, 1):
            pads[2 * a + 1] -= (x.shape[1 + a] + sum(pads[2 * a : 2 * a + 2]) - kernel[a]) % stride[a]
        x, pads = g._trim(x, pads)
        attrs = {"kernel": kernel, "stride": stride, "pad": tuple(pads)}
        if kind == "avg":
            z = _zp(rng, dtype)
            y = g.op("AVG_POOL2D", x, **attrs, acc_type="int32", input_zp=z, output_zp=_zp(rng, dtype))
        else:
            y = g.op("MAX_POOL2D", x, **attrs)
    elif kind == "rescale":
        out = I8 if rng.random() < 0.5 else I16
        up = 1.0 if out is dtype else 200.0 if out is I16 else 1 / 300.0
        y = g.rescale(
            x, out, up * rng.uniform(0.3, 1.4), izp=_zp(rng, dtype), ozp=_zp(rng, out), per_channel=rng.random() < 0.5
        )
    elif kind == "matmul":
        n, h, w, c = x.shape
        g.graph.inputs.clear()
        g.ranges.clear()
        a, b = g.input((min(h, 4), w, c)), g.input((min(h, 4), c, int(rng.integers(1, 40))))
        acc = g.op("MATMUL", a, b, a_zp=_zp(rng, I8), b_zp=_zp(rng, I8))
        y = g.rescale(acc, I8, 2.0**-6 / 30 / float(np.sqrt(c)), ozp=_zp(rng, I8))
    elif kind == "table":
        x8 = x if dtype is I8 else g.rescale(x, I8, 1 / 256)
        y = g.op("TABLE", x8, g.random((256,), I8, -128, 127))
    else:
        shape = list(x.shape)
        for axis in (1, 2, 3):
            if rng.random() < 0.25:
                shape[axis] = 1
        other = g.random(tuple(shape), dtype, *dtype.range) if rng.random() < 0.2 else g.input(tuple(shape), dtype)
        y = _binary(g, *((x, other) if rng.random() < 0.7 or kind == "SUB" else (other, x)), str(kind))
    if rng.random() < 0.25:
        lo, hi = sorted(int(v) for v in rng.integers(*y.dtype.range, 2))
        y = g.op("CLAMP", y, min=lo, max=hi)
    return g.out(y), str(rng.choice(TARGETS))


def network(seed: int) -> tuple[G, str, dict[str, object]]:
    """A random network of 3 to 10 layers, a target and settings under which cascades and weight buffers occur."""
    g = G(seed)
    rng = g.rng
    x = g.input((1, int(rng.integers(8, 49)), int(rng.integers(8, 49)), int(rng.integers(1, 33))))
    seen = [x]
    for _ in range(int(rng.integers(3, 11))):
        kind = rng.choice(["conv", "conv", "conv", "depthwise", "pool", "add", "table", "concat", "slice"])
        same = [t for t in seen if t.shape == x.shape and t is not x]
        if kind == "add" and same:
            x = _binary(g, x, same[int(rng.integers(len(same)))], "ADD")
        elif kind == "concat" and same:
            x = g.op("CONCAT", x, same[0], axis=3)
        elif kind == "pool" and min(x.shape[1:3]) >= 4:
            x = g.op(
                "MAX_POOL2D",
                g._trim(x, [0, -(x.shape[1] % 2), 0, -(x.shape[2] % 2)])[0],
                kernel=(2, 2),
                stride=(2, 2),
                pad=(0, 0, 0, 0),
            )
        elif kind == "table":
            x = g.op("TABLE", x, g.random((256,), I8, -128, 127))
        elif kind == "slice" and x.shape[3] > 20:
            x = g.op("SLICE", x, start=(0, 0, 0, 16), size=(*x.shape[:3], x.shape[3] - 16))
        elif kind == "depthwise":
            x = convolve(g, x, True)
        else:
            x = convolve(g, x, False, _pick(rng, 8, 16, 24, 40, 96))
        seen.append(x)
    outs = [x] if rng.random() < 0.7 or seen[-2] is g.graph.inputs[0] else [x, seen[-2]]
    options: dict[str, object] = {"optimize": str(rng.choice(["Performance", "Size"]))}
    if rng.random() < 0.7:
        options["arena"] = _pick(rng, 8000, 20000, 40000, 80000)
    if rng.random() < 0.2:
        options["disable"] = str(rng.choice(["Cascading", "Grouping", "FWD", "WeightBuffering"]))
    return g.out(*outs), str(rng.choice(TARGETS)), options


def shuffle(seed: int) -> tuple[G, str]:
    """A random chain of operators that move, reduce, compare or combine data, of any type and rank 2 to 4."""
    g = G(seed)
    rng = g.rng
    dtype = [I8, I16, I32][int(rng.integers(3))]
    rank = int(rng.integers(2, 5))
    shape = tuple(1 if rank == 4 and i == 0 else int(rng.integers(1, 20)) for i in range(rank))
    x = g.input(shape, dtype, (-1000, 1000) if dtype is I32 else None)
    for _ in range(int(rng.integers(1, 5))):
        x = _move(g, x)
    target = str(rng.choice([t for t in TARGETS if t.startswith("u85")] if rng.random() < 0.6 else TARGETS))
    return g.out(x), target


def _move(g: G, x: Tensor) -> Tensor:
    rng, shape = g.rng, x.shape
    rank = len(shape)
    first = 1 if rank == 4 else 0
    axis = int(rng.integers(first, rank))
    kind = rng.choice(
        ["TRANSPOSE", "REVERSE", "CONCAT", "SLICE", "PAD", "RESHAPE", "TILE", "REDUCE_MAX", "REDUCE_MIN", "ADD", "MUL"]
        + ["BITWISE_XOR", "BITWISE_AND", "SELECT", "GREATER", "SHIFT", "RESCALE", "CLAMP", "TABLE", "CLZ", "ABS"]
    )
    attrs: dict[str, object] = {}
    if kind == "TRANSPOSE":
        perm = [*range(first), *(int(v) for v in rng.permutation(np.arange(first, rank)))]
        return g.op("TRANSPOSE", x, perms=tuple(perm))
    if kind == "CONCAT":
        other = tuple(int(rng.integers(1, 9)) if i == axis else n for i, n in enumerate(shape))
        y = g.input(other, x.dtype, (-1000, 1000) if x.dtype is I32 else None)
        return g.op("CONCAT", *((x, y) if rng.random() < 0.5 else (y, x)), axis=axis)
    if kind == "SLICE":
        start = [int(rng.integers(0, n)) if i >= first else 0 for i, n in enumerate(shape)]
        size = [int(rng.integers(1, n - s + 1)) for n, s in zip(shape, start)]
        return g.op("SLICE", x, start=tuple(start), size=tuple(size))
    if kind == "PAD":
        pads = [int(rng.integers(0, 4)) if i >= 2 * first else 0 for i in range(2 * rank)]
        return g.op("PAD", x, padding=tuple(pads), pad_const=int(rng.integers(-100, 100)))
    if kind == "RESHAPE":
        flat = x.size
        divisors = [d for d in range(1, flat + 1) if flat % d == 0]
        d = int(rng.choice(divisors))
        return g.op("RESHAPE", x, shape=(1, d, 1, flat // d) if rng.random() < 0.5 else (d, flat // d))
    if kind == "TILE" and x.size < 2000:
        return g.op("TILE", x, multiples=tuple(int(rng.integers(1, 4)) if i >= first else 1 for i in range(rank)))
    if kind in ("REVERSE", "REDUCE_MAX", "REDUCE_MIN"):
        return g.op(str(kind), x, axis=axis)
    if kind == "RESCALE" and x.dtype is not I32:
        return g.rescale(x, x.dtype, rng.uniform(0.2, 1.3), izp=_zp(rng, x.dtype), ozp=_zp(rng, x.dtype))
    if kind == "CLAMP" and x.dtype is not I32:
        return g.op("CLAMP", x, min=-50, max=77)
    if kind == "TABLE" and x.dtype is I8:
        return g.op("TABLE", x, g.random((256,), I8, -128, 127))
    other = tuple(1 if rng.random() < 0.25 else n for n in shape)
    y = g.input(other, x.dtype, (-1000, 1000) if x.dtype is I32 else None)
    if kind in ("BITWISE_XOR", "BITWISE_AND"):
        return g.op(str(kind), x, y)
    if x.dtype is not I32:
        g.graph.inputs.pop()
        g.ranges.pop()
        return x
    if kind == "SELECT":
        return g.op("SELECT", g.op("GREATER", x, y), x, y)
    if kind == "GREATER":
        return g.op("SELECT", g.op("EQUAL", y, x), y, x)
    if kind == "SHIFT":
        g.ranges[-1] = (0, 31)
        return g.op("ARITHMETIC_RIGHT_SHIFT", x, y, round=True)
    if kind in ("CLZ", "ABS"):
        g.graph.inputs.pop()
        g.ranges.pop()
        return g.op(str(kind), x)
    g.ranges[-1] = (-3, 3)
    attrs = {"shift": 0} if kind == "MUL" else {}
    return g.op(str(kind) if kind in ("ADD", "MUL") else "SUB", x, y, **attrs)
