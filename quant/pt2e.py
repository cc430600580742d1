"""torchao's prepare and convert, with what exported Ethos-U models need around them."""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram
from torchao.quantization.pt2e import DerivedObserverOrFakeQuantize, ObserverBase, quantize_pt2e
from torchao.quantization.pt2e.prepare import prepare

from arm_lower.errors import QuantizationError
from quant.bias import BiasScale
from quant.graph import check_evaluation, merge_duplicates, normalize, quantize_biases, state_kept, strip_guards
from quant.nodes import constant
from quant.observers import PerChannelWeightObserver, RangeObserver
from quant.quantizer import EthosUQuantizer, check_quantizer
from quant.training import allow_train_eval, finish_training, is_trained

BIAS_LIMIT = float(1 << 30)
"""Largest magnitude of an int32 bias: it leaves half of the accumulator's range to the products."""


def prepare_pt2e(model: fx.GraphModule | ExportedProgram, quantizer: EthosUQuantizer) -> fx.GraphModule:
    """Inserts observers for post-training quantization.

    Args:
        model: ``torch.export.export(...)`` or its ``.module()``, with or without guards; a module is changed.

    Raises:
        QuantizationError: ``model`` is no exported model, ``quantizer`` is none, or a setting of it does not fit.
    """
    check_quantizer(quantizer)
    gm = _graph_module(model)
    gm = normalize(gm, is_qat=False)
    check_evaluation(gm)
    prepared: fx.GraphModule = quantize_pt2e.prepare_pt2e(gm, quantizer)
    modules = dict(prepared.named_modules(remove_duplicate=False))
    called = [modules[node.target] for node in prepared.graph.nodes if node.op == "call_module"]
    for observer in set(called):
        if isinstance(observer, RangeObserver):
            observer.places = called.count(observer)
    return prepared


def prepare_qat_pt2e(model: fx.GraphModule | ExportedProgram, quantizer: EthosUQuantizer) -> fx.GraphModule:
    """Inserts fake-quantize modules for training; weights and biases stay trainable parameters.

    ``train()`` and ``eval()`` of the result switch its batch norms and dropouts.

    Raises:
        QuantizationError: As `prepare_pt2e`.
    """
    check_quantizer(quantizer)
    gm = _graph_module(model)
    quantizer.use_qat_default()
    gm = quantizer.transform_for_annotation(gm)
    quantizer.annotate(gm)
    # Not torchao's prepare_qat_pt2e: it rewrites conv + batch norm into a division by the running deviation,
    # which needs literal patterns; `quant.training` folds what was trained without any.
    prepared: fx.GraphModule = prepare(gm, {}, is_qat=True, obs_or_fq_callback=quantizer.prepare_obs_or_fq_callback)
    allow_train_eval(prepared)
    return prepared


def convert_pt2e(model: fx.GraphModule, fold_quantize: bool = True) -> fx.GraphModule:
    """Replaces observers by quantize and dequantize operators; weights become int8, biases int32 constants.

    Raises:
        QuantizationError: ``model`` was not prepared, or not run after that.
    """
    if not isinstance(model, fx.GraphModule):
        raise QuantizationError(f"convert_pt2e needs a prepared GraphModule, not {type(model).__name__}")
    check_calibrated(model)
    trained = is_trained(model)
    if trained:
        finish_training(model)
    fit_biases(model)
    with state_kept(model):  # folding runs the operators that have constant operands
        converted: fx.GraphModule = quantize_pt2e.convert_pt2e(model, fold_quantize=fold_quantize)
    merge_duplicates(converted)
    if trained:
        quantize_biases(converted)
    return converted


def check_calibrated(prepared: fx.GraphModule) -> None:
    """Raises if no observer has seen anything.

    Raises:
        QuantizationError: Says what to call.
    """
    observers = [m for m in prepared.modules() if isinstance(m, ObserverBase)]
    bounds = [getattr(o, "min_val", getattr(o, "max_abs", None)) for o in observers]
    known = [torch.as_tensor(b) for b in bounds if b is not None]
    if known and not any(b.numel() and bool(torch.isfinite(b).all()) for b in known):
        raise QuantizationError(
            "convert_pt2e: the model was not calibrated, no sample has reached its observers",
            "run it on representative inputs first: for sample in samples: prepared(*sample)",
        )


def fit_biases(prepared: fx.GraphModule) -> None:
    """Raises weight scales where a bias would not fit into int32.

    A channel that training has all but switched off has weights near zero, hence a tiny scale, but a bias of
    ordinary size; on the accumulator's scale that bias exceeds 32 bits and would be cut off without a word.
    """
    modules = dict(prepared.named_modules(remove_duplicate=False))
    for node in prepared.graph.nodes:
        observer = modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(observer, DerivedObserverOrFakeQuantize):
            continue
        rule, (activation, weight) = observer.derive_qparams_fn, observer.obs_or_fqs
        bias = constant(prepared, node.args[0])
        if bias is None or not isinstance(rule, BiasScale) or not isinstance(weight, PerChannelWeightObserver):
            continue
        needed = bias.detach().abs().float() / (float(activation.calculate_qparams()[0]) * BIAS_LIMIT)
        owner = rule.expand(torch.arange(len(weight.max_abs)))
        least = torch.zeros(len(weight.max_abs)).scatter_reduce(0, owner, needed, "amax")
        weight.least = torch.maximum(weight.least, least) if weight.least.numel() else least


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
