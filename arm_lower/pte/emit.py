"""Writes an `arm_lower.pte.model.Program` as a `.pte` file.

The file is the FlatBuffer with an extended header after its first 8 bytes, then the segments: constants (always
segment 0, if only of size 0), initial states of mutable buffers, delegates, named data. Identical constants and
identical delegates are stored once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from arm_lower.errors import PteError
from arm_lower.pte import check, model, schema
from arm_lower.pte.lifetimes import placement
from arm_lower.pte.read import HEADER_MAGIC, HEADER_SIZE, File
from arm_lower.pte.schema import Row

SEGMENT_ALIGNMENT = check.SEGMENT_ALIGNMENT
CONSTANT_ALIGNMENT = model.REQUIRED_ALIGNMENT
_SMALLEST_FILE = 64
"""Bytes that the runtime's loader reads before it looks at anything."""


def emit(program: model.Program) -> bytes:
    """The file; the same program gives the same bytes.

    Raises:
        PteError: The program breaks a rule of `arm_lower.pte.check` (all broken rules are listed), or a number does
            not fit its field.
    """
    check.check_program(program)
    segments = _Segments()
    constants = segments.subsegments(program.constants, CONSTANT_ALIGNMENT)
    # The runtime copies initial states, so they need no alignment.
    states = segments.subsegments(program.initial_states, 1) if program.initial_states else None
    inline: dict[bytes, int] = {}
    plans = tuple(_plan(method, segments, inline) for method in program.methods)
    named = tuple(
        Row("NamedData", {"key": key, "segment_index": segments.add(data)}) for key, data in program.named_data
    )
    root = Row(
        "Program",
        {
            "version": program.version,
            "execution_plan": plans,
            # Empty but present: ExecuTorch's own reader fails on a missing one.
            "constant_buffer": (),
            "backend_delegate_data": tuple(Row("BackendDelegateInlineData", {"data": data}) for data in inline),
            "segments": segments.rows(),
            "constant_segment": constants,
            "mutable_data_segments": (states,) if states else None,
            "named_data": named or None,
        },
    )
    data = _assemble(schema.encode(root), segments.parts())
    _self_check(program, data, segments)
    return data


