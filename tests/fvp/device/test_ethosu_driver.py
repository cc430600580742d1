"""The register-level driver on an emulated Cortex-M33, against the register model that executes on its memory."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "ethosu")]

from device_programs import compiled, samples
from npu_driver import (
    AGAIN,
    COSIM,
    COUNT,
    HERE,
    HOOKS,
    INTERRUPT,
    MEMORIES,
    NO_NPU,
    NON_SECURE,
    POISON,
    REMAP,
    USER,
    Job,
    Nothing,
    build,
    job_of,
    outputs_of,
    run_job,
)
from npu_harness import TARGETS, Compiled, G, compile_graph, difference
from npu_networks import mobilenet

import fvp.builder
import fvp.unicorn
from fvp.builder import Firmware
from fvp.ethosu import load
from fvp.ethosu.delegate import run_delegate
from fvp.registers import FAULTS, RUNNING, EthosU, RegisterError
from fvp.unicorn import Emulator, EmulatorError
from tosa_ref.host import Host

CODES = {"bus": 64, "parse": 65, "weights": 72, "ecc": 66, "branch": 67, "stopped": 69, "silent": 73, "endless": 68,
         "reset": 63, "access": 74}  # fmt: skip
CORRUPT, MISSING, PRODUCT, MACS, BUS, PARSE, MODEL, HOST_GONE = 50, 60, 61, 62, 64, 65, 70, 71
LIMIT = 200  # status reads


@pytest.fixture(scope="session")
def elf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("npu"))


def npu(target: str, **options: Any) -> EthosU:
    product, macs = target.split("-")
    return EthosU(Nothing(), product, int(macs), **options)


def conv(target: str) -> tuple[Compiled, list[Any]]:
    g = G(4)
    x = g.input((1, 7, 7, 16))
    g.out(g.rescale(g.conv(x, 20), per_channel=True))
    return compile_graph(g.graph, target), g.feed()


CONV, CONV_INPUTS = conv("u55-128")


def check(elf: Path, compiled: Compiled, inputs: list[Any], unit: EthosU, **options: Any) -> Any:
    result = run_job(elf, job_of(compiled, inputs, **options), unit)
    assert (result.status, result.text) == (0, "")
    assert not unit.running
    assert not difference(compiled.run(inputs), outputs_of(compiled, result.scratch))
    return result


# ---- results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_convolution(elf: Path, target: str) -> None:
    unit = npu(target)
    result = check(elf, *conv(target), unit)
    assert result.id >> 12 & 15 == {"u55": 4, "u65": 6, "u85": 7}[target[:3]]
    assert unit.runs == 1 and not unit.interrupt


@pytest.mark.parametrize("target", ["u55-128", "u65-512", "u85-256"])
def test_network(elf: Path, target: str) -> None:
    g = mobilenet()
    check(elf, compile_graph(g.graph, target), g.feed(), npu(target))


@pytest.mark.parametrize("target", ["u65-256", "u85-256"])
def test_fast_scratch(elf: Path, target: str) -> None:
    """Buffers in region 2; it is full of poison before."""
    g = mobilenet()
    compiled = compile_graph(g.graph, target, optimize="Performance", arena=20000)
    assert load(compiled.payload).fast_size > 0
    check(elf, compiled, g.feed(), npu(target))


@pytest.mark.parametrize("flags", [INTERRUPT, INTERRUPT | AGAIN, NON_SECURE, USER, NON_SECURE | USER, REMAP | AGAIN])
@pytest.mark.parametrize("target", ["u65-256", "u85-128"])
def test_ways_to_run(elf: Path, target: str, flags: int) -> None:
    """REMAP: the bus shows memory 2^36 further up, so all 40 bits of an address are used."""
    result = check(elf, *conv(target), npu(target), flags=flags)
    assert (result.sleeps > 0) == bool(flags & INTERRUPT)


def test_interrupt_in_the_middle_is_not_the_end(elf: Path) -> None:
    class Early(EthosU):
        def _read_status(self) -> int:
            return super()._read_status() | (2 if self._status & RUNNING else 0)

    for flags in (0, INTERRUPT):
        check(elf, CONV, CONV_INPUTS, Early(Nothing(), "u55", 128), flags=flags)


@pytest.mark.parametrize("target, counters", [("u55-128", 4), ("u65-256", 4), ("u85-256", 8)])
def test_counters(elf: Path, target: str, counters: int) -> None:
    compiled, inputs = conv(target)
    commands = len(load(compiled.payload).stream.commands)
    result = check(elf, compiled, inputs, npu(target), flags=COUNT | AGAIN, events=(3, 1, 4, 1, 5, 9, 2, 6))
    want = [commands * e for e in (3, 1, 4, 1, 5, 9, 2, 6)][:counters]
    assert (result.cycles, list(result.counters)) == (commands, want + [0] * (8 - counters))


def test_fewer_events_than_counters(elf: Path) -> None:
    result = check(elf, CONV, CONV_INPUTS, npu("u55-128"), flags=COUNT, events=(7,))
    assert result.counters == (7 * result.cycles, *[0] * 7)


def test_cache_maintenance(elf: Path) -> None:
    """Commands, weights and scratch memory are written back before, scratch memory is forgotten afterwards."""
    result = check(elf, CONV, CONV_INPUTS, npu("u55-128"), flags=HOOKS)
    cleaned = len(CONV.payload) + len(CONV.read_only) + CONV.scratch
    assert (result.cleaned, result.clean_bytes) == (3, cleaned)
    assert (result.invalidated, result.invalidated_bytes) == (1, CONV.scratch)
    assert result.last_line % 32 == 0


@pytest.mark.parametrize(
    "target, queue, regions, limits",
    [
        ("u55-128", 2, 0x5553, [0x0F1F0000] * 4),
        ("u65-256", 2, 0x555B, [0x1F3F0000] * 4),
        ("u85-256", 2, 0x5553, [0, 0, 4, 4, 0x00020F0B, 0x00021F3F]),
    ],
)
def test_memory_ports(elf: Path, target: str, queue: int, regions: int, limits: list[int]) -> None:
    """As Arm's own driver sets them: weights and commands on the second port, scratch memory on the first (U65: the
    second), as many transfers in flight as the product can have."""
    unit = npu(target)
    check(elf, *conv(target), unit)
    assert (unit.read(0x1C, 4), unit.read(0x3C, 4)) == (queue, regions)
    assert [unit.read(0x40 + 4 * i, 4) for i in range(len(limits))] == limits


# ---- whole applications ----------------------------------------------------------------------------------------


def _application_of(target: str, mode: str | None) -> tuple[Firmware, list[list[Any]], list[list[Any]]]:
    """A program with quantize and dequantize on the CPU, its inputs and outputs."""
    made = compiled(target, mode)
    inputs = [[x.numpy() for x in sample] for sample in samples(2)]
    host = Host(made.buffer, delegate_runner=run_delegate)
    return fvp.builder.build(made.buffer, fvp.unicorn.board()), inputs, [host.run(x) for x in inputs]


@pytest.mark.parametrize(
    "target, mode",
    [("ethos-u55-128", None), ("ethos-u65-512", "Dedicated_Sram"), ("ethos-u85-256", "Dedicated_Sram_384KB")],
)
def test_application(target: str, mode: str | None) -> None:
    firmware, inputs, want = _application_of(target, mode)
    for found, expected in zip(fvp.unicorn.run(firmware, inputs), want, strict=True):
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def test_counters_of_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registers count each command as a cycle, and an event's number for each command."""
    consoles: list[str] = []
    right = Emulator.run

    def kept(self: Emulator, timeout: float = 60.0) -> tuple[int, str]:
        code, console = right(self, timeout)
        consoles.append(console)
        return code, console

    monkeypatch.setattr(Emulator, "run", kept)
    firmware, inputs, _ = _application_of("ethos-u55-128", None)
    fvp.unicorn.run(firmware, inputs)
    (line,) = [x for x in consoles[0].splitlines() if x.startswith("al op") and "EthosUBackend" in x]
    cycles, *events = (int(n) for n in re.findall(r"(?:npu_cycles=|npu_events=|,)(\d+)", line))
    assert cycles > 0 and events == [cycles * event for event in (0x30, 0x82, 0x87, 0x182)]


