"""Boards as data: memories, NPU, console and simulators of each, and where the parts of an application go.

A board is a TOML file; those in ``fvp/boards/`` are known by name, any other by its path (it may ``extends`` one of
them). `place` decides which memory each block of an application gets, `linker_script` writes that down for ``ld``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arm_lower.errors import ArmLowerError
from arm_lower.files import read_file
from arm_lower.spec import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "boards"
CPUS = ("cortex-m33", "cortex-m55", "cortex-m85")
KINDS = ("tcm", "sram", "dram", "flash")
UARTS = ("cmsdk", "pl011", "semihosting")
FAMILIES = ("u55", "u65", "u85")
WAITS = ("poll", "interrupt")
USES = ("code", "data", "sram", "dram", "flash")
BLOCKS = ("model", "arena", "scratch", "fast_scratch", "values", "io")
"""Parts of an application whose size is known before it is linked."""
ALIGNMENT = 16
SLOWEST_COUNTER = 31_250_000
"""Ticks per second that tell one instruction from the next under ``-icount shift=5``."""

# Vela's memory modes: what holds the constants, the activations, and the NPU's own SRAM. The first part of the mode's
# name decides, as in Vela's shipped .ini.
_MODES = {
    "Sram_Only": {"model": "sram", "arena": "sram", "scratch": "sram", "fast_scratch": "sram"},
    "Shared_Sram": {"model": "flash", "arena": "sram", "scratch": "sram", "fast_scratch": "sram"},
    "Dedicated_Sram": {"model": "dram", "arena": "dram", "scratch": "dram", "fast_scratch": "sram"},
}
DEFAULT_MODE = "Shared_Sram"


@dataclass(frozen=True)
class Memory:
    """One memory.

    Attributes:
        name: Its key in the board file.
        address: First byte, as the core sees it.
        size: Bytes.
        kind: ``tcm``, ``sram``, ``dram`` or ``flash``.
        npu: Whether the NPU can reach it.
    """

    name: str
    address: int
    size: int
    kind: str
    npu: bool


@dataclass(frozen=True)
class Npu:
    """Where the NPU's registers are.

    Attributes:
        base: Address of the first one.
        irq: Number of its interrupt.
        families: Which NPUs the board has or can have.
        wait: How the runner waits for it: ``poll``, or ``interrupt``, in which the core sleeps. Both have a limit.
    """

    base: int
    irq: int
    families: tuple[str, ...]
    wait: str = "poll"


@dataclass(frozen=True)
class Uart:
    """The console: its type (`UARTS`), address and clock in Hz."""

    type: str
    base: int = 0
    clock: int = 0


@dataclass(frozen=True)
class Counter:
    """A 64-bit counter (control frame of the Arm system counter) and its ticks per second under QEMU."""

    base: int
    clock: int


@dataclass(frozen=True)
class Qemu:
    """``machine`` is QEMU's ``-M``."""

    machine: str


@dataclass(frozen=True)
class Fvp:
    """Arm's Fixed Virtual Platform for the board.

    Attributes:
        binaries: NPU family -> name of the executable.
        macs: Parameter for the number of MACs.
        extra_args: Parameter for options of the NPU model.
        semihosting: Prefix of the core's semihosting parameters.
        options: Further ``-C`` options.
        library_path: Folder for ``LD_LIBRARY_PATH`` relative to the installation, or "".
    """

    binaries: Mapping[str, str]
    macs: str
    extra_args: str
    semihosting: str
    options: tuple[str, ...]
    library_path: str = ""


@dataclass(frozen=True)
class Board:
    """A board; see the files in ``fvp/boards/`` for what each key means."""

    name: str
    cpu: str
    memories: Mapping[str, Memory]
    placement: Mapping[str, str]
    overflow: Mapping[str, str]
    uart: Uart
    npu: Npu | None = None
    counter: Counter | None = None
    qemu: Qemu | None = None
    fvp: Fvp | None = None


@dataclass(frozen=True)
class Placed:
    """Where one block goes.

    Attributes:
        block: Which.
        nbytes: Bytes, a multiple of 16.
        memory: Name of the memory.
        wanted: The memory that it would have if it fitted there; the same as ``memory`` as a rule.
    """

    block: str
    nbytes: int
    memory: str
    wanted: str

    def __str__(self) -> str:
        moved = f", does not fit {self.wanted}" if self.memory != self.wanted else ""
        return f"{self.block:12} {self.nbytes:>10,} bytes  {self.memory}{moved}"


