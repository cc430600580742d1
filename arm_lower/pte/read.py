"""Reads a `.pte` file, ours or ExecuTorch's, into `arm_lower.pte.model`.

Every offset, length and index is checked before it is followed, and the work is bounded by the size of the
file, so a corrupt or hostile file ends in a `PteError` and nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from arm_lower.errors import PteError
from arm_lower.pte import model, schema
from arm_lower.pte.indices import index_problems
from arm_lower.pte.schema import Row

HEADER_MAGIC = b"eh00"
HEADER_SIZE = 32
"""Magic, length, program size, segment base offset, segment data size."""
_HEADER = struct.Struct("<4sIQQQ")
_HEADER_AT = 8
_SHORTEST_HEADER = 24


@dataclass(frozen=True)
class Segment:
    """One segment: its offset in the file, its size in bytes, and what it holds, for readers."""

    offset: int
    size: int
    use: str


@dataclass(frozen=True)
class FileLayout:
    """Where the parts of a file are.

    Attributes:
        file_size: Bytes of the whole file.
        program_size: Bytes of the FlatBuffer, extended header included.
        has_header: Whether there is an extended header.
        segment_base: Offset of the first segment, 0 without segments.
        segment_data_size: Bytes from there to the end of the last segment; 0 if an old file does not say.
        segments: In the order of the file's table.
    """

    file_size: int
    program_size: int
    has_header: bool
    segment_base: int
    segment_data_size: int
    segments: tuple[Segment, ...]


def read(data: bytes) -> model.Program:
    """The program in a `.pte`.

    Fields that the runtime ignores (stack traces, device types, chain inputs, the reserved arena size 0) are dropped.
    Constants and initial states that no tensor uses have no known length and come back empty.

    Raises:
        PteError: The file is corrupt, truncated, foreign, or uses what the runtime does not support; the message
            says at which offset, and what was expected there.
    """
    return File(bytes(data)).program()


def read_layout(data: bytes) -> FileLayout:
    """Where the parts of a `.pte` are.

    Raises:
        PteError: As `read`, for the header and the tables.
    """
    return File(bytes(data)).layout()


class File:
    """An opened file: identifier, header and tables are checked, indices between them not yet.

    Attributes:
        root: The ``Program`` table.
        segments: Offset in the file and size of each segment.

    Raises:
        PteError: As `read`.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.check_identifier()
        self.has_header, self.program_size, self.base, self.segment_data_size = self.header()
        self.root = schema.decode(data, self.program_size)
        self.segments = self.segment_table()
        self.slices: dict[tuple[int, int], bytes] = {}
        self.budget = 2 * len(data)

    def check_identifier(self) -> None:
        size = len(self.data)
        if size < _HEADER_AT:
            raise PteError(f"offset 0: expected a .pte file, found {size} bytes", "the file is empty or cut short")
        found = self.data[4:8]
        if found != schema.FILE_ID:
            raise PteError(
                f"offset 4: expected the file identifier {schema.FILE_ID.decode()!r}, found {found!r}",
                "this is not an ExecuTorch program",
            )

    def header(self) -> tuple[bool, int, int, int]:
        """Whether there is an extended header, then program size, segment base and segment data size."""
        size = len(self.data)
        if self.data[_HEADER_AT : _HEADER_AT + 4] != HEADER_MAGIC:
            return False, size, 0, 0
        if size < _HEADER_AT + HEADER_SIZE:
            raise PteError(f"offset 8: expected an extended header of {HEADER_SIZE} bytes, the file ends at {size}")
        _, length, program_size, base, data_size = _HEADER.unpack_from(self.data, _HEADER_AT)
        if length < _SHORTEST_HEADER:
            raise PteError(f"offset 12: expected a header length of at least {_SHORTEST_HEADER}, found {length}")
        if length < HEADER_SIZE:
            data_size = 0  # Older files end their header before this field.
        least = _HEADER_AT + length
        if not least <= program_size <= size:
            raise PteError(
                f"offset 16: expected a program size of {least} to {size} (the file), found {program_size}",
                "the file is cut short",
            )
        if base and not program_size <= base <= size:
            raise PteError(
                f"offset 24: expected the segments to begin between {program_size} and {size} (the file), found {base}",
                "the file is cut short",
            )
        if base + data_size > size:
            raise PteError(
                f"offset 32: expected {data_size} bytes of segments from {base} on, the file ends at {size}",
                "the file is cut short",
            )
        return True, program_size, base, data_size

    def segment_table(self) -> list[tuple[int, int]]:
        """Offset in the file and size of each segment."""
        end = self.base + self.segment_data_size if self.segment_data_size else len(self.data)
        table: list[tuple[int, int]] = []
        for i, row in enumerate(self.root.rows("segments")):
            offset, size = row.number("offset"), row.number("size")
            if size and not self.base:
                row.fail(f"segment {i} has {size} bytes, but the file has no extended header that says where they are")
            if self.base + offset + size > end and size:
                row.fail(
                    f"segment {i} is {offset}..{offset + size} after {self.base}, past the end of the data at {end}"
                )
            table.append((self.base + offset, size))
        return table

    def layout(self) -> FileLayout:
        """Where the parts are."""
        uses: dict[int, list[str]] = {}
        constants = self.root.row("constant_segment")
        if constants and constants.numbers("offsets"):
            uses.setdefault(constants.number("segment_index"), []).append("constants")
        for row in self.root.rows("mutable_data_segments"):
            uses.setdefault(row.number("segment_index"), []).append("initial states")
        for plan in self.root.rows("execution_plan"):
            for i, delegate in enumerate(plan.rows("delegates")):
                reference = delegate.row("processed")
                if reference and reference.number("location") == 1:
                    use = f"delegate {i} of {plan.text('name')}"
                    uses.setdefault(reference.number("index"), []).append(use)
        for row in self.root.rows("named_data"):
            uses.setdefault(row.number("segment_index"), []).append(f"named data {row.text('key')!r}")
        segments = tuple(
            Segment(offset, size, ", ".join(uses.get(i, ["unused"]))) for i, (offset, size) in enumerate(self.segments)
        )
        return FileLayout(
            len(self.data), self.program_size, self.has_header, self.base, self.segment_data_size, segments
        )

    def program(self) -> model.Program:
        """The program; raises `PteError` for indices and sizes that lead nowhere."""
        version = self.root.number("version")
        if version:
            self.root.fail(f"schema version {version} is newer than 0, the only one there is")
        plans = self.root.rows("execution_plan")
        if not plans:
            self.root.fail("execution_plan is empty: expected at least one method")
        methods = tuple(self.method(plan) for plan in plans)
        for plan, method in zip(plans, methods):
            for problem in index_problems(method):
                plan.fail(f"method {method.name!r}: {problem}")
        return model.Program(
            methods,
            self.constants(methods),
            self.initial_states(methods),
            tuple(
                (row.text("key"), self.segment(row, row.number("segment_index")))
                for row in self.root.rows("named_data")
            ),
            version,
        )

    def slice(self, row: Row, offset: int, size: int) -> bytes:
        """Bytes of the file, one object per place; ``offset + size`` is inside the file."""
        known = self.slices.get((offset, size))
        if known is None:
            self.budget -= size
            if self.budget < 0:
                row.fail("data overlap: they add up to more than the file")
            known = self.slices[offset, size] = self.data[offset : offset + size]
        return known

    def segment(self, row: Row, index: int) -> bytes:
        if index >= len(self.segments):
            row.fail(f"segment {index} is named, the file has {len(self.segments)}")
        return self.slice(row, *self.segments[index])

    def constants(self, methods: tuple[model.Method, ...]) -> tuple[bytes, ...]:
        sizes: dict[int, int] = {}
        for tensor in _tensors(methods):
            if isinstance(tensor.storage, model.Constant):
                sizes[tensor.storage.index] = max(sizes.get(tensor.storage.index, 0), tensor.nbytes)
        row = self.root.row("constant_segment")
        if row and row.numbers("offsets"):
            return self.subsegments(row, sizes, "constant")
        # Files before constant segments hold each constant in a table of its own.
        buffers = [buffer.blob("storage") for buffer in self.root.rows("constant_buffer")][1:]
        for index, size in sizes.items():
            if index >= len(buffers) or size > len(buffers[index]):
                self.root.fail(f"constant {index} of {size} bytes is used, constant_buffer does not hold it")
        return tuple(buffer[: sizes.get(i, 0)] for i, buffer in enumerate(buffers))

    def initial_states(self, methods: tuple[model.Method, ...]) -> tuple[bytes, ...]:
        sizes: dict[int, int] = {}
        for tensor in _tensors(methods):
            if isinstance(tensor.storage, model.Planned) and tensor.storage.initial is not None:
                sizes[tensor.storage.initial] = max(sizes.get(tensor.storage.initial, 0), tensor.nbytes)
        rows = self.root.rows("mutable_data_segments")
        if rows:
            return self.subsegments(rows[0], sizes, "initial state")
        if sizes:
            self.root.fail("mutable_data_segments is absent, but a tensor has an initial state")
        return ()

    def subsegments(self, row: Row, sizes: dict[int, int], what: str) -> tuple[bytes, ...]:
        """The bytes at each offset but the first, which is a placeholder."""
        index = row.number("segment_index")
        if index >= len(self.segments):
            row.fail(f"segment {index} is named, the file has {len(self.segments)}")
        start, limit = self.segments[index]
        offsets = row.numbers("offsets")[1:]
        wrong = max(sizes, default=-1)
        if wrong >= len(offsets):
            row.fail(f"{what} {wrong} is used, the file has {len(offsets)}")
        for i, size in sizes.items():
            if offsets[i] + size > limit:
                row.fail(f"{what} {i} is {offsets[i]}..{offsets[i] + size} of a segment of {limit} bytes")
        return tuple(self.slice(row, start + at, sizes[i]) if i in sizes else b"" for i, at in enumerate(offsets))

    def method(self, plan: Row) -> model.Method:
        chains = plan.rows("chains")
        if len(chains) != 1:
            plan.fail(f"expected one chain of instructions, found {len(chains)}")
        meta = plan.row("container_meta_type")
        return model.Method(
            name=plan.text("name"),
            values=tuple(_value(row) for row in plan.rows("values")),
            inputs=plan.numbers("inputs"),
            outputs=plan.numbers("outputs"),
            operators=tuple(model.Operator(row.text("name"), row.text("overload")) for row in plan.rows("operators")),
            instructions=tuple(_instruction(row) for row in chains[0].rows("instructions")),
            delegates=tuple(self.delegate(row) for row in plan.rows("delegates")),
            arena_sizes=plan.numbers("non_const_buffer_sizes")[1:],
            container=(meta.text("encoded_inp_str"), meta.text("encoded_out_str")) if meta else None,
        )

    def delegate(self, row: Row) -> model.DelegateSpec:
        reference = row.row("processed") or row.fail("processed is absent")
        location, index = reference.number("location"), reference.number("index")
        if location not in (0, 1):
            reference.fail(f"location {location} is neither 0 (inline) nor 1 (segment)")
        inline = self.root.rows("backend_delegate_data")
        if location == 0 and index >= len(inline):
            reference.fail(f"inline data {index} is named, the file has {len(inline)}")
        data = self.segment(reference, index) if location else inline[index].blob("data")
        specs = tuple((spec.text("key"), spec.blob("value")) for spec in row.rows("compile_specs"))
        return model.DelegateSpec(row.text("id"), data, specs, inline=location == 0)


