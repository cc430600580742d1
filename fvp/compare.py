"""Results of the device beside those of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from arm_lower.pte.model import KernelCall, Method

Array = npt.NDArray[Any]
ULPS = 2.0
"""What a call of a float kernel may differ by from torch, which sums in another order (`ulps_apart`)."""
_EXACT = ("quantized_decomposed::", "executorch_prim::")


def float_calls(method: Method) -> int:
    """Calls of CPU kernels but those that only quantize for the NPU and back, which are exact."""
    return sum(not name.startswith(_EXACT) for name in _calls(method))


def quantizes_floats(method: Method) -> bool:
    """Whether results of float kernels may be quantized again. Then the last bit of one can tip it to the next step,
    which later layers multiply."""
    calls = _calls(method)
    first = next((i for i, name in enumerate(calls) if not name.startswith(_EXACT)), len(calls))
    return any(name.startswith("quantized_decomposed::quantize_") for name in calls[first:])


def _calls(method: Method) -> list[str]:
    return [method.operators[i.operator].name for i in method.instructions if isinstance(i, KernelCall)]


def ulps_apart(found: Array, wanted: Array) -> float:
    """Largest difference in units in the last place of the largest finite magnitude of ``wanted`` (a norm-wise
    measure: sums in another order differ by that much also where terms cancel). NaN and infinities have to be equal:
    inf if they are not."""
    f, w = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    finite = np.isfinite(w)
    if not np.array_equal(f[~finite], w[~finite], equal_nan=True) or not np.isfinite(f[finite]).all():
        return float("inf")
    difference = float(np.abs(f[finite] - w[finite]).max(initial=0))
    if difference == 0:
        return 0.0
    largest = np.abs(w[finite]).max(initial=0).astype(wanted.dtype)
    return difference / float(np.spacing(largest))


def problems(found: Sequence[Array], wanted: Sequence[Array], ulps: float) -> list[str]:
    """What differs, one text for each output: any bit of integers, more than ``ulps`` of floats (`ulps_apart`)."""
    if len(found) != len(wanted):
        return [f"{len(found)} outputs, {len(wanted)} are expected"]
    return [text for i, (f, w) in enumerate(zip(found, wanted)) if (text := _problem(i, f, w, ulps))]


def _problem(number: int, found: Array, wanted: Array, ulps: float) -> str:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"output {number} is {found.dtype} {list(found.shape)}, expected {wanted.dtype} {list(wanted.shape)}"
    if wanted.dtype.kind == "f":
        apart = ulps_apart(found, wanted)
        return f"output {number} is {apart:.1f} ULP apart, {ulps:g} are allowed" if apart > ulps else ""
    differing = int((found != wanted).sum())
    return f"output {number}: {differing} of {wanted.size} elements differ" if differing else ""
