"""Runs jobs in the small application of ``npu_firmware/`` under unicorn."""

from __future__ import annotations

import io
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from npu_harness import Compiled

from fvp.registers import EthosU
from fvp.unicorn import Emulator, File

FIRMWARE = Path(__file__).parents[3] / "fvp" / "firmware"
HERE = Path(__file__).parent / "npu_firmware"
NPU_BASE, UART = 0x58102000, 0x59303000
MEMORIES = ((0x10000000, 0x80000), (0x30000000, 0x80000), (0x31000000, 0x200000), (0x70000000, 0x1000000))
INTERRUPT, NON_SECURE, USER, COUNT, HOOKS, REMAP, NO_NPU, COSIM, AGAIN = (1 << n for n in range(9))
POISON = 0xA5
_RESULT = struct.Struct("<4I8I6I")


def build(folder: Path) -> Path:
    """The application, for Cortex-M33."""
    sources = [HERE / "main.c", *(FIRMWARE / "ethosu" / f"{n}.c" for n in ("payload", "driver", "cosim"))]
    sources += [FIRMWARE / "port" / f"{n}.c" for n in ("startup", "console", "clock", "semihosting")]
    includes = [f"-I{FIRMWARE / n}" for n in ("include", "port", "ethosu")]
    defines = [f"-DAL_NPU_BASE={NPU_BASE:#x}", "-DAL_UART_CMSDK", f"-DAL_UART_BASE={UART:#x}", "-DAL_UART_CLOCK=1"]
    elf = folder / "npu.elf"
    command = ["arm-none-eabi-gcc", "-mcpu=cortex-m33", "-std=gnu11", "-Os", "-Wall", "-Wextra", "-Werror"]
    command += ["-nostartfiles", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"]
    command += [*defines, *includes, *map(str, sources), "-T", str(HERE / "link.ld"), "-o", str(elf)]
    subprocess.run(command, check=True)
    return elf


@dataclass(frozen=True)
class Job:
    """One call of the NPU."""

    commands: bytes
    weights: bytes
    scratch: bytes
    fast: int = 0
    flags: int = 0
    limit: int = 0
    events: Sequence[int] = ()

    def file(self) -> io.BytesIO:
        sizes = (len(self.commands), len(self.weights), len(self.scratch), self.fast)
        events = [*self.events, *[0] * (8 - len(self.events))]
        words = struct.pack("<15I", *sizes, self.flags, self.limit, len(self.events), *events)
        return io.BytesIO(words + self.commands + self.weights + self.scratch + bytes([POISON]) * self.fast)


@dataclass(frozen=True)
class Result:
    status: int
    text: str
    id: int
    cycles: int
    counters: tuple[int, ...]
    sleeps: int
    cleaned: int
    clean_bytes: int
    invalidated: int
    invalidated_bytes: int
    last_line: int
    scratch: bytes


def job_of(compiled: Compiled, inputs: Sequence[Any], **options: Any) -> Job:
    """With the inputs at their place in a scratch memory full of poison."""
    scratch = np.full(compiled.scratch, POISON, np.uint8)
    for value, d in zip(inputs, compiled.inputs):
        raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
        scratch[d.offset : d.offset + raw.size] = raw
    return Job(compiled.payload, compiled.read_only, scratch.tobytes(), compiled.fast, **options)


def outputs_of(compiled: Compiled, scratch: bytes) -> list[Any]:
    data = np.frombuffer(scratch, np.uint8)
    found = []
    for d in compiled.outputs:
        size = int(np.prod(d.shape)) * d.element_size
        found.append(data[d.offset : d.offset + size].view(f"<i{d.element_size}").reshape(d.shape))
    return found


class Shifted:
    """The emulator's memory as a bus shows it, with another address."""

    def __init__(self, emulator: Emulator, shift: int) -> None:
        self.emulator, self.shift = emulator, shift

    def from_address(self, address: int) -> Any:
        return self.emulator.from_address(address - self.shift) if address >= self.shift else None


class Nothing:
    """Memory of an NPU that is not connected yet; `run_job` does."""

    def from_address(self, address: int) -> Any:
        return None


def run_job(elf: Path, job: Job, npu: EthosU | None, files: Mapping[str, File] | None = None) -> Result:
    """Executes it; ``npu`` gets the emulator's memory."""
    result = io.BytesIO()
    all_files = {"job": job.file(), "result": result, **(files or {})}
    emulator = Emulator(elf, MEMORIES, npu, NPU_BASE, UART, files=all_files)
    if npu is not None:
        npu.memory = Shifted(emulator, 1 << 36) if job.flags & REMAP else emulator
    code, console = emulator.run()
    assert (code, console) == (0, "\x04"), (code, console)
    raw = result.getvalue()
    status, text_bytes, ident, cycles, *rest = _RESULT.unpack_from(raw)
    text = raw[_RESULT.size : _RESULT.size + text_bytes].decode("ascii")
    return Result(status, text, ident, cycles, tuple(rest[:8]), *rest[8:], raw[_RESULT.size + text_bytes :])
