"""The Edge program: one method as a functional ATen graph with its constants beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx

if TYPE_CHECKING:
    from arm_lower.tosa.ir import Graph
    from arm_lower.vela import VelaResult


@dataclass
class Delegate:
    """A compiled subgraph.

    Attributes:
        backend_id: Name under which the ExecuTorch runtime finds the backend, ``EthosUBackend``.
        processed: What the backend gets at load time (for Ethos-U the "vela bin stream").
        compile_specs: Key and raw value pairs, documentation for readers of the file.
        tosa: The TOSA graph that was compiled, and its flatbuffer.
        tosa_bytes: Flatbuffer of ``tosa``.
        vela: Cycles, memory and I/O of the compiled stream.
    """

    backend_id: str
    processed: bytes
    compile_specs: list[tuple[str, bytes]]
    tosa: Graph
    tosa_bytes: bytes
    vela: VelaResult


@dataclass(frozen=True)
class CpuOp:
    """An operator left on the CPU, and why."""

    name: str
    op: str
    module_path: str
    reason: str
    hint: str = ""


@dataclass
class EdgeProgram:
    """One method.

    The graph is functional (no in-place operator), every node has ``meta["val"]`` (FakeTensor or tuple of
    them) and ``meta["nn_module_stack"]`` where known. Placeholders are the user inputs first, then one for
    each entry of ``constants``. The output node returns a flat tuple: new values of the ``mutated``
    buffers first, then the user outputs.

    Attributes:
        name: Method name in the ``.pte``.
        graph_module: The graph.
        constants: Placeholder name -> parameter, buffer or lifted constant.
        mutated: Placeholder names of the buffers that the first outputs update.
        delegates: Key (first argument of a `call_delegate` node) -> compiled subgraph.
        cpu_ops: What the partitioner left on the CPU, with its reasons.
    """

    name: str
    graph_module: fx.GraphModule
    constants: dict[str, torch.Tensor]
    mutated: tuple[str, ...] = ()
    delegates: dict[str, Delegate] = field(default_factory=dict)
    cpu_ops: list[CpuOp] = field(default_factory=list)

    @property
    def graph(self) -> fx.Graph:
        return self.graph_module.graph

    def user_inputs(self) -> list[fx.Node]:
        """Placeholders that the caller fills, in argument order."""
        return [n for n in self.graph.nodes if n.op == "placeholder" and n.name not in self.constants]

    def outputs(self) -> list[Any]:
        """Operands of the output node: ``mutated`` values, then user outputs."""
        results: Any = self.graph.output_node().args[0]
        return list(results)

    def __str__(self) -> str:
        return f"{self.name}: {self.graph}"


class Partitioner(Protocol):
    """Moves subgraphs to a backend."""

    def lower(self, program: EdgeProgram) -> EdgeProgram:
        """The program with `call_delegate` nodes in place of what the backend takes.

        Never raises for a valid program.
        """
        ...


def call_delegate(key: str, *args: torch.Tensor) -> Sequence[torch.Tensor]:
    """Target of a delegate call node: ``key`` of `EdgeProgram.delegates`, then the inputs in delegate order.

    The node's value is a tuple, read through ``operator.getitem`` nodes. It is a marker and cannot run.
    """
    raise RuntimeError(f"delegate {key} runs on the NPU, not in torch")


def add_constant(program: EdgeProgram, name: str, value: torch.Tensor, fake: torch.Tensor) -> fx.Node:
    """A new constant behind all placeholders; its node has the value ``fake``."""
    new = last_placeholder(program.graph, name)
    new.meta["val"] = fake
    program.constants[new.name] = value
    return new


def last_placeholder(graph: fx.Graph, name: str) -> fx.Node:
    """A new placeholder behind all others; the first node if there are none."""
    last = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), None)
    with graph.inserting_before(None) if last is None else graph.inserting_after(last):
        return graph.placeholder(name)
