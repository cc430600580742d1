"""Every call of a kind: the stock runtime gives torch's results, or the compiler says that no kernel can.

Its kernels take less than the operators do, and end the process, return an error or compute something else where they
do not. `arm_lower.kernels.limits` knows where, and `arm_lower.edge.rules` what to call instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from call_tables import dimension_calls, dtype_calls, edge_calls, number_calls
from one_call import Call, run

TABLES: dict[str, tuple[Callable[[], Iterator[Call]], int]] = {
    "dimensions": (dimension_calls, 600),
    "dtypes": (dtype_calls, 4500),
    "numbers": (number_calls, 1500),
    "edges": (edge_calls, 200),
}
"""Calls, and how many of them have to run at least."""

REFUSED: dict[str, frozenset[str]] = {
    "dimensions": frozenset({
        *(f"aten.fft_{name}.default" for name in (
            "fft", "fft2", "fftn", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ihfft", "ihfft2", "ihfftn",
            "irfft", "irfft2", "irfftn",
        )),
        *(f"aten.linspace.{name}" for name in ("Scalar_Tensor", "Tensor_Scalar", "Tensor_Tensor")),
        "aten.argsort.stable", "aten.cummax.default", "aten.cummin.default", "aten.hash_tensor.default",
        "aten.kthvalue.default", "aten.linalg__powsum.default", "aten.linalg_tensorsolve.default",
        "aten.logcumsumexp.default", "aten.mode.default", "aten.nanmedian.dim", "aten.put.default",
        "aten.take.default", "aten.unique_consecutive.default", "aten.unique_dim.default",
        "aten.unique_dim_consecutive.default",
    }),
    "numbers": frozenset({"aten.masked_fill.Scalar", "aten.threshold.default"}),  # some types, by constraints.yaml
    "dtypes": frozenset(),
    "edges": frozenset(),
}  # fmt: skip
"""Operators that the compiler refuses, most for want of a kernel and of a decomposition."""


@pytest.mark.parametrize("table", TABLES)
def test_stock_runtime_computes_what_torch_does(table: str, interop_python: Path, tmp_path: Path) -> None:
    calls, least = TABLES[table]
    found = run(calls(), interop_python, tmp_path)
    assert not found.wrong, f"{len(found.wrong)}:\n" + "\n".join(f"{k}: {v}" for k, v in list(found.wrong.items())[:30])
    assert {name.split("(")[0] for name in found.refused} == REFUSED[table]
    assert found.ran >= least
