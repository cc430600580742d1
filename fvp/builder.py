"""Builds an application for a board: the runtime, the kernels that a `.pte` calls, its memory, and the file itself.

Compiled files are kept under their digest (sources, flags, compiler), so that a second build takes a fraction of a
second. What does not fit is found before it is linked, or by the linker.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from arm_lower.errors import ArmLowerError
from arm_lower.files import check_writable, read_file, write_file
from fvp.boards import ALIGNMENT, Board, Placement, linker_script, load_board, place
from fvp.elf import Elf
from fvp.requirements import Requirements, requirements
from fvp.sources import FIRMWARE, INCLUDES, KernelSource, kernel_sources, library_sources, needed_kernels

COMPILER = "arm-none-eabi-gcc"
STACK = 4096
"""Default bytes of stack; `arm-lower run` prints how much was used."""

# GCC 12 does not know the Cortex-M85; its code is that of the M55.
_CPU_FLAGS = {
    "cortex-m33": ("-mcpu=cortex-m33", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
    "cortex-m55": ("-mcpu=cortex-m55", "-mfloat-abi=hard"),
    "cortex-m85": ("-mcpu=cortex-m55", "-mfloat-abi=hard"),
}
# No contraction: a float kernel gives the same bits as the same source on the host.
_FLAGS = ("-mthumb", "-std=c11", "-Os", "-ffunction-sections", "-fdata-sections", "-ffp-contract=off",
          "-Wall", "-Wextra")  # fmt: skip
_LINK_FLAGS = ("-nostartfiles", "--specs=nano.specs",
               "-Wl,--gc-sections,--strip-debug,--no-warn-rwx-segments")  # fmt: skip
_KEPT_SECONDS = 7 * 24 * 3600
_MODEL = """\
.section .al.model, "a"
.balign 16
.global al_block_model
al_block_model:
.incbin "model.pte"
"""
_TEXT = (".vectors", ".text", ".text.kernels", ".ARM.exidx")


@dataclass(frozen=True)
class Sizes:
    """Bytes of an application.

    Attributes:
        text: Code and constants of the program, without the model.
        data, bss: Variables; ``bss`` without stack and blocks.
        stack: Stack.
        blocks: Block name of `fvp.boards` -> bytes.
        arenas: Arena 1, 2, ...
    """

    text: int
    data: int
    bss: int
    stack: int
    blocks: Mapping[str, int]
    arenas: tuple[int, ...]

    @property
    def flash(self) -> int:
        """Everything that the device has to keep without power."""
        return self.text + self.data + self.blocks.get("model", 0)


@dataclass(frozen=True)
class Firmware:
    """A linked application.

    Attributes:
        elf: The file.
        board: The board it is for.
        needs: What the program asked for.
        sizes: What it has.
        placement: Where its blocks are.
        header: C header with all sizes, for projects of one's own.
        loaded: The `.pte` and its address if it is not in the ELF file.
    """

    elf: Path
    board: Board
    needs: Requirements
    sizes: Sizes
    placement: Placement
    header: str
    loaded: tuple[bytes, int] | None = None

    def __str__(self) -> str:
        s = self.sizes
        return (
            f"{self.placement}\n"
            f"text {s.text:,}, data {s.data:,}, bss {s.bss:,}, stack {s.stack:,}; flash {s.flash:,} bytes"
        )


@dataclass(frozen=True)
class Toolchain:
    """An Arm GCC: its path, and its version as it prints it."""

    gcc: str
    version: str


def find_toolchain() -> Toolchain:
    """The Arm GCC on PATH.

    Raises:
        ArmLowerError: There is none, or it does not run.
    """
    path = shutil.which(COMPILER)
    if path is None:
        raise ArmLowerError(
            f"{COMPILER} is not on PATH",
            "apt-get install --no-install-recommends gcc-arm-none-eabi libnewlib-arm-none-eabi, or Arm's GNU toolchain",
        )
    return _toolchain(path, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=4)
def _toolchain(path: str, stamp: int) -> Toolchain:
    return Toolchain(path, _run([path, "--version"], "asking for the compiler's version").splitlines()[0])


def cache_folder() -> Path:
    """``ARM_LOWER_CACHE``, else ``arm-lower`` in the user's cache folder."""
    own = os.environ.get("ARM_LOWER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(own) if own else Path(base).expanduser() / "arm-lower") / "firmware"


def build(
    source: str | Path | bytes,
    board: str | Path | Board = "corstone-300",
    *,
    memory_mode: str | None = None,
    stack: int = STACK,
    sizes: Mapping[str, int] | None = None,
    embed: bool = True,
    portable: bool = False,
    kernels: Sequence[str] = (),
) -> Firmware:
    """Builds the application of one `.pte`.

    Args:
        source: The `.pte` or its bytes.
        board: Name, board file, or board.
        memory_mode: Vela memory mode that decides the placement; by default that of the program.
        stack: Bytes of stack.
        sizes: Block (`fvp.boards.BLOCKS`) -> bytes other than what the program needs. A smaller block than needed
            is an error on the device.
        embed: Whether the file is in the application; else it has to be loaded at the address of its block.
        portable: Take no MVE code, for comparisons: results are the same.
        kernels: Further kernels, for other programs that the same application may get.

    Raises:
        ArmLowerError: The board is for another NPU, a kernel or the compiler is missing, or something does not fit.
        PteError: The file is corrupt.
    """
    target = load_board(board)
    needs = requirements(source, memory_mode)
    _check_npu(target, needs)
    known = kernel_sources()
    used = needed_kernels([*needs.kernels, *kernels], known)
    toolchain = find_toolchain()
    blocks = {**needs.blocks(), **(sizes or {})}
    arenas = _arenas(needs, blocks["arena"])
    placement = place(target, needs.memory_mode, blocks)
    data = source if isinstance(source, bytes) else read_file(source)

    job = _Job(target, toolchain, needs, used, placement, _aligned(stack), blocks, arenas, embed, portable)
    folder = cache_folder() / "app" / job.digest(data)
    info = folder / "app.json"
    if info.is_file():
        os.utime(folder)
    else:
        _drop_old(folder.parent)
        job.link(folder, data)
    found = json.loads(info.read_text(encoding="utf-8"))
    measured = Sizes(found["text"], found["data"], found["bss"], _aligned(stack), blocks, arenas)
    loaded = None if embed else (data, int(found["model"]))
    return Firmware(folder / "app.elf", target, needs, measured, placement, _header(target, needs, measured), loaded)


def _drop_old(folder: Path) -> None:
    """Applications hold whole models: those that nobody has asked for in a week make room."""
    for application in folder.iterdir() if folder.is_dir() else ():
        try:
            old = application.stat().st_mtime < time.time() - _KEPT_SECONDS
        except FileNotFoundError:  # another process was faster
            continue
        if old:
            shutil.rmtree(application, ignore_errors=True)


def save(firmware: Firmware, path: str | Path) -> Path:
    """Writes the application to ``path`` and the header beside it (``.h``); returns the header's path.

    Raises:
        ArmLowerError: One of them cannot be written; if what is in the way can be seen before, neither is.
    """
    target, header = Path(path), header_path(path)
    check_writable(header)
    write_file(target, read_file(firmware.elf))
    write_file(header, firmware.header)
    return header


def header_path(application: str | Path) -> Path:
    """The header beside an application.

    Raises:
        ArmLowerError: The application has its name.
    """
    header = Path(application).with_suffix(".h")
    if header == Path(application):
        raise ArmLowerError(f"{header} is the name of the header beside the application", "name it APP.elf")
    return header


def _check_npu(board: Board, needs: Requirements) -> None:
    if not needs.delegates:
        return
    if board.npu is None:
        raise ArmLowerError(f"board {board.name} has no NPU, the program was compiled for ethos-{needs.family}")
    if needs.family != "unknown" and needs.family not in board.npu.families:
        has = ", ".join(f"ethos-{f}" for f in board.npu.families)
        raise ArmLowerError(
            f"board {board.name} has {has}, the program was compiled for ethos-{needs.family}-{needs.macs}",
            "compile for the board's NPU, or take another board; on QEMU, mps3-an547 runs programs for every NPU",
        )


def _arenas(needs: Requirements, total: int) -> tuple[int, ...]:
    """The arenas in a block of ``total`` bytes; what is missing, the last ones lack."""
    result = []
    for nbytes in needs.arenas:
        result.append(min(_aligned(nbytes), total))
        total -= result[-1]
    return tuple(result)


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def compile_flags(board: Board, portable: bool = False) -> list[str]:
    """Of every source, for the compiler; ``portable`` leaves the MVE code out."""
    defines = [f"-DAL_UART_{board.uart.type.upper()}", *(["-DAL_PORTABLE"] if portable else [])]
    if board.uart.base:
        defines += [f"-DAL_UART_BASE={board.uart.base:#x}", f"-DAL_UART_CLOCK={board.uart.clock}"]
    if board.counter:
        defines += [f"-DAL_COUNTER_BASE={board.counter.base:#x}", f"-DAL_COUNTER_CLOCK={board.counter.clock}"]
    if board.npu:
        defines += [f"-DAL_NPU_BASE={board.npu.base:#x}", f"-DAL_NPU_IRQ={board.npu.irq}"]
        defines += ["-DAL_NPU_INTERRUPT"] if board.npu.wait == "interrupt" else []
    includes = [f"-I{FIRMWARE / folder}" for folder in INCLUDES]
    return [*_CPU_FLAGS[board.cpu], *_FLAGS, *defines, *includes]


def compile_sources(sources: Sequence[Path], board: Board, portable: bool = False) -> list[Path]:
    """The object files of sources for a board, from the cache if they are there.

    Raises:
        ArmLowerError: The compiler is missing or fails.
    """
    toolchain, flags = find_toolchain(), compile_flags(board, portable)
    common = hashlib.sha256(repr((toolchain, flags, _headers())).encode())

    def compiled(source: Path) -> Path:
        h = common.copy()
        h.update(source.read_bytes())
        folder = cache_folder() / "obj" / h.hexdigest()[:32]
        result = folder / f"{source.parent.name}_{source.stem}.o"
        if result.is_file():
            return result
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
        os.close(handle)
        try:
            _run([toolchain.gcc, *flags, "-c", str(source), "-o", name], f"compiling {source.name}")
            os.replace(name, result)
        finally:
            if os.path.exists(name):
                os.unlink(name)
        return result

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(compiled, sources))


