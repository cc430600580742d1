"""EthosUCompileSpec: defaults, names, .ini files, flags and their exact error messages."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arm_lower.errors import ArmLowerError
from arm_lower.spec import ACCELERATORS, DEFAULT_ARENA_BYTES, EthosUCompileSpec, parse_flags, read_ini

OWN_INI = """[System_Config.My_Board]
core_clock=400e6
axi0_port=Sram
axi1_port=OffChipFlash
Sram_clock_scale=1.0
OffChipFlash_clock_scale=0.125
[Memory_Mode.My_Mode]
const_mem_area=Axi1
arena_mem_area=Axi0
cache_mem_area=Axi0
[Memory_Mode.My_Small]
inherit=Memory_Mode.My_Mode
arena_cache_size=300000
"""


def own(tmp_path: Path, text: str = OWN_INI) -> str:
    path = tmp_path / "board.ini"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("target", ACCELERATORS)
def test_every_target_has_defaults(target: str) -> None:
    spec = EthosUCompileSpec(target)
    assert spec.family in target
    assert spec.macs == int(target.rsplit("-", 1)[1])
    assert spec.cores == (2 if target == "ethos-u65-512" else 1)
    assert spec.arena_limit == (393216 if spec.family == "u65" else DEFAULT_ARENA_BYTES)


def test_defaults_are_the_peers() -> None:
    targets = {"u55": "ethos-u55-128", "u65": "ethos-u65-256", "u85": "ethos-u85-256"}
    specs = {family: EthosUCompileSpec(target) for family, target in targets.items()}
    assert {f: (s.system_config, s.memory_mode) for f, s in specs.items()} == {
        "u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
        "u65": ("Ethos_U65_High_End", "Dedicated_Sram_384KB"),
        "u85": ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
    }
    assert specs["u55"].compile_specs() == [
        ("tosa_spec", b"TOSA-1.0+INT+int16+int4+u55"),
        ("compile_flags", b"--accelerator-config=ethos-u55-128 --config=Arm/vela.ini --output-format=raw "
                          b"--system-config=Ethos_U55_High_End_Embedded --memory-mode=Shared_Sram"),
        ("output_format", b"vela"),
        ("preserve_io_quantization", b"False"),
        ("target", b"ethos-u55-128"),
    ]
    assert specs["u65"].tosa_spec == specs["u55"].tosa_spec
    assert specs["u85"].tosa_spec == "TOSA-1.0+INT+int16+int4+cf"


def test_a_spec_is_a_value() -> None:
    spec = EthosUCompileSpec("Ethos-U55-128", extra_flags=["--optimise=Size"])
    assert spec == EthosUCompileSpec("ethos-u55-128", extra_flags=("--optimise=Size",))
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert replace(spec, effort="max").effort == "max" and len({spec, replace(spec)}) == 1


def test_memories() -> None:
    assert EthosUCompileSpec("ethos-u55-128").memory.dedicated is False
    u65 = EthosUCompileSpec("ethos-u65-256").memory
    assert (u65.const, u65.arena, u65.cache, u65.dedicated) == ("Dram", "Dram", "Sram", True)


@pytest.mark.parametrize(("arguments", "message", "hint"), [
    ({"target": "ethos-u55-129"}, "unknown target 'ethos-u55-129'; did you mean 'ethos-u55-128'?",
     "valid names: " + ", ".join(ACCELERATORS)),
    ({"target": "ethos-u55-128", "system_config": "High_End"},
     "unknown system_config 'High_End' in Arm/vela.ini; did you mean 'Ethos_U55_High_End_Embedded'?",
     "valid names: " + ", ".join(read_ini().names("System_Config"))),
    ({"target": "ethos-u55-128", "memory_mode": "shared_sram"},
     "unknown memory_mode 'shared_sram' in Arm/vela.ini; did you mean 'Shared_Sram'?",
     "valid names: " + ", ".join(read_ini().names("Memory_Mode"))),
    ({"target": "ethos-u55-128", "memory_mode": "Dedicated_Sram"},
     "memory_mode 'Dedicated_Sram' puts arena_mem_area into OffChipFlash on system_config "
     "'Ethos_U55_High_End_Embedded', allowed: Sram, Dram",
     "choose another memory_mode, or a system_config whose memory there can be written"),
    ({"target": "ethos-u55-128", "effort": "high"}, "unknown effort 'high'", "valid names: fast, normal, max"),
    ({"target": "ethos-u55-128", "sram_limit": 0}, "sram_limit=0 is not a whole number of bytes above 0", ""),
    ({"target": "ethos-u55-128", "sram_limit": 1.5}, "sram_limit=1.5 is not a whole number of bytes above 0", ""),
    ({"target": "ethos-u55-128", "config_ini": "no/such.ini"},
     "cannot read Vela configuration file 'no/such.ini': No such file or directory", ""),
    ({"target": "ethos-u55-128", "extra_flags": ["--optimize=Size"]},
     "extra_flags: unknown Vela flag '--optimize'; did you mean '--optimise'?", None),
    ({"target": "ethos-u55-128", "extra_flags": ["--optimise", "size"]},
     "extra_flags: --optimise=size; allowed are Performance, Size", ""),
    ({"target": "ethos-u55-128", "extra_flags": ["--optimise"]}, "extra_flags: --optimise needs a value", ""),
    ({"target": "ethos-u55-128", "extra_flags": ["--arena-cache-size=1k"]},
     "extra_flags: --arena-cache-size=1k is not a whole number of bytes above 0", ""),
    ({"target": "ethos-u55-128", "extra_flags": ["--cpu-tensor-alignment=24"]},
     "extra_flags: --cpu-tensor-alignment=24 is not a power of two of at least 16", ""),
    ({"target": "ethos-u55-128", "extra_flags": ["--memory-mode=Sram_Only"]},
     "extra_flags: --memory-mode cannot be given here", "use memory_mode="),
])
def test_bad_arguments(arguments: dict[str, Any], message: str, hint: str | None) -> None:
    with pytest.raises(ArmLowerError) as caught:
        EthosUCompileSpec(**arguments)
    assert caught.value.message == message
    assert hint is None or caught.value.hint == hint


def test_own_ini(tmp_path: Path) -> None:
    spec = EthosUCompileSpec("ethos-u55-64", "My_Board", "My_Small", own(tmp_path))
    assert spec.arena_limit == 300000
    assert spec.memory.const == "OffChipFlash"
    assert "--config=board.ini" in spec.vela_flags, "the directory must not get into the file"
    with pytest.raises(ArmLowerError) as caught:
        EthosUCompileSpec("ethos-u55-64", config_ini=own(tmp_path))
    assert caught.value.message == "unknown system_config 'Ethos_U55_High_End_Embedded' in board.ini"
    assert caught.value.hint == "valid names: My_Board"


def test_edited_ini_is_read_again(tmp_path: Path) -> None:
    path = own(tmp_path)
    assert EthosUCompileSpec("ethos-u55-64", "My_Board", "My_Small", path).arena_limit == 300000
    own(tmp_path, OWN_INI.replace("300000", "2000000"))
    assert EthosUCompileSpec("ethos-u55-64", "My_Board", "My_Small", path).arena_limit == 2000000


@pytest.mark.parametrize(("text", "message"), [
    ("not an ini", "cannot read Vela configuration file"),
    ("[a]\nb=1\n", "is not a Vela configuration file: it needs a [System_Config.NAME] and a [Memory_Mode.NAME]"),
    (OWN_INI.replace("inherit=Memory_Mode.My_Mode", "inherit=Memory_Mode.My_Small"),
     "board.ini: section [Memory_Mode.My_Small] inherits from itself: Memory_Mode.My_Small -> Memory_Mode.My_Small"),
    (OWN_INI.replace("inherit=Memory_Mode.My_Mode", "inherit=Memory_Mode.My_Mod"),
     "board.ini: section [Memory_Mode.My_Small] inherits from [Memory_Mode.My_Mod], which is not in the file; "
     "did you mean 'Memory_Mode.My_Mode'?"),
    (OWN_INI.replace("300000", "30k"),
     "board.ini: Memory_Mode.My_Small: arena_cache_size=30k is not a whole number of bytes"),
    (OWN_INI.replace("arena_mem_area=Axi0", "arena_mem_area=Axi7"),
     "board.ini: Memory_Mode.My_Small: arena_mem_area=Axi7; allowed are Axi0 and Axi1"),
])
def test_bad_ini(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArmLowerError) as caught:
        EthosUCompileSpec("ethos-u55-64", "My_Board", "My_Small", own(tmp_path, text))
    assert message in caught.value.message


@pytest.mark.parametrize(("old", "new", "message"), [
    ("core_clock=400e6", f"core_clock={value}", f"System_Config.My_Board: core_clock={value} is not a number above 0")
    for value in ("400 MHz", "fast", "0", "-1", "nan", "inf", "4OOe6", "")
] + [
    ("Sram_clock_scale=1.0", "Sram_clock_scale=1,0", "sram_clock_scale=1,0 is not a number above 0"),
    ("Sram_clock_scale=1.0", "Sram_burst_length=32.5", "sram_burst_length=32.5 is not a whole number"),
    ("Sram_clock_scale=1.0", "Sram_read_latency=-3", "sram_read_latency=-3 is not a whole number"),
    ("Sram_clock_scale=1.0", "Sram_max_reads=x", "sram_max_reads=x is not a whole number"),
    ("axi0_port=Sram", "axi0_port=Srm", "axi0_port=Srm is not one of Sram, Dram, OnChipFlash, OffChipFlash"),
    ("core_clock=", "core_clok=", "unknown option core_clok; did you mean 'core_clock'?"),
    ("OffChipFlash_clock_scale", "OfChipFlash_clock_scale",
     "unknown option ofchipflash_clock_scale; did you mean 'offchipflash_clock_scale'?"),
    ("arena_cache_size", "arena_cach_size",
     "Memory_Mode.My_Small: unknown option arena_cach_size; did you mean 'arena_cache_size'?"),
])
def test_options_that_vela_would_pass_over(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in OWN_INI
    with pytest.raises(ArmLowerError) as caught:
        EthosUCompileSpec("ethos-u55-64", "My_Board", "My_Small", own(tmp_path, OWN_INI.replace(old, new)))
    assert caught.value.message.startswith("board.ini: ") and message in caught.value.message


def test_what_vela_ships_passes() -> None:
    ini = read_ini()
    for system in ini.names("System_Config"):
        for mode in ini.names("Memory_Mode"):
            ini.check(system, mode)


@pytest.mark.parametrize("name", ["target", "system_config", "memory_mode", "effort"])
@pytest.mark.parametrize("value", [3, ["Sram_Only"], {}, None])
def test_names_are_text(name: str, value: Any) -> None:
    if not value and name in ("system_config", "memory_mode"):
        return  # None and what is empty mean the default
    with pytest.raises(ArmLowerError) as caught:
        EthosUCompileSpec(**{"target": "ethos-u55-128", name: value})
    assert "valid names: " in caught.value.hint


def test_flags() -> None:
    options = parse_flags(["--optimise=Size", "--arena-cache-size", "5000", "--disable-cascading", "--disable-fwd",
                           "--verbose-all", "--enable-debug-db"])
    assert (options.optimise, options.arena, options.disabled) == ("Size", 5000, ("Cascading", "FWD"))


def test_the_smaller_limit_holds() -> None:
    flags = ("--arena-cache-size=5000",)
    assert EthosUCompileSpec("ethos-u55-128", extra_flags=flags).arena_limit == 5000
    assert EthosUCompileSpec("ethos-u55-128", extra_flags=flags, sram_limit=4000).arena_limit == 4000
    assert EthosUCompileSpec("ethos-u55-128", extra_flags=flags, sram_limit=9000).arena_limit == 5000
