"""Which nodes go to the NPU, in which delegates, and their compilation.

There is no list of supported operators: a node goes to the NPU when its lowering succeeds. Partitions are
convex by construction: every node gets a level that rises each time a path changes between CPU and NPU, and
the NPU nodes of one level are one partition, so a path that leaves a partition never comes back to it. What
fails later (in a partition of its own, or in Vela) moves to the CPU with the reason, and the work is repeated.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from arm_lower import vela
from arm_lower.edge.composite import recognize
from arm_lower.edge.meta import is_channels_last, module_path, target_name
from arm_lower.edge.program import CpuOp, Delegate, EdgeProgram, call_delegate
from arm_lower.errors import ArmLowerError, Unsupported, VelaError
from arm_lower.ops.value import Value, logical, stored
from arm_lower.ops.walk import Walk, is_dequantize, is_quantize
from arm_lower.pte import ethosu_blob
from arm_lower.spec import EthosUCompileSpec
from arm_lower.targets import faults
from arm_lower.tosa.ir import Graph, Op, Tensor
from arm_lower.tosa.rewrite import optimize
from arm_lower.tosa.serialize import to_flatbuffer
from arm_lower.tosa.verify import verify

_log = logging.getLogger(__name__)

BACKEND = "EthosUBackend"

# Operators that only move data: a partition of nothing else is not worth a delegate.
MOVES = frozenset({"RESHAPE", "TRANSPOSE", "SLICE", "CONCAT", "PAD", "TILE", "IDENTITY", "REVERSE"})


@dataclass(frozen=True)
class Reason:
    message: str
    hint: str = ""


@dataclass
class Partition:
    """One delegate to be: its nodes in graph order, and what crosses its border.

    ``nodes`` are NPU nodes and the dequantize nodes that feed them.
    """

    nodes: list[fx.Node]
    outputs: list[fx.Node]
    inputs: list[fx.Node] = field(default_factory=list)
    graph: Graph | None = None


@dataclass(frozen=True)
class EthosUPartitioner:
    """Moves what the NPU can run into Ethos-U delegates.

    Args:
        spec: Target and Vela settings.
        refused: Nodes, by name, that stay on the CPU, and why.

    Raises:
        ArmLowerError: ``spec`` is something else.
    """

    spec: EthosUCompileSpec
    refused: Mapping[str, Reason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.spec, EthosUCompileSpec):
            given = repr(self.spec) if isinstance(self.spec, str) else f"a {type(self.spec).__name__}"
            raise ArmLowerError(f"EthosUPartitioner was given {given}, not an EthosUCompileSpec",
                                "write EthosUPartitioner(EthosUCompileSpec('ethos-u55-128'))")  # fmt: skip

    def lower(self, program: EdgeProgram) -> EdgeProgram:
        """The program with delegates; every operator left on the CPU is listed in ``cpu_ops`` with its reason."""
        recognize(program.graph)
        program.graph.eliminate_dead_code()
        own_dequantize(program.graph)
        order = {n: i for i, n in enumerate(program.graph.nodes)}
        reasons: dict[fx.Node, Reason] = {}
        whole = Partition([n for n in program.graph.nodes if n.op == "call_function"], [])
        for stem, reason in self.refused.items():
            _move(node_named(stem, whole), whole, reason, reasons)
        while True:
            supported, walk = capability(program, self.spec.family, reasons)
            partitions = partition(program.graph, supported, reasons)
            if partitions is None:
                continue
            walks: list[Walk | None] = [walk]
            if len(partitions) != 1:
                walks = [walk_partition(p, self.spec, program, reasons) for p in partitions]
            built = [
                w is not None and build_graph(p, f"{program.name}_{i}", self.spec, w, reasons)
                for i, (p, w) in enumerate(zip(partitions, walks, strict=True))
            ]
            if not all(built):
                continue
            delegates = [compile_partition(p, self.spec, reasons) for p in partitions]
            if all(d is not None for d in delegates):
                break
        cpu_ops = [cpu_op(n, reasons.get(n)) for n in sorted(reasons, key=order.__getitem__) if is_compute(n)]
        result = replace(program, delegates=dict(program.delegates), cpu_ops=[*program.cpu_ops, *cpu_ops])
        moved: dict[fx.Node, fx.Node] = {}
        for p, delegate in zip(partitions, delegates, strict=True):
            key = f"{program.name}_{len(result.delegates)}"
            result.delegates[key] = delegate  # type: ignore[assignment]
            insert_call(program.graph, key, p, moved)
        sort(program.graph)
        program.graph.eliminate_dead_code()
        program.graph.lint()
        program.graph_module.recompile()
        return result


def is_compute(node: fx.Node) -> bool:
    return (
        node.op == "call_function"
        and node.target is not operator.getitem
        and not is_quantize(node)
        and not is_dequantize(node)
    )


def cpu_op(node: fx.Node, reason: Reason | None) -> CpuOp:
    found = reason or Reason("not lowered")
    return CpuOp(node.name, target_name(node), module_path(node), found.message, found.hint)


def own_dequantize(graph: fx.Graph) -> None:
    """One dequantize node for each reader, so that it can go where its reader goes."""
    for node in list(graph.nodes):
        if not is_dequantize(node):
            continue
        for user in list(node.users)[1:]:
            with graph.inserting_before(user):
                copy = graph.call_function(node.target, node.args, node.kwargs)
            copy.meta = dict(node.meta)
            user.replace_input_with(node, copy)


def is_float(node: fx.Node) -> bool:
    val = node.meta.get("val")
    values = val if isinstance(val, (list, tuple)) else [val]
    return any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)


def capability(program: EdgeProgram, family: str, reasons: dict[fx.Node, Reason]) -> tuple[set[fx.Node], Walk]:
    """The nodes whose lowering succeeds, given what is on the CPU already; ``reasons`` grows by those that fail.

    A float result can only be used on the NPU (its integers exist there, its reals nowhere), so a node with
    a float result and a reader on the CPU is on the CPU as well, and the walk is repeated.

    Returns:
        The nodes, and the walk that lowered them and nothing else.
    """
    while True:
        before = len(reasons)
        supported, walk = _walk_all(program, family, reasons)
        for node in reversed(list(program.graph.nodes)):
            if node not in supported or is_dequantize(node) or not is_float(node):
                continue
            reader = next((u for u in node.users if u not in supported), None)
            if reader is not None or not node.users:
                supported.discard(node)
                blame = reasons.get(reader) if reader is not None else None
                reasons[node] = Reason(
                    f"its result is needed as float by {reader.name} on the CPU: {blame.message}"
                    if reader is not None and blame
                    else "its result is a float that no quantize node follows",
                    blame.hint if blame else "annotate its output in the quantizer",
                )
        if len(reasons) == before:
            return supported, walk


def fixed_constants(program: EdgeProgram) -> dict[str, torch.Tensor]:
    """The constants without the buffers that the program changes: those are inputs of whatever reads them."""
    return {name: tensor for name, tensor in program.constants.items() if name not in program.mutated}


def _walk_all(program: EdgeProgram, family: str, reasons: dict[fx.Node, Reason]) -> tuple[set[fx.Node], Walk]:
    walk = Walk(program.name, family, fixed_constants(program))
    supported: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op != "call_function" or node in reasons:
            continue
        try:
            walk.lower(node)
        except Unsupported as error:
            for culprit in walk.blamed(node):
                if not (is_dequantize(culprit) or is_quantize(culprit)):
                    reasons.setdefault(culprit, Reason(error.message, error.hint))
                    supported.discard(culprit)
            continue
        supported.add(node)
    return supported, walk


def levels(graph: fx.Graph, supported: set[fx.Node]) -> dict[fx.Node, int]:
    """Level of each operator: a path's level rises by one each time it changes between CPU and NPU.

    Dequantize nodes belong to their only reader, constants to nobody. NPU nodes have odd levels.
    """
    level: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op != "call_function" or is_dequantize(node):
            continue
        npu = node in supported
        level[node] = 1 if npu else 0
        for source in feeding(node):
            if source in level:
                crosses = (level[source] % 2 == 1) != npu
                level[node] = max(level[node], level[source] + crosses)
    return level


def feeding(node: fx.Node) -> Iterable[fx.Node]:
    """Input nodes, seen through dequantize nodes."""
    for source in node.all_input_nodes:
        yield from feeding(source) if is_dequantize(source) else (source,)


def partition(graph: fx.Graph, supported: set[fx.Node], reasons: dict[fx.Node, Reason]) -> list[Partition] | None:
    """The convex partitions of the supported nodes, or None after a node had to move to the CPU (then ask again)."""
    level = levels(graph, supported)
    nodes = list(graph.nodes)
    for node in reversed(nodes):
        if node not in supported or is_dequantize(node) or not is_float(node):
            continue
        wanted = {level[u] for u in node.users if u in level}
        if len(wanted) > 1:
            reasons[node] = Reason("its float result is read in two partitions", "quantize its output")
            return None
        # a float result never crosses a border, so its node moves to where it is read
        level[node] = wanted.pop()
    groups: dict[int, list[fx.Node]] = {}
    for node in nodes:
        if node in supported and not is_dequantize(node):
            groups.setdefault(level[node], []).append(node)
    return [make_partition(nodes, set(group)) for _, group in sorted(groups.items())]


def make_partition(order: Sequence[fx.Node], group: set[fx.Node]) -> Partition:
    feeders = {s for n in group for s in n.all_input_nodes if is_dequantize(s)}
    members = [n for n in order if n in group or n in feeders]
    outputs = [n for n in members if n in group and any(u not in group and u not in feeders for u in n.users)]
    return Partition(members, outputs)


def walk_partition(
    p: Partition, spec: EthosUCompileSpec, program: EdgeProgram, reasons: dict[fx.Node, Reason]
) -> Walk | None:
    """A walk that has lowered the nodes of ``p`` alone, or None after the one that failed is in ``reasons``."""
    walk = Walk(program.name, spec.family, fixed_constants(program))
    for node in p.nodes:
        try:
            walk.lower(node)
        except Unsupported as error:
            for culprit in walk.blamed(node):
                reasons.setdefault(culprit, Reason(error.message, error.hint))
            return None
    return walk


def build_graph(p: Partition, name: str, spec: EthosUCompileSpec, walk: Walk, reasons: dict[fx.Node, Reason]) -> bool:
    """Makes the TOSA graph of a partition.

    Args:
        p: The partition; gets the graph and its inputs.
        name: Of the graph.
        spec: Target.
        walk: One that has lowered the nodes of the partition and nothing else.
        reasons: Why nodes are on the CPU.

    Returns:
        False if the partition does nothing or an operator of it may not go to Vela: then ``reasons`` has why, and the
        work is repeated.
    """
    b = walk.builder
    b.graph.name = name
    for node in p.outputs:
        b.location, b.stem = f"{module_path(node)}:output layout".lstrip(":"), f"{node.name}.out"
        try:
            b.graph.outputs.append(output_tensor(walk, node))
        except Unsupported as error:  # a pending reshape or permutation is done only here
            _move(node, p, Reason(error.message, error.hint), reasons)
            return False
    graph = optimize(b.graph)
    try:
        avoided = faults.avoid(graph, f"{spec.family}-{spec.macs}")
    except faults.Miscompiled as error:
        _move(node_of(error.op, p), p, Reason(error.message, error.hint), reasons)
        return False
    for fault in avoided:
        _log.info("%s: avoided that %s", name, fault)
    verify(graph)
    if all(op.kind in MOVES for op in graph.ops):
        for node in p.nodes:
            if not is_dequantize(node):
                reasons.setdefault(node, Reason("only moves data, with nothing to compute beside it on the NPU"))
        return False
    read = {t for op in graph.ops for t in op.inputs}
    p.graph, p.inputs = graph, [n for n, t in zip(walk.inputs, graph.inputs, strict=True) if t in read]
    graph.inputs = [t for t in graph.inputs if t in read]  # Vela drops what nothing reads
    return True


def output_tensor(walk: Walk, node: fx.Node) -> Tensor:
    """A node's value in the order that its reader expects; a tensor of its own."""
    value, b = walk.value(node), walk.builder
    if not isinstance(value, Value):
        raise Unsupported(f"{node.name} is not an integer tensor")
    tensor = stored(value, (0, 2, 3, 1), b) if is_channels_last(node.meta["val"]) else logical(value, b)
    if tensor in b.graph.inputs or tensor in b.graph.outputs or tensor.data is not None:
        return b.op("IDENTITY", [tensor])
    return tensor


