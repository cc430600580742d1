"""What the benchmarks share: the model set, seeds, signal to noise, child processes."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

CALIBRATION = (11, 8)
"""Seed and number of the calibration samples."""
EVALUATION = (99, 8)
"""Seed and number of the samples that accuracy is measured on."""

Sample = tuple[Any, ...]
Entry = tuple[Callable[[], Any], Callable[[], Sample], Callable[[int, int], list[Sample]]]


def load_models(path: str | Path) -> dict[str, Entry]:
    """``MODELS`` of a file: name -> (factory, example inputs, generator of (seed, count) samples)."""
    spec = importlib.util.spec_from_file_location("bench_models", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_models"] = module
    spec.loader.exec_module(module)
    models: dict[str, Entry] = module.MODELS
    return models


def outputs_of(value: Any) -> list[Any]:
    """The tensors that a model returned, as a list."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


def sqnr_db(reference: Sequence[Any], found: Sequence[Any]) -> float:
    """``10 log10(sum y^2 / sum (y - q)^2)`` over all arrays together; inf if they are equal."""
    import numpy as np

    pairs = [(np.asarray(y, np.float64), np.asarray(q, np.float64)) for y, q in zip(reference, found, strict=True)]
    signal = sum(float((y**2).sum()) for y, _ in pairs)
    noise = sum(float(((y - q) ** 2).sum()) for y, q in pairs)
    return math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf


def run_child(command: Sequence[str], timeout: float) -> str:
    """Runs a child process; returns "" or what went wrong with the end of its standard error.

    A child with this interpreter finds the packages of this repository also where they are not installed.
    """
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    if command[0] == sys.executable:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        result = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=timeout, env=environment,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no result after {timeout:.0f} s"
    if result.returncode == 0:
        return ""
    return f"exit code {result.returncode}: " + " | ".join(result.stderr.strip().splitlines()[-3:])
