"""ExecuTorch's program schema as data, and its FlatBuffer encoding both ways.

A table is a tuple of ``name: kind`` fields in slot order; a union takes two slots, as in FlatBuffers. Kinds:
``u8 i8 u32 i32 u64 i64 f64 bool`` (all with default 0), ``string``, the name of a table, ``[kind]`` for a vector,
``|Name`` for a union of `UNIONS`, ``blob`` for a vector of bytes aligned to 16, ``-`` for a slot that is
ignored. ``!`` marks what the runtime refuses to load without.

Encoding uses `flatbuffers.Builder`. Decoding is done here because the Python package has no verifier: its
accessors follow any offset, wrap around at negative ones and have no bound on the work a hostile file causes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import flatbuffers
import numpy as np
import numpy.typing as npt

from arm_lower.errors import PteError

FILE_ID = b"ET12"
BLOB_ALIGNMENT = 16

UNIONS: Mapping[str, tuple[str, ...]] = {
    "KernelTypes": (
        "Null",
        "Int",
        "Bool",
        "Double",
        "Tensor",
        "String",
        "IntList",
        "DoubleList",
        "BoolList",
        "TensorList",
        "OptionalTensorList",
    ),
    "InstructionArguments": ("KernelCall", "DelegateCall", "MoveCall", "JumpFalseCall", "FreeCall"),
}
"""Members of each union; the type code of the first is 1."""

_TEXT: Mapping[str, str] = {
    "Program": "version:u32 execution_plan:[ExecutionPlan]! constant_buffer:[Buffer]"
    " backend_delegate_data:[BackendDelegateInlineData] segments:[DataSegment] constant_segment:SubsegmentOffsets"
    " mutable_data_segments:[SubsegmentOffsets] named_data:[NamedData]",
    "ExecutionPlan": "name:string! container_meta_type:ContainerMetadata values:[EValue]! inputs:[i32]! outputs:[i32]!"
    " chains:[Chain]! operators:[Operator]! delegates:[BackendDelegate]! non_const_buffer_sizes:[i64]!"
    " non_const_buffer_device:-",
    "ContainerMetadata": "encoded_inp_str:string encoded_out_str:string",
    "EValue": "val:|KernelTypes",
    "Null": "",
    "Int": "int_val:i64",
    "Bool": "bool_val:bool",
    "Double": "double_val:f64",
    "String": "string_val:string!",
    "IntList": "items:[i64]!",
    "DoubleList": "items:[f64]!",
    "BoolList": "items:[bool]!",
    "TensorList": "items:[i32]!",
    "OptionalTensorList": "items:[i32]!",
    "Tensor": "scalar_type:i8 storage_offset:i32 sizes:[i32]! dim_order:[u8]! requires_grad:bool data_buffer_idx:u32"
    " allocation_info:AllocationDetails layout:i8 shape_dynamism:i8 extra_tensor_info:ExtraTensorInfo",
    "AllocationDetails": "memory_id:u32 memory_offset_low:u32 memory_offset_high:u32",
    "ExtraTensorInfo": "mutable_data_segments_idx:u64 fully_qualified_name:string location:i8"
    " device_type:- device_index:-",
    "Chain": "inputs:[i32] outputs:[i32] instructions:[Instruction]! stacktrace:-",
    "Instruction": "instr_args:|InstructionArguments",
    "KernelCall": "op_index:i32 args:[i32]!",
    "DelegateCall": "delegate_index:i32 args:[i32]!",
    "MoveCall": "move_from:i32 move_to:i32",
    "JumpFalseCall": "cond_value_index:i32 destination_instruction:i32",
    "FreeCall": "value_index:i32",
    "Operator": "name:string! overload:string",
    "BackendDelegate": "id:string! processed:BackendDelegateDataReference! compile_specs:[CompileSpec]",
    "BackendDelegateDataReference": "location:i8 index:u32",
    "CompileSpec": "key:string! value:[u8]!",
    "BackendDelegateInlineData": "data:blob!",
    "Buffer": "storage:blob",
    "DataSegment": "offset:u64 size:u64",
    "SubsegmentOffsets": "segment_index:u32 offsets:[u64]",
    "NamedData": "key:string! segment_index:u32",
}

_SCALARS: Mapping[str, str] = {
    "u8": "B",
    "i8": "b",
    "u32": "I",
    "i32": "i",
    "u64": "Q",
    "i64": "q",
    "f64": "d",
    "bool": "?",
}

Cell: TypeAlias = "int | float | str | bytes | tuple[Cell, ...] | Row | None"
"""What a field holds: vectors of ``u8`` and blobs are bytes, other vectors tuples, tables and union members rows."""


@dataclass(frozen=True)
class Field:
    """One field: its first slot, its kind, and whether it must be there."""

    name: str
    slot: int
    kind: str
    required: bool


def _fields(text: str) -> tuple[Field, ...]:
    fields: list[Field] = []
    slot = 0
    for item in text.split():
        name, kind = item.split(":")
        fields.append(Field(name, slot, kind.rstrip("!"), kind.endswith("!")))
        slot += 2 if kind.startswith("|") else 1
    return tuple(fields)


TABLES: Mapping[str, tuple[Field, ...]] = {name: _fields(text) for name, text in _TEXT.items()}
"""Fields of every table."""


@dataclass(frozen=True, eq=False)
class Row:
    """One table.

    Attributes:
        table: Its name in `TABLES`.
        cells: Field name -> value; absent fields are absent or None.
        offset: Byte offset in the file it was read from, -1 if it was not read.
    """

    table: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    offset: int = -1

    def fail(self, message: str) -> NoReturn:
        """Raises a `PteError` that starts with the offset and name of this table."""
        raise PteError(f"offset {self.offset}: {self.table}: {message}")

    def number(self, name: str) -> int:
        """An integer field, 0 if absent."""
        cell = self.cells.get(name) or 0
        return int(cell) if isinstance(cell, int | float) else self.fail(f"{name} is not a number")

    def real(self, name: str) -> float:
        """A float field, 0.0 if absent."""
        cell = self.cells.get(name)
        if cell is None:  # Not "or 0.0": that would lose the sign of -0.0.
            return 0.0
        return float(cell) if isinstance(cell, int | float) else self.fail(f"{name} is not a number")

    def text(self, name: str) -> str:
        """A string field, empty if absent."""
        cell = self.cells.get(name) or ""
        return cell if isinstance(cell, str) else self.fail(f"{name} is not a string")

    def blob(self, name: str) -> bytes:
        """A vector of bytes, empty if absent."""
        cell = self.cells.get(name) or b""
        return cell if isinstance(cell, bytes) else self.fail(f"{name} is not a vector of bytes")

    def numbers(self, name: str) -> tuple[int, ...]:
        """A vector of integers, empty if absent."""
        return tuple(int(c) for c in self._vector(name) if isinstance(c, int | float))

    def reals(self, name: str) -> tuple[float, ...]:
        """A vector of floats, empty if absent."""
        return tuple(float(c) for c in self._vector(name) if isinstance(c, int | float))

    def rows(self, name: str) -> tuple[Row, ...]:
        """A vector of tables, empty if absent."""
        return tuple(c for c in self._vector(name) if isinstance(c, Row))

    def row(self, name: str) -> Row | None:
        """A table or union member, None if absent."""
        cell = self.cells.get(name)
        return cell if cell is None or isinstance(cell, Row) else self.fail(f"{name} is not a table")

    def _vector(self, name: str) -> Sequence[Cell]:
        cell = self.cells.get(name) or ()
        return cell if isinstance(cell, tuple | bytes) else self.fail(f"{name} is not a vector")


def encode(root: Row) -> bytes:
    """The FlatBuffer of a ``Program`` row, with the file identifier and without the extended header.

    Equal tables, vectors and strings are stored once, as FlatBuffers allows; absent fields and zeros take no room.

    Raises:
        PteError: A value does not fit its field, or a required field is absent.
    """
    return _Encoder().finish(root)


def decode(data: bytes, size: int) -> Row:
    """The ``Program`` row of a file whose first ``size`` bytes are the program.

    Raises:
        PteError: Anything points outside of the program, is misaligned, absent though required, or of an unknown kind.
            The work is bounded by the size of the program.
    """
    return _Decoder(data, size).root()


class _Encoder:
    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(4096)
        self.known: dict[tuple[object, ...], int] = {}
        self.vtables: dict[tuple[tuple[int, int], ...], dict[object, int]] = {}

    def finish(self, root: Row) -> bytes:
        self.builder.Finish(self.table(root), file_identifier=FILE_ID)
        return bytes(self.builder.Output())

    def table(self, row: Row) -> int:
        """Position of the table, children first because FlatBuffers are built from the end."""
        slots: list[tuple[int, str, int | float]] = []
        for f in TABLES[row.table]:
            cell = row.cells.get(f.name)
            if cell is None:
                if f.required:
                    raise PteError(f"{row.table}.{f.name} must be given")
                continue
            if f.kind in _SCALARS:
                number = self.checked(f"{row.table}.{f.name}", f.kind, cell)
                # By bits: -0.0 equals the default 0.0 but is another number.
                if any(struct.pack("<" + _SCALARS[f.kind], number)):
                    slots.append((f.slot, f.kind, number))
                continue
            if f.kind.startswith("|") and isinstance(cell, Row):
                slots.append((f.slot, "u8", UNIONS[f.kind[1:]].index(cell.table) + 1))
                slots.append((f.slot + 1, "", self.table(cell)))
                continue
            slots.append((f.slot, "", self.child(f"{row.table}.{f.name}", f.kind, cell)))
        key = ("table", row.table, *((s, k, struct.pack("<d", n) if k == "f64" else n) for s, k, n in slots))
        if key not in self.known:
            self.known[key] = self.store(slots, max((s for s, _, _ in slots), default=-1) + 1)
        return self.known[key]

    def store(self, slots: list[tuple[int, str, int | float]], count: int) -> int:
        # Widest first: the builder writes backwards, so this leaves no padding between fields. Aligned before the
        # start, equal layouts get equal vtables, which are shared. Only those: flatbuffers 25.2 would also share the
        # vtables of tables that differ in size, later versions would not, and the bytes would depend on the version.
        slots = sorted(slots, key=lambda s: -_width(s[1]))
        self.builder.vtables = self.vtables.setdefault(tuple((slot, _width(kind)) for slot, kind, _ in slots), {})
        self.builder.Prep(max((_width(kind) for _, kind, _ in slots), default=4), 0)
        self.builder.StartObject(count)
        for slot, kind, number in slots:
            if kind:
                _PREPEND[kind](self.builder, number)
            else:
                self.builder.PrependUOffsetTRelative(number)
            self.builder.Slot(slot)
        return int(self.builder.EndObject())

    def child(self, path: str, kind: str, cell: Cell) -> int:
        if isinstance(cell, Row):
            return self.table(cell)
        if isinstance(cell, str):
            # Given a str, CreateString counts characters instead of bytes.
            raw_text = _utf8(path, cell)
            return self.once(("string", raw_text), lambda: self.builder.CreateString(raw_text))
        if isinstance(cell, bytes):
            return self.once((kind, cell), lambda: self.bytes_vector(cell, BLOB_ALIGNMENT if kind == "blob" else 1))
        if not isinstance(cell, tuple):
            raise PteError(f"{path}: {cell!r} is not a {kind}")
        item = kind[1:-1]
        if item in _SCALARS:
            numbers = [self.checked(path, item, c) for c in cell]
            raw = np.array(numbers, dtype=np.dtype("<" + _SCALARS[item]))
            return self.once((kind, raw.tobytes()), lambda: self.scalar_vector(raw))
        offsets = [self.table(c) for c in cell if isinstance(c, Row)]
        return self.once((kind, *offsets), lambda: self.offsets_vector(offsets))

    def once(self, key: tuple[object, ...], make: Callable[[], int]) -> int:
        if key not in self.known:
            self.known[key] = int(make())
        return self.known[key]

    def bytes_vector(self, data: bytes, alignment: int) -> int:
        self.builder.Prep(alignment, len(data))
        return int(self.builder.CreateByteVector(data))

    def scalar_vector(self, array: npt.NDArray[np.generic]) -> int:
        # The builder aligns to numpy's alignment, which on some hosts is less than the width.
        self.builder.Prep(array.itemsize, array.nbytes)
        return int(self.builder.CreateNumpyVector(array))

    def offsets_vector(self, offsets: list[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())

    @staticmethod
    def checked(path: str, kind: str, cell: Cell) -> int | float:
        if not isinstance(cell, int | float):
            raise PteError(f"{path}: {cell!r} is not a number")
        try:
            struct.pack("<" + _SCALARS[kind], cell)
        except struct.error:
            raise PteError(f"{path}: {cell!r} does not fit {kind}") from None
        return cell


def _width(kind: str) -> int:
    """Bytes of a scalar kind, or of an offset if ``kind`` is empty."""
    return struct.calcsize("<" + _SCALARS[kind]) if kind else 4


def _utf8(path: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise PteError(f"{path}: {text!r} cannot be written in UTF-8: {error.reason}") from None


_PREPEND: Mapping[str, Callable[[flatbuffers.Builder, int | float], None]] = {
    "u8": flatbuffers.Builder.PrependUint8,
    "i8": flatbuffers.Builder.PrependInt8,
    "u32": flatbuffers.Builder.PrependUint32,
    "i32": flatbuffers.Builder.PrependInt32,
    "u64": flatbuffers.Builder.PrependUint64,
    "i64": flatbuffers.Builder.PrependInt64,
    "f64": flatbuffers.Builder.PrependFloat64,
    "bool": flatbuffers.Builder.PrependBool,
}


class _Decoder:
    def __init__(self, data: bytes, size: int) -> None:
        self.data = data
        self.size = size
        # Objects of an honest file do not overlap, and each is decoded once: twice the size is never reached.
        self.budget = 2 * size
        self.known: dict[tuple[str, int], Cell] = {}

    def root(self) -> Row:
        return self.table("Program", int(self.scalar("I", 0, "root table")), "root table")

    def fail(self, offset: int, message: str) -> NoReturn:
        raise PteError(f"offset {offset}: {message}", "the file is corrupt, cut short, or not a .pte")

    def spend(self, nbytes: int, offset: int) -> None:
        self.budget -= nbytes
        if self.budget < 0:
            self.fail(offset, f"objects overlap: they add up to more than the program's {self.size} bytes")

    def scalar(self, fmt: str, offset: int, path: str) -> int | float:
        width = struct.calcsize("<" + fmt)
        if not 0 <= offset <= self.size - width:
            self.fail(offset, f"{path}: expected {width} bytes inside the program, which has {self.size}")
        if offset % width:
            self.fail(offset, f"{path}: expected an offset that is a multiple of {width}")
        value: int | float = struct.unpack_from("<" + fmt, self.data, offset)[0]
        return value

    def table(self, name: str, offset: int, path: str) -> Row:
        known = self.known.get((name, offset))
        if isinstance(known, Row):
            return known
        vtable = offset - int(self.scalar("i", offset, path))
        vtable_size = int(self.scalar("H", vtable, f"{path}: vtable"))
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > self.size:
            self.fail(vtable, f"{path}: expected the size of a vtable, found {vtable_size}")
        self.spend(4, offset)
        cells: dict[str, Cell] = {}
        for f in TABLES[name]:
            slots = [self.slot(vtable, vtable_size, offset, f.slot, f"{name}.{f.name}")]
            if f.kind.startswith("|"):
                slots.append(self.slot(vtable, vtable_size, offset, f.slot + 1, f"{name}.{f.name}"))
            cells[f.name] = self.field(f, slots, f"{name}.{f.name}")
            if f.required and cells[f.name] is None:
                self.fail(offset, f"{name}: expected the field {f.name}, which the runtime needs")
        row = Row(name, cells, offset)
        self.known[name, offset] = row
        return row

    def slot(self, vtable: int, vtable_size: int, table: int, slot: int, path: str) -> int:
        """Offset in the file of a table's slot, 0 if absent."""
        if 4 + 2 * slot + 2 > vtable_size:
            return 0
        relative = int(self.scalar("H", vtable + 4 + 2 * slot, path))
        if 0 < relative < 4:
            self.fail(vtable + 4 + 2 * slot, f"{path}: expected 0 or at least 4, found {relative}")
        return table + relative if relative else 0

    def field(self, f: Field, slots: list[int], path: str) -> Cell:
        offset = slots[0]
        if f.kind == "-" or (offset == 0 and not f.kind.startswith("|")):
            return None
        if f.kind in _SCALARS:
            # A bool is read as a byte: struct would take any value, and so does the runtime.
            value = self.scalar(_SCALARS[f.kind].replace("?", "B"), offset, path)
            self.spend(_width(f.kind), offset)
            return value
        if f.kind.startswith("|"):
            return self.union(UNIONS[f.kind[1:]], slots[0], slots[1], path)
        return self.target(f.kind, offset, path)

    def union(self, members: tuple[str, ...], type_offset: int, offset: int, path: str) -> Cell:
        code = int(self.scalar("B", type_offset, path)) if type_offset else 0
        if not 1 <= code <= len(members):
            self.fail(
                type_offset, f"{path}: type code {code} is none of 1 ({members[0]}) to {len(members)} ({members[-1]})"
            )
        member = members[code - 1]
        if offset:
            return self.target(member, offset, path)
        if TABLES[member]:
            self.fail(type_offset, f"{path}: expected a table {member} after its type code")
        return Row(member, {}, type_offset)

    def target(self, kind: str, offset: int, path: str) -> Cell:
        """What the offset stored at ``offset`` points to."""
        self.spend(4, offset)
        at = offset + int(self.scalar("I", offset, path))
        if kind in TABLES:
            return self.table(kind, at, path)
        known = self.known.get((kind, at))
        if known is None:
            known = self.known[kind, at] = self.string(at, path) if kind == "string" else self.vector(kind, at, path)
        return known

    def extent(self, offset: int, width: int, path: str) -> int:
        """Length of the vector at ``offset`` after checking that it is inside the program."""
        count = int(self.scalar("I", offset, path))
        if count * width > self.size - offset - 4:
            self.fail(
                offset,
                f"{path}: expected at most {(self.size - offset - 4) // width} items up to the end, found {count}",
            )
        if count and (offset + 4) % width:
            self.fail(offset, f"{path}: expected items at a multiple of {width}")
        self.spend(4 + count * width, offset)
        return count

    def string(self, offset: int, path: str) -> str:
        count = self.extent(offset, 1, path)
        raw = self.data[offset + 4 : offset + 4 + count]
        if offset + 4 + count >= self.size or self.data[offset + 4 + count]:
            self.fail(offset, f"{path}: expected a zero after the {count} bytes of the string")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(offset, f"{path}: expected UTF-8, found {raw[:20]!r}")

    def vector(self, kind: str, offset: int, path: str) -> Cell:
        item = "u8" if kind == "blob" else kind[1:-1]
        if item not in _SCALARS:
            starts = range(offset + 4, offset + 4 + 4 * self.extent(offset, 4, path), 4)
            return tuple(self.target(item, start, f"{path}[{i}]") for i, start in enumerate(starts))
        count = self.extent(offset, _width(item), path)
        raw = self.data[offset + 4 : offset + 4 + count * _width(item)]
        return raw if item == "u8" else struct.unpack(f"<{count}{_SCALARS[item]}", raw)
