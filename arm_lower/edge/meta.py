"""What a node knows: its value's shape and dtype, and where in the user's model it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule

from arm_lower.edge.program import EdgeProgram

QUANTIZE_TARGETS = frozenset({"quantize_per_tensor", "quantize_per_channel"})
DEQUANTIZE_TARGETS = frozenset({"dequantize_per_tensor", "dequantize_per_channel"})
_CPU = torch.device("cpu")


def module_path(node: fx.Node) -> str:
    """Dotted path of the innermost module that holds ``node``, or an empty string for the top module."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = next(reversed(stack.values()))[0]
    return str(path).removeprefix("L['self']").lstrip(".")


def source_line(node: fx.Node) -> str:
    """``File "...", line N`` of the user's code that made ``node``, or an empty string."""
    lines = [part.strip() for part in str(node.meta.get("stack_trace") or "").splitlines()]
    files = [line for line in lines if line.startswith("File ")]
    return files[-1].split(", in ")[0] if files else ""


def describe(node: fx.Node) -> str:
    """The node for an error message: name, operator, module path and source line where known."""
    where = f"node {node.name} ({target_name(node)})"
    path, line = module_path(node), source_line(node)
    if path:
        where += f" in module {path}"
    return f"{where}, {line}" if line else where


def target_name(node: fx.Node) -> str:
    """The target as text: ``aten.add.Tensor`` for an operator, else its name."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def op_name(target: object) -> str:
    """Operator name without namespace and overload (``add`` for ``aten.add.Tensor``), or an empty string."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[-1]
    return ""


def argument(node: fx.Node, name: str) -> Any:
    """Value of an operator's argument, its default if it was left out, None if there is no such argument."""
    if name in node.kwargs:
        return node.kwargs[name]
    for i, arg in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if arg.name == name:
            return node.args[i] if i < len(node.args) and not arg.kwarg_only else arg.default_value
    return None


def val(node: fx.Node) -> torch.Tensor:
    """The FakeTensor of a node that makes one tensor."""
    return cast(torch.Tensor, node.meta["val"])


def fake(mode: FakeTensorMode, shape: Sequence[int], dtype: torch.dtype, channels_last: bool = False) -> torch.Tensor:
    """A contiguous (or channels-last) FakeTensor."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    # not through the mode, whose dispatch takes twenty times as long
    meta = torch.empty(tuple(shape), dtype=dtype, memory_format=memory_format, device="meta")
    return FakeTensor(mode, meta, _CPU)


def is_channels_last(tensor: torch.Tensor) -> bool:
    """True for a 4-D tensor that is stored NHWC and not also contiguous as NCHW."""
    return tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


def fake_result(
    mode: FakeTensorMode,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    node_value: Callable[[fx.Node], Any] = lambda node: node.meta["val"],
) -> Any:
    """Value of one operator on fake inputs; every tensor of it contiguous.

    Args:
        mode: Mode that owns the result.
        target: Operator.
        args: Arguments with nodes in place of tensors.
        kwargs: Keyword arguments, likewise.
        node_value: Value of an argument node.

    Returns:
        A FakeTensor, a tuple of them, or what else the operator gives.
    """

    def fresh(node: fx.Node) -> Any:
        return like(mode, node_value(node))

    with mode:
        result = target(*fx.map_arg(args, fresh), **fx.map_arg(kwargs, fresh))
    return like(mode, result)


def like(mode: FakeTensorMode, value: Any) -> Any:
    """``value`` with every tensor replaced by a contiguous FakeTensor of ``mode``."""
    if isinstance(value, torch.Tensor):
        return fake(mode, value.shape, value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(like(mode, item) for item in value)
    return value


def tensors(value: Any) -> Iterable[torch.Tensor]:
    """Tensors of a node value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def graph_module(root: torch.nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """A module of ``graph`` whose code is made when it is called or printed: most stages of a program never are."""
    return _LazyGraphModule(root, graph)


def copy_program(program: EdgeProgram) -> EdgeProgram:
    """A program with a graph of its own; constants, delegates and values are shared with the original."""
    graph = fx.Graph()
    outputs = graph.graph_copy(program.graph, {})
    graph.output(outputs)
    module = graph_module(program.graph_module, graph)
    module.meta = dict(program.graph_module.meta)
    return replace(
        program,
        graph_module=module,
        constants=dict(program.constants),
        delegates=dict(program.delegates),
        cpu_ops=list(program.cpu_ops),
    )
