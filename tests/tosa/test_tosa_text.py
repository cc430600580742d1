"""The text form: golden text, exact round trips, exact errors."""

from __future__ import annotations

import numpy as np
import pytest
from tosa_cases import CASES, CONV, RESCALE, Case, add, operands

from arm_lower.errors import TosaError
from arm_lower.tosa.ir import DType, Graph, Tensor
from arm_lower.tosa.text import parse, to_text

GOLDEN = """\
graph net {
  input x: int8[1,2,2,1]
  const w: int8[2,1,1,1] = [3,-4]
  const b: int32[2] = [0,70000]
  y0: int32[1,2,2,2] = CONV2D(x, w, b) {pad=[0,0,0,0], stride=[1,1], dilation=[1,1], \
input_zp=-1, weight_zp=0} "net.0:aten.conv2d"
  y1: int8[1,2,2,2] = RESCALE(y0) {multiplier=[1073741824], shift=[31], input_zp=0, \
output_zp=0, scale32=true, rounding="single", per_channel=false, input_unsigned=false, output_unsigned=false, \
out_dtype="int8"} "net.1:aten.rescale"
  const "a table": int8[256] = @0
  y2: int8[1,2,2,2] = TABLE(y1, "a table") "net.2:aten.table"
  y3: int32[] = RESHAPE(y0) {shape=[]}
  output y2
  output "input"
}
data {
  @0 = gIGCg4SFhoeIiYqLjI2Oj5CRkpOUlZaXmJmam5ydnp+goaKjpKWmp6ipqqusra6vsLGys7S1tre4ubq7vL2+v8DBwsPExcbHyMnKy8z\
Nzs/Q0dLT1NXW19jZ2tvc3d7f4OHi4+Tl5ufo6err7O3u7/Dx8vP09fb3+Pn6+/z9/v8AAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eH\
yAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl9gYWJjZGVmZ2hpamtsbW5vcHF\
yc3R1dnd4eXp7fH1+fw==
}
"""


def net() -> Graph:
    """The graph of GOLDEN; not a legal one: text has to show broken graphs too."""
    graph = Graph("net", [Tensor("x", (1, 2, 2, 1), DType.INT8)])
    w = Tensor("w", (2, 1, 1, 1), DType.INT8, np.array([3, -4], np.int8).reshape(2, 1, 1, 1))
    b = Tensor("b", (2,), DType.INT32, np.array([0, 70000], np.int32))
    table = Tensor("a table", (256,), DType.INT8, np.arange(-128, 128).astype(np.int8))
    y = add(graph, "CONV2D", [graph.inputs[0], w, b], {**CONV, "pad": (0, 0, 0, 0), "input_zp": -1})
    z = add(graph, "RESCALE", [y], RESCALE)
    out = add(graph, "TABLE", [z, table], {})
    one = Tensor("input", (1, 1), DType.INT8)
    scalar = add(graph, "RESHAPE", [one], {"shape": ()})
    graph.ops[-1].inputs, graph.ops[-1].location, scalar.dtype = [y], "", DType.INT32
    graph.outputs = [out, one]
    return graph


def test_golden() -> None:
    assert to_text(net()) == GOLDEN
    assert str(net()) == GOLDEN


