"""What annotation rules talk to, and how their wishes become PT2E annotations.

Quantization is a property of a tensor. A rule asks for operands and results to be quantized and for tensors
to have equal parameters; the `Annotator` keeps the tensors in a union-find and, when all rules have run,
writes one real spec per set (at the place that PT2E meets first) and `SharedQuantizationSpec` s that point
straight at it. Chains and cycles of shared specs cannot arise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import fx
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from quant.annotate import regions
from quant.annotate.registry import PATTERNS, RULES
from quant.bias import bias_scale
from quant.config import QuantizationConfig
from quant.nodes import CLAMPS, WEIGHTED, aten, has_scalar_bounds, is_constant, is_float_tensor, only_user

Spec: TypeAlias = QuantizationSpec | FixedQParamsQuantizationSpec
Key = Any
"""Identity of a set of parameters: a node (the tensor it makes), or a tuple for an operand that must be
quantized apart from its tensor (a weight, a requantized edge, the model's boundary)."""


@dataclass
class Share:
    """``result`` and ``operands`` want equal parameters. ``reader`` is the node that takes the operands:
    ``result`` itself, or the split whose getitem ``result`` is. ``moves`` says that the operator only moves
    data, so that it is worth quantizing only beside a quantized operator."""

    result: fx.Node
    operands: list[fx.Node]
    reader: fx.Node
    moves: bool


@dataclass
class Annotator:
    """Collects what the rules want.

    Attributes:
        graph_module: The graph, functional, with ``val`` metadata.
        config_of: Node -> the config that the user's filters give it, or None to leave it in float.
        is_qat: Batch norms are still in the graph, and belong to the convolution before them.
        regions: Member of an elementwise region -> the tensor that it is a function of (`quant.annotate.regions`).
        interior: Members of regions that stay unquantized.
        readers: After `run`: place of a real activation spec (a node, or an (operand, node) edge) -> the nodes
            outside the set that read its tensors, or the ends of the regions that do, each with the tensor.
        tensors: After `run`: place as in ``readers`` -> the tensors of the set.
        io_config: Config of the model's inputs and outputs, or None to treat them like any tensor.
    """

    graph_module: fx.GraphModule
    config_of: Callable[[fx.Node], QuantizationConfig | None]
    is_qat: bool = False
    io_config: QuantizationConfig | None = None
    written: set[fx.Node] = field(default_factory=set)
    reads: dict[fx.Node, dict[fx.Node, Key]] = field(default_factory=dict)
    derived: dict[tuple[fx.Node, fx.Node], DerivedQuantizationSpec] = field(default_factory=dict)
    claimed: set[fx.Node] = field(default_factory=set)
    regions: dict[fx.Node, fx.Node] = field(default_factory=dict)
    interior: set[fx.Node] = field(default_factory=set)
    readers: dict[Any, list[tuple[fx.Node, fx.Node]]] = field(default_factory=dict)
    tensors: dict[Any, set[fx.Node]] = field(default_factory=dict)
    _parents: dict[Key, Key] = field(default_factory=dict)
    _specs: dict[Key, Spec] = field(default_factory=dict)
    _shares: list[Share] = field(default_factory=list)

    # ---- what a rule may ask -----------------------------------------------------------------------

    def config(self, node: fx.Node) -> QuantizationConfig:
        """The config of ``node``; a rule only runs for a node that has one."""
        config = self.config_of(node)
        if config is None:
            raise KeyError(node.name)
        return config

    def quantize_input(self, node: fx.Node, operand: object) -> None:
        """``node`` reads ``operand`` quantized. Scalars, integers, masks and None are left as they are."""
        if not is_float_tensor(operand) or operand in self.interior:
            return
        self._specs.setdefault(self._find(operand), self.config(node).input_activation)
        self.reads.setdefault(node, {})[operand] = operand

    def quantize_inputs(self, node: fx.Node) -> None:
        """`quantize_input` for every operand."""
        for operand in node.all_input_nodes:
            self.quantize_input(node, operand)

    def quantize_output(self, node: fx.Node, fixed: FixedQParamsQuantizationSpec | None = None) -> None:
        """``node`` writes a quantized tensor with parameters of its own (``fixed``, or observed).

        Without ``fixed``, a clamp that is the only reader of ``node`` is taken into the operator: only its
        result is quantized.
        """
        if not is_float_tensor(node) or node in self.interior:
            return
        if fixed is None:
            node = self.absorb_activation(node)
        self._specs[self._find(node)] = fixed or self.config(node).output_activation
        self.written.add(node)

    def widen_input(self, node: fx.Node, operand: object) -> None:
        """``node`` reads ``operand`` with 16 bits, symmetric, if it is its only reader, a quantized convolution or
        linear layer writes it, and the model then needs no more memory than its largest operator does with 8 bits.
        In QAT it stays as it is: torchao's fake-quantize has 8 bits."""
        if not isinstance(operand, fx.Node) or only_user(operand) is not node or self.is_qat:
            return
        if operand not in self.written or operand.target not in WEIGHTED:
            return
        size = operand.meta["val"].numel()
        if max(_elements(operand) + size, _elements(node) + size) <= self._largest:
            int16 = torch.iinfo(torch.int16)
            self._specs[self._find(operand)] = replace(
                self.config(node).input_activation,
                dtype=torch.int16,
                quant_min=-int16.max,
                quant_max=int16.max,
                qscheme=torch.per_tensor_symmetric,
            )

    @cached_property
    def _largest(self) -> int:
        """Activations that an operator reads and writes, in elements, for the largest operator."""
        return max(_elements(n) for n in self.graph_module.graph.nodes if n.op == "call_function")

    def quantize_weight(self, node: fx.Node, weight: fx.Node, ch_axis: int) -> None:
        """``node`` reads the constant ``weight`` with one scale per index of ``ch_axis``."""
        spec = self.config(node).weight_spec(ch_axis)
        key = (weight, "weight", spec)
        self._specs.setdefault(self._find(key), spec)
        self.reads.setdefault(node, {})[weight] = key

    def quantize_bias(self, node: fx.Node, bias: fx.Node, source: fx.Node, weight: fx.Node) -> None:
        """``node`` reads the constant ``bias`` as int32 on the accumulator's scale; see `BiasScale`."""
        per_channel = self.config(node).is_per_channel
        int32 = torch.iinfo(torch.int32)
        self.derived[bias, node] = DerivedQuantizationSpec(
            derived_from=[(source, node), (weight, node)],
            derive_qparams_fn=bias_scale(node, weight.meta["val"].shape, per_channel),
            dtype=torch.int32,
            quant_min=int32.min,
            quant_max=int32.max,
            qscheme=torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric,
            ch_axis=0 if per_channel else None,
        )
        self.reads.setdefault(node, {})[bias] = (bias, node)

    def share(
        self, result: fx.Node, operands: Iterable[object], *, reader: fx.Node | None = None, moves: bool = False
    ) -> None:
        """``result`` and its float ``operands`` have equal parameters; see `Share` for the rest."""
        tensors = [x for x in operands if is_float_tensor(x)]
        if tensors and is_float_tensor(result):
            self._shares.append(Share(result, tensors, reader or result, moves))

    def claim(self, nodes: Iterable[fx.Node]) -> None:
        """No rule runs for ``nodes``: they are the inside of an operator that is taken whole."""
        self.claimed.update(nodes)

    def absorb_activation(self, node: fx.Node) -> fx.Node:
        """The last node of the operator that starts at ``node``: its only reader if that is a clamp (in QAT,
        behind the batch norm), else ``node``. The nodes passed over are claimed."""
        last = node
        if self.is_qat:
            norm = only_user(last)
            matrix = node.target is aten.linear.default and node.meta["val"].dim() != 2
            if norm is not None and norm.target is aten.batch_norm.default and self._quantized(norm) and not matrix:
                self.claim([norm])
                last = norm
        clamp = only_user(last)
        if clamp is not None and clamp.target in CLAMPS and self._quantized(clamp) and has_scalar_bounds(clamp):
            self.claim([clamp])
            last = clamp
            if clamp in self.interior:
                # It was to be the first step of a region; the region now starts behind it.
                self.interior.discard(clamp)
                self.regions = {n: clamp if b is node else b for n, b in self.regions.items() if n is not clamp}
        return last

    # ---- running the rules -------------------------------------------------------------------------

    def run(self) -> None:
        """Runs the rule of every node and writes the annotations into ``meta``."""
        calls = [n for n in self.graph_module.graph.nodes if n.op == "call_function" and self.config_of(n) is not None]
        for node in calls:
            any(pattern(self, node) for pattern in PATTERNS)
        self.regions = regions.find_regions(calls, lambda n: n not in self.claimed and n.target in RULES and _plain(n))
        self.interior = regions.interior(self.regions)
        for node in calls:
            if node in self.claimed:
                continue
            rule = RULES.get(node.target)
            if rule is not None:
                rule(self, node)
        self._resolve_shares()
        self._annotate_boundary()
        self._write()

    def _quantized(self, node: fx.Node) -> bool:
        return node.target in RULES and self.config_of(node) is not None

    def _resolve_shares(self) -> None:
        active = [share for share in self._shares if not share.moves]
        waiting = [share for share in self._shares if share.moves]
        wanted = {operand for reads in self.reads.values() for operand in reads}
        made = set(self.written)
        for share in active:
            made.add(share.result)
            wanted.update(share.operands)
        while waiting:
            ready = [s for s in waiting if s.result in wanted or any(x in made for x in s.operands)]
            if not ready:
                break
            waiting = [s for s in waiting if s not in ready]
            active += ready
            for share in ready:
                made.add(share.result)
                wanted.update(share.operands)
        order = {node: i for i, node in enumerate(self.graph_module.graph.nodes)}
        for share in sorted(active, key=lambda s: order[s.result]):
            self._unite(share)

    def _unite(self, share: Share) -> None:
        config = self.config(share.reader)
        self.written.add(share.result)
        reads = self.reads.setdefault(share.reader, {})
        fixed = {spec for x in share.operands if isinstance(spec := self._spec(x), FixedQParamsQuantizationSpec)}
        observed = any(not isinstance(self._spec(x), FixedQParamsQuantizationSpec) for x in share.operands)
        mixed = len(fixed) > 1 or (bool(fixed) and observed)
        for operand in share.operands:
            if mixed and isinstance(self._spec(operand), FixedQParamsQuantizationSpec):
                # The operand keeps its own parameters; it is requantized on its way into this operator.
                key = (operand, share.reader)
                self._union(share.result, key)
                reads[operand] = key
                continue
            self._union(operand, share.result)
            reads[operand] = operand
        self._specs.setdefault(self._find(share.result), config.output_activation)

    def _annotate_boundary(self) -> None:
        if self.io_config is None:
            return
        for node in self.graph_module.graph.nodes:
            if node.op == "placeholder" and is_float_tensor(node):
                self._join_boundary(node, self.io_config.input_activation)
        output = self.graph_module.graph.output_node()
        reads = self.reads.setdefault(output, {})
        for operand in output.all_input_nodes:
            if not is_float_tensor(operand):
                continue
            inside = self._spec(operand)
            spec = self.io_config.output_activation
            reads[operand] = operand if _same_numbers(inside, spec) or inside is None else (operand, output)
            self._specs.setdefault(self._find(reads[operand]), spec)

    def _join_boundary(self, placeholder: fx.Node, spec: QuantizationSpec) -> None:
        self.written.add(placeholder)
        inside = self._spec(placeholder)
        if inside is None or _same_numbers(inside, spec):
            self._specs.setdefault(self._find(placeholder), spec)
            return
        # Another number format outside: the readers keep theirs and requantize what comes in.
        boundary = (placeholder, "inside")
        for reader in self.reads:
            if self.reads[reader].get(placeholder) is placeholder:
                self.reads[reader][placeholder] = boundary
        self._rename(placeholder, boundary)
        self._specs[self._find(placeholder)] = spec

    # ---- union-find --------------------------------------------------------------------------------

    def _find(self, key: Key) -> Key:
        root = self._parents.setdefault(key, key)
        while root != self._parents[root]:
            root = self._parents[root]
        while key != root:
            self._parents[key], key = root, self._parents[key]
        return root

    def _spec(self, key: Key) -> Spec | None:
        return self._specs.get(self._find(key))

    def _union(self, one: Key, other: Key) -> None:
        a, b = self._find(one), self._find(other)
        if a == b:
            return
        self._parents[b] = a
        spec = self._specs.pop(b, None)
        if spec is not None:
            self._specs.setdefault(a, spec)

    def _rename(self, old: Key, new: Key) -> None:
        """``new`` takes the place of ``old`` in its set; ``old`` becomes a set of its own."""
        root = self._find(old)
        members = [key for key in self._parents if key != old and self._find(key) == root]
        spec = self._specs.pop(root, None)
        for key in [new, *members]:
            self._parents[key] = new
        if spec is not None:
            self._specs[new] = spec
        self._parents[old] = old

    # ---- writing PT2E annotations ------------------------------------------------------------------

    def _write(self) -> None:
        roots: dict[Key, Any] = {}

        def spec_at(key: Key, place: Any) -> Any:
            root = self._find(key)
            if root in roots:
                return SharedQuantizationSpec(roots[root])
            roots[root] = place
            return self._specs[root]

        members: dict[Key, set[fx.Node]] = {}
        for key in list(self._parents):
            if isinstance(key, fx.Node):
                members.setdefault(self._find(key), set()).add(key)
        for node in self.graph_module.graph.nodes:
            inputs: dict[fx.Node, Any] = {}
            for operand, key in self.reads.get(node, {}).items():
                place = (operand, node)
                inputs[operand] = self.derived[place] if place in self.derived else spec_at(key, place)
            output = spec_at(node, node) if node in self.written else None
            if inputs or output is not None:
                # Sharing is spelt out above; PT2E must not add any by comparing specs.
                node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(
                    input_qspec_map=inputs, output_qspec=output, allow_implicit_sharing=False, _annotated=True
                )
        for key, place in roots.items():
            tensors = self.tensors[place] = members.get(key, set())
            inner = {reader for reader in self.reads if reader in tensors}
            users = [(user, tensor) for tensor in tensors for user in tensor.users]
            ends = [(n, t) for n, t in self.regions.items() if t in tensors and n not in self.interior]
            self.readers[place] = [(u, t) for u, t in users if u not in inner and u not in self.interior] + [
                end for end in ends if end not in users
            ]


def _elements(node: fx.Node) -> int:
    """Elements of the activations that ``node`` reads and writes."""
    activations = {x for x in (node, *node.all_input_nodes) if is_float_tensor(x) and not is_constant(x)}
    return sum(x.meta["val"].numel() for x in activations)


def _plain(node: fx.Node) -> bool:
    return node.target not in CLAMPS or has_scalar_bounds(node)


def _same_numbers(one: Spec | None, other: Spec) -> bool:
    return one is not None and (one.dtype, one.quant_min, one.quant_max) == (
        other.dtype,
        other.quant_min,
        other.quant_max,
    )
