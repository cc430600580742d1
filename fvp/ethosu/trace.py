"""What a run did, command by command, and where it first left the reference.

Vela's debug database says which operation a command belongs to; `sources` reads it. Without it a trace has offsets,
shapes and digests only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fvp.ethosu.memory import FeatureMap
from fvp.ethosu.program import Described, Program
from fvp.ethosu.task import TRANSPOSE, Task

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Source:
    """Where a command came from.

    Attributes:
        name: Name of the tensor in the TOSA graph that it writes, or a part of.
        location: PyTorch module path and operator, "" if unknown.
        cycles: Vela's estimate for the whole layer.
    """

    name: str
    location: str = ""
    cycles: int = 0


@dataclass(frozen=True)
class Step:
    """One executed command.

    Attributes:
        offset: Byte offset of the command in the payload.
        command: Name and mode.
        source: Where it came from, None if unknown.
        shapes: (H, W, C) of each operand in memory, chain buffer or accumulator, the result last.
        digest: Of the values it wrote; 16 hexadecimal digits, empty for a DMA.
        low, high: Smallest and largest of them.
    """

    offset: int
    command: str
    source: Source | None
    shapes: tuple[tuple[int, int, int], ...]
    digest: str = ""
    low: int = 0
    high: int = 0
    _task: Task | None = field(default=None, repr=False, compare=False)
    _values: Array | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        who = f"{self.source.name} {self.source.location}".strip() if self.source else ""
        shapes = " -> ".join("x".join(map(str, s)) for s in self.shapes)
        tail = f" [{self.low}, {self.high}] {self.digest}" if self.digest else ""
        return f"{self.offset:#08x} {self.command:<24} {shapes}{tail} {who}".rstrip()


@dataclass(frozen=True)
class Difference:
    """The first element at which a layer is not what it should be.

    Attributes:
        layer: The source of the layer.
        index: Of the element in the TOSA tensor.
        wanted, found: Values of the reference and of the NPU model.
        count: How many elements of the layer differ.
    """

    layer: Source
    index: tuple[int, ...]
    wanted: int
    found: int
    count: int

    def __str__(self) -> str:
        where = f" ({self.layer.location})" if self.layer.location else ""
        return (
            f"layer {self.layer.name}{where}: {self.count} elements differ, the first at {self.index}: "
            f"reference {self.wanted}, NPU {self.found}"
        )


def sources(
    tables: Mapping[str, Iterable[Mapping[str, str]]], start: int, locations: Sequence[str] | None = None
) -> dict[int, Source]:
    """The layer of each operation, out of Vela's debug database.

    Args:
        tables: Rows of the tables ``perf``, ``queue`` and ``source``, each row by column name; `database_tables` makes
            them of regor's own object.
        start: `Stream.start` of the payload; the database counts from there.
        locations: Location of each operator of the TOSA flatbuffer, constants counted (Vela's ``ext_key``).

    Returns:
        By the byte offset of the command in the payload.
    """
    known = locations or ()
    place: dict[str, str] = {}
    for r in tables["source"]:
        index = int(r["ext_key"]) if r["ext_key"].isdigit() else -1
        place[r["id"]] = known[index] if 0 <= index < len(known) else ""
    layers = {
        r["id"]: Source(r["name"], place.get(r["source_id"], ""), int(r["npu_cycles"] or 0)) for r in tables["perf"]
    }
    rows = tables["queue"]
    return {start + int(r["offset"]): layers[r["scheduled_id"]] for r in rows if r["scheduled_id"] in layers}


class Layered(Protocol):
    """Of `arm_lower.vela.VelaResult`, what names its commands."""

    @property
    def commands(self) -> Sequence[tuple[int, int]]: ...
    @property
    def layers(self) -> Sequence[Any]: ...


def command_sources(compiled: Layered, start: int) -> dict[int, Source]:
    """The same out of Vela's result, or of a record: ``layers`` have a ``name``, a ``location`` and ``npu_cycles``.

    Args:
        compiled: Commands and layers.
        start: `Stream.start` of the payload.
    """
    layers = [Source(x.name, x.location, x.npu_cycles) for x in compiled.layers]
    return {start + offset: layers[index] for offset, index in compiled.commands}


def database_tables(database: Any) -> dict[str, list[dict[str, str]]]:
    """The tables that `sources` wants, out of ``opt_database`` of regor's raw model (``enable_db=true``)."""
    found = {}
    for name in ("perf", "queue", "source"):
        table = database.tables[name]
        found[name] = [dict(zip(table.header, row)) for row in table.data]
    return found


def run_traced(
    program: Program,
    read_only: bytes | memoryview,
    inputs: Sequence[Array | bytes],
    input_descs: Sequence[Described],
    output_descs: Sequence[Described],
    scratch_size: int,
    scratch_fast_size: int | None = None,
    layers: Mapping[int, Source] | None = None,
    keep: bool = False,
    steps: list[Step] | None = None,
) -> tuple[list[Array], list[Step]]:
    """Run a program and record each command.

    Args:
        program: The decoded payload.
        read_only, inputs, input_descs, output_descs, scratch_size, scratch_fast_size: As for `Program.run`.
        layers: From `sources`.
        keep: Keep the values of every step, for `first_difference`.
        steps: List to append to: after an error it has what was executed.

    Returns:
        The outputs and the steps in order of execution.
    """
    steps = [] if steps is None else steps
    known = layers or {}

    def watch(t: Task, values: Array | None) -> None:
        operands = [x.fm.shape for x in (t.ifm, t.ifm2) if x is not None]
        command = f"{t.name} {t.mode}".rstrip()
        if values is None:
            steps.append(Step(t.offset, command, known.get(t.offset), ()))
            return
        h, w, c = values.shape
        digest = hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=8).hexdigest()
        low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
        kept = values.copy() if keep else None
        steps.append(Step(t.offset, command, known.get(t.offset), (*operands, (h, w, c)), digest, low, high, t, kept))

    out = program.run(read_only, inputs, input_descs, output_descs, scratch_size, scratch_fast_size, watch)
    return out, steps


