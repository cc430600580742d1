"""The C functions themselves: memory that the caller gives, and the errors about it."""

from __future__ import annotations

import ctypes as c
from typing import Any
from unittest import mock

import numpy as np
import pytest

from arm_lower.pte.emit import emit
from arm_lower.pte.model import AtRuntime, Dynamism, Planned, ProgramBuilder, ScalarType
from fvp import native
from fvp.native import Array

F32 = ScalarType.FLOAT32
MISALIGNED = 24


class Block(c.Structure):
    _fields_ = [("data", c.c_void_p), ("size", c.c_uint32)]


class Memory(c.Structure):
    _fields_ = [("values", Block), ("arenas", Block * 4), ("scratch", Block), ("fast_scratch", Block)]


EVENT = c.CFUNCTYPE(None, c.c_void_p, c.c_bool, c.c_uint32, c.c_void_p, c.c_uint32)


class Config(c.Structure):
    _fields_ = [("kernels", c.c_void_p), ("kernel_count", c.c_uint32), ("backends", c.c_void_p),
                ("backend_count", c.c_uint32), ("event", EVENT), ("state", c.c_void_p)]


class Api:
    """A method with memory of its own; every block may be moved or cut."""

    def __init__(self, pte: bytes) -> None:
        self.library = native._library(native.build_library())
        self.error = native._Error()
        self.kept: list[Any] = []
        file, self.program = self.memory_of(len(pte), pte), (c.c_uint8 * 64)()
        assert self.call("al_program_load", self.program, c.c_void_p(file), c.c_size_t(len(pte))) == 0
        self.events: list[tuple[bool, int, str]] = []
        self.event = EVENT(lambda _, begins, number, name, size: self.events.append(
            (begins, number, c.string_at(name, size).decode())))
        table = c.addressof((c.c_uint8 * 1).in_dll(self.library, "al_kernels"))
        count = c.c_uint32.in_dll(self.library, "al_kernel_count")
        self.config = Config(table, count, None, 0, self.event, None)
        self.needs = native._Needs()
        assert self.call("al_method_needs", self.program, None, c.byref(self.config), c.byref(self.needs)) == 0
        self.memory = Memory()
        self.memory.values = self.block(self.needs.values)
        self.memory.arenas[0] = self.block(self.needs.arenas[0])
        self.method = c.c_void_p()

    def memory_of(self, size: int, data: bytes = b"") -> int:
        """Address of aligned memory."""
        raw = c.create_string_buffer(size + 32)
        self.kept.append(raw)
        address = c.addressof(raw) + -c.addressof(raw) % 16
        c.memmove(address, data, len(data))
        return address

    def block(self, size: int) -> Block:
        return Block(self.memory_of(size), size)

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments, c.byref(self.error)))

    def text(self) -> str:
        text = c.create_string_buffer(300)
        self.library.al_error_text(c.byref(self.error), text, 300)
        return text.value.decode()

    def init(self) -> int:
        return self.call("al_method_init", c.byref(self.method), self.program, None, c.byref(self.memory),
                         c.byref(self.config))

    def bind(self, output: bool, number: int, address: int, size: int) -> int:
        self.library.al_bind.argtypes = None
        return self.call("al_bind", self.method, c.c_bool(output), c.c_uint32(number), c.c_void_p(address),
                         c.c_size_t(size))

    def execute(self) -> int:
        return self.call("al_execute", self.method)

    def set_input(self, number: int, array: Array) -> int:
        sizes = (c.c_int32 * array.ndim)(*array.shape)
        return self.call("al_set_input", self.method, number, 6, array.ndim, sizes, array.ctypes.data, array.nbytes)


def program(planned: bool = False, dynamic: bool = False) -> bytes:
    b = ProgramBuilder()
    m = b.method("forward")
    dynamism = Dynamism.BOUND if dynamic else Dynamism.STATIC
    x = m.add_tensor(F32, (2, 3), Planned(0) if planned else AtRuntime(), dynamism=dynamism)
    y = m.add_tensor(F32, (2, 3), Planned(32) if planned else AtRuntime(), dynamism=dynamism)
    m.add_input(x)
    m.kernel("aten::clone", "out", x, m.add_null(), y, y)
    m.add_output(y)
    return emit(b.build())


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("name", ["values", "arenas", "scratch", "fast_scratch"])
def test_misaligned_blocks(name: str) -> None:
    api = Api(program(planned=True))
    assert api.init() == 0, api.text()
    block = api.block(64)
    block.data += 8
    if name == "arenas":
        api.memory.arenas[0] = block
    else:
        setattr(api.memory, name, block)
    assert api.init() == MISALIGNED
    label = {"arenas": "arena, number 1", "fast_scratch": "fast scratch"}.get(name, name)
    assert api.text() == f"a memory block is not 16-byte aligned: {label}"
    assert not api.method


def test_no_block_at_all() -> None:
    api = Api(program(planned=True))
    api.memory.arenas[0] = Block(None, 1 << 20)
    assert api.init() == 21
    assert api.text() == "the arena is too small: arena, number 1, needed 56, available 0"


def test_bind() -> None:
    api = Api(program())
    assert api.init() == 0
    assert api.execute() == 47
    assert api.text() == "a tensor has no memory: aten::clone.out, instruction 0, argument 0"
    x, y = api.memory_of(24, X.tobytes()), api.memory_of(24)
    for address, size, status, text in [
        (x + 1, 24, MISALIGNED, "a memory block is not 16-byte aligned: input, number 0"),
        (x, 23, 21, "the arena is too small: input, number 0, needed 24, available 23"),
        (x, 24, 0, "no error"),
    ]:
        assert api.bind(False, 0, address, size) == status
        assert status == 0 or api.text() == text
    assert api.bind(False, 1, x, 24) == 30
    assert api.text() == "no input or output of this number: input, number 1"
    assert api.bind(True, 0, y, 100) == 0
    assert api.execute() == 0
    assert c.string_at(y, 24) == X.tobytes()


