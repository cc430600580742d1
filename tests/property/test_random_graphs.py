"""Random models: lowering never raises, partitions are convex, the executed file agrees with the quantized model."""

from __future__ import annotations

import operator

import lowering
import numpy as np
import pytest
import torch
from random_model import RandomModel
from torch import fx

from arm_lower.edge.build import from_module
from arm_lower.edge.program import EdgeProgram, call_delegate
from arm_lower.partition import capability, levels, own_dequantize, partition
from arm_lower.program import EdgeProgramManager
from fvp.ethosu.delegate import run_delegate
from tosa_ref.host import Host

MODELS = 300
BLOCK = 10


def assert_acyclic(program: EdgeProgram) -> None:
    """Every node stands behind all it reads: with delegates as single nodes, that is what convex partitions mean."""
    seen: set[fx.Node] = set()
    for node in program.graph.nodes:
        assert all(n in seen for n in node.all_input_nodes), node.format_node()
        seen.add(node)


def assert_convex(program: EdgeProgram, family: str) -> None:
    """No path leaves a partition and comes back to it, seen on the graph before it was cut."""
    own_dequantize(program.graph)
    reasons: dict = {}
    partitions = None
    while partitions is None:
        supported, _ = capability(program, family, reasons)
        partitions = partition(program.graph, supported, reasons)
    for p in partitions:
        members = set(p.nodes)
        outside = {u for n in members for u in n.users} - members
        reached = set()
        while outside:
            n = outside.pop()
            reached.add(n)
            outside |= set(n.users) - reached
        assert not reached & members
    assert all(v % 2 == (n in supported) for n, v in levels(program.graph, supported).items())


def chain(output: fx.Node) -> float:
    """One step of every quantized operator that a value went through, added up."""
    seen, todo = set(), [output]
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            todo += n.all_input_nodes
    return sum(
        float(n.args[1]) for n in seen if "quantize_per_tensor" in str(n.target) and "dequantize" not in str(n.target)
    )


def check(seed: int) -> None:
    model = RandomModel(seed).eval()
    target = lowering.TARGETS[seed % 2]
    calibration = lowering.samples(*model.inputs, seed=seed, count=3)
    quantized = lowering.quantized(model, calibration)
    assert_convex(from_module(quantized, calibration[0]), target[6:9])
    program = lowering.lowered(quantized, calibration[0], target)
    assert_acyclic(program)
    reasons = {op.name for op in program.cpu_ops}
    left = {
        n.name
        for n in program.graph.nodes
        if n.op == "call_function"
        and n.target not in (call_delegate, operator.getitem)
        and "quantize" not in str(n.target)
    }
    assert left <= reasons, left - reasons
    assert all(op.reason for op in program.cpu_ops)
    for d in program.delegates.values():
        assert any(op.kind not in ("RESHAPE", "TRANSPOSE", "SLICE", "CONCAT", "PAD", "IDENTITY") for op in d.tosa.ops)
    with torch.no_grad():
        wanted = quantized(*calibration[0])
    outputs = torch.utils._pytree.tree_leaves(quantized.graph.output_node().args)
    lowering.execute(program, *calibration[0])  # reference model == NPU model in every delegate
    file = EdgeProgramManager({program.name: program}).to_executorch().buffer
    results = Host(file, delegate_runner=run_delegate).run([x.numpy() for x in calibration[0]])
    for result, want, step, node in zip(results, wanted, lowering.output_steps(quantized), outputs, strict=True):
        found = torch.from_numpy(np.array(result))
        assert found.shape == want.shape and found.dtype == want.dtype
        if step:
            allowed = chain(node)
            difference = float((found - want).abs().max())
            assert difference <= allowed * 1.001, f"{difference / step:.2f} LSB, allowed {allowed / step:.2f}: {model}"


@pytest.mark.parametrize("block", range(MODELS // BLOCK))
def test_random_models(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            check(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {RandomModel(seed)!r}") from error