def compile_partition(p: Partition, spec: EthosUCompileSpec, reasons: dict[fx.Node, Reason]) -> Delegate | None:
    """The delegate, or None after the operator that Vela refused is in ``reasons``."""
    graph = p.graph
    if graph is None:
        raise Unsupported("the partition has not been lowered")
    data = to_flatbuffer(graph)
    try:
        result = vela.compile(data, spec)
    except VelaError as error:
        culprit = refused_node(p, spec)
        _log.warning("Vela refuses %s: %s", culprit.name, error.message)
        _move(culprit, p, Reason(error.message, error.hint), reasons)
        return None
    return Delegate(BACKEND, packed(result), spec.compile_specs(), graph, data, result)


def packed(result: vela.VelaResult) -> bytes:
    """Vela's result as the backend takes it."""
    return ethosu_blob.pack(
        result.command_stream, result.read_only, result.scratch_size, result.inputs, result.outputs
    )


def refused_node(p: Partition, spec: EthosUCompileSpec) -> fx.Node:
    """The node whose operators Vela refuses: the end of the shortest prefix of the graph that does not compile."""
    graph = p.graph or Graph("")
    low, high = 0, len(graph.ops)
    while high - low > 1:
        middle = (low + high) // 2
        if _compiles(prefix(graph, middle), spec):
            low = middle
        else:
            high = middle
    return node_of(graph.ops[high - 1], p)