def test_bind_what_is_planned() -> None:
    api = Api(program(planned=True))
    assert api.init() == 0
    assert api.bind(False, 0, api.memory_of(24), 24) == 31
    assert api.bind(True, 0, api.memory_of(24), 24) == 31


def test_bind_needs_room_for_the_largest_size() -> None:
    api = Api(program(dynamic=True))
    assert api.init() == 0
    small = np.zeros((1, 2), np.float32)
    y = api.memory_of(24)
    assert api.bind(True, 0, y, 8) == 21
    assert api.bind(True, 0, y, 24) == 0
    assert api.set_input(0, small) == 0 and api.execute() == 0
    assert api.library.al_output(api.method, 0).contents.t.contents.sizes[:2] == [1, 2]


def test_an_input_that_is_not_planned_is_not_copied_and_not_written() -> None:
    b = ProgramBuilder()
    m = b.method("forward")
    x = m.add_tensor(F32, (2, 3), AtRuntime())
    m.add_input(x)
    c0 = m.add_constant(F32, (2, 3), bytes(24))
    m.kernel("aten::copy_", "", x, c0, m.add_bool(False), x)
    m.add_output(x)
    api = Api(emit(b.build()))
    assert api.init() == 0
    given = X.copy()
    assert api.set_input(0, given) == 0 and api.execute() == 46
    assert api.text() == "an operator would write to a constant: aten::copy_, instruction 0, argument 0"
    np.testing.assert_array_equal(given, X)
    assert api.bind(False, 0, given.ctypes.data, given.nbytes) == 0 and api.execute() == 0
    assert not given.any()


def test_views_end_with_the_execution() -> None:
    """Memory that a caller lent, and may have freed since, is not read again through a view of it."""
    b = ProgramBuilder()
    m = b.method("forward")
    x = m.add_tensor(F32, (2, 3), AtRuntime())
    view, before = m.add_tensor(F32, (6,), Planned(0)), m.add_tensor(F32, (6,), Planned(32))
    m.add_input(x)
    m.kernel("aten::clone", "out", view, m.add_null(), before, before)
    m.kernel("executorch_prim::et_view", "default", x, m.add_int_list([6]), view)
    for output in (before, view):
        m.add_output(output)
    api = Api(unchecked(b))
    assert api.init() == 0
    for k in range(3):
        given = X + k + 1
        assert api.set_input(0, given) == 0 and api.execute() == 0, api.text()
        tensors = [api.library.al_output(api.method, i).contents.t.contents for i in range(2)]
        assert c.string_at(tensors[0].data, 24) == bytes(24)
        assert c.string_at(tensors[1].data, 24) == given.tobytes() and tensors[1].data == given.ctypes.data


def test_lent_memory_does_not_stay_under_another_name() -> None:
    """The input's tensor is moved away, another one takes its place: the first must not keep the lent memory."""
    b = ProgramBuilder()
    m = b.method("forward")
    x = m.add_tensor(F32, (2, 3), AtRuntime())
    kept, other, out = (m.add_tensor(F32, (2, 3), Planned(32 * i)) for i in range(3))
    m.add_input(x)
    m.kernel("aten::clone", "out", kept, m.add_null(), out, out)
    m.move(x, kept)
    m.move(other, x)
    m.add_output(out)
    api = Api(unchecked(b))
    assert api.init() == 0
    assert api.set_input(0, X.copy()) == 0 and api.execute() == 0
    assert api.set_input(0, X.copy()) == 0 and api.execute() == 47
    assert api.text() == "a tensor has no memory: aten::clone.out, instruction 0, argument 0"


def test_a_constant_is_no_view() -> None:
    b = ProgramBuilder()
    m = b.method("forward")
    x = m.add_tensor(F32, (6,), Planned(0))
    m.add_input(x)
    constant = m.add_constant(F32, (6,), bytes(24))
    m.kernel("executorch_prim::et_view", "default", x, m.add_int_list([6]), constant)
    api = Api(unchecked(b))
    assert api.init() == 0 and api.execute() == 46


def unchecked(builder: ProgramBuilder) -> bytes:
    """The file, though the compiler's checks would refuse what it does."""
    with mock.patch("arm_lower.pte.check.check_program"), mock.patch("arm_lower.pte.check.check_file"):
        return emit(builder.build())


def test_set_input_without_such_a_number() -> None:
    api = Api(program(planned=True))
    assert api.init() == 0
    assert api.set_input(1, X) == 30
    assert api.text() == "no input or output of this number: input, number 1, needed 2, available 1"
    for name in ("al_input", "al_output"):
        assert not getattr(api.library, name)(api.method, 1)


def test_observer() -> None:
    api = Api(program(planned=True))
    assert api.init() == 0 and api.execute() == 0
    assert api.events == [(True, 0, "aten::clone.out"), (False, 0, "aten::clone.out")]


def test_names_of_methods() -> None:
    api = Api(program())
    name, size = api.library.al_program_method_name, c.c_uint32()
    name.restype, name.argtypes = c.c_void_p, [c.c_void_p, c.c_uint32, c.c_void_p]
    assert api.library.al_program_methods(api.program) == 1
    assert c.string_at(name(api.program, 0, c.byref(size)), size.value) == b"forward"
    assert name(api.program, 1, c.byref(size)) is None


def test_the_error_record_may_be_absent() -> None:
    api = Api(program())
    assert api.library.al_program_load(api.program, None, c.c_size_t(0), None) == 1
