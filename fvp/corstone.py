"""Arm's Corstone Fixed Virtual Platforms: where they are, their command line, and how to get them.

They are closed and free of charge; the user has to agree to Arm's licence. arm-lower neither ships nor downloads them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from arm_lower.errors import ArmLowerError
from fvp.boards import Board

HOME = "ARM_LOWER_FVP_HOME"
LINE_LIMIT = 255
"""Characters of the semihosting command line; the FVP cuts what is longer."""
LICENCE = (
    "the FVPs come with Arm's end user licence agreement, which only you can agree to: download the Corstone-300 and "
    "Corstone-320 Ecosystem FVP from https://developer.arm.com/downloads/-/arm-ecosystem-fvps, unpack it, run its "
    "installer (FVP_Corstone_SSE-300.sh, FVP_Corstone_SSE-320.sh) and read the licence that it shows; once you agree, "
    "`./FVP_Corstone_SSE-300.sh --i-agree-to-the-contained-eula --no-interactive --destination DIR` asks nothing"
)


def find(binary: str) -> Path | None:
    """The executable, on PATH or in a folder below ``ARM_LOWER_FVP_HOME``."""
    path = shutil.which(binary)
    if path:
        return Path(path)
    home = os.environ.get(HOME)
    if not home:
        return None
    found = (p for p in sorted(Path(home).expanduser().rglob(binary)) if p.is_file() and os.access(p, os.X_OK))
    return next(found, None)


def require(board: Board, family: str) -> Path:
    """The executable for a board with an NPU of this family ("": any).

    Raises:
        ArmLowerError: The board has no FVP for it, or it is not installed.
    """
    if board.fvp is None:
        raise ArmLowerError(f"board {board.name} has no FVP", "boards with one: corstone-300, corstone-320")
    binaries = board.fvp.binaries
    if not family:
        name = next(iter(binaries.values()))
    elif family in binaries:
        name = binaries[family]
    else:
        raise ArmLowerError(
            f"board {board.name} has no FVP with ethos-{family}", f"it has ethos-{', ethos-'.join(binaries)}"
        )
    path = find(name)
    if path is None:
        raise ArmLowerError(
            f"{name} is neither on PATH nor below {HOME}",
            f"put the folder of the executable into PATH or set {HOME} to the folder it is installed in; {LICENCE}",
        )
    return path


def command(
    board: Board,
    binary: Path,
    elf: Path,
    arguments: Sequence[str],
    folder: Path,
    *,
    macs: int = 0,
    fast: bool = False,
    seconds: int = 600,
    model: tuple[Path, int] | None = None,
) -> list[str]:
    """The command that runs ``elf``; the UART is on standard output, and EOT on it ends the simulation.

    Args:
        board: With `Board.fvp`.
        binary: The executable.
        elf: The application.
        arguments: Of the runner in it.
        folder: Where it finds its files.
        macs: MACs per cycle of the NPU, as the program was compiled for; 0 leaves the default.
        fast: Quick functional NPU model, without timing.
        seconds: Of simulation until the FVP gives up.
        model: A file to load at an address.

    Raises:
        ArmLowerError: The arguments are too long for the FVP.
    """
    if board.fvp is None:
        raise ArmLowerError(f"board {board.name} has no FVP")
    fvp = board.fvp
    line = " ".join(("app", *arguments))
    if len(line) > LINE_LIMIT:
        raise ArmLowerError(
            f"the command line of the application has {len(line)} characters, the FVP takes {LINE_LIMIT}: {line}"
        )
    parameters = [f"{fvp.macs}={macs}"] if macs else []
    parameters += [f"{fvp.extra_args}=--fast"] if fast else []
    parameters += fvp.options
    parameters += [
        f"{fvp.semihosting}-enable=1",
        f"{fvp.semihosting}-stack_base=0",
        f"{fvp.semihosting}-heap_limit=0",
        f"{fvp.semihosting}-cwd={folder}",
        f"{fvp.semihosting}-cmd_line={line}",
    ]
    result = [str(binary)]
    for parameter in parameters:
        result += ["-C", parameter]
    result += ["-a", str(elf)]
    if model:
        result += ["--data", f"{model[0]}@{model[1]:#x}"]
    return [*result, "--timelimit", str(seconds)]


def environment(board: Board, binary: Path) -> Mapping[str, str]:
    """Environment of the process: some FVPs need their Python library on ``LD_LIBRARY_PATH``."""
    result = dict(os.environ)
    if board.fvp is None or not board.fvp.library_path:
        return result
    # the executable is some folders below the installation
    for parent in binary.resolve().parents:
        folder = parent / board.fvp.library_path
        if folder.is_dir():
            result["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), result.get("LD_LIBRARY_PATH"))))
            break
    return result
