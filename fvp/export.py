"""The runtime of one program as C files for a project of one's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from arm_lower.errors import ArmLowerError
from arm_lower.files import resolved
from fvp.builder import Firmware
from fvp.sources import FIRMWARE, INCLUDES, KernelSource, kernel_sources, library_sources, needed_kernels

TABLE, HEADER = "app_kernels.c", "app_kernels.h"
"""Not ``app.h``: that is the usual name of the header with the sizes alone, which lies beside an application, where a
compiler would find it first. The sizes have the same guard in both, so both can be included."""


def export(firmware: Firmware, folder: str | Path) -> list[str]:
    """Copies what an application of this program is made of, without start-up, console and co-simulation: core, the
    kernels that it calls, the NPU driver if it has delegates, all headers. Adds ``app_kernels.c``, the table of
    kernels for ``al_config``, and ``app_kernels.h``, its names and all sizes.

    Args:
        firmware: Built application.
        folder: It must not exist; the files lie in it without further folders.

    Returns:
        Names of the files, sorted.

    Raises:
        ArmLowerError: The folder exists or cannot be written.
    """
    target = new_folder(folder)
    used = needed_kernels(firmware.needs.kernels, kernel_sources())
    sources = set(library_sources(used))
    if firmware.needs.delegates:
        sources |= {FIRMWARE / "ethosu" / n for n in ("backend.c", "payload.c", "driver.c")}
    headers = {h for part in INCLUDES if part != "port" for h in (FIRMWARE / part).glob("*.h")}
    headers -= {FIRMWARE / "ethosu" / "cosim.h"}
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as name:
            work = Path(name) / "files"
            work.mkdir()
            for file in sources | headers:
                shutil.copyfile(file, work / file.name)
            (work / HEADER).write_text(_DECLARATIONS + firmware.header, encoding="utf-8")
            (work / TABLE).write_text(_table(used), encoding="utf-8")
            os.replace(work, target)
    except OSError as error:
        raise ArmLowerError(f"cannot write {target}: {error.strerror or error}", "choose a writable path") from error
    return sorted(p.name for p in target.iterdir())


def new_folder(path: str | Path) -> Path:
    """Where the folder ``path`` is to be made, at the end of symbolic links.

    Raises:
        ArmLowerError: Something is there.
    """
    target = resolved(path)
    if os.path.lexists(target):
        raise ArmLowerError(f"{path} exists", "name a new folder")
    return target


_DECLARATIONS = """/* The kernels that the program calls, and all sizes: made by arm-lower firmware. */
#ifndef AL_APP_KERNELS_H
#define AL_APP_KERNELS_H

#include "arm_lower.h"

extern const al_kernel al_app_kernels[]; /* al_config.kernels */
extern const uint32_t al_app_kernel_count;

#endif

"""


def _table(kernels: list[KernelSource]) -> str:
    lines = ["/* The kernels that the program calls: made by arm-lower firmware. */", f'#include "{HEADER}"', ""]
    lines += [f"extern al_status {k.function}(al_call *call);" for k in kernels]
    lines += ["", "const al_kernel al_app_kernels[] = {"]
    lines += [f'  {{"{k.name}", {k.function}}},' for k in kernels] or ["  {0, 0},"]
    return "\n".join([*lines, "};", f"const uint32_t al_app_kernel_count = {len(kernels)};", ""])
