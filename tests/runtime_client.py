"""Runs programs in the stock ExecuTorch runtime, in child processes."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

SCRIPT = Path(__file__).parent / "interop" / "runtime_child.py"

RuntimeCase = tuple[bytes, str, Sequence[Sequence[Any]]]
"""File, method name, argument lists of the calls to make one after the other."""


def run_all(python: Path, cases: Sequence[RuntimeCase], folder: Path, timeout: float = 900) -> list[Any]:
    """Results of each case: a list of output lists, one for each call, or the text of an error.

    A kernel that ends the process costs only its own case: a new child goes on with the next one.
    """
    results: list[Any] = []
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    given, found = folder / "cases.pt", folder / "results.pt"
    while len(results) < len(cases):
        torch.save([(data, name, [list(c) for c in calls]) for data, name, calls in cases[len(results) :]], given)
        found.unlink(missing_ok=True)
        child = subprocess.run(
            [str(python), str(SCRIPT), str(given), str(found)], capture_output=True, text=True, timeout=timeout,
            env=environment, check=False,
        )  # fmt: skip
        results += list(_read(found))
        if child.returncode != 0 and len(results) < len(cases):
            results.append(f"the runtime ended with code {child.returncode}: {child.stderr[-2000:]}")
        elif len(results) < len(cases):
            results.append(f"no result: {child.stderr[-2000:]}")
    return results


def _read(path: Path) -> Iterator[Any]:
    """What the child wrote before it ended."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)  # noqa: S301 - written by our own child
            except (EOFError, pickle.UnpicklingError):
                return