def test_application_on_another_npu() -> None:
    firmware, inputs, _ = _application_of("ethos-u55-128", None)
    with pytest.raises(EmulatorError) as caught:
        fvp.unicorn.run(firmware, inputs, npu("u55-256"))
    assert caught.value.status == MACS
    assert str(caught.value) == (
        "the application ended with exit code 62 and reported arm-lower: error 62: the delegate was compiled for "
        "another number of MACs: made for Ethos-U55 with 128 MACs, found Ethos-U55 with 256 MACs, instruction 1"
    )


def test_memory_that_the_npu_cannot_reach() -> None:
    firmware, inputs, _ = _application_of("ethos-u55-128", None)
    memories = {k: replace(m, npu=False) for k, m in firmware.board.memories.items()}
    with pytest.raises(EmulatorError) as caught:
        fvp.unicorn.run(replace(firmware, board=replace(firmware.board, memories=memories)), inputs)
    assert caught.value.status == BUS


# ---- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("flags", [0, INTERRUPT])
@pytest.mark.parametrize("target", ["u55-128", "u85-256"])
def test_fault(elf: Path, target: str, flags: int, fault: str) -> None:
    compiled, inputs = conv(target)
    unit = npu(target, fault=fault)
    result = run_job(elf, job_of(compiled, inputs, flags=flags, limit=LIMIT), unit)
    assert result.status == CODES[fault]
    assert not unit.running  # it must not write to memory any more
    if fault == "access":
        assert result.text == "asked for access level 0x1, the NPU has 0x2"
    elif fault == "reset":
        assert result.text == ""
    else:
        size = load(compiled.payload).stream
        words = 4 * sum(len(x.words) for x in size.commands)
        at = words // 8 * 4 if fault == "stopped" else 0
        bits = {**FAULTS, "stopped": 0, "silent": 0, "endless": RUNNING}[fault]
        irq = 0 if fault in ("silent", "endless") else 2
        assert result.text == f"status {bits | irq:#x}, command at byte {at} of {words}"


