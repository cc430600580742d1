"""One prepared method as values and instructions of a ``.pte``, with its memory plan."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from arm_lower import memory
from arm_lower.edge.meta import describe, is_channels_last, op_name
from arm_lower.edge.program import EdgeProgram, call_delegate
from arm_lower.errors import ArmLowerError
from arm_lower.kernels.registry import Argument, kernel_for
from arm_lower.pte.model import AtRuntime, DelegateSpec, MethodBuilder, Planned, ProgramBuilder, ScalarType, Storage

_CHANNELS_LAST = (0, 2, 3, 1)
_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3}
# Operators that give the same elements in the same order under another shape, if `_is_view` agrees.
_RESHAPES = frozenset(
    {"reshape", "view", "_unsafe_view", "view_copy", "squeeze", "squeeze_copy", "unsqueeze", "unsqueeze_copy"}
)
_PERMUTES = frozenset({"permute", "permute_copy", "transpose", "transpose_copy", "t", "t_copy"})
# The out tensor says it all; these kernels take sizes only to check them, and no -1.
_SIZES_FROM_VALUE = frozenset({"view_copy", "expand_copy"})


def emit(
    program: EdgeProgram, builder: ProgramBuilder, *, plan_inputs: bool = True, plan_outputs: bool = True
) -> memory.Plan:
    """Add a method to ``builder``.

    Args:
        program: After `arm_lower.edge.cpu.prepare`.
        builder: File being made.
        plan_inputs: Give user inputs a place in the arena, as ExecuTorch does by default: the caller's data is
            copied there (or written there at once), and the memory is used again after the last read. Otherwise
            the caller's memory is used as it is.
        plan_outputs: Likewise for the outputs.

    Returns:
        The memory plan of the arena, memory id 1.

    Raises:
        ArmLowerError: A value that a ``.pte`` cannot hold.
    """
    return _Emitter(program, builder.method(program.name), builder, plan_inputs, plan_outputs).run()


@dataclass
class _Life:
    """Where a planned tensor is used, by instruction."""

    node_value: torch.Tensor
    first: int
    last: int
    initial: int | None = None


@dataclass
class _Emitter:
    program: EdgeProgram
    method: MethodBuilder
    builder: ProgramBuilder
    plan_inputs: bool
    plan_outputs: bool
    lives: dict[str, _Life] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)

    def run(self) -> memory.Plan:
        calls = [n for n in self.program.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
        self._find_lives(calls)
        buffers = [memory.Buffer(k, _nbytes(v.node_value), v.first, v.last) for k, v in self.lives.items()]
        plan = memory.plan(buffers)
        self._add_placeholders(plan)
        delegates: dict[str, int] = {}
        for node in calls:
            self._add_results(node, plan)
            if node.target is call_delegate:
                self._call_delegate(node, delegates)
            else:
                self._call_kernel(node)
        self._finish()
        self.method.reserve(plan.size)
        return plan

    # ------------------------------------------------------------ lives

    def _find_lives(self, calls: Sequence[fx.Node]) -> None:
        end = len(calls) + len(self.program.mutated)
        at = {node: i for i, node in enumerate(calls)}
        for node in self.program.user_inputs():
            value = node.meta["val"]
            if isinstance(value, torch.Tensor) and self.plan_inputs:
                self.lives[node.name] = _Life(value, -1, max([-1, *(at.get(u, -1) for u in node.users)]))
        for name in self.program.mutated:
            node = next(n for n in self.program.graph.nodes if n.name == name)
            data = self.program.constants[name].contiguous()
            self.lives[name] = _Life(node.meta["val"], -1, end, self.builder.initial_state(_bytes(data)))
        kept = self._user_outputs()
        for i, node in enumerate(calls):
            base = self._base_of_view(node, kept)
            if base is not None:
                self.bases[node.name] = base
            else:
                self.lives.update({key: _Life(value, i, i) for key, value in _results(node)})
            for source in node.all_input_nodes:
                life = self._life(self._key(source))
                if life is not None:
                    life.last = max(life.last, i)
        for i, value in enumerate(self.program.outputs()):
            if isinstance(value, fx.Node) and (life := self._life(self._key(value))) is not None:
                is_update = i < len(self.program.mutated)
                life.last = max(life.last, len(calls) + i if is_update else end)
        if not self.plan_outputs:
            for key in kept:
                self.lives.pop(key, None)

    def _user_outputs(self) -> set[str]:
        values = self.program.outputs()[len(self.program.mutated) :]
        return {self._key(v) for v in values if isinstance(v, fx.Node)}

    def _life(self, key: str) -> _Life | None:
        return self.lives.get(self.bases.get(key, key))

    def _base_of_view(self, node: fx.Node, outputs: set[str]) -> str | None:
        """Key of the planned tensor whose memory ``node`` can share because it only gives it another shape."""
        if not _is_view(node):
            return None
        source = node.args[0]
        assert isinstance(source, fx.Node)
        base = self.bases.get(self._key(source), self._key(source))
        life = self.lives.get(base)
        if life is None or life.initial is not None:
            return None
        if base in outputs and not self.plan_outputs:
            return None
        # Every output has memory of its own, apart from the inputs and from other outputs.
        if node.name in outputs and (life.first < 0 or not self.plan_outputs or self._shared_by(base) & outputs):
            return None
        return base

    def _shared_by(self, base: str) -> set[str]:
        return {base, *(key for key, other in self.bases.items() if other == base)}

    @staticmethod
    def _key(node: fx.Node) -> str:
        """Name of the value behind a node; items of a tuple are ``name.index``."""
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            return f"{node.args[0].name}.{node.args[1]}"
        return node.name

    # ------------------------------------------------------------ tensors

    def _tensor(self, key: str, value: torch.Tensor, plan: memory.Plan) -> int:
        life = self._life(key)
        offset = plan.offsets.get(self.bases.get(key, key), 0)
        storage: Storage = AtRuntime() if life is None else Planned(offset, 1, life.initial)
        return self.method.add_tensor(_scalar_type(value), value.shape, storage, _dim_order(value))

    def _add_placeholders(self, plan: memory.Plan) -> None:
        for node in self.program.user_inputs():
            value = node.meta["val"]
            index = (
                self._tensor(node.name, value, plan) if isinstance(value, torch.Tensor) else self._number(node, value)
            )
            self.values[node.name] = index
            self.method.add_input(index)
        mutated = set(self.program.mutated)
        for name, data in self.program.constants.items():
            if name in mutated:
                self.values[name] = self._tensor(name, data, plan)
            else:
                data = data.contiguous()
                self.values[name] = self.method.add_constant(_scalar_type(data), data.shape, _bytes(data))

    def _number(self, node: fx.Node, value: object) -> int:
        """A fresh value: the runtime compares what the caller gives with it."""
        if value is None:
            return self.method.add_null()
        if isinstance(value, bool):
            return self.method.new_bool(value)
        if isinstance(value, int):
            return self.method.new_int(value)
        if isinstance(value, float):
            return self.method.new_double(value)
        if isinstance(value, str):
            return self.method.add_string(value)
        raise ArmLowerError(f"input {node.name} is a {type(value).__name__}", "inputs are tensors, numbers or strings")

    def _add_results(self, node: fx.Node, plan: memory.Plan) -> None:
        for key, value in _results(node):
            self.values[key] = self._tensor(key, value, plan)

    def _value(self, node: fx.Node) -> int:
        return self.values[self._key(node)]

    # ------------------------------------------------------------ instructions

    def _call_delegate(self, node: fx.Node, known: dict[str, int]) -> None:
        key = str(node.args[0])
        delegate = self.program.delegates[key]
        if key not in known:
            specs = tuple(delegate.compile_specs)
            known[key] = self.method.add_delegate(DelegateSpec(delegate.backend_id, delegate.processed, specs))
        operands = [self._value(n) for n in node.args[1:] if isinstance(n, fx.Node)]
        self.method.delegate_call(known[key], *operands, *(self.values[k] for k, _ in _results(node)))

    def _call_kernel(self, node: fx.Node) -> None:
        target = node.target
        assert isinstance(target, OpOverload)
        if node.name in self.bases:
            self._call_view(node)
            return
        if _changes_layout(node):
            self._call_layout_copy(node)
            return
        kernel = kernel_for(target)
        if kernel is None:
            raise ArmLowerError(f"{describe(node)}: no kernel", "run arm_lower.edge.cpu.prepare first")
        given = _bind(node)
        args = [self._argument(node, a, given) for a in kernel.arguments]
        if kernel.name.split("::")[1] in _SIZES_FROM_VALUE:
            args[1] = self.method.add_int_list(node.meta["val"].shape)
        outs = [self.values[key] for key, _ in _results(node)]
        if kernel.out_count == 1:
            self.method.kernel(kernel.name, kernel.overload, *args, outs[0], outs[0])
            return
        listed = self.method.add_tensor_list(outs)
        if kernel.out_count == 0:
            self.method.kernel(kernel.name, kernel.overload, *args, listed, listed)
        else:
            self.method.kernel(kernel.name, kernel.overload, *args, *outs, listed)

    def _call_view(self, node: fx.Node) -> None:
        """Moves no data; it tells viewers of the file, and the runtime, where the tensor comes from."""
        source = node.args[0]
        assert isinstance(source, fx.Node)
        sizes = self.method.add_int_list(node.meta["val"].shape)
        self.method.kernel("executorch_prim::et_view", "default", self._value(source), sizes, self.values[node.name])

    def _call_layout_copy(self, node: fx.Node) -> None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        order = self.method.add_int_list(_dim_order(node.meta["val"]))
        out = self.values[node.name]
        self.method.kernel(
            "dim_order_ops::_to_dim_order_copy",
            "out",
            self._value(source),
            self.method.add_bool(False),
            order,
            out,
            out,
        )

    def _argument(self, node: fx.Node, argument: Argument, given: Mapping[int, Any]) -> int:
        value = given.get(argument.index, argument.default)
        if value is None:
            return self.method.add_null()
        if argument.type in ("List[Tensor]", "List[Optional[Tensor]]"):
            return self._tensor_list(argument.type, value)
        if isinstance(value, fx.Node):
            return self._value(value)
        convert = _CONVERTERS.get(_bare(argument.type))
        if convert is None:
            raise ArmLowerError(f"{describe(node)}: argument {argument.name} of type {argument.type} is {value!r}")
        return convert(self.method, value, argument.length)

    def _tensor_list(self, kind: str, items: Sequence[fx.Node | None]) -> int:
        indices = [None if item is None else self._value(item) for item in items]
        if kind == "List[Tensor]":
            return self.method.add_tensor_list([i for i in indices if i is not None])
        return self.method.add_optional_tensor_list(indices)

    def _finish(self) -> None:
        """Write updated buffers back, after everything was computed; declare the outputs."""
        outputs = self.program.outputs()
        for name, value in zip(self.program.mutated, outputs):
            target = self.values[name]
            self.method.kernel("aten::copy_", "", target, self._value(value), self.method.add_bool(False), target)
        for value in outputs[len(self.program.mutated) :]:
            if isinstance(value, fx.Node):
                self.method.add_output(self._value(value))
            else:
                self.method.add_output(_literal(self.method, value))


def _results(node: fx.Node) -> list[tuple[str, torch.Tensor]]:
    """Key and value of each tensor that an instruction writes."""
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return [(node.name, value)]
    return [(f"{node.name}.{i}", item) for i, item in enumerate(value)]


def _bind(node: fx.Node) -> dict[int, Any]:
    """Argument position in the schema -> what the node gives for it."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given: dict[int, Any] = dict(enumerate(node.args))
    given.update({i: node.kwargs[a.name] for i, a in enumerate(arguments) if a.name in node.kwargs})
    return given


