"""Static memory plan: where in the arena each tensor lives.

The problem is to place intervals (life in instructions) of given height (bytes) without overlap, and is
NP-hard; greedy placement in a good order is close to the lower bound on the graphs of neural networks
(Pisarchyk and Lee 2020, Efficient Memory Management for Deep Neural Net Inference). `plan` tries several
orders, and improves the best one by moving what made the arena grow to the front of the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arm_lower.errors import ArmLowerError

ALIGNMENT = 16
"""Bytes; what ExecuTorch's planned tensors and the Ethos-U driver need."""


@dataclass(frozen=True)
class Buffer:
    """One block of memory.

    Attributes:
        name: Unique in its plan.
        nbytes: Size, zero allowed.
        first: Instruction that writes it; -1 for what exists before the first one.
        last: Last instruction that reads it; the number of instructions for what the caller reads.
    """

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Offsets in one arena.

    Attributes:
        offsets: Buffer name -> byte offset, a multiple of the alignment.
        size: Bytes of the arena.
        lower_bound: Most bytes alive at one instruction, each buffer rounded up to the alignment: no plan
            can be smaller.
        order: Name of the placement order that gave this plan.
    """

    offsets: Mapping[str, int]
    size: int
    lower_bound: int
    order: str

    @property
    def gap(self) -> float:
        """How far ``size`` is above ``lower_bound``, as a fraction of it; 0 for an optimal plan."""
        return self.size / self.lower_bound - 1.0 if self.lower_bound else 0.0

    def __str__(self) -> str:
        return f"{self.size} bytes, lower bound {self.lower_bound} ({self.gap:+.1%}), order {self.order}"


# Sort keys; smaller is placed earlier. Ties go to the earlier, then the first named, so plans are repeatable.
_ORDERS: dict[str, Callable[[Buffer], tuple[float, ...]]] = {
    "size": lambda b: (-b.nbytes, b.first),
    "size, long lives first": lambda b: (-b.nbytes, b.first - b.last, b.first),
    "bytes x life": lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),
    "life, then size": lambda b: (b.first - b.last, -b.nbytes),
    "first use": lambda b: (b.first, -b.nbytes),
    "last use, from the end": lambda b: (-b.last, -b.nbytes),
}
_PLACEMENTS = 20_000


def plan(buffers: Sequence[Buffer], alignment: int = ALIGNMENT) -> Plan:
    """The smallest arena that a few greedy orders find, checked by `check`.

    Args:
        buffers: What to place; names must be unique.
        alignment: Of every offset, in bytes.

    Raises:
        ArmLowerError: Two buffers have one name, a size is negative, or a life ends before it begins.
    """
    _validate(buffers)
    bound = lower_bound(buffers, alignment)
    best, best_order = Plan({}, -1, bound, ""), list(buffers)
    for name, key in _ORDERS.items():
        order = sorted(buffers, key=lambda b: (*key(b), b.name))
        offsets, size = _place(order, alignment)
        if best.size < 0 or size < best.size:
            best, best_order = Plan(offsets, size, bound, name), order
        if size == bound:
            break
    best = _improve(best_order, best, alignment)
    check(buffers, best, alignment)
    return best


def _improve(order: list[Buffer], start: Plan, alignment: int) -> Plan:
    """Let the buffers that reach the top of the arena choose first, again and again while that may help.

    The work is bounded by a number of placements, not by time, so that plans are repeatable.
    """
    best, offsets, size = start, start.offsets, start.size
    for _ in range(_PLACEMENTS // max(len(order), 1)):
        if best.size == best.lower_bound:
            break
        top = [b for b in order if b.nbytes and offsets[b.name] + b.nbytes > size - alignment]
        early = {b.name for b in top}
        order = top + [b for b in order if b.name not in early]
        offsets, size = _place(order, alignment)
        if size < best.size:
            best = Plan(offsets, size, best.lower_bound, f"{start.order}, improved")
    return best


def lower_bound(buffers: Sequence[Buffer], alignment: int = ALIGNMENT) -> int:
    """Most bytes alive at once; see `Plan.lower_bound`."""
    events: dict[int, int] = {}
    for b in buffers:
        size = _round_up(b.nbytes, alignment)
        events[b.first] = events.get(b.first, 0) + size
        events[b.last + 1] = events.get(b.last + 1, 0) - size
    alive = most = 0
    for _, change in sorted(events.items()):
        alive += change
        most = max(most, alive)
    return most


def check(buffers: Sequence[Buffer], found: Plan, alignment: int = ALIGNMENT) -> None:
    """Verify a plan without using how it was made: walks through time and looks at the live buffers.

    Raises:
        ArmLowerError: A buffer without an offset, misaligned, outside the arena, or in the memory of
            another one that is alive.
    """
    for b in buffers:
        offset = found.offsets.get(b.name)
        if offset is None:
            raise ArmLowerError(f"memory plan: {b.name} has no offset")
        if offset < 0 or offset % alignment or offset + b.nbytes > found.size:
            raise ArmLowerError(f"memory plan: {b.name} at {offset}, {b.nbytes} bytes, does not fit an arena of "
                                f"{found.size} bytes aligned to {alignment}")  # fmt: skip
    alive: list[Buffer] = []
    for b in sorted((b for b in buffers if b.nbytes), key=lambda b: b.first):
        alive = [other for other in alive if other.last >= b.first]
        start, end = found.offsets[b.name], found.offsets[b.name] + b.nbytes
        for other in alive:
            begin = found.offsets[other.name]
            if start < begin + other.nbytes and begin < end:
                raise ArmLowerError(f"memory plan: {b.name} at {start}..{end} overlaps {other.name} at "
                                    f"{begin}..{begin + other.nbytes} while both are alive")  # fmt: skip
        alive.append(b)


def _validate(buffers: Sequence[Buffer]) -> None:
    seen: set[str] = set()
    for b in buffers:
        if b.name in seen:
            raise ArmLowerError(f"memory plan: two buffers are called {b.name}")
        seen.add(b.name)
        if b.nbytes < 0 or b.last < b.first:
            raise ArmLowerError(f"memory plan: {b.name} has {b.nbytes} bytes and lives from {b.first} to {b.last}")


def _place(ordered: Sequence[Buffer], alignment: int) -> tuple[dict[str, int], int]:
    """Give each buffer the tightest gap between those placed before it that live at the same time."""
    count = len(ordered)
    first, last = (np.empty(count, np.int64) for _ in range(2))
    start, end = (np.empty(count, np.int64) for _ in range(2))
    offsets: dict[str, int] = {}
    size = 0
    for i, b in enumerate(ordered):
        clash = (first[:i] <= b.last) & (last[:i] >= b.first)
        wanted = _round_up(b.nbytes, alignment)
        offset = _tightest_gap(start[:i][clash], end[:i][clash], wanted) if wanted else 0
        first[i], last[i] = b.first, b.last
        start[i], end[i] = offset, offset + wanted
        offsets[b.name] = offset
        size = max(size, offset + wanted)
    return offsets, size


def _tightest_gap(start: np.ndarray, end: np.ndarray, wanted: int) -> int:  # type: ignore[type-arg]
    """Offset of the smallest hole that fits ``wanted`` bytes, else the end of what is taken."""
    if not start.size:
        return 0
    by_start = np.argsort(start, kind="stable")
    begin, reach = start[by_start], np.maximum.accumulate(end[by_start])
    holes = np.concatenate(([0], reach[:-1]))
    room = begin - holes
    fits = np.flatnonzero(room >= wanted)
    if not fits.size:
        return int(reach[-1])
    return int(holes[fits[np.argmin(room[fits])]])


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
