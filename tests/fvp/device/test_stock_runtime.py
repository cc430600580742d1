"""Our runtime against the stock ExecuTorch runtime: all tables of one-operator programs.

Integers and bool give the same bytes, floats agree within the tolerance of the case. Where the stock runtime is known
not to do so, `stock_deviations.DEVIATIONS` says how. Ours must be what the case expects throughout.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from interop.conftest import interop_python  # noqa: F401  a fixture
from one_op import OneOp, describe, difference, expected, ours, stock
from stock_deviations import DEVIATIONS, STOPS
from torch import Tensor

HERE = Path(__file__).parent
LEAST = {"elementwise": 1000, "move": 300, "nn": 300}
"""Programs that must agree, by table (tests/fvp/device/cases_*.py)."""
MOST = 16
"""Programs of each kernel, evenly from the table."""


@pytest.mark.parametrize("table", LEAST)
def test_same_results(table: str, interop_python: Path, tmp_path: Path) -> None:  # noqa: F811
    cases = chosen(table)
    wrong: list[str] = []
    agree = 0
    for case, mine, other in zip(cases, ours(cases), stock(interop_python, cases, tmp_path), strict=True):
        text = compare(case, mine, other)
        own = mine if isinstance(mine, str) else difference(case, results_of(case), mine)
        if own:  # also where both runtimes agree on something else
            wrong.append(f"{label(case)}: ours is not what is expected: {own}")
        elif not text:
            agree += 1
        elif not matches(DEVIATIONS[table], case):
            wrong.append(f"{label(case)}: {text}")
    assert not wrong, f"{len(wrong)} of {len(cases)}, {agree} agree:\n" + "\n".join(wrong[:30])
    assert agree >= LEAST[table]


@pytest.mark.parametrize("table", LEAST)
def test_deviations_are_of_cases(table: str) -> None:
    labels = [label(c) for c in cases_of(table)]
    patterns = [*STOPS[table], *DEVIATIONS[table]]
    assert [p for p in patterns if not any(re.fullmatch(p, text) for text in labels)] == []


def test_enough_programs() -> None:
    tables = {p.stem.removeprefix("cases_") for p in HERE.glob("cases_*.py")}
    assert set(LEAST) == set(DEVIATIONS) == set(STOPS) == tables
    assert sum(LEAST.values()) >= 400


def cases_of(table: str) -> list[OneOp]:
    cases: list[OneOp] = importlib.import_module(f"cases_{table}").CASES
    return cases


def chosen(table: str) -> list[OneOp]:
    """What torch computes and does not end the stock runtime, at most `MOST` of each kernel."""
    by_kernel: dict[str, list[OneOp]] = {}
    for case in cases_of(table):
        if not isinstance(expected(case), str) and not matches(STOPS[table], case):
            by_kernel.setdefault(case.name, []).append(case)
    return [c for cases in by_kernel.values() for c in cases[:: -(-len(cases) // MOST)]]


def results_of(case: OneOp) -> list[Tensor]:
    results = expected(case)
    assert not isinstance(results, str)  # of cases that were chosen
    return results


def matches(patterns: Iterable[str], case: OneOp) -> bool:
    return any(re.fullmatch(p, label(case)) for p in patterns)


def compare(case: OneOp, mine: list[Tensor] | str, other: list[Tensor] | str) -> str:
    """What differs, with who is refused first."""
    if isinstance(mine, str):
        return f"ours refuses: {mine}"
    if isinstance(other, str):
        return f"the stock runtime refuses: {other[-200:]}"
    return difference(case, mine, other)


@cache
def label(case: OneOp) -> str:
    """The case and its results, like ``aten::ceil.out(int32[5, 9]) -> int32[5, 9]``."""
    results = expected(case)
    return f"{case} -> {'refused' if isinstance(results, str) else ', '.join(map(describe, results))}"