def first_difference(steps: Sequence[Step], wanted: Mapping[str, Array]) -> Difference | None:
    """Compare layer by layer, in the order in which layers are finished.

    Args:
        steps: From `run_traced` with ``layers`` and ``keep``.
        wanted: The reference's value of TOSA tensors by name. A layer whose tensor is not among them, or which Vela
            holds in pieces that do not make up the tensor, is passed over.

    Returns:
        The first difference, or None.
    """
    last = {s.source.name: i for i, s in enumerate(steps) if s.source is not None and s._values is not None}
    for name, _ in sorted(last.items(), key=lambda item: item[1]):
        if name not in wanted:
            continue
        mine = [s for s in steps if s.source is not None and s.source.name == name and s._values is not None]
        want = wanted[name].astype(np.int64).ravel()
        want = (want != 0).astype(np.int64) if wanted[name].dtype == np.bool_ else want
        candidates = [_assemble(mine, wanted[name]), _before_move(mine, want.size)]
        tensors = [np.abs(c) if wanted[name].dtype == np.bool_ else c for c in candidates if c is not None]
        if not tensors or any((c == want).all() for c in tensors):
            continue
        found = tensors[0]
        bad = np.flatnonzero(found != want)
        at = tuple(int(v) for v in np.unravel_index(bad[0], wanted[name].shape))
        source = mine[0].source
        assert source is not None
        return Difference(source, at, int(want[bad[0]]), int(found[bad[0]]), len(bad))
    return None


