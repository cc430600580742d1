"""Tests against the stock ExecuTorch runtime and Model Explorer, which live in a Python environment of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "ARM_LOWER_INTEROP_PYTHON"
RunInterop = Callable[..., str]


@pytest.fixture(scope="session")
def interop_python() -> Path:
    """The interpreter that has ExecuTorch and Model Explorer's adapters; a test fails without it."""
    found = Path(os.environ.get(VARIABLE) or ROOT / ".venv-interop" / "bin" / "python")
    if not found.is_file():
        pytest.fail(
            f"no interpreter at {found}: run `make interop`, or set {VARIABLE} to a Python with the packages of the "
            "extra 'interop' in pyproject.toml",
            pytrace=False,
        )
    return found


@pytest.fixture(scope="session")
def run_interop(interop_python: Path) -> RunInterop:
    """``run_interop(script, *arguments, timeout=300)``: standard output of a script run there as a child process.

    The test fails with the child's output when its exit code is not ``code`` (0 by default; negative: a signal).
    """

    def run(script: str | Path, *arguments: str | Path, timeout: float = 300, code: int = 0) -> str:
        command: Sequence[str] = [str(interop_python), str(script), *map(str, arguments)]
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
        if result.returncode != code:
            pytest.fail(
                f"{' '.join(command)}: exit code {result.returncode}, wanted {code}\n{result.stdout[-4000:]}\n"
                f"{result.stderr[-8000:]}",
                pytrace=False,
            )
        return result.stdout

    return run
