"""Tables of one variable."""

from __future__ import annotations

import numpy as np

from arm_lower.tosa.ir import DType, Graph, Tensor


def compose_tables(graph: Graph) -> bool:
    """int8 TABLE of TABLE, CLAMP or int8 RESCALE is one TABLE of the first one's input.

    Only where the first operator's result has no other reader: else both stay, each as cheap as before.
    """
    changed = False
    makers, readers = graph.producers(), graph.consumers()
    for op in graph.ops:
        if op.kind != "TABLE" or op.output.dtype is not DType.INT8:
            continue
        source = makers.get(op.inputs[0])
        if source is None or source.output in graph.outputs or len(readers[source.output]) != 1:
            continue
        codes = np.arange(-128, 128)
        if source.kind == "TABLE":
            inner = source.inputs[1].data
        elif source.kind == "CLAMP":
            inner = np.clip(codes, int(source.attrs["min"]), int(source.attrs["max"]))  # type: ignore[arg-type]
        else:
            continue
        outer = op.inputs[1].data
        if inner is None or outer is None:
            continue
        table = np.asarray(outer)[inner.astype(np.int64) + 128]
        op.inputs = [source.inputs[0], Tensor(f"{op.inputs[1].name}.of", (256,), DType.INT8, np.ascontiguousarray(table))]
        changed = True
    return changed
