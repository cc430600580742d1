"""A `.pte` program as plain values: what the file says, without its encoding.

The names follow ExecuTorch's schema (``ET12``). Everything is an index into a list of the same method
(values, operators, delegates) or of the program (constants, initial states), exactly as in the file, so that
`arm_lower.pte.read` gives back what `arm_lower.pte.emit` was given. `MethodBuilder` makes these lists.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod

from arm_lower.errors import PteError

REQUIRED_ALIGNMENT = 16
"""Alignment in bytes of planned tensors, constants and delegate blobs."""


class ScalarType(IntEnum):
    """Element types, with torch's numbers."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    FLOAT32 = 6
    FLOAT64 = 7
    COMPLEX32 = 8
    COMPLEX64 = 9
    COMPLEX128 = 10
    BOOL = 11
    QINT8 = 12
    QUINT8 = 13
    QINT32 = 14
    BFLOAT16 = 15
    QUINT4X2 = 16
    QUINT2X4 = 17
    BITS1X8 = 18
    BITS2X4 = 19
    BITS4X2 = 20
    BITS8 = 21
    BITS16 = 22
    FLOAT8_E5M2 = 23
    FLOAT8_E4M3FN = 24
    FLOAT8_E5M2FNUZ = 25
    FLOAT8_E4M3FNUZ = 26
    UINT16 = 27
    UINT32 = 28
    UINT64 = 29

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE.get(self.value, 1)

    @property
    def label(self) -> str:
        """The torch-like name, ``float32``."""
        return self.name.lower()


_ITEMSIZE = {2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 8: 4, 9: 8, 10: 16, 14: 4, 15: 2, 22: 2, 27: 2, 28: 4, 29: 8}


class Dynamism(IntEnum):
    """Whether kernels may resize a tensor."""

    STATIC = 0
    BOUND = 1
    UNBOUND = 2


@dataclass(frozen=True)
class Constant:
    """The tensor's bytes are ``Program.constants[index]``."""

    index: int


@dataclass(frozen=True)
class Planned:
    """The tensor lives in an arena.

    Attributes:
        offset: Byte offset in the arena, a multiple of 16 in files of ours.
        memory_id: Arena number, from 1.
        initial: Index in `Program.initial_states` of the bytes copied there at load (a mutable buffer), or None.
    """

    offset: int
    memory_id: int = 1
    initial: int | None = None


@dataclass(frozen=True)
class AtRuntime:
    """The caller gives the memory: method inputs shared with the caller, outputs without an arena."""


@dataclass(frozen=True)
class External:
    """The bytes come from a `.ptd` file under the tensor's ``fqn``; ``planned`` if the tensor is mutable."""

    planned: Planned | None = None


Storage = Constant | Planned | AtRuntime | External


@dataclass(frozen=True)
class NullValue:
    """An absent optional argument."""


@dataclass(frozen=True)
class IntValue:
    """int64."""

    value: int


@dataclass(frozen=True)
class BoolValue:
    value: bool


@dataclass(frozen=True, eq=False)
class DoubleValue:
    """float64; two are equal if their bits are (so NaN equals itself and 0.0 is not -0.0)."""

    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DoubleValue) and _bits((self.value,)) == _bits((other.value,))

    def __hash__(self) -> int:
        return hash(_bits((self.value,)))


@dataclass(frozen=True)
class StringValue:
    value: str


