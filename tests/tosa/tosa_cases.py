"""One small legal call of every TOSA operator, in every combination of data types that the NPUs meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from arm_lower.tosa.ir import Attr, DType, Graph, Op, Tensor
from arm_lower.tosa.spec import infer

Array = npt.NDArray[np.generic]
B, I4, I8, I16, I32, I48 = DType.BOOL, DType.INT4, DType.INT8, DType.INT16, DType.INT32, DType.INT48

RESCALE: dict[str, Attr] = dict(
    multiplier=(1 << 30,),
    shift=(31,),
    input_zp=0,
    output_zp=0,
    scale32=True,
    rounding="single",
    per_channel=False,
    input_unsigned=False,
    output_unsigned=False,
    out_dtype="int8",
)
CONV: dict[str, Attr] = dict(pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1), input_zp=0, weight_zp=0)


@dataclass
class Case:
    """An operator with operands, and what numpy says of the result.

    Attributes:
        inputs: Shape and type of each operand.
        constants: Positions of the operands that are constants.
        limit: Largest absolute value of int32 operands, so that nothing overflows.
        expect: Result from the operands, in a type wide enough.
    """

    kind: str
    inputs: list[tuple[tuple[int, ...], DType]]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    limit: int = 1000
    expect: Callable[..., Array] | None = None

    @property
    def id(self) -> str:
        return "-".join([self.kind, *(f"{d}{list(s)}".replace(" ", "") for s, d in self.inputs)])

    def values(self, seed: int = 0) -> list[Array]:
        rng = np.random.default_rng(seed)
        return [random(rng, shape, dtype, self.limit) for shape, dtype in self.inputs]

    def graph(self, values: list[Array] | None = None) -> Graph:
        """A graph of this operator; an int48 result is rescaled to int32, which the reference model can give."""
        values = self.values() if values is None else values
        tensors = [
            Tensor(f"x{i}", s, d, values[i] if i in self.constants else None) for i, (s, d) in enumerate(self.inputs)
        ]
        graph = Graph("one", [t for t in tensors if t.data is None])
        add(graph, self.kind, tensors, self.attrs)
        if graph.ops[-1].output.dtype is I48:
            add(
                graph,
                "RESCALE",
                [graph.ops[-1].output],
                {**RESCALE, "scale32": False, "multiplier": (1 << 14,), "shift": (14,), "out_dtype": "int32"},
            )
        graph.outputs = [graph.ops[-1].output]
        return graph


def add(graph: Graph, kind: str, inputs: list[Tensor], attrs: Mapping[str, Attr]) -> Tensor:
    ((shape, dtype),) = infer(kind, inputs, attrs)
    out = Tensor(f"y{len(graph.ops)}", shape, dtype)
    graph.ops.append(Op(kind, inputs, [out], dict(attrs), f"net.{len(graph.ops)}:aten.{kind.lower()}"))
    return out


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, limit: int = 1000) -> Array:
    low, high = (0, 1) if dtype is B else dtype.range
    low, high = (-7, 7) if dtype is I4 else (max(low, -limit), min(high, limit)) if dtype in (I32, I48) else (low, high)
    return rng.integers(low, high, shape, endpoint=True).astype(dtype.numpy)


def _binary(kind: str, dtypes: tuple[DType, ...], expect: Callable[..., Array], **attrs: Attr) -> list[Case]:
    return [Case(kind, [((2, 1, 3), d), ((2, 4, 1), d)], attrs, expect=expect) for d in dtypes]


def _layout(
    kind: str, dims: tuple[int, ...], expect: Callable[..., Array], count: int = 1, **attrs: Attr
) -> list[Case]:
    return [Case(kind, [(dims, d)] * count, attrs, expect=expect) for d in (B, I8, I16, I32)]


def _wide(x: Array) -> npt.NDArray[np.int64]:
    return np.asarray(x, np.int64)


def _shift_right(a: Array, b: Array, rounded: bool) -> Array:
    shifted = _wide(a) >> _wide(b)
    return shifted + ((_wide(a) >> np.maximum(_wide(b) - 1, 0)) & 1) * (rounded & (_wide(b) > 0))


SHIFT_RANGE = 7
"""Shift amounts must be smaller than the width of the type: tests use ``x & 7`` for them."""

_ELEMENTWISE = [
    *_binary("ADD", (I32,), lambda a, b: _wide(a) + b),
    *_binary("SUB", (I32,), lambda a, b: _wide(a) - b),
    *_binary("MAXIMUM", (I32,), np.maximum),
    *_binary("MINIMUM", (I32,), np.minimum),
    *_binary("MUL", (I8, I16, I32), lambda a, b: _wide(a) * b, shift=0),
    Case("MUL", [((3, 4), I32), ((3, 4), I32)], {"shift": 5}, expect=lambda a, b: (_wide(a) * b + 16) >> 5),
    *_binary("INTDIV", (I32,), lambda a, b: np.trunc(a / b).astype(np.int64)),
    *_binary("BITWISE_AND", (I8, I16, I32), np.bitwise_and),
    *_binary("BITWISE_OR", (I8, I16, I32), np.bitwise_or),
    *_binary("BITWISE_XOR", (I8, I16, I32), np.bitwise_xor),
    *_binary("LOGICAL_AND", (B,), np.logical_and),
    *_binary("LOGICAL_OR", (B,), np.logical_or),
    *_binary("LOGICAL_XOR", (B,), np.logical_xor),
    *_binary("LOGICAL_LEFT_SHIFT", (I8, I16, I32), lambda a, b: np.left_shift(a, b)),
    *_binary(
        "LOGICAL_RIGHT_SHIFT",
        (I8, I16, I32),
        lambda a, b: (_wide(a) % (1 << (8 * a.dtype.itemsize)) >> _wide(b)).astype(a.dtype),
    ),
    *_binary("ARITHMETIC_RIGHT_SHIFT", (I8, I16, I32), lambda a, b: _shift_right(a, b, False), round=False),
    *_binary("ARITHMETIC_RIGHT_SHIFT", (I8, I16, I32), lambda a, b: _shift_right(a, b, True), round=True),
    *_binary("EQUAL", (I32,), np.equal),
    *_binary("GREATER", (I32,), np.greater),
    *_binary("GREATER_EQUAL", (I32,), np.greater_equal),
    *[Case("SELECT", [((1, 3), B), ((2, 1), d), ((2, 3), d)], expect=np.where) for d in (B, I8, I16, I32)],
    Case("ABS", [((5, 2), I32)], expect=np.abs),
    Case(
        "CLZ",
        [((5, 2), I32)],
        expect=lambda x: np.array([32 - int(v).bit_length() if v >= 0 else 0 for v in x.flat]).reshape(5, 2),
    ),
    *[Case("BITWISE_NOT", [((5, 2), d)], expect=np.invert) for d in (I8, I16, I32)],
    Case("LOGICAL_NOT", [((5, 2), B)], expect=np.logical_not),
    *[
        Case(
            "NEGATE",
            [((5, 2), d)],
            {"input1_zp": 0, "output_zp": 0},
            expect=lambda x: np.clip(-_wide(x), np.iinfo(x.dtype).min, np.iinfo(x.dtype).max),
        )
        for d in (I8, I16, I32)
    ],
    Case(
        "NEGATE",
        [((5, 2), I8)],
        {"input1_zp": 5, "output_zp": -3},
        expect=lambda x: np.clip(-(_wide(x) - 5) - 3, -128, 127),
    ),
    *[Case("CLAMP", [((5, 2), d)], {"min": -9, "max": 30}, expect=lambda x: np.clip(x, -9, 30)) for d in (I8, I16)],
    Case("TABLE", [((5, 2), I8), ((256,), I8)], constants=(1,), expect=lambda x, t: t[_wide(x) + 128]),
    Case(
        "TABLE",
        [((5, 2), I16), ((513,), I16)],
        constants=(1,),
        expect=lambda x, t: (
            lambda v: (
                (_wide(t)[(v >> 7) + 256] << 7) + (_wide(t)[(v >> 7) + 257] - _wide(t)[(v >> 7) + 256]) * (v & 127)
            )
        )(_wide(x)),
    ),
]

_REDUCTIONS = [
    Case("REDUCE_ALL", [((3, 4, 2), B)], {"axis": 1}, expect=lambda x: x.all(1, keepdims=True)),
    Case("REDUCE_ANY", [((3, 4, 2), B)], {"axis": 2}, expect=lambda x: x.any(2, keepdims=True)),
    *[
        Case("REDUCE_MAX", [((3, 4, 2), d)], {"axis": 0}, expect=lambda x: x.max(0, keepdims=True))
        for d in (I8, I16, I32)
    ],
    *[
        Case("REDUCE_MIN", [((3, 4, 2), d)], {"axis": 1}, expect=lambda x: x.min(1, keepdims=True))
        for d in (I8, I16, I32)
    ],
    Case("REDUCE_SUM", [((3, 4, 2), I32)], {"axis": 1}, expect=lambda x: _wide(x).sum(1, keepdims=True)),
    *[Case("ARGMAX", [((3, 4, 2), d)], {"axis": 1}, expect=lambda x: x.argmax(1)) for d in (I8, I16)],
    Case("ARGMAX", [((7,), I8)], {"axis": 0}, expect=lambda x: x.argmax(0)),
]

_LAYOUT = [
    *_layout("CONCAT", (2, 3), lambda a, b, c: np.concatenate([a, b, c], 1), 3, axis=1),
    *_layout(
        "PAD", (2, 3), lambda x: np.pad(x, ((0, 1), (2, 0)), constant_values=1), padding=(0, 1, 2, 0), pad_const=1
    ),
    *_layout("RESHAPE", (2, 6), lambda x: x.reshape(3, 1, 4), shape=(3, 1, 4)),
    *_layout("REVERSE", (2, 3), lambda x: x[:, ::-1], axis=1),
    *_layout("SLICE", (4, 5), lambda x: x[1:3, 2:5], start=(1, 2), size=(2, 3)),
    *_layout("TILE", (2, 3), lambda x: np.tile(x, (3, 2)), multiples=(3, 2)),
    *_layout("TRANSPOSE", (2, 3, 4), lambda x: x.transpose(2, 0, 1), perms=(2, 0, 1)),
    *_layout("IDENTITY", (2, 3), lambda x: x),
    Case("RESHAPE", [((1, 1), I8)], {"shape": ()}, expect=lambda x: x.reshape(())),
    Case("RESHAPE", [((), I32)], {"shape": (1,)}, expect=lambda x: x.reshape(1)),
]

_CASTS = [
    Case("CAST", [((3, 4), a)], {"out_dtype": str(b)}, expect=lambda x, b=b: x != 0 if b is B else x.astype(b.numpy))
    for a in (B, I8, I16, I32)
    for b in (B, I8, I16, I32)
    if a is not b
]


def _rescaled(x: Array, multiplier: object, shift: object, in_zp: int, out_zp: int, low: int, high: int) -> Array:
    product = (_wide(x) - in_zp) * np.asarray(multiplier, np.int64) + (1 << (np.asarray(shift, np.int64) - 1))
    return np.clip((product >> np.asarray(shift, np.int64)) + out_zp, low, high)


_RESCALES = [
    Case(
        "RESCALE",
        [((2, 3), I8)],
        {**RESCALE, "input_zp": -7, "output_zp": 5},
        expect=lambda x: _rescaled(x, 1 << 30, 31, -7, 5, -128, 127),
    ),
    Case("RESCALE", [((2, 3), I16)], RESCALE, expect=lambda x: _rescaled(x, 1 << 30, 31, 0, 0, -128, 127)),
    Case("RESCALE", [((2, 3), I32)], {**RESCALE, "out_dtype": "int16", "rounding": "double"}),
    Case("RESCALE", [((2, 3), I32)], {**RESCALE, "out_dtype": "int32", "rounding": "inexact"}),
    Case(
        "RESCALE",
        [((2, 3), I32)],
        {**RESCALE, "per_channel": True, "multiplier": (1 << 30, 5 << 28, 7 << 28), "shift": (31, 33, 38)},
        expect=lambda x: _rescaled(x, [1 << 30, 5 << 28, 7 << 28], [31, 33, 38], 0, 0, -128, 127),
    ),
    Case(
        "RESCALE",
        [((2, 3), I8)],
        {**RESCALE, "input_unsigned": True, "input_zp": 128, "multiplier": (1 << 30,), "shift": (30,)},
        expect=lambda x: _rescaled(_wide(x) % 256, 1 << 30, 30, 128, 0, -128, 127),
    ),
    Case(
        "RESCALE",
        [((2, 3), I8)],
        {**RESCALE, "output_unsigned": True, "output_zp": 128, "multiplier": (1 << 30,), "shift": (30,)},
        expect=lambda x: _rescaled(x, 1 << 30, 30, 0, 128, 0, 255).astype(np.uint8).astype(np.int8),
    ),
    Case("RESCALE", [((2, 3), I16)], {**RESCALE, "output_unsigned": True, "output_zp": 32768, "out_dtype": "int16"}),
    Case(
        "RESCALE",
        [((2, 3), I8)],
        {**RESCALE, "scale32": False, "multiplier": (3 << 12,), "shift": (14,), "out_dtype": "int32"},
        expect=lambda x: _rescaled(x, 3 << 12, 14, 0, 0, -(1 << 31), (1 << 31) - 1),
    ),
]

_CONVOLUTIONS = [
    Case(
        "CONV2D",
        [((1, 5, 6, 3), I8), ((4, 3, 3, 3), I8), ((4,), I32)],
        {**CONV, "input_zp": -3, "weight_zp": 2},
        (1, 2),
    ),
    Case(
        "CONV2D",
        [((2, 5, 6, 3), I8), ((4, 3, 2, 3), I8), ((1,), I32)],
        {**CONV, "pad": (1, 1, 0, 0), "stride": (2, 4), "acc_type": "int32"},
        (1, 2),
    ),
    Case("CONV2D", [((1, 7, 8, 2), I8), ((3, 3, 3, 2), I8), ((3,), I32)], {**CONV, "dilation": (2, 3)}, (1, 2)),
    Case("CONV2D", [((1, 5, 6, 2), I8), ((3, 1, 1, 2), I4), ((3,), I32)], {**CONV, "pad": (0, 0, 0, 0)}, (1, 2)),
    Case(
        "CONV2D",
        [((1, 3, 3, 2), I16), ((3, 1, 1, 2), I8), ((3,), I48)],
        {**CONV, "pad": (0, 0, 0, 0), "acc_type": "int48"},
        (1, 2),
    ),
    Case("CONV2D", [((1, 3, 3, 2), I8), ((3, 1, 1, 2), I8), ((3,), I32)], {**CONV, "pad": (0, 0, 0, 0)}),
    Case("DEPTHWISE_CONV2D", [((1, 5, 6, 3), I8), ((3, 3, 3, 2), I8), ((6,), I32)], {**CONV, "input_zp": 9}, (1, 2)),
    Case(
        "DEPTHWISE_CONV2D",
        [((1, 5, 6, 2), I16), ((3, 3, 2, 1), I8), ((2,), I48)],
        {**CONV, "acc_type": "int48"},
        (1, 2),
    ),
    Case(
        "TRANSPOSE_CONV2D",
        [((1, 3, 4, 2), I8), ((3, 2, 3, 2), I8), ((3,), I32)],
        dict(out_pad=(0, -1, 1, 0), stride=(2, 2), input_zp=4, weight_zp=0),
        (1, 2),
    ),
    Case(
        "MATMUL",
        [((2, 3, 4), I8), ((2, 4, 5), I8)],
        {"a_zp": 3, "b_zp": -2},
        expect=lambda a, b: (_wide(a) - 3) @ (_wide(b) + 2),
    ),
    Case("MATMUL", [((1, 2, 3), I16), ((1, 3, 2), I16)], {"a_zp": 0, "b_zp": 0}),
    Case(
        "MAX_POOL2D",
        [((1, 4, 6, 2), I8)],
        dict(kernel=(2, 2), stride=(2, 2), pad=(0, 0, 0, 0)),
        expect=lambda x: x.reshape(1, 2, 2, 3, 2, 2).max((2, 4)),
    ),
    Case("MAX_POOL2D", [((1, 5, 5, 2), I16)], dict(kernel=(3, 3), stride=(1, 2), pad=(1, 1, 1, 1))),
    Case(
        "AVG_POOL2D",
        [((1, 5, 5, 2), I8)],
        dict(kernel=(3, 3), stride=(1, 2), pad=(1, 1, 1, 1), input_zp=4, output_zp=-3),
    ),
    Case(
        "AVG_POOL2D",
        [((1, 4, 4, 2), I16)],
        dict(kernel=(2, 2), stride=(2, 2), pad=(0, 0, 0, 0), acc_type="int32", input_zp=0, output_zp=0),
    ),
]

_OTHER = [
    *[
        Case("GATHER", [((2, 8, 3), d), ((2, 4), I32)], expect=lambda v, i: np.stack([a[b] for a, b in zip(v, i)]))
        for d in (I8, I16, I32)
    ],
    *[Case("SCATTER", [((1, 8, 3), d), ((1, 2), I32), ((1, 2, 3), d)]) for d in (I8, I16, I32)],
    *[
        Case("RESIZE", [((1, 3, 4, 2), d)], dict(scale=(4, 2, 4, 2), offset=(0, 0), border=(2, 2), mode="nearest"))
        for d in (I8, I16)
    ],
    *[
        Case("RESIZE", [((1, 3, 4, 2), d)], dict(scale=(4, 2, 6, 2), offset=(-1, 0), border=(1, 0), mode="bilinear"))
        for d in (I8, I16)
    ],
]

CASES = [*_ELEMENTWISE, *_REDUCTIONS, *_LAYOUT, *_CASTS, *_RESCALES, *_CONVOLUTIONS, *_OTHER]


def operands(case: Case, seed: int = 0) -> list[Array]:
    """Values that the operator takes: shifts within the type, no division by zero, indices that exist and differ."""
    values = case.values(seed)
    if case.kind.endswith("_SHIFT"):
        values[1] = values[1] & SHIFT_RANGE
    elif case.kind == "INTDIV":
        values[1] = np.where(values[1] == 0, 1, values[1]).astype(values[1].dtype)
    elif case.kind in ("GATHER", "SCATTER"):
        rng = np.random.default_rng(seed)
        rows = [rng.permutation(case.inputs[0][0][1])[: case.inputs[1][0][1]] for _ in range(case.inputs[1][0][0])]
        values[1] = np.array(rows, np.int32)
    elif case.kind == "TABLE" and case.inputs[0][1] is I16:
        # The slope between two neighbours must fit 16 bits.
        values[1] = values[1] // 4
    return values
