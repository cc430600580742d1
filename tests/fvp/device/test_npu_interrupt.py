"""The NPU's interrupt on a CPU that takes it: start-up code, driver and handler as the builder compiles them, on a
Cortex-M55 with its NVIC in QEMU. The NPU is `npu_interrupt_firmware/fake_npu.c`, registers that fault."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fvp import qemu
from fvp.boards import Board, linker_script, load_board, place
from fvp.builder import compile_flags, compile_sources, find_toolchain
from fvp.elf import Elf
from fvp.sources import FIRMWARE

HERE = Path(__file__).parent / "npu_interrupt_firmware"
UNDER_TEST = ("ethosu/driver.c", "port/npu.c", "port/startup.c")
OTHERS = ("ethosu/payload.c", "ethosu/cosim.c", "ethosu/backend.c", "core/values.c", "core/error.c",
          "port/console.c", "port/clock.c", "port/semihosting.c")  # fmt: skip
CALLS = {"end": 40, "race": 1200, "middle": 2420, "late": 120, "fault": 90, "before": 2, "silent": 8, "long": 2}
MINUTES = ("silent", "long")
"""Groups that wait for minutes of virtual time, which take no time if the CPU sleeps."""
IRQS = {"corstone-300": 56, "corstone-320": 16}
NPUS = {"corstone-300": (0x10104201, 0x1807), "corstone-320": (0x20007001, 0x20000118)}
"""ID and CONFIG words: U55 with 128 MACs, U85 with 256."""
_CHECK = re.compile(r"^check (\w+) calls=(\d+) failures=(\d+) interrupts=(\d+) sleeps=(\d+)$", re.MULTILINE)


def board_with(npu_of: str) -> Board:
    """QEMU's machine, with the NPU's address and interrupt of a board, by which the runner waits."""
    npu = load_board(npu_of).npu
    assert npu is not None
    return replace(load_board("mps3-an547"), npu=replace(npu, wait="interrupt"))


@dataclass(frozen=True)
class Found:
    """What a group of calls says of itself."""

    calls: int
    failures: int
    interrupts: int
    sleeps: int


@dataclass(frozen=True)
class Run:
    """An application that ended, by itself or by its watchdog."""

    elf: Path
    code: int
    console: str

    @property
    def groups(self) -> dict[str, Found]:
        return {name: Found(*map(int, numbers)) for name, *numbers in _CHECK.findall(self.console)}

    @property
    def good(self) -> bool:
        return self.code == 0 and "\ndone\n" in self.console and not any(g.failures for g in self.groups.values())


def run(
    folder: Path, npu_of: str, groups: Iterable[str], *, sleeps: bool, changed: Mapping[str, str] | None = None
) -> Run:
    """Groups of calls; ``changed`` has other text for files. If it ``sleeps``, WFE and SEV are those of sleep.h."""
    board, gcc = board_with(npu_of), find_toolchain().gcc
    ident, config = NPUS[npu_of]
    flags = [*compile_flags(board), f"-DNPU_ID={ident:#x}", f"-DNPU_CONFIG={config:#x}"]
    model = ["-include", str(HERE / "sleep.h")] if sleeps else []

    def compiled(source: Path, *options: str) -> Path:
        result = folder / f"{source.stem}.o"
        subprocess.run([gcc, *flags, *options, "-c", str(source), "-o", str(result)], check=True)
        return result

    chosen = "-DGROUPS=" + " ".join(f"GROUP({g})" for g in groups)
    objects = [compiled(HERE / "main.c", "-Werror", "-Wno-unused-function", chosen, *model)]
    objects.append(compiled(HERE / "fake_npu.c", "-Werror"))
    as_built = [FIRMWARE / n for n in OTHERS]
    for name in UNDER_TEST:
        if changed and name in changed:
            source = folder / Path(name).name
            source.write_text(changed[name], encoding="utf-8")
            objects.append(compiled(source, "-w", *(model if name == "ethosu/driver.c" else [])))
        elif sleeps and name == "ethosu/driver.c":
            objects.append(compiled(FIRMWARE / name, "-Werror", *model))
        else:
            as_built.append(FIRMWARE / name)
    objects += compile_sources(as_built, board)
    script, elf = folder / "test.ld", folder / "test.elf"
    script.write_text(linker_script(place(board, "Shared_Sram", {}), 8192), encoding="utf-8")
    command = [gcc, "-mcpu=cortex-m55", "-mfloat-abi=hard", "-mthumb", "-nostartfiles", "--specs=nano.specs"]
    command += ["-Wl,--gc-sections,--no-warn-rwx-segments", "-T", str(script), *map(str, objects), "-o", str(elf)]
    subprocess.run(command, check=True)
    try:
        done = subprocess.run(
            qemu.command(board, elf, []), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Run(elf, -1, "no end within 60 s")
    print(done.stdout, done.stderr)
    return Run(elf, done.returncode, done.stdout)


# ---- calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("npu_of", IRQS)
def test_calls(tmp_path: Path, npu_of: str) -> None:
    """With the CPU's own WFE and SEV, whatever they do: in QEMU 7.2 nothing."""
    wanted = {name: calls for name, calls in CALLS.items() if name not in MINUTES}
    found = run(tmp_path, npu_of, wanted, sleeps=False)
    assert found.good and {n: g.calls for n, g in found.groups.items()} == wanted
    dump = [find_toolchain().gcc.removesuffix("gcc") + "objdump", "-d", "--disassemble=al_ethosu_wfe", str(found.elf)]
    code = subprocess.run(dump, capture_output=True, text=True, check=True)
    assert re.search(r"\twfe\n", code.stdout)