class _Segments:
    """Collects segments; equal blobs share one."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self.known: dict[bytes, int] = {}

    def subsegments(self, parts: Iterable[bytes], alignment: int) -> Row:
        """A segment of several parts, and the row that says where each is; entry 0 is a placeholder."""
        packed = bytearray()
        known: dict[bytes, int] = {}
        offsets = [0]
        for part in parts:
            if part not in known:
                packed.extend(bytes(-len(packed) % alignment))
                known[part] = len(packed)
                packed.extend(part)
            offsets.append(known[part])
        # The runtime takes an empty segment for no constants at all, even if it is asked for a tensor without elements.
        self.blobs.append(bytes(packed) if packed or not known else bytes(alignment))
        return Row("SubsegmentOffsets", {"segment_index": len(self.blobs) - 1, "offsets": tuple(offsets)})

    def add(self, blob: bytes) -> int:
        """Index of the segment that is ``blob``."""
        if blob not in self.known:
            self.known[blob] = len(self.blobs)
            self.blobs.append(blob)
        return self.known[blob]

    def offsets(self) -> list[int]:
        offsets: list[int] = []
        end = 0
        for blob in self.blobs:
            # An empty segment must not move the ones after it, nor lie behind the end of the data.
            offsets.append(_aligned(end, SEGMENT_ALIGNMENT) if blob else 0)
            end = offsets[-1] + len(blob) if blob else end
        return offsets

    def rows(self) -> tuple[Row, ...]:
        return tuple(
            Row("DataSegment", {"offset": offset, "size": len(blob)})
            for offset, blob in zip(self.offsets(), self.blobs, strict=True)
        )

    def parts(self) -> list[bytes]:
        """The segments with the zeros between them."""
        parts: list[bytes] = []
        end = 0
        for offset, blob in zip(self.offsets(), self.blobs, strict=True):
            if blob:
                parts += [bytes(offset - end), blob]
                end = offset + len(blob)
        return parts


def _aligned(offset: int, alignment: int) -> int:
    return offset + -offset % alignment


def _assemble(flatbuffer: bytes, segments: list[bytes]) -> bytes:
    """The file of a FlatBuffer and its segments.

    The header's 32 bytes are a multiple of the largest alignment inside the FlatBuffer (16), and all its offsets but
    the root's are relative, so that only the root's changes.
    """
    if not segments:
        return flatbuffer.ljust(_SMALLEST_FILE, b"\0")
    program_size = len(flatbuffer) + HEADER_SIZE
    base = _aligned(program_size, SEGMENT_ALIGNMENT)
    (root,) = struct.unpack_from("<I", flatbuffer)
    header = struct.pack("<4sIQQQ", HEADER_MAGIC, HEADER_SIZE, program_size, base, sum(map(len, segments)))
    head = struct.pack("<I", root + HEADER_SIZE) + flatbuffer[4:8] + header
    return b"".join((head, flatbuffer[8:], bytes(base - program_size), *segments))


def _self_check(program: model.Program, data: bytes, segments: _Segments) -> None:
    """Reads the file back. A difference is a fault of this module, never of the user."""
    file = File(data)
    for offset, blob in zip(segments.offsets(), segments.blobs, strict=True):
        if data.startswith(blob, file.base + offset):
            file.slices[file.base + offset, len(blob)] = blob  # so that nothing large is copied
    if file.program() != program:
        raise PteError("the file that was written does not read back as the program it was written from")
    check.check_layout(file)


def _plan(method: model.Method, segments: _Segments, inline: dict[bytes, int]) -> Row:
    container = None
    if method.container:
        inputs, outputs = method.container
        container = Row("ContainerMetadata", {"encoded_inp_str": inputs, "encoded_out_str": outputs})
    chain = {"inputs": (), "outputs": (), "instructions": tuple(_instruction(i) for i in method.instructions)}
    return Row(
        "ExecutionPlan",
        {
            "name": method.name,
            "container_meta_type": container,
            "values": tuple(Row("EValue", {"val": _value(value)}) for value in method.values),
            "inputs": method.inputs,
            "outputs": method.outputs,
            "chains": (Row("Chain", chain),),
            "operators": tuple(Row("Operator", {"name": o.name, "overload": o.overload}) for o in method.operators),
            "delegates": tuple(_delegate(spec, segments, inline) for spec in method.delegates),
            # Entry 0 is reserved; arena 1 uses entry 1.
            "non_const_buffer_sizes": (0, *method.arena_sizes),
        },
    )


def _delegate(spec: model.DelegateSpec, segments: _Segments, inline: dict[bytes, int]) -> Row:
    index = inline.setdefault(spec.data, len(inline)) if spec.inline else segments.add(spec.data)
    return Row(
        "BackendDelegate",
        {
            "id": spec.id,
            "processed": Row("BackendDelegateDataReference", {"location": int(not spec.inline), "index": index}),
            "compile_specs": tuple(Row("CompileSpec", {"key": k, "value": v}) for k, v in spec.compile_specs),
        },
    )


def _value(value: model.Value) -> Row:
    match value:
        case model.NullValue():
            # A table, not a bare type code, which Model Explorer cannot read.
            return Row("Null")
        case model.IntValue(number):
            return Row("Int", {"int_val": number})
        case model.BoolValue(flag):
            return Row("Bool", {"bool_val": flag})
        case model.DoubleValue(real):
            return Row("Double", {"double_val": real})
        case model.StringValue(text):
            return Row("String", {"string_val": text})
        case model.IntListValue(items):
            return Row("IntList", {"items": items})
        case model.DoubleListValue(reals):
            return Row("DoubleList", {"items": reals})
        case model.BoolListValue(flags):
            return Row("BoolList", {"items": flags})
        case model.TensorListValue(items):
            return Row("TensorList", {"items": items})
        case model.OptionalTensorListValue(items):
            return Row("OptionalTensorList", {"items": items})
        case model.TensorValue():
            return _tensor(value)


def _tensor(tensor: model.TensorValue) -> Row:
    index = 0
    if isinstance(tensor.storage, model.Constant):
        index = tensor.storage.index + 1
    elif isinstance(tensor.storage, model.Planned) and tensor.storage.initial is not None:
        index = tensor.storage.initial + 1
    place = placement(tensor)
    place_row = None
    if place:
        low, high = place.offset & 0xFFFFFFFF, place.offset >> 32
        cells = {"memory_id": place.memory_id, "memory_offset_low": low, "memory_offset_high": high}
        place_row = Row("AllocationDetails", cells)
    extra = None
    if tensor.fqn:
        location = int(isinstance(tensor.storage, model.External))
        extra = Row("ExtraTensorInfo", {"fully_qualified_name": tensor.fqn, "location": location})
    return Row(
        "Tensor",
        {
            "scalar_type": int(tensor.scalar_type),
            "sizes": tensor.sizes,
            "dim_order": bytes(tensor.dim_order),
            "requires_grad": tensor.requires_grad,
            "data_buffer_idx": index,
            "allocation_info": place_row,
            "shape_dynamism": int(tensor.dynamism),
            "extra_tensor_info": extra,
        },
    )


def _instruction(instruction: model.Instruction) -> Row:
    match instruction:
        case model.KernelCall(operator, args):
            row = Row("KernelCall", {"op_index": operator, "args": args})
        case model.DelegateCall(delegate, args):
            row = Row("DelegateCall", {"delegate_index": delegate, "args": args})
        case model.MoveCall(source, target):
            row = Row("MoveCall", {"move_from": source, "move_to": target})
        case model.JumpFalseCall(condition, destination):
            row = Row("JumpFalseCall", {"cond_value_index": condition, "destination_instruction": destination})
        case model.FreeCall(value):
            row = Row("FreeCall", {"value_index": value})
    return Row("Instruction", {"instr_args": row})
