"""Running a whole delegate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fvp.ethosu.decode import Command, Stream, decode
from fvp.ethosu.errors import NpuError
from fvp.ethosu.exec import Machine
from fvp.ethosu.memory import Memory, Region, region_name
from fvp.ethosu.task import Task, branch_targets, build

Array = npt.NDArray[Any]
_FAST_LIMIT = 64 << 20  # no dedicated SRAM is larger; a corrupt address must not make one
_STEPS = 100_000  # operations of one run, so that a corrupt branch ends


class Described(Protocol):
    """What `run` needs to know of an input or output; Vela's own descriptions fit."""

    @property
    def region(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def element_size(self) -> int: ...
    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class IO:
    """An input or output of a delegate.

    Attributes:
        region: Region number.
        offset: Byte offset in it.
        element_size: Bytes of an element.
        shape: As Vela gives it (6-D, leading ones).
    """

    region: int
    offset: int
    element_size: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, raw: Any) -> IO:
        """From a tensor of regor's CompiledRawModel."""
        return cls(raw.region, raw.address, raw.element_size, tuple(raw.shape))


def _size(d: Described) -> int:
    return prod(d.shape) * d.element_size


Observer = Callable[[Task, Array | None], None]


class Program:
    """A decoded payload, ready to run any number of times.

    Raises:
        DecodeError: The payload is corrupt or asks for something that is not modelled.
    """

    def __init__(self, payload: bytes) -> None:
        self.stream: Stream = decode(payload)
        self.tasks: list[Task | Command] = build(self.stream)
        self._entry = branch_targets(self.stream, self.tasks)
        self._checked: set[tuple[int, ...]] = set()
        self._static = not any(
            (isinstance(t, Command) and t.name == "OP_BRANCH") or (isinstance(t, Task) and t.dma.get("index"))
            for t in self.tasks
        )

    @cached_property
    def fast_size(self) -> int:
        """Bytes of fast scratch (region 2) up to the last one that an operation names."""
        ends = [0]
        for t in self.tasks:
            if not isinstance(t, Task):
                continue
            for x in (t.ifm, t.ifm2, t.ofm):
                if x is not None and x.where == "memory" and x.fm.region == 2:
                    ends += [hi for _, hi in x.fm.spans()]
            if t.weights is not None:
                for region, streams in (
                    (t.weights.region, t.weights.streams),
                    (t.weights.scale_region, t.weights.scale_streams),
                ):
                    ends += [a + n for a, n in streams if region == 2]
            if t.dma and t.dma["dst_region"] == 2 and not t.dma["dst_internal"]:
                d = t.dma
                ends.append(d["dst"] + max(0, (d["n0"] - 1) * d["ds0"]) + max(0, (d["n1"] - 1) * d["ds1"]) + d["len"])
        return min(max(ends), _FAST_LIMIT)

    def run(
        self,
        read_only: bytes | memoryview,
        inputs: Sequence[Array | bytes],
        input_descs: Sequence[Described],
        output_descs: Sequence[Described],
        scratch_size: int,
        scratch_fast_size: int | None = None,
        observer: Observer | None = None,
    ) -> list[Array]:
        """Execute the stream.

        Args:
            read_only: Contents of region 0, weights and constants.
            inputs: One array or bytes object per input, exactly as many bytes as its description says.
            input_descs, output_descs: Where inputs and outputs lie.
            scratch_size: Bytes of region 1.
            scratch_fast_size: Bytes of region 2, the dedicated SRAM; by default as many as the stream uses, because a
                ``.pte`` does not say.
            observer: Called after each task with the values it wrote.

        Returns:
            One array per output, signed integers of its element size, in its described shape.

        Raises:
            NpuError: An input does not fit, or an operation reads or writes what it must not.
        """
        if len(inputs) != len(input_descs):
            raise NpuError(f"{len(inputs)} inputs given, the program has {len(input_descs)}")
        sizes = {1: scratch_size, 2: self.fast_size if scratch_fast_size is None else scratch_fast_size}
        for d in (*input_descs, *output_descs):
            if d.region > 2:
                sizes[d.region] = max(sizes.get(d.region, 0), d.offset + _size(d))
        key = (len(read_only), *sizes.values(), *(v for d in input_descs for v in (d.region, d.offset, _size(d))))
        check = not (self._static and key in self._checked)
        regions = {0: Region(region_name(0), np.frombuffer(read_only, np.uint8), None, False)}
        for number, size in sizes.items():
            if size:
                regions[number] = Region(
                    region_name(number), np.zeros(size, np.uint8), np.zeros(size, np.bool_) if check else None
                )
        memory = Memory(regions, check=check)
        for k, (value, d) in enumerate(zip(inputs, input_descs)):
            raw = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
            if len(raw) != _size(d):
                raise NpuError(f"input {k} has {len(raw)} bytes, the program takes {_size(d)} (shape {tuple(d.shape)})")
            region = memory.region(d.region, f"input {k}", "it")
            if d.offset + _size(d) > region.data.size:
                raise NpuError(
                    f"input {k} takes bytes {d.offset}..{d.offset + _size(d)} of {region.name}, "
                    f"which has {region.data.size}"
                )
            region.data[d.offset : d.offset + _size(d)] = np.frombuffer(raw, np.uint8)
            if region.written is not None:
                region.written[d.offset : d.offset + _size(d)] = True
        self.execute(memory, observer)
        return self._collect(memory, output_descs, key)

    def _collect(self, memory: Memory, output_descs: Sequence[Described], key: tuple[int, ...]) -> list[Array]:
        outputs = []
        for k, d in enumerate(output_descs):
            region = memory.region(d.region, f"output {k}", "it")
            data = region.data[d.offset : d.offset + _size(d)]
            if data.size != _size(d):
                raise NpuError(
                    f"output {k} takes bytes {d.offset}..{d.offset + _size(d)}, region {d.region} is smaller"
                )
            if region.written is not None and not region.written[d.offset : d.offset + _size(d)].all():
                raise NpuError(f"output {k} at {d.offset:#x} of {region.name} holds bytes that nothing has written")
            outputs.append(data.copy().view(f"<i{d.element_size}").reshape(tuple(d.shape)))
        self._checked.add(key)
        return outputs

    def execute(self, memory: Memory, observer: Observer | None = None) -> None:
        """Execute the stream on regions that hold the inputs already, in place.

        Raises:
            NpuError: An operation reads or writes what it must not.
        """
        machine = Machine(self.stream.arch, memory)
        at, steps = 0, 0
        while True:
            t = self.tasks[at]
            at += 1
            steps += 1
            if steps > _STEPS:
                raise NpuError(f"offset {t.offset:#x}: the program has run {_STEPS} operations and does not end")
            if isinstance(t, Task):
                values = machine.execute(t)
                if observer is not None:
                    observer(t, values)
            elif t.name == "OP_STOP":
                return
            elif t.name == "OP_BRANCH" and (t.fields["cond"] == "ALWAYS" or machine.condition(str(t), t.offset)):
                at = self._entry[t.fields["target"]]


@lru_cache(maxsize=32)
def load(payload: bytes) -> Program:
    """Decode a payload; the last 32 are kept."""
    return Program(payload)


def run(
    payload: bytes,
    read_only: bytes | memoryview,
    inputs: Sequence[Array | bytes],
    input_descs: Sequence[Described],
    output_descs: Sequence[Described],
    scratch_size: int,
    scratch_fast_size: int | None = None,
) -> list[Array]:
    """Run a delegate's command stream on the host. See `Program.run`."""
    return load(payload).run(read_only, inputs, input_descs, output_descs, scratch_size, scratch_fast_size)
