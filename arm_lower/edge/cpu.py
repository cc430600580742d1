"""Make what stays on the CPU runnable by the portable kernels.

`prepare` folds constants, expands operators without a kernel, settles memory layouts and turns numbers into
tensors where a kernel takes only tensors. Delegate calls are left alone: a delegate reads and writes each
tensor in the layout that the strides of its node's value say.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from arm_lower.edge.decompose import expand
from arm_lower.edge.meta import DEQUANTIZE_TARGETS, describe, fake, is_channels_last, op_name, val
from arm_lower.edge.program import EdgeProgram, add_constant, call_delegate
from arm_lower.errors import ArmLowerError
from arm_lower.kernels import unusable

_aten = torch.ops.aten

# A folded constant may take this many bytes even if what it is computed from is smaller.
_FOLD_LIMIT = 64 * 1024

_EMPTY = frozenset({"empty", "empty_like", "new_empty", "empty_permuted", "empty_strided", "new_empty_strided"})

# Kernels that go over raw memory, so that any layout does as long as all operands share it.
_ANY_LAYOUT = frozenset(
    "quantize_per_tensor dequantize_per_tensor relu hardtanh clamp sigmoid tanh gelu elu leaky_relu neg abs exp log "
    "sqrt rsqrt reciprocal add sub mul div maximum minimum clone".split()
)


def prepare(program: EdgeProgram) -> None:
    """Rewrite ``program`` in place so that every operator outside delegates has a usable kernel.

    Raises:
        ArmLowerError: Operators that no portable kernel runs and that have no decomposition; names them all.
    """
    fold_constants(program)
    _expand_all(program)
    _settle_layouts(program)
    fold_constants(program)
    _fit_scalars(program)
    _own_outputs(program)
    _remove_dead(program)


def fold_constants(program: EdgeProgram) -> None:
    """Compute what depends on constants only.

    A value is folded if it takes at most 64 KiB, or no more than the constants it comes from, or dequantizes a
    constant (computing that at each inference would need the memory in RAM), or has no kernel. So is one without
    elements, since kernels refuse it. Random operators and buffers that change are never folded.
    """
    mutable = set(program.mutated)
    values: dict[fx.Node, Any] = {}
    sources: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in program.constants and node.name not in mutable:
            sources[node] = frozenset({node})
        elif _can_fold(node) and _is_empty(node):
            sources[node] = frozenset()
        elif _can_fold(node) and all(n in sources for n in node.all_input_nodes):
            sources[node] = frozenset().union(*(sources[n] for n in node.all_input_nodes))
    for node in [n for n in sources if n.op == "call_function"]:
        leaves = any(user not in sources for user in node.users)
        if leaves and isinstance(node.meta["val"], torch.Tensor) and _worth_folding(node, sources, program):
            _materialize(program, node, values)
    if values:
        _remove_dead(program)


def _can_fold(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags


def _is_empty(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.numel() == 0


def _worth_folding(node: fx.Node, sources: dict[fx.Node, frozenset[fx.Node]], program: EdgeProgram) -> bool:
    nbytes = val(node).numel() * val(node).element_size()
    if nbytes <= max(_FOLD_LIMIT, sum(_nbytes(program.constants[s.name]) for s in sources[node])):
        return True
    if not isinstance(node.target, OpOverload):
        return True
    return any(op_name(n.target) in DEQUANTIZE_TARGETS for n in _ancestors(node)) or _missing(node) is not None


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _ancestors(node: fx.Node) -> Iterable[fx.Node]:
    seen = {node: None}
    stack = [node]
    while stack:
        for source in stack.pop().all_input_nodes:
            if source not in seen:
                seen[source] = None
                stack.append(source)
    return seen


def _materialize(program: EdgeProgram, node: fx.Node, values: dict[fx.Node, Any]) -> None:
    value = _evaluate(program, node, values)
    new = add_constant(program, f"{node.name}_folded", value.contiguous(), node.meta["val"])
    node.replace_all_uses_with(new)
    values[new] = value


def _evaluate(program: EdgeProgram, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Value of a node that depends on constants only; without recursion, graphs can be deep."""
    pending = [node]
    with torch.no_grad():
        while pending:
            top = pending[-1]
            missing = [] if _is_empty(top) else [n for n in top.all_input_nodes if n not in values]
            if top in values:
                pending.pop()
            elif top.op == "placeholder":
                values[top] = program.constants[top.name]
            elif missing:
                pending.extend(missing)
            else:
                values[top] = _run(top, values)
    return values[node]