def _is_view(node: fx.Node) -> bool:
    """True if an operator gives its operand's elements in the same order of memory."""
    source = node.args[0] if node.args else None
    name = op_name(node.target)
    if not isinstance(source, fx.Node) or name not in _RESHAPES | _PERMUTES or node.kwargs:
        return False
    before, after = source.meta["val"], node.meta["val"]
    if is_channels_last(before) or is_channels_last(after) or before.dtype != after.dtype:
        return False
    if name in _RESHAPES:
        return True
    # Only dimensions of size 1 may change places.
    order = _permutation(node, list(range(before.dim())))
    return [d for d in order if before.shape[d] != 1] == [d for d, size in enumerate(before.shape) if size != 1]


def _permutation(node: fx.Node, dims: list[int]) -> list[int]:
    """The operand's dimension behind each dimension of the result."""
    name = op_name(node.target)
    if name.startswith("permute"):
        return [int(d) % len(dims) for d in node.args[1]]  # type: ignore[union-attr, arg-type]
    if len(dims) < 2:
        return dims
    a, b = (0, 1) if name.startswith("t_") or name == "t" else (int(d) % len(dims) for d in node.args[1:3])  # type: ignore[arg-type]
    dims[a], dims[b] = dims[b], dims[a]
    return dims


def _changes_layout(node: fx.Node) -> bool:
    source = node.args[0] if node.args else None
    if op_name(node.target) not in ("clone", "_to_copy") or not isinstance(source, fx.Node):
        return False
    orders = {_dim_order(source.meta["val"]), _dim_order(node.meta["val"])}
    return len(orders) > 1 or _CHANNELS_LAST in orders