def _tensors(methods: tuple[model.Method, ...]) -> list[model.TensorValue]:
    return [v for m in methods for v in m.values if isinstance(v, model.TensorValue)]


def _value(holder: Row) -> model.Value:
    row = holder.row("val") or holder.fail("val is absent")
    match row.table:
        case "Null":
            return model.NullValue()
        case "Int":
            return model.IntValue(row.number("int_val"))
        case "Bool":
            return model.BoolValue(row.number("bool_val") != 0)
        case "Double":
            return model.DoubleValue(row.real("double_val"))
        case "String":
            return model.StringValue(row.text("string_val"))
        case "IntList":
            return model.IntListValue(row.numbers("items"))
        case "DoubleList":
            return model.DoubleListValue(row.reals("items"))
        case "BoolList":
            return model.BoolListValue(tuple(item != 0 for item in row.numbers("items")))
        case "TensorList":
            return model.TensorListValue(row.numbers("items"))
        case "OptionalTensorList":
            return model.OptionalTensorListValue(row.numbers("items"))
        case _:
            return _tensor(row)


def _tensor(row: Row) -> model.TensorValue:
    try:
        scalar_type = model.ScalarType(row.number("scalar_type"))
    except ValueError:
        row.fail(f"scalar type {row.number('scalar_type')} is unknown")
    try:
        dynamism = model.Dynamism(row.number("shape_dynamism"))
    except ValueError:
        row.fail(f"shape_dynamism {row.number('shape_dynamism')} is none of 0, 1, 2")
    sizes = row.numbers("sizes")
    if min(sizes, default=0) < 0:
        row.fail(f"sizes {list(sizes)} has a negative one")
    for name in ("storage_offset", "layout"):
        if row.number(name):
            row.fail(f"{name} is {row.number(name)}, the runtime supports 0 only")
    extra = row.row("extra_tensor_info")
    return model.TensorValue(
        scalar_type=scalar_type,
        sizes=sizes,
        dim_order=row.numbers("dim_order"),
        storage=_storage(row, extra),
        dynamism=dynamism,
        fqn=extra.text("fully_qualified_name") if extra else "",
        requires_grad=row.number("requires_grad") != 0,
    )


def _storage(row: Row, extra: Row | None) -> model.Storage:
    """The storage rule: a data index alone is a constant, an allocation is planned, both are a mutable buffer."""
    index = row.number("data_buffer_idx")
    external = extra is not None and extra.number("location") == 1
    place = row.row("allocation_info")
    planned = None
    if place:
        offset = place.number("memory_offset_low") | place.number("memory_offset_high") << 32
        initial = index - 1 if index and not external else None
        planned = model.Planned(offset, place.number("memory_id"), initial)
    if external:
        return model.External(planned)
    if planned:
        return planned
    return model.Constant(index - 1) if index else model.AtRuntime()


def _instruction(holder: Row) -> model.Instruction:
    row = holder.row("instr_args") or holder.fail("instr_args is absent")
    match row.table:
        case "KernelCall":
            return model.KernelCall(row.number("op_index"), row.numbers("args"))
        case "DelegateCall":
            return model.DelegateCall(row.number("delegate_index"), row.numbers("args"))
        case "MoveCall":
            return model.MoveCall(row.number("move_from"), row.number("move_to"))
        case "JumpFalseCall":
            return model.JumpFalseCall(row.number("cond_value_index"), row.number("destination_instruction"))
        case _:
            return model.FreeCall(row.number("value_index"))
