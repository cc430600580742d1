"""What ExecuTorch 1.5.1 needs of a program beyond its encoding, most of which the runtime does not check itself.

`check_program` walks every index of a program; `check_file` looks at the layout of a file; `check` does both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from arm_lower.errors import PteError
from arm_lower.pte import ethosu_blob, lifetimes, model
from arm_lower.pte.indices import index_problems
from arm_lower.pte.lifetimes import describe_value
from arm_lower.pte.read import File

MAX_RANK = 16
MAX_OPERATOR_NAME = 99
_MAX_INSTRUCTIONS = 10_000_000
SEGMENT_ALIGNMENT = 128
_SHOWN = 20
_OUT_VARIANTS = ("aten", "dim_order_ops", "quantized_decomposed", "cortex_m")
"""Namespaces whose kernels all take their outs and then what they return."""
_DELEGATE_TYPES = {
    model.ScalarType.INT32: 4,
    model.ScalarType.INT8: 1,
    model.ScalarType.UINT8: 1,
    model.ScalarType.INT16: 2,
    model.ScalarType.BOOL: 1,
}
"""Tensor types that the Ethos-U backend takes, with the element size Vela must give for them."""


def check(data: bytes) -> model.Program:
    """Reads a file and checks everything; returns the program.

    Raises:
        PteError: The file cannot be read, or it breaks rules; all of them are listed.
    """
    check_file(data)
    program = File(data).program()
    check_program(program)
    return program


def check_program(program: model.Program) -> None:
    """Checks every index, kind, size and lifetime of a program.

    Raises:
        PteError: It breaks rules; all of them are listed.
    """
    _raise("the program breaks rules of the ExecuTorch runtime", problems(program))


def check_file(data: bytes) -> None:
    """Checks the header and the layout of segments.

    Raises:
        PteError: The file cannot be read, or its layout is not the usual one; all differences are listed.
    """
    check_layout(File(data))


def check_layout(file: File) -> None:
    """`check_file` of an opened file."""
    _raise("the layout of the file breaks rules", list(_layout_problems(file)))


def _raise(title: str, found: Sequence[str]) -> None:
    if found:
        more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise PteError(f"{title}:\n" + "\n".join(f"  {line}" for line in found[:_SHOWN]) + more)


def problems(program: model.Program) -> list[str]:
    """Every rule that a program breaks, in words; empty if it is right."""
    found = list(_program_problems(program))
    for method in program.methods:
        indices = [f"method {method.name!r}: {text}" for text in index_problems(method)]
        found += indices
        # The further walks follow indices.
        if not indices:
            found += [f"method {method.name!r}: {text}" for text in _method_problems(method)]
    return found


def _program_problems(program: model.Program) -> Iterator[str]:
    if program.version:
        yield f"schema version is {program.version}, the runtime accepts 0 only"
    if not program.methods:
        yield "there is no method"
    for name, count in Counter(m.name for m in program.methods).items():
        if count > 1:
            yield f"{count} methods are called {name!r}"
        if not name:
            yield "a method has no name"
    for key, count in Counter(key for key, _ in program.named_data).items():
        if count > 1:
            yield f"{count} named data have the key {key!r}"
    tensors = [v for m in program.methods for v in m.values if isinstance(v, model.TensorValue)]
    constants = [(t.storage.index, t.nbytes) for t in tensors if isinstance(t.storage, model.Constant)]
    yield from _size_problems("constant", program.constants, constants)
    places = [(lifetimes.placement(t), t.nbytes) for t in tensors]
    states = [(place.initial, size) for place, size in places if place and place.initial is not None]
    yield from _size_problems("initial state", program.initial_states, states)


def _size_problems(what: str, blobs: Sequence[bytes], uses: Sequence[tuple[int, int]]) -> Iterator[str]:
    """A blob has the size of the largest tensor that uses it, 0 if none does."""
    sizes: dict[int, int] = {}
    for index, size in uses:
        sizes[index] = max(sizes.get(index, 0), size)
    for index in sorted(sizes):
        if not 0 <= index < len(blobs):
            yield f"{what} {index} is used, there are {len(blobs)}"
    for index, blob in enumerate(blobs):
        if len(blob) != sizes.get(index, 0):
            used = f"the tensor that uses it has {sizes[index]}" if index in sizes else "no tensor uses it"
            yield f"{what} {index} has {len(blob)} bytes, {used}"


def _method_problems(method: model.Method) -> Iterator[str]:
    yield from _value_problems(method)
    yield from _interface_problems(method)
    yield from _operator_problems(method)
    for i, instruction in enumerate(method.instructions):
        yield from (f"instruction {i}: {text}" for text in _instruction_problems(method, instruction))
    yield from _write_problems(method)
    yield from lifetimes.clashes(method)


def _value_problems(method: model.Method) -> Iterator[str]:
    for i, value in enumerate(method.values):
        match value:
            case model.TensorValue():
                yield from (f"{describe_value(method, i)} {text}" for text in _tensor_problems(method, value))
            case model.TensorListValue(items) | model.OptionalTensorListValue(items):
                for item in items:
                    if item > i:
                        # The runtime builds values in order.
                        yield f"value {i} (list) names {describe_value(method, item)}, which must come before the list"
            case _:
                pass


def _tensor_problems(method: model.Method, tensor: model.TensorValue) -> Iterator[str]:
    rank = len(tensor.sizes)
    if rank > MAX_RANK:
        yield f"has rank {rank}, at most {MAX_RANK} is allowed"
    if min(tensor.sizes, default=0) < 0:
        yield "has a negative size"
    if sorted(tensor.dim_order) != list(range(rank)):
        yield f"has the dim order {list(tensor.dim_order)}, expected a permutation of 0..{rank - 1}"
    if tensor.dynamism is model.Dynamism.UNBOUND:
        yield "is dynamic without a bound, which the runtime refuses"
    if isinstance(tensor.storage, model.External) and not tensor.fqn:
        yield "is external, but has no fully qualified name to find it by"
    place = lifetimes.placement(tensor)
    if place is None:
        return
    if not 1 <= place.memory_id <= len(method.arena_sizes):
        yield f"is in arena {place.memory_id}, expected 1 to {len(method.arena_sizes)}"
        return
    end = place.offset + tensor.nbytes
    if place.offset < 0 or end > method.arena_sizes[place.memory_id - 1]:
        yield f"does not fit its arena of {method.arena_sizes[place.memory_id - 1]} bytes"
    if place.offset % model.REQUIRED_ALIGNMENT:
        yield f"is not aligned to {model.REQUIRED_ALIGNMENT} bytes"


def _interface_problems(method: model.Method) -> Iterator[str]:
    for i, size in enumerate(method.arena_sizes):
        if size < 0:
            yield f"arena {i + 1} has the size {size}"
    scalars = (model.NullValue, model.IntValue, model.BoolValue, model.DoubleValue, model.StringValue)
    for i, index in enumerate(method.inputs):
        value = method.values[index]
        if isinstance(value, model.TensorValue):
            if isinstance(value.storage, model.Constant | model.External):
                yield f"input {i} is {describe_value(method, index)}, which is a constant"
        elif not isinstance(value, scalars):
            yield f"input {i} is {describe_value(method, index)}, expected a tensor, number, string or null"
    for index, count in Counter(method.inputs).items():
        if count > 1:
            yield f"{describe_value(method, index)} is {count} inputs at once"


def _operator_problems(method: model.Method) -> Iterator[str]:
    for operator in method.operators:
        if not operator.name:
            yield f"an operator has no name (overload {operator.overload!r})"
        if len(str(operator)) > MAX_OPERATOR_NAME:
            yield f"operator name {str(operator)!r} has more than {MAX_OPERATOR_NAME} characters"
    if len(method.instructions) > _MAX_INSTRUCTIONS:
        yield f"there are {len(method.instructions)} instructions, at most {_MAX_INSTRUCTIONS} are allowed"


def _instruction_problems(method: model.Method, instruction: model.Instruction) -> Iterator[str]:
    match instruction:
        case model.KernelCall(operator, args):
            yield from _kernel_problems(method, method.operators[operator], args)
        case model.DelegateCall(delegate, args):
            yield from _delegate_problems(method, method.delegates[delegate], args)
        case model.JumpFalseCall(condition, _):
            value = method.values[condition]
            is_bool = isinstance(value, model.TensorValue) and value.scalar_type is model.ScalarType.BOOL
            if not is_bool and not isinstance(value, model.BoolValue):
                yield f"jumps on {describe_value(method, condition)}, expected a Bool or a bool tensor"
        case model.FreeCall(value_index):
            yield f"frees {describe_value(method, value_index)}: the runtime crashes when a planned tensor is freed"
        case model.MoveCall():
            pass


def _kernel_problems(method: model.Method, operator: model.Operator, args: Sequence[int]) -> Iterator[str]:
    if operator.name.partition("::")[0] not in _OUT_VARIANTS:
        return
    scalars = (model.TensorValue, model.TensorListValue, model.IntValue, model.BoolValue, model.DoubleValue)
    if not args or not isinstance(method.values[args[-1]], scalars):
        yield f"{operator}: the last argument must be what the kernel returns"
    elif lifetimes.split_outs(method, args) is None:
        yield (
            f"{operator}: the out tensors must be given twice, as arguments and (several in one list) as what the"
            " kernel returns"
        )


def _delegate_problems(method: model.Method, spec: model.DelegateSpec, args: Sequence[int]) -> Iterator[str]:
    for arg in args:
        if isinstance(method.values[arg], model.TensorListValue | model.OptionalTensorListValue):
            yield f"{spec.id}: {describe_value(method, arg)} is an argument, expected single tensors"
            return
    if spec.id != ethosu_blob.BACKEND_ID:
        return
    try:
        blob = ethosu_blob.unpack(spec.data)
    except PteError as error:
        yield f"{spec.id}: {error.message}"
        return
    tensors = [(True, t) for t in blob.inputs] + [(False, t) for t in blob.outputs]
    if len(tensors) != len(args):
        counts = f"{len(blob.inputs)} inputs and {len(blob.outputs)} outputs"
        yield f"{spec.id}: has {len(args)} arguments, the stream has {counts}"
        return
    for i, (arg, (is_input, tensor)) in enumerate(zip(args, tensors, strict=True)):
        text = _delegate_tensor_problem(method.values[arg], tensor, is_input)
        if text:
            yield f"{spec.id}: argument {i}, {describe_value(method, arg)}: {text}"


def _delegate_tensor_problem(value: model.Value, tensor: ethosu_blob.BlobTensor, is_input: bool) -> str:
    if not isinstance(value, model.TensorValue):
        return "expected a tensor"
    if _DELEGATE_TYPES.get(value.scalar_type) != tensor.element_size:
        allowed = ", ".join(f"{t.label} ({size})" for t, size in _DELEGATE_TYPES.items())
        return f"the stream has elements of {tensor.element_size} bytes there; allowed are {allowed}"
    if prod(value.sizes) == prod(tensor.shape):
        return ""
    rows, row = prod(tensor.shape[:-1]), tensor.shape[-1]
    padded = value.sizes and prod(value.sizes[:-1]) == rows and value.sizes[-1] < row
    if padded and not is_input:
        return ""  # The runtime strips what Vela pads at the end of a row.
    return f"the stream has the shape {list(tensor.shape)} there"


def _write_problems(method: model.Method) -> Iterator[str]:
    """Writes to constants, and tensors that have no memory."""
    effects = lifetimes.effects(method)
    for i, effect in enumerate(effects):
        for index in effect.writes:
            value = method.values[index]
            if isinstance(value, model.TensorValue) and isinstance(value.storage, model.Constant):
                yield f"instruction {i} writes {describe_value(method, index)}, which is a constant"
    used = {i for effect in effects for i in (*effect.reads, *effect.writes)}
    given = {*method.inputs, *method.outputs, *(target for effect in effects for _, target in effect.aliases)}
    for index in sorted(used - given):
        value = method.values[index]
        if isinstance(value, model.TensorValue) and isinstance(value.storage, model.AtRuntime):
            yield f"{describe_value(method, index)} has no memory: neither planned nor an input or output"


def _layout_problems(file: File) -> Iterator[str]:
    layout = file.layout()
    root = file.root
    if "constant_buffer" not in root.cells or root.cells["constant_buffer"] is None:
        yield "constant_buffer is absent, ExecuTorch's own reader needs an empty one"
    if root.rows("constant_buffer"):
        yield "constant_buffer is not empty, the runtime wants constants in a segment"
    constants = root.row("constant_segment")
    if constants is None or not constants.numbers("offsets"):
        yield "constant_segment has no offsets, the runtime needs at least the placeholder"
    elif constants.number("segment_index"):
        yield f"constants are in segment {constants.number('segment_index')}, ExecuTorch's own reader expects 0"
    else:
        offsets = constants.numbers("offsets")
        if offsets[0]:
            yield f"the first offset of constant_segment is {offsets[0]}, expected the placeholder 0"
        for offset in offsets:
            if offset % model.REQUIRED_ALIGNMENT:
                yield f"a constant is at {offset} of its segment, not aligned to {model.REQUIRED_ALIGNMENT} bytes"
    for plan in root.rows("execution_plan"):
        if not plan.numbers("non_const_buffer_sizes"):
            yield f"method {plan.text('name')!r}: non_const_buffer_sizes is empty, entry 0 is reserved"
    if layout.segment_base % SEGMENT_ALIGNMENT:
        yield f"segments begin at {layout.segment_base}, expected a multiple of {SEGMENT_ALIGNMENT}"
    yield from _segment_problems(file.data, layout.segment_base, layout.program_size, file.segments)


def _segment_problems(data: bytes, base: int, end: int, segments: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Segments must be aligned, apart, and with zeros between them."""
    filled: Mapping[int, tuple[int, int]] = {i: s for i, s in enumerate(segments) if s[1]}
    for i, (offset, size) in sorted(filled.items(), key=lambda item: item[1]):
        if (offset - base) % SEGMENT_ALIGNMENT:
            yield f"segment {i} is at {offset - base} after the base, expected a multiple of {SEGMENT_ALIGNMENT}"
        if offset < end:
            yield f"segment {i} at {offset} overlaps what ends at {end}"
        elif offset - end >= SEGMENT_ALIGNMENT or any(data[end:offset]):
            yield f"bytes {end} to {offset} of the file belong to nothing"
        end = offset + size
    if filled and end != len(data):
        yield f"{len(data) - end} bytes at the end of the file belong to nothing"