@pytest.mark.parametrize("npu_of", IRQS)
def test_calls_of_a_cpu_that_sleeps(tmp_path: Path, npu_of: str) -> None:
    found = run(tmp_path, npu_of, CALLS, sleeps=True)
    groups = found.groups
    assert found.good and {n: g.calls for n, g in groups.items()} == CALLS
    assert all(g.sleeps for g in groups.values())
    # interrupts: each call has one, but those that the NPU does not finish and those with some in the middle
    assert all(groups[n].interrupts == CALLS[n] for n in ("end", "race", "fault", "before"))
    assert (groups["late"].interrupts, groups["silent"].interrupts, groups["long"].interrupts) == (140, 2, 6)
    # the end came before the CPU slept in some calls, afterwards in others
    assert 300 < groups["race"].sleeps < 1100


@pytest.mark.parametrize("npu_of, irq", IRQS.items())
def test_vector_table(tmp_path: Path, npu_of: str, irq: int) -> None:
    elf = Elf(run(tmp_path, npu_of, ["end"], sleeps=False).elf)
    vectors = elf.section(".vectors")
    assert vectors is not None
    table = struct.unpack_from(f"<{16 + irq + 1}I", vectors.data)
    names = {f.address: f.name for f in elf.functions()}
    own = {1: "al_reset", 15: "al_tick", 16 + irq: "al_npu_interrupt"}
    assert all(address & 1 for address in table[1:])
    assert [names[address & ~1] for address in table[1:]] == [own.get(n, "al_fault") for n in range(1, len(table))]


# ---- the test itself -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutation:
    """A change of a file, and the group of calls that sees it."""

    file: str
    group: str
    name: str
    old: str
    new: str


DRIVER, NPU, STARTUP = UNDER_TEST
MUTATIONS = (
    Mutation(DRIVER, "end", "IRQ is not cleared", "  put(driver, CMD, CMD_CLEAR_IRQ); /*", "  /*"),
    Mutation(DRIVER, "end", "flag of the call before", "  driver->interrupted = false;\n", ""),
    Mutation(DRIVER, "race", "no SEV", "dsb\\n sev", "dsb"),
    Mutation(DRIVER, "race", "no event register", '"wfe"', '"wfi"'),
    Mutation(DRIVER, "middle", "any interrupt is the end", "(status & END || !(status & RUNNING))", "1"),
    Mutation(DRIVER, "middle", "no second look", "if (!is_over(status)) status = get(driver, STATUS) | IRQ;", ""),
    Mutation(DRIVER, "middle", "no end without END", "!(status & RUNNING)))", "0))"),
    Mutation(DRIVER, "late", "clears what is not there", "  if (!(status & IRQ)) return;", ""),
    Mutation(DRIVER, "fault", "no faults", "if (status & faults[i].bit)", "if (0)"),
    Mutation(DRIVER, "silent", "an end of which nobody hears", "bool unheard = ", "bool unheard = 0 && "),
    Mutation(NPU, "end", "not enabled", "NVIC_ISER[AL_NPU_IRQ / 32] = 1u << AL_NPU_IRQ % 32;", ""),
    Mutation(NPU, "end", "another one enabled", "1u << AL_NPU_IRQ % 32", "1u << (AL_NPU_IRQ + 1) % 32"),
    Mutation(NPU, "silent", "no SysTick", "SYST_CSR = SYST_ON;", ""),
    Mutation(NPU, "silent", "no exception of SysTick", "SYST_ON = 7", "SYST_ON = 5"),
    Mutation(NPU, "silent", "silence of the call before", "  ticks = 0;\n  return false;", "  return false;"),
    Mutation(NPU, "long", "silence before the interrupt", "  ticks = 0;\n  al_ethosu", "  al_ethosu"),
    Mutation(STARTUP, "end", "slot before", "[16 + AL_NPU_IRQ]", "[15 + AL_NPU_IRQ]"),
    Mutation(STARTUP, "silent", "no slot for SysTick", "    [15] = al_tick,\n", ""),
)


@pytest.mark.parametrize("m", MUTATIONS, ids=lambda m: m.name)
def test_a_wrong_step_fails(tmp_path: Path, m: Mutation) -> None:
    source = (FIRMWARE / m.file).read_text(encoding="utf-8")
    assert source.count(m.old) == 1
    found = run(tmp_path, "corstone-300", [m.group], sleeps=True, changed={m.file: source.replace(m.old, m.new)})
    assert not found.good and found.code >= 0
