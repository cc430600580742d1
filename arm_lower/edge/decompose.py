"""Replace one operator by operators that the portable kernels have.

`expand` traces a single operator on fake inputs, so it costs about as much as the operators it makes. What
an operator becomes is decided in this order: a portable kernel (stop there), our own rules in
`arm_lower.edge.rules`, torch's decomposition table, the operator's composite implementation.
All values are contiguous here, as `arm_lower.edge.build` leaves them.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from arm_lower.edge.meta import fake, like, op_name, tensors, val
from arm_lower.edge.program import EdgeProgram, add_constant
from arm_lower.edge.rules import RULES
from arm_lower.kernels import usable

_log = logging.getLogger(__name__)

# Same values as the first argument.
_IDENTITIES = frozenset({"alias", "alias_copy", "detach", "detach_copy", "lift_fresh", "lift_fresh_copy", "clone",
                         "contiguous", "positive", "lift", "view_of", "resolve_conj", "resolve_neg"})  # fmt: skip
_SAME_SHAPE_IDENTITIES = frozenset({"view", "reshape", "expand", "_unsafe_view", "view_copy", "expand_copy"})
_SAME_DTYPE_IDENTITIES = frozenset({"_to_copy", "to", "convert_element_type"})


def expand(program: EdgeProgram, node: fx.Node) -> bool:
    """Replace ``node`` by its decomposition.

    The new nodes inherit the node's module and source line; its users read the new values. Nothing else of
    the graph is touched.

    Args:
        program: The program that holds ``node``; constants of the decomposition are added to it.
        node: An operator call with ``meta["val"]`` on its inputs.

    Returns:
        False, with the program unchanged, if the operator has a kernel or no decomposition.
    """
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    leaves, spec = pytree.tree_flatten((node.args, dict(node.kwargs)))
    if not all(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes):
        return False
    key = tuple(_Input(leaf) if isinstance(leaf, fx.Node) else _Literal(leaf) for leaf in leaves)
    try:
        recorded = _record(target, key, _Spec(spec))
    except _NoDecomposition as reason:
        _log.debug("%s: not expanded: %s", node.name, reason)
        return False
    _paste(program, node, recorded, [leaf for leaf in leaves if isinstance(leaf, fx.Node)])
    return True


class _NoDecomposition(Exception):
    """The operator stays as it is."""


class _Input:
    """What a decomposition may depend on of a tensor operand; hashable."""

    def __init__(self, node: fx.Node) -> None:
        value = val(node)
        self.shape, self.dtype = tuple(value.shape), value.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Input) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


class _Literal:
    """A number, string, dtype or None operand; 1, 1.0 and True differ, -0.0 and 0.0 too."""

    def __init__(self, value: object) -> None:
        self.value = value

    def _key(self) -> tuple[str, str]:
        return type(self.value).__name__, repr(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Literal) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


class _Spec:
    """A pytree spec that hashes by its text."""

    def __init__(self, spec: pytree.TreeSpec) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Spec) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(repr(self.spec))


class _Recorded:
    """A decomposition: a graph of placeholders, operators and constants."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.constants: dict[fx.Node, torch.Tensor] = {}
        self.result: Any = None


