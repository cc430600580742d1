"""Random graphs: text and flatbuffer round trips are exact, and every form computes the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tosa_cases import CASES, RESCALE, Case, add, operands, random

from arm_lower.tosa.ir import Attr, DType, Graph, Tensor
from arm_lower.tosa.serialize import from_flatbuffer, to_flatbuffer
from arm_lower.tosa.spec import with_defaults
from arm_lower.tosa.text import parse, to_text
from arm_lower.tosa.verify import verify
from tosa_ref.run import run

NAMES = st.text(min_size=1, max_size=6)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Two int8 inputs and up to eight operators on values drawn from those made before."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    graph = Graph("main", [Tensor(name, shape, DType.INT8) for name in ("in 0", "größe")])
    values = list(graph.inputs)
    for _ in range(draw(st.integers(1, 8))):
        x = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(sorted(STEPS)))
        values.append(_append(graph, kind, x, rng))
        graph.ops[-1].location = draw(st.text(max_size=8))
    results = [op.output for op in graph.ops]
    graph.outputs = draw(st.lists(st.sampled_from(results), min_size=1, max_size=3, unique_by=id))
    return graph


def _append(graph: Graph, kind: str, x: Tensor, rng: np.random.Generator) -> Tensor:
    rank = len(x.shape)
    axis = int(rng.integers(rank)) if rank else 0
    attrs: dict[str, Attr] = {}
    inputs = [x]
    if kind == "TABLE":
        inputs.append(constant(graph, rng, (256,)))
    elif kind == "MUL":
        inputs.append(constant(graph, rng, tuple(int(rng.choice((1, d))) for d in x.shape)))
        attrs = {"shift": 0}
    elif kind == "CLAMP":
        attrs = {"min": -3, "max": int(rng.integers(-3, 128))}
    elif kind == "RESHAPE":
        attrs = {"shape": (x.size, 1)}
    elif kind == "TRANSPOSE":
        attrs = {"perms": tuple(int(p) for p in rng.permutation(rank))}
    elif kind == "PAD":
        padding = tuple(int(p) for p in rng.integers(0, 2, 2 * rank))
        attrs = {"padding": padding, "pad_const": int(rng.integers(-128, 128))}
    elif kind in ("REVERSE", "REDUCE_MAX"):
        attrs = {"axis": axis}
    elif kind == "CONCAT":
        inputs, attrs = [x, x], {"axis": axis}
    elif kind == "RESCALE":
        count = x.shape[-1]
        multiplier = tuple(int(v) for v in rng.integers(1 << 30, 1 << 31, count))
        shift = tuple(int(v) for v in rng.integers(30, 34, count))
        attrs = {**RESCALE, "per_channel": True, "multiplier": multiplier, "shift": shift,
                 "input_zp": int(rng.integers(-128, 128))}
    y = add(graph, kind, inputs, attrs)
    return y if y.dtype is DType.INT8 else add(graph, "RESCALE", [y], {**RESCALE, "shift": (38,)})


STEPS = {"TABLE", "MUL", "CLAMP", "RESHAPE", "TRANSPOSE", "PAD", "REVERSE", "REDUCE_MAX", "CONCAT", "RESCALE"}


def constant(graph: Graph, rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    return Tensor(f"c{len(graph.ops)}", shape, DType.INT8, random(rng, shape, DType.INT8))


def same(a: Graph, b: Graph) -> None:
    """Equal in all but the identity of the objects."""
    assert to_text(a) == to_text(b)
    for x, y in zip(a.ops, b.ops, strict=True):
        assert x.attrs == y.attrs and list(x.attrs) == list(y.attrs) and x.location == y.location
        assert [type(v) for v in x.attrs.values()] == [type(v) for v in y.attrs.values()]
    for x, y in zip(a.constants(), b.constants(), strict=True):
        assert x.data is not None and y.data is not None and x.data.dtype == y.data.dtype
        np.testing.assert_array_equal(x.data, y.data)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_round_trips(graph: Graph) -> None:
    verify(graph)
    same(graph, parse(to_text(graph)))
    data = to_flatbuffer(graph)
    assert to_flatbuffer(graph) == data
    for op in graph.ops:
        op.attrs = with_defaults(op.kind, op.attrs)
    same(graph, from_flatbuffer(data))


@settings(max_examples=25, deadline=None)
@given(graphs(), st.integers(0, 1 << 32))
def test_all_forms_compute_the_same(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = [random(rng, t.shape, t.dtype) for t in graph.inputs]
    expected = run(graph, inputs)
    for other in (parse(to_text(graph)), from_flatbuffer(to_flatbuffer(graph))):
        for a, b in zip(expected, run(other, inputs), strict=True):
            np.testing.assert_array_equal(a, b)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([case for case in CASES if case.expect is not None]), st.integers(0, 1 << 32))
def test_random_operands_against_numpy(case: Case, seed: int) -> None:
    values = operands(case, seed)
    result, = run(case.graph(values), [v for i, v in enumerate(values) if i not in case.constants])
    assert case.expect is not None
    np.testing.assert_array_equal(result, case.expect(*values))


@settings(max_examples=40, deadline=None)
@given(st.lists(NAMES, min_size=2, max_size=2, unique=True), st.text(max_size=20), NAMES)
def test_any_text_is_a_name(names: list[str], location: str, graph_name: str) -> None:
    graph = Graph(graph_name, [Tensor(n, (1,), DType.INT32) for n in names])
    graph.outputs = [add(graph, "ADD", graph.inputs, {})]
    graph.outputs[0].name = "".join(names) + "_"
    graph.ops[0].location = location
    same(graph, parse(to_text(graph)))
    assert parse(to_text(graph)).name == graph_name
