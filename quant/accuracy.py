"""Where a quantized model loses accuracy, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from arm_lower.errors import QuantizationError
from quant.annotate import RULES, movement, pool
from quant.graph import normalize
from quant.quantizer import module_stack

_MOVES = (movement.movement, movement.padding, movement.joining, pool.selection)
_Steps = dict[fx.Node, fx.Node]
_qdq = torch.ops.quantized_decomposed


@dataclass(frozen=True)
class LayerAccuracy:
    """One quantized activation.

    Attributes:
        name: Node that makes it.
        op: Its operator.
        module_path: Module of the user's model, or an empty string.
        sqnr_db: Signal to error of the tensor in the quantized model, with all errors from the layers before it:
            10 log10(sum y^2 / sum (y - q)^2); infinite for no error.
        own_db: The same if only this tensor were quantized: the price of its own steps and range.
        clipped: Share of its values that lie outside the range.
        blame: Share of the error of the model's outputs that this tensor makes alone (the shares of all add up to
            1), or None if not asked for.
    """

    name: str
    op: str
    module_path: str
    sqnr_db: float
    own_db: float
    clipped: float
    blame: float | None = None


@dataclass(frozen=True)
class AccuracyReport:
    """What `compare_layers` found.

    Attributes:
        layers: In execution order.
        outputs_db: SQNR of each float output of the model.
        samples: Number of samples.
    """

    layers: tuple[LayerAccuracy, ...]
    outputs_db: tuple[float, ...]
    samples: int

    def worst(self, count: int = 10) -> list[LayerAccuracy]:
        """The layers that cost the most: by blame where known, else by their own SQNR."""
        key = (lambda x: -(x.blame or 0.0)) if any(x.blame is not None for x in self.layers) else (lambda x: x.own_db)
        return sorted(self.layers, key=key)[:count]

    def __str__(self) -> str:
        rows = [("SQNR dB", "own dB", "clipped", "blame", "layer", "operator", "module")]
        for x in self.layers:
            blame = "" if x.blame is None else f"{100 * x.blame:.1f} %"
            figures = (f"{x.sqnr_db:.1f}", f"{x.own_db:.1f}", f"{100 * x.clipped:.2f} %", blame)
            rows.append((*figures, x.name, x.op, x.module_path))
        widths = [max(len(row[i]) for row in rows) for i in range(7)]
        lines = []
        for row in rows:
            cells = [c.rjust(w) if i < 4 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, "outputs: " + ", ".join(f"{v:.1f} dB" for v in self.outputs_db)])


@dataclass
class _Sums:
    signal: float = 0.0
    error: float = 0.0
    own: float = 0.0
    outside: int = 0
    count: int = 0
    output_error: float = 0.0


def sqnr_db(reference: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    """10 log10(sum y^2 / sum (y - q)^2) over all tensors together; infinite for no error."""
    signal = sum(float((y.double() ** 2).sum()) for y in reference)
    error = sum(float(((y.double() - q.double()) ** 2).sum()) for y, q in zip(reference, found))
    return _db(signal, error)


def compare_layers(
    model: nn.Module | ExportedProgram,
    quantized: fx.GraphModule,
    samples: Iterable[tuple[Any, ...]],
    *,
    blame: bool = False,
) -> AccuracyReport:
    """Runs the float and the quantized model side by side.

    Args:
        model: The float model that was quantized.
        quantized: What `convert_pt2e` returned for it.
        samples: Argument tuples.
        blame: Also run the model once for each quantized tensor with only that tensor quantized.

    Raises:
        QuantizationError: ``quantized`` is not a quantized form of ``model``, or there is no sample.
    """
    data = [tuple(sample) for sample in samples]
    if not data:
        raise QuantizationError("there is no sample to compare on")
    exported = model if isinstance(model, ExportedProgram) else torch.export.export(model, data[0])
    reference = normalize(exported.module(check_guards=False), is_qat=False)
    steps = _quantized_activations(quantized)
    names = {node.name for node in reference.graph.nodes}
    missing = [source.name for source in steps.values() if source.name not in names]
    if not steps or missing:
        found = f"the model has no node {missing[0]}" if missing else "it has no quantize operator"
        raise QuantizationError(f"the graph is not a quantized form of this model: {found}")
    sums = {dq: _Sums() for dq in steps}
    outputs: list[_Sums] = []
    with torch.no_grad():
        for sample in data:
            exact = _Recorder(reference, {source.name for source in steps.values()})
            expected = _float_leaves(exact.run(*sample))
            seen = _Recorder(quantized, {dq.name for dq in steps})
            found_outputs = _float_leaves(seen.run(*sample))
            outputs = outputs or [_Sums() for _ in expected]
            for total, y, q in zip(outputs, expected, found_outputs):
                total.signal += _power(y)
                total.error += _power(y - q)
            for dq, source in steps.items():
                _add(sums[dq], dq, exact.values[source.name], seen.values[dq.name])
            if blame:
                _blame(quantized, steps, sample, sums)
    total_error = sum(s.output_error for s in sums.values())
    layers = tuple(
        LayerAccuracy(
            source.name,
            str(source.target),
            stack[-1][0] if (stack := module_stack(source)) else "",
            _db(s.signal, s.error),
            _db(s.signal, s.own),
            s.outside / max(s.count, 1),
            (s.output_error / total_error if total_error else 0.0) if blame else None,
        )
        for (_, source), s in zip(steps.items(), sums.values())
    )
    return AccuracyReport(layers, tuple(_db(s.signal, s.error) for s in outputs), len(data))


def _quantized_activations(quantized: fx.GraphModule) -> _Steps:
    """Dequantize node -> node whose tensor it stands for; the first one for each tensor."""
    found: _Steps = {}
    for node in quantized.graph.nodes:
        if node.target is not _qdq.dequantize_per_tensor.default or not isinstance(node.args[0], fx.Node):
            continue
        quantize = node.args[0]
        if quantize.target is _qdq.quantize_per_tensor.default and isinstance(quantize.args[0], fx.Node):
            source = quantize.args[0]
            if source.target is not _qdq.dequantize_per_tensor.default:
                found[node] = source
    return found


@dataclass
class _Recorder:
    """Runs a graph and keeps the values of the named nodes."""

    graph_module: fx.GraphModule
    names: set[str]
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def run(self, *args: Any) -> Any:
        recorder = self

        class Run(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                value = super().run_node(n)
                if n.name in recorder.names:
                    recorder.values[n.name] = value
                return value

        return Run(self.graph_module).run(*args)


def _blame(gm: fx.GraphModule, steps: _Steps, sample: tuple[Any, ...], sums: dict[fx.Node, _Sums]) -> None:
    """Adds the squared error of the outputs with one tensor at a time quantized."""
    active: list[fx.Node | None] = [None]

    class Run(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            if n in steps and n is not active[0]:
                return self.env[steps[n]]
            return super().run_node(n)

    run = Run(gm, garbage_collect_values=False)
    exact = _float_leaves(run.run(*sample))
    for dq, source in steps.items():
        if RULES.get(source.target) in _MOVES:
            continue  # what it moves is on the same grid already
        active[0] = dq
        sums[dq].output_error += sum(_power(y - q) for y, q in zip(exact, _float_leaves(run.run(*sample))))


def _add(total: _Sums, dq: fx.Node, exact: torch.Tensor, found: torch.Tensor) -> None:
    scale, zero_point, low, high, dtype = (dq.args[i] for i in range(1, 6))
    integers = _qdq.quantize_per_tensor.default(exact, scale, zero_point, low, high, dtype)
    alone = _qdq.dequantize_per_tensor.default(integers, scale, zero_point, low, high, dtype)
    unbounded = torch.round(exact.double() / float(scale)) + int(zero_point)  # type: ignore[arg-type]
    total.signal += _power(exact)
    total.error += _power(exact - found)
    total.own += _power(exact - alone)
    total.outside += int(((unbounded < low) | (unbounded > high)).sum())
    total.count += exact.numel()


def _float_leaves(outputs: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def _power(x: torch.Tensor) -> float:
    return float((x.double() ** 2).sum())


def _db(signal: float, error: float) -> float:
    if error == 0:
        return math.inf
    return 10 * math.log10(signal / error) if signal > 0 else -math.inf


__all__ = ["AccuracyReport", "LayerAccuracy", "compare_layers", "sqnr_db"]