@dataclass(frozen=True)
class _Job:
    board: Board
    toolchain: Toolchain
    needs: Requirements
    kernels: list[KernelSource]
    placement: Placement
    stack: int
    blocks: Mapping[str, int]
    arenas: tuple[int, ...]
    embed: bool
    portable: bool

    @property
    def flags(self) -> list[str]:
        return compile_flags(self.board, self.portable)

    def sources(self) -> list[Path]:
        port = set((FIRMWARE / "port").glob("*.c"))
        npu = set((FIRMWARE / "ethosu").glob("*.c"))
        if not self.needs.delegates:
            port.discard(FIRMWARE / "port" / "npu.c")
            npu = set()
        return sorted({*library_sources(self.kernels), *port, *npu})

    def digest(self, data: bytes) -> str:
        h = hashlib.sha256()
        for part in (self.toolchain, self.flags, self.application(), self.script(), _headers()):
            h.update(repr(part).encode())
        for file in self.sources():
            h.update(file.read_bytes())
        h.update(data if self.embed else b"")
        return h.hexdigest()[:32]

    def script(self, kernels_in: str | None = None) -> str:
        return linker_script(self.placement, self.stack, kernels_in, self.embed)

    def application(self) -> str:
        """The generated C file: see firmware/port/app.h."""
        used = [p.block for p in self.placement.blocks]
        size = self.blocks
        offsets = [sum(self.arenas[:i]) for i in range(len(self.arenas))]
        arenas = ", ".join(f"{{al_block_arena + {o}, {n}}}" for o, n in zip(offsets, self.arenas) if n)

        def block(name: str) -> str:
            return f"{{al_block_{name}, {size[name]}}}" if name in used else "{0, 0}"

        lines = ['#include "app.h"', "", f"/* {self.board.name} */"]
        lines += [f"extern uint8_t al_block_{b}[];" for b in used]
        lines += [f"extern al_status {k.function}(al_call *call);" for k in self.kernels]
        lines += ["extern al_backend al_npu_backends[];"] if self.needs.delegates else []
        lines += ["", "static const al_kernel kernels[] = {"]
        lines += [f'  {{"{k.name}", {k.function}}},' for k in self.kernels] or ["  {0, 0},"]
        lines += ["};", f"static al_profile profile[{max(1, self.needs.instructions)}];", ""]
        lines += [
            "al_app al_application = {",
            f'  .board = "{self.board.name}",',
            f"  .model = {'al_block_model' if self.embed else '0'}, .model_bytes = {self.needs.model},",
            "  .memory = {",
            f"    .values = {block('values')},",
            f"    .arenas = {{{arenas or '{0, 0}'}}},",
            f"    .scratch = {block('scratch')}, .fast_scratch = {block('fast_scratch')},",
            "  },",
            f"  .io = {block('io')},",
            f"  .config = {{.kernels = kernels, .kernel_count = {len(self.kernels)}, "
            + (".backends = al_npu_backends, .backend_count = 1}," if self.needs.delegates else ".backend_count = 0},"),
            f"  .profile = profile, .profile_count = {self.needs.instructions},",
            "};",
            "",
        ]
        return "\n".join(lines)

    def link(self, folder: Path, data: bytes) -> None:
        """Writes app.elf and then app.json, whose presence says that all is there."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        objects = compile_sources(self.sources(), self.board, self.portable)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            work = Path(name)
            (work / "app.c").write_text(self.application(), encoding="utf-8")
            (work / "model.pte").write_bytes(data)
            (work / "model.S").write_text(_MODEL if self.embed else "", encoding="utf-8")
            gcc, flags = self.toolchain.gcc, self.flags
            for file in ("app.c", "model.S"):
                _run([gcc, *flags, "-c", file, "-o", f"{file}.o"], f"compiling {file}", work)
            # from an archive only what is used is linked, so that a helper of one kernel is no burden for others
            parts = [o for o in objects if o.name.startswith("kernels_")]
            _run([gcc.removesuffix("gcc") + "ar", "rcs", "libkernels.a", *map(str, parts)], "making an archive", work)
            others = [o for o in objects if o not in parts]
            self._link(work, [work / "app.c.o", work / "model.S.o", *others, work / "libkernels.a"])
            elf = Elf(work / "app.elf")
            sections = {s.name: s.nbytes for s in elf.sections}
            model = elf.section(".al.model")
            sizes = {"text": sum(sections.get(n, 0) for n in _TEXT), "data": sections.get(".data", 0),
                     "bss": sections.get(".bss", 0), "model": model.address if model else 0}  # fmt: skip
            folder.mkdir(exist_ok=True)
            os.replace(work / "app.elf", folder / "app.elf")
            write_file(folder / "app.json", json.dumps(sizes))

    def _link(self, work: Path, objects: Sequence[Path], kernels_in: str | None = None) -> None:
        (work / "app.ld").write_text(self.script(kernels_in), encoding="utf-8")
        names = list(map(str, objects))
        command = [self.toolchain.gcc, *_CPU_FLAGS[self.board.cpu], "-mthumb", *_LINK_FLAGS, "-T", "app.ld", *names]
        result = _call([*command, "-lm", "-o", "app.elf"], work)
        if result.returncode == 0:
            return
        overflow = dict(re.findall(r"region `(\w+)' overflowed by (\d+) bytes", result.stderr))
        spare = self.board.overflow.get("code")
        if self.board.placement["code"] in overflow and spare and kernels_in is None:
            self._link(work, objects, spare)
            return
        if overflow:
            raise self._too_large({k: int(v) for k, v in overflow.items()})
        raise _failed("linking", result)

    def _too_large(self, overflow: Mapping[str, int]) -> ArmLowerError:
        parts = []
        for name, excess in overflow.items():
            size = self.board.memories[name].size
            uses = [u for u in ("code", "data") if self.board.placement[u] == name]
            uses += [p.block for p in self.placement.blocks if p.memory == name]
            parts.append(
                f"{name} ({', '.join(uses)}) needs {size + excess:,} bytes, {size:,} are available "
                f"({excess:,} too many)"
            )
        return ArmLowerError(
            f"the application does not fit board {self.board.name}: " + "; ".join(parts),
            "a smaller model or stack, or a board file with another placement",
        )


@lru_cache(maxsize=1)
def _header_files() -> tuple[Path, ...]:
    return tuple(sorted(FIRMWARE.glob("*/*.h")))


def _headers() -> str:
    """Digest of all headers."""
    h = hashlib.sha256()
    for file in _header_files():
        h.update(file.name.encode() + file.read_bytes())
    return h.hexdigest()


def _call(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    except OSError as error:
        raise ArmLowerError(f"cannot run {command[0]}: {error.strerror or error}") from error


def _run(command: Sequence[str], what: str, cwd: Path | None = None) -> str:
    result = _call(command, cwd)
    if result.returncode:
        raise _failed(what, result)
    return result.stdout


def _failed(what: str, result: subprocess.CompletedProcess[str]) -> ArmLowerError:
    lines = result.stderr.strip().splitlines()
    hint = ""
    if re.search(r"(string|math|stdint)\.h: No such file|nano\.specs|cannot find -l", result.stderr):
        hint = "the C library is missing: apt-get install --no-install-recommends libnewlib-arm-none-eabi"
    shown = [x for x in lines if re.search(r"error|undefined|cannot|ld: ", x) and "collect2" not in x][:5] or lines[-5:]
    return ArmLowerError(f"{what} failed with exit code {result.returncode}: " + "\n".join(shown), hint)


def _header(board: Board, needs: Requirements, sizes: Sizes) -> str:
    """``app.h`` of the user: every size as a macro."""
    rows = [
        ("MODEL_BYTES", needs.model, "the .pte, read in place, 16-byte aligned"),
        ("VALUES_BYTES", needs.values, "al_memory.values"),
        *((f"ARENA{i}_BYTES", n, f"al_memory.arenas[{i - 1}]") for i, n in enumerate(needs.arenas, 1)),
        ("SCRATCH_BYTES", needs.scratch, "al_memory.scratch, where the NPU can reach it"),
        ("FAST_SCRATCH_BYTES", needs.fast_scratch, "al_memory.fast_scratch, dedicated SRAM of the NPU"),
        ("IO_BYTES", needs.io, "inputs and outputs without planned memory, for al_bind"),
        ("STACK_BYTES", sizes.stack, "stack of the runner"),
        ("TEXT_BYTES", sizes.text, "code and constants of the runner"),
        ("FLASH_BYTES", sizes.flash, "code, constants, initial data and model"),
    ]
    lines = [f"/* Sizes for board {board.name}, memory mode {needs.memory_mode}: made by arm-lower firmware. */"]
    lines += ["#ifndef AL_APP_SIZES_H", "#define AL_APP_SIZES_H", ""]
    lines += [f"#define AL_APP_{name} {value}u /* {text} */" for name, value, text in rows]
    return "\n".join([*lines, "", "#endif", ""])