def _dim_order(value: torch.Tensor) -> tuple[int, ...]:
    return _CHANNELS_LAST if is_channels_last(value) else tuple(range(value.dim()))


def _scalar_type(value: torch.Tensor) -> ScalarType:
    number = _SCALAR_TYPES.get(value.dtype)
    if number is None:
        raise ArmLowerError(f"a tensor of dtype {value.dtype} cannot be stored in a .pte")
    return number


_SCALAR_TYPES = {
    torch.uint8: ScalarType.UINT8, torch.int8: ScalarType.INT8, torch.int16: ScalarType.INT16,
    torch.int32: ScalarType.INT32, torch.int64: ScalarType.INT64, torch.float16: ScalarType.FLOAT16,
    torch.float32: ScalarType.FLOAT32, torch.float64: ScalarType.FLOAT64, torch.bool: ScalarType.BOOL,
    torch.bfloat16: ScalarType.BFLOAT16, torch.uint16: ScalarType.UINT16, torch.uint32: ScalarType.UINT32,
    torch.uint64: ScalarType.UINT64, torch.complex32: ScalarType.COMPLEX32, torch.complex64: ScalarType.COMPLEX64,
    torch.complex128: ScalarType.COMPLEX128,
}  # fmt: skip


def _nbytes(value: torch.Tensor) -> int:
    return math.prod(value.shape) * value.element_size()


