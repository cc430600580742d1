"""Differences between two results."""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest

from arm_lower.errors import ArmLowerError
from arm_lower.tosa.ir import DType, Graph, Op, Tensor
from arm_lower.tosa.spec import infer
from tosa_ref.compare import compare, compare_arrays, compare_graphs, first_difference, intermediates, sqnr_db


def test_equal() -> None:
    x = np.array([1, 2], np.int8)
    difference = compare_arrays("x", x, x.copy())
    assert (difference.bit_exact, difference.max_difference, difference.differing) == (True, 0, 0)
    assert difference.index is None
    assert difference.sqnr_db == math.inf
    assert str(difference) == "x: bit-exact (2 elements)"


def test_integers() -> None:
    a = np.array([[10, 20, 30], [40, 50, 60]], np.int8)
    b = a.copy()
    b[0, 2], b[1, 1] = 31, 47
    difference = compare_arrays("x", a, b)
    assert (difference.max_difference, difference.differing, difference.size) == (3, 2, 6)
    assert (difference.index, difference.reference, difference.found) == ((0, 2), 30, 31)
    assert difference.sqnr_db == pytest.approx(10 * math.log10(9100 / 10))
    text = "x: 2 of 6 elements differ, at most by 3, SQNR 29.6 dB; first at [0, 2]: reference 30, found 31"
    assert str(difference) == text


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_the_largest_difference(dtype: type[np.integer]) -> None:
    info = np.iinfo(dtype)
    found = compare_arrays("x", np.array([info.max], dtype), np.array([info.min], dtype)).max_difference
    assert found == int(info.max) - int(info.min)


def test_floats_are_compared_by_their_bits() -> None:
    a = np.array([np.nan, 0.0, 1.0], np.float32)
    assert compare_arrays("x", a, a.copy()).bit_exact
    b = np.array([np.nan, -0.0, 1.5], np.float32)
    difference = compare_arrays("x", a, b)
    assert (difference.differing, difference.max_difference, difference.index) == (2, 0.5, (1,))
    assert compare_arrays("x", a[:1], b[2:]).max_difference == math.inf


def test_booleans_and_scalars() -> None:
    difference = compare_arrays("x", np.array(True), np.array(False))
    assert (difference.max_difference, difference.index, difference.reference) == (1, (), True)


def test_sqnr() -> None:
    zeros, ones = np.zeros(4), np.ones(4)
    assert sqnr_db(ones, ones) == math.inf
    assert sqnr_db(ones, ones * 1.1) == pytest.approx(20)
    assert sqnr_db(zeros, ones) == -math.inf


def test_outputs() -> None:
    a, b = np.array([1, 2], np.int8), np.array([3], np.int16)
    assert [d.name for d in compare([a, b], [a, b], ["logits"])] == ["logits", "output 1"]
    with pytest.raises(ArmLowerError, match="^the reference has 2 outputs, the other has 1$"):
        compare([a, b], [a])
    with pytest.raises(ArmLowerError, match=r"^output 0: cannot compare int8 \[2\] with int16 \[1\]$"):
        compare([a], [b])


def chain() -> Graph:
    """Matrix product of int16 (int48), back to int16, clamped, negated."""
    graph = Graph("g", [Tensor("a", (1, 2, 3), DType.INT16), Tensor("b", (1, 3, 2), DType.INT16)])
    rescale = dict(multiplier=(1 << 14,), shift=(30,), input_zp=0, output_zp=0, scale32=False, rounding="single",
                   per_channel=False, input_unsigned=False, output_unsigned=False, out_dtype="int16")
    inputs = list(graph.inputs)
    for kind, attrs in (("MATMUL", {"a_zp": 0, "b_zp": 0}), ("RESCALE", rescale), ("CLAMP", {"min": -90, "max": 90}),
                        ("NEGATE", {"input1_zp": 0, "output_zp": 0})):
        (shape, dtype), = infer(kind, inputs, attrs)
        graph.ops.append(Op(kind, inputs, [Tensor(kind.lower(), shape, dtype)], dict(attrs), f"layer.{kind}:aten"))
        inputs = graph.ops[-1].outputs
    graph.outputs = inputs
    return graph


INPUTS = [np.full((1, 2, 3), 3000, np.int16), np.arange(6).reshape(1, 3, 2).astype(np.int16) * 100]


def test_intermediates_but_int48() -> None:
    values = intermediates(chain(), INPUTS)
    assert list(values) == ["rescale", "clamp", "negate"]
    assert values["rescale"].tolist() == [[[27, 41], [27, 41]]]


def test_the_first_operator_that_differs() -> None:
    graph, other = chain(), chain()
    assert compare_graphs(graph, other, INPUTS) is None
    other.ops[2].attrs["max"] = 40
    found = compare_graphs(graph, other, INPUTS)
    assert found is not None
    assert (found.index, found.kind, found.location) == (2, "CLAMP", "layer.CLAMP:aten")
    assert str(found) == ("operator 2, CLAMP from layer.CLAMP:aten: clamp: 2 of 4 elements differ, at most by 1, "
                          "SQNR 33.8 dB; first at [0, 0, 1]: reference 41, found 40")


def test_tensors_that_only_one_has_are_skipped() -> None:
    graph = chain()
    values = intermediates(graph, INPUTS)
    other = deepcopy(values)
    other["negate"] += 1
    del other["clamp"]
    found = first_difference(graph, values, other)
    assert found is not None and found.kind == "NEGATE"