def test_each_fault_has_its_code() -> None:
    assert set(CODES) == set(FAULTS)
    assert len(set(CODES.values())) == len(CODES)


def test_counters_of_a_run_without_end(elf: Path) -> None:
    result = run_job(elf, job_of(CONV, CONV_INPUTS, flags=COUNT, limit=LIMIT), npu("u55-128", fault="endless"))
    assert (result.status, result.cycles) == (CODES["endless"], 0)


@pytest.mark.parametrize("fault", ["bus", "endless", "weights"])
def test_next_call_after_a_fault(elf: Path, fault: str) -> None:
    class Once(EthosU):
        def _reset(self, value: int) -> None:
            super()._reset(value)
            self.fault = self.fault if self.runs == 0 else ""

    unit = Once(Nothing(), "u55", 128, fault=fault)
    check(elf, CONV, CONV_INPUTS, unit, flags=AGAIN, limit=LIMIT)
    assert unit.runs == 2


@pytest.mark.parametrize(
    "made, found, code, text",
    [
        ("u55-128", "u55-256", MACS, "made for Ethos-U55 with 128 MACs, found Ethos-U55 with 256 MACs"),
        ("u85-2048", "u85-128", MACS, "made for Ethos-U85 with 2048 MACs, found Ethos-U85 with 128 MACs"),
        ("u55-256", "u65-256", PRODUCT, "made for Ethos-U55 with 256 MACs, found Ethos-U65 with 256 MACs"),
        ("u65-512", "u85-512", PRODUCT, "made for Ethos-U65 with 512 MACs, found Ethos-U85 with 512 MACs"),
        ("u85-256", "u55-256", PRODUCT, "made for Ethos-U85 with 256 MACs, found Ethos-U55 with 256 MACs"),
    ],
)
def test_made_for_another_npu(elf: Path, made: str, found: str, code: int, text: str) -> None:
    unit = npu(found)
    result = run_job(elf, job_of(*conv(made)), unit)
    assert (result.status, result.text, unit.runs) == (code, text, 0)


def _payload(change: Callable[[list[int]], list[int]], compiled: Compiled = CONV) -> Compiled:
    words = struct.unpack(f"<{len(compiled.payload) // 4}I", compiled.payload)
    changed = change(list(words))
    return replace(compiled, payload=struct.pack(f"<{len(changed)}I", *changed))


