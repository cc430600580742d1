"""Rewrites of an exported graph before it is annotated, and clean-up after it is converted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import fx
from torch.utils import _pytree as pytree

from arm_lower.edge.functionalize import NotFunctional, functionalize, needed
from arm_lower.edge.meta import describe
from arm_lower.errors import QuantizationError
from arm_lower.export import exporting
from quant.annotate.registry import RULES
from quant.bias import TRANSPOSED, bias_scale
from quant.canonical import write_canonical
from quant.nodes import WEIGHTED, argument, constant, is_constant

aten = torch.ops.aten


DROPOUTS = frozenset({aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default})

_EMPTY = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_permuted.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)
_MADE_LIMIT = 1 << 14


def strip_guards(gm: fx.GraphModule) -> bool:
    """Removes the call of the input guards that ``ExportedProgram.module()`` adds; whether there was one."""
    found = False
    for node in list(gm.graph.nodes):
        if node.op == "call_module" and node.target == "_guards_fn":
            gm.graph.erase_node(node)
            found = True
    if found:
        gm.delete_submodule("_guards_fn")
        gm.recompile()
    return found


def positional_tensors(gm: fx.GraphModule) -> None:
    """Moves tensor arguments given by name to their positions, because PT2E refuses annotated nodes with them."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or not any(isinstance(v, fx.Node) for v in node.kwargs.values()):
            continue
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        args, kwargs = list(node.args), dict(node.kwargs)
        for parameter in schema.arguments[len(args) :]:
            if parameter.kwarg_only or not any(isinstance(v, fx.Node) for v in kwargs.values()):
                break
            args.append(kwargs.pop(parameter.name, parameter.default_value))
        node.args, node.kwargs = tuple(args), kwargs


def make_functional(gm: fx.GraphModule) -> None:
    """Makes in-place operators functional. What a buffer becomes is one ``copy_`` at the end; a change of an input is
    seen by later readers but not written back to the caller.

    Raises:
        NotFunctional: As `functionalize`; the module is as it was.
    """
    if not needed(gm.graph):
        return
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph._codegen = gm.graph._codegen
    final = functionalize(graph)
    with graph.inserting_before(graph.output_node()):
        for node, value in final.items():
            if node.op == "get_attr":
                graph.call_function(aten.copy_.default, (node, value)).meta = dict(node.meta)
    graph.eliminate_dead_code()
    gm.graph = graph


def drop_identities(gm: fx.GraphModule) -> None:
    """Removes dropouts that are switched off."""
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in DROPOUTS and argument(node, 2, False) is False:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)


def add_constant(gm: fx.GraphModule, before: fx.Node, name: str, value: torch.Tensor, like: fx.Node) -> fx.Node:
    """A new buffer with ``value`` and a node before ``before`` that reads it; metadata from ``like``."""
    name = name.replace(".", "_")
    unique, i = name, 0
    while hasattr(gm, unique):
        i += 1
        unique = f"{name}_{i}"
    gm.register_buffer(unique, value)
    with gm.graph.inserting_before(before):
        node = gm.graph.get_attr(unique)
    fake = like.meta.get("val")
    if isinstance(fake, torch._subclasses.FakeTensor):
        node.meta["val"] = fake.fake_mode.from_tensor(value, static_shapes=True)
    return node


def fold_batch_norms(gm: fx.GraphModule) -> None:
    """Folds each evaluated batch norm into the convolution or linear layer that only it reads.

    A weight that other layers read too is copied, grouped transposed convolutions are scaled group by
    group, and a linear layer takes a batch norm only over its last axis.
    """
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not aten.batch_norm.default or argument(node, 5):
            continue
        if not _fold(gm, node):
            _as_depthwise(gm, node)
    gm.graph.eliminate_dead_code()


