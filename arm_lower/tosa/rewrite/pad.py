"""Padding into the operator behind it."""

from __future__ import annotations

from arm_lower.tosa.ir import Graph, Op

CONVOLUTIONS = frozenset({"CONV2D", "DEPTHWISE_CONV2D"})


def fold_pads(graph: Graph) -> bool:
    """A PAD of rows and columns becomes the pad attribute of every operator that reads it.

    For convolutions where it pads with their zero point, for MAX_POOL2D where it pads with the lowest value. Not for
    AVG_POOL2D (its own padding does not count in the mean), not where batch or channels are padded, not where the
    padding would reach the kernel's size in a pool, or its height in a convolution, and only if all readers can take
    it.
    """
    changed = False
    readers = graph.consumers()
    for op in graph.ops:
        if op.kind != "PAD" or op.output in graph.outputs or len(op.output.shape) != 4:
            continue
        padding = op.integers("padding")
        users = readers.get(op.output, [])
        if any(padding[:2]) or any(padding[6:]) or not users or not all(_takes(u, op, padding) for u in users):
            continue
        for user in users:
            before = user.integers("pad")
            user.attrs = {**user.attrs, "pad": tuple(p + q for p, q in zip(before, padding[2:6], strict=True))}
            user.inputs = [op.inputs[0] if t is op.output else t for t in user.inputs]
        changed = True
    return changed


def _takes(user: Op, pad: Op, padding: tuple[int, ...]) -> bool:
    if user.inputs[0] is not pad.output or pad.output in user.inputs[1:]:
        return False
    if user.kind in CONVOLUTIONS:
        rows = user.inputs[1].shape[0 if user.kind == "DEPTHWISE_CONV2D" else 1]
        reach = user.integers("dilation")[0] * (rows - 1)
        read = all(p + q <= reach or not q for p, q in zip(user.integers("pad")[:2], padding[2:4]))
        return read and pad.attrs["pad_const"] == user.attrs["input_zp"]
    if user.kind != "MAX_POOL2D" or pad.attrs["pad_const"] != pad.output.dtype.range[0]:
        return False
    kernel, own = user.integers("kernel"), user.integers("pad")
    return all(own[i] + padding[2 + i] < kernel[i // 2] for i in range(4))