@pytest.mark.parametrize(
    "word, value, text",
    [
        (2, 0x1817, "made for configuration 0x1817, the NPU has 0x1807"),  # version of the command stream
        (3, 0x10206001, "made for architecture 0x10206001, the NPU has 0x10104201"),  # a newer minor version
        (3, 0x20007000, "made for architecture 0x20007000, the NPU has 0x10104201"),
    ],
)
def test_made_for_another_version(elf: Path, word: int, value: int, text: str) -> None:
    changed = _payload(lambda w: [*w[:word], value, *w[word + 1 :]])
    result = run_job(elf, job_of(changed, CONV_INPUTS), npu("u55-128"))
    assert (result.status, result.text) == (PRODUCT, text)


def test_ports_of_u85(elf: Path) -> None:
    compiled, inputs = conv("u85-256")
    changed = _payload(lambda w: [*w[:2], w[2] ^ 0x400, *w[3:]], compiled)
    result = run_job(elf, job_of(changed, inputs), npu("u85-256"))
    assert (result.status, result.text) == (PRODUCT, "made for configuration 0x20000518, the NPU has 0x20000118")


def test_unknown_command(elf: Path) -> None:
    unit = npu("u55-128")
    changed = _payload(lambda w: [0x000101FF if v == 0x0001010F else v for v in w])
    result = run_job(elf, job_of(changed, CONV_INPUTS), unit)
    assert result.status == PARSE
    assert unit.last_error.endswith("word 0x000101ff (control 0, opcode 0x1ff) is no command of u55")


def test_address_outside_of_memory(elf: Path) -> None:
    unit = npu("u55-128")
    base = next(i for i, w in enumerate(struct.unpack(f"<{len(CONV.payload) // 4}I", CONV.payload)) if w == 0x4000)
    changed = _payload(lambda w: [*w[: base + 1], 0x40000000, *w[base + 2 :]])
    result = run_job(elf, job_of(changed, CONV_INPUTS), unit)
    assert result.status == BUS and "takes bytes 0x40000000..0x40000310 of region 1" in unit.last_error


def test_corrupt_payload(elf: Path) -> None:
    unit = npu("u55-128")
    result = run_job(elf, job_of(replace(CONV, payload=CONV.payload[:-4]), CONV_INPUTS), unit)
    assert (result.status, unit.runs) == (CORRUPT, 0)


@pytest.mark.parametrize("flags", [0, NO_NPU])
def test_no_npu(elf: Path, flags: int) -> None:
    """Nothing at the address, as in QEMU, or a board without one."""
    result = run_job(elf, job_of(CONV, CONV_INPUTS, flags=flags), None)
    assert (result.status, result.id) == (MISSING, 0)


# ---- the host's model ------------------------------------------------------------------------------------------

MAGIC = 0x554E4C41


