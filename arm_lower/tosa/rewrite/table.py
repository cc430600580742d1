"""Tables of one variable."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arm_lower.tosa.ir import DType, Graph, Op, Tensor

CODES = np.arange(-128, 128)


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
        inner, outer = _values(source), op.inputs[1].data
        if inner is None or outer is None:
            continue
        table = outer[inner.astype(np.int64) + 128]
        op.inputs = [
            source.inputs[0],
            Tensor(f"{op.output.name}.composed", (256,), DType.INT8, np.ascontiguousarray(table)),
        ]
        changed = True
    return changed


def _values(op: Op) -> npt.NDArray[np.generic] | None:
    """The operator's result for every int8 value of its first input, or None if it is no such function."""
    a = op.attrs
    if op.kind == "TABLE":
        return op.inputs[1].data
    if op.kind == "CLAMP":
        return np.clip(CODES, int(a["min"]), int(a["max"]))  # type: ignore[arg-type]
    if (
        op.kind != "RESCALE"
        or op.inputs[0].dtype is not DType.INT8
        or a["per_channel"]
        or a["input_unsigned"]
        or a["output_unsigned"]
    ):
        return None
    if a["rounding"] != "single" or not a["scale32"]:
        return None
    multiplier, shift = a["multiplier"][0], a["shift"][0]  # type: ignore[index]
    # TOSA 1.0, apply_scale_32 with single rounding
    scaled = [((int(c) - int(a["input_zp"])) * multiplier + (1 << shift - 1)) >> shift for c in CODES]  # type: ignore[operator, arg-type]
    return np.clip(np.array(scaled) + int(a["output_zp"]), -128, 127)  # type: ignore[arg-type]
