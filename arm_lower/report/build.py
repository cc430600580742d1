"""From the values of a compilation to its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from arm_lower.edge.program import CpuOp, Delegate, EdgeProgram
from arm_lower.pte.model import KernelCall, Program
from arm_lower.report.layout import Move, layout_moves
from arm_lower.report.model import Arena, Border, DelegateReport, Layer, Report

if TYPE_CHECKING:
    from arm_lower.program import ExecutorchProgram
    from arm_lower.spec import EthosUCompileSpec
    from arm_lower.vela import Layer as VelaLayer


def build_report(
    program: EdgeProgram | Iterable[EdgeProgram],
    executorch: ExecutorchProgram,
    seconds: Mapping[str, float],
    spec: EthosUCompileSpec | None = None,
    verified: Mapping[str, str] | None = None,
) -> Report:
    """The report of a compilation.

    Args:
        program: The partitioned method or methods.
        executorch: The finished program.
        seconds: Stage -> seconds it took.
        spec: What was compiled for, None without an NPU.
        verified: By delegate, what its check on the NPU model found.
    """
    methods = [program] if isinstance(program, EdgeProgram) else list(program)
    delegates = {name: delegate for method in methods for name, delegate in method.delegates.items()}
    rows = tuple(_delegate(name, d, (verified or {}).get(name, "")) for name, d in delegates.items())
    layers = tuple(layer for name, d in delegates.items() for layer in _layers(name, d, layout_moves(d.tosa)))
    return Report(
        target=spec.target if spec else "",
        system_config=spec.system_config if spec else "",
        memory_mode=spec.memory_mode if spec else "",
        delegates=rows,
        cpu_ops=tuple(_cpu_ops(methods)),
        npu_cycles=sum(d.npu_cycles for d in rows),
        total_cycles=sum(d.total_cycles for d in rows),
        macs=sum(d.macs for d in rows),
        sram_bytes=max((d.sram_bytes for d in rows), default=0),
        weight_bytes=sum(d.weight_bytes for d in rows),
        pte_bytes=len(executorch.buffer),
        constant_bytes=sum(len(c) for c in executorch.program.constants),
        layers=layers,
        borders=tuple(b for name, d in delegates.items() for b in _borders(name, d, layers)),
        arenas=tuple(Arena(m, p.size, p.lower_bound, p.order) for m, p in executorch.plans.items()),
        kernel_calls=_kernel_calls(executorch.program),
        seconds=dict(seconds),
    )


def _cpu_ops(methods: Iterable[EdgeProgram]) -> Iterable[CpuOp]:
    return (op for method in methods for op in method.cpu_ops)


def _kernel_calls(program: Program) -> dict[str, int]:
    calls = Counter(
        str(method.operators[i.operator])
        for method in program.methods
        for i in method.instructions
        if isinstance(i, KernelCall)
    )
    return dict(sorted(calls.items()))


def _delegate(name: str, delegate: Delegate, verified: str) -> DelegateReport:
    vela = delegate.vela
    return DelegateReport(
        name=name,
        npu_cycles=vela.npu_cycles,
        total_cycles=vela.total_cycles,
        macs=vela.macs,
        sram_bytes=vela.sram_bytes,
        scratch_bytes=vela.scratch_size,
        fast_scratch_bytes=vela.scratch_fast_size,
        weight_bytes=vela.weight_bytes,
        command_bytes=len(vela.command_stream),
        tosa_ops=len(delegate.tosa.ops),
        memories=dict(vela.memories),
        settings=vela.settings,
        verified=verified,
    )


def _layers(name: str, delegate: Delegate, moves: Mapping[str, Move]) -> Iterable[Layer]:
    for layer, makes in _with_results(delegate.vela.layers):
        path, _, op = layer.location.rpartition(":")
        move = moves.get(makes)
        yield Layer(
            delegate=name,
            name=layer.name,
            op=layer.op,
            module_path=path,
            torch_op=op,
            npu_cycles=layer.npu_cycles,
            op_cycles=layer.op_cycles,
            macs=layer.macs,
            layout=move.border if move and move.is_made_by(layer.op) else "",
        )


def _with_results(layers: Sequence[VelaLayer]) -> list[tuple[VelaLayer, str]]:
    """Each of Vela's layers with the tensor it is for: of the steps of a split operator only the last bears its name,
    the others are called ``#`` and a number."""
    found: list[tuple[VelaLayer, str]] = []
    for layer in reversed(layers):
        name = layer.name
        if name.startswith("#") and found and (found[-1][0].op, found[-1][0].location) == (layer.op, layer.location):
            name = found[-1][1]
        found.append((layer, name))
    return found[::-1]


def _borders(name: str, delegate: Delegate, layers: Iterable[Layer]) -> Iterable[Border]:
    cycles: Counter[str] = Counter()
    for layer in layers:
        if layer.delegate == name:
            cycles[layer.layout] += layer.op_cycles
    sides = (
        ("input", delegate.tosa.inputs, delegate.vela.inputs),
        ("output", delegate.tosa.outputs, delegate.vela.outputs),
    )
    for direction, tensors, places in sides:
        for tensor, place in zip(tensors, places, strict=True):
            yield Border(
                delegate=name,
                direction=direction,
                name=tensor.name,
                shape=tensor.shape,
                dtype=str(tensor.dtype),
                nbytes=place.size,
                layout_cycles=cycles[f"{direction} {tensor.name}"],
            )
