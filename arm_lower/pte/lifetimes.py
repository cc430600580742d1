"""Which tensors of a method are needed when, and whether the memory plan keeps them apart.

The runtime places planned tensors where the file says and checks nothing, so a wrong plan gives wrong numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arm_lower.errors import PteError
from arm_lower.pte import ethosu_blob, model

VIEW = "executorch_prim::et_view"
_COPY_INDEX = "executorch_prim::et_copy_index"


@dataclass(frozen=True)
class Effect:
    """Tensor values that an instruction reads and writes, and pairs that share memory after it."""

    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()


def placement(tensor: model.Value) -> model.Planned | None:
    """Where in an arena a value is; None if it is not a planned tensor."""
    if not isinstance(tensor, model.TensorValue):
        return None
    storage = tensor.storage
    return (
        storage.planned
        if isinstance(storage, model.External)
        else storage
        if isinstance(storage, model.Planned)
        else None
    )


def split_outs(method: model.Method, args: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Splits the arguments of a kernel call into those before the outs, and the tensors it writes.

    The last argument repeats the outs: one tensor that is also the argument before it (or, in an operator that works in
    place, the first), or a list of the tensors before it (or of the same tensors as the list before it). A kernel
    whose last argument is a number writes no tensor.

    Returns:
        None if the arguments do not follow this.
    """
    if not args:
        return None
    last = method.values[args[-1]]
    before = tuple(args[:-1])
    if isinstance(last, model.TensorValue):
        if before and before[-1] == args[-1]:
            return before[:-1], (args[-1],)
        return (before, (args[-1],)) if args[-1] in before[:1] else None
    if isinstance(last, model.TensorListValue):
        if before and method.values[before[-1]] == last:
            return before[:-1], last.items
        count = len(last.items)
        return (before[: len(before) - count], last.items) if before[len(before) - count :] == last.items else None
    return before, ()


def effects(method: model.Method) -> list[Effect]:
    """What each instruction reads and writes. Indices must be in range."""
    known = {i for i in method.inputs}
    known |= {i for i, v in enumerate(method.values) if isinstance(v, model.TensorValue) and _has_value(v)}
    found: list[Effect] = []
    for instruction in method.instructions:
        effect = _effect(method, instruction, known)
        known.update(effect.writes)
        known.update(target for _, target in effect.aliases)
        found.append(effect)
    return found


def clashes(method: model.Method) -> list[str]:
    """Every write that destroys a tensor still needed, and every read of memory that nothing wrote; empty if the plan
    is right. Follows jumps. Indices must be in range."""
    table = effects(method)
    groups = _Groups(len(method.values))
    pairs = [pair for effect in table for pair in effect.aliases]
    for a, b in pairs + _silent_views(method, table):
        groups.join(a, b)
    reads = [_mask(groups.root(i) for i in e.reads) for e in table]
    writes = [_mask(groups.root(i) for i in e.writes) for e in table]
    inputs = _mask(groups.root(i) for i in method.inputs)
    ends = _mask(groups.root(i) for i in method.outputs if isinstance(method.values[i], model.TensorValue))
    values = [v for v in enumerate(method.values) if isinstance(v[1], model.TensorValue)]
    given = inputs | _mask(groups.root(i) for i, v in values if isinstance(v, model.TensorValue) and _has_value(v))
    kept = _mask(groups.root(i) for i, v in values if _is_state(v))

    live = _live(method, reads, writes, ends)
    written = _mask(groups.root(i) for e in table for i in e.writes)
    planned = _mask(groups.root(i) for i, v in values if placement(v))
    unset = live[0] & ~given & planned
    found = [f"{describe_value(method, i)} is read, but nothing writes it before" for i in _bits(unset & ~written)]
    # Read before it is written: a buffer that keeps its value from one execution to the next.
    kept |= unset & written
    overlapping = _overlaps(method, groups)
    found += _destroyed(method, _bits(inputs), inputs | live[0] | kept, overlapping, "setting the inputs")
    for i, effect in enumerate(table):
        needed = live[i + 1] | kept | reads[i] | writes[i]
        roots = sorted({groups.root(w) for w in effect.writes})
        found += _destroyed(method, roots, needed, overlapping, f"instruction {i}")
    return list(dict.fromkeys(found))


def describe_value(method: model.Method, index: int) -> str:
    """``value 7 (int8[1, 3] at 64..67 of arena 1)``."""
    value = method.values[index]
    if not isinstance(value, model.TensorValue):
        return f"value {index} ({type(value).__name__.removesuffix('Value')})"
    place = placement(value)
    where = f" at {place.offset}..{place.offset + value.nbytes} of arena {place.memory_id}" if place else ""
    return f"value {index} ({value.scalar_type.label}{list(value.sizes)}{where})"


def _has_value(tensor: model.TensorValue) -> bool:
    """Whether a tensor has its bytes before the first instruction."""
    return isinstance(tensor.storage, model.Constant | model.External) or _is_state(tensor)


def _is_state(value: model.Value) -> bool:
    place = placement(value)
    external = isinstance(value, model.TensorValue) and isinstance(value.storage, model.External)
    return place is not None and (place.initial is not None or external)


def _tensors(method: model.Method, args: Iterable[int]) -> tuple[int, ...]:
    """Tensor values among arguments, members of lists included."""
    found: list[int] = []
    for index in args:
        value = method.values[index]
        if isinstance(value, model.TensorValue):
            found.append(index)
        elif isinstance(value, model.TensorListValue | model.OptionalTensorListValue):
            found.extend(i for i in value.items if i >= 0)
    return tuple(found)


