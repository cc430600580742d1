"""From an exported program or a quantized ``fx.GraphModule`` to an `EdgeProgram`.

Nothing is traced again. The graph is copied once, then rewritten in place:

1. parameters, buffers and tensor attributes become placeholders, listed in ``EdgeProgram.constants``;
2. graphs that ``torch.no_grad()`` blocks leave behind are inlined, export's guard calls go;
3. in-place operators become functional ones (`functionalize`); only for views of a kind that it does not know, and
   for ``torch.autocast`` and ``torch.vmap``, does torch trace the program again;
4. operators that do nothing at inference (dropout, detach, contiguous, casts to the same dtype) go, ``view``
   becomes ``reshape``, ``as_strided`` a view of the flat tensor, and an assignment under a mask a ``where``;
5. nodes without ``meta["val"]`` (what PT2E inserts) get one, and every value is made contiguous, except
   user inputs that are channels-last: a node's layout in the ``.pte`` is what the strides of its value say.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from arm_lower.edge import functionalize, normalize
from arm_lower.edge.meta import (
    DEQUANTIZE_TARGETS,
    QUANTIZE_TARGETS,
    argument,
    describe,
    fake,
    fake_result,
    graph_module,
    is_channels_last,
    op_name,
    target_name,
    tensors,
)
from arm_lower.edge.program import EdgeProgram
from arm_lower.errors import ArmLowerError

_log = logging.getLogger(__name__)

_aten = torch.ops.aten

STATIC_HINT = (
    "export with fixed sizes (leave dynamic_shapes out); for several sizes export once for each and give "
    "to_edge a dict of programs, each becomes a method of the .pte"
)

# Checks that torch.export leaves in the graph; they hold for static shapes or were decided at export.
_CHECKS = frozenset({"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
                     "sym_constrain_range_for_size"})  # fmt: skip
_DROPOUTS = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"})
_COPIES = frozenset({"alias", "alias_copy", "detach", "detach_copy", "contiguous", "clone", "lift", "lift_fresh",
                     "lift_fresh_copy", "_to_copy", "to", "type_as", "positive", "resolve_conj", "resolve_neg",
                     "conj"})  # fmt: skip
# A view needs strides that fit, which the copies that are dropped may have made; a reshape never does.
_VIEWS = frozenset({_aten.view.default, _aten._unsafe_view.default})
_AUTOCAST = "wrap_with_autocast"
_WRAPPERS = frozenset({"wrap_with_set_grad_enabled", _AUTOCAST})
_VMAP = "torch._functorch.predispatch"  # the module of its steps, which are no operators


def from_exported(exported: ExportedProgram, name: str = "forward") -> EdgeProgram:
    """The Edge program of an exported program; ``exported`` is not changed.

    Args:
        exported: Result of ``torch.export.export``, before or after ``run_decompositions``.
        name: Method name.

    Raises:
        ArmLowerError: Dynamic shapes, a model in training mode, custom objects or other inputs and
            operators that a static program cannot have.
    """
    try:
        return _from_exported(exported, name)
    except _TraceAgain as reason:
        _log.info("%s: %s; torch traces the program again", name, reason)
    try:
        return _from_exported(exported.run_decompositions({}), name)
    except _TraceAgain as reason:
        raise ArmLowerError(f"method {name}: {reason}, also after exported.run_decompositions({{}})",
                            "write the in-place change of a view as an out-of-place one") from reason  # fmt: skip


class _TraceAgain(Exception):
    """The graph leaves something to the call that torch writes out when it traces the program again."""


def from_module(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    name: str = "forward",
) -> EdgeProgram:
    """The Edge program of a graph module such as ``convert_pt2e`` returns; ``module`` is not changed.

    Args:
        module: ATen graph with its parameters as ``get_attr`` nodes.
        example_inputs: Positional arguments of one call, checked against the shapes in the graph.
        example_kwargs: Keyword arguments of that call.
        name: Method name.

    Raises:
        ArmLowerError: As `from_exported`, and example inputs that do not fit the graph.
    """
    flat = pytree.tree_leaves((tuple(example_inputs), dict(example_kwargs or {})))
    importer = _Importer(name)
    codegen = module.graph._codegen
    info = getattr(codegen, "pytree_info", None)
    try:
        importer.copy_module(module)
        importer.check_examples(flat)
        return importer.finish((), info.in_spec if info else None, info.out_spec if info else None)
    except _TraceAgain as reason:
        _log.info("%s: %s; exporting the module again", name, reason)
    exported = torch.export.export(module, tuple(example_inputs), dict(example_kwargs or {}))
    return from_exported(exported, name)


def _from_exported(exported: ExportedProgram, name: str) -> EdgeProgram:
    signature = exported.graph_signature
    importer = _Importer(name)
    values: dict[str, torch.Tensor] = {}
    for spec in signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            values[spec.arg.name] = _constant(exported, str(spec.target))
        elif spec.kind is not InputKind.USER_INPUT:
            raise ArmLowerError(f"method {name}: input {spec.arg.name} is a {spec.kind.name.lower()}",
                                "only tensors and numbers can be inputs of a .pte")  # fmt: skip
    importer.copy_graph(exported.graph_module, values)
    mutated: list[str | None] = []
    by_target = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target is not None}
    for out in signature.output_specs:
        if out.kind is OutputKind.USER_INPUT_MUTATION:
            mutated.append(None)
        elif out.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            mutated.append(by_target[out.target])
        elif out.kind is not OutputKind.USER_OUTPUT:
            raise ArmLowerError(f"method {name}: output {out.arg.name} is a {out.kind.name.lower()}",
                                "export an inference graph: only user outputs and buffer updates")  # fmt: skip
    spec_pair = exported.call_spec
    return importer.finish(mutated, spec_pair.in_spec, spec_pair.out_spec)


def _constant(exported: ExportedProgram, target: str) -> torch.Tensor:
    value = exported.state_dict.get(target)
    if value is None:
        value = exported.constants[target]
    if not isinstance(value, torch.Tensor):
        raise ArmLowerError(f"constant {target} is a {type(value).__name__}, not a tensor")
    return _dense(value, f"constant {target}")


def _dense(value: torch.Tensor, what: str) -> torch.Tensor:
    if value.layout is not torch.strided:
        layout = str(value.layout).removeprefix("torch.")
        raise ArmLowerError(f"{what} has the layout {layout}; a .pte stores dense tensors only",
                            "call to_dense() on it before export, and use operators of dense tensors")  # fmt: skip
    return value.detach()


class _Importer:
    """Builds one program: copy the graph, then `finish`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.constants: dict[fx.Node, torch.Tensor] = {}
        self.inputs: list[fx.Node] = []
        self._lifted: dict[int, fx.Node] = {}
        self._fakes: dict[tuple[tuple[int, ...], torch.dtype, bool], torch.Tensor] = {}

    def copy_graph(self, module: fx.GraphModule, values: Mapping[str, torch.Tensor]) -> None:
        """Copy the graph of an exported program; ``values`` are the constants by placeholder name."""
        env: dict[fx.Node, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = self._placeholder(node)
                if node.name in values:
                    self.constants[env[node]] = values[node.name]
                else:
                    self.inputs.append(env[node])
        self._copy_body(module, env)

    def copy_module(self, module: fx.GraphModule) -> None:
        """Copy the graph of a module with ``get_attr`` parameters; every placeholder is a user input."""
        env: dict[fx.Node, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = self._placeholder(node)
                self.inputs.append(env[node])
        self._copy_body(module, env)

    def _placeholder(self, node: fx.Node) -> fx.Node:
        _check_static(node)
        new = self.graph.placeholder(node.name)
        new.meta = dict(node.meta)
        return new

    def _copy_body(self, module: fx.GraphModule, env: dict[fx.Node, Any]) -> None:
        outputs = self._copy_nodes(module, env)
        self.graph.output(tuple(outputs))

    def _copy_nodes(self, module: fx.GraphModule, env: dict[fx.Node, Any]) -> list[Any]:
        """Copy all but placeholders; the operands of the output node."""
        for node in module.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                return pytree.tree_leaves(fx.map_arg(node.args[0], lambda n: env[n]), is_leaf=lambda x: x is None)
            if node.op == "get_attr":
                env[node] = self._attribute(module, node)
            elif node.op == "call_module":
                self._call_module(node)
            elif node.op == "call_function":
                env[node] = self._call(node, env)
            else:
                raise ArmLowerError(f"{describe(node)}: {node.op} cannot be compiled", "use torch.export.export")
        return []

    def _attribute(self, module: fx.GraphModule, node: fx.Node) -> Any:
        """A placeholder for a tensor attribute; the module itself for a submodule."""
        value: Any = operator.attrgetter(str(node.target))(module)
        if isinstance(value, torch.nn.Module):
            return value
        if not isinstance(value, torch.Tensor):
            raise ArmLowerError(f"{describe(node)} is a {type(value).__name__}, not a tensor")
        known = self._lifted.get(id(value))
        if known is not None:
            return known
        with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
            name = str(node.target).replace(".", "_")
            new = self.graph.placeholder(name if name.isidentifier() else f"_{name}")
        new.meta = dict(node.meta)
        self.constants[new] = _dense(value, describe(node))
        self._lifted[id(value)] = new
        return new

    def _call_module(self, node: fx.Node) -> None:
        if node.target != "_guards_fn" or node.users:
            raise ArmLowerError(f"{describe(node)} calls a module inside the graph",
                                "pass an ATen graph: torch.export.export(model, inputs)")  # fmt: skip

    def _call(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        _check_static(node)
        args = fx.map_arg(node.args, lambda n: env[n])
        if target_name(node) in _WRAPPERS:
            return self._inline(node, args)
        if getattr(node.target, "__module__", "") == _VMAP:
            raise _TraceAgain(f"{describe(node)} is a step of torch.vmap")
        if node.target is operator.getitem and isinstance(args[0], (list, tuple)):
            return args[0][int(str(args[1]))]
        if node.target is not operator.getitem and not isinstance(node.target, (OpOverload, HigherOrderOperator)):
            raise ArmLowerError(f"{describe(node)} is no ATen operator", "use torch.export.export(model, inputs)")
        new = self.graph.create_node("call_function", node.target, self._modules_to_attributes(args),
                                     fx.map_arg(node.kwargs, lambda n: env[n]), node.name)  # fmt: skip
        new.meta = dict(node.meta)
        return new

    def _inline(self, node: fx.Node, args: tuple[Any, ...]) -> Sequence[Any]:
        if target_name(node) == _AUTOCAST and args[2]:  # device, dtype, enabled, ...
            raise _TraceAgain(f"{describe(node)} casts its operands")
        at = next(i for i, arg in enumerate(args) if isinstance(arg, fx.GraphModule))
        inner: fx.GraphModule = args[at]
        holders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        return self._copy_nodes(inner, dict(zip(holders, args[at + 1 :], strict=True)))

    def _modules_to_attributes(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Branch graphs of control flow stay attributes of the new graph module."""
        new = list(args)
        for i, arg in enumerate(new):
            if isinstance(arg, torch.nn.Module):
                name = f"graph_{sum(1 for _ in self.root.children())}"
                setattr(self.root, name, arg)
                new[i] = self.graph.get_attr(name)
        return tuple(new)

    def check_examples(self, flat: Sequence[Any]) -> None:
        """Compare example inputs with the graph, and fill values that the graph lacks."""
        if len(flat) != len(self.inputs):
            raise ArmLowerError(f"method {self.name}: {len(flat)} example inputs given, the graph takes "
                                f"{len(self.inputs)}: {', '.join(n.name for n in self.inputs)}")  # fmt: skip
        for node, value in zip(self.inputs, flat, strict=True):
            known = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                node.meta.setdefault("val", value)
                continue
            if known is None:
                node.meta["val"] = self._input_like(value)
                continue
            if isinstance(known, torch.Tensor) and not any(_is_symbolic(s) for s in known.shape):
                self._check_example(node, value, known)

    def _check_example(self, node: fx.Node, value: torch.Tensor, known: torch.Tensor) -> None:
        if tuple(value.shape) != tuple(known.shape) or value.dtype != known.dtype:
            raise ArmLowerError(
                f"input {node.name}: the example is {_text(value)}, the graph was exported for {_text(known)}",
                "give inputs of the exported shape and dtype, or export again",
            )
        if is_channels_last(value):
            node.meta["val"] = self._input_like(value)

    def _input_like(self, value: torch.Tensor) -> torch.Tensor:
        return self._fake(value.shape, value.dtype, is_channels_last(value))

    def _fake(self, shape: Sequence[int], dtype: torch.dtype, channels_last: bool = False) -> torch.Tensor:
        """A fake value; nodes of one shape share it."""
        key = (tuple(shape), dtype, channels_last)
        if key not in self._fakes:
            self._fakes[key] = fake(self.mode, shape, dtype, channels_last)
        return self._fakes[key]

    def finish(self, mutated: Sequence[str | None], in_spec: Any, out_spec: Any) -> EdgeProgram:
        """The program.

        Args:
            mutated: For each leading output the placeholder it updates; None drops the output.
            in_spec: Pytree of the inputs, kept for the user.
            out_spec: Pytree of the outputs.

        Raises:
            _TraceAgain: In-place operators need torch's functionalization.
        """
        order = [*self.inputs, *self.constants]
        updates: dict[fx.Node, Any] = {}
        if functionalize.needed(self.graph):
            self._fill_true_values()
            try:
                updates.update(functionalize.functionalize(self.graph))
            except functionalize.NotFunctional as error:
                raise _TraceAgain(f"a value that shares storage is changed in place: {error}") from error
        outputs = list(self.graph.output_node().args[0])  # type: ignore[arg-type]
        for holder, value in zip(mutated, outputs, strict=False):
            if holder is not None:
                updates[next(n for n in order if n.name == holder)] = value
        updates = {n: v for n, v in updates.items() if n in self.constants and n is not v}
        self.graph.output_node().args = ((*updates.values(), *outputs[len(mutated) :]),)
        normalize.strides(self.graph)
        normalize.masks(self.graph)
        _drop_no_ops(self.graph)
        self._order_placeholders(order)
        self._fill_values()
        return self._program(list(updates), in_spec, out_spec)

    def _program(self, mutated: list[fx.Node], in_spec: Any, out_spec: Any) -> EdgeProgram:
        used = [n for n in self.constants if n.users or n in mutated]
        for node in set(self.constants) - set(used):
            self.graph.erase_node(node)
        module = graph_module(self.root, self.graph)
        module.meta["in_spec"], module.meta["out_spec"] = in_spec, out_spec
        constants = {n.name: self.constants[n].contiguous() for n in used}
        return EdgeProgram(self.name, module, constants, tuple(n.name for n in mutated))

    def _order_placeholders(self, order: Sequence[fx.Node]) -> None:
        """User inputs first, then constants."""
        for node in reversed(order):
            head = next(iter(self.graph.nodes))
            if head is not node:
                head.prepend(node)

    def _fill_true_values(self) -> None:
        """Give nodes without a value one that shares storage as it will; PT2E's nodes come without."""
        if all("val" in n.meta for n in self.graph.nodes if n.op in ("placeholder", "call_function")):
            return
        values: dict[fx.Node, Any] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                known = self.constants.get(node, node.meta.get("val"))
                if isinstance(known, torch.Tensor):
                    node.meta["val"] = fake(self.mode, known.shape, known.dtype, is_channels_last(known))
                values[node] = node.meta.get("val")
            elif node.op == "call_function":
                values[node] = node.meta["val"] = self._true_value(node, values)

    def _true_value(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        args: Any = fx.map_arg(node.args, values.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, values.__getitem__)
        try:
            with self.mode:
                return node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001 - torch raises anything here
            raise ArmLowerError(f"{describe(node)}: its shape cannot be computed: {error}",
                                "export the model with torch.export.export") from error  # fmt: skip

    def _fill_values(self) -> None:
        """Give every node a value; make all contiguous but channels-last user inputs."""
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self._fill_placeholder(node)
            elif node.op == "call_function":
                known = node.meta.get("val")
                node.meta["val"] = self._value(node) if known is None else self._contiguous(known)

    def _fill_placeholder(self, node: fx.Node) -> None:
        constant = self.constants.get(node)
        known = node.meta.get("val")
        if constant is not None:
            node.meta["val"] = self._fake(constant.shape, constant.dtype)
        elif isinstance(known, torch.Tensor):
            node.meta["val"] = self._input_like(known)
        elif "val" not in node.meta:
            raise ArmLowerError(f"input {node.name} has no shape", "export the model with torch.export.export first")

    def _contiguous(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._fake(value.shape, value.dtype)
        if isinstance(value, (list, tuple)):
            return tuple(self._contiguous(item) for item in value)
        return value

    def _value(self, node: fx.Node) -> Any:
        name = op_name(node.target)
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node):
            if node.target is operator.getitem:
                return source.meta["val"][node.args[1]]
            if name in QUANTIZE_TARGETS:
                return self._fake(source.meta["val"].shape, argument(node, "dtype"))
            if name in DEQUANTIZE_TARGETS:
                return self._fake(source.meta["val"].shape, argument(node, "out_dtype") or torch.float32)
        try:
            return fake_result(self.mode, node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - torch raises anything here
            raise ArmLowerError(f"{describe(node)}: its shape cannot be computed: {error}",
                                "export the model with torch.export.export") from error  # fmt: skip


def _drop_no_ops(graph: fx.Graph) -> None:
    """Remove operators that do nothing at inference, and dead code. Refuse what only training has."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        name = op_name(node.target)
        if name in _CHECKS and not node.users:
            graph.erase_node(node)
        elif name in _DROPOUTS:
            _drop_dropout(graph, node, name)
        elif name in _COPIES and _same_dtype(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in _VIEWS:
            node.target = _aten.reshape.default
        elif name == "batch_norm" and argument(node, "training") and argument(node, "running_mean") is not None:
            raise _training(node)
    graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output"))


def _drop_dropout(graph: fx.Graph, node: fx.Node, name: str) -> None:
    if argument(node, "train") and argument(node, "p") != 0.0:
        raise _training(node)
    source = node.args[0]
    if name != "native_dropout":
        node.replace_all_uses_with(source)  # type: ignore[arg-type]
    else:
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(source)  # type: ignore[arg-type]
                graph.erase_node(user)
    if not node.users:
        graph.erase_node(node)


def _training(node: fx.Node) -> ArmLowerError:
    return ArmLowerError(f"{describe(node)} is in training mode",
                         "call model.eval() before export (after QAT: move_exported_model_to_eval)")  # fmt: skip


def _same_dtype(node: fx.Node) -> bool:
    """True if a copy or cast gives its input's values in its input's dtype, shape and device."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or source.op == "get_attr":
        return False
    name = op_name(node.target)
    if name not in ("_to_copy", "to", "type_as"):
        return True
    out, value = node.meta.get("val"), source.meta.get("val")
    return isinstance(out, torch.Tensor) and isinstance(value, torch.Tensor) and out.dtype == value.dtype


def _check_static(node: fx.Node) -> None:
    value = node.meta.get("val")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise ArmLowerError(f"{describe(node)} is a symbolic number ({value}): a shape is dynamic", STATIC_HINT)
    for tensor in tensors(value):
        for dim, size in enumerate(tensor.shape):
            if _is_symbolic(size):
                what = f"input {node.name}" if node.op == "placeholder" else describe(node)
                raise ArmLowerError(f"{what}: size of dimension {dim} is dynamic ({size})", STATIC_HINT)


def _is_symbolic(size: object) -> bool:
    return isinstance(size, torch.SymInt)


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def iter_calls(program: EdgeProgram) -> Iterator[fx.Node]:
    """The operator nodes of a program, in order."""
    return (n for n in program.graph.nodes if n.op == "call_function")
