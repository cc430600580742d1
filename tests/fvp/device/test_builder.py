"""What a program asks of a firmware, what the build puts in, and what it refuses."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from device_programs import compiled, delegate_of, one_kernel, stand_in
from pte_samples import blob

from arm_lower.cli import main
from arm_lower.errors import ArmLowerError
from fvp import builder
from fvp.boards import load_board
from fvp.builder import build, save
from fvp.elf import Elf
from fvp.requirements import requirements
from fvp.sources import FIRMWARE, KernelSource, kernel_sources, needed_kernels

BOARD = """
extends = "corstone-300"
name = "small"
cpu = "{cpu}"
[memories]
itcm = {{ address = 0x10000000, size = {itcm:#x}, kind = "tcm", npu = false }}
dtcm = {{ address = 0x30000000, size = {dtcm:#x}, kind = "tcm", npu = false }}
"""


def small_board(folder: Path, itcm: int = 0x80000, dtcm: int = 0x80000, cpu: str = "cortex-m55") -> Path:
    path = folder / "small.toml"
    path.write_text(BOARD.format(itcm=itcm, dtcm=dtcm, cpu=cpu), encoding="utf-8")
    return path


def test_only_what_is_called_is_linked() -> None:
    firmware = build(one_kernel("aten::relu.out"))
    names = {f.name for f in Elf(firmware.elf).functions()}
    linked = {k.name for k in kernel_sources().values() if k.function in names}
    assert linked == {"aten::relu.out"}
    assert not any(n.startswith("al_ethosu") or n == "al_npu_setup" for n in names)


def test_a_program_with_delegates_has_the_driver() -> None:
    firmware = build(compiled().buffer)
    names = {f.name for f in Elf(firmware.elf).functions()}
    assert {"al_ethosu_parse", "al_npu_setup", "al_reset"} <= names
    model = Elf(firmware.elf).section(".al.model")
    assert model is not None and model.data == compiled().buffer and model.address % 16 == 0


def test_the_interrupt_of_the_npu_is_in_the_vector_table(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "corstone-300"\nname = "own"\n[npu]\nwait = "interrupt"\n')
    for board, own in (("corstone-300", False), (tmp_path / "own.toml", True)):
        elf = Elf(build(compiled().buffer, board).elf)
        vectors = elf.section(".vectors")
        assert vectors is not None
        table = struct.unpack(f"<{16 + 57}I", vectors.data[: 4 * (16 + 57)])
        fault, handler = table[3], table[16 + 56]
        assert (handler != fault) is own
        assert not own or {f.address: f.name for f in elf.functions()}[handler & ~1] == "al_npu_interrupt"


def test_sizes_and_header(tmp_path: Path) -> None:
    firmware = build(one_kernel(count=100, planned=False), stack=3000)
    needs, sizes = firmware.needs, firmware.sizes
    assert (needs.arena, needs.scratch, needs.io, needs.instructions) == (0, 0, 2 * 400, 1)
    assert sizes.stack == 3008 and sizes.flash == sizes.text + sizes.data + needs.model
    header = save(firmware, tmp_path / "app.elf")
    assert (tmp_path / "app.elf").read_bytes() == firmware.elf.read_bytes()
    found = dict(re.findall(r"#define AL_APP_(\w+) (\d+)u", header.read_text()))
    assert {k: int(v) for k, v in found.items()} == {
        "MODEL_BYTES": needs.model,
        "VALUES_BYTES": needs.values,
        "SCRATCH_BYTES": 0,
        "FAST_SCRATCH_BYTES": 0,
        "IO_BYTES": 800,
        "STACK_BYTES": 3008,
        "TEXT_BYTES": sizes.text,
        "FLASH_BYTES": sizes.flash,
    }
    (tmp_path / "use.c").write_text('#include "app.h"\nint size = AL_APP_VALUES_BYTES;\n')
    subprocess.run(["gcc", "-c", "use.c"], cwd=tmp_path, check=True)


def test_sizes_are_those_of_the_linker() -> None:
    firmware = build(compiled().buffer)
    text = subprocess.run(["arm-none-eabi-size", "-A", firmware.elf], capture_output=True, text=True, check=True).stdout
    listed = {n: int(v) for n, v in re.findall(r"^(\.[\w.]+)\s+(\d+)", text, re.MULTILINE)}
    assert firmware.sizes.text == sum(listed.get(n, 0) for n in (".vectors", ".text", ".ARM.exidx"))
    assert listed[".al.scratch"] == firmware.needs.scratch and listed[".stack"] == firmware.sizes.stack


def test_code_is_small() -> None:
    """The core without the operators of executorch_prim, which are linked only if a program calls them; and a whole
    application with driver and co-simulation, quantize and dequantize."""
    core = [f for f in sorted((FIRMWARE / "core").glob("*.c")) if f.name != "prim.c"]
    objects = builder.compile_sources(core, load_board("corstone-300"))
    text = subprocess.run(["arm-none-eabi-size", *objects], capture_output=True, text=True, check=True).stdout
    assert sum(int(line.split()[0]) for line in text.splitlines()[1:]) <= 12 * 1024
    assert build(compiled().buffer).sizes.text <= 40 * 1024


def test_needs_of_a_compiled_model_are_those_of_its_report() -> None:
    needs, report = requirements(compiled().buffer), compiled().report
    pools = {p.name: p.nbytes for p in report.pools}
    assert needs.arenas == (pools["method arena"],) and needs.scratch == pools["NPU scratch"]
    assert (needs.family, needs.macs, needs.memory_mode) == ("u55", 128, "Shared_Sram")
    assert needs.kernels == report.kernels


def test_dedicated_sram() -> None:
    model = compiled("ethos-u65-256", "Dedicated_Sram_384KB")
    firmware = build(model.buffer)
    fast = {p.name: p.nbytes for p in model.report.pools}.get("NPU fast scratch", 0)
    assert firmware.needs.memory_mode == "Dedicated_Sram_384KB"
    assert 0 <= firmware.needs.fast_scratch <= max(fast, 0)
    assert firmware.placement.memory_of("scratch") == "ddr" == firmware.placement.memory_of("arena")
    assert build(model.buffer, memory_mode="Sram_Only").placement.memory_of("scratch") == "sram"


def test_a_second_build_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = build(one_kernel(count=12)).elf.read_bytes()
    monkeypatch.setenv("ARM_LOWER_CACHE", str(tmp_path))
    ran: list[Sequence[str]] = []
    call = builder._call
    monkeypatch.setattr(builder, "_call", lambda command, cwd=None: ran.append(command) or call(command, cwd))
    first = build(one_kernel(count=12))
    assert len(ran) > 10 and first.elf.read_bytes() == usual  # the same bytes, wherever they are made
    ran.clear()
    assert build(one_kernel(count=12)) == first and ran == []
    assert build(one_kernel(count=13)).elf != first.elf
    assert [c[-3] for c in ran if "-c" in c] == ["app.c", "model.S"]  # the library is there


def test_old_applications_make_room() -> None:
    old, used = build(one_kernel(count=21)), build(one_kernel(count=22))
    for firmware in (old, used):
        os.utime(firmware.elf.parent, (0, 0))
    assert build(one_kernel(count=22)) == used  # asked for: it is new again
    builder._drop_old(old.elf.parents[1])
    assert used.elf.is_file() and not old.elf.exists()


@pytest.mark.parametrize("cpu", ["cortex-m55", "cortex-m33"])
def test_no_warnings(cpu: str, tmp_path: Path) -> None:
    board = load_board(small_board(tmp_path, cpu=cpu))
    sources = sorted({*FIRMWARE.glob("*/*.c")} - {*FIRMWARE.glob("host/*.c")})
    flags = builder.compile_flags(board)
    command = ["arm-none-eabi-gcc", *flags, "-Werror", "-fsyntax-only", *map(str, sources)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_missing_kernels_are_all_named() -> None:
    with pytest.raises(ArmLowerError) as caught:
        build(one_kernel("aten::relu.out", "aten::fly.out", "aten::relux.out"))
    assert caught.value.message == "the runtime has no kernel for aten::fly.out, aten::relux.out"
    with pytest.raises(ArmLowerError, match=r"no kernel for aten::relux.out; did you mean 'aten::relu.out'\?"):
        build(one_kernel("aten::relux.out"))


def test_two_kernels_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    for file in ("one.c", "two.c"):
        (tmp_path / "kernels" / file).write_text('AL_KERNEL(aten_x,\n          "aten::x.out") {\n')
    with pytest.raises(ArmLowerError, match="kernel aten::x.out is in one.c and in two.c"):
        kernel_sources(tmp_path)
    (tmp_path / "kernels" / "two.c").unlink()
    file = tmp_path / "kernels" / "one.c"
    assert kernel_sources(tmp_path) == {"aten::x.out": KernelSource("aten::x.out", "aten_x", file)}
    assert needed_kernels([], {}) == []


@pytest.mark.parametrize(
    ("target", "board", "message"),
    [
        ("ethos-u85-256", "corstone-300",
         "board corstone-300 has ethos-u55, ethos-u65, the program was compiled for ethos-u85-256"),
        ("ethos-u55-128", "corstone-320",
         "board corstone-320 has ethos-u85, the program was compiled for ethos-u55-128"),
    ],
)  # fmt: skip
def test_a_board_with_another_npu(target: str, board: str, message: str) -> None:
    with pytest.raises(ArmLowerError) as caught:
        build(delegate_of(blob(), target), board)
    assert caught.value.message == message


def test_a_delegate_of_another_backend() -> None:
    with pytest.raises(ArmLowerError) as caught:
        build(delegate_of(blob(), "ethos-u55-128", delegate_id="XnnpackBackend"))
    assert caught.value.message == (
        "delegate 0 of method 'forward' is for 'XnnpackBackend', the firmware runs 'EthosUBackend'"
    )


def test_code_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ArmLowerError) as caught:
        build(one_kernel(), small_board(tmp_path, itcm=2048))
    found = re.fullmatch(
        r"the application does not fit board small: itcm \(code\) needs ([\d,]+) bytes, 2,048 are available "
        r"\(([\d,]+) too many\)",
        caught.value.message,
    )
    assert found and int(found[1].replace(",", "")) == 2048 + int(found[2].replace(",", ""))


def test_kernels_move_where_the_board_has_room_for_code(tmp_path: Path) -> None:
    whole = build(one_kernel()).sizes.text
    firmware = build(one_kernel(), small_board(tmp_path, itcm=whole - 64))
    kernels = Elf(firmware.elf).section(".text.kernels")
    assert kernels is not None and kernels.address >= 0x11000000
    assert abs(firmware.sizes.text - whole) < 128  # all of it is counted


def test_a_stack_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ArmLowerError, match=r"dtcm \(data, values\) needs .* bytes, 32,768 are available"):
        build(one_kernel(), small_board(tmp_path, dtcm=0x8000), stack=40_000)


def test_a_model_that_does_not_fit() -> None:
    with pytest.raises(ArmLowerError) as caught:
        build(one_kernel(count=1 << 20))
    assert caught.value.message == (
        "the arena does not fit board corstone-300: 8,388,608 bytes are needed, 2,097,152 are available in sram "
        "(6,291,456 too many)"
    )
    assert build(one_kernel(count=1 << 20), "mps3-an547").placement.memory_of("arena") == "ddr"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "relu.pte").write_bytes(one_kernel())
    assert main(["firmware", str(tmp_path / "relu.pte"), "-o", str(tmp_path / "app.elf")]) == 2
    assert capsys.readouterr().err == (
        "arm-lower: error: arm-none-eabi-gcc is not on PATH\n  hint: apt-get install --no-install-recommends "
        "gcc-arm-none-eabi libnewlib-arm-none-eabi, or Arm's GNU toolchain\n"
    )
    assert not (tmp_path / "app.elf").exists()


COMPILER = """
if "--version" in sys.argv:
    print("arm-none-eabi-gcc 99")
else:
    print({text!r}, file=sys.stderr)
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("core.h:3:10: fatal error: string.h: No such file or directory", "string.h: No such file", "libnewlib"),
        ("error: unrecognized -mcpu target: cortex-m55", "unrecognized -mcpu target", ""),
    ],
)
def test_a_compiler_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str, hint: str
) -> None:
    stand_in(tmp_path / "bin", "arm-none-eabi-gcc", COMPILER.format(text=text))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("ARM_LOWER_CACHE", str(tmp_path))
    with pytest.raises(ArmLowerError, match=r"compiling \w+\.c failed with exit code 1: ") as caught:
        build(one_kernel())
    assert message in caught.value.message and hint in caught.value.hint
    assert not list(tmp_path.rglob("*.tmp")) and not list(tmp_path.rglob("app.elf"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "relu.pte").write_bytes(one_kernel())
    app = tmp_path / "app.elf"
    options = ["--board", "corstone-300", "--stack", "2K", "-o", str(app)]
    assert main(["firmware", str(tmp_path / "relu.pte"), *options]) == 0
    text = capsys.readouterr().out
    assert "arena                64 bytes  sram" in text and "stack 2,048" in text
    assert app.read_bytes()[:4] == b"\x7fELF" and "AL_APP_STACK_BYTES 2048u" in app.with_suffix(".h").read_text()


@pytest.mark.parametrize("data", [b"", b"\x7fELF" + bytes(60), b"MZ" * 40])
def test_files_that_are_no_elf(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "app.elf").write_bytes(data)
    with pytest.raises(ArmLowerError, match="app.elf is not a whole ELF file: "):
        Elf(tmp_path / "app.elf")


def test_a_truncated_elf(tmp_path: Path) -> None:
    data = build(one_kernel()).elf.read_bytes()
    for size in (60, len(data) // 2, len(data) - 8):
        (tmp_path / "app.elf").write_bytes(data[:size])
        with pytest.raises(ArmLowerError, match="app.elf is not a whole ELF file: "):
            Elf(tmp_path / "app.elf")




def test_portable_code_is_without_vector_instructions() -> None:
    usual, portable = build(compiled().buffer), build(compiled().buffer, portable=True)
    assert portable.sizes.text != usual.sizes.text and portable.needs == usual.needs