def node_of(op: Op, p: Partition) -> fx.Node:
    """The node that ``op`` was made for."""
    return node_named(op.output.name.split(".")[0], p)


def node_named(stem: str, p: Partition) -> fx.Node:
    """The node that tensors whose names start with ``stem`` were made for."""
    # a requantization bears the name of the dequantize node that is read: its quantize node is the one to move
    named = [u for n in p.nodes if n.name == stem for u in (n.users if is_dequantize(n) else (n,))]
    return next(n for n in [*named, *p.nodes] if n in p.nodes and not is_dequantize(n))


def prefix(graph: Graph, count: int) -> Graph:
    """The first ``count`` operators, with every result that nobody reads as an output."""
    ops = graph.ops[:count]
    read = {t for op in ops for t in op.inputs}
    return Graph(
        graph.name, [t for t in graph.inputs if t in read], [t for op in ops for t in op.outputs if t not in read], ops
    )


def _compiles(graph: Graph, spec: EthosUCompileSpec) -> bool:
    try:
        vela.compile(to_flatbuffer(graph), replace(spec, effort="fast", sram_limit=None))
    except VelaError:
        return False
    return True


def _move(node: fx.Node, p: Partition, reason: Reason, reasons: dict[fx.Node, Reason]) -> None:
    """Moves a node of the partition to the CPU, with what must go with it."""
    for member in _unit(node, p):
        reasons.setdefault(member, reason)


