"""Quantize a module, move it to the NPU and run the result: what operator and property tests share."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from arm_lower.edge.build import from_module
from arm_lower.edge.program import EdgeProgram, call_delegate
from arm_lower.partition import EthosUPartitioner
from arm_lower.spec import EthosUCompileSpec
from fvp.ethosu.delegate import run_delegate
from quant import EthosUQuantizer, quantize
from tosa_ref.run import run

TARGETS = ("ethos-u55-128", "ethos-u85-256")


def samples(
    *shapes: Sequence[int], seed: int = 0, count: int = 4, scale: float = 1.0
) -> list[tuple[torch.Tensor, ...]]:
    """Random argument tuples, smooth enough for the quantizer not to take them for noise."""
    g = torch.Generator().manual_seed(seed)
    return [
        tuple(
            scale * torch.cumsum(torch.randn(tuple(s), generator=g), -1) / max(s[-1], 1) ** 0.5
            if len(s)
            else torch.randn((), generator=g)
            for s in shapes
        )
        for _ in range(count)
    ]


def quantized(
    module: nn.Module, calibration: Sequence[tuple[Any, ...]], quantizer: EthosUQuantizer | None = None
) -> fx.GraphModule:
    return quantize(module.eval(), calibration[0], calibration, quantizer or EthosUQuantizer())


def lowered(graph_module: fx.GraphModule, example: tuple[Any, ...], target: str = TARGETS[0]) -> EdgeProgram:
    return EthosUPartitioner(EthosUCompileSpec(target, effort="fast")).lower(from_module(graph_module, example))


class Execute(fx.Interpreter):
    """Runs a partitioned program: CPU nodes in torch, delegates on the TOSA reference model and, byte for byte the same, their
    command streams on the NPU model."""

    def __init__(self, program: EdgeProgram) -> None:
        super().__init__(program.graph_module)
        self.program = program

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is not call_delegate:
            return super().call_function(target, args, kwargs)
        delegate = self.program.delegates[args[0]]
        inputs = [
            np.array(t.numpy(), order="C").reshape(i.shape) for t, i in zip(args[1:], delegate.tosa.inputs, strict=True)
        ]
        outputs = run(delegate.tosa, inputs)
        for want, found in zip(outputs, run_delegate(0, delegate.processed, inputs), strict=True):
            assert want.tobytes() == found.tobytes(), (
                f"NPU model differs from the reference model in delegate {args[0]}"
            )
        return tuple(torch.from_numpy(np.array(o, order="C")) for o in outputs)


def execute(program: EdgeProgram, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """User outputs of a program for contiguous inputs."""
    given = iter(inputs)
    args = [
        program.constants[n.name] if n.name in program.constants else next(given)
        for n in program.graph.nodes
        if n.op == "placeholder"
    ]
    with torch.no_grad():
        return list(Execute(program).run(*args))[len(program.mutated) :]


def output_steps(graph_module: fx.GraphModule) -> list[float]:
    """Scale of each quantized output."""
    outputs = torch.utils._pytree.tree_leaves(graph_module.graph.output_node().args)
    return [float(n.args[1]) if isinstance(n, fx.Node) and "dequantize" in str(n.target) else 0.0 for n in outputs]


def compute_nodes(program: EdgeProgram) -> list[str]:
    """Operators left on the CPU, quantize and dequantize apart."""
    skip = ("quantize", "getitem", "call_delegate")
    return [
        str(n.target)
        for n in program.graph.nodes
        if n.op == "call_function" and n.target is not operator.getitem and not any(s in str(n.target) for s in skip)
    ]


def check(
    module: nn.Module,
    calibration: Sequence[tuple[Any, ...]],
    target: str,
    lsb: float = 1.0,
    delegates: int = 1,
    quantizer: EthosUQuantizer | None = None,
) -> EdgeProgram:
    """The module as one delegate, within ``lsb`` output steps of the quantized model in torch."""
    q = quantized(module, calibration, quantizer)
    program = lowered(q, calibration[0], target)
    assert len(program.delegates) == delegates, program.cpu_ops
    assert not program.cpu_ops, program.cpu_ops
    for sample in calibration[:2]:
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_leaves(q(*sample))
        for found, want, step in zip(execute(program, *sample), wanted, output_steps(q), strict=True):
            assert found.shape == want.shape
            difference = float((found - want).abs().max()) if want.numel() else 0.0
            assert difference <= lsb * step * 1.001 + 1e-6, f"{difference / (step or 1):.2f} LSB"
    return program