@dataclass(frozen=True)
class Placement:
    """Which block goes where on which board."""

    board: Board
    blocks: tuple[Placed, ...] = field(default=())

    def memory_of(self, block: str) -> str | None:
        return next((p.memory for p in self.blocks if p.block == block), None)

    def __str__(self) -> str:
        return "\n".join(map(str, self.blocks))


def board_names() -> list[str]:
    """Names of the boards that come with arm-lower."""
    return sorted(p.stem for p in FOLDER.glob("*.toml"))


def load_board(source: str | Path | Board) -> Board:
    """A board by name, or from a TOML file.

    Raises:
        ArmLowerError: No such board or file, or an entry of it is wrong: which, what was found and what is allowed.
    """
    if isinstance(source, Board):
        return source
    text = str(source)
    if not text.endswith(".toml") and text not in board_names():
        raise ArmLowerError(
            f"unknown board '{text}'{did_you_mean(text, board_names())}",
            f"boards: {', '.join(board_names())}; or the path of a board file (.toml)",
        )
    path = Path(text) if text.endswith(".toml") else FOLDER / f"{text}.toml"
    return _board(_Reader(path.name, _merged(path)))


def mode_of(name: str) -> Mapping[str, str]:
    """Block -> kind of memory in a memory mode of Vela, by the beginning of its name.

    Raises:
        ArmLowerError: It begins like none.
    """
    for prefix, uses in _MODES.items():
        if name.startswith(prefix):
            return uses
    raise ArmLowerError(
        f"memory mode '{name}' says nothing about where to place things{did_you_mean(name, _MODES)}",
        f"names begin with {', '.join(_MODES)}; give one of these with --memory-mode",
    )


def place(board: Board, mode: str, sizes: Mapping[str, int], reserved: Mapping[str, int] | None = None) -> Placement:
    """Gives every block of `BLOCKS` a memory.

    Args:
        board: The board.
        mode: Vela's memory mode, which says what belongs into SRAM, DRAM and flash.
        sizes: Block -> bytes; blocks without bytes are left out.
        reserved: Memory name -> bytes that are taken already.

    Raises:
        ArmLowerError: A block does not fit: says how much is needed, available and too much.
    """
    uses = mode_of(mode)
    used = {name: 0 for name in board.memories} | dict(reserved or {})
    result = []
    for block in sorted(BLOCKS, key=lambda b: (-sizes.get(b, 0), b)):
        nbytes = _aligned(sizes.get(block, 0))
        if not nbytes:
            continue
        wanted = board.placement[_use(block, uses)]
        choices = list(dict.fromkeys([wanted, board.overflow.get(block, wanted)]))
        if block in ("scratch", "fast_scratch", "model") and board.npu is not None:
            _check_reach(board, block, choices)
        chosen = next((m for m in choices if used[m] + nbytes <= board.memories[m].size), None)
        if chosen is None:
            raise _too_large(board, mode, block, nbytes, choices, used)
        used[chosen] += nbytes
        result.append(Placed(block, nbytes, chosen, wanted))
    return Placement(board, tuple(sorted(result, key=lambda p: BLOCKS.index(p.block))))


def _use(block: str, uses: Mapping[str, str]) -> str:
    """``io`` is the CPU's like the arena, ``values`` holds pointers and is small."""
    if block == "values":
        return "data"
    return uses["arena" if block == "io" else block]


def _check_reach(board: Board, block: str, choices: Sequence[str]) -> None:
    for name in choices:
        if not board.memories[name].npu:
            reach = ", ".join(m.name for m in board.memories.values() if m.npu) or "none"
            raise ArmLowerError(
                f"board {board.name} places the {_LABELS[block]} into {name}, which the NPU cannot reach",
                f"memories with npu = true: {reach}",
            )


_LABELS = {
    "model": "model",
    "arena": "arena",
    "scratch": "NPU scratch",
    "fast_scratch": "NPU fast scratch",
    "values": "value table",
    "io": "unplanned inputs and outputs",
}


