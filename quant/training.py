"""Quantization-aware training: switching modes, and folding what was trained.

The batch norm stays a batch norm while training, behind a convolution whose weight is fake-quantized per output
channel. Scaling a channel of the weight scales its quantization step alike, so folding the trained batch norm
into weight *and* step gives the very numbers that the evaluated model computed.
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

import torch
from torch import fx, nn
from torchao.quantization.pt2e import FakeQuantizeBase

from quant.graph import (
    DROPOUTS,
    add_constant,
    drop_identities,
    foldable_layer,
    folded_parameters,
    scale_and_shift,
)
from quant.nodes import argument, aten, constant


def set_training(gm: fx.GraphModule, training: bool = True) -> fx.GraphModule:
    """Switches batch norms and dropouts of an exported or prepared model; what ``train()`` does for a module.

    Unlike torchao's `move_exported_model_to_train` it keeps each batch norm's own momentum and epsilon.
    """
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is aten.batch_norm.default:
            node.args = (*node.args[:5], training, *node.args[6:])
        elif node.target in DROPOUTS and len(node.args) > 2:
            node.args = (*node.args[:2], training)
    gm.recompile()
    gm.training = training
    return gm


def allow_train_eval(gm: fx.GraphModule) -> None:
    """Makes ``gm.train()`` and ``gm.eval()`` call `set_training`, so that an ordinary training loop works."""

    def train(self: fx.GraphModule, mode: bool = True) -> fx.GraphModule:
        return set_training(self, mode)

    def evaluate(self: fx.GraphModule) -> fx.GraphModule:
        return set_training(self, False)

    gm.train = MethodType(train, gm)  # type: ignore[method-assign]
    gm.eval = MethodType(evaluate, gm)  # type: ignore[method-assign]


def is_trained(gm: fx.GraphModule) -> bool:
    """Whether ``gm`` was prepared for training."""
    return any(isinstance(m, FakeQuantizeBase) for m in gm.modules())


def finish_training(gm: fx.GraphModule) -> None:
    """Turns a trained model into what `convert_pt2e` expects of a calibrated one, in place."""
    set_training(gm, False)
    _drop_counters(gm)
    drop_identities(gm)
    modules = dict(gm.named_modules(remove_duplicate=False))
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is aten.batch_norm.default:
            _fold_trained(gm, node, modules)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()


def _drop_counters(gm: fx.GraphModule) -> None:
    """Removes ``num_batches_tracked += 1``, of which nothing but the buffer knows."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not aten.copy_.default:
            continue
        counter, more = node.args
        if more.target is aten.add.Tensor and {*counter.users} == {node, more} and {*more.users} == {node}:
            gm.graph.erase_node(node)


def _fold_trained(gm: fx.GraphModule, norm: fx.Node, modules: dict[str, nn.Module]) -> None:
    layer = norm.args[0]
    if not foldable_layer(layer):
        return
    weight_call, bias_node = argument(layer, 1), _behind(argument(layer, 2), modules)
    fake = modules.get(str(weight_call.target)) if weight_call.op == "call_module" else None
    weight_node = _behind(weight_call, modules)
    affine = scale_and_shift(gm, norm)
    weight, bias = constant(gm, weight_node), constant(gm, bias_node)
    if affine is None or weight is None or (bias_node is not None and bias is None):
        return
    w, b = folded_parameters(layer, weight, bias, *affine)
    name = str(weight_node.target).removesuffix("weight")
    folded = add_constant(gm, layer, name + "folded_weight", w, weight_node)
    bias_source = add_constant(gm, layer, name + "folded_bias", b, weight_node)
    if isinstance(fake, FakeQuantizeBase):
        own = copy.deepcopy(fake)
        _rescale(own, affine[0], weight, w)
        gm.add_submodule(f"{weight_call.target}_folded", own)
        with gm.graph.inserting_before(layer):
            folded = gm.graph.call_module(f"{weight_call.target}_folded", (folded,))
    layer.args = (layer.args[0], folded, bias_source, *layer.args[3:])
    norm.replace_all_uses_with(layer)
    gm.graph.erase_node(norm)


def _behind(node: Any, modules: dict[str, nn.Module]) -> Any:
    """``node``, or what it observes if it calls an observer."""
    while isinstance(node, fx.Node) and node.op == "call_module" and str(node.target) in modules:
        node = node.args[0]
    return node


def _rescale(fake: FakeQuantizeBase, scale: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> None:
    """Carries the range of a weight over to the weight whose output channels are ``scale`` times as large."""
    observer: Any = fake.activation_post_process
    low, high = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
    by_channel = getattr(observer, "ch_axis", None) == 0 and before.shape[0] == scale.numel()
    if by_channel and isinstance(low, torch.Tensor) and isinstance(high, torch.Tensor) and len(low) == len(scale):
        ends = torch.stack([low * scale.to(low.dtype), high * scale.to(low.dtype)])
        observer.min_val.copy_(ends.amin(0))
        observer.max_val.copy_(ends.amax(0))
        return
    observer.reset_min_max_vals()
    observer(after.detach())