def scale_and_shift(gm: fx.GraphModule, norm: fx.Node) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A batch norm as ``x * scale + shift``, in float64, or None if its statistics are no constants."""
    gamma, beta, mean, var = (constant(gm, argument(norm, i)) for i in (1, 2, 3, 4))
    if mean is None or var is None:
        return None
    scale = torch.rsqrt(var.detach().double() + argument(norm, 7, 1e-5))
    if gamma is not None:
        scale = scale * gamma.detach().double()
    shift = -mean.detach().double() * scale
    if beta is not None:
        shift = shift + beta.detach().double()
    return scale, shift


def foldable_layer(layer: object) -> TypeGuard[fx.Node]:
    """Whether ``layer`` is a convolution or linear layer over whose output channels a batch norm behind it runs,
    and that batch norm is its only reader."""
    if not isinstance(layer, fx.Node) or len(layer.users) != 1:
        return False
    if layer.target is aten.linear.default:
        return bool(layer.meta["val"].dim() == 2)
    return layer.target in WEIGHTED


def folded_parameters(
    layer: fx.Node, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor, shift: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of ``layer`` with ``y * scale + shift`` on its output channels folded in."""
    w = weight.detach().double()
    if layer.target in TRANSPOSED:
        groups = argument(layer, 6, 1)
        by_group = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
        w = (by_group * scale.reshape(groups, 1, w.shape[1], *[1] * (w.dim() - 2))).reshape(w.shape)
    else:
        w = w * scale.reshape(-1, *[1] * (w.dim() - 1))
    b = shift if bias is None else shift + bias.detach().double() * scale
    return w.to(weight.dtype), b.to(weight.dtype)


def _fold(gm: fx.GraphModule, norm: fx.Node) -> bool:
    layer = norm.args[0]
    if not foldable_layer(layer):
        return False
    source, weight_node, bias_node = (argument(layer, i) for i in range(3))
    weight, bias = constant(gm, weight_node), constant(gm, bias_node)
    affine = scale_and_shift(gm, norm)
    if weight is None or affine is None or (bias_node is not None and bias is None):
        return False
    w, b = folded_parameters(layer, weight, bias, *affine)
    name = str(weight_node.target).removesuffix("weight")
    new_weight = add_constant(gm, layer, name + "folded_weight", w, layer)
    new_bias = add_constant(gm, layer, name + "folded_bias", b, layer)
    layer.args = (source, new_weight, new_bias, *layer.args[3:])
    layer.kwargs = {k: v for k, v in layer.kwargs.items() if k not in ("weight", "bias")}
    norm.replace_all_uses_with(layer)
    gm.graph.erase_node(norm)
    return True


def _as_depthwise(gm: fx.GraphModule, norm: fx.Node) -> bool:
    """A batch norm that stands alone is a 1x1 depthwise convolution: one weight per channel, whose own scale
    makes it exact in int8."""
    source = norm.args[0]
    affine = scale_and_shift(gm, norm)
    if affine is None or not isinstance(source, fx.Node):
        return False
    scale, shift = affine
    shape, dtype = tuple(source.meta["val"].shape), source.meta["val"].dtype
    channels, spatial = scale.numel(), 2 if len(shape) == 4 else 1
    ones, zeros = [1] * spatial, [0] * spatial
    weight = add_constant(gm, norm, f"{norm.name}_weight", scale.to(dtype).reshape(channels, 1, *ones), norm)
    bias = add_constant(gm, norm, f"{norm.name}_bias", shift.to(dtype), norm)
    target = aten.conv2d.default if spatial == 2 else aten.conv1d.default
    plain = len(shape) in (3, 4)
    with gm.graph.inserting_before(norm):
        x = source if plain else _call(gm, aten.reshape.default, (source, [shape[0], channels, -1]), norm)
        layer = _call(gm, target, (x, weight, bias, ones, zeros, ones, channels), norm)
        result = layer if plain else _call(gm, aten.reshape.default, (layer, list(shape)), norm)
    norm.replace_all_uses_with(result)
    gm.graph.erase_node(norm)
    result.name = norm.name
    return True


