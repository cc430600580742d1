"""The registers of an Ethos-U55, U65 or U85, for a simulated CPU whose driver is to be tested.

The commands are executed by `fvp.ethosu` on the guest's memory, at the addresses that the driver wrote into the base
pointers. What a driver must not do (another size than a word, a register that is not modelled, a write to a running
NPU, a queue that is not aligned) raises, so that a test of a driver sees it. Time does not exist: a reset and a run end
after a number of status reads, and counters count commands.

Register facts: Arm's Ethos-U55, U65 and U85 technical reference manuals and public interface headers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from arm_lower.errors import ArmLowerError
from fvp.ethosu.errors import AccessError, DecodeError
from fvp.ethosu.memory import Memory, Region, region_name
from fvp.ethosu.program import load

Bytes = npt.NDArray[np.uint8]

_ID, _STATUS, _CMD, _RESET, _QBASE, _QREAD, _QCONFIG, _QSIZE = 0x00, 0x04, 0x08, 0x0C, 0x10, 0x18, 0x1C, 0x20
_PROT, _CONFIG, _REGIONCFG, _AXI, _BASEP = 0x24, 0x28, 0x3C, 0x40, 0x80
_PMCR, _PMCNTENSET, _PMCNTENCLR, _PMCCNTR, _PMCCNTR_CFG = 0x180, 0x184, 0x188, 0x1A0, 0x1A8
_PMEVCNTR, _PMEVTYPER = 0x300, 0x380
_CYCLES = 1 << 31  # the cycle counter's bit in the enable registers

RUNNING, IRQ, BUS, RESETTING, PARSE, END = (1 << n for n in range(6))
WEIGHTS, ECC, BRANCH = 1 << 7, 1 << 8, 1 << 9
FAULTS = {
    "bus": BUS,
    "parse": PARSE,
    "weights": WEIGHTS,
    "ecc": ECC,
    "branch": BRANCH,
    "stopped": 0,
    "silent": 0,
    "endless": 0,
    "reset": 0,
    "access": 0,
}
"""What can go wrong: a status bit at the start; an end before the last command, with or without an interrupt; no end at
all; a reset that does not end; an access level that does not become the one asked for."""

_U55_CONFIG = {32: 0x1005, 64: 0x1006, 128: 0x1807, 256: 0x3008}
_CONFIGS = {
    **{("u55", macs): word for macs, word in _U55_CONFIG.items()},
    ("u65", 256): 0x10003008,
    ("u65", 512): 0x10006009,
    ("u85", 128): 0x20000117,
    ("u85", 256): 0x20000118,
    ("u85", 512): 0x20001119,
    ("u85", 1024): 0x2000251A,
    ("u85", 2048): 0x2000261B,
}
_IDS = {"u55": 0x10104201, "u65": 0x10066001, "u85": 0x20007001}


class RegisterError(ArmLowerError):
    """The driver did what hardware does not take."""


class GuestMemory(Protocol):
    """Memory of the simulated CPU."""

    def from_address(self, address: int) -> Bytes | None:
        """The bytes from an address to the end of the memory that has it, not a copy; None if there is none."""


@dataclass
class EthosU:
    """One NPU.

    Attributes:
        memory: What it reads and writes.
        product: ``u55``, ``u65`` or ``u85``.
        macs: Multipliers.
        fault: One of `FAULTS`, or "".
        reset_reads, run_reads: Status reads until a reset or a run is over.
        runs: How many command streams were started.
        last_error: Why the NPU model ended the last run with a fault, "" if it did not.
    """

    memory: GuestMemory
    product: str
    macs: int
    fault: str = ""
    reset_reads: int = 3
    run_reads: int = 5
    runs: int = 0
    last_error: str = ""

    def __post_init__(self) -> None:
        if (self.product, self.macs) not in _CONFIGS:
            names = ", ".join(f"{p}-{m}" for p, m in _CONFIGS)
            raise ArmLowerError(f"no NPU is called {self.product}-{self.macs}", f"known: {names}")
        if self.fault not in ("", *FAULTS):
            raise ArmLowerError(f"unknown fault '{self.fault}'", f"faults: {', '.join(FAULTS)}")
        self._wide = self.product != "u55"
        self._pmu = 0x1000 if self.product == "u85" else 0
        self._events = 8 if self.product == "u85" else 4
        self._words: dict[int, int] = {}
        self._status = 0
        self._pending = 0  # status reads until the reset or the run is over
        self._access = 0
        self._known = self._writable()

    @property
    def interrupt(self) -> bool:
        """Level of the interrupt line."""
        return bool(self._status & IRQ)

    @property
    def running(self) -> bool:
        """Whether it was started and neither came to an end nor was reset."""
        return bool(self._status & RUNNING)

    def _writable(self) -> frozenset[int]:
        known = {_CMD, _RESET, _QBASE, _QSIZE, _QCONFIG, _REGIONCFG}
        known |= {_AXI + 4 * i for i in range(6 if self.product == "u85" else 4)}
        known |= {_BASEP + 8 * i for i in range(8)}
        if self._wide:
            known |= {_QBASE + 4} | {_BASEP + 8 * i + 4 for i in range(8)}
        pmu = {_PMCR, _PMCNTENSET, _PMCNTENCLR, _PMCCNTR, _PMCCNTR + 4, _PMCCNTR_CFG}
        pmu |= {base + 4 * i for base in (_PMEVCNTR, _PMEVTYPER) for i in range(self._events)}
        return frozenset(known | {self._pmu + offset for offset in pmu})

    # ---- the bus ---------------------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> int:
        """What the CPU reads.

        Args:
            offset: From the first register, in bytes.
            size: Bytes; only words have a meaning.

        Raises:
            RegisterError: Not a word, or a register that is not modelled.
        """
        self._check(offset, size)
        if offset == _STATUS:
            return self._read_status()
        if self._status & RESETTING:
            return 0
        fixed = {
            _ID: _IDS[self.product],
            _CONFIG: _CONFIGS[self.product, self.macs],
            _PROT: self._access,
            _QREAD: self._words.get(_QREAD, 0),
            self._pmu + _PMCR: self._words.get(self._pmu + _PMCR, 0) & 1 | self._events << 11,
        }
        if offset in fixed:
            return fixed[offset]
        if offset not in self._known:
            raise RegisterError(f"read of offset {offset:#x}, which is no register of an Ethos-{self.product.upper()}")
        return self._words.get(offset, 0)

    def write(self, offset: int, size: int, value: int) -> None:
        """What the CPU writes; arguments and errors as those of `read`."""
        self._check(offset, size)
        if offset not in self._known:
            raise RegisterError(
                f"write of {value:#x} to offset {offset:#x}, which is no writable register of an "
                f"Ethos-{self.product.upper()}"
            )
        if self._status & RESETTING and offset != _RESET:
            raise RegisterError(f"write of {value:#x} to offset {offset:#x} during a reset, which ignores it")
        counter = offset - self._pmu >= _PMCR
        if self._status & RUNNING and offset not in (_RESET, _CMD) and not counter:
            raise RegisterError(f"write of {value:#x} to offset {offset:#x} while the NPU runs")
        if offset == _RESET:
            self._reset(value)
        elif offset == _CMD:
            self._command(value)
        elif offset - self._pmu in (_PMCR, _PMCNTENSET, _PMCNTENCLR):
            self._count(offset - self._pmu, value)
        else:
            self._words[offset] = value
            if offset in (_QBASE, _QSIZE):
                self._status &= ~END

    def _check(self, offset: int, size: int) -> None:
        if size != 4 or offset % 4:
            raise RegisterError(f"access of {size} bytes at offset {offset:#x}; registers are accessed as words")

    def _read_status(self) -> int:
        before = self._status
        if self._pending > 0:
            self._pending -= 1
            if self._pending == 0:
                self._reset_done() if self._status & RESETTING else self._run_done()
        return before

    # ---- what they do ----------------------------------------------------------------------------------------

    def _reset(self, value: int) -> None:
        if value & ~3:
            raise RegisterError(f"reset with {value:#x}, bits above 1 are reserved")
        self._words = {}
        self._status = RESETTING
        self._pending = -1 if self.fault == "reset" else self.reset_reads
        self._access = value ^ 3 if self.fault == "access" else value

    def _reset_done(self) -> None:
        self._status = 0

    def _command(self, value: int) -> None:
        if value & 0xFFE0:
            raise RegisterError(f"command {value:#x}, bits 5 to 15 are reserved")
        if value & 2:
            self._status &= ~IRQ
        if value & 1:
            if self._status & RUNNING:
                raise RegisterError("start of an NPU that runs")
            if self._status & sum(FAULTS.values()):
                raise RegisterError(f"start after a fault (status {self._status:#x}) without a reset")
            self._status |= RUNNING
            self._pending = -1 if self.fault == "endless" else self.run_reads
            self.runs += 1

    def _run_done(self) -> None:
        self._status &= ~RUNNING
        self.last_error = ""
        if self.fault == "silent":
            return
        if FAULTS.get(self.fault):
            self._status |= IRQ | FAULTS[self.fault]
        elif self.fault == "stopped":
            self._status |= IRQ
            self._words[_QREAD] = self._words.get(_QSIZE, 0) // 8 * 4
        else:
            self._status |= IRQ | self._execute()

    def _execute(self) -> int:
        """Runs the queue; the status bits that it ends with."""
        base, size = self._address(_QBASE), self._words.get(_QSIZE, 0)
        if base % 16 or size % 4:
            raise RegisterError(f"queue of {size} bytes at {base:#x}; its address is a multiple of 16, its size of 4")
        queue = self.memory.from_address(base)
        if queue is None or queue.size < size:
            self.last_error = f"the queue at {base:#x} is not in memory"
            return BUS
        try:
            program = load(_payload(_CONFIGS[self.product, self.macs], queue[:size].tobytes()))
            self._words[_QREAD] = size
            self._advance(len(program.stream.commands))
            program.execute(Memory(self._regions(), check=False))
        except DecodeError as error:
            self.last_error = str(error)
            return PARSE
        except AccessError as error:
            self.last_error = str(error)
            return BUS
        return END | 0xFFFF << 16  # the mask of OP_STOP is added to the history

    def _address(self, offset: int) -> int:
        return self._words.get(offset, 0) | self._words.get(offset + 4, 0) << 32

    def _regions(self) -> dict[int, Region]:
        """Hardware knows no sizes: a region reaches to the end of the memory that it is in."""
        regions: dict[int, Region] = {}
        for number in range(8):
            if _BASEP + 8 * number not in self._words:
                continue
            base = self._address(_BASEP + 8 * number)
            if base % 16:
                raise RegisterError(f"base pointer {number} is {base:#x}, not a multiple of 16")
            data = self.memory.from_address(base)
            if data is not None:
                regions[number] = Region(f"{region_name(number)} at {base:#x}", data)
        return regions

    # ---- performance counters --------------------------------------------------------------------------------

    def _count(self, offset: int, value: int) -> None:
        words, enabled = self._words, self._pmu + _PMCNTENSET
        if offset == _PMCNTENSET:
            words[enabled] = words.get(enabled, 0) | value
        elif offset == _PMCNTENCLR:
            words[enabled] = words.get(enabled, 0) & ~value
        else:
            words[self._pmu + _PMCR] = value
            if value & 2:
                words.update({self._pmu + _PMEVCNTR + 4 * i: 0 for i in range(self._events)})
            if value & 4:
                words.update({self._pmu + _PMCCNTR: 0, self._pmu + _PMCCNTR + 4: 0})

    def _advance(self, commands: int) -> None:
        """Each command is a cycle; an event counter moves by its event's number for each command."""
        words, pmu = self._words, self._pmu
        enabled = words.get(pmu + _PMCNTENSET, 0)
        if not words.get(pmu + _PMCR, 0) & 1:
            return
        if enabled & _CYCLES:
            cycles = words.get(pmu + _PMCCNTR, 0) + commands
            words[pmu + _PMCCNTR] = cycles & 0xFFFFFFFF
        for i in range(self._events):
            if enabled >> i & 1:
                words[pmu + _PMEVCNTR + 4 * i] = commands * words.get(pmu + _PMEVTYPER + 4 * i, 0) & 0xFFFFFFFF


def _payload(config: int, stream: bytes) -> bytes:
    """The driver payload with these commands, as it is what `load` takes."""
    words = len(stream) // 4
    head: list[Any] = [0x31504F43, 1, config, 0, 2 | (words >> 16 & 0xFF) << 8 | (words & 0xFFFF) << 16]
    return struct.pack("<5I", *head) + stream
