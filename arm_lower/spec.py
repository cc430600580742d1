"""EthosUCompileSpec: which NPU, which memories, and how hard to try.

Everything a user can get wrong (target, system configuration, memory mode, .ini file, Vela flag) is checked
when the spec is made, and the error lists the right names.
"""

from __future__ import annotations

import configparser
import difflib
import importlib.util
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from arm_lower.errors import ArmLowerError

log = logging.getLogger(__name__)

DEFAULT_ARENA_BYTES = 4 * 1024 * 1024
"""Arena limit when neither the spec nor the memory mode names one: the 4 MiB SRAM of Corstone-310/320.
Vela must always be given one: its own default (the whole address space) overflows a 32-bit number in its
scheduler, which then plans without weight buffers on U55 and with needless cascades on U85."""

SHIPPED_INI = "Arm/vela.ini"
"""The .ini inside the ethos-u-vela package, named as Vela's own ``--config`` names it."""

EFFORTS = ("fast", "normal", "max")


@dataclass(frozen=True)
class Accelerator:
    """One row of the table of Vela targets. ``macs`` counts 8-bit MACs per cycle of all cores together."""

    family: str
    macs: int
    cores: int = 1


ACCELERATORS: Mapping[str, Accelerator] = {
    **{f"ethos-u55-{n}": Accelerator("u55", n) for n in (32, 64, 128, 256)},
    "ethos-u65-256": Accelerator("u65", 256),
    "ethos-u65-512": Accelerator("u65", 512, cores=2),
    **{f"ethos-u85-{n}": Accelerator("u85", n) for n in (128, 256, 512, 1024, 2048)},
}

# The defaults and TOSA strings of ExecuTorch's Arm backend, so that a file made here says the same.
_DEFAULT_SYSTEM = {
    "u55": "Ethos_U55_High_End_Embedded",
    "u65": "Ethos_U65_High_End",
    "u85": "Ethos_U85_SYS_DRAM_Mid",
}
_DEFAULT_MEMORY = {"u55": "Shared_Sram", "u65": "Dedicated_Sram_384KB", "u85": "Sram_Only"}
_TOSA_SPEC = {
    "u55": "TOSA-1.0+INT+int16+int4+u55",
    "u65": "TOSA-1.0+INT+int16+int4+u55",
    "u85": "TOSA-1.0+INT+int16+int4+cf",
}


@dataclass(frozen=True)
class MemoryMode:
    """Where Vela puts things: the memory (``Sram``, ``Dram``, ``OffChipFlash``, ...) behind each of its areas.

    Attributes:
        name: Section name without ``Memory_Mode.``.
        const: Weights and other constants.
        arena: Activations (the scratch buffer).
        cache: Staging memory; another one than ``arena`` means a dedicated SRAM (fast scratch).
        arena_cache_size: Bytes, or None where the .ini sets none.
    """

    name: str
    const: str
    arena: str
    cache: str
    arena_cache_size: int | None

    @property
    def dedicated(self) -> bool:
        """True if the NPU has an SRAM of its own beside the arena; ``arena_cache_size`` is then its hard limit."""
        return self.arena != self.cache


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


Rule = tuple[str, Callable[[str], bool]]
"""What an option of a .ini file may be, in words and as a check."""

_MEMORIES = ("Sram", "Dram", "OnChipFlash", "OffChipFlash")
_POSITIVE: Rule = ("a number above 0", _positive)
_COUNT: Rule = ("a whole number", lambda text: text.isascii() and text.isdigit())
_MEMORY: Rule = ("one of " + ", ".join(_MEMORIES), _MEMORIES.__contains__)
_SYSTEM_RULES: Mapping[str, Rule] = {
    "core_clock": _POSITIVE,
    "axi0_port": _MEMORY,
    "axi1_port": _MEMORY,
    **{f"{m.lower()}_clock_scale": _POSITIVE for m in _MEMORIES},
    **{
        f"{m.lower()}_{what}": _COUNT
        for m in _MEMORIES
        for what in ("burst_length", "read_latency", "write_latency", "ports_used", "max_reads", "max_writes")
    },
}
_ANY: Rule = ("", lambda text: True)  # `VelaIni.memory_mode` looks at them
_MEMORY_RULES: Mapping[str, Rule] = dict.fromkeys(
    ("const_mem_area", "arena_mem_area", "cache_mem_area", "arena_cache_size"), _ANY
)


