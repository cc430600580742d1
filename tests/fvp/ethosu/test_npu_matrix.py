"""Every operator case on every accelerator: Vela compiles it, the NPU model equals the reference model."""

from __future__ import annotations

import pytest
from npu_cases import CASES, Case
from npu_harness import TARGETS, compile_graph, difference, reference

KNOWN_DIFFERENCES = {"shr_i32_floor", "cast_i32_i8_wrap", "cast_i16_i8_wrap", "cast_i32_i16_wrap"}
"""Where Vela's encoding and TOSA disagree whatever the model does; only an FVP or a board can settle these."""


def test_the_matrix_is_large_enough() -> None:
    assert len(CASES) >= 250
    assert len({c.name for c in CASES}) == len(CASES)
    assert {c.name for c in CASES if c.differs} == KNOWN_DIFFERENCES


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_operator(case: Case) -> None:
    g = case.build()
    inputs = g.feed(case.seed)
    want = reference(g.graph, inputs)
    for target in TARGETS:
        family = target[:3]
        if family in case.refused:
            with pytest.raises(RuntimeError):
                compile_graph(g.graph, target)
            continue
        found = difference(want, compile_graph(g.graph, target).run(inputs))
        if family in case.differs_on:
            assert found, f"{target}: {case.differs}: no longer differs"
        else:
            assert not found, f"{target}: {found}"