def _call(gm: fx.GraphModule, target: Any, args: tuple[Any, ...], like: fx.Node) -> fx.Node:
    """A call with the module path of ``like`` and its own ``val``."""
    node = gm.graph.call_function(target, args)
    node.meta = dict(like.meta)
    fakes = fx.map_arg(args, lambda n: n.meta["val"])
    with like.meta["val"].fake_mode:
        node.meta["val"] = target(*fakes)
    return node


def fill_empty(gm: fx.GraphModule) -> None:
    """Fills tensors that were made without values with zeros, so that results are the same each time."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in _EMPTY:
            continue
        with gm.graph.inserting_before(node):
            value = node.meta["val"]
            zeros = gm.graph.call_function(aten.full.default, (list(value.shape), 0), {"dtype": value.dtype})
        zeros.meta = dict(node.meta)
        node.replace_all_uses_with(zeros)
        gm.graph.erase_node(node)


def fold_constants(gm: fx.GraphModule, limit: int = 1 << 22) -> None:
    """Computes nodes that only read parameters, up to ``limit`` elements or the size of what they read, and those that
    read nothing, up to `_MADE_LIMIT` elements."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if not node.all_input_nodes and node.meta["val"].numel() > _MADE_LIMIT:
            continue
        if not all(is_constant(x) for x in node.all_input_nodes) or not isinstance(node.target, torch._ops.OpOverload):
            continue
        values = {x: constant(gm, x) for x in node.all_input_nodes}
        random = torch.Tag.nondeterministic_seeded in node.target.tags
        if any(v is None for v in values.values()) or node.target._schema.is_mutable or random:
            continue
        read = sum(v.numel() for v in values.values() if v is not None)
        if node.meta["val"].numel() > max(limit, read):
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        with torch.no_grad():
            result = node.target(*args, **kwargs)
        new = add_constant(gm, node, f"{node.name}_folded", result.detach().contiguous(), node)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    gm.graph.eliminate_dead_code()


def merge_duplicates(gm: fx.GraphModule) -> None:
    """One dequantize node for each quantized tensor: PT2E leaves a copy for every reader."""
    seen: dict[Any, fx.Node] = {}
    qdq = torch.ops.quantized_decomposed
    mergeable = {
        qdq.quantize_per_tensor.default,
        qdq.dequantize_per_tensor.default,
        qdq.quantize_per_channel.default,
        qdq.dequantize_per_channel.default,
    }
    for node in list(gm.graph.nodes):
        if node.op == "get_attr":
            key: Any = ("get_attr", node.target)
        elif node.op == "call_function" and node.target in mergeable:
            key = (node.target, node.args, tuple(node.kwargs.items()))
        else:
            continue
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()


def quantize_biases(gm: fx.GraphModule) -> None:
    """Makes the float biases of quantized layers int32, with scale = input scale * weight scale: what training
    leaves behind when it folds a batch norm into a layer that had no bias."""
    qdq = torch.ops.quantized_decomposed
    for node in list(gm.graph.nodes):
        if node.target not in WEIGHTED:
            continue
        source, weight, bias = (argument(node, i) for i in range(3))
        value = constant(gm, bias)
        if value is None or getattr(source, "target", None) is not qdq.dequantize_per_tensor.default:
            continue
        if weight.target is qdq.dequantize_per_channel.default:
            steps = constant(gm, weight.args[1])
        elif weight.target is qdq.dequantize_per_tensor.default:
            steps = torch.tensor([float(weight.args[1])])
        else:
            continue
        integer_weight = constant(gm, weight.args[0])
        if steps is None or integer_weight is None:
            continue
        steps = bias_scale(node, integer_weight.shape, per_channel=len(steps) > 1).expand(steps.float())
        scale = (float(source.args[1]) * steps).expand(value.numel()).contiguous()
        limits = torch.iinfo(torch.int32)
        integers = (value.detach().double() / scale.double()).round().clamp(limits.min, limits.max).to(torch.int32)
        name = str(bias.target)
        args = [
            add_constant(gm, node, f"{name}_{suffix}", tensor, node)
            for suffix, tensor in (("int32", integers), ("scale", scale), ("zero", torch.zeros_like(integers).long()))
        ]
        with gm.graph.inserting_before(node):
            real = gm.graph.call_function(
                qdq.dequantize_per_channel.default, (*args, 0, limits.min, limits.max, torch.int32)
            )
        real.meta = {k: v for k, v in bias.meta.items() if k == "val"}
        node.args = (source, weight, real, *node.args[3:])
    gm.graph.eliminate_dead_code()
    gm.recompile()