@dataclass(frozen=True)
class VelaIni:
    """The parts of a Vela configuration file that the compiler needs.

    Attributes:
        label: ``Arm/vela.ini`` or the file's name; never a directory of this machine.
        text: The file as it is.
        sections: Options of each section with ``inherit`` resolved.
    """

    label: str
    text: str
    sections: Mapping[str, Mapping[str, str]]

    def names(self, kind: str) -> list[str]:
        """Names of the ``System_Config`` or ``Memory_Mode`` sections, in file order."""
        return [s.split(".", 1)[1] for s in self.sections if s.startswith(kind + ".")]

    def check(self, system: str, mode: str) -> None:
        """Raises for options that Vela would pass over, and for values that it would take for something else.

        Raises:
            ArmLowerError: Names the section, the option, and what is allowed.
        """
        for section, rules in ((f"System_Config.{system}", _SYSTEM_RULES), (f"Memory_Mode.{mode}", _MEMORY_RULES)):
            for name, value in self.sections[section].items():
                if name not in rules:
                    raise ArmLowerError(
                        f"{self.label}: {section}: unknown option {name}{did_you_mean(name, rules)}",
                        "the options are " + ", ".join(rules),
                    )
                allowed, fits = rules[name]
                if not fits(value):
                    raise ArmLowerError(f"{self.label}: {section}: {name}={value} is not {allowed}")

    def memory_mode(self, system: str, mode: str) -> MemoryMode:
        """The memory mode ``mode`` on the ports of system configuration ``system``."""
        ports, areas = self.sections[f"System_Config.{system}"], self.sections[f"Memory_Mode.{mode}"]
        memory = {"Axi0": ports.get("axi0_port", "Sram"), "Axi1": ports.get("axi1_port", "Sram")}

        def behind(area: str) -> str:
            port = areas.get(area, "Axi0")
            if port not in memory:
                raise ArmLowerError(f"{self.label}: Memory_Mode.{mode}: {area}={port}; allowed are Axi0 and Axi1")
            return memory[port]

        for area, allowed in (("arena_mem_area", ("Sram", "Dram")), ("cache_mem_area", ("Sram",))):
            if behind(area) not in allowed:
                raise ArmLowerError(
                    f"memory_mode '{mode}' puts {area} into {behind(area)} on system_config '{system}', "
                    f"allowed: {', '.join(allowed)}",
                    "choose another memory_mode, or a system_config whose memory there can be written",
                )
        size = areas.get("arena_cache_size")
        if size is not None and not size.isdigit():
            raise ArmLowerError(
                f"{self.label}: Memory_Mode.{mode}: arena_cache_size={size} is not a whole number of bytes"
            )
        return MemoryMode(
            mode,
            behind("const_mem_area"),
            behind("arena_mem_area"),
            behind("cache_mem_area"),
            int(size) if size is not None else None,
        )


def read_ini(path: str | os.PathLike[str] | None = None) -> VelaIni:
    """Reads a Vela .ini file; None or ``Arm/vela.ini`` is the one that the ethos-u-vela package ships.

    Raises:
        ArmLowerError: The file cannot be read or parsed, a section inherits from one that is not there or from
            itself, or the ethos-u-vela package is not installed.
    """
    if path is None:
        return _parse_ini(str(_config_dir() / SHIPPED_INI), SHIPPED_INI)
    file = Path(path).expanduser()
    if not file.is_file() and not file.is_absolute() and (_config_dir() / file).is_file():
        return _parse_ini(str(_config_dir() / file), file.as_posix())
    return _parse_ini(str(file), file.name, _stamp(file))


def _config_dir() -> Path:
    found = importlib.util.find_spec("ethosu")
    for root in (found.submodule_search_locations or ()) if found else ():
        if (Path(root) / "config_files").is_dir():
            return Path(root) / "config_files"
    raise ArmLowerError("Vela is not installed: no package 'ethosu' found", "pip install ethos-u-vela")


