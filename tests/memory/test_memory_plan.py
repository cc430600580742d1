"""The static memory plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arm_lower.errors import ArmLowerError
from arm_lower.memory import ALIGNMENT, Buffer, Plan, check, lower_bound, plan


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    lives = draw(st.lists(st.tuples(st.integers(0, 5000), st.integers(-1, 30), st.integers(0, 10)), max_size=40))
    return [Buffer(f"b{i}", size, first, first + length) for i, (size, first, length) in enumerate(lives)]


@settings(max_examples=200, deadline=None)
@given(buffers())
def test_plans_are_valid_and_bounded(wanted: list[Buffer]) -> None:
    found = plan(wanted)
    check(wanted, found)
    assert found.size >= found.lower_bound
    assert found.size <= sum(b.nbytes + ALIGNMENT for b in wanted)
    assert all(offset % ALIGNMENT == 0 for offset in found.offsets.values())
    assert found == plan(wanted)


def test_chain_needs_two_buffers() -> None:
    found = plan([Buffer(f"b{i}", 1000, i, i + 1) for i in range(20)])
    assert found.size == found.lower_bound == 2 * 1008
    assert found.gap == 0


def test_improvement_closes_the_gap_of_a_greedy_order() -> None:
    sizes = [100, 400, 1000, 200, 400, 100, 1000, 1000, 200, 100, 400, 1000]
    found = plan([Buffer(str(i), 16 * s, i, i + 1) for i, s in enumerate(sizes)])
    assert found.size == found.lower_bound


def test_gap_is_reported() -> None:
    assert Plan({}, 150, 100, "size").gap == pytest.approx(0.5)
    assert "+50.0%" in str(Plan({}, 150, 100, "size"))
    assert plan([]).gap == 0


def test_lower_bound_counts_aligned_bytes_alive_together() -> None:
    assert lower_bound([Buffer("a", 1, 0, 3), Buffer("b", 17, 3, 4), Buffer("c", 100, 5, 6)]) == 112
    assert lower_bound([Buffer("a", 1, 0, 3), Buffer("b", 17, 3, 4)]) == 48


def test_check_finds_an_overlap() -> None:
    wanted = [Buffer("a", 32, 0, 2), Buffer("b", 32, 2, 3), Buffer("c", 32, 3, 4)]
    check(wanted, Plan({"a": 0, "b": 32, "c": 0}, 64, 64, ""))
    with pytest.raises(ArmLowerError, match="b at 16..48 overlaps a at 0..32"):
        check(wanted, Plan({"a": 0, "b": 16, "c": 64}, 96, 64, ""))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Plan({}, 64, 64, ""), "a has no offset"),
        (Plan({"a": 8}, 64, 64, ""), "does not fit an arena"),
        (Plan({"a": 48}, 64, 64, ""), "does not fit an arena"),
        (Plan({"a": -16}, 64, 64, ""), "does not fit an arena"),
    ],
)
def test_check_finds_bad_offsets(broken: Plan, message: str) -> None:
    with pytest.raises(ArmLowerError, match=message):
        check([Buffer("a", 32, 0, 1)], broken)


def test_bad_buffers_are_refused() -> None:
    good = Buffer("a", 1, 0, 1)
    with pytest.raises(ArmLowerError, match="two buffers are called a"):
        plan([good, good])
    with pytest.raises(ArmLowerError, match="lives from 2 to 1"):
        plan([replace(good, first=2)])
    with pytest.raises(ArmLowerError, match="-1 bytes"):
        plan([replace(good, nbytes=-1)])
