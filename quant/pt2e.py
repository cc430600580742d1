"""torchao's prepare and convert, with what exported Ethos-U models need around them."""

from __future__ import annotations

import logging

from torch import fx
from torch.export import ExportedProgram
from torchao.quantization.pt2e import quantize_pt2e

from arm_lower.errors import QuantizationError
from quant.graph import check_evaluation, merge_duplicates, normalize, strip_guards
from quant.observers import RangeObserver
from quant.quantizer import EthosUQuantizer

log = logging.getLogger(__name__)


def prepare_pt2e(model: fx.GraphModule | ExportedProgram, quantizer: EthosUQuantizer) -> fx.GraphModule:
    """Inserts observers for post-training quantization.

    Args:
        model: ``torch.export.export(...)`` or its ``.module()``, with or without guards; a module is changed.

    Raises:
        QuantizationError: ``model`` is no exported model, or a setting of the quantizer does not fit it.
    """
    gm = _graph_module(model)
    normalize(gm, is_qat=False)
    check_evaluation(gm)
    prepared = quantize_pt2e.prepare_pt2e(gm, quantizer)
    modules = dict(prepared.named_modules(remove_duplicate=False))
    called = [modules[node.target] for node in prepared.graph.nodes if node.op == "call_module"]
    for observer in set(called):
        if isinstance(observer, RangeObserver):
            observer.places = called.count(observer)
    return prepared


def prepare_qat_pt2e(model: fx.GraphModule | ExportedProgram, quantizer: EthosUQuantizer) -> fx.GraphModule:
    """Inserts fake-quantize modules for training; weights and biases stay trainable parameters.

    Raises:
        QuantizationError: As `prepare_pt2e`.
    """
    gm = _graph_module(model)
    quantizer.use_qat_default()
    normalize(gm, is_qat=True)
    return quantize_pt2e.prepare_qat_pt2e(gm, quantizer)


def convert_pt2e(model: fx.GraphModule, fold_quantize: bool = True) -> fx.GraphModule:
    """Replaces observers by quantize and dequantize operators; weights become int8, biases int32 constants.

    Raises:
        QuantizationError: ``model`` was not prepared.
    """
    if not isinstance(model, fx.GraphModule):
        raise QuantizationError(f"convert_pt2e needs a prepared GraphModule, not {type(model).__name__}")
    converted = quantize_pt2e.convert_pt2e(model, fold_quantize=fold_quantize)
    merge_duplicates(converted)
    return converted


def _graph_module(model: object) -> fx.GraphModule:
    if isinstance(model, ExportedProgram):
        model = model.module(check_guards=False)
    if not isinstance(model, fx.GraphModule):
        raise QuantizationError(
            f"a {type(model).__name__} is no exported model",
            "pass torch.export.export(model, example_inputs) or its .module()",
        )
    strip_guards(model)
    return model