def _too_large(
    board: Board, mode: str, block: str, nbytes: int, choices: Sequence[str], used: Mapping[str, int]
) -> ArmLowerError:
    parts = []
    for name in choices:
        free = max(0, board.memories[name].size - used[name])
        parts.append(f"{free:,} are available in {name} ({nbytes - free:,} too many)")
    hint = f"a smaller model, another memory mode than {mode}, or a board file with more memory"
    if board.qemu is not None and board.name != "mps3-an547":
        hint += "; --board mps3-an547 may use DDR for everything"
    return ArmLowerError(
        f"the {_LABELS[block]} does not fit board {board.name}: {nbytes:,} bytes are needed, " + ", ".join(parts), hint
    )


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def linker_script(placement: Placement, stack: int, kernels_in: str | None = None, embed: bool = True) -> str:
    """The GNU ld script of an application.

    Args:
        placement: Where its blocks go; each is a section ``.al.NAME`` that begins at the symbol ``al_block_NAME``.
        stack: Bytes of stack.
        kernels_in: Memory for the code of the kernels, if not that of the other code.
        embed: Whether the model is in the file; else its place is kept free.
    """
    board = placement.board
    code, data = board.placement["code"], board.placement["data"]
    lines = [f"/* {board.name}: generated from its board file */", "ENTRY(al_reset)", "MEMORY {"]
    for m in board.memories.values():
        lines.append(f"  {m.name} (rwx) : ORIGIN = {m.address:#x}, LENGTH = {m.size:#x}")
    lines += ["}", "SECTIONS {"]
    lines.append(f"  .vectors : {{ KEEP(*(.vectors)) . = ALIGN(16); }} > {code}")
    if kernels_in:
        parts = "*libkernels.a:(.text .text.* .rodata .rodata.*)"
        lines.append(f"  .text.kernels : ALIGN(16) {{ {parts} }} > {kernels_in}")
    lines.append(f"  .text : ALIGN(16) {{ *(.text .text.*) *(.rodata .rodata.*) . = ALIGN(16); }} > {code}")
    lines.append(f"  .ARM.exidx : {{ *(.ARM.exidx*) }} > {code}")
    lines += [
        f"  .stack (NOLOAD) : ALIGN(16) {{ al_stack_limit = .; . += {_aligned(stack)}; al_stack_top = .; }} > {data}",
        "  .data : ALIGN(16) { al_data_start = .; *(.data .data.*) . = ALIGN(16); al_data_end = .; } "
        f"> {data} AT> {code}",
        "  al_data_load = LOADADDR(.data);",
        "  .bss (NOLOAD) : ALIGN(16) { al_bss_start = .; *(.bss .bss.* COMMON) . = ALIGN(16); al_bss_end = .; } "
        f"> {data} AT> {data}",
    ]
    for p in placement.blocks:
        if p.block == "model" and embed:
            lines.append(f"  .al.model : ALIGN(16) {{ KEEP(*(.al.model)) }} > {p.memory}")
            continue
        # a loader fills NOLOAD sections with zeros; of an INFO section it does not know
        kind = "INFO" if p.block == "model" else "NOLOAD"
        lines.append(
            f"  .al.{p.block} ({kind}) : ALIGN(16) {{ al_block_{p.block} = .; . += {p.nbytes}; }} > {p.memory}"
        )
    lines += ["  /DISCARD/ : { *(.ARM.attributes) *(.comment) *(.note*) *(.eh_frame*) }", "}", ""]
    return "\n".join(lines)


# ---- the file --------------------------------------------------------------------------------------------------


