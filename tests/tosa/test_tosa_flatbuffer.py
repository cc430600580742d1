"""Flatbuffers: what is written reads back, always with the same bytes, and broken files end in a TosaError."""

from __future__ import annotations

import numpy as np
import pytest
import tosa_serializer as ts
from tosa import TosaGraph
from tosa_cases import CASES, CONV, Case, add, operands

from arm_lower.errors import TosaError
from arm_lower.tosa.ir import DType, Graph, Op, Tensor
from arm_lower.tosa.serialize import from_flatbuffer, operator_locations, signature, to_flatbuffer, unpack
from arm_lower.tosa.spec import with_defaults
from arm_lower.tosa.text import to_text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_round_trip(case: Case) -> None:
    graph = case.graph(operands(case))
    graph.name = "main"
    for op in graph.ops:
        op.attrs = with_defaults(op.kind, op.attrs)
    data = to_flatbuffer(graph)
    back = from_flatbuffer(data)
    assert to_text(back) == to_text(graph)
    assert to_flatbuffer(back) == data


def two_convolutions() -> Graph:
    graph = Graph("g", [Tensor("x", (1, 4, 4, 2), DType.INT8)])
    weight = Tensor("w", (2, 3, 3, 2), DType.INT8, np.ones((2, 3, 3, 2), np.int8))
    bias = Tensor("b", (2,), DType.INT32, np.zeros(2, np.int32))
    graph.outputs = [add(graph, "CONV2D", [graph.inputs[0], weight, bias], {**CONV, "input_zp": 4}) for _ in range(2)]
    return graph


def test_constants_are_written_once() -> None:
    data = to_flatbuffer(two_convolutions())
    assert signature(data).operators == ("CONST", "CONST", "CONST", "CONST", "CONV2D", "CONV2D")
    block = TosaGraph.TosaGraph.GetRootAs(data, 0).Regions(0).Blocks(0)
    names = [block.Tensors(i).Name().decode() for i in range(block.TensorsLength())]
    assert names == ["x", "w", "b", "y0.input_zp", "y0.weight_zp", "y0", "y1"]


def test_names_of_operands_do_not_clash() -> None:
    graph = two_convolutions()
    graph.inputs[0].name = "y0.input_zp"
    back = from_flatbuffer(to_flatbuffer(graph))
    assert [t.name for t in back.ops[1].inputs] == ["y0.input_zp", "w", "b"]
    assert back.ops[1].attrs["input_zp"] == 4


def test_locations_count_constants() -> None:
    """Vela's ext_key is an index into this list."""
    found = operator_locations(to_flatbuffer(two_convolutions()))
    assert found == ["", "", "", "", "net.0:aten.conv2d", "net.1:aten.conv2d"]


def test_signature() -> None:
    sig = signature(to_flatbuffer(two_convolutions()))
    assert [(t.name, t.shape, t.dtype) for t in (*sig.inputs, *sig.outputs)] == [
        ("x", (1, 4, 4, 2), DType.INT8),
        ("y0", (1, 4, 4, 2), DType.INT32),
        ("y1", (1, 4, 4, 2), DType.INT32),
    ]


def test_version() -> None:
    version = TosaGraph.TosaGraph.GetRootAs(to_flatbuffer(two_convolutions()), 0).Version()
    assert (version._Major(), version._Minor(), version._Patch(), version._Draft()) == (1, 0, 0, False)


def test_wide_and_narrow_constants() -> None:
    values = {
        DType.INT48: np.array([-(1 << 47), -1, 0, (1 << 47) - 1], np.int64),
        DType.INT4: np.array([-7, -1, 0, 3, 7], np.int8),
        DType.BOOL: np.array([True, False, True]),
        DType.INT16: np.array([-32768, 32767], np.int16),
    }
    for dtype, data in values.items():
        graph = Graph("g")
        constant = Tensor("c", data.shape, dtype, data)
        graph.outputs = [add(graph, "IDENTITY", [constant], {})]
        back = next(from_flatbuffer(to_flatbuffer(graph)).constants())
        assert back.data is not None and back.data.dtype == data.dtype
        np.testing.assert_array_equal(back.data, data)


def test_two_tensors_of_one_name() -> None:
    graph = two_convolutions()
    graph.ops[1].output.name = "x"
    with pytest.raises(TosaError, match="^two tensors are named 'x'$"):
        to_flatbuffer(graph)


