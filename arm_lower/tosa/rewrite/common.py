"""Common subexpressions."""

from __future__ import annotations

from arm_lower.tosa.ir import DType, Graph, Op, Tensor


def share_common(graph: Graph) -> bool:
    """The second of two equal operators reads the first's result.

    Not for what Vela fuses only with a single reader: a RESCALE to int32 belongs to its one consumer (and a shared
    one in front of MUL is miscompiled on U55), and nothing that makes int32 (convolutions, int32 elementwise) or is
    read by TABLE or RESCALE is shared, because each reader fuses with its own copy.
    """
    seen: dict[object, Op] = {}
    changed = False
    consumers = graph.consumers()
    for op in graph.ops:
        if any(t.dtype in (DType.INT32, DType.INT48) for t in op.outputs) or op.output in graph.outputs:
            continue
        if any(reader.kind in ("TABLE", "RESCALE") for reader in consumers.get(op.output, ())):
            continue
        key = (op.kind, tuple(_identity(t) for t in op.inputs), tuple(sorted(op.attrs.items())))
        first = seen.setdefault(key, op)
        if first is not op:
            for old, new in zip(op.outputs, first.outputs, strict=True):
                graph.replace(old, new)
            changed = True
    return changed


def _identity(t: Tensor) -> object:
    return t if t.data is None else (t.shape, t.dtype, t.data.tobytes())