def _stamp(file: Path) -> tuple[int, int]:
    """Makes the cache of `_parse_ini` notice an edited file."""
    try:
        info = file.stat()
    except OSError as error:
        raise ArmLowerError(f"cannot read Vela configuration file '{file}': {error.strerror}") from error
    return info.st_mtime_ns, info.st_size


@lru_cache(maxsize=16)
def _parse_ini(path: str, label: str, stamp: tuple[int, int] = (0, 0)) -> VelaIni:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        text = Path(path).read_text(encoding="utf-8")
        parser.read_string(text, source=label)
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise ArmLowerError(f"cannot read Vela configuration file '{path}': {error}") from error
    sections = {name: _inherited(parser, name, label) for name in parser.sections()}
    ini = VelaIni(label, text, sections)
    if not ini.names("System_Config") or not ini.names("Memory_Mode"):
        raise ArmLowerError(
            f"'{path}' is not a Vela configuration file: it needs a [System_Config.NAME] and a [Memory_Mode.NAME]",
            f"start from the file that Vela ships, {SHIPPED_INI}",
        )
    return ini


def _inherited(parser: configparser.ConfigParser, section: str, label: str) -> dict[str, str]:
    """Options of a section; those of the section it inherits from come first and are overridden."""
    chain = [section]
    while (parent := parser.get(chain[-1], "inherit", fallback=None)) is not None:
        if parent in chain:
            raise ArmLowerError(f"{label}: section [{section}] inherits from itself: {' -> '.join([*chain, parent])}")
        if not parser.has_section(parent):
            raise ArmLowerError(
                f"{label}: section [{chain[-1]}] inherits from [{parent}], which is not in the file"
                + did_you_mean(parent, parser.sections())
            )
        chain.append(parent)
    merged: dict[str, str] = {}
    for name in reversed(chain):
        merged.update((k, v) for k, v in parser.items(name) if k != "inherit")
    return merged


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or nothing when no valid name is close."""
    valid = list(valid)
    folded = {v.lower(): v for v in valid}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.4)
    return f"; did you mean '{folded[close[0]]}'?" if close else ""


@dataclass(frozen=True)
class VelaOptions:
    """What `EthosUCompileSpec.extra_flags` say.

    Attributes:
        optimise: ``Performance`` or ``Size`` if the user fixed it; the choice is then not ours.
        arena: ``--arena-cache-size`` in bytes.
        allocator: ``HillClimb`` or ``LinearAlloc``.
        alignment: Alignment of graph inputs and outputs in the arena, in bytes.
        disabled: Scheduler features to switch off, in Vela's spelling.
        cop_format: Driver payload, ``COP1`` or ``COP2``.
    """

    optimise: str | None = None
    arena: int | None = None
    allocator: str = "HillClimb"
    alignment: int = 16
    disabled: tuple[str, ...] = ()
    cop_format: str = "COP1"


_CHOICES = {
    "--optimise": ("Performance", "Size"),
    "--tensor-allocator": ("HillClimb", "LinearAlloc"),
    "--cop-format": ("COP1", "COP2"),
}
_NUMBERS = ("--arena-cache-size", "--cpu-tensor-alignment")
_DISABLE = {
    "--disable-chaining": "Grouping",
    "--disable-fwd": "FWD",
    "--disable-cascading": "Cascading",
    "--disable-buffering": "WeightBuffering",
    "--disable-ifm-reuse": "ReuseIFM",
}
_NO_EFFECT = {
    "--enable-debug-db": "the debug database is always made",
    "--debug-force-regor": "regor is the only core used",
}
_SET_ELSEWHERE = {
    "--accelerator-config": "use target=",
    "--config": "use config_ini=",
    "--system-config": "use system_config=",
    "--memory-mode": "use memory_mode=",
    "--output-format": "the output is always the raw format that a .pte holds",
    "--output-dir": "nothing is written by Vela",
    "--separate-io-regions": "ExecuTorch's runtime needs inputs and outputs in the scratch region",
}


def parse_flags(flags: Sequence[str]) -> VelaOptions:
    """Vela command-line flags (``--name``, ``--name=value`` or ``--name`` followed by the value) as options.

    Raises:
        ArmLowerError: An unknown flag, a value that is not allowed, or a flag that has a parameter of its own.
    """
    found: dict[str, str] = {}
    disabled: list[str] = []
    words = [str(f) for f in flags]
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name in _SET_ELSEWHERE:
            raise ArmLowerError(f"extra_flags: {name} cannot be given here", _SET_ELSEWHERE[name])
        if name in _DISABLE:
            disabled.append(_DISABLE[name])
        elif name in _NO_EFFECT or name.startswith("--verbose-"):
            log.info("Vela flag %s has no effect: %s", name, _NO_EFFECT.get(name, "Vela runs silently in memory"))
        elif name in _CHOICES or name in _NUMBERS:
            if not equals:
                if not words:
                    raise ArmLowerError(f"extra_flags: {name} needs a value")
                value = words.pop(0)
            found[name] = _flag_value(name, value)
        else:
            known = [*_CHOICES, *_NUMBERS, *_DISABLE, *_NO_EFFECT]
            raise ArmLowerError(
                f"extra_flags: unknown Vela flag '{name}'{did_you_mean(name, known)}",
                "known flags: " + ", ".join(known),
            )
    alignment = int(found.get("--cpu-tensor-alignment", "16"))
    if alignment < 16 or alignment & (alignment - 1):
        raise ArmLowerError(f"extra_flags: --cpu-tensor-alignment={alignment} is not a power of two of at least 16")
    return VelaOptions(
        optimise=found.get("--optimise"),
        arena=int(found["--arena-cache-size"]) if "--arena-cache-size" in found else None,
        allocator=found.get("--tensor-allocator", "HillClimb"),
        alignment=alignment,
        disabled=tuple(dict.fromkeys(disabled)),
        cop_format=found.get("--cop-format", "COP1"),
    )


def _flag_value(name: str, value: str) -> str:
    if name in _NUMBERS:
        if not value.isdigit() or int(value) == 0:
            raise ArmLowerError(f"extra_flags: {name}={value} is not a whole number of bytes above 0")
        return value
    if value not in _CHOICES[name]:
        raise ArmLowerError(f"extra_flags: {name}={value}; allowed are {', '.join(_CHOICES[name])}")
    return value


@dataclass(frozen=True, init=False)
class EthosUCompileSpec:
    """The NPU to compile for.

    Args:
        target: A Vela accelerator, ``ethos-u55-32`` to ``ethos-u85-2048``; upper case is accepted.
        system_config: ``System_Config`` section of the .ini; by default the one ExecuTorch takes for the family.
        memory_mode: ``Memory_Mode`` section of the .ini; by default the one ExecuTorch takes for the family.
        config_ini: Own Vela .ini file; by default the one Vela ships (``Arm/vela.ini``).
        extra_flags: Vela command-line flags, see `parse_flags`.
        sram_limit: Bytes of SRAM that the NPU's activations may take: the scratch buffer, or in a dedicated-SRAM
            mode the fast scratch buffer. A graph that needs more is an error.
        effort: ``fast`` compiles once, ``normal`` tries the few Vela settings that can win and ``max`` all of them.

    Raises:
        ArmLowerError: Any of these is wrong; the message lists what is right.
    """

    target: str
    system_config: str
    memory_mode: str
    config_ini: str | None
    extra_flags: tuple[str, ...]
    sram_limit: int | None
    effort: str
    ini: VelaIni = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        target: str,
        system_config: str | None = None,
        memory_mode: str | None = None,
        config_ini: str | os.PathLike[str] | None = None,
        extra_flags: Sequence[str] | None = (),
        sram_limit: int | None = None,
        effort: str = "normal",
    ) -> None:
        name = _one_of("target", target.lower() if isinstance(target, str) else target, ACCELERATORS)
        family = ACCELERATORS[name].family
        ini = read_ini(config_ini)
        where = f" in {ini.label}"
        values = {
            "target": name,
            "ini": ini,
            "system_config": _one_of(
                "system_config", system_config or _DEFAULT_SYSTEM[family], ini.names("System_Config"), where, family
            ),
            "memory_mode": _one_of(
                "memory_mode", memory_mode or _DEFAULT_MEMORY[family], ini.names("Memory_Mode"), where
            ),
            "config_ini": None if config_ini is None else os.fspath(config_ini),
            "extra_flags": (extra_flags,) if isinstance(extra_flags, str) else tuple(extra_flags or ()),
            "sram_limit": _checked_limit(sram_limit),
            "effort": _one_of("effort", effort, EFFORTS),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        other = [f for f in _DEFAULT_SYSTEM if f"_{f}_" in self.system_config.lower() and f != family]
        if other:
            log.warning("system_config %s is for another NPU than target %s", self.system_config, name)
        ini.check(self.system_config, self.memory_mode)
        self.options, self.memory  # noqa: B018  a wrong flag or memory area must be an error here, not later

    @property
    def accelerator(self) -> Accelerator:
        return ACCELERATORS[self.target]

    @property
    def family(self) -> str:
        """``u55``, ``u65`` or ``u85``."""
        return self.accelerator.family

    @property
    def macs(self) -> int:
        """8-bit multiply-accumulates per cycle, all cores together."""
        return self.accelerator.macs

    @property
    def cores(self) -> int:
        return self.accelerator.cores

    @property
    def tosa_spec(self) -> str:
        """The TOSA profile and extensions in ExecuTorch's spelling."""
        return _TOSA_SPEC[self.family]

    @cached_property
    def options(self) -> VelaOptions:
        """`extra_flags`, parsed."""
        return parse_flags(self.extra_flags)

    @cached_property
    def memory(self) -> MemoryMode:
        """The memory mode on the memories of the system configuration."""
        return self.ini.memory_mode(self.system_config, self.memory_mode)

    @property
    def arena_limit(self) -> int:
        """Bytes that Vela's scheduler is told: the smallest of `sram_limit` and ``--arena-cache-size``; else the
        memory mode's ``arena_cache_size``; else `DEFAULT_ARENA_BYTES`."""
        own = [n for n in (self.sram_limit, self.options.arena) if n is not None]
        if own:
            return min(own)
        return self.memory.arena_cache_size or DEFAULT_ARENA_BYTES

    @property
    def vela_flags(self) -> list[str]:
        """Vela's command line for the same compile; an own .ini is named without its directory."""
        limit = [f"--arena-cache-size={self.sram_limit}"] if self.sram_limit is not None else []
        return [
            *self.extra_flags,
            *limit,
            f"--accelerator-config={self.target}",
            f"--config={self.ini.label}",
            "--output-format=raw",
            f"--system-config={self.system_config}",
            f"--memory-mode={self.memory_mode}",
        ]

    def compile_specs(self) -> list[tuple[str, bytes]]:
        """Key and value of each CompileSpec of the delegate in the ``.pte``, as ExecuTorch writes them."""
        return [
            ("tosa_spec", self.tosa_spec.encode()),
            ("compile_flags", " ".join(self.vela_flags).encode()),
            ("output_format", b"vela"),
            ("preserve_io_quantization", b"False"),
            ("target", self.target.encode()),
        ]


def _one_of(what: str, value: str, valid: Iterable[str], where: str = "", family: str = "") -> str:
    valid = list(valid)
    if not isinstance(value, str):
        raise ArmLowerError(f"{what} is a {type(value).__name__} ({value!r}), not a name{where}",
                            "valid names: " + ", ".join(valid))  # fmt: skip
    if value in valid:
        return value
    likely = [v for v in valid if f"_{family}_" in v.lower()] or valid
    raise ArmLowerError(
        f"unknown {what} '{value}'{where}{did_you_mean(value, likely)}", "valid names: " + ", ".join(valid)
    )


def _checked_limit(limit: int | None) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit <= 0:
        raise ArmLowerError(f"sram_limit={limit!r} is not a whole number of bytes above 0")
    return limit