def _merged(path: Path, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """A file's entries over those of the board that it extends, table by table."""
    try:
        found: dict[str, Any] = tomllib.loads(read_file(path).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArmLowerError(f"board file {path.name} is not TOML: {error}") from error
    base = found.pop("extends", None)
    if base is None:
        return found
    if base not in board_names() or base in seen:
        raise ArmLowerError(
            f"board file {path.name}: extends is {base!r}{did_you_mean(str(base), board_names())}",
            f"allowed: {', '.join(board_names())}",
        )
    result = _merged(FOLDER / f"{base}.toml", (*seen, base))
    for key, value in found.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = {**result[key], **value} if both else value
    return result


@dataclass(frozen=True)
class _Reader:
    """Entries of a file, each taken with a check; ``where`` is the key of the table."""

    file: str
    entries: dict[str, Any]
    where: str = ""

    def fail(self, key: str, found: object, allowed: str) -> ArmLowerError:
        return ArmLowerError(f"board file {self.file}: {self.where}{key} is {found!r}; allowed: {allowed}")

    def only(self, *known: str) -> _Reader:
        for key in self.entries:
            if key not in known:
                raise ArmLowerError(
                    f"board file {self.file}: unknown key {self.where}{key}{did_you_mean(key, known)}",
                    f"allowed: {', '.join(known)}",
                )
        return self

    def get(self, key: str, good: Callable[[Any], bool], allowed: str, default: Any = None) -> Any:
        if key not in self.entries:
            if default is not None:
                return default
            raise ArmLowerError(f"board file {self.file}: {self.where}{key} is missing; allowed: {allowed}")
        value = self.entries[key]
        if not good(value):
            raise self.fail(key, value, allowed)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        return str(self.get(key, lambda v: isinstance(v, str) and bool(v), "text", default))

    def one_of(self, key: str, allowed: Sequence[str]) -> str:
        return str(self.get(key, lambda v: v in allowed, ", ".join(allowed)))

    def number(self, key: str, low: int = 0, high: int = 0xFFFFFFFF) -> int:
        return int(self.get(key, lambda v: type(v) is int and low <= v <= high, f"a whole number, {low} to {high:#x}"))

    def table(self, key: str) -> _Reader:
        value = self.get(key, lambda v: isinstance(v, dict), "a table")
        return _Reader(self.file, value, f"{self.where}{key}.")

    def optional(self, key: str) -> _Reader | None:
        return self.table(key) if key in self.entries else None


def _board(r: _Reader) -> Board:
    r.only("name", "cpu", "memories", "placement", "overflow", "npu", "uart", "counter", "qemu", "fvp")
    memories = _memories(r.table("memories"))
    placement = r.table("placement").only(*USES)
    overflow = r.optional("overflow") or _Reader(r.file, {}, "overflow.")
    overflow.only("code", *BLOCKS)
    npu, counter, qemu, fvp = (r.optional(k) for k in ("npu", "counter", "qemu", "fvp"))
    return Board(
        _name(r, "name"),
        r.one_of("cpu", CPUS),
        memories,
        {use: placement.one_of(use, list(memories)) for use in USES},
        {block: overflow.one_of(block, list(memories)) for block in overflow.entries},
        _uart(r.table("uart")),
        _npu(npu) if npu else None,
        _counter(counter) if counter else None,
        Qemu(qemu.only("machine").text("machine")) if qemu else None,
        _fvp(fvp) if fvp else None,
    )


def _name(r: _Reader, key: str) -> str:
    good = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
    return str(r.get(key, lambda v: isinstance(v, str) and bool(good.fullmatch(v)), "letters, digits, - _ ."))


def _memories(r: _Reader) -> dict[str, Memory]:
    result: dict[str, Memory] = {}
    for name in r.entries:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ArmLowerError(f"board file {r.file}: memory name {name!r}; allowed: small letters, digits and _")
        m = r.table(name).only("address", "size", "kind", "npu")
        address, size = m.number("address"), m.number("size", ALIGNMENT)
        if address % ALIGNMENT:
            raise m.fail("address", f"{address:#x}", f"a multiple of {ALIGNMENT}")
        npu = bool(m.get("npu", lambda v: isinstance(v, bool), "true or false"))
        result[name] = Memory(name, address, size, m.one_of("kind", KINDS), npu)
    if not result:
        raise ArmLowerError(f"board file {r.file}: memories is empty; allowed: at least one memory")
    ordered = sorted(result.values(), key=lambda m: m.address)
    for a, b in zip(ordered, ordered[1:]):
        if a.address + a.size > b.address:
            raise ArmLowerError(
                f"board file {r.file}: memories.{a.name} ({a.address:#x} to {a.address + a.size:#x}) overlaps "
                f"memories.{b.name} at {b.address:#x}"
            )
    if ordered[-1].address + ordered[-1].size > 1 << 32:
        raise ArmLowerError(f"board file {r.file}: memories.{ordered[-1].name} ends behind the 32-bit address space")
    return result


def _npu(r: _Reader) -> Npu:
    r.only("base", "irq", "families", "wait")
    families = r.get(
        "families",
        lambda v: isinstance(v, list) and bool(v) and all(f in FAMILIES for f in v),
        f"a list of {', '.join(FAMILIES)}",
    )
    wait = r.one_of("wait", WAITS) if "wait" in r.entries else "poll"
    return Npu(r.number("base"), r.number("irq", 0, 479), tuple(families), wait)


def _uart(r: _Reader) -> Uart:
    r.only("type", "base", "clock")
    kind = r.one_of("type", UARTS)
    return Uart(kind) if kind == "semihosting" else Uart(kind, r.number("base"), r.number("clock", 1))


def _counter(r: _Reader) -> Counter:
    r.only("base", "clock")
    return Counter(r.number("base"), r.number("clock", SLOWEST_COUNTER))


def _fvp(r: _Reader) -> Fvp:
    r.only("binaries", "macs", "extra_args", "semihosting", "options", "library_path")
    binaries = r.table("binaries").only(*FAMILIES)
    options = r.get(
        "options",
        lambda v: isinstance(v, list) and all(isinstance(o, str) and "=" in o for o in v),
        'a list of "parameter=value"',
    )
    return Fvp(
        {f: binaries.text(f) for f in binaries.entries},
        r.text("macs"),
        r.text("extra_args"),
        r.text("semihosting"),
        tuple(options),
        str(r.get("library_path", lambda v: isinstance(v, str), "text", "")),
    )
