"""Neural-network, reduction and quantize kernels of the device runtime against torch, on the host."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from cases_nn import CASES, REFUSED, z
from one_op import OneOp, difference, expected, ours

BY_NAME = {name: list(group) for name, group in groupby(sorted(CASES, key=lambda c: c.name), key=lambda c: c.name)}


@pytest.mark.parametrize("name", BY_NAME)
def test_same_as_torch(name: str) -> None:
    cases = BY_NAME[name]
    wrong = [f"{case}: {text}" for case, found in zip(cases, ours(cases)) if (text := compare(case, found))]
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:20])


def compare(case: OneOp, found: list[torch.Tensor] | str) -> str:
    wanted = expected(case)
    assert not isinstance(wanted, str), f"{case}: {wanted}"
    return difference(case, wanted, found)


def test_bad_input_ends_in_its_status() -> None:
    wrong = [f"{case}: {found}, wanted {text}" for (case, text), found in zip(REFUSED, ours([c for c, _ in REFUSED]))
             if found != text]
    assert not wrong, f"{len(wrong)} of {len(REFUSED)}:\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize("out", [z(2, 4), z(10), z(2, 5, 1)])
def test_wrong_size_of_the_result(out: torch.Tensor) -> None:
    (found,) = ours([OneOp("aten::mm.out", (z(2, 3), z(3, 5)), (out,), wanted=(out,))])
    assert isinstance(found, str) and found.startswith("a result does not have the size that the file says")


def test_the_comparison_can_fail() -> None:
    x = torch.randn(3, 4)
    wanted = torch.softmax(x, 1)
    right = OneOp("aten::_softmax.out", (x, 1, False), wanted=(wanted,), ulps=9)
    wrong = OneOp("aten::_softmax.out", (x, 1, False), wanted=(wanted * (1 + 2e-6),), ulps=9)
    assert [bool(compare(c, f)) for c, f in zip((right, wrong), ours([right, wrong]))] == [False, True]
