"""Passes over Edge programs: `ExportPass`, pattern rewrites, scalars to tensors, and the `PassManager`.

A pass is any callable that takes an ``fx.GraphModule`` and returns torch's ``PassResult`` (or None if it
changed nothing). New constants go through `ExportPass.constant`; other passes put them into
``graph_module.meta["constants"]`` under the name of the placeholder they add.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.subgraph_rewriter import replace_pattern_with_filters

from arm_lower.edge import verifier
from arm_lower.edge.meta import fake, fake_result
from arm_lower.edge.program import EdgeProgram, call_delegate, last_placeholder
from arm_lower.errors import ArmLowerError

PassType = Callable[[fx.GraphModule], PassResult | None]

_NEW_CONSTANTS = "constants"


@dataclass(frozen=True)
class ProxyValue:
    """A value while a pass rebuilds the graph.

    Attributes:
        data: FakeTensor, tuple of them, or a number.
        node: Node of the new graph that makes it.
    """

    data: Any
    node: fx.Node

    def to_tensor(self) -> torch.Tensor:
        """``data``, which must be one tensor."""
        if not isinstance(self.data, torch.Tensor):
            raise TypeError(f"{self.node.name} is a {type(self.data).__name__}, not a tensor")
        return self.data


@dataclass
class NodeMetadata:
    """Origin of an operator (module stack, source line); passed on to the nodes that replace it."""

    data: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def copy(self) -> NodeMetadata:
        return NodeMetadata(dict(self.data))


class ExportPass:
    """Rebuilds the graph operator by operator; override `call_operator` (or `call` for the whole graph).

    An operator that is passed on unchanged keeps its value, so that a pass costs only what it changes.
    Operators that nothing reads any more are removed.
    """

    def __init__(self) -> None:
        self._graph = fx.Graph()
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._constants: dict[str, torch.Tensor] = {}
        self._current: fx.Node | None = None
        self._unchanged: dict[fx.Node, fx.Node] = {}
        self._env: dict[fx.Node, Any] = {}

    def __call__(self, graph_module: fx.GraphModule) -> PassResult:
        self.requires(graph_module)
        result = self.call(graph_module)
        self.ensures(result.graph_module)
        return result

    def requires(self, graph_module: fx.GraphModule) -> None:
        """Hook: check what must hold before the pass."""

    def ensures(self, graph_module: fx.GraphModule) -> None:
        """Hook: check what must hold after the pass."""

    def call(self, graph_module: fx.GraphModule) -> PassResult:
        """Rebuild the graph; returns a new graph module."""
        ExportPass.__init__(self)
        env = self._env
        for node in graph_module.graph.nodes:
            self._current = node
            if node.op == "output":
                outputs = [self._operand(a, env) for a in node.args[0]]
                self.output(outputs, NodeMetadata(dict(node.meta)))
            else:
                env[node] = self._visit(node, env, graph_module)
        self._graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output"))
        new = fx.GraphModule(graph_module, self._graph)
        new.meta = {**graph_module.meta, _NEW_CONSTANTS: dict(self._constants)}
        return PassResult(new, self._is_modified(graph_module.graph))

    def _is_modified(self, old: fx.Graph) -> bool:
        """True unless every operator was passed on as it was."""
        calls = [n for n in self._graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
        before = [n for n in old.nodes if n.op == "call_function" and n.target is not operator.getitem]
        return [self._unchanged.get(n) for n in calls] != before

    def _visit(self, node: fx.Node, env: dict[fx.Node, Any], graph_module: fx.GraphModule) -> Any:
        meta = NodeMetadata({k: v for k, v in node.meta.items() if k != "val"})
        if node.op == "placeholder":
            return self.placeholder(str(node.target), node.meta.get("val"), meta)
        if node.op == "get_attr":
            new = self._graph.get_attr(str(node.target))
            new.meta = dict(node.meta)
            return ProxyValue(node.meta.get("val"), new)
        args = tuple(self._operand(a, env) for a in node.args)
        kwargs = {k: self._operand(v, env) for k, v in node.kwargs.items()}
        if node.target is operator.getitem:
            return self.call_getitem(args[0], args[1], meta)
        if node.target is call_delegate:
            return self._copy(node, args, kwargs)
        return self.call_operator(node.target, args, kwargs, meta)

    @staticmethod
    def _operand(arg: Any, env: Mapping[fx.Node, Any]) -> Any:
        return _map(arg, fx.Node, lambda node: env[node])

    def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata) -> Any:
        """Hook: one operator. Return ``super().call_operator(...)`` of what shall stand for it.

        Args:
            op: Operator overload.
            args: Arguments; tensors are `ProxyValue`s.
            kwargs: Keyword arguments.
            meta: Origin, to be passed on.

        Returns:
            The value for the operator's readers: a `ProxyValue`.
        """
        current = self._current
        node = self._graph.call_function(op, _to_nodes(args), _to_nodes(kwargs))
        node.meta = dict(meta.data)
        same = current is not None and self._is_same(current, op, args, kwargs)
        node.meta["val"] = current.meta["val"] if same and current is not None else self._value(op, args, kwargs)
        if same and current is not None:
            self._unchanged[node] = current
        return ProxyValue(node.meta["val"], node)

    def call_getitem(self, value: Any, key: int, meta: NodeMetadata) -> Any:
        """Hook: one item of an operator with several results."""
        if not isinstance(value, ProxyValue):
            return value[key]
        node = self._graph.call_function(operator.getitem, (value.node, key))
        node.meta = {**meta.data, "val": value.data[key]}
        return ProxyValue(value.data[key], node)

    def placeholder(self, name: str, value: Any, meta: NodeMetadata) -> ProxyValue:
        """Hook: an input or a constant."""
        node = self._graph.placeholder(name)
        node.meta = {**meta.data, "val": value}
        return ProxyValue(value, node)

    def output(self, results: list[Any], meta: NodeMetadata) -> None:
        """Hook: the results, updated buffers first."""
        node = self._graph.output(_to_nodes(tuple(results)))
        node.meta = dict(meta.data)

    def constant(self, name: str, value: torch.Tensor) -> ProxyValue:
        """A new constant tensor."""
        node = last_placeholder(self._graph, name)
        node.target = node.name
        node.meta["val"] = fake(self._mode, value.shape, value.dtype)
        self._constants[node.name] = value
        return ProxyValue(node.meta["val"], node)

    def _copy(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProxyValue:
        new = self._graph.call_function(node.target, _to_nodes(args), _to_nodes(kwargs))  # type: ignore[arg-type]
        new.meta = dict(node.meta)
        self._unchanged[new] = node
        return ProxyValue(new.meta["val"], new)

    def _is_same(self, node: fx.Node, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if node.target is not op:
            return False
        return self._equal((node.args, dict(node.kwargs)), (args, kwargs))

    def _equal(self, old: Any, new: Any) -> bool:
        """True if ``new`` is ``old`` with each node as the `ProxyValue` of that node's unchanged copy."""
        if isinstance(old, fx.Node):
            image = self._env.get(old)
            same = isinstance(new, ProxyValue) and isinstance(image, ProxyValue) and new.node is image.node
            return same and new.data is old.meta.get("val")
        if isinstance(old, (list, tuple)):
            return isinstance(new, (list, tuple)) and len(old) == len(new) and all(map(self._equal, old, new))
        if isinstance(old, dict):
            return isinstance(new, dict) and old.keys() == new.keys() and all(self._equal(old[k], new[k]) for k in old)
        return type(old) is type(new) and bool(old == new)

    def _value(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fake_result(self._mode, op, _to_nodes(args), _to_nodes(kwargs))


def _map(arg: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """``arg`` with every ``kind`` in it, also in lists, tuples and dicts, replaced."""
    if isinstance(arg, kind):
        return function(arg)
    if isinstance(arg, (list, tuple)):
        return type(arg)(_map(item, kind, function) for item in arg) if type(arg) in (list, tuple) else tuple(arg)
    if isinstance(arg, dict):
        return {k: _map(v, kind, function) for k, v in arg.items()}
    return arg


def _to_nodes(arg: Any) -> Any:
    return _map(arg, ProxyValue, lambda value: value.node)


class ScalarsToTensors(ExportPass):
    """Numbers where an operator's schema says tensor become constants of rank 0.

    Of the dtype that the operator would give the number: ``add(int32 tensor, 1.5)`` gets a float32 constant.
    """

    def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata) -> Any:
        if not isinstance(op, torch._ops.OpOverload):
            return super().call_operator(op, args, kwargs, meta)
        like = next((a.data for a in args if isinstance(a, ProxyValue) and isinstance(a.data, torch.Tensor)), None)
        new = list(args)
        for i, (value, argument) in enumerate(zip(args, op._schema.arguments)):
            if isinstance(value, (int, float)) and str(argument.type) in ("Tensor", "Optional[Tensor]"):
                dtype = torch.tensor(value).dtype if like is None else torch.result_type(like, value)
                new[i] = self.constant(f"{argument.name}_number", torch.tensor(value, dtype=dtype))
        return super().call_operator(op, tuple(new), kwargs, meta)


class PatternRewrite:
    """Replaces every match of a pattern, through ``torch.fx.subgraph_rewriter``.

    Args:
        pattern: Function of ATen (or ``edge.aten``) calls on its arguments, or its traced graph module.
        replacement: Function of the same arguments that stands for it.
        filters: Further conditions on a match: called with (match, original graph, pattern graph).
        ignore_literals: Let numbers in the pattern match any number.
    """

    def __init__(
        self,
        pattern: Callable[..., Any] | fx.GraphModule,
        replacement: Callable[..., Any] | fx.GraphModule,
        filters: Sequence[Callable[..., bool]] = (),
        ignore_literals: bool = False,
    ) -> None:
        self.pattern, self.replacement = pattern, replacement
        self.filters, self.ignore_literals = list(filters), ignore_literals

    @property
    def __name__(self) -> str:
        return f"PatternRewrite({getattr(self.pattern, '__name__', type(self.pattern).__name__)})"

    def __call__(self, graph_module: fx.GraphModule) -> PassResult:
        matches = replace_pattern_with_filters(
            graph_module, self.pattern, self.replacement, self.filters, ignore_literals=self.ignore_literals
        )
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        for match in matches:
            origin = {k: v for k, v in match.anchor.meta.items() if k != "val"}
            for node in match.replacements:
                node.meta = {**origin, **node.meta}
        for node in graph_module.graph.nodes:
            if node.op == "call_function" and "val" not in node.meta:
                node.meta["val"] = _node_value(mode, node)
        return PassResult(graph_module, bool(matches))


def _node_value(mode: FakeTensorMode, node: fx.Node) -> Any:
    source = node.args[0] if node.args else None
    if node.target is operator.getitem and isinstance(source, fx.Node):
        return source.meta["val"][node.args[1]]
    return fake_result(mode, node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]


class PassManager:
    """Runs passes in order and verifies the program after each.

    Args:
        passes: `PassType`s; a list of passes may be nested.
    """

    def __init__(self, passes: Sequence[PassType]) -> None:
        self.passes = list(passes)

    def __call__(self, program: EdgeProgram) -> EdgeProgram:
        """Change ``program`` and return it.

        Raises:
            ArmLowerError: The program was broken before the first pass, a pass raised, or a pass left a broken
                program; says which pass and what is wrong.
        """
        verifier.verify(program)
        for one in self.passes:
            known = verifier.snapshot(program)
            name = pass_name(one)
            try:
                result = one(program.graph_module)
            except ArmLowerError as error:
                raise ArmLowerError(f"pass {name}: {error.message}", error.hint) from error
            except Exception as error:
                raise ArmLowerError(f"pass {name} failed: {type(error).__name__}: {error}") from error
            _take(program, result)
            problems = verifier.problems(program, known)
            if problems:
                raise ArmLowerError(f"pass {name} broke method {program.name}:\n  " + "\n  ".join(problems))
        return program


def pass_name(one: object) -> str:
    """Name of a pass for messages."""
    return str(getattr(one, "__name__", type(one).__name__))


def _take(program: EdgeProgram, result: PassResult | None) -> None:
    if result is not None:
        program.graph_module = result.graph_module
    program.constants.update(program.graph_module.meta.pop(_NEW_CONSTANTS, {}))
    holders = {n.name for n in program.graph.nodes if n.op == "placeholder"}
    for name in [n for n in program.constants if n not in holders]:
        del program.constants[name]
    program.graph_module.recompile()