@lru_cache(maxsize=4096)
def _record(target: OpOverload, key: tuple[_Input | _Literal, ...], spec: _Spec) -> _Recorded:
    """The decomposition of an operator for these operand shapes, dtypes and literals."""
    recorded = _Recorded()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = _Recorder(recorded, mode)
    leaves = [recorder.input(k) if isinstance(k, _Input) else k.value for k in key]
    args, kwargs = pytree.tree_unflatten(leaves, spec.spec)
    if usable(target, args, kwargs):
        raise _NoDecomposition("it has a kernel")
    # Below autograd an operator reaches the recorder whole, also a composite one such as aten.linear.
    try:
        with torch._C._AutoDispatchBelowAutograd(), mode, recorder:
            result = recorder.lower(target, args, kwargs)
    except RecursionError:
        raise _NoDecomposition("its decomposition needs itself") from None
    if result is NotImplemented:
        raise _NoDecomposition("no rule")
    recorded.result = pytree.tree_map_only(torch.Tensor, recorder.node_of, result)
    _remove_dead(recorded)
    return recorded


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes the operators that run under it into a graph, and lowers those that have no kernel."""

    def __init__(self, recorded: _Recorded, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded = recorded
        self.fake_mode = mode
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[torch.Tensor] = []
        self._shared: set[int] = set()

    def input(self, key: _Input) -> torch.Tensor:
        """A fake operand and its placeholder."""
        node = self.recorded.graph.placeholder(f"x{len(self._alive)}")
        return self._bind(fake(self.fake_mode, key.shape, key.dtype), node)

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that makes ``tensor``; a real tensor becomes a constant."""
        node = self._nodes.get(id(tensor))
        if node is None:
            if isinstance(tensor, FakeTensor):
                raise _NoDecomposition("a value was made outside the recorded operators")
            node = self.recorded.graph.placeholder(f"c{len(self.recorded.constants)}")
            self.recorded.constants[node] = tensor
            self._bind(tensor, node)
        return node

    def _bind(self, tensor: torch.Tensor, node: fx.Node) -> torch.Tensor:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)
        node.meta.setdefault("val", tensor if isinstance(tensor, FakeTensor) else like(self.fake_mode, tensor))
        return tensor

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func.namespace == "prim" or func in _QUERIES:
            return func(*args, **kwargs)
        if usable(func, args, kwargs):
            return self._emit(func, args, kwargs)
        with self:
            result = self.lower(func, args, kwargs)
        return self._emit(func, args, kwargs) if result is NotImplemented else result

    def lower(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Result of the decomposition of ``func``, or NotImplemented if it has none."""
        rule = RULES.get(func)
        result = NotImplemented if rule is None else rule(*args, **kwargs)
        for decompose in _fallbacks(func):
            if result is not NotImplemented:
                break
            result = self._try(decompose, args, kwargs)
        return result

    @staticmethod
    def _try(decompose: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Result of a decomposition of torch's, or NotImplemented if it cannot take these operands."""
        try:
            return decompose(*args, **kwargs)
        except (_NoDecomposition, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - torch raises anything here
            _log.debug("torch's decomposition failed: %s", error)
            return NotImplemented

    def _emit(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func._schema.is_mutable:
            return self._emit_in_place(func, args, kwargs)
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if source is not None and _is_identity(func, source, kwargs):
            return self._same(source, op_name(func) != "clone")
        result = func(*args, **kwargs)
        if source is not None and self._is_identity_result(func, source, result):
            return self._same(source)
        return self._write(func, args, kwargs, result)

    def _same(self, source: torch.Tensor, alias: bool = True) -> torch.Tensor:
        new = self._bind(like(self.fake_mode, source), self.node_of(source))
        if alias:
            self._share(source, new)
        return new

    def _share(self, *values: Any) -> None:
        """Note tensors that are views of others or have views: they cannot be written in place."""
        self._shared.update(id(v) for v in values if isinstance(v, torch.Tensor))

    @staticmethod
    def _is_identity_result(func: OpOverload, source: torch.Tensor, result: Any) -> bool:
        if not isinstance(result, torch.Tensor) or source.dtype != result.dtype or source.shape != result.shape:
            return False
        return op_name(func) in _SAME_SHAPE_IDENTITIES | _SAME_DTYPE_IDENTITIES

    def _write(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        # A view needs strides that fit; a reshape never does, and the program stays runnable in torch.
        func = torch.ops.aten.reshape.default if func in _VIEWS else func
        to_nodes = pytree.tree_map_only(torch.Tensor, self.node_of, (args, kwargs))
        node = self.recorded.graph.call_function(func, *to_nodes)
        value = like(self.fake_mode, result)
        node.meta["val"] = value
        if any(r.alias_info is not None for r in func._schema.returns):
            self._share(*args, *tensors(value))
        if isinstance(value, torch.Tensor):
            return self._bind(value, node)
        if not isinstance(value, tuple):
            raise _NoDecomposition(f"{func} gives a {type(value).__name__}")
        items = []
        for i, item in enumerate(value):
            part = self.recorded.graph.call_function(operator.getitem, (node, i))
            part.meta["val"] = item
            items.append(self._bind(item, part) if isinstance(item, torch.Tensor) else item)
        return list(items) if isinstance(result, list) else tuple(items)

    def _emit_in_place(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """Record the functional form; the tensor that was written stands for the new value from now on."""
        target = args[0]
        packet = getattr(getattr(torch.ops, func.namespace), op_name(func).removesuffix("_"), None)
        overload = getattr(packet, func._overloadname, None)
        if not isinstance(target, torch.Tensor) or overload is None or overload._schema.is_mutable:
            raise _NoDecomposition(f"{func} works in place")
        if id(target) in self._shared:
            raise _NoDecomposition(f"{func} changes a value that shares storage")
        with self:
            new = overload(*args, **kwargs)
            if new.dtype != target.dtype:
                new = torch.ops.aten._to_copy.default(new, dtype=target.dtype)
        self._nodes[id(target)] = self.node_of(new)
        return target


_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
_QUERIES = frozenset(
    {torch.ops.aten.is_contiguous.default, torch.ops.aten.size.default, torch.ops.aten.stride.default,
     torch.ops.aten.numel.default, torch.ops.aten.dim.default}
)  # fmt: skip


def _fallbacks(func: OpOverload) -> Iterator[Callable[..., Any]]:
    """torch's own ways to take ``func`` apart."""
    if func in decomposition_table:
        yield decomposition_table[func]
    if func.namespace == "prims" and hasattr(func, "impl_aten"):
        yield func.impl_aten
    if torch._C._dispatch_has_kernel_for_dispatch_key(str(func._name), "CompositeImplicitAutograd"):
        yield func.decompose


def _is_identity(func: OpOverload, source: torch.Tensor, kwargs: Mapping[str, Any]) -> bool:
    return op_name(func) in _IDENTITIES and kwargs.get("dtype") in (None, source.dtype)


def _remove_dead(recorded: _Recorded) -> None:
    kept = {n for n in pytree.tree_leaves(recorded.result) if isinstance(n, fx.Node)}
    for node in reversed(list(recorded.graph.nodes)):
        if node.op == "call_function" and not node.users and node not in kept:
            recorded.graph.erase_node(node)


def _paste(program: EdgeProgram, node: fx.Node, recorded: _Recorded, operands: list[fx.Node]) -> None:
    """Copy a decomposition in place of ``node``."""
    graph = program.graph
    env: dict[fx.Node, fx.Node] = {}
    feed = iter(operands)
    inherited = {k: v for k, v in node.meta.items() if k in ("nn_module_stack", "stack_trace", "source_fn_stack")}
    for inner in recorded.graph.nodes:
        if inner in recorded.constants:
            env[inner] = add_constant(program, f"{node.name}_const", recorded.constants[inner], inner.meta["val"])
        elif inner.op == "placeholder":
            env[inner] = next(feed)
        else:
            with graph.inserting_before(node):
                env[inner] = graph.node_copy(inner, env.__getitem__)
            env[inner].meta = {**inherited, "val": inner.meta["val"]}
    _replace(graph, node, fx.map_arg(recorded.result, env.__getitem__))


def _replace(graph: fx.Graph, node: fx.Node, result: Any) -> None:
    if isinstance(result, fx.Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise ValueError(f"{user.name} reads the tuple {node.name}")
            user.replace_all_uses_with(result[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)
