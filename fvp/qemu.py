"""QEMU's command line."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from arm_lower.errors import ArmLowerError
from fvp.boards import Board, board_names, load_board

BINARY = "qemu-system-arm"
INSTALL = "apt-get install --no-install-recommends qemu-system-arm"
SHIFT = 5
"""``-icount shift``: an instruction takes 2^5 ns of virtual time, which ``firmware/port/clock.c`` counts on."""


def find() -> str:
    """Path of QEMU.

    Raises:
        ArmLowerError: It is not on PATH.
    """
    path = shutil.which(BINARY)
    if path is None:
        raise ArmLowerError(f"{BINARY} is not on PATH", INSTALL)
    return path


def command(
    board: Board,
    elf: Path,
    arguments: Sequence[str],
    *,
    count: bool = True,
    model: tuple[Path, int] | None = None,
    plugin: tuple[Path, Path] | None = None,
) -> list[str]:
    """The command that runs ``elf`` and ends with its exit code; the UART is on standard output.

    Args:
        board: It must have a machine in QEMU.
        elf: The application.
        arguments: Of the runner in it.
        count: Whether virtual time counts instructions; results are the same, and runs are slower.
        model: A file to load at an address.
        plugin: Library of the TCG plugin that counts functions, and its list of functions.

    Raises:
        ArmLowerError: QEMU is missing or has no such machine.
    """
    if board.qemu is None:
        able = ", ".join(n for n in board_names() if load_board(n).qemu)
        raise ArmLowerError(f"QEMU has no machine for board {board.name}", f"boards with one: {able}")
    words = ",".join(f"arg={_escaped(a)}" for a in ("app", *arguments))
    result = [find(), "-M", board.qemu.machine, "-display", "none", "-monitor", "none", "-serial", "stdio"]
    result += ["-semihosting-config", f"enable=on,target=native,{words}"]
    if count:
        result += ["-icount", f"shift={SHIFT},sleep=off"]
    if plugin:
        result += ["-plugin", f"{_escaped(str(plugin[0]))},functions={_escaped(str(plugin[1]))}"]
    if model:
        result += ["-device", f"loader,file={_escaped(str(model[0]))},addr={model[1]:#x},force-raw=on"]
    return [*result, "-kernel", str(elf)]


def _escaped(text: str) -> str:
    """QEMU separates options by commas; two are one."""
    return text.replace(",", ",,")
