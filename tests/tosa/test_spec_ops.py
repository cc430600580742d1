"""infer() against the reference model and numpy: one row for each operator."""

from __future__ import annotations

import numpy as np
import pytest
from tosa_cases import CASES, Case, operands

from arm_lower.tosa.spec import OPS, infer
from arm_lower.tosa.verify import verify
from tosa_ref.run import run


def test_every_operator_has_a_case() -> None:
    assert {case.kind for case in CASES} == set(OPS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_reference_model_agrees(case: Case) -> None:
    """The reference model checks the graph and run() the result, both against what infer() said."""
    values = operands(case)
    graph = case.graph(values)
    verify(graph)
    (result,) = run(graph, [v for i, v in enumerate(values) if i not in case.constants])
    if case.expect is not None:
        np.testing.assert_array_equal(result, case.expect(*values))


def test_results_are_plain_values() -> None:
    case = CASES[0]
    graph = case.graph()
    ((shape, _),) = infer(case.kind, graph.ops[0].inputs, case.attrs)
    assert all(type(d) is int for d in shape)