def _unit(node: fx.Node, p: Partition) -> set[fx.Node]:
    """The node and those joined to it by float results, up to the next quantize nodes.

    Those stay, but a quantize node that stands alone goes.
    """
    unit, todo = set(), [node]
    members = {n for n in p.nodes if not is_dequantize(n)}
    while todo:
        n = todo.pop()
        if n in unit or n not in members or is_quantize(n) and n is not node:
            continue
        unit.add(n)
        todo += [s for s in n.all_input_nodes if is_float(s)]
        todo += [] if is_quantize(n) or not is_float(n) else list(n.users)
    return {n for n in unit if not is_quantize(n)} or {node}


def insert_call(graph: fx.Graph, key: str, p: Partition, moved: dict[fx.Node, fx.Node]) -> None:
    """Puts the delegate call in place of the partition's nodes.

    ``moved`` has the results of earlier calls under the nodes that they replaced, and gets those of this one.
    """
    with graph.inserting_after(p.nodes[-1]):
        call = graph.call_function(call_delegate, (key, *(moved.get(n, n) for n in p.inputs)))
    call.meta["val"] = tuple(n.meta["val"] for n in p.outputs)
    members = set(p.nodes)
    at = call
    for i, node in enumerate(p.outputs):
        with graph.inserting_after(at):
            item = graph.call_function(operator.getitem, (call, i))
        item.meta = dict(node.meta)
        at = moved[node] = item
        for user in list(node.users):
            if user not in members:
                user.replace_input_with(node, item)
    for node in reversed(p.nodes):
        if not node.users:
            graph.erase_node(node)


def sort(graph: fx.Graph) -> None:
    """Stable topological order: the calls moved after what they read, everything else where it was."""
    nodes: list[fx.Node] = list(graph.nodes)
    position = {n: i for i, n in enumerate(nodes)}
    done: set[fx.Node] = set()
    ordered: list[fx.Node] = []
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [s for s in node.all_input_nodes if s not in done]
            if node in done or not waiting:
                stack.pop()
                if node not in done:
                    done.add(node)
                    ordered.append(node)
            else:
                stack += sorted(waiting, key=position.__getitem__, reverse=True)
    anchor: Any = graph._root
    for node in ordered:
        anchor.append(node)
        anchor = node
