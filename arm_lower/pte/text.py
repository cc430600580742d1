"""A `.pte` as text for people: interface, memory, instructions with their arguments, delegates, needed kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from arm_lower.errors import PteError
from arm_lower.pte import ethosu_blob, lifetimes, model
from arm_lower.pte.read import FileLayout, read, read_layout

_LONGEST_SPEC = 200
"""Characters of a compile spec that are shown."""


def describe_file(data: bytes) -> str:
    """`describe` of a `.pte` file, with its segments.

    Raises:
        PteError: The file cannot be read.
    """
    return describe(read(data), read_layout(data))


def describe(program: model.Program, layout: FileLayout | None = None) -> str:
    """Complete listing of a program; ``layout`` adds where the parts of its file are.

    Tensors are written ``%index``; literal arguments stand where they are used. A kernel call reads
    ``%out = name.overload(arguments)``. Names from the file are escaped, so the text is safe to print.
    """
    lines = [f"ExecuTorch program, schema version {program.version}"]
    if layout:
        lines += _layout_lines(layout)
    lines += _data_lines(program)
    kernels = program.kernels()
    lines.append(f"kernels needed: {len(kernels)}")
    lines += [f"  {_safe(name)}" for name in kernels]
    for method in program.methods:
        lines.append("")
        lines += _method_lines(method)
    return "\n".join(lines) + "\n"


def _layout_lines(layout: FileLayout) -> Iterator[str]:
    yield f"file: {layout.file_size} bytes, of which program {layout.program_size}"
    if not layout.has_header:
        yield "  no extended header"
    for i, segment in enumerate(layout.segments):
        yield f"  segment {i} at {segment.offset}: {segment.size} bytes, {_safe(segment.use)}"


def _data_lines(program: model.Program) -> Iterator[str]:
    yield f"constants: {_blobs(program.constants)}"
    if program.initial_states:
        yield f"initial states of mutable buffers: {_blobs(program.initial_states)}"
    for key, data in program.named_data:
        yield f"named data {_quoted(key)}: {len(data)} bytes"


def _blobs(blobs: Sequence[bytes]) -> str:
    return f"{len(blobs)}, {sum(len(b) for b in set(blobs))} bytes" if blobs else "none"


def _method_lines(method: model.Method) -> Iterator[str]:
    yield f"method {_safe(method.name)}"
    for what, indices in (("inputs", method.inputs), ("outputs", method.outputs)):
        yield f"  {what}: {len(indices)}"
        for i, index in enumerate(indices):
            yield f"    {i}: {_declared(method, index)}"
    effects = lifetimes.effects(method)
    yield from _memory_lines(method, effects)
    yield from _constant_lines(method)
    yield f"  instructions: {len(method.instructions)}"
    written = _written_scalars(method)
    for i, (instruction, effect) in enumerate(zip(method.instructions, effects)):
        yield f"    {i}: {_instruction(method, instruction, effect, written)}"
    for i, spec in enumerate(method.delegates):
        yield from _delegate_lines(i, spec)


def _declared(method: model.Method, index: int) -> str:
    """A value with its type: ``%3 float32[1, 8] given at run time``."""
    value = method.values[index]
    if not isinstance(value, model.TensorValue):
        return f"%{index} {type(value).__name__.removesuffix('Value')} {_argument(method, index, set())}"
    return f"%{index} {_tensor_type(value)}{_place(value)}{_name(value)}"


def _tensor_type(tensor: model.TensorValue) -> str:
    """``int8[1, 3, 8, 8]``, the dim order if it is not contiguous, and how the sizes may change."""
    order = list(tensor.dim_order)
    plain = order == list(range(len(tensor.sizes)))
    bound = {model.Dynamism.STATIC: "", model.Dynamism.BOUND: " at most", model.Dynamism.UNBOUND: " unbounded"}
    shape = f"{tensor.scalar_type.label}{list(tensor.sizes)}{bound[tensor.dynamism]}"
    return shape if plain else f"{shape} dim order {order}"


def _place(tensor: model.TensorValue) -> str:
    place = lifetimes.placement(tensor)
    match tensor.storage:
        case model.Constant(index):
            return f" constant {index}"
        case model.AtRuntime():
            return " given at run time"
        case _:
            pass
    external = " from a .ptd file" if isinstance(tensor.storage, model.External) else ""
    if not place:
        return external
    start = f", begins as initial state {place.initial}" if place.initial is not None else ""
    return f"{external} in arena {place.memory_id} at {place.offset}..{place.offset + tensor.nbytes}{start}"


def _name(tensor: model.TensorValue) -> str:
    return f" {_quoted(tensor.fqn)}" if tensor.fqn else ""


def _memory_lines(method: model.Method, effects: Sequence[lifetimes.Effect]) -> Iterator[str]:
    """Arenas with their tensors by offset, and the instructions that use each."""
    spans: dict[int, list[int]] = {}
    for i, effect in enumerate(effects):
        for index in (*effect.reads, *effect.writes, *(x for pair in effect.aliases for x in pair)):
            spans.setdefault(index, []).append(i)
    yield f"  memory: {len(method.arena_sizes)} arenas" if len(method.arena_sizes) != 1 else "  memory: 1 arena"
    for arena, size in enumerate(method.arena_sizes, 1):
        yield f"    arena {arena}: {size} bytes"
        placed = [(p.offset, i) for i, v in enumerate(method.values) if (p := lifetimes.placement(v))]
        for _, index in sorted(entry for entry in placed if _arena(method, entry[1]) == arena):
            used = spans.get(index)
            when = f"instructions {used[0]} to {used[-1]}" if used else "no instruction"
            yield f"      {_declared(method, index)}: {when}"


def _arena(method: model.Method, index: int) -> int:
    place = lifetimes.placement(method.values[index])
    return place.memory_id if place else 0


def _constant_lines(method: model.Method) -> Iterator[str]:
    constants = [i for i, v in enumerate(method.values) if isinstance(v, model.TensorValue) and not _arena(method, i)]
    shown = [i for i in constants if i not in method.inputs and i not in method.outputs]
    if shown:
        yield f"  constants: {len(shown)}"
    for index in shown:
        value = method.values[index]
        size = value.nbytes if isinstance(value, model.TensorValue) else 0
        yield f"    {_declared(method, index)}: {size} bytes"


def _written_scalars(method: model.Method) -> set[int]:
    """Numbers that a kernel writes (the last argument of those that write no tensor): shown as values."""
    calls = [i for i in method.instructions if isinstance(i, model.KernelCall) and i.args]
    found = {call.args[-1] for call in calls if isinstance(method.values[call.args[-1]], _SCALARS)}
    return found | {i.target for i in method.instructions if isinstance(i, model.MoveCall)}


_SCALARS = (model.IntValue, model.BoolValue, model.DoubleValue)


def _instruction(
    method: model.Method, instruction: model.Instruction, effect: lifetimes.Effect, written: set[int]
) -> str:
    match instruction:
        case model.KernelCall(operator, args):
            return _kernel(method, _safe(str(method.operators[operator])), args, written)
        case model.DelegateCall(delegate, args):
            outs = ", ".join(f"%{i}" for i in effect.writes)
            inputs = _arguments(method, args[: len(args) - len(effect.writes)], written)
            return f"{outs} = delegate {delegate} {_safe(method.delegates[delegate].id)}({inputs})"
        case model.MoveCall(source, target):
            return f"%{target} = {_argument(method, source, written)}"
        case model.JumpFalseCall(condition, destination):
            return f"go to {destination} unless {_argument(method, condition, written)}"
        case model.FreeCall(value):
            return f"free %{value}"


def _kernel(method: model.Method, name: str, args: tuple[int, ...], written: set[int]) -> str:
    split = lifetimes.split_outs(method, args)
    if split is None and name.startswith("executorch_prim::") and args:
        split = args[:-1], args[-1:]  # These give their result once.
    if split is None:
        return f"{name}({_arguments(method, args, written)})"
    before, outs = split
    results = outs or args[-1:]
    left = ", ".join(f"%{i}" for i in results)
    return f"{left} = {name}({_arguments(method, before, written)})"


def _arguments(method: model.Method, args: Sequence[int], written: set[int]) -> str:
    return ", ".join(_argument(method, i, written) for i in args)


def _argument(method: model.Method, index: int, written: set[int]) -> str:
    value = method.values[index]
    if index in written:
        return f"%{index}"
    match value:
        case model.NullValue():
            return "None"
        case model.TensorValue():
            return f"%{index}"
        case model.IntListValue(items):
            return f"[{_arguments(method, items, written)}]"
        case model.TensorListValue(items) | model.OptionalTensorListValue(items):
            return "[" + ", ".join("None" if i == -1 else f"%{i}" for i in items) + "]"
        case model.DoubleListValue(reals):
            return str(list(reals))
        case model.BoolListValue(flags):
            return str(list(flags))
        case model.StringValue(text):
            return _quoted(text)
        case model.IntValue(literal) | model.BoolValue(literal) | model.DoubleValue(literal):
            return repr(literal)


def _delegate_lines(index: int, spec: model.DelegateSpec) -> Iterator[str]:
    where = "in the program" if spec.inline else "in a segment"
    yield f"  delegate {index}: {_safe(spec.id)}, {len(spec.data)} bytes {where}"
    for key, value in spec.compile_specs:
        yield f"    {_safe(key)} = {_spec_value(value)}"
    if spec.id == ethosu_blob.BACKEND_ID:
        yield from _blob_lines(spec.data)


def _spec_value(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or (value and not text):
        text = value.hex()
    return text if len(text) <= _LONGEST_SPEC else f"{text[:_LONGEST_SPEC]}... ({len(value)} bytes)"


def _blob_lines(data: bytes) -> Iterator[str]:
    try:
        blob = ethosu_blob.unpack(data)
    except PteError as error:
        yield f"    unreadable: {_safe(error.message)}"
        return
    yield f"    cmd_data: {len(blob.command_stream)} bytes"
    yield f"    weight_data: {len(blob.read_only)} bytes"
    for name, key in blob.external:
        yield f"    {_safe(name)}: outside, as named data {_quoted(key)}"
    yield f"    scratch: {blob.scratch_size} bytes"
    for what, tensors in (("input", blob.inputs), ("output", blob.outputs)):
        for i, tensor in enumerate(tensors):
            end = tensor.offset + tensor.nbytes
            yield (
                f"    {what} {i}: {list(tensor.shape)} of {tensor.element_size}-byte elements,"
                f" scratch {tensor.offset}..{end}"
            )


def _safe(text: str) -> str:
    """``text`` with what cannot be printed escaped: a file must not be able to steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _quoted(text: str) -> str:
    return f'"{_safe(text)}"'