class Pipe(io.BytesIO):
    """Gives at most seven bytes at a time, as a pipe may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(7, size or 0))


def _reply(status: int, text: bytes, scratch: bytes, magic: int = MAGIC) -> Pipe:
    return Pipe(struct.pack("<4I", magic, status, len(text), len(scratch)) + text + scratch)


def _cosim(elf: Path, job: Job, reply: io.BytesIO | None) -> tuple[Any, bytes]:
    requests = io.BytesIO()
    files: dict[str, Any] = {"requests": requests, **({} if reply is None else {"replies": reply})}
    return run_job(elf, replace(job, flags=COSIM), None, files), requests.getvalue()


def test_host_model(elf: Path) -> None:
    job = replace(job_of(CONV, CONV_INPUTS), fast=32)
    result, request = _cosim(elf, job, _reply(0, b"", b"\x11" * CONV.scratch))
    sizes = (len(job.commands), len(job.weights), len(job.scratch), 32)
    want = struct.pack("<6I", MAGIC, 1, *sizes) + job.commands + job.weights + job.scratch + bytes([POISON]) * 32
    assert request == want
    assert (result.status, result.text, result.scratch) == (0, "", b"\x11" * CONV.scratch)


@pytest.mark.parametrize("status, code", [(1, MODEL), (70, MODEL), (64, 64), (74, 74), (99, MODEL)])
def test_error_of_the_host_model(elf: Path, status: int, code: int) -> None:
    long = b"offset 0x40: OP_CONV: " + b"x" * 300
    for scratch in (b"", b"\x22" * CONV.scratch):
        result, _ = _cosim(elf, job_of(CONV, CONV_INPUTS), _reply(status, long, scratch))
        assert (result.status, result.text) == (code, long[:159].decode())


@pytest.mark.parametrize(
    "reply",
    [
        None,
        Pipe(),
        _reply(0, b"", bytes(CONV.scratch), magic=MAGIC + 1),
        _reply(0, b"", bytes(CONV.scratch - 16)),
        _reply(0, b"", bytes(CONV.scratch + 16)),
        Pipe(_reply(0, b"", bytes(CONV.scratch)).getvalue()[:-1]),
        Pipe(_reply(70, b"text", b"").getvalue()[:-1]),
        Pipe(struct.pack("<3I", MAGIC, 0, 0)),
    ],
    ids=["no FIFO", "nothing", "magic", "less memory", "more memory", "cut off", "text cut off", "header cut off"],
)
def test_host_gone(elf: Path, reply: io.BytesIO | None) -> None:
    if reply is not None:
        reply.seek(0)
    assert _cosim(elf, job_of(CONV, CONV_INPUTS), reply)[0].status == HOST_GONE


# ---- the models themselves -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "misuse, words",
    [
        (lambda u: u.read(0, 2), "access of 2 bytes at offset 0x0; registers are accessed as words"),
        (lambda u: u.read(0x2C, 4), "read of offset 0x2c, which is no register of an Ethos-U55"),
        (lambda u: u.write(0x14, 4, 0), "write of 0x0 to offset 0x14, which is no writable register of an Ethos-U55"),
        (lambda u: u.write(0, 4, 1), "write of 0x1 to offset 0x0, which is no writable register of an Ethos-U55"),
        (lambda u: (u.write(0xC, 4, 1), u.write(0x10, 4, 0)), "write of 0x0 to offset 0x10 during a reset, which"),
        (lambda u: u.write(0xC, 4, 4), "reset with 0x4, bits above 1 are reserved"),
        (lambda u: (u.write(8, 4, 1), u.write(0x10, 4, 0)), "write of 0x0 to offset 0x10 while the NPU runs"),
        (lambda u: (u.write(8, 4, 1), u.write(8, 4, 1)), "start of an NPU that runs"),
        (lambda u: (u.write(0x10, 4, 8), u.write(8, 4, 1), [u.read(4, 4) for _ in range(9)]),
         "queue of 0 bytes at 0x8; its address is a multiple of 16, its size of 4"),
    ],
)  # fmt: skip
def test_misuse_of_registers(misuse: Callable[[EthosU], Any], words: str) -> None:
    with pytest.raises(RegisterError) as caught:
        misuse(npu("u55-128"))
    assert str(caught.value).startswith(words)


def test_start_without_reset_after_a_fault() -> None:
    unit = npu("u55-128", fault="ecc")
    unit.write(8, 4, 1)
    while not unit.interrupt:
        unit.read(4, 4)
    with pytest.raises(RegisterError, match="start after a fault .status 0x102. without a reset"):
        unit.write(8, 4, 1)


def _application(folder: Path, body: str) -> Emulator:
    source = folder / "a.c"
    source.write_text(f"void al_reset(void) {{ {body} }}\n")
    elf = folder / "a.elf"
    command = ["arm-none-eabi-gcc", "-mcpu=cortex-m33", "-Os", "-nostdlib", "-T", str(HERE / "link.ld"), str(source)]
    subprocess.run([*command, "-o", str(elf)], check=True)
    return Emulator(elf, MEMORIES)


@pytest.mark.parametrize(
    "body, words",
    [
        ("*(volatile int *)0x20000000 = 1;", "a.elf stopped: access to 4 bytes at 0x20000000, where nothing is (pc"),
        ('__asm volatile("udf");', "a.elf stopped: Invalid instruction (UC_ERR_INSN_INVALID) (pc 0x1"),
        ('__asm volatile("svc 0");', "a.elf stopped: exception 2 (pc 0x1"),
        ("for (;;) {}", "a.elf stopped: no exit within 0.2 s (pc 0x1"),
        ('__asm volatile("movs r0, #99; bkpt 0xab");', "semihosting operation 0x63 at 0x1"),
    ],
)
def test_application_that_fails(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        _application(tmp_path, body).run(timeout=0.2)
    assert str(caught.value).startswith(words)