Pass = Callable[[fx.GraphModule], None]

INFERENCE_PASSES: tuple[Pass, ...] = (
    fill_empty,
    fold_constants,
    fold_batch_norms,
)


@contextmanager
def state_kept(gm: fx.GraphModule) -> Iterator[None]:
    """The module's own buffers, and the parameters that it writes to, get their values back: what is run inside must
    become part neither of its initial state nor of the user's module, whose tensors they may be."""
    tensors = {**dict(gm.named_parameters()), **dict(gm.named_buffers())}
    read = {str(n.target) for n in gm.graph.nodes if n.op == "get_attr"}
    own = (read & dict(gm.named_buffers()).keys()) | (_written(gm) & tensors.keys())
    before = [(tensors[name], tensors[name].clone()) for name in sorted(own)]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)


def _written(gm: fx.GraphModule) -> set[str]:
    """What in-place operators change, also through views of it."""
    found: set[str] = set()
    for node in gm.graph.nodes:
        if not (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable):
            continue
        changed: Any = node
        while isinstance(changed, fx.Node) and changed.op == "call_function":
            changed = changed.args[0] if changed.args else None
        if isinstance(changed, fx.Node) and changed.op == "get_attr":
            found.add(str(changed.target))
    return found


def check_evaluation(gm: fx.GraphModule) -> None:
    """Raises if the model was exported in training mode.

    Raises:
        QuantizationError: Names the first dropout or batch norm that trains.
    """
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        trains = (node.target in DROPOUTS and argument(node, 2, False) is True) or (
            node.target is aten.batch_norm.default and argument(node, 5) is True
        )
        if trains:
            raise QuantizationError(
                f"{describe(node)} is in training mode",
                "call model.eval() before torch.export.export; for training use prepare_qat_pt2e",
            )


def _exported_again(gm: fx.GraphModule) -> fx.GraphModule:
    """The module as torch makes it functional, which takes a trace and some operators apart."""
    values = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
    flat = [torch.zeros(v.shape, dtype=v.dtype) if isinstance(v, torch.Tensor) else v for v in values]
    info = getattr(gm.graph._codegen, "pytree_info", None)
    args, kwargs = pytree.tree_unflatten(flat, info.in_spec) if info else (tuple(flat), {})
    with exporting():
        again = torch.export.export(gm, args, kwargs).run_decompositions({}).module(check_guards=False)
    assert isinstance(again, fx.GraphModule)
    return again


def normalize(gm: fx.GraphModule, is_qat: bool) -> fx.GraphModule:
    """Brings an exported graph into the form that the annotation rules expect. Idempotent.

    Returns:
        ``gm``, changed in place; another module if only torch can make its in-place operators functional.

    Raises:
        QuantizationError: In-place operators that training cannot have.
    """
    strip_guards(gm)
    positional_tensors(gm)
    if not is_qat:
        drop_identities(gm)  # an alias that no fake tensor tells of
    try:
        make_functional(gm)
    except NotFunctional as error:
        if is_qat:
            raise QuantizationError(f"an in-place operator cannot be trained: {error}",
                                    "write it out of place in the model") from error  # fmt: skip
        gm = _exported_again(gm)
    write_canonical(gm, RULES)
    for step in () if is_qat else INFERENCE_PASSES:
        step(gm)
    gm.graph.lint()
    gm.recompile()
    return gm
