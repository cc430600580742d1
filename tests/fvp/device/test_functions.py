"""The runtime's own functions (`functions.c`) against float64 ones of numpy, in the host build. That a device gives the
same bits is in `test_device_is_host.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from arm_lower.program import to_edge
from fvp.native import Native

Floats = npt.NDArray[np.float32]
Results = dict[str, tuple[Floats, npt.NDArray[np.float64]]]
FUNCTIONS: Mapping[str, tuple[float, Callable[..., Any]]] = {
    "expm1": (1.45, np.expm1), "log1p": (1.0, np.log1p), "tan": (2.0, np.tan),
    "asin": (1.4, np.arcsin), "acos": (1.3, np.arccos), "atan": (1.4, np.arctan), "atan2": (1.6, np.arctan2),
    "sinh": (1.55, np.sinh), "cosh": (1.5, np.cosh), "tanh": (1.35, np.tanh),
    "asinh": (1.45, np.arcsinh), "acosh": (1.55, np.arccosh), "atanh": (1.1, np.arctanh),
    "erf": (1.3, np.vectorize(math.erf, [np.float64])),
}  # fmt: skip
"""Name -> limit in units of the last place, a little above the most of all 2^32 inputs (atan2: of 4e8); reference."""
ENDS = np.array([0, 2.0**-149, 2.0**-126, 0.5, 1 - 2.0**-24, 1, 1 + 2.0**-23, 2, 88.72284, 89.41599, 89.42, 2.0**127,
                 math.inf, math.nan], np.float32)  # fmt: skip
SPECIAL: Mapping[str, Mapping[float, float]] = {
    "expm1": {-math.inf: -1, math.inf: math.inf}, "log1p": {-2: math.nan, -1: -math.inf, math.inf: math.inf},
    "tan": {-math.inf: math.nan, math.inf: math.nan}, "asin": {-2: math.nan, 2: math.nan},
    "acos": {-2: math.nan, 1: 0, 2: math.nan}, "sinh": {-math.inf: -math.inf, math.inf: math.inf},
    "cosh": {-math.inf: math.inf, 0: 1, math.inf: math.inf}, "tanh": {-math.inf: -1, math.inf: 1},
    "asinh": {-math.inf: -math.inf, math.inf: math.inf},
    "acosh": {-math.inf: math.nan, 0.5: math.nan, 1: 0, math.inf: math.inf},
    "atanh": {-2: math.nan, -1: -math.inf, 1: math.inf, math.inf: math.nan}, "erf": {-math.inf: -1, math.inf: 1},
}  # fmt: skip
ODD = ("expm1", "log1p", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf")
"""Zeros keep their sign."""


class All(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.atan2(x, y) if name == "atan2" else getattr(torch, name)(x) for name in FUNCTIONS)


def numbers() -> tuple[Floats, Floats]:
    """Pairs: all of ENDS with either sign; then all exponents, around 1, and where most functions bend, with any other
    number or one near it."""
    rng = np.random.default_rng(7)
    ends = np.concatenate([ENDS, -ENDS])
    exponents = np.arange(255).repeat(200) << 23
    sizes = (exponents | rng.integers(1 << 23, size=exponents.size)).astype(np.int32).view(np.float32)
    ones = 1 + np.arange(-2000, 2000) * 2.0**-24
    x = np.concatenate([sizes, -sizes, ones, -ones, np.linspace(-4, 4, 40_001), np.linspace(-95, 95, 20_001)])
    near = np.clip(x * rng.normal(size=x.size), -1e38, 1e38)
    y = np.where(rng.random(x.size) < 0.5, near, rng.permutation(x))
    pairs = [np.concatenate([ends.repeat(ends.size), x]), np.concatenate([np.tile(ends, ends.size), y])]
    return pairs[0].astype(np.float32), pairs[1].astype(np.float32)


@pytest.fixture(scope="module")
def results() -> Results:
    """Name -> what the runtime gives, and the exact numbers."""
    x, y = numbers()
    pte = to_edge(torch.export.export(All().eval(), (torch.from_numpy(x), torch.from_numpy(y)))).to_executorch().buffer
    found = Native(pte).run([x, y])
    given = [x.astype(np.float64), y.astype(np.float64)]
    with np.errstate(all="ignore"):
        exact = [f(*given) if name == "atan2" else f(given[0]) for name, (_, f) in FUNCTIONS.items()]
    return dict(zip(FUNCTIONS, zip(found, exact), strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_near_the_exact_result(results: Results, name: str) -> None:
    """Signs, those of zeros too, and what is infinite or NaN are the same."""
    found, exact = results[name]
    with np.errstate(over="ignore"):
        wanted = exact.astype(np.float32)
    finite = np.isfinite(wanted) & np.isfinite(found)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    np.testing.assert_array_equal(np.signbit(found[finite]), np.signbit(wanted[finite]))
    errors = np.abs(found[finite] - exact[finite]) / np.spacing(np.abs(wanted[finite])).astype(np.float64)
    assert finite.sum() > 50_000 and errors.max() <= FUNCTIONS[name][0]


def test_special_values(results: Results) -> None:
    x = numbers()[0]
    for name, values in SPECIAL.items():
        for value, wanted in {**values, math.nan: math.nan}.items():
            found = results[name][0][np.isnan(x) if math.isnan(value) else x == value]
            assert found.size and np.array_equal(found, np.full_like(found, wanted), equal_nan=True), (name, value)
    for name in ODD:
        found = results[name][0][x == 0]
        assert (found == 0).all() and np.array_equal(np.signbit(found), np.signbit(x[x == 0])), name