@dataclass(frozen=True)
class TensorValue:
    """A tensor.

    Attributes:
        scalar_type: Element type.
        sizes: Logical (NCHW) sizes; the upper bound if ``dynamism`` is BOUND.
        dim_order: Dimensions from the outermost to the innermost in memory; ``(0, 2, 3, 1)`` is channels-last.
        storage: Where its bytes are.
        dynamism: STATIC, BOUND, or UNBOUND (which the runtime refuses).
        fqn: Fully qualified name of a parameter or buffer, kept if the file has one ("" if not).
        requires_grad: As in torch; the runtime ignores it.
    """

    scalar_type: ScalarType
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    storage: Storage
    dynamism: Dynamism = Dynamism.STATIC
    fqn: str = ""
    requires_grad: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor at its (largest) size."""
        return prod(self.sizes) * self.scalar_type.itemsize


@dataclass(frozen=True)
class IntListValue:
    """A list of int64 given as indices of `IntValue`s, so that an item can be computed at run time."""

    items: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DoubleListValue:
    """Literal float64s; compared by bits like `DoubleValue`."""

    items: tuple[float, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DoubleListValue) and _bits(self.items) == _bits(other.items)

    def __hash__(self) -> int:
        return hash(_bits(self.items))


@dataclass(frozen=True)
class BoolListValue:
    """Literal booleans."""

    items: tuple[bool, ...]


@dataclass(frozen=True)
class TensorListValue:
    """Indices of tensor values that come before this one."""

    items: tuple[int, ...]


@dataclass(frozen=True)
class OptionalTensorListValue:
    """Indices of tensor values that come before this one; -1 is None."""

    items: tuple[int, ...]


Value = (
    NullValue
    | IntValue
    | BoolValue
    | DoubleValue
    | StringValue
    | TensorValue
    | IntListValue
    | DoubleListValue
    | BoolListValue
    | TensorListValue
    | OptionalTensorListValue
)


@dataclass(frozen=True)
class Operator:
    """A kernel's registered name, ``aten::add`` and ``out``; an empty overload leaves the bare name."""

    name: str
    overload: str = ""

    def __str__(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload else self.name


@dataclass(frozen=True)
class KernelCall:
    """Calls ``Method.operators[operator]``: schema inputs, out tensors, then the returned value."""

    operator: int
    args: tuple[int, ...]


@dataclass(frozen=True)
class DelegateCall:
    """Calls ``Method.delegates[delegate]``: inputs, then outputs."""

    delegate: int
    args: tuple[int, ...]


@dataclass(frozen=True)
class MoveCall:
    """Copies the value ``source`` into the slot ``target`` (no tensor bytes move)."""

    source: int
    target: int


@dataclass(frozen=True)
class JumpFalseCall:
    """Goes to instruction ``destination`` if the Bool (or all-elements Bool tensor) ``condition`` is false."""

    condition: int
    destination: int


@dataclass(frozen=True)
class FreeCall:
    """Drops the memory of a tensor. Read from foreign files only: a freed planned tensor crashes the runtime."""

    value: int


Instruction = KernelCall | DelegateCall | MoveCall | JumpFalseCall | FreeCall


@dataclass(frozen=True)
class DelegateSpec:
    """A compiled subgraph.

    Attributes:
        id: Name the backend is registered under, ``EthosUBackend``.
        data: What the backend gets at load; for Ethos-U see `arm_lower.pte.ethosu_blob`.
        compile_specs: Key and raw value pairs.
        inline: Keep ``data`` in the flatbuffer rather than in a segment of its own.
    """

    id: str
    data: bytes = field(repr=False)
    compile_specs: tuple[tuple[str, bytes], ...] = ()
    inline: bool = False


@dataclass(frozen=True)
class Method:
    """One method (ExecuTorch: execution plan).

    Attributes:
        name: ``forward`` by convention.
        values: Everything an instruction refers to.
        inputs: Indices of the values that the caller sets.
        outputs: Indices of the values that the caller gets.
        operators: Kernels, each once.
        instructions: Run from the first to the last, apart from jumps.
        delegates: Compiled subgraphs.
        arena_sizes: Bytes of arena 1, 2, ... (the file's reserved entry 0 is not in here).
        container: Encoded pytree of inputs and of outputs, or None; the runtime does not need it.
    """

    name: str
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    delegates: tuple[DelegateSpec, ...] = ()
    arena_sizes: tuple[int, ...] = ()
    container: tuple[str, str] | None = None

    def kernels(self) -> list[str]:
        """Registered names of the kernels the method calls, sorted."""
        return sorted({str(op) for op in self.operators})


@dataclass(frozen=True)
class Program:
    """A whole file.

    Attributes:
        methods: At least one, with unique names.
        constants: Bytes of each constant; exactly as long as the tensors that use it.
        initial_states: Start values of mutable buffers.
        named_data: Further blobs under a name, for delegates.
        version: Schema version; the runtime accepts 0 only.
    """

    methods: tuple[Method, ...]
    constants: tuple[bytes, ...] = field(default=(), repr=False)
    initial_states: tuple[bytes, ...] = field(default=(), repr=False)
    named_data: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    version: int = 0

    def kernels(self) -> list[str]:
        """Registered names of the kernels that a runtime needs for this file, sorted."""
        return sorted({name for m in self.methods for name in m.kernels()})

    def method(self, name: str) -> Method:
        """The method called ``name``.

        Raises:
            PteError: There is none; names those that exist.
        """
        for m in self.methods:
            if m.name == name:
                return m
        raise PteError(
            f"no method {name!r}", f"the program has {', '.join(m.name for m in self.methods) or 'no method'}"
        )


class ProgramBuilder:
    """Collects methods and the bytes they share."""

    def __init__(self) -> None:
        self._constants: dict[bytes, int] = {}
        self._states: list[bytes] = []
        self._named: dict[str, bytes] = {}
        self._methods: list[MethodBuilder] = []

    def method(self, name: str) -> MethodBuilder:
        """Starts a method; methods are written in the order of these calls."""
        builder = MethodBuilder(name, self)
        self._methods.append(builder)
        return builder

    def constant(self, data: bytes) -> Constant:
        """Storage of a constant; identical bytes are stored once, over all methods."""
        return Constant(self._constants.setdefault(bytes(data), len(self._constants)))

    def initial_state(self, data: bytes) -> int:
        """Index of a mutable buffer's start value, for `Planned.initial`."""
        self._states.append(bytes(data))
        return len(self._states) - 1

    def named_data(self, key: str, data: bytes) -> None:
        """Adds a blob under a name.

        Raises:
            PteError: The name is taken by other bytes.
        """
        if self._named.setdefault(key, bytes(data)) != data:
            raise PteError(f"named data {key!r} is given twice with different bytes")

    def build(self) -> Program:
        """The program as collected so far."""
        return Program(
            tuple(m.build() for m in self._methods),
            tuple(self._constants),
            tuple(self._states),
            tuple(self._named.items()),
        )


class MethodBuilder:
    """Collects one method. Every ``add_*`` returns the index of the value.

    Literals (null, int, bool, double, string and lists) are shared; tensors and ``new_*`` results never are.
    """

    def __init__(self, name: str, program: ProgramBuilder) -> None:
        self.name = name
        self.program = program
        self.values: list[Value] = []
        self.instructions: list[Instruction] = []
        self._shared: dict[Value, int] = {}
        self._operators: dict[Operator, int] = {}
        self._delegates: list[DelegateSpec] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._arenas: dict[int, int] = {}
        self.container: tuple[str, str] | None = None

    def add(self, value: Value) -> int:
        """Appends ``value`` as it is."""
        self.values.append(value)
        return len(self.values) - 1

    def _share(self, value: Value) -> int:
        index = self._shared.get(value)
        if index is None:
            index = self._shared[value] = self.add(value)
        return index

    def add_null(self) -> int:
        return self._share(NullValue())

    def add_int(self, value: int) -> int:
        return self._share(IntValue(int(value)))

    def add_bool(self, value: bool) -> int:
        return self._share(BoolValue(bool(value)))

    def add_double(self, value: float) -> int:
        return self._share(DoubleValue(float(value)))

    def add_string(self, value: str) -> int:
        return self._share(StringValue(str(value)))

    def new_int(self, value: int = 0) -> int:
        """An Int slot that an instruction writes (``sym_size``); never shared."""
        return self.add(IntValue(int(value)))

    def new_bool(self, value: bool = False) -> int:
        """A Bool slot that an instruction writes; never shared."""
        return self.add(BoolValue(bool(value)))

    def new_double(self, value: float = 0.0) -> int:
        """A Double slot that an instruction writes; never shared."""
        return self.add(DoubleValue(float(value)))

    def add_int_list(self, numbers: Sequence[int]) -> int:
        """A list of literal numbers."""
        return self.add_int_list_of([self.add_int(n) for n in numbers])

    def add_int_list_of(self, indices: Sequence[int]) -> int:
        """A list whose items are Int values, by index."""
        return self._share(IntListValue(tuple(int(i) for i in indices)))

    def add_double_list(self, numbers: Sequence[float]) -> int:
        return self._share(DoubleListValue(tuple(float(n) for n in numbers)))

    def add_bool_list(self, flags: Sequence[bool]) -> int:
        return self._share(BoolListValue(tuple(bool(b) for b in flags)))

    def add_tensor_list(self, tensors: Sequence[int]) -> int:
        return self._share(TensorListValue(tuple(int(i) for i in tensors)))

    def add_optional_tensor_list(self, tensors: Sequence[int | None]) -> int:
        return self._share(OptionalTensorListValue(tuple(-1 if i is None else int(i) for i in tensors)))

    def add_tensor(
        self,
        scalar_type: ScalarType | int,
        sizes: Sequence[int],
        storage: Storage,
        dim_order: Sequence[int] | None = None,
        dynamism: Dynamism = Dynamism.STATIC,
        fqn: str = "",
    ) -> int:
        """A tensor; ``dim_order`` defaults to contiguous. Planned tensors grow their arena as needed."""
        order = tuple(range(len(sizes))) if dim_order is None else tuple(int(d) for d in dim_order)
        tensor = TensorValue(ScalarType(scalar_type), tuple(int(s) for s in sizes), order, storage, dynamism, fqn)
        if isinstance(storage, Planned):
            self.reserve(storage.offset + tensor.nbytes, storage.memory_id)
        return self.add(tensor)

    def add_constant(
        self, scalar_type: ScalarType | int, sizes: Sequence[int], data: bytes, dim_order: Sequence[int] | None = None
    ) -> int:
        """A constant tensor; one value per (type, sizes, order, bytes)."""
        order = tuple(range(len(sizes))) if dim_order is None else tuple(int(d) for d in dim_order)
        storage = self.program.constant(data)
        return self._share(TensorValue(ScalarType(scalar_type), tuple(int(s) for s in sizes), order, storage))

    def reserve(self, nbytes: int, memory_id: int = 1) -> None:
        """Makes arena ``memory_id`` at least ``nbytes`` big."""
        self._arenas[memory_id] = max(self._arenas.get(memory_id, 0), int(nbytes))

    def add_input(self, index: int) -> None:
        """Declares the value ``index`` as the next method input."""
        self._inputs.append(index)

    def add_output(self, index: int) -> None:
        """Declares the value ``index`` as the next method output."""
        self._outputs.append(index)

    def add_delegate(self, spec: DelegateSpec) -> int:
        """Index of the delegate for `delegate_call`."""
        self._delegates.append(spec)
        return len(self._delegates) - 1

    def kernel(self, name: str, overload: str, *args: int) -> int:
        """Appends a kernel call and returns its position. ``args``: schema inputs, outs, then the returned value."""
        operator = self._operators.setdefault(Operator(name, overload), len(self._operators))
        return self._append(KernelCall(operator, tuple(args)))

    def delegate_call(self, delegate: int, *args: int) -> int:
        """Appends a delegate call and returns its position. ``args``: inputs, then outputs."""
        return self._append(DelegateCall(delegate, tuple(args)))

    def move(self, source: int, target: int) -> int:
        """Appends a move and returns its position."""
        return self._append(MoveCall(source, target))

    def jump_false(self, condition: int, destination: int = 0) -> int:
        """Appends a jump and returns its position; `set_destination` can complete it later."""
        return self._append(JumpFalseCall(condition, destination))

    def set_destination(self, position: int, destination: int | None = None) -> None:
        """Points the jump at ``position`` to ``destination``, or to the next instruction to come.

        Raises:
            PteError: There is no jump at ``position``.
        """
        jump = self.instructions[position]
        if not isinstance(jump, JumpFalseCall):
            raise PteError(f"instruction {position} of {self.name} is {type(jump).__name__}, not a jump")
        target = len(self.instructions) if destination is None else destination
        self.instructions[position] = JumpFalseCall(jump.condition, target)

    def _append(self, instruction: Instruction) -> int:
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def build(self) -> Method:
        """The method as collected so far."""
        last = max(self._arenas, default=0)
        return Method(
            self.name,
            tuple(self.values),
            tuple(self._inputs),
            tuple(self._outputs),
            tuple(self._operators),
            tuple(self.instructions),
            tuple(self._delegates),
            tuple(self._arenas.get(i, 0) for i in range(1, last + 1)),
            self.container,
        )


def _bits(numbers: tuple[float, ...]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)
