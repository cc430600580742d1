"""verify(): every way a graph can be broken, with its exact message."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tosa_cases import CASES, Case, add, operands

from arm_lower.errors import TosaError
from arm_lower.tosa.ir import DType, Graph, Op, Tensor
from arm_lower.tosa.verify import verify

I8, I32 = DType.INT8, DType.INT32


def graph() -> Graph:
    """y0 = x + c; y1 = clz(y0)"""
    g = Graph("g", [Tensor("x", (2, 3), I32)])
    c = Tensor("c", (1, 3), I32, np.array([[1, 2, 3]], np.int32))
    add(g, "CLZ", [add(g, "ADD", [g.inputs[0], c], {})], {})
    g.outputs = [g.ops[1].output]
    return g


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_legal(case: Case) -> None:
    verify(case.graph(operands(case)))


def _twice(g: Graph) -> None:
    g.inputs *= 2


def _constant_input(g: Graph) -> None:
    g.inputs.append(g.ops[0].inputs[1])


def _order(g: Graph) -> None:
    g.ops.reverse()


def _same_name(g: Graph) -> None:
    g.ops[1].output.name = "x"


def _result_twice(g: Graph) -> None:
    g.ops[1].outputs = [g.ops[0].output]


def _wrong_shape(g: Graph) -> None:
    g.ops[1].output.shape = (3, 2)


def _wrong_dtype(g: Graph) -> None:
    g.ops[0].output.dtype = I8


def _more_results(g: Graph) -> None:
    g.ops[1].outputs.append(Tensor("z", (2, 3), I32))


def _constant_result(g: Graph) -> None:
    g.ops[1].output.data = np.zeros((2, 3), np.int32)


def _illegal(g: Graph) -> None:
    g.ops[1].attrs["axis"] = 1


def _unknown(g: Graph) -> None:
    g.ops[1].kind = "TANH"


def _constant_type(g: Graph) -> None:
    g.ops[0].inputs[1].data = np.array([[1, 2, 3]], np.int64)


def _constant_shape(g: Graph) -> None:
    g.ops[0].inputs[1].data = np.array([1, 2, 3], np.int32)


def _no_outputs(g: Graph) -> None:
    g.outputs = []


def _input_output(g: Graph) -> None:
    g.outputs = [g.inputs[0]]


def _outputs_twice(g: Graph) -> None:
    g.outputs *= 2


def _narrow(g: Graph) -> None:
    g.ops = []
    g.outputs = [add(g, "IDENTITY", [Tensor("c", (1,), DType.INT4, np.array([-8], np.int8))], {})]


def _wide(g: Graph) -> None:
    g.ops = []
    g.outputs = [add(g, "IDENTITY", [Tensor("c", (1,), DType.INT48, np.array([1 << 47]))], {})]


CLZ = "operator 1, CLZ that makes 'y1' from net.1:aten.clz: "
ADD = "operator 0, ADD that makes 'y0' from net.0:aten.add: "


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_twice, "'x' is there twice"),
        (_constant_input, "input 'c' is a constant"),
        (_order, "operator 0, CLZ that makes 'y1' from net.1:aten.clz: reads 'y0', which nothing before it makes"),
        (_same_name, "'x' names two tensors"),
        (_result_twice, "'y0' is there twice"),
        (_wrong_shape, CLZ + "result is int32 [3, 2], it must be int32 [2, 3]"),
        (_wrong_dtype, ADD + "result is int8 [2, 3], it must be int32 [2, 3]"),
        (_more_results, CLZ + "has 2 results, allowed is 1"),
        (_constant_result, CLZ + "result 'y1' is a constant"),
        (_illegal, CLZ + "unknown attribute 'axis', allowed are none"),
        (_unknown, CLZ.replace("CLZ", "TANH") + "not an operator of the TOSA 1.0 integer profile"),
        (_constant_type, "constant 'c' holds int64 [1, 3], its tensor is int32 [1, 3], which is held in int32"),
        (_constant_shape, "constant 'c' holds int32 [3], its tensor is int32 [1, 3], which is held in int32"),
        (_no_outputs, "it has no outputs"),
        (_input_output, "output 'x' is not the result of an operator"),
        (_outputs_twice, "an output is there twice"),
        (_narrow, "constant 'c' has values -8..-8, allowed for int4 is -7..7"),
        (_wide, f"constant 'c' has values {1 << 47}..{1 << 47}, allowed for int48 is {-(1 << 47)}..{(1 << 47) - 1}"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_broken(damage: Callable[[Graph], None], message: str) -> None:
    g = graph()
    damage(g)
    with pytest.raises(TosaError) as error:
        verify(g)
    assert error.value.message == f"graph 'g': {message}"


def level(kind: str, inputs: list[Tensor], **attrs: object) -> str:
    g = Graph("g", inputs)
    g.outputs = [add(g, kind, inputs, attrs)]  # type: ignore[arg-type]
    g.ops[0].location = ""
    with pytest.raises(TosaError) as error:
        verify(g)
    return error.value.message.removeprefix(f"graph 'g': operator 0, {kind} that makes 'y0': ")


def test_level_8k() -> None:
    """Graphs that are legal TOSA but beyond the level."""

    def t(*shape: int, dtype: DType = I8, name: str = "x") -> Tensor:
        return Tensor(name, shape, dtype)

    window = dict(stride=(1, 1), pad=(0, 0, 0, 0))
    assert level("CLZ", [t(*(1,) * 7, dtype=I32)]) == "x has rank 7, level 8K allows 6"
    assert level("CLZ", [t(1 << 29, dtype=I32)]) == "x is larger than the 2^31 - 1 bytes of level 8K"
    assert level("CONCAT", [t(1, name=f"x{i}") for i in range(65)], axis=0) == "65 inputs, level 8K allows 64"
    assert level("MAX_POOL2D", [t(1, 1, 9000, 1)], kernel=(1, 9000), **window) == (
        "the kernel covers [1, 9000], level 8K allows 8192")  # fmt: skip
    assert level("MAX_POOL2D", [t(1, 1, 9002, 1)], kernel=(1, 1), **{**window, "stride": (1, 9001)}) == (
        "stride is [1, 9001], level 8K allows 8192")  # fmt: skip
    assert level("RESIZE", [t(1, 1, 1, 1)], scale=(512, 1, 1, 1), offset=(0, 0), border=(0, 0), mode="nearest") == (
        "scale is [512, 1, 1, 1], level 8K allows a factor of 256")  # fmt: skip
    conv = dict(window, dilation=(3000, 1), input_zp=0, weight_zp=0)
    weights = [t(1, 3, 1, 1, name="w"), t(1, dtype=I32, name="b")]
    assert level("CONV2D", [t(1, 6001, 1, 1), *weights], **conv) == "the kernel covers [9000, 1], level 8K allows 8192"
    pads = dict(conv, dilation=(1, 1), pad=(8193, 0, 0, 0))
    assert level("CONV2D", [t(1, 3, 1, 1), *weights], **pads) == "pad is [8193, 0, 0, 0], level 8K allows 8192"


def test_an_operator_without_location() -> None:
    g = Graph("g", [Tensor("x", (2,), I8)])
    g.outputs = [Tensor("y", (2,), I8)]
    g.ops = [Op("ABS", g.inputs, g.outputs)]
    with pytest.raises(TosaError, match="^graph 'g': operator 0, ABS that makes 'y': data types int8"):
        verify(g)
