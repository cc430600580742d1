"""Files with one thing changed that the compiler would refuse to write."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from arm_lower.pte import schema
from arm_lower.pte.read import HEADER_MAGIC, File

Path = tuple[str | int, ...]


def edited(pte: bytes, *changes: tuple[Path, Any]) -> bytes:
    """``pte`` with cells of its tables set: (("execution_plan", 0, "values", 2, "val", "sizes"), (1, 2)).

    None removes a cell. The segments stay as they are.
    """
    file = File(pte)
    root = file.root
    for path, value in changes:
        root = with_cell(root, path, value)
    return _with_flatbuffer(pte, file, schema.encode(root))


def _with_flatbuffer(pte: bytes, file: File, flatbuffer: bytes) -> bytes:
    if not file.has_header:
        return flatbuffer.ljust(64, b"\0")
    size = len(flatbuffer) + 32
    base = size + -size % 128
    header = struct.pack("<4sIQQQ", HEADER_MAGIC, 32, size, base, file.segment_data_size)
    (root_offset,) = struct.unpack_from("<I", flatbuffer)
    head = struct.pack("<I", root_offset + 32) + flatbuffer[4:8] + header + flatbuffer[8:]
    return head.ljust(base, b"\0") + pte[file.base :]


def with_unknown_fields(pte: bytes, offset: int, count: int = 4) -> bytes:
    """``pte`` with ``count`` fields more in each table than the schema has, all ``offset`` bytes from its start."""
    file = File(pte)
    flatbuffer = bytearray(schema.encode(file.root))
    for start, name in sorted(set(_tables(schema.decode(bytes(flatbuffer), len(flatbuffer))))):
        vtable = start - struct.unpack_from("<i", flatbuffer, start)[0]
        size, table_size = struct.unpack_from("<HH", flatbuffer, vtable)
        slots = max((f.slot + 1 + f.kind.startswith("|") for f in schema.TABLES[name]), default=0)
        known = flatbuffer[vtable + 4 : vtable + size].ljust(2 * slots, b"\0")
        struct.pack_into("<i", flatbuffer, start, start - len(flatbuffer))
        flatbuffer += struct.pack("<HH", 4 + len(known) + 2 * count, table_size) + known
        flatbuffer += struct.pack("<H", offset) * count
    return _with_flatbuffer(pte, file, bytes(flatbuffer))


def _tables(cell: schema.Cell) -> Iterator[tuple[int, str]]:
    """Where tables are, and their names."""
    if isinstance(cell, schema.Row):
        yield cell.offset, cell.table
        cell = tuple(cell.cells.values())
    if isinstance(cell, tuple):
        for item in cell:
            yield from _tables(item)


def with_cell(cell: Any, path: Path, value: Any) -> Any:
    """A row or vector with one cell set."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        return (*cell[:key], with_cell(cell[key], rest, value), *cell[key + 1 :])
    return replace(cell, cells={**cell.cells, key: with_cell(cell.cells.get(key), rest, value)})


def patched(pte: bytes, offset: int, data: bytes) -> bytes:
    """``pte`` with other bytes at an offset."""
    return pte[:offset] + data + pte[offset + len(data) :]
