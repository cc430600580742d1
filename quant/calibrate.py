"""From a float model to a quantized graph in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from quant.pt2e import convert_pt2e, prepare_pt2e
from quant.quantizer import EthosUQuantizer

Progress = Callable[[int, int], None]


def quantize(
    model: nn.Module | ExportedProgram,
    example_inputs: tuple[Any, ...],
    calibration: Iterable[tuple[Any, ...]],
    quantizer: EthosUQuantizer | None = None,
    *,
    progress: Progress | None = None,
) -> fx.GraphModule:
    """Exports, prepares, calibrates and converts ``model``, which is not changed.

    Args:
        model: Module in eval mode, or its exported program.
        example_inputs: Positional arguments for the export.
        calibration: Argument tuples like ``example_inputs`` with representative values.
        quantizer: Settings; default everything int8.
        progress: Called with (samples done, samples in all) after every sample.
    """
    exported = model if isinstance(model, ExportedProgram) else torch.export.export(model, example_inputs)
    prepared = prepare_pt2e(exported, quantizer or EthosUQuantizer())
    samples = list(calibration)
    with torch.no_grad():
        for i, sample in enumerate(samples):
            prepared(*sample)
            if progress is not None:
                progress(i + 1, len(samples))
    return convert_pt2e(prepared)
