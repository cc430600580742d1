"""Graphs of operators that Vela moves, fuses, splits or replaces: single operators by type, chains and small networks.

`STEPS` has for each pair of types what makes one from the other; a step gives None where it does not fit the shape.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from npu_harness import I8, I16, I32, G

from arm_lower.errors import ArmLowerError
from arm_lower.tosa.ir import DType, Tensor

Step = Callable[[G, Tensor], "Tensor | None"]
SMALL = 20_000  # elements


def partner(g: G, x: Tensor, span: tuple[int, int] = (-1000, 1000)) -> Tensor:
    """Another tensor like ``x``: one of the graph if there is one, else an input."""
    same = [t for op in g.graph.ops for t in op.outputs if (t.shape, t.dtype) == (x.shape, x.dtype) and t is not x]
    if same and x.dtype is not I32 and g.rng.random() < 0.5:
        return same[int(g.rng.integers(len(same)))]
    return g.input(x.shape, x.dtype, span if x.dtype is I32 else None)


def op(kind: str, **attrs: object) -> Step:
    return lambda g, x: g.op(kind, x, **attrs)


def slice_of(axis: int) -> Step:
    def step(g: G, x: Tensor) -> Tensor | None:
        if x.shape[axis] < 3:
            return None
        start, size = [0] * 4, list(x.shape)
        start[axis], size[axis] = 1, x.shape[axis] - 2
        return g.op("SLICE", x, start=tuple(start), size=tuple(size))

    return step


def concat(axis: int, first: bool) -> Step:
    def step(g: G, x: Tensor) -> Tensor | None:
        if x.size > SMALL:
            return None
        other = partner(g, x)
        return g.op("CONCAT", *((x, other) if first else (other, x)), axis=axis)

    return step


def tile(axis: int) -> Step:
    multiples = tuple(2 if i == axis else 1 for i in range(4))
    return lambda g, x: g.op("TILE", x, multiples=multiples) if x.size <= SMALL else None


def reshape(shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Step:
    return lambda g, x: g.op("RESHAPE", x, shape=shape(x.shape)) if shape(x.shape) != x.shape else None


def table(g: G, x: Tensor) -> Tensor:
    if x.dtype is I8:
        return g.op("TABLE", x, g.random((256,), I8, -128, 127))
    values = np.clip(np.cumsum(g.rng.integers(-200, 200, 513)), -32768, 32767)
    return g.rescale(g.op("TABLE", x, g.const(values, I16)), I16, 2.0**-7)


def joined(kind: str) -> Step:
    """A binary operator with the RESCALEs that Vela joins to it."""

    def step(g: G, x: Tensor) -> Tensor:
        one = {"ADD": 2.0**19, "SUB": 2.0**19}.get(kind, 1.0) if x.dtype is I8 else {"ADD": 2.0**14}.get(kind, 1.0)
        a = g.rescale(x, I32, one)
        b = g.rescale(partner(g, x), I32, one / 2 if one > 1 else 1.0)
        attrs = {"shift": 0} if kind == "MUL" else {}
        down = {"MUL": 0.01 if x.dtype is I8 else 2.0**-16, "MAXIMUM": 1.0}.get(kind, 0.7 / one)
        return g.rescale(g.op(kind, a, b, **attrs), x.dtype, down, ozp=3 if kind != "MAXIMUM" else 0)

    return step


def binary(kind: str, span: tuple[int, int] = (-1000, 1000), **attrs: object) -> Step:
    return lambda g, x: g.op(kind, x, partner(g, x, span), **attrs)


def pool(kind: str, whole: bool = False) -> Step:
    def step(g: G, x: Tensor) -> Tensor | None:
        kernel = x.shape[1:3] if whole else (2, 2)
        extra = {"acc_type": "int32", "input_zp": 0, "output_zp": 0} if kind == "AVG_POOL2D" else {}
        fits = min(x.shape[1:3]) >= 2 or whole
        return g.op(kind, x, kernel=kernel, stride=(1, 1), pad=(0, 0, 0, 0), **extra) if fits else None

    return step


def matmul(g: G, x: Tensor) -> Tensor | None:
    n, h, w, c = x.shape
    if n != 1:
        return None
    rows = g.op("RESHAPE", x, shape=(h, w, c))
    y = g.rescale(g.op("MATMUL", rows, g.input((h, c, 10)), a_zp=0, b_zp=0), I8, 2.0**-9)
    return g.op("RESHAPE", y, shape=(1, h, w, 10))


def argmax(g: G, x: Tensor) -> Tensor:
    y = g.op("ARGMAX", x, axis=3)
    return g.op("RESHAPE", y, shape=(1, *y.shape))


def rescale(out: DType, scale: float, izp: int = 0, ozp: int = 0, per_channel: bool = False) -> Step:
    return lambda g, x: g.rescale(x, out, scale, izp, ozp, per_channel)


def padded_pool(kind: str, kernel: tuple[int, int], stride: int = 1) -> Step:
    def step(g: G, x: Tensor) -> Tensor:
        extra = {"acc_type": "int32", "input_zp": 0, "output_zp": 0} if kind == "AVG_POOL2D" else {}
        h, w = kernel[0] // 2, kernel[1] // 2
        return g.op(kind, x, kernel=kernel, stride=(stride, stride), pad=(h, h, w, w), **extra)

    return step


def conv(
    out: DType,
    kernel: int,
    per_channel: bool = True,
    pad: int | None = None,
    dilation: tuple[int, int] = (1, 1),
    stride: int = 1,
) -> Step:
    pads = (kernel // 2 if pad is None else pad,) * 4
    return lambda g, x: g.rescale(
        g.conv(x, 12, (kernel, kernel), (stride, stride), dilation, pads), out, per_channel=per_channel
    )


MOVES: dict[str, Step] = {
    **{f"slice {'NHWC'[a]}": slice_of(a) for a in (1, 2, 3)},
    **{f"concat {'NHWC'[a]} {f:d}": concat(a, f) for a in (1, 2, 3) for f in (False, True)},
    "pad": op("PAD", padding=(0, 0, 1, 0, 0, 2, 0, 0), pad_const=3),
    "pad C": op("PAD", padding=(0, 0, 0, 0, 0, 0, 1, 1), pad_const=3),
    "tile W": tile(2),
    "tile C": tile(3),
    **{f"transpose {p}": op("TRANSPOSE", perms=p) for p in ((0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 1, 2), (0, 2, 3, 1))},
    "reverse H": op("REVERSE", axis=1),
    "reverse W": op("REVERSE", axis=2),
    "merge HW": reshape(lambda s: (s[0], 1, s[1] * s[2], s[3])),
    "merge WC": reshape(lambda s: (s[0], 1, s[1], s[2] * s[3])),
    "swap HW": reshape(lambda s: (s[0], s[2], s[1], s[3])),
}
NARROW: dict[str, Step] = {
    **MOVES,
    **{f"{k} {'NHWC'[a]}": op(k, axis=a) for k in ("REDUCE_MAX", "REDUCE_MIN") for a in (1, 2, 3)},
    **{kind: joined(kind) for kind in ("ADD", "SUB", "MUL", "MAXIMUM")},
    "table": table,
    "max pool": pool("MAX_POOL2D"),
    "average pool": pool("AVG_POOL2D"),
}
STEPS: dict[tuple[DType, DType], dict[str, Step]] = {
    (I8, I8): {
        **NARROW,
        "global pool": pool("AVG_POOL2D", whole=True),
        "clamp": op("CLAMP", min=-50, max=77),
        "other clamp": op("CLAMP", min=-80, max=20),
        "rescale": rescale(I8, 0.6, 2, 3),
        "rescale channels": rescale(I8, 1.0, 2, 3, True),
        "conv": conv(I8, 3),
        "conv 1x1": conv(I8, 1, False),
        "conv dilated": conv(I8, 3, pad=3, dilation=(3, 3)),
        "conv dilated W": conv(I8, 3, False, pad=1, dilation=(1, 4)),
        "conv strided": conv(I8, 3, pad=1, stride=4),
        "depthwise": lambda g, x: g.rescale(g.depthwise(x), I8, per_channel=True),
        "depthwise dilated": lambda g, x: g.rescale(g.depthwise(x, dilation=(1, 3), pad=(1, 1, 3, 3)), I8, 2.0**-8),
        "average pool padded": padded_pool("AVG_POOL2D", (3, 3)),
        "average pool wide": padded_pool("AVG_POOL2D", (1, 9)),
        "average pool strided": padded_pool("AVG_POOL2D", (4, 4), 4),
        "max pool wide": padded_pool("MAX_POOL2D", (3, 9)),
        "transposed conv": lambda g, x: g.rescale(g.transpose_conv(x, 8, (2, 2), (2, 2), (0, 0, 0, 0)), I8, 2.0**-9),
        "matmul": matmul,
    },
    (I8, I16): {"widen to 16": rescale(I16, 100.0, 2), "widen to 16 far": rescale(I16, 300.0)},
    (I8, I32): {
        "widen": rescale(I32, 1.0),
        "widen far": rescale(I32, 700.0),
        "sums": lambda g, x: g.conv(x, 12, (1, 1), pad=(0, 0, 0, 0)),
        "argmax": argmax,
    },
    (I16, I16): {
        **NARROW,
        "clamp": op("CLAMP", min=-5000, max=7700),
        "rescale": rescale(I16, 0.7),
        "rescale channels": rescale(I16, 0.7, per_channel=True),
        "conv": conv(I16, 3),
    },
    (I16, I8): {"narrow": rescale(I8, 1 / 300.0, ozp=4)},
    (I16, I32): {"widen": rescale(I32, 1.0), "widen far": rescale(I32, 5.0)},
    (I32, I32): {
        **MOVES,
        **{f"REDUCE_SUM {'NHWC'[a]}": op("REDUCE_SUM", axis=a) for a in (1, 2, 3)},
        "ADD": binary("ADD"),
        "MUL": binary("MUL", (-3, 3), shift=0),
        "SHIFT": binary("ARITHMETIC_RIGHT_SHIFT", (0, 31), round=True),
        "MAXIMUM": binary("MAXIMUM"),
        "ABS": op("ABS"),
        "CLZ": op("CLZ"),
    },
    (I32, I8): {"narrow": rescale(I8, 2.0**-12, ozp=1), "narrow channels": rescale(I8, 2.0**-12, per_channel=True)},
    (I32, I16): {"narrow to 16": rescale(I16, 2.0**-6)},
}
SHAPES = ((1, 5, 8, 12), (1, 5, 8, 12), (2, 3, 4, 8), (1, 7, 1, 16), (1, 1, 9, 24), (1, 4, 6, 1))
TARGETS = ("u55-32", "u55-128", "u55-256", "u65-512", "u85-128", "u85-256", "u85-1024")


def following(dtype: DType) -> list[tuple[str, Step]]:
    """What can follow a tensor of this type."""
    return [item for (before, _), steps in STEPS.items() if before is dtype for item in steps.items()]


def apply(g: G, x: Tensor, step: Step) -> Tensor | None:
    """The result, or None where TOSA does not allow the step here."""
    count = len(g.graph.ops)
    try:
        y = step(g, x)
    except ArmLowerError:
        y = None
    if y is None:
        del g.graph.ops[count:]
    return y


def network(seed: int) -> tuple[G, str]:
    """A random network of two to seven steps, each on the last tensor or on an earlier one, and a target."""
    g = G(seed)
    rng = g.rng
    dtype = (I8, I8, I8, I16, I32)[int(rng.integers(5))]
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    seen = [g.input(shape, dtype, (-1000, 1000) if dtype is I32 else None)]
    for _ in range(int(rng.integers(2, 8))):
        x = seen[-1] if rng.random() < 0.8 else seen[int(rng.integers(len(seen)))]
        steps = following(x.dtype)
        y = apply(g, x, steps[int(rng.integers(len(steps)))][1])
        if y is not None and y.size <= 2 * SMALL:
            seen.append(y)
    read = {t for o in g.graph.ops for t in o.inputs}
    g.graph.outputs = [t for o in g.graph.ops for t in o.outputs if t not in read]
    used = [(t, r) for t, r in zip(g.graph.inputs, g.ranges, strict=True) if t in read]
    g.graph.inputs, g.ranges = [t for t, _ in used], [r for _, r in used]
    return g, str(rng.choice(TARGETS))
