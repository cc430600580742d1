"""Our runtime against the stock ExecuTorch runtime: all tables of one-operator programs.

Integers and bool give the same bytes, floats agree within the tolerance of the case. Every program counts that both
run; where the stock runtime is known not to do what torch does, `stock_deviations.DEVIATIONS` says why.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest
from interop.conftest import interop_python  # noqa: F401  a fixture
from one_op import OneOp, difference, expected, ours, stock
from stock_deviations import DEVIATIONS
from torch import Tensor

HERE = Path(__file__).parent
LEAST = {"elementwise": 2800, "move": 300, "nn": 300}
"""Programs that must agree, by table (tests/fvp/device/cases_*.py)."""


@pytest.mark.parametrize("table", LEAST)
def test_same_results(table: str, interop_python: Path, tmp_path: Path) -> None:  # noqa: F811
    cases = [c for c in cases_of(table) if not isinstance(expected(c), str)]
    deviations = DEVIATIONS[table]
    used: Counter[str] = Counter()
    wrong: list[str] = []
    agree = 0
    for case, mine, other in zip(cases, ours(cases), stock(interop_python, cases, tmp_path), strict=True):
        text = compare(case, mine, other)
        pattern = next((p for p in deviations if text and re.fullmatch(p, label(case))), None)
        if not text:
            agree += 1
        elif pattern is not None and not isinstance(mine, str):
            used[pattern] += 1
        else:
            wrong.append(f"{label(case)}: {text}")
    assert not wrong, f"{len(wrong)} of {len(cases)}, {agree} agree:\n" + "\n".join(wrong[:30])
    assert set(deviations) == set(used), f"no longer needed: {sorted(set(deviations) - set(used))}"
    assert agree >= LEAST[table]


def test_enough_programs() -> None:
    assert set(LEAST) == set(DEVIATIONS) == {p.stem.removeprefix("cases_") for p in HERE.glob("cases_*.py")}
    assert sum(LEAST.values()) >= 400


def cases_of(table: str) -> list[OneOp]:
    cases: list[OneOp] = importlib.import_module(f"cases_{table}").CASES
    return cases


def compare(case: OneOp, mine: list[Tensor] | str, other: list[Tensor] | str) -> str:
    """What differs, with who is refused first."""
    if isinstance(mine, str):
        return f"ours refuses: {mine}"
    if isinstance(other, str):
        return f"the stock runtime refuses: {other[-200:]}"
    return difference(case, mine, other)


def label(case: OneOp) -> str:
    """The case and the results it asks for."""
    outs = ", ".join("layout" if isinstance(o, Tensor) and not o.is_contiguous() else str(getattr(o, "dtype", o))
                     for o in case.outs or ())  # fmt: skip
    return f"{case} -> {outs}"
