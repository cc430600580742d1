"""The tables of NPU limits against Vela itself: for each row a graph inside the limit compiles and one outside is
refused, or, for a row that Vela does not enforce, compiles still (then nothing but the row protects the user)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from npu_graphs import Build, graph_of

from arm_lower import vela
from arm_lower.errors import ArmLowerError, Unsupported, VelaError
from arm_lower.spec import EthosUCompileSpec
from arm_lower.targets import FAMILIES, Row, check
from arm_lower.targets.rules import MEASURES
from arm_lower.tosa.ir import Graph

SPECS = {
    "u55": EthosUCompileSpec("ethos-u55-128", effort="fast"),
    "u65": EthosUCompileSpec("ethos-u65-256", memory_mode="Dedicated_Sram", effort="fast"),
    "u85": EthosUCompileSpec("ethos-u85-256", effort="fast"),
}
X = (1, 4, 4, 8)


def one(kind: str, shape: tuple[int, ...] = X, dtype: str = "int8", **attrs: object) -> Build:
    return lambda m: m.op(kind, m.input(shape, dtype), **attrs)  # type: ignore[arg-type]


def two(kind: str, dtype: str = "int32", **attrs: object) -> Build:
    return lambda m: m.op(kind, m.input(X, dtype), m.input(X, dtype), **attrs)  # type: ignore[arg-type]


def conv(shape: tuple[int, ...] = X, dtype: str = "int8", **options: object) -> Build:
    return lambda m: m.rescale(m.conv(m.input(shape, dtype), **options))  # type: ignore[arg-type]


def tconv(shape: tuple[int, ...] = X, dtype: str = "int8", **options: object) -> Build:
    return lambda m: m.rescale(m.transposed(m.input(shape, dtype), **options))  # type: ignore[arg-type]


def pool(kind: str, shape: tuple[int, ...], *window: tuple[int, ...]) -> Build:
    return lambda m: m.pool(kind, m.input(shape), *window)


def matmul(rows: int = 2, inner: int = 8, columns: int = 4, dtype: str = "int8") -> Build:
    shapes = (1, rows, inner), (1, inner, columns)
    return lambda m: m.op("MATMUL", *(m.input(s, dtype) for s in shapes), a_zp=0, b_zp=0)


def resize(scale: tuple[int, ...], offset: int, border: int, mode: str = "nearest",
           shape: tuple[int, ...] = X) -> Build:
    return one("RESIZE", shape, scale=scale, offset=(offset,) * 2, border=(border,) * 2, mode=mode)


def concat(dtype: str) -> Build:
    return lambda m: m.op("CONCAT", m.input(X, dtype), m.input(X, dtype), axis=3)


def transpose(shape: tuple[int, ...], perms: tuple[int, ...], dtype: str = "int8") -> Build:
    return one("TRANSPOSE", shape, dtype, perms=perms)


def moves(dtype: str) -> dict[str, Build]:
    return {
        "CONCAT": concat(dtype),
        "RESHAPE": lambda m: m.op("RESHAPE", m.input(X, dtype), shape=(16, 8)),
        "SLICE": one("SLICE", X, dtype, start=(0, 1, 1, 1), size=(1, 2, 3, 5)),
        "TILE": one("TILE", X, dtype, multiples=(1, 2, 1, 3)),
        "PAD": one("PAD", X, dtype, padding=(0, 0, 1, 1, 2, 3, 0, 0), pad_const=0),
        "TRANSPOSE": transpose((1, 4, 6, 8), (0, 2, 1, 3), dtype),
    }


WIDE = ("CONV2D", "DEPTHWISE_CONV2D")
POOLS = ("AVG_POOL2D", "MAX_POOL2D")
BIG = 1 << 16
LONG = (1, 2, 300, 2)
LIMIT40 = (1 << 39) - 1

# (operator, measure, condition) -> (inside, outside), the graphs on the two sides of the row's limit.
PAIRS: dict[tuple[str, str, str], tuple[Build, Build]] = {
    **{(k, "padding at the top or left", ""): (conv(depthwise=k != "CONV2D", pad=(0, 0, 127, 0)),
                                               conv(depthwise=k != "CONV2D", pad=(0, 0, 128, 0))) for k in WIDE},
    **{(k, "padding at the bottom or right", ""): (conv(depthwise=k != "CONV2D", pad=(0, 0, 0, 255)),
                                                   conv(depthwise=k != "CONV2D", pad=(0, 0, 0, 256))) for k in WIDE},
    **{(k, "padding at the top or left", ""): (pool(k, LONG, (1, 128), (1, 1), (0, 0, 127, 0)),
                                               pool(k, LONG, (1, 129), (1, 1), (0, 0, 128, 0))) for k in POOLS},
    **{(k, "padding at the bottom or right", ""): (pool(k, LONG, (1, 256), (1, 1), (0, 0, 0, 255)),
                                                   pool(k, LONG, (1, 257), (1, 1), (0, 0, 0, 256))) for k in POOLS},
    **{(k, "data type", ""): (two(k, round=True) if k[0] == "A" else two(k),
                              two(k, "int16", round=True) if k[0] == "A" else two(k, "int16"))
       for k in ("ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT")},
    ("ARITHMETIC_RIGHT_SHIFT", "rounding", ""): (two("ARITHMETIC_RIGHT_SHIFT", round=True),
                                                 two("ARITHMETIC_RIGHT_SHIFT", round=False)),
    **{(k, "phases of the dilation without input", ""): (
        conv((1, 5, 3, 8), kernel=(1, 2), dilation=(1, 3), pad=(0, 0, 1, 0), depthwise=k != "CONV2D"),
        conv((1, 5, 2, 8), kernel=(1, 2), dilation=(1, 3), pad=(0, 0, 1, 1), depthwise=k != "CONV2D")) for k in WIDE},
    **{(k, "rows that read only padding", ""): (
        conv((1, 5, 8, 8), kernel=(3, 3), pad=(2, 2, 1, 1), depthwise=k != "CONV2D"),
        conv((1, 5, 8, 8), kernel=(3, 3), pad=(0, 3, 1, 1), depthwise=k != "CONV2D")) for k in WIDE},
    ("AVG_POOL2D", "batch", "padded, with kernel > 8 or stride > 3"): (
        pool("AVG_POOL2D", (2, 3, 6, 8), (1, 8), (1, 1), (0, 0, 3, 4)),
        pool("AVG_POOL2D", (2, 3, 6, 8), (1, 9), (1, 1), (0, 0, 4, 4))),
    **{(k, "padding", "stride > 3"): (pool(k, (1, 32, 32, 8), (4, 4), (4, 4)),
                                      pool(k, (1, 30, 30, 8), (4, 4), (4, 4), (1, 1, 1, 1))) for k in POOLS},
    ("AVG_POOL2D", "kernel size", "padded"): (pool("AVG_POOL2D", (1, 16, 16, 8), (8, 8), (1, 1), (3, 4, 3, 4)),
                                              pool("AVG_POOL2D", (1, 16, 16, 8), (1, 9), (1, 1), (0, 0, 4, 4))),
    ("AVG_POOL2D", "kernel height * width", "not padded"): (pool("AVG_POOL2D", (1, 256, 256, 1), (256, 256), (1, 1)),
                                                            pool("AVG_POOL2D", (1, 256, 257, 1), (256, 257), (1, 1))),
    ("MAX_POOL2D", "kernel height * width", ""): (pool("MAX_POOL2D", (1, 256, 256, 1), (256, 256), (1, 1)),
                                                  pool("MAX_POOL2D", (1, 256, 257, 1), (256, 257), (1, 1))),
    **{(k, "kernel height", ""): (pool(k, (1, 256, 2, 8), (256, 1), (1, 1)),
                                  pool(k, (1, 257, 2, 8), (257, 1), (1, 1))) for k in POOLS},
    **{(k, "height or width", ""): (pool(k, (1, 1, BIG, 1), (1, 2), (1, 2)),
                                    pool(k, (1, 1, BIG + 2, 1), (1, 2), (1, 2))) for k in POOLS},
    **{(k, "input channels", ""): (pool(k, (1, 2, 2, BIG), (2, 2)), pool(k, (1, 2, 2, BIG + 1), (2, 2)))
       for k in POOLS},
    **{(k, "constant weights", ""): (conv(depthwise=k != "CONV2D"), conv(depthwise=k != "CONV2D", computed=True))
       for k in WIDE},
    ("TRANSPOSE_CONV2D", "constant weights", ""): (tconv(), tconv(computed=True)),
    ("CONV2D", "padding", "stride > 3"): (conv((1, 11, 11, 8), kernel=(3, 3), stride=(4, 4)),
                                          conv((1, 9, 9, 8), kernel=(3, 3), stride=(4, 4), pad=(1, 1, 1, 1))),
    ("CONV2D", "dilation", "stride > 3"): (conv((1, 11, 11, 8), kernel=(3, 3), stride=(4, 4)),
                                           conv((1, 13, 13, 8), kernel=(3, 3), stride=(4, 4), dilation=(2, 2))),
    ("DEPTHWISE_CONV2D", "stride", ""): (conv((1, 9, 9, 8), kernel=(3, 3), stride=(3, 3), depthwise=True),
                                         conv((1, 11, 11, 8), kernel=(3, 3), stride=(1, 4), depthwise=True)),
    **{(k, "kernel height", ""): (conv((1, 64, 4, 8), kernel=(64, 1), depthwise=k != "CONV2D"),
                                  conv((1, 65, 4, 8), kernel=(33, 1), dilation=(2, 1), depthwise=k != "CONV2D"))
       for k in WIDE},
    **{(k, "kernel height * width", ""): (conv((1, 1, 4096, 1), kernel=(1, 4096), depthwise=k != "CONV2D"),
                                          conv((1, 1, 4097, 1), kernel=(1, 4097), depthwise=k != "CONV2D"))
       for k in WIDE},
    **{(k, "input channels", ""): (conv((1, 1, 1, BIG), out=1, depthwise=k != "CONV2D"),
                                   conv((1, 1, 1, BIG + 1), out=1, depthwise=k != "CONV2D")) for k in WIDE},
    ("CONV2D", "sum of absolute weights", ""): (conv((1, 1, 1, BIG), out=1, weight=(127, 127)),
                                                conv((1, 1, 1, BIG), out=1, weight=(-128, -128))),
    ("TRANSPOSE_CONV2D", "sum of absolute weights", ""): (
        tconv((1, 1, 1, BIG), out=1, kernel=(1, 1), stride=(1, 1), weight=(127, 127)),
        tconv((1, 1, 1, BIG), out=1, kernel=(1, 1), stride=(1, 1), weight=(-128, -128))),
    **{(k, "bits of the bias", ""): (conv(dtype="int16", bias=(-LIMIT40 - 1, LIMIT40), depthwise=k != "CONV2D"),
                                     conv(dtype="int16", bias=(LIMIT40 + 1,) * 2, depthwise=k != "CONV2D"))
       for k in WIDE},
    ("TRANSPOSE_CONV2D", "data types", ""): (tconv(), tconv(dtype="int16")),
    ("TRANSPOSE_CONV2D", "stride (y, x)", ""): (tconv((1, 1, 4, 8), kernel=(1, 2), stride=(1, 2)),
                                                tconv(stride=(1, 2))),
    ("TRANSPOSE_CONV2D", "kernel height", ""): (tconv((1, 2, 2, 1), kernel=(64, 1)),
                                                tconv((1, 2, 2, 1), kernel=(65, 1))),
    ("TRANSPOSE_CONV2D", "kernel height * width", ""): (tconv((1, 1, 2, 1), out=1, kernel=(1, 4096)),
                                                        tconv((1, 1, 2, 1), out=1, kernel=(1, 4097))),
    ("TRANSPOSE_CONV2D", "input channels", ""): (tconv((1, 1, 1, BIG), out=1), tconv((1, 1, 1, BIG + 1), out=1)),
    ("TRANSPOSE_CONV2D", "output channels", ""): (
        tconv((1, 1, 1, 1), out=BIG, kernel=(1, 1), stride=(1, 1)),
        tconv((1, 1, 1, 1), out=BIG + 1, kernel=(1, 1), stride=(1, 1))),
    ("TRANSPOSE_CONV2D", "height or width", ""): (
        tconv((1, 1, BIG, 1), out=1, kernel=(1, 1), stride=(1, 1)),
        tconv((1, 1, BIG + 1, 1), out=1, kernel=(1, 1), stride=(1, 1))),
    ("MATMUL", "data types", ""): (matmul(), matmul(dtype="int16")),
    ("MATMUL", "inner size", ""): (matmul(inner=BIG), matmul(inner=BIG + 1)),
    ("MATMUL", "columns", ""): (matmul(columns=BIG), matmul(columns=BIG + 1)),
    ("RESIZE", "mode", ""): (resize((4, 2, 4, 2), -1, 1), resize((4, 2, 4, 2), -1, 1, "bilinear")),
    ("RESIZE", "up-scaling", ""): (resize((8, 1, 8, 1), 0, 0), resize((6, 2, 6, 2), -2, 2)),
    ("RESIZE", "batch", ""): (resize((16, 2, 16, 2), -7, 7), resize((4, 2, 4, 2), -1, 1, shape=(2, 4, 4, 8))),
    ("RESIZE", "input channels", ""): (resize((2, 1, 2, 1), 0, 0, shape=(1, 2, 2, BIG)),
                                       resize((2, 1, 2, 1), 0, 0, shape=(1, 2, 2, BIG + 1))),
    **{(k, "data type", ""): (moves("int32")[k], moves("bool")[k]) for k in moves("int8")},
    ("IDENTITY", "data type", ""): (one("IDENTITY", dtype="int48"), one("IDENTITY", dtype="bool")),
    ("REVERSE", "data type", ""): (one("REVERSE", dtype="int16", axis=1), one("REVERSE", dtype="int32", axis=1)),
    ("REVERSE", "axis from the end", ""): (one("REVERSE", axis=2), one("REVERSE", axis=3)),
    ("CAST", "data types in and out", ""): (one("CAST", dtype="int16", out_dtype="int8"),
                                            one("CAST", out_dtype="bool")),
    ("TRANSPOSE", "largest axis or plane", "int8 or int16"): (transpose((BIG, 3), (1, 0)),
                                                              transpose((3, BIG + 1), (1, 0))),
    ("TRANSPOSE", "rank", "int32"): (transpose((1, 4, 6, 8), (0, 1, 3, 2), "int32"),
                                     transpose((2, 3, 4, 6, 8), (0, 1, 2, 4, 3), "int32")),
    ("TRANSPOSE", "permutation", "int32"): (transpose((1, 4, 6, 8), (0, 3, 2, 1), "int32"),
                                            transpose((1, 4, 6, 8), (0, 2, 3, 1), "int32")),
    ("TRANSPOSE", "channels", "int32 NHWC"): (transpose((1, 1, 2, BIG // 2), (0, 1, 2, 3), "int32"),
                                              transpose((1, 1, 2, BIG // 2 + 1), (0, 1, 2, 3), "int32")),
    ("TRANSPOSE", "N", "int32 NWHC or NCWH"): (transpose((1, 4, 6, 8), (0, 2, 1, 3), "int32"),
                                               transpose((2, 4, 6, 8), (0, 2, 1, 3), "int32")),
    ("TRANSPOSE", "H or W", "int32 NWHC or NCWH"): (transpose((1, 4, BIG, 2), (0, 2, 1, 3), "int32"),
                                                    transpose((1, 4, BIG + 1, 2), (0, 2, 1, 3), "int32")),
    ("TRANSPOSE", "channels", "int32 NWHC or NCWH"): (transpose((1, 4, 2, 1 << 14), (0, 2, 1, 3), "int32"),
                                                      transpose((1, 4, 2, (1 << 14) + 1), (0, 2, 1, 3), "int32")),
    ("TRANSPOSE", "N * H", "int32 NHCW"): (transpose((1, BIG, 2, 3), (0, 1, 3, 2), "int32"),
                                           transpose((1, BIG + 1, 2, 3), (0, 1, 3, 2), "int32")),
    ("TRANSPOSE", "W or C", "int32 NHCW"): (transpose((1, 2, 3, BIG), (0, 1, 3, 2), "int32"),
                                            transpose((1, 2, 3, BIG + 1), (0, 1, 3, 2), "int32")),
    ("ARGMAX", "data type", ""): (one("ARGMAX", axis=3), one("ARGMAX", dtype="int16", axis=3)),
    ("ARGMAX", "axis from the end", ""): (one("ARGMAX", (16,), axis=0), one("ARGMAX", axis=2)),
    ("ARGMAX", "size of the axis", ""): (one("ARGMAX", (1, 4, 4, 127), axis=3), one("ARGMAX", (1, 4, 4, 128), axis=3)),
    ("ARGMAX", "batch", ""): (one("ARGMAX", (1, 1, 4, 4, 8), axis=4), one("ARGMAX", (2, 4, 4, 8), axis=3)),
    ("ARGMAX", "height * width", ""): (one("ARGMAX", (1, 256, 256, 4), axis=3),
                                       one("ARGMAX", (1, 256, 257, 4), axis=3)),
    **{(k, "data type", ""): (one(k, dtype="int16", axis=3), one(k, dtype="int32", axis=3))
       for k in ("REDUCE_MAX", "REDUCE_MIN")},
    ("REDUCE_SUM", "size of the axis", "not over channels"): (one("REDUCE_SUM", (2, BIG, 2), "int32", axis=1),
                                                              one("REDUCE_SUM", (2, BIG + 1, 2), "int32", axis=1)),
    ("REDUCE_SUM", "size before the axis", "not over channels"): (one("REDUCE_SUM", (BIG, 3, 2), "int32", axis=1),
                                                                  one("REDUCE_SUM", (BIG + 1, 3, 2), "int32", axis=1)),
    ("REDUCE_SUM", "size after the axis", "not over channels"): (one("REDUCE_SUM", (2, 3, BIG), "int32", axis=1),
                                                                 one("REDUCE_SUM", (2, 3, BIG + 1), "int32", axis=1)),
}


# Vela splits these into thousands of operations, which takes it seconds.
SLOW = ("height or width", "height * width")

# TOSA's own rules leave nothing outside these rows that could be tried.
NO_OUTSIDE = {("CONV2D", "data types", ""), ("DEPTHWISE_CONV2D", "data types", "")}

ABSENT: dict[str, Build] = {
    **{k: two(k) for k in ("BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "INTDIV", "LOGICAL_RIGHT_SHIFT", "EQUAL",
                           "GREATER", "GREATER_EQUAL")},
    **{k: two(k, "bool") for k in ("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR")},
    "BITWISE_NOT": one("BITWISE_NOT"),
    "LOGICAL_NOT": one("LOGICAL_NOT", dtype="bool"),
    "REDUCE_ALL": one("REDUCE_ALL", dtype="bool", axis=2),
    "REDUCE_ANY": one("REDUCE_ANY", dtype="bool", axis=2),
    "SELECT": lambda m: m.op("SELECT", m.input(X, "bool"), m.input(X), m.input(X)),
    "GATHER": lambda m: m.op("GATHER", m.input((1, 10, 8)), m.input((1, 5), "int32")),
    "SCATTER": lambda m: m.op("SCATTER", m.input((1, 10, 8)), m.input((1, 5), "int32"), m.input((1, 5, 8))),
}


def rows() -> Iterator[tuple[str, str, Row]]:
    for family, limits in FAMILIES.items():
        for row in limits.rows:
            for kind in row.ops:
                yield family, kind, row


ROWS = [r for r in rows() if (r[1], r[2].measure, r[2].when) not in NO_OUTSIDE]


def verdict(graph: Graph, family: str) -> str:
    """What `check` says of the graph; "" if every operator is accepted."""
    for op in graph.ops:
        try:
            check(op, family)
        except Unsupported as error:
            return error.message
    return ""


def refusal(data: bytes, family: str) -> str:
    try:
        vela.compile(data, SPECS[family])
    except VelaError as error:
        return error.message
    return ""


@pytest.mark.parametrize(("family", "kind", "row"), ROWS, ids=[f"{f}-{k}-{r.measure}-{r.when}" for f, k, r in ROWS])
def test_row(family: str, kind: str, row: Row) -> None:
    inside, outside = PAIRS[kind, row.measure, row.when]
    graph, data = graph_of(inside)
    assert verdict(graph, family) == ""
    assert refusal(data, family) == ""
    graph, data = graph_of(outside)
    assert verdict(graph, family).startswith(f"{FAMILIES[family].name} {kind}: {row.measure}")
    if row.refused or (family == "u55" and row.measure not in SLOW):
        assert bool(refusal(data, family)) is row.refused, "Vela has changed its mind: so must the row"


@pytest.mark.parametrize("kind", ABSENT)
@pytest.mark.parametrize("family", ["u55", "u65"])
def test_absent_operators(family: str, kind: str) -> None:
    graph, data = graph_of(ABSENT[kind])
    assert verdict(graph, family) == f"{FAMILIES[family].name} has no {kind}"
    assert refusal(data, family)
    assert verdict(graph, "u85") == "" and refusal(data, "u85") == ""


def test_the_cases_are_complete() -> None:
    assert set(ABSENT) == set(FAMILIES["u55"].absent) == set(FAMILIES["u65"].absent) and not FAMILIES["u85"].absent
    assert set(PAIRS) == {(k, r.measure, r.when) for _, k, r in ROWS}
    assert all(r.when in (*MEASURES, "") and r.measure in MEASURES for _, _, r in rows())


@pytest.mark.parametrize(("build", "family", "message", "hint"), [
    (conv((1, 11, 11, 8), kernel=(3, 3), stride=(4, 4), depthwise=True), "u55",
     "Ethos-U55 DEPTHWISE_CONV2D: stride 4 > 3",
     "a smaller stride followed by a slice, or the stride folded into channels"),
    (pool("AVG_POOL2D", (1, 16, 16, 8), (9, 9), (1, 1), (4, 4, 4, 4)), "u65",
     "Ethos-U65 AVG_POOL2D: kernel size 9 > 8 (padded)",
     "pad with an operator of its own if padding counts, or pool without padding"),
    (matmul(dtype="int16"), "u55", "Ethos-U55 MATMUL: data types is int16 x int16, allowed: int8 x int8",
     "int8 operands; Ethos-U85 has it"),
    (tconv(computed=True), "u85", "Ethos-U85 TRANSPOSE_CONV2D: constant weights is False, allowed: True",
     "CONV2D and MATMUL take computed weights"),
])
def test_messages(build: Build, family: str, message: str, hint: str) -> None:
    graph, _ = graph_of(build)
    with pytest.raises(Unsupported) as caught:
        for op in graph.ops:
            check(op, family)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_unknown_family() -> None:
    graph, _ = graph_of(matmul())
    with pytest.raises(ArmLowerError) as caught:
        check(graph.ops[0], "u75")
    assert str(caught.value) == "unknown NPU family 'u75'\n  hint: valid names: u55, u65, u85"


@pytest.mark.parametrize(("build", "ok"), [
    (conv((1, 1, 512, 8), kernel=(1, 9), dilation=(1, 64), pad=(0, 0, 512, 0)), True),  # split: 8 for each part
    (conv((1, 1, 512, 8), kernel=(1, 101), dilation=(1, 2), pad=(0, 0, 200, 0)), False),
    (conv((1, 100, 4, 1), out=1, kernel=(33, 1), dilation=(3, 1)), True),  # split: 33 rows for each part
    (tconv((1, 1, 4, 8), kernel=(1, 3), stride=(2, 2)), True),
    (tconv((1, 4, 1, 8), kernel=(3, 1), stride=(2, 1)), True),
    (tconv((1, 1, 4, 8), kernel=(2, 2), stride=(1, 2)), False),
    (resize((4, 2, 8, 2), -1, 1), False),
    (transpose((256, 256, 2, 2), (1, 0, 2, 3)), True),
    (transpose((300, 300, 2, 2), (0, 1, 3, 2)), False),
    (transpose((1, 2, 2, 3, 3, 8), (5, 4, 3, 2, 1, 0)), True),
    (transpose((2, 300, 300, 2), (3, 0, 1, 2)), False),
    (transpose((1, 70000, 2, 3), (0, 1, 2, 3)), True),
])
def test_what_is_measured(build: Build, ok: bool) -> None:
    graph, data = graph_of(build)
    assert (verdict(graph, "u55") == "") is ok
    if ok:
        assert refusal(data, "u55") == ""


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("family", ["u55", "u85"])
def test_random_transposes_that_are_accepted_compile(seed: int, family: str) -> None:
    random = np.random.default_rng(seed)
    rank = int(random.integers(2, 6))
    shape = tuple(int(n) for n in random.choice([1, 2, 3, 7, 40, 300], rank))
    if np.prod(shape) > 1 << 22:
        return
    graph, data = graph_of(transpose(shape, tuple(int(p) for p in random.permutation(rank))))
    if verdict(graph, family) == "":
        assert refusal(data, family) == "", (shape, graph.ops[0].attrs)
