"""The reference model: results, its words when it refuses, and silence."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest

from arm_lower.errors import ArmLowerError, TosaError
from arm_lower.tosa.ir import Attr, DType, Graph, Op, Tensor
from arm_lower.tosa.serialize import to_flatbuffer
from tosa_ref.run import ReferenceModel, run

I8, I16, I32, I48 = DType.INT8, DType.INT16, DType.INT32, DType.INT48


def one(kind: str, inputs: Sequence[Tensor], shape: tuple[int, ...], dtype: DType, **attrs: Attr) -> Graph:
    out = Tensor("y", shape, dtype)
    return Graph("g", [t for t in inputs if t.data is None], [out], [Op(kind, list(inputs), [out], attrs)])


def addition() -> Graph:
    return one("ADD", [Tensor("a", (2,), I32), Tensor("b", (2,), I32)], (2,), I32)


def gather(indices: Tensor) -> Graph:
    return one("GATHER", [Tensor("v", (1, 4, 2), I8), indices], (1, 2, 2), I8)


A, B = np.array([1, 2], np.int32), np.array([30, 40], np.int32)


def test_graph_and_bytes() -> None:
    assert run(addition(), [A, B])[0].tolist() == [31, 42]
    assert run(to_flatbuffer(addition()), [A, B])[0].tolist() == [31, 42]


def test_a_model_runs_many_times() -> None:
    model = ReferenceModel(addition())
    assert [model.run([A, B + i])[0].tolist() for i in range(3)] == [[31, 42], [32, 43], [33, 44]]


def test_inputs_are_taken_as_they_are() -> None:
    """Strided arrays, and rank 0."""
    wide = np.array([[1, 9], [2, 9]], np.int32)
    assert run(addition(), [wide[:, 0], B[::-1]])[0].tolist() == [41, 32]
    scalar = one("ADD", [Tensor("a", (), I32), Tensor("b", (), I32)], (), I32)
    result, = run(scalar, [np.array(3, np.int32), np.array(4, np.int32)])
    assert result.shape == () and result == 7


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"before ")
    run(addition(), [A, B])
    print("after", flush=True)
    assert capfd.readouterr() == ("before after\n", "")


def test_works_without_standard_output() -> None:
    copies = [os.dup(1), os.dup(2)]
    os.close(1)
    os.close(2)
    try:
        assert run(addition(), [A, B])[0].tolist() == [31, 42]
    finally:
        os.dup2(copies[0], 1)
        os.dup2(copies[1], 2)
        for fd in copies:
            os.close(fd)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([A], "1 inputs are given, the graph has 2 (a, b)"),
        ([A, B[:1]], "input 1 ('b') is int32 [1], the graph wants int32 [2]"),
        ([A.astype(np.int64), B], "input 0 ('a') is int64 [2], the graph wants int32 [2]"),
    ],
)
def test_inputs_that_do_not_fit(inputs: list[np.ndarray], message: str) -> None:
    with pytest.raises(ArmLowerError) as error:
        run(addition(), inputs)
    assert error.value.message == message


def test_overflow_is_unpredictable() -> None:
    with pytest.raises(ArmLowerError) as error:
        run(addition(), [np.array([2**31 - 1, 0], np.int32)] * 2)
    assert error.value.message.startswith(
        "the TOSA reference model says TOSA_UNPREDICTABLE: Integer addition: positive overflow, "
        "2147483647 + 2147483647 exceeds INT32_MAX"
    )


def test_indices_of_inputs() -> None:
    """In range in this process; out of range the model would abort it, so a child runs that."""
    model = ReferenceModel(gather(Tensor("i", (1, 2), I32)))
    values = np.arange(8, dtype=np.int8).reshape(1, 4, 2)
    assert model.run([values, np.array([[3, 0]], np.int32)])[0].tolist() == [[[6, 7], [0, 1]]]
    with pytest.raises(ArmLowerError, match=r"OpGather: index\(0, 1\)=4 exceed valid range"):
        model.run([values, np.array([[3, 4]], np.int32)])


def test_computed_indices_run_in_a_child() -> None:
    graph = gather(Tensor("i", (1, 2), I32))
    index = Tensor("n", (1, 2), I32)
    graph.ops.insert(0, Op("ABS", [index], [graph.inputs[1]]))
    graph.inputs[1] = index
    values = np.arange(8, dtype=np.int8).reshape(1, 4, 2)
    assert run(graph, [values, np.array([[-3, 0]], np.int32)])[0].tolist() == [[[6, 7], [0, 1]]]


def test_constant_indices() -> None:
    values = np.arange(8, dtype=np.int8).reshape(1, 4, 2)
    graph = gather(Tensor("i", (1, 2), I32, np.array([[1, 1]], np.int32)))
    assert run(graph, [values])[0].tolist() == [[[2, 3], [2, 3]]]
    graph = gather(Tensor("i", (1, 2), I32, np.array([[1, -1]], np.int32)))
    with pytest.raises(ArmLowerError, match="exceed valid range"):
        run(graph, [values])


def test_int48_cannot_cross() -> None:
    graph = one("MATMUL", [Tensor("a", (1, 1, 1), I16), Tensor("b", (1, 1, 1), I16)], (1, 1, 1), I48, a_zp=0, b_zp=0)
    with pytest.raises(ArmLowerError, match="^graph input or output 'y' is int48, which the model's API lacks"):
        run(graph, [np.ones((1, 1, 1), np.int16)] * 2)


def test_no_tosa() -> None:
    with pytest.raises(TosaError, match="^not a TOSA flatbuffer"):
        run(b"nothing", [])