def _run(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    if op_name(node.target) in _EMPTY or _is_empty(node):
        return torch.zeros(val(node).shape, dtype=val(node).dtype)
    args = fx.map_arg(node.args, values.__getitem__)
    kwargs = fx.map_arg(dict(node.kwargs), values.__getitem__)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _missing(node: fx.Node) -> str | None:
    """Why no kernel runs this operator node, or None."""
    if not isinstance(node.target, OpOverload):
        return "it is not an operator"
    return _unusable(node, node.target)


def _unusable(node: fx.Node, target: OpOverload) -> str | None:
    """Why no kernel runs ``target`` on the operands of ``node``, or None."""

    def value(n: fx.Node) -> Any:
        return n.meta["val"]

    return unusable(target, fx.map_arg(node.args, value), fx.map_arg(dict(node.kwargs), value))


def _is_kernel_call(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target not in (operator.getitem, call_delegate)


def _expand_all(program: EdgeProgram) -> None:
    for node in list(program.graph.nodes):
        if _is_kernel_call(node) and _missing(node) is not None:
            expand(program, node)
    program.graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output"))
    problems = [
        f"{describe(node)}: {reason}"
        for node in program.graph.nodes
        if _is_kernel_call(node) and (reason := _missing(node)) is not None
    ]
    if problems:
        raise ArmLowerError(
            f"method {program.name}: {len(problems)} operator(s) cannot run on the CPU:\n  " + "\n  ".join(problems),
            "write them with other operators in the model, or quantize them so that the NPU can take them",
        )


def _settle_layouts(program: EdgeProgram) -> None:
    """Insert copies where a kernel meets a layout that it cannot work in."""
    mode = FakeTensorMode()
    copies: dict[tuple[fx.Node, bool], fx.Node] = {}
    for node in list(program.graph.nodes):
        if not _is_kernel_call(node):
            continue
        keeps = _keeps_layout(node)
        if not keeps and isinstance(node.meta["val"], torch.Tensor) and is_channels_last(val(node)):
            _make_contiguous(program.graph, node, mode)
        for source in node.all_input_nodes:
            value = source.meta["val"]
            if isinstance(value, torch.Tensor) and value.dim() == 4 and is_channels_last(value) != keeps:
                if keeps and value.is_contiguous(memory_format=torch.channels_last):
                    continue
                node.replace_input_with(source, _copy(program.graph, source, keeps, mode, copies))


def _keeps_layout(node: fx.Node) -> bool:
    """True for a kernel whose value is channels-last and that can work on channels-last operands as they are."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or not is_channels_last(value) or op_name(node.target) not in _ANY_LAYOUT:
        return False
    if op_name(node.target) == "clone":
        return False
    return all(val(n).shape == value.shape for n in node.all_input_nodes)


def _make_contiguous(graph: fx.Graph, node: fx.Node, mode: FakeTensorMode) -> None:
    """A kernel that writes contiguous memory, and a copy for those who expect channels-last."""
    value = val(node)
    if op_name(node.target) == "clone" and node.kwargs.get("memory_format") is torch.channels_last:
        return
    node.meta["val"] = fake(mode, value.shape, value.dtype)
    with graph.inserting_after(node):
        copy = graph.call_function(_aten.clone.default, (node,), {"memory_format": torch.channels_last})
    copy.meta = {**node.meta, "val": value}
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _copy(
    graph: fx.Graph,
    source: fx.Node,
    channels_last: bool,
    mode: FakeTensorMode,
    copies: dict[tuple[fx.Node, bool], fx.Node],
) -> fx.Node:
    """``source`` in the other layout; one copy serves all readers."""
    known = copies.get((source, channels_last))
    if known is not None:
        return known
    after = source if source.op != "placeholder" else [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(after):
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        new = graph.call_function(_aten.clone.default, (source,), {"memory_format": memory_format})
    new.meta = {**source.meta, "val": fake(mode, val(source).shape, val(source).dtype, channels_last)}
    copies[source, channels_last] = new
    return new


def _fit_scalars(program: EdgeProgram) -> None:
    """A number where the kernel takes a tensor: the operator's Scalar overload if it has one, else a constant."""
    for node in list(program.graph.nodes):
        if not _is_kernel_call(node):
            continue
        arguments = node.target._schema.arguments
        numbers = [
            i for i, a in enumerate(node.args) if isinstance(a, (int, float)) and str(arguments[i].type) == "Tensor"
        ]
        if numbers and not _use_scalar_overload(node, numbers):
            for i in numbers:
                _number_to_tensor(program, node, i)


def _use_scalar_overload(node: fx.Node, numbers: list[int]) -> bool:
    target = node.target
    assert isinstance(target, OpOverload)
    if numbers != [1] or "Tensor" not in target._overloadname:
        return False
    overload = getattr(getattr(_aten, op_name(target)), target._overloadname.replace("Tensor", "Scalar"), None)
    if overload is None or _unusable(node, overload) is not None:
        return False
    node.target = overload
    return True


def _number_to_tensor(program: EdgeProgram, node: fx.Node, index: int) -> None:
    number = node.args[index]
    assert isinstance(number, (int, float))
    others = [val(n) for n in node.all_input_nodes]
    dtype = torch.result_type(others[0], number) if others else torch.tensor(number).dtype
    widest = torch.float64 if isinstance(number, float) else torch.int64
    # In two steps integers wrap around, as in torch's operators; in one they are refused.
    value = torch.tensor(number, dtype=widest).to(dtype)
    node.update_arg(index, add_constant(program, f"{node.name}_scalar", value, fake(FakeTensorMode(), (), dtype)))


def _own_outputs(program: EdgeProgram) -> None:
    """Give every output a tensor of its own: no input, constant or value that is returned twice."""
    graph = program.graph
    output = graph.output_node()
    seen: set[fx.Node] = set()
    results: list[Any] = []
    for i, value in enumerate(program.outputs()):
        if not isinstance(value, fx.Node) or not isinstance(value.meta["val"], torch.Tensor):
            results.append(value)
            continue
        update = i < len(program.mutated)
        shared = value.op == "placeholder" and (not update or value.name in program.mutated)
        if shared or (not update and value in seen):
            with graph.inserting_before(output):
                new = graph.call_function(_aten.clone.default, (value,))
            new.meta = {**value.meta}
            value = new
        elif not update:
            seen.add(value)
        results.append(value)
    output.args = (tuple(results),)


def _remove_dead(program: EdgeProgram) -> None:
    """Remove operators without readers and constants that nothing uses."""
    program.graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output"))
    for node in [n for n in program.graph.nodes if n.op == "placeholder"]:
        if node.name in program.constants and not node.users and node.name not in program.mutated:
            program.graph.erase_node(node)
            del program.constants[node.name]
