"""Instructions of each C function, counted by a TCG plugin of QEMU (``fvp/firmware/host/fncount.c``)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from arm_lower.errors import ArmLowerError
from fvp.builder import cache_folder
from fvp.elf import Elf
from fvp.sources import FIRMWARE

SOURCE = FIRMWARE / "host" / "fncount.c"
LIST, RESULT = "functions.list", "functions.txt"


def prepare(elf: Path, folder: Path) -> tuple[Path, Path]:
    """The plugin's library, and the list of an application's functions in ``folder``. The plugin writes `RESULT` into
    the working folder.

    Raises:
        ArmLowerError: There is no host compiler, or the application has no symbols.
    """
    found = Elf(elf).functions()
    if not found:
        raise ArmLowerError(f"{elf.name} has no symbols to count functions by", "do not strip it")
    path = folder / LIST
    path.write_text("".join(f"{f.address:x} {f.nbytes:x} {f.name}\n" for f in found), encoding="ascii")
    return _library(), path


def counts(path: Path) -> Mapping[str, int]:
    """Function -> executed instructions, most first.

    Raises:
        ArmLowerError: The plugin has written nothing.
    """
    if not path.is_file():
        raise ArmLowerError("QEMU's plugin has counted nothing", "this QEMU may be built without TCG plugins")
    rows = [line.rsplit(" ", 1) for line in path.read_text(encoding="ascii").splitlines()]
    result: dict[str, int] = {}
    for name, count in rows:
        result[name] = result.get(name, 0) + int(count)
    return dict(sorted(result.items(), key=lambda item: (-item[1], item[0])))


def _library() -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise ArmLowerError("counting functions needs a C compiler for this machine", "apt-get install gcc")
    digest = hashlib.sha256(SOURCE.read_bytes() + compiler.encode()).hexdigest()[:32]
    result = cache_folder() / "plugin" / digest / "libfncount.so"
    if result.is_file():
        return result
    result.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=result.parent, suffix=".tmp")
    os.close(handle)
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", str(SOURCE), "-o", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        os.unlink(name)
        raise ArmLowerError(f"{SOURCE.name} does not compile: {done.stderr.strip()}")
    os.replace(name, result)
    return result
