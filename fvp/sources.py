"""The C sources of the device runtime, and which kernel is in which of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from arm_lower.errors import ArmLowerError
from arm_lower.spec import did_you_mean

FIRMWARE = Path(__file__).parent / "firmware"
INCLUDES = ("include", "core", "ethosu", "port", "kernels")
_KERNEL = re.compile(r'^AL_KERNEL\(\s*(\w+),\s*"([^"]+)"\s*\)', re.MULTILINE)


@dataclass(frozen=True)
class KernelSource:
    """One ``AL_KERNEL(symbol, "name")``: ``name`` as in a `.pte`, the function is ``al_<symbol>`` in ``file``."""

    name: str
    symbol: str
    file: Path

    @property
    def function(self) -> str:
        return f"al_{self.symbol}"


def kernel_sources(root: Path = FIRMWARE) -> dict[str, KernelSource]:
    """Every kernel by name.

    Raises:
        ArmLowerError: Two kernels have the same name.
    """
    found: dict[str, KernelSource] = {}
    for folder in ("core", "kernels"):
        for file in sorted((root / folder).glob("*.c")):
            for symbol, name in _KERNEL.findall(file.read_text(encoding="utf-8")):
                if name in found:
                    raise ArmLowerError(f"kernel {name} is in {found[name].file.name} and in {file.name}")
                found[name] = KernelSource(name, symbol, file)
    return found


def needed_kernels(names: Iterable[str], known: Mapping[str, KernelSource]) -> list[KernelSource]:
    """The kernels of these names.

    Raises:
        ArmLowerError: Some have no kernel; lists all of them.
    """
    wanted = sorted(set(names))
    missing = [n for n in wanted if n not in known]
    if missing:
        hints = [m for n in missing if (m := did_you_mean(n, known))]
        raise ArmLowerError(
            f"the runtime has no kernel for {', '.join(missing)}" + (hints[0] if len(missing) == 1 and hints else ""),
            "write it with AL_KERNEL in a C file of fvp/firmware/kernels, or change the model so that the operator "
            "goes away or onto the NPU",
        )
    return [known[n] for n in wanted]


def library_sources(kernels: Iterable[KernelSource], root: Path = FIRMWARE) -> list[Path]:
    """The core, the files of these kernels, and the files beside them that hold no kernel but helpers."""
    chosen = {k.file for k in kernels}
    holders = {k.file for k in kernel_sources(root).values()}
    helpers = {f for f in (root / "kernels").glob("*.c") if f not in holders}
    return sorted({*(root / "core").glob("*.c"), *chosen, *helpers})
