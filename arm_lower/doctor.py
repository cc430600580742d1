"""What is installed, what is missing, and how to get it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PACKAGE = "arm-lower"
INTEROP_VARIABLE = "ARM_LOWER_INTEROP_PYTHON"

# Distribution -> module that is imported to see whether it works on this machine.
_MODULES = {
    "torch": "torch",
    "torchao": "torchao.quantization.pt2e.quantize_pt2e",
    "ethos-u-vela": "ethosu.regor",
    "tosa-tools": "tosa_reference_model",
    "flatbuffers": "flatbuffers",
    "numpy": "numpy",
    "pyyaml": "yaml",
    "tqdm": "tqdm",
    "packaging": "packaging",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: What.
        found: Version or place, "" if it is not there.
        problem: Why it cannot be used, "" if it can.
        hint: How to get it.
        needed: Without it nothing can be compiled.
    """

    name: str
    found: str
    problem: str = ""
    hint: str = ""
    needed: bool = True

    @property
    def ok(self) -> bool:
        return bool(self.found) and not self.problem


def examine() -> list[Finding]:
    """Everything that the compiler needs or can use; `fvp.doctor` looks for the tools of the device side."""
    return [*_python(), *_packages(), *_interop()]


def to_text(findings: list[Finding]) -> str:
    """One line for each finding, and a hint below what is missing."""
    width = max(len(f.name) for f in findings)
    lines = []
    for f in findings:
        mark = "ok" if f.ok else "MISSING" if f.needed else "-"
        state = f"{f.found}: {f.problem}" if f.found and f.problem else f.found or f.problem or "not found"
        lines.append(f"{mark:8}{f.name:{width}}  {state}")
        if not f.ok and f.hint:
            lines.append(f"{'':8}{'':{width}}  get it: {f.hint}")
    return "\n".join(lines) + "\n"


def _python() -> Iterator[Finding]:
    version = sys.version.split()[0]
    old = sys.version_info < (3, 10)
    yield Finding("Python", version, "3.10 or newer is needed" if old else "")


def _packages() -> Iterator[Finding]:
    try:
        wanted = {r.name: r for r in map(Requirement, metadata.requires(PACKAGE) or []) if r.marker is None}
    except metadata.PackageNotFoundError:
        yield Finding(PACKAGE, "", "running from a folder, not installed", "pip install -e .", needed=False)
        wanted = {name: Requirement(name) for name in _MODULES}
    for name, requirement in wanted.items():
        hint = f"pip install '{requirement}'"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "", hint=hint)
            continue
        problem = _import_problem(_MODULES.get(name, name))
        if not problem and not requirement.specifier.contains(version, prereleases=True):
            problem = f"not a tested version ({requirement.specifier})"
        yield Finding(name, version, problem, hint)


def _import_problem(module: str) -> str:
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  (a broken package may raise anything; that is the finding)
        return f"import {module}: {type(error).__name__}: {error}"
    return ""


def _interop() -> Iterator[Finding]:
    hint = f"make interop, or {INTEROP_VARIABLE}=PYTHON of an environment with executorch"
    python = Path(os.environ.get(INTEROP_VARIABLE) or Path(".venv-interop") / "bin" / "python")
    found = ""
    if python.is_file():
        code = "import importlib.metadata as m; print(m.version('executorch'))"
        found = output_of([str(python), "-c", code])
    else:
        try:
            found = metadata.version("executorch")
        except metadata.PackageNotFoundError:
            pass
    yield Finding("executorch (tests only)", found, "", hint, needed=False)


def output_of(command: list[str]) -> str:
    """What a program prints on standard output; ``""`` if it is missing, fails, or takes half a minute."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
