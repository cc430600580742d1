"""Annotations as text, one line for each annotated node: what the golden tests compare, and a help in debugging."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY


def describe(gm: fx.GraphModule) -> str:
    """The annotations of ``gm`` in graph order, as ``name(operand: spec, ...) -> spec``.

    Equal names are equal parameters: ``q0``, ``q1``, ... observed; ``fixed(1/256, -128)``; ``w[0]`` a weight with
    one scale per index of axis 0, ``w`` with one for all; ``bias`` derived. ``-`` is no quantization. A number
    format other than int8 is appended, as in ``q0:uint8``.
    """
    labels: dict[Any, str] = {}
    lines = []
    for node in gm.graph.nodes:
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if annotation is None:
            continue
        operands = [f"{x.name}: {_label(s, (x, node), labels)}" for x, s in annotation.input_qspec_map.items()]
        result = "-" if annotation.output_qspec is None else _label(annotation.output_qspec, node, labels)
        lines.append(f"{node.name}({', '.join(operands)}) -> {result}")
    return "\n".join(lines)


def _label(spec: Any, place: Any, labels: dict[Any, str]) -> str:
    if isinstance(spec, SharedQuantizationSpec):
        return labels[spec.edge_or_node]
    if isinstance(spec, DerivedQuantizationSpec):
        return "bias"
    if isinstance(spec, FixedQParamsQuantizationSpec):
        text = f"fixed(1/{1 / spec.scale:g}, {spec.zero_point})"
    elif spec.qscheme == torch.per_channel_symmetric:
        text = f"w[{spec.ch_axis}]"
    elif spec.qscheme == torch.per_tensor_symmetric:
        text = "w"
    else:
        text = f"q{sum(label.startswith('q') for label in labels.values())}"
        text += "" if spec.dtype is torch.int8 else f":{str(spec.dtype).removeprefix('torch.')}"
    labels[place] = text
    return text