def _bytes(data: torch.Tensor) -> bytes:
    """The elements in memory order."""
    if not data.numel():
        return b""
    flat = data.detach().reshape(-1)
    flat = flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)  # one element, any stride
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def _bare(kind: str) -> str:
    return kind[len("Optional[") : -1] if kind.startswith("Optional[") else kind


def _integer(method: MethodBuilder, value: Any, length: int) -> int:
    if isinstance(value, torch.dtype):
        return method.add_int(_SCALAR_TYPES[value])
    if isinstance(value, torch.memory_format):
        return method.add_int(_FORMATS[value])
    if isinstance(value, torch.layout):
        return method.add_int(0)
    return method.add_int(value)


def _number(method: MethodBuilder, value: Any, length: int) -> int:
    return _literal(method, value)


def _literal(method: MethodBuilder, value: Any) -> int:
    if value is None:
        return method.add_null()
    if isinstance(value, bool):
        return method.add_bool(value)
    if isinstance(value, int):
        return method.add_int(value)
    if isinstance(value, float):
        return method.add_double(value)
    if isinstance(value, str):
        return method.add_string(value)
    raise ArmLowerError(f"a {type(value).__name__} ({value!r}) cannot be stored in a .pte")


def _sequence(value: Any, length: int) -> list[Any]:
    """A list; a single number stands for a list of the declared length, as in torch."""
    return list(value) if isinstance(value, (list, tuple, torch.Size)) else [value] * max(length, 1)


_CONVERTERS: dict[str, Callable[[MethodBuilder, Any, int], int]] = {
    "int": _integer,
    "bool": lambda method, value, length: method.add_bool(value),
    "float": lambda method, value, length: method.add_double(value),
    "number": _number,
    "str": lambda method, value, length: method.add_string(value),
    "List[int]": lambda method, value, length: method.add_int_list(_sequence(value, length)),
    "List[float]": lambda method, value, length: method.add_double_list(_sequence(value, length)),
    "List[bool]": lambda method, value, length: method.add_bool_list(_sequence(value, length)),
}