@pytest.mark.parametrize("which", ["input", "constant"])
def test_outputs_are_results(which: str) -> None:
    graph = two_convolutions()
    graph.outputs = [graph.inputs[0] if which == "input" else graph.ops[0].inputs[1]]
    with pytest.raises(TosaError, match="^graph output '[xw]' is not the result of an operator\n  hint: .*IDENTITY$"):
        to_flatbuffer(graph)


def foreign(op: ts.Op, fill: str, *arguments: object, inputs: tuple[str, ...] = ("x",)) -> bytes:
    """A file with one operator, written without our serializer."""
    out = ts.TosaSerializer("", ts.ConstMode.EMBED, 1, 0, 0, False)
    for name in inputs:
        out.addInputTensor(ts.TosaSerializerTensor(name, [2, 2], ts.DType.INT32))
    out.currRegion.currBasicBlock.addTensor("y", [2, 2], ts.DType.INT32)
    attribute = ts.TosaSerializerAttribute()
    getattr(attribute, fill)(*arguments)
    out.addOperator(op, list(inputs), ["y"], attribute)
    out.addOutputTensor(ts.TosaSerializerTensor("y", [2, 2], ts.DType.INT32))
    return bytes(out.serialize())


def test_foreign_operators() -> None:
    graph = from_flatbuffer(foreign(ts.Op.ADD, "AddAttribute", inputs=("a", "b")))
    assert [(op.kind, [t.name for t in op.inputs], op.location) for op in graph.ops] == [("ADD", ["a", "b"], "")]
    data = foreign(ts.Op.TANH, "TanhAttribute")
    assert signature(data).operators == ("TANH",)
    with pytest.raises(TosaError, match="^TANH that makes 'y' is not in the TOSA 1.0 integer profile$"):
        from_flatbuffer(data)


def test_computed_parameters_are_refused() -> None:
    data = foreign(ts.Op.MUL, "MulAttribute", inputs=("a", "b", "shift"))
    with pytest.raises(TosaError, match="^MUL: shift is 'shift', allowed is a constant$"):
        from_flatbuffer(data)
    with pytest.raises(TosaError, match="^RESHAPE: shape is 'b', allowed is a constant shape$"):
        from_flatbuffer(foreign(ts.Op.RESHAPE, "ReshapeAttribute", inputs=("a", "b")))


def test_other_files() -> None:
    with pytest.raises(TosaError, match=r"^not a TOSA flatbuffer: 12 bytes, file id b'ET12', allowed is b'TOSA'$"):
        from_flatbuffer(b"\0\0\0\0ET12\0\0\0\0")
    out = ts.TosaSerializer("", ts.ConstMode.EMBED, 2, 0, 0, False)
    with pytest.raises(TosaError, match=r"^TOSA version is 2.0, allowed is 1.x$"):
        from_flatbuffer(bytes(out.serialize()))


def test_control_flow_is_refused() -> None:
    out = ts.TosaSerializer("", ts.ConstMode.EMBED, 1, 0, 0, False)
    out.startRegion("second")
    out.addBasicBlock("second")
    with pytest.raises(TosaError, match="^control flow"):
        signature(bytes(out.serialize()))


@pytest.mark.parametrize("reader", [from_flatbuffer, signature, operator_locations])
def test_damaged_files(reader: object) -> None:
    assert callable(reader)
    data = to_flatbuffer(two_convolutions())
    rng = np.random.default_rng(0)
    for trial in range(200):
        damaged = bytearray(data)
        if trial % 2:
            damaged = damaged[: rng.integers(len(data))]
        else:
            damaged[rng.integers(8, len(data))] = rng.integers(256)
        try:
            reader(bytes(damaged))
        except TosaError:
            continue


def test_operator_without_attribute_table() -> None:
    """Each operator of ours has one, else the reference model says "Attribute not initialized"."""
    graph = Graph("g", [Tensor("x", (2,), DType.INT32)])
    graph.outputs = [Tensor("y", (2,), DType.INT32)]
    graph.ops = [Op("ABS", graph.inputs, graph.outputs)]
    block = TosaGraph.TosaGraph.GetRootAs(to_flatbuffer(graph), 0).Regions(0).Blocks(0)
    assert block.Operators(0).Attribute() is not None


def test_padded_constants() -> None:
    """The peer pads the bytes of every constant to a multiple of 8."""
    raw = np.array([1, 2, 3], "<i2").tobytes()
    assert unpack(raw + bytes(2), (3,), DType.INT16, "c").tolist() == [1, 2, 3]
    for size in (5, 9):
        with pytest.raises(TosaError, match=rf"^constant 'c' of int16 \[3\] has {size} bytes, allowed is 6$"):
            unpack((raw + bytes(9))[:size], (3,), DType.INT16, "c")
