"""The host's part of co-simulation: executes the delegate calls of a firmware that has no NPU.

The firmware (``fvp/firmware/ethosu/cosim.c``) writes a request to one FIFO and reads the reply from another, by
semihosting. All numbers are little-endian u32:

- request: ``ALNU``, version 1, bytes of command stream, weights, scratch and fast scratch; then these four
- reply: ``ALNU``, status (0 or a number of ``al_status``), bytes of text and of scratch; then these two
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from fvp.ethosu.errors import NpuError
from fvp.ethosu.memory import Memory, Region, region_name
from fvp.ethosu.program import load

MAGIC = 0x554E4C41
VERSION = 1
NPU_MODEL = 70
"""``AL_NPU_MODEL``."""
_REQUEST = struct.Struct("<6I")
_REPLY = struct.Struct("<4I")
_PIPE = 1 << 20
_LIMIT = 1 << 30  # no memory of a device is larger; a broken request must not make the host allocate it


@dataclass
class Job:
    """One delegate call, as the NPU gets it.

    Attributes:
        commands: Driver payload.
        weights: Region 0.
        scratch: Region 1; `execute` changes it.
        fast_scratch: Region 2.
    """

    commands: bytes = field(repr=False)
    weights: bytes = field(repr=False)
    scratch: bytearray = field(repr=False)
    fast_scratch: bytearray = field(repr=False)


Executor = Callable[[Job], None]


def execute(job: Job) -> None:
    """Runs a job on the NPU model.

    Raises:
        NpuError: The model refuses a command or an access.
    """
    regions = {}
    areas: tuple[bytes | bytearray, ...] = (job.weights, job.scratch, job.fast_scratch)
    for number, data in enumerate(areas):
        if data:
            regions[number] = Region(region_name(number), np.frombuffer(data, np.uint8), None, number > 0)
    load(job.commands).execute(Memory(regions, check=False))


class CoSimulation:
    """Serves the requests of one firmware in a thread, inside a ``with``.

    Args:
        folder: Where the FIFOs are made.
        executor: Runs the jobs. An exception other than `NpuError` closes the FIFOs, as if the host had died, and is
            kept in ``failure``.

    Attributes:
        request, reply: Names of the FIFOs in ``folder``.
        calls: Number of jobs done.
        failure: What ended the service early.
    """

    request, reply = "npu.q", "npu.r"

    def __init__(self, folder: str | Path, executor: Executor = execute) -> None:
        self.folder = Path(folder)
        self.executor = executor
        self.calls = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="npu", daemon=True)

    def __enter__(self) -> CoSimulation:
        for name in (self.request, self.reply):
            os.mkfifo(self.folder / name)
        # Neither open waits for the firmware: the reading end is non-blocking, the writing end also reads.
        self._in = os.open(self.folder / self.request, os.O_RDONLY | os.O_NONBLOCK)
        self._out = os.open(self.folder / self.reply, os.O_RDWR | os.O_NONBLOCK)
        for end in (self._in, self._out):
            _enlarge(end)
        self._stop, self._stopper = os.pipe()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._stopper)
        self._thread.join()
        os.close(self._stop)

    def _serve(self) -> None:
        try:
            while self._serve_one():
                self.calls += 1
        except BaseException as error:  # noqa: BLE001  (it belongs to whoever started the run, not to this thread)
            self.failure = error
        finally:
            os.close(self._in)
            os.close(self._out)

    def _serve_one(self) -> bool:
        """False when the firmware or the run has ended."""
        head = self._read(_REQUEST.size)
        if head is None:
            return False
        magic, version, *sizes = _REQUEST.unpack(head)
        if magic != MAGIC or version != VERSION or sum(sizes) > _LIMIT:
            raise NpuError(f"the firmware's request begins with {head.hex()}, which is no request of version {VERSION}")
        blobs = [self._read(n) for n in sizes]
        if any(b is None for b in blobs):
            return False
        commands, weights, scratch, fast = (b or bytearray() for b in blobs)
        job = Job(bytes(commands), bytes(weights), scratch, fast)
        status, text, result = 0, b"", b""
        try:
            self.executor(job)
            result = bytes(job.scratch)
        except NpuError as error:
            status, text = NPU_MODEL, error.message.encode()[:4096]
        return self._write(_REPLY.pack(MAGIC, status, len(text), len(result)) + text + result)

    def _read(self, count: int) -> bytearray | None:
        """Exactly ``count`` bytes, or None at the end. Before the firmware opens a FIFO, `select` waits."""
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            if self._stop in select.select([self._in, self._stop], [], [])[0]:
                return None
            n = os.readv(self._in, [view[done:]])
            if n == 0:
                return None
            done += n
        return data

    def _write(self, data: bytes) -> bool:
        view, done = memoryview(data), 0
        while done < len(data):
            stop, ready, _ = select.select([self._stop], [self._out], [])
            if stop:
                return False
            try:
                done += os.write(self._out, view[done:])
            except BlockingIOError:
                continue
        return True


def _enlarge(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
    except (AttributeError, OSError):  # only Linux has it, and it may be limited: it is slower then
        pass
