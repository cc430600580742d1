"""Runs an application on an emulated Cortex-M33 with the registers of an NPU in Python.

QEMU has no Ethos-U, and its address cannot be given to anything from outside; unicorn has no Cortex-M55, no interrupt
controller and no timer, but all of its memory and devices are ours. So the sources, compiled for Cortex-M33, are
tested here against `fvp.registers`: driver by polling, semihosting, console.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from unicorn import UC_ARCH_ARM, UC_HOOK_INTR, UC_HOOK_MEM_INVALID, UC_MODE_MCLASS, UC_MODE_THUMB
from unicorn.arm_const import (
    UC_ARM_REG_LR,
    UC_ARM_REG_PC,
    UC_ARM_REG_R0,
    UC_ARM_REG_R1,
    UC_ARM_REG_SP,
    UC_CPU_ARM_CORTEX_M33,
)
from unicorn.unicorn_py3 import Uc, UcError

from arm_lower.errors import ArmLowerError
from arm_lower.files import read_file
from fvp.boards import Board, load_board
from fvp.builder import Firmware
from fvp.registers import Bytes, EthosU
from fvp.tensors import Array, decode_outputs, encode_inputs

_PAGE = 4096
_BREAKPOINT = 7  # number of the exception that BKPT ends in
_SYSTEM = (0xE0000000, 0x100000)  # private peripherals: plain memory here
_NPU_BYTES = 0x2000
_BAD_CALL = 0xFFFFFFFF
_PT_LOAD = 1


class EmulatorError(ArmLowerError):
    """The application crashed, did not end, reported an error, or asked for what the emulator does not have.

    Attributes:
        status: The error number (``al_status``) that it ended with, or 0.
    """

    def __init__(self, message: str, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint)
        self.status = status


class File(Protocol):
    """What semihosting calls use of a file of the host; an `io.BytesIO`, or an end of a FIFO."""

    def read(self, size: int, /) -> bytes: ...
    def write(self, data: bytes, /) -> int: ...


@dataclass
class _Block:
    """A range of memory that the CPU, the NPU and Python share."""

    address: int
    data: Bytes
    backing: mmap.mmap


@dataclass
class Emulator:
    """One CPU with its memory.

    Attributes:
        elf: The application. Execution begins at its entry.
        memories: ``(address, bytes)`` of each memory, in multiples of 4096.
        npu: The NPU, if there is one.
        npu_base: Address of its registers; reads give 0 there without one.
        uart: Address of a CMSDK UART, or None.
        command_line: For semihosting.
        files: Name -> file, for semihosting.
    """

    elf: Path
    memories: Iterable[tuple[int, int]]
    npu: EthosU | None = None
    npu_base: int = 0x58102000
    uart: int | None = None
    command_line: str = ""
    files: Mapping[str, File] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._uc = cast(Any, Uc(UC_ARCH_ARM, UC_MODE_THUMB | UC_MODE_MCLASS))  # its methods have no types
        self._uc.ctl_set_cpu_model(UC_CPU_ARM_CORTEX_M33)
        self._blocks = [self._memory(address, size) for address, size in self.memories]
        self._system = self._memory(*_SYSTEM)  # kept: unicorn only has its address
        self._uc.mmio_map(self.npu_base, _NPU_BYTES, self._npu_read, None, self._npu_write, None)
        if self.uart is not None:
            self._uc.mmio_map(self.uart, _PAGE, lambda uc, offset, size, data: 0, None, self._uart_write, None)
        self._uc.hook_add(UC_HOOK_INTR, self._exception)
        self._uc.hook_add(UC_HOOK_MEM_INVALID, self._invalid)
        self._console = bytearray()
        self._open: dict[int, File] = {}
        self._exit: int | None = None
        self._problem = ""

    # ---- memory ----------------------------------------------------------------------------------------------

    def _memory(self, address: int, size: int) -> _Block:
        if address % _PAGE or size % _PAGE:
            raise EmulatorError(f"memory of {size:#x} bytes at {address:#x}", f"multiples of {_PAGE:#x} are possible")
        backing = mmap.mmap(-1, size)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(backing))
        self._uc.mem_map_ptr(address, size, 7, pointer)
        return _Block(address, np.frombuffer(backing, np.uint8), backing)

    def from_address(self, address: int) -> Bytes | None:
        """For the NPU; see `fvp.registers.GuestMemory`."""
        for block in self._blocks:
            if block.address <= address < block.address + block.data.size:
                return block.data[address - block.address :]
        return None

    def _bytes(self, address: int, size: int) -> Bytes:
        found = self.from_address(address)
        if found is None or found.size < size:
            raise EmulatorError(f"the application names {size} bytes at {address:#x}, which is no memory")
        return found[:size]

    def load(self, address: int, data: bytes) -> None:
        """Puts bytes into memory, as a loader would."""
        self._bytes(address, len(data))[:] = np.frombuffer(data, np.uint8)

    # ---- devices ---------------------------------------------------------------------------------------------

    def _npu_read(self, uc: Any, offset: int, size: int, data: Any) -> int:
        return 0 if self.npu is None else self.npu.read(offset, size)

    def _npu_write(self, uc: Any, offset: int, size: int, value: int, data: Any) -> None:
        if self.npu is not None:
            self.npu.write(offset, size, value)

    def _uart_write(self, uc: Any, offset: int, size: int, value: int, data: Any) -> None:
        if offset == 0:
            self._console.append(value & 0xFF)

    # ---- exceptions ------------------------------------------------------------------------------------------

    def _invalid(self, uc: Any, access: int, address: int, size: int, value: int, data: Any) -> bool:
        self._problem = f"access to {size} bytes at {address:#x}, where nothing is"
        return False

    def _exception(self, uc: Any, number: int, data: Any) -> None:
        pc = int(uc.reg_read(UC_ARM_REG_PC))
        if number != _BREAKPOINT or bytes(uc.mem_read(pc, 2)) != b"\xab\xbe":
            self._problem = f"exception {number}"
            uc.emu_stop()
            return
        operation, block = int(uc.reg_read(UC_ARM_REG_R0)), int(uc.reg_read(UC_ARM_REG_R1))
        call = self._CALLS.get(operation)
        if call is None:
            raise EmulatorError(f"semihosting operation {operation:#x} at {pc:#x} is not known here")
        uc.reg_write(UC_ARM_REG_R0, call(self, block) & 0xFFFFFFFF)
        uc.reg_write(UC_ARM_REG_PC, pc + 2 | 1)

    def _words(self, address: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", self._bytes(address, 4 * count).tobytes())

    def _file(self, handle: int) -> File:
        if handle not in self._open:
            raise EmulatorError(f"the application uses a file with handle {handle}, which it has not opened")
        return self._open[handle]

    def _sys_open(self, block: int) -> int:
        path, _, length = self._words(block, 3)
        file = self.files.get(self._bytes(path, length).tobytes().decode())
        if file is None:
            return _BAD_CALL
        handle = len(self._open) + 1
        self._open[handle] = file
        return handle

    def _sys_close(self, block: int) -> int:
        return 0

    def _sys_write(self, block: int) -> int:
        handle, address, size = self._words(block, 3)
        return size - self._file(handle).write(self._bytes(address, size).tobytes())

    def _sys_read(self, block: int) -> int:
        handle, address, size = self._words(block, 3)
        data = self._file(handle).read(size)
        self._bytes(address, len(data))[:] = np.frombuffer(data, np.uint8)
        return size - len(data)

    def _sys_flen(self, block: int) -> int:
        file = self._file(self._words(block, 1)[0])
        return len(file.getbuffer()) if isinstance(file, io.BytesIO) else _BAD_CALL

    def _sys_writec(self, block: int) -> int:
        self._console += self._bytes(block, 1).tobytes()
        return 0

    def _sys_command_line(self, block: int) -> int:
        address, size = self._words(block, 2)
        line = self.command_line.encode() + b"\0"
        if len(line) > size:
            return _BAD_CALL
        self._bytes(address, len(line))[:] = np.frombuffer(line, np.uint8)
        return 0

    def _sys_exit(self, block: int) -> int:
        self._exit = self._words(block, 2)[1]
        self._uc.emu_stop()
        return 0

    _CALLS: ClassVar[Mapping[int, Callable[[Emulator, int], int]]] = {
        0x01: _sys_open,
        0x02: _sys_close,
        0x03: _sys_writec,
        0x05: _sys_write,
        0x06: _sys_read,
        0x0C: _sys_flen,
        0x15: _sys_command_line,
        0x20: _sys_exit,
    }

    # ---- running ---------------------------------------------------------------------------------------------

    def run(self, timeout: float = 60.0) -> tuple[int, str]:
        """Executes the application until it exits.

        Args:
            timeout: Seconds.

        Returns:
            Its exit code, and what it wrote to the console.

        Raises:
            EmulatorError: It did not come to its exit; says where it was and why.
        """
        entry, segments = _segments(read_file(self.elf))
        for address, data in segments:
            self.load(address, data)
        try:
            self._uc.emu_start(entry | 1, 0, timeout=int(timeout * 1e6))
        except UcError as error:
            raise self._stopped(self._problem or str(error)) from None
        if self._exit is None:
            raise self._stopped(self._problem or f"no exit within {timeout:g} s")
        return self._exit, self.console

    @property
    def console(self) -> str:
        """What was written so far."""
        return self._console.decode("ascii", "backslashreplace")

    def _stopped(self, why: str) -> EmulatorError:
        pc, lr, sp = (int(self._uc.reg_read(r)) for r in (UC_ARM_REG_PC, UC_ARM_REG_LR, UC_ARM_REG_SP))
        last = "; ".join(self.console.splitlines()[-3:]) or "nothing"
        return EmulatorError(
            f"{self.elf.name} stopped: {why} (pc {pc:#x}, lr {lr:#x}, sp {sp:#x}); last lines of its console: {last}"
        )


def _segments(image: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """Entry point of an ELF file (32 bits, little-endian), load address and bytes of each segment."""
    entry, table = struct.unpack_from("<2I", image, 24)
    each, count = struct.unpack_from("<2H", image, 42)
    found = []
    for i in range(count):
        kind, offset, _, address, size = struct.unpack_from("<5I", image, table + i * each)
        if kind == _PT_LOAD:
            found.append((address, image[offset : offset + size]))
    return entry, found


@dataclass(frozen=True)
class _Reachable:
    """The memories of a board that its NPU can reach."""

    emulator: Emulator
    board: Board

    def from_address(self, address: int) -> Bytes | None:
        for memory in self.board.memories.values():
            if memory.npu and memory.address <= address < memory.address + memory.size:
                return self.emulator.from_address(address)
        return None


def board() -> Board:
    """What applications for the emulator are built for: the map of ``mps3-an547`` with a Cortex-M33."""
    return replace(load_board("mps3-an547"), name="unicorn", cpu="cortex-m33", counter=None)


def run(
    firmware: Firmware, samples: Sequence[Sequence[Any]], npu: EthosU | None = None, timeout: float = 300.0
) -> list[list[Array]]:
    """Runs an application that was built for `board`, once for each sample.

    Args:
        firmware: From `fvp.builder.build`.
        samples: Inputs of each execution, as for `fvp.runner.run_samples`.
        npu: Executes the delegates; by default the one that the program was compiled for.
        timeout: Seconds for all of them.

    Returns:
        Outputs of each execution.

    Raises:
        EmulatorError: The device reports an error, or the application did not come to its end.
    """
    chosen, needs = firmware.board, firmware.needs
    method = needs.program.methods[0]
    out = io.BytesIO()
    files = {"in": io.BytesIO(b"".join(encode_inputs(method, sample) for sample in samples)), "out": out}
    emulator = Emulator(
        firmware.elf,
        [(m.address, m.size) for m in chosen.memories.values()],
        npu,
        chosen.npu.base if chosen.npu else 0x58102000,
        chosen.uart.base,
        f"app -n {len(samples)} -i in -o out",
        files,
    )
    reachable = _Reachable(emulator, chosen)
    if npu is None and needs.delegates:
        emulator.npu = EthosU(reachable, needs.family, needs.macs)
    elif npu is not None:
        npu.memory = reachable
    code, console = emulator.run(timeout)
    if code or "\nal done\n" not in console:
        report = next((line for line in console.splitlines() if line.startswith("arm-lower: ")), "nothing")
        raise EmulatorError(f"the application ended with exit code {code} and reported {report}", status=code)
    arrays = decode_outputs(out.getvalue())
    each = len(method.outputs)
    return [arrays[i * each : (i + 1) * each] for i in range(len(samples))]
