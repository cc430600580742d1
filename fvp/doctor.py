"""What running on a device needs: compiler, C library, QEMU, Arm's FVPs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from arm_lower.doctor import Finding, output_of
from fvp import corstone, qemu
from fvp.boards import board_names, load_board
from fvp.builder import COMPILER

_PACKAGES = "apt-get install --no-install-recommends gcc-arm-none-eabi libnewlib-arm-none-eabi"


def examine() -> list[Finding]:
    """Compiler, C library and QEMU, then one finding for each FVP that a board names. None is needed to compile."""
    return [*_compiler(), _qemu(), *_fvps()]


def _compiler() -> Iterator[Finding]:
    path = shutil.which(COMPILER)
    yield Finding("Arm GCC", _version(path) if path else "", "", _PACKAGES, needed=False)
    if path:
        specs = output_of([path, "-print-file-name=nano.specs"])
        found = "newlib-nano" if Path(specs).is_absolute() else ""
        yield Finding("Arm C library", found, "", _PACKAGES, needed=False)


def _qemu() -> Finding:
    path = shutil.which(qemu.BINARY)
    machines = {b.qemu.machine for b in map(load_board, board_names()) if b.qemu}
    problem = ""
    if path:
        known = output_of([path, "-M", "help"])
        missing = sorted(m for m in machines if m not in known)
        problem = f"it has no machine {', '.join(missing)}" if missing else ""
    return Finding("QEMU", _version(path) if path else "", problem, qemu.INSTALL, needed=False)


def _fvps() -> Iterator[Finding]:
    """The licence step is told once."""
    binaries = {name: None for b in map(load_board, board_names()) if b.fvp for name in b.fvp.binaries.values()}
    hint = f"put its folder into PATH or set {corstone.HOME}; {corstone.LICENCE}"
    for name in binaries:
        path = corstone.find(name)
        yield Finding(name.replace("_", " "), _version(str(path)) if path else "", "", hint, needed=False)
        hint = hint if path else "as above"


def _version(path: str) -> str:
    """The version that a program prints, or its path."""
    found = re.search(r"\d+\.\d+(\.\d+)?", output_of([path, "--version"]))
    return found[0] if found else path