def _before_move(steps: Sequence[Step], size: int) -> Array | None:
    """The values of a layer before the transpose or reversal that Vela fused into it, if it did.

    Vela names such a layer after either tensor.
    """
    task, values = steps[-1]._task, steps[-1]._values
    if task is None or values is None or values.size != size or (task.transpose, task.reverse) == ("HWC", "NONE"):
        return None
    if task.reverse != "NONE":
        values = np.flip(values, "HWC".index(task.reverse))
    flat: Array = values.transpose(np.argsort(TRANSPOSE[task.transpose])).astype(np.int64).ravel()
    return flat


def _assemble(steps: Sequence[Step], wanted: Array) -> Array | None:
    """The layer's tensor as a flat row-major array, put together from the pieces that its commands wrote.

    A cascade keeps only some rows at a time: when a piece lands on bytes that an earlier one of the same layer
    wrote, the buffer has wrapped, and the piece belongs one buffer height further down.
    """
    maps: list[tuple[FeatureMap, Array]] = []
    task, alone = steps[0]._task, steps[0]._values
    chained = len(steps) == 1 and task is not None and task.ofm is not None and task.ofm.where == "chain"
    if chained and alone is not None and alone.size == wanted.size:
        whole: Array = alone.astype(np.int64).ravel()
        return whole
    previous: Task | None = None
    for s in steps:
        if previous is not None and s._task is not None and (s._task.ifm, s._task.ofm) == (previous.ifm, previous.ofm):
            continue  # Vela repeats the operation it has fused two others into
        previous = s._task
        if s._task is None or s._task.ofm is None or s._task.ofm.where != "memory" or s._values is None:
            return None
        maps.append((s._task.ofm.fm, s._values))
    fm = maps[0][0]
    e = fm.bits // 8
    if any((m.brick, m.bits, m.region) != (fm.brick, fm.bits, fm.region) for m, _ in maps) or not wanted.size:
        return None
    tiles = [(m, v[y : y + h, x : x + w], base) for m, v in maps for y, x, h, w, base in m.parts()]
    start = min(base for _, _, base in tiles)
    end = max(hi for m, _ in maps for _, hi in m.spans())
    height = -(-(end - start) // abs(fm.strides[0])) * abs(fm.strides[0])
    limit = max(end - start, 2 * wanted.size * e * 16)
    image, seen = np.zeros(limit, np.uint8), np.zeros(limit, np.bool_)
    for m, values, base in tiles:
        h, w, c = values.shape
        at = base - start
        offset = (np.arange(h) * m.strides[0])[:, None, None]
        if m.brick:
            ch = np.arange(c)
            offset = offset + (np.arange(w) * 16 * e)[None, :, None] + (ch // 16 * m.strides[2] + ch % 16 * e)
        else:
            offset = offset + (np.arange(w) * m.strides[1])[None, :, None] + np.arange(c) * e
        offset = offset.ravel() + at
        while offset.size and int(offset.max()) + e <= limit and seen[offset].any():
            offset = offset + height
        if int(offset.min()) < 0 or int(offset.max()) + e > limit:
            return None
        for k in range(e):
            image[offset + k] = (np.ascontiguousarray(values).view(np.uint8).reshape(-1, e))[:, k]
            seen[offset + k] = True
    data = image.view(fm.dtype)
    valid = seen.reshape(-1, e)[:, 0]
    if fm.brick:
        row, brick = fm.strides[0], fm.strides[2]
        width, bricks = brick // (16 * e), row // brick
        rows = int(np.flatnonzero(valid)[-1]) * e // row + 1
        if rows * width == 0 or wanted.size % (rows * width):
            return None
        channels = wanted.size // (rows * width)
        if not 16 * (bricks - 1) < channels <= 16 * bricks:
            return None
        shape = (rows, bricks, width, 16)
        n = rows * row // e

        def flat(a: Array) -> Array:
            part: Array = a[:n].reshape(shape).transpose(0, 2, 1, 3).reshape(rows, width, -1)[:, :, :channels].ravel()
            return part

        data, valid = flat(data), flat(valid)
    data, valid = data[: wanted.size], valid[: wanted.size]
    return data.astype(np.int64) if data.size == wanted.size and valid.all() else None
