"""Boards as data: what the shipped ones say, placement by memory mode, linker scripts, and every wrong entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from arm_lower.errors import ArmLowerError
from fvp.boards import board_names, linker_script, load_board, place

OWN = """
name = "mine"
cpu = "cortex-m55"
[memories]
flash = { address = 0x10000000, size = 0x100000, kind = "flash", npu = true }
ram = { address = 0x20000000, size = 0x40000, kind = "sram", npu = true }
[placement]
code = "flash"
data = "ram"
sram = "ram"
dram = "ram"
flash = "flash"
[uart]
type = "semihosting"
"""


def own(folder: Path, text: str = OWN) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_shipped_boards() -> None:
    assert board_names() == ["corstone-300", "corstone-320", "mps3-an547"]
    one, other, qemu = load_board("corstone-300"), load_board("corstone-320"), load_board("mps3-an547")
    assert one.npu is not None and (one.npu.base, one.npu.irq) == (0x58102000, 56)
    assert other.npu is not None and (other.npu.base, other.npu.irq) == (0x50004000, 16)
    assert one.memories == qemu.memories and one.uart == qemu.uart  # one ELF for both
    assert one.qemu == qemu.qemu and other.qemu is None
    assert one.fvp is not None and set(one.fvp.binaries) == {"u55", "u65"}
    assert other.fvp is not None and set(other.fvp.binaries) == {"u85"}


SIZES = {"model": 300_000, "arena": 20_001, "scratch": 100_000, "values": 3_000}


@pytest.mark.parametrize(
    ("mode", "model", "arena", "scratch"),
    [
        ("Shared_Sram", "ddr", "sram", "sram"),
        ("Sram_Only", "sram", "sram", "sram"),
        ("Dedicated_Sram_384KB", "ddr", "ddr", "ddr"),
    ],
)
def test_the_memory_mode_decides(mode: str, model: str, arena: str, scratch: str) -> None:
    placement = place(load_board("corstone-300"), mode, SIZES | {"fast_scratch": 1000})
    found = {p.block: p.memory for p in placement.blocks}
    assert found == {
        "model": model, "arena": arena, "scratch": scratch, "fast_scratch": "sram", "values": "dtcm",
    }  # fmt: skip
    assert next(p.nbytes for p in placement.blocks if p.block == "arena") == 20_016
    assert "fast_scratch      1,008 bytes  sram" in str(placement)


def test_overflow_goes_where_the_board_allows_it_and_shows() -> None:
    sizes = {"scratch": 3 << 20}
    placement = place(load_board("mps3-an547"), "Shared_Sram", sizes)
    assert str(placement) == "scratch       3,145,728 bytes  ddr, does not fit sram"
    with pytest.raises(ArmLowerError) as caught:
        place(load_board("corstone-300"), "Shared_Sram", sizes)
    assert caught.value.message == (
        "the NPU scratch does not fit board corstone-300: 3,145,728 bytes are needed, 2,097,152 are available in sram "
        "(1,048,576 too many)"
    )
    assert "--board mps3-an547" in caught.value.hint


def test_what_is_too_large_for_both_places_names_both() -> None:
    with pytest.raises(ArmLowerError) as caught:
        place(load_board("mps3-an547"), "Shared_Sram", {"scratch": 300 << 20})
    assert caught.value.message == (
        "the NPU scratch does not fit board mps3-an547: 314,572,800 bytes are needed, 2,097,152 are available in sram "
        "(312,475,648 too many), 268,435,456 are available in ddr (46,137,344 too many)"
    )


def test_blocks_share_a_memory_exactly() -> None:
    board, size = load_board("corstone-300"), 0x200000
    both = {"arena": size - 4096, "scratch": 4096}
    assert {p.memory for p in place(board, "Shared_Sram", both).blocks} == {"sram"}
    with pytest.raises(ArmLowerError, match="NPU scratch does not fit .* 4,112 bytes are needed, 4,096 are available"):
        place(board, "Shared_Sram", both | {"scratch": 4097})


def test_unknown_memory_mode() -> None:
    with pytest.raises(ArmLowerError) as caught:
        place(load_board("corstone-300"), "Shared_Ram", {})
    assert caught.value.message == (
        "memory mode 'Shared_Ram' says nothing about where to place things; did you mean 'Shared_Sram'?"
    )


def test_the_npu_must_reach_its_memory(tmp_path: Path) -> None:
    text = OWN.replace('kind = "sram", npu = true', 'kind = "sram", npu = false')
    board = load_board(own(tmp_path, text + '[npu]\nbase = 0x40004000\nirq = 16\nfamilies = ["u85"]\n'))
    with pytest.raises(ArmLowerError) as caught:
        place(board, "Shared_Sram", {"scratch": 16})
    assert caught.value.message == "board mine places the NPU scratch into ram, which the NPU cannot reach"
    assert caught.value.hint == "memories with npu = true: flash"


def test_linker_script_has_every_block_in_its_memory() -> None:
    script = linker_script(place(load_board("corstone-300"), "Shared_Sram", SIZES), 4000)
    assert "  sram (rwx) : ORIGIN = 0x31000000, LENGTH = 0x200000" in script
    assert ".al.model : ALIGN(16) { KEEP(*(.al.model)) } > ddr" in script
    assert ".al.arena (NOLOAD) : ALIGN(16) { al_block_arena = .; . += 20016; } > sram" in script
    assert "al_stack_limit = .; . += 4000; al_stack_top = .; } > dtcm" in script
    loaded = linker_script(place(load_board("corstone-300"), "Shared_Sram", SIZES), 4000, "bram", embed=False)
    assert ".al.model (INFO) : ALIGN(16) { al_block_model = .; . += 300000; } > ddr" in loaded
    assert "*libkernels.a:(.text" in loaded and "} > bram" in loaded


def test_own_board(tmp_path: Path) -> None:
    board = load_board(own(tmp_path))
    assert (board.name, board.npu, board.qemu, board.uart.type) == ("mine", None, None, "semihosting")
    assert load_board(str(own(tmp_path))) == board == load_board(board)


def test_extending_a_board(tmp_path: Path) -> None:
    text = 'extends = "corstone-300"\nname = "more"\n[memories]\n' + (
        'sram = { address = 0x31000000, size = 0x400000, kind = "sram", npu = true }\n'
    )
    board, base = load_board(own(tmp_path, text)), load_board("corstone-300")
    assert board.memories["sram"].size == 0x400000
    assert {**board.memories, "sram": base.memories["sram"]} == base.memories and board.npu == base.npu


WRONG = [
    ('cpu = "cortex-m55"', 'cpu = "cortex-m7"',
     "board file mine.toml: cpu is 'cortex-m7'; allowed: cortex-m33, cortex-m55, cortex-m85"),
    ('cpu = "cortex-m55"', "", "board file mine.toml: cpu is missing; allowed: cortex-m33, cortex-m55, cortex-m85"),
    ('name = "mine"', 'name = "m y"', "board file mine.toml: name is 'm y'; allowed: letters, digits, - _ ."),
    ("size = 0x40000", 'size = "256K"',
     "board file mine.toml: memories.ram.size is '256K'; allowed: a whole number, 16 to 0xffffffff"),
    ("address = 0x20000000", "address = 0x20000004",
     "board file mine.toml: memories.ram.address is '0x20000004'; allowed: a multiple of 16"),
    ("address = 0x20000000", "address = 0x100ffff0",
     "board file mine.toml: memories.flash (0x10000000 to 0x10100000) overlaps memories.ram at 0x100ffff0"),
    ("address = 0x20000000", "address = 0xfffffff0",
     "board file mine.toml: memories.ram ends behind the 32-bit address space"),
    ('kind = "sram"', 'kind = "dtcm"',
     "board file mine.toml: memories.ram.kind is 'dtcm'; allowed: tcm, sram, dram, flash"),
    ('kind = "sram", npu = true', 'kind = "sram", npu = 1',
     "board file mine.toml: memories.ram.npu is 1; allowed: true or false"),
    ('kind = "sram", npu = true', 'kind = "sram", npu = true, speed = 1',
     "board file mine.toml: unknown key memories.ram.speed"),
    ("ram = { ", "RAM = { ", "board file mine.toml: memory name 'RAM'; allowed: small letters, digits and _"),
    ('data = "ram"', 'data = "dtcm"', "board file mine.toml: placement.data is 'dtcm'; allowed: flash, ram"),
    ('data = "ram"', "", "board file mine.toml: placement.data is missing; allowed: flash, ram"),
    ('data = "ram"', 'data = "ram"\nstack = "ram"', "board file mine.toml: unknown key placement.stack"),
    ("[uart]", '[overflow]\nscratchs = "ram"\n[uart]',
     "board file mine.toml: unknown key overflow.scratchs; did you mean 'scratch'?"),
    ('type = "semihosting"', 'type = "8250"',
     "board file mine.toml: uart.type is '8250'; allowed: cmsdk, pl011, semihosting"),
    ('type = "semihosting"', 'type = "cmsdk"',
     "board file mine.toml: uart.base is missing; allowed: a whole number, 0 to 0xffffffff"),
    ("[uart]", '[npu]\nbase = 1\nirq = 900\nfamilies = ["u55"]\n[uart]',
     "board file mine.toml: npu.irq is 900; allowed: a whole number, 0 to 0x1df"),
    ("[uart]", '[npu]\nbase = 1\nirq = 9\nfamilies = ["u99"]\n[uart]',
     "board file mine.toml: npu.families is ['u99']; allowed: a list of u55, u65, u85"),
    ("[uart]", '[npu]\nbase = 1\nirq = 9\nfamilies = ["u55"]\nwait = "hope"\n[uart]',
     "board file mine.toml: npu.wait is 'hope'; allowed: poll, interrupt"),
    ("[uart]", "[qemu]\nmachine = 5\n[uart]", "board file mine.toml: qemu.machine is 5; allowed: text"),
    ("[uart]", "[counter]\nbase = 1\nclock = 1000000\n[uart]",
     "board file mine.toml: counter.clock is 1000000; allowed: a whole number, 31250000 to 0xffffffff"),
    ("[uart]", "[turbo]\n[uart]", "board file mine.toml: unknown key turbo"),
    ('name = "mine"', 'name = "mine"\nextends = "corstone-3"',
     "board file mine.toml: extends is 'corstone-3'; did you mean 'corstone-320'?"),
    ("[memories]", "[memories", "board file mine.toml is not TOML: "),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), WRONG, ids=[w[1][:30] or w[0] for w in WRONG])
def test_wrong_entries(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in OWN
    with pytest.raises(ArmLowerError) as caught:
        load_board(own(tmp_path, OWN.replace(old, new, 1)))
    assert caught.value.message.startswith(message)
    assert caught.value.message == message or "TOML" in message or caught.value.hint


def test_unknown_board(tmp_path: Path) -> None:
    with pytest.raises(ArmLowerError) as caught:
        load_board("corstone300")
    assert caught.value.message == "unknown board 'corstone300'; did you mean 'corstone-300'?"
    with pytest.raises(ArmLowerError, match="cannot read .*none.toml: No such file"):
        load_board(tmp_path / "none.toml")