def _effect(method: model.Method, instruction: model.Instruction, known: set[int]) -> Effect:
    match instruction:
        case model.KernelCall(operator, args):
            return _kernel_effect(method, method.operators[operator].name, args)
        case model.DelegateCall(delegate, args):
            count = _delegate_inputs(method.delegates[delegate])
            tensors = _tensors(method, args)
            if count is None:
                # Only the backend knows where its inputs end; what has no value yet must be an output.
                outs = tuple(i for i in tensors if i not in known)
                return Effect(tuple(i for i in tensors if i in known), outs)
            return Effect(tensors[:count], tensors[count:])
        case model.MoveCall(source, target):
            both = isinstance(method.values[source], model.TensorValue)
            return Effect(_tensors(method, (source,)), (), ((source, target),) if both else ())
        case model.JumpFalseCall(condition, _):
            return Effect(_tensors(method, (condition,)))
        case model.FreeCall():
            return Effect()


def _kernel_effect(method: model.Method, name: str, args: tuple[int, ...]) -> Effect:
    tensors = _tensors(method, args)
    if name == VIEW and len(tensors) >= 2:
        return Effect(tensors[:1], (), ((tensors[0], tensors[-1]),))
    if name == _COPY_INDEX and tensors:
        return Effect(tensors, tensors[:1])
    split = split_outs(method, args)
    if split is None:
        return Effect(tensors, _tensors(method, args[-1:]))
    return Effect(_tensors(method, split[0]), split[1])


def _silent_views(method: model.Method, table: list[Effect]) -> list[tuple[int, int]]:
    """Tensors that nothing writes, each with the one whose bytes it finds.

    ExecuTorch leaves the instruction of a static view out: its result is placed exactly where its operand is.
    """
    made = {*method.inputs, *(i for e in table for i in e.writes), *(b for e in table for _, b in e.aliases)}
    pairs: dict[int, int] = {}
    for i, effect in enumerate(table):
        for view in effect.reads:
            if view in made or view in pairs or placement(method.values[view]) is None:
                continue
            base = _last_written(method, table[:i], view)
            if base is not None and _span(method, base) == _span(method, view):
                pairs[view] = base
    return [(base, view) for view, base in pairs.items()]


def _last_written(method: model.Method, table: list[Effect], index: int) -> int | None:
    """The tensor written last, in the order of instructions, in the bytes of tensor ``index``."""
    arena, start, end = _span(method, index)
    for writes in (*(e.writes for e in reversed(table)), method.inputs):
        for other in writes:
            other_arena, other_start, other_end = _span(method, other)
            if other_arena == arena and other_start < end and start < other_end:
                return other
    return None


def _span(method: model.Method, index: int) -> tuple[int, int, int]:
    """Arena, first byte and end of a planned tensor; arena 0 if it is none."""
    value = method.values[index]
    place = placement(value)
    if place is None or not isinstance(value, model.TensorValue):
        return 0, 0, 0
    return place.memory_id, place.offset, place.offset + value.nbytes


def _delegate_inputs(spec: model.DelegateSpec) -> int | None:
    if spec.id != ethosu_blob.BACKEND_ID:
        return None
    try:
        return len(ethosu_blob.unpack(spec.data).inputs)
    except PteError:
        return None


class _Groups:
    """Values that share their memory, by the smallest index among them."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))

    def root(self, index: int) -> int:
        while self.parent[index] != index:
            self.parent[index] = self.parent[self.parent[index]]
            index = self.parent[index]
        return index

    def join(self, a: int, b: int) -> None:
        low, high = sorted((self.root(a), self.root(b)))
        self.parent[high] = low


def _live(method: model.Method, reads: list[int], writes: list[int], ends: int) -> list[int]:
    """Mask of the values needed before each instruction and, last, at the end."""
    count = len(method.instructions)
    live = [0] * count + [ends]
    loops = any(isinstance(x, model.JumpFalseCall) and x.destination <= i for i, x in enumerate(method.instructions))
    changed = True
    while changed:
        changed = False
        for i in range(count - 1, -1, -1):
            instruction = method.instructions[i]
            after = live[i + 1]
            if isinstance(instruction, model.JumpFalseCall):
                after |= live[instruction.destination]
            before = (after & ~writes[i]) | reads[i]
            # Only a jump backwards asks for another round.
            changed |= loops and before != live[i]
            live[i] = before
    return live


def _overlaps(method: model.Method, groups: _Groups) -> dict[int, int]:
    """Group -> mask of the other groups that share bytes of an arena with it."""
    spans: list[tuple[int, int, int, int]] = []
    for i in range(len(method.values)):
        arena, start, end = _span(method, i)
        if start < end:
            spans.append((arena, start, end, groups.root(i)))
    spans.sort()
    found: dict[int, int] = {}
    for i, (arena, _, end, group) in enumerate(spans):
        for other_arena, start, _, other in spans[i + 1 :]:
            if other_arena != arena or start >= end:
                break
            if other != group:
                found[group] = found.get(group, 0) | 1 << other
                found[other] = found.get(other, 0) | 1 << group
    return found


def _destroyed(
    method: model.Method, written: Iterable[int], needed: int, overlapping: dict[int, int], what: str
) -> list[str]:
    return [
        f"{what}: writing {describe_value(method, w)} destroys {describe_value(method, other)}, which is still needed"
        for w in written
        for other in _bits(overlapping.get(w, 0) & needed)
    ]


def _mask(indices: Iterable[int]) -> int:
    mask = 0
    for i in indices:
        mask |= 1 << i
    return mask


def _bits(mask: int) -> list[int]:
    found: list[int] = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
