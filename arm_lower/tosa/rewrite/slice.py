"""Slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from arm_lower.tosa.ir import Graph, Op, Tensor

_WINDOWS = frozenset({"CONV2D", "DEPTHWISE_CONV2D", "AVG_POOL2D", "MAX_POOL2D"})
_POINTWISE = frozenset({"RESCALE", "CLAMP", "TABLE"})

Ranges = Sequence[tuple[int, int]]
"""Start and size along each axis."""


def merge_slices(graph: Graph) -> bool:
    """A SLICE of a SLICE is one of the first one's input."""
    changed = False
    makers = graph.producers()
    for op in graph.ops:
        source = makers.get(op.inputs[0]) if op.kind == "SLICE" else None
        if source is not None and source.kind == "SLICE":
            start = tuple(a + b for a, b in zip(op.integers("start"), source.integers("start"), strict=True))
            op.inputs, op.attrs = [source.inputs[0]], {**op.attrs, "start": start}
            changed = True
    return changed


def fold_crops(graph: Graph) -> bool:
    """A SLICE of rows and columns of a convolution or pool becomes less padding of it: they are never computed.

    Seen through RESCALE, CLAMP, TABLE and a RESHAPE that only adds or drops axes of size 1 or joins two. Not where more
    than the padding would have to go, not for batch or channels, and only if nothing else reads what is cut off.
    """
    makers, readers = graph.producers(), graph.consumers()
    for op in graph.ops:
        chain = _from_window(op, graph, makers, readers) if op.kind == "SLICE" else []
        pad = _less_padding(*chain[-1]) if chain else None
        if pad is None:
            continue
        for before, ranges in chain:
            before.output.shape = tuple(size for _, size in ranges)
            if before.kind == "RESHAPE":
                before.attrs = {**before.attrs, "shape": before.output.shape}
        window = chain[-1][0]
        window.attrs = {**window.attrs, "pad": pad}
        chain[0][0].outputs = op.outputs
        graph.ops.remove(op)
        return True
    return False


def _from_window(
    op: Op, graph: Graph, makers: Mapping[Tensor, Op], readers: Mapping[Tensor, list[Op]]
) -> list[tuple[Op, Ranges]]:
    """The operators before a SLICE up to a window, the last one first, with what the SLICE leaves of their results;
    empty if there is anything else on the way."""
    ranges: Ranges = list(zip(op.integers("start"), op.integers("size"), strict=True))
    chain: list[tuple[Op, Ranges]] = []
    t = op.inputs[0]
    while (maker := makers.get(t)) is not None and len(readers[t]) == 1 and t not in graph.outputs:
        chain.append((maker, ranges))
        if maker.kind in _WINDOWS:
            return chain
        if maker.kind == "RESHAPE":
            ranges = _before_reshape(ranges, t.shape, maker.inputs[0].shape)
        if not ranges or maker.kind not in _POINTWISE | {"RESHAPE"}:
            return []
        t = maker.inputs[0]
    return []


def _before_reshape(ranges: Ranges, after: tuple[int, ...], before: tuple[int, ...]) -> Ranges:
    """The ranges in the shape ``before``, or empty. The shapes may differ in axes of size 1, and two axes of ``before``
    may be one of ``after`` if whole lines of them are left."""
    left = [r for r, n in zip(ranges, after, strict=True) if n != 1]
    sizes = [n for n in after if n != 1]
    found: list[tuple[int, int]] = []
    axes = [n for n in before if n != 1]
    while axes and sizes:
        (start, size), whole, n = left.pop(0), sizes.pop(0), axes.pop(0)
        line = axes.pop(0) if whole != n and axes else 1
        if whole != n * line or start % line or size % line:
            return []
        found += [(start // line, size // line)] + [(0, line)] * (line != 1)
    if axes or sizes:
        return []
    rest = iter(found)
    return [next(rest) if n != 1 else (0, 1) for n in before]


def _less_padding(window: Op, ranges: Ranges) -> tuple[int, ...] | None:
    """The padding with which ``window`` computes only ``ranges`` of its result, or None."""
    shape, stride, pad = window.output.shape, window.integers("stride"), list(window.integers("pad"))
    if any(ranges[axis] != (0, shape[axis]) for axis in (0, 3)):
        return None
    for i, (start, size) in enumerate(ranges[1:3]):
        pad[2 * i] -= start * stride[i]
        pad[2 * i + 1] -= (shape[1 + i] - start - size) * stride[i]
    return tuple(pad) if min(pad) >= 0 else None