def test_without_data_is_short() -> None:
    text = to_text(net(), data=False)
    assert text == GOLDEN[: GOLDEN.index("data {")]
    with pytest.raises(TosaError, match="line 7: @0 is not in the data section"):
        parse(text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_round_trip(case: Case) -> None:
    text = to_text(case.graph(operands(case)))
    assert to_text(parse(text)) == text


def test_values_come_back_exactly() -> None:
    data = {
        DType.BOOL: np.array([True, False]),
        DType.INT4: np.array([-7, 7], np.int8),
        DType.INT8: np.array([-128, 127], np.int8),
        DType.INT16: np.arange(-20, 20, dtype=np.int16),
        DType.INT48: np.array([-(1 << 47), (1 << 47) - 1], np.int64),
        DType.FP32: np.array([1.1, np.inf], np.float32),
    }
    graph = Graph("constants", [], [Tensor(f"c_{d}", v.shape, d, v) for d, v in data.items()])
    for t, back in zip(graph.outputs, parse(to_text(graph)).outputs, strict=True):
        assert t.data is not None and back.data is not None
        assert (t.name, t.shape, t.dtype, t.data.dtype) == (back.name, back.shape, back.dtype, back.data.dtype)
        np.testing.assert_array_equal(t.data, back.data)


def test_long_attributes_go_to_the_data_section() -> None:
    graph = Graph("g", [Tensor("x", (2, 40), DType.INT32)])
    multiplier = tuple(range(1 << 30, (1 << 30) + 40))
    attrs = {**RESCALE, "per_channel": True, "multiplier": multiplier, "shift": (31,) * 40}
    graph.outputs = [add(graph, "RESCALE", graph.inputs, attrs)]
    text = to_text(graph)
    assert "multiplier=@0, shift=@1" in text
    assert parse(text).ops[0].attrs == attrs


def test_odd_names_and_locations() -> None:
    graph = Graph('a "b"\n{', [Tensor("größe, [1]", (1,), DType.INT32), Tensor("output", (1,), DType.INT32)])
    graph.outputs = [add(graph, "ADD", graph.inputs, {})]
    graph.ops[0].location = 'x\\"y"\t\u2028'
    back = parse(to_text(graph))
    assert (back.name, back.ops[0].location) == (graph.name, graph.ops[0].location)
    assert [t.name for t in back.inputs] == ["größe, [1]", "output"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 0: 'graph' is expected, found 'the end of the line'"),
        ("graph g {\n", "line 1: '}' is missing at the end of the graph"),
        ("graph g {\n  input x: int9[1]\n}", "line 2: 'int9' is no data type, "
         "allowed are bool, int4, int8, int16, int32, int48, fp32"),
        ("graph g {\n  input x: int8[1]\n  input x: int8[1]\n}", "line 3: tensor 'x' is there twice"),
        ("graph g {\n  output y\n}", "line 2: tensor 'y' is used but not declared before"),
        ("graph g {\n  const c: int8[2] = [1]\n}", "line 2: c has 1 values, 2 are needed"),
        ("graph g {\n  const c: int8[2] = [1,200]\n}", "line 2: c has the value 200, which is no int8"),
        ("graph g {\n  const c: int8[1] = [1.5]\n}", "line 2: c has the value 1.5, which is no int8"),
        ("graph g {\n  const c: bool[1] = [1]\n}", "line 2: c has the value 1, which is no bool"),
        ("graph g {\n  input c: bool[1.5]\n}", "line 2: a list of integers is expected, found [1.5]"),
        ("graph g {\n  input c: bool[true]\n}", "line 2: a list of integers is expected, found [true]"),
        ("graph g {\n  input c: bool[x]\n}", "line 2: bad list: [x]"),
        ("graph g {\n  const c: int8[2] = @0\n}\ndata {\n  @0 = AA==\n}",
         "line 2: c has 1 bytes of data, 2 are needed"),
        ("graph g {\n}\ndata {\n  @0 = A\n}", "line 4: @0 is not base64"),
        ("graph g {\n  x: int8[1] = ABS(\n}", "line 2: a name is expected, found the end of the line"),
        ("graph g {\n  x: int8[1] = ABS() {axis=?}\n}", "line 2: unexpected '?}'"),
        ("graph g {\n  x: int8[1] = ABS() {axis=yes}\n}", "line 2: 'yes' is no value"),
        ("graph g {\n  x: int8[1] = ABS() here\n}", "line 2: a string is expected, found 'here'"),
        ("graph g {\n  input x: int8[1] 2\n}", "line 2: unexpected '2' at the end of the statement"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(TosaError) as error:
        parse(text)
    assert error.value.message == message
