"""Methods of the device runtime on the host: memory, inputs and outputs, control flow, state, and their errors."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from pte_edit import edited
from pte_samples import SAMPLES

from arm_lower.errors import ArmLowerError
from arm_lower.pte.emit import emit
from arm_lower.pte.model import AtRuntime, Dynamism, MethodBuilder, Planned, ProgramBuilder, ScalarType
from arm_lower.pte.schema import Row
from fvp.native import DeviceError, Native

F32, I8, I64, F64, BOOL = (ScalarType[n] for n in ("FLOAT32", "INT8", "INT64", "FLOAT64", "BOOL"))
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def program(write: Callable[[MethodBuilder], None]) -> bytes:
    b = ProgramBuilder()
    write(b.method("forward"))
    return emit(b.build())


def refused(pte: bytes, inputs: Sequence[Any], text: str, **settings: Any) -> None:
    with pytest.raises(DeviceError, match=f"^{re.escape(text)}$"):
        Native(pte, **settings).run(inputs)


@pytest.mark.parametrize("name", [n for n in SAMPLES if n != "delegated"])
def test_samples(name: str) -> None:
    sample = SAMPLES[name]()
    native = Native(emit(sample.program))
    for call in sample.calls:
        found = native.run([t.numpy() for t in call.inputs], call.method)
        for a, b in zip(found, call.expected, strict=True):
            np.testing.assert_allclose(a, b.numpy() if isinstance(b, torch.Tensor) else b, rtol=1e-5, atol=1e-6)


def test_values_that_are_no_tensors() -> None:
    smallest, text, flags = Native(emit(SAMPLES["named"]().program)).run([])
    assert smallest == -(1 << 63) and text == "naïve\x1b[31m" and flags.tolist() == [True, False]


def copy(m: MethodBuilder, planned: bool = True) -> None:
    x = m.add_tensor(F32, (2, 3), Planned(0) if planned else AtRuntime())
    y = m.add_tensor(F32, (2, 3), Planned(32) if planned else AtRuntime())
    m.add_input(x)
    m.kernel("aten::clone", "out", x, m.add_null(), y, y)
    m.add_output(y)


@pytest.mark.parametrize("planned", [True, False])
def test_results_stay_when_the_program_runs_again_and_is_gone(planned: bool) -> None:
    native = Native(program(lambda m: copy(m, planned)))
    first = native.run([X])[0]
    second = native.run([X + 1])[0]
    del native
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, X + 1)


@pytest.mark.parametrize("planned", [True, False])
def test_memory_planned_or_not(planned: bool) -> None:
    native = Native(program(lambda m: copy(m, planned)))
    for k in range(3):
        np.testing.assert_array_equal(native.run([X + k])[0], X + k)


@pytest.mark.parametrize("name", ["network", "counter", "odd_tensors", "dynamic"])
@pytest.mark.parametrize("block", ["values", "arena"])
def test_needs_suffice_exactly(name: str, block: str) -> None:
    sample = SAMPLES[name]()
    pte = emit(sample.program)
    needs = Native(pte).needs()  # which has run with exactly these
    assert needs["values"] % 16 == 0
    start = {"values": "memory for the value table is too small: values",
             "arena": "the arena is too small: arena, number 1"}[block]
    refused(pte, [], f"{start}, needed {needs[block]}, available {needs[block] - 16}", less={block: 16})


def test_second_arena() -> None:
    needs = Native(emit(SAMPLES["odd_tensors"]().program)).needs()
    assert needs["arena"] == 96


def test_inputs() -> None:
    pte = program(copy)
    refused(pte, [X.astype(np.float64)], "input has the wrong data type: input, number 0")
    refused(pte, [X.astype(np.int32)], "input has the wrong data type: input, number 0")
    refused(pte, [X.T], "input has the wrong shape: input, number 0")
    refused(pte, [X[0]], "input has the wrong shape: input, number 0")
    refused(pte, [X[:, :0]], "input has the wrong shape: input, number 0")
    for inputs in ([], [X, X]):
        with pytest.raises(ArmLowerError, match=rf"^the method takes 1 inputs, {len(inputs)} are given$"):
            Native(pte).run(inputs)
    with pytest.raises(ArmLowerError, match="^input 0 is complex128, which the runtime does not have"):
        Native(pte).run([X.astype(complex)])


def test_inputs_that_are_numbers() -> None:
    def write(m: MethodBuilder) -> None:
        for index in (m.add_int(3), m.add_double(0.5), m.add_bool(True), m.add_string("mode"), m.add_null()):
            m.add_input(index)
            m.add_output(index)

    pte = program(write)
    good = [3, 0.5, True, "mode", None]
    assert [x.item() for x in Native(pte).run(good)] == good
    for number, wrong in enumerate([4, 0.25, False, "made", 0]):
        inputs = [wrong if i == number else x for i, x in enumerate(good)]
        refused(pte, inputs, f"a number differs from the one that the method was made for: input, number {number}")
    for number, wrong in enumerate([3.0, 1, 1, np.zeros(4, np.float32), "x"]):
        inputs = [wrong if i == number else x for i, x in enumerate(good)]
        refused(pte, inputs, f"a number differs from the one that the method was made for: input, number {number}")


def test_layouts() -> None:
    """Arrays are logical; the file's dim order is the runtime's business."""

    def write(m: MethodBuilder) -> None:
        x = m.add_tensor(F32, (1, 2, 3, 4), Planned(0), (0, 2, 3, 1))
        y = m.add_tensor(F32, (1, 2, 3, 4), Planned(96))
        m.kernel("dim_order_ops::_to_dim_order_copy", "out", x, m.add_bool(False), m.add_int_list(range(4)), y, y)
        for index in (x, y):
            m.add_output(index)
        m.add_input(x)

    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    for found in Native(program(write)).run([x]):
        np.testing.assert_array_equal(found, x)


def test_dynamic_sizes() -> None:
    native = Native(emit(SAMPLES["dynamic"]().program))
    for n in (1, 4, 0, 3):
        x = np.random.default_rng(n).standard_normal((n, 6)).astype(np.float32)
        np.testing.assert_array_equal(native.run([x])[0], (2 * x).reshape(n, 2, 3))
    with pytest.raises(DeviceError, match="^input has the wrong shape: input, number 0$"):
        native.run([np.zeros((5, 6), np.float32)])
    with pytest.raises(DeviceError, match="^shapes do not fit the operator: aten::view_copy.out, instruction 2"):
        native.run([np.zeros((2, 5), np.float32)])  # within the bounds, but not a multiple of 6


def test_result_of_another_size() -> None:
    def write(m: MethodBuilder) -> None:
        x, y = m.add_tensor(F32, (2, 3), Planned(0)), m.add_tensor(F32, (2, 4), Planned(32))
        m.add_input(x)
        m.kernel("aten::clone", "out", x, m.add_null(), y, y)

    text = "a result does not have the size that the file says: aten::clone.out, instruction 0, needed 3, available 4"
    refused(program(write), [X], text)


def test_methods_have_state_of_their_own() -> None:
    def write(m: MethodBuilder, start: int) -> None:
        state = m.add_tensor(I64, (), Planned(0, initial=m.program.initial_state(start.to_bytes(8, "little"))))
        copied = m.add_tensor(I64, (), Planned(16))
        m.kernel("aten::add", "Scalar_out", state, m.add_int(1), m.add_int(1), copied, copied)
        m.kernel("aten::copy_", "", state, copied, m.add_bool(False), state)
        m.add_output(copied)

    b = ProgramBuilder()
    write(b.method("a"), 10)
    write(b.method("b"), 20)
    native = Native(emit(b.build()))
    runs = [native.run([], name)[0].item() for name in ("a", "a", "b", "a", "b")]
    assert runs == [11, 12, 21, 13, 22]
    assert Native(emit(b.build())).run([])[0] == 11  # no "forward": the first one


def test_writing_a_constant() -> None:
    def write(m: MethodBuilder) -> None:
        x = m.add_tensor(F32, (4,), Planned(0))
        m.add_input(x)
        c = m.add_constant(F32, (4,), bytes(16))
        m.kernel("aten::copy_", "", x, x, m.add_bool(False), x)
        m.add_output(c)

    pte = edited(program(write), ((*CALL, "args"), (1, 0, 2, 1)))
    text = "an operator would write to a constant: aten::copy_, instruction 0, argument 0"
    refused(pte, [np.zeros(4, np.float32)], text)


CALL = ("execution_plan", 0, "chains", 0, "instructions", 0, "instr_args")


def test_arguments_of_other_kinds() -> None:
    def write(m: MethodBuilder) -> None:
        x = m.add_tensor(F32, (2, 3), Planned(0))
        m.add_input(x)
        m.kernel("aten::sym_size", "int", x, m.add_int(0), m.new_int())

    # Values: x, 0, the result.
    for args, problem in [
        ((1, 1, 2), "argument 0"),
        ((0, 0, 2), "argument 1"),
        ((0, 1, 0), "argument 2"),  # a tensor must not become a number
        ((0, 1), "argument 2, needed 3, available 2"),
        ((), "argument 0, needed 1, available 0"),
    ]:
        text = "an operator has arguments that its schema does not allow: aten::sym_size.int, instruction 0"
        refused(edited(program(write), ((*CALL, "args"), args)), [X], f"{text}, {problem}")


def test_tensors_without_memory() -> None:
    def write(m: MethodBuilder) -> None:
        copy(m)
        m.add_tensor(F32, (2, 3), AtRuntime())

    pte = edited(program(write), ((*CALL, "args"), (0, 2, 3, 3)))
    refused(pte, [X], "a tensor has no memory: aten::clone.out, instruction 0, argument 2")
    pte = edited(program(write), (("execution_plan", 0, "chains", 0, "instructions"), ()))
    np.testing.assert_array_equal(Native(pte).run([X])[0], np.zeros_like(X))  # planned memory begins as zeros


def test_free() -> None:
    """A freed value is an error until the execution ends; the next one begins anew."""
    pte = program(copy)
    call = Row("Instruction", {"instr_args": Row("KernelCall", {"op_index": 0, "args": (0, 2, 1, 1)})})

    def free(index: int) -> Row:
        return Row("Instruction", {"instr_args": Row("FreeCall", {"value_index": index})})

    path = ("execution_plan", 0, "chains", 0, "instructions")
    native = Native(edited(pte, (path, (call, free(0)))))
    for k in range(3):
        np.testing.assert_array_equal(native.run([X + k])[0], X + k)
    text = "a tensor has no memory"
    refused(edited(pte, (path, (free(0), call))), [X], f"{text}: aten::clone.out, instruction 1, argument 0")
    refused(edited(pte, (path, (call, free(1)))), [X], f"{text}: output, number 0")


def test_endless_loop() -> None:
    def write(m: MethodBuilder) -> None:
        m.jump_false(m.add_bool(False), 0)

    refused(program(write), [], "more instructions than the limit: instruction 0")


def test_conditions() -> None:
    def write(m: MethodBuilder) -> None:
        x = m.add_tensor(BOOL, (3,), Planned(0))
        m.add_input(x)
        jump = m.jump_false(x)
        m.add_output(m.new_int(1))
        m.move(m.add_int(2), 1)
        m.set_destination(jump)

    for flags in ([True, True, True], [True, False, True], [False] * 3):
        assert Native(program(write)).run([np.array(flags)])[0] == 1 + all(flags)
    pte = edited(program(write), (("execution_plan", 0, "values", 0, "val", "scalar_type"), 1))
    refused(pte, [np.zeros(3, np.int8)], "a kernel does not take this data type: jump, instruction 0, argument 0")
    pte = edited(program(write), ((*CALL, "cond_value_index"), 1))
    refused(pte, [np.ones(3, np.bool_)],
            "an operator has arguments that its schema does not allow: jump, instruction 0, argument 0")


def test_moved_tensors_share_memory() -> None:
    def write(m: MethodBuilder) -> None:
        x = m.add_tensor(F32, (2, 3), Planned(0))
        y, z = m.add_tensor(F32, (2, 3), Planned(32)), m.add_tensor(F32, (2, 3), Planned(64))
        m.add_input(x)
        m.move(x, y)
        m.kernel("aten::clone", "out", y, m.add_null(), z, z)
        m.add_output(z)

    np.testing.assert_array_equal(Native(program(write)).run([X])[0], X)


def test_texts_are_cut_not_overrun() -> None:
    from fvp import native

    library = native._library(native.build_library())
    error = native._Error(20, 7, 3, None, 0, 0, None, 4294967295, 1)
    whole = b"memory for the value table is too small: instruction 7, argument 3, needed 4294967295, available 1"
    for size in (0, 1, 2, 20, len(whole), len(whole) + 1, 200):
        text = ctypes.create_string_buffer(b"\xff" * 220, 220)
        assert library.al_error_text(ctypes.byref(error), text, size) == len(whole)
        assert text.raw[:size] == (whole[: max(size - 1, 0)] + b"\0" * (size > 0)).ljust(size, b"\xff")
        assert text.raw[size:] == b"\xff" * (220 - size)


def test_every_status_has_a_text() -> None:
    from fvp import native

    library = native._library(native.build_library())
    library.al_status_text.restype = ctypes.c_char_p
    header = (native.FIRMWARE / "include" / "arm_lower.h").read_text()
    table = re.findall(r'X\(AL_\w+, (\d+), "([^"]+)"\)', header)
    assert len(table) > 40 and len({n for n, _ in table}) == len({t for _, t in table}) == len(table)
    for number, text in table:
        assert library.al_status_text(int(number)).decode() == text
    assert library.al_status_text(7) == library.al_status_text(255) == b"unknown error"


def view(dynamism: Dynamism, sizes: Sequence[int], out: Sequence[int], order: Sequence[int] | None = None,
         dtype: ScalarType = F32) -> bytes:
    def write(m: MethodBuilder) -> None:
        x = m.add_tensor(F32, (2, 3), Planned(0), order, dynamism)
        y = m.add_tensor(dtype, out, AtRuntime(), dynamism=dynamism)
        m.add_input(x)
        m.kernel("executorch_prim::et_view", "default", x, m.add_int_list(sizes), y)
        m.add_output(y)

    return program(write)


@pytest.mark.parametrize("dynamism", list(Dynamism)[:2])
def test_views(dynamism: Dynamism) -> None:
    for sizes, out in [((3, 2), (3, 2)), ((-1, 2), (3, 2)), ((1, 6, -1), (1, 6, 1)), ((6,), (6,))]:
        np.testing.assert_array_equal(Native(view(dynamism, sizes, out)).run([X])[0], X.reshape(out))
    where = "executorch_prim::et_view.default, instruction 0, argument"
    shape, value = "shapes do not fit the operator", "an argument has a value that the operator does not allow"
    for sizes, text in [
        ((4, 2), f"{shape}: {where} 1"),
        ((-1, 4), f"{shape}: {where} 1"),
        ((-1, 0), f"{shape}: {where} 1"),
        ((-1, -1), f"{value}: {where} 1"),
        ((-2, 3), f"{value}: {where} 1"),
        ((1 << 31, 1), f"{value}: {where} 1"),
        ((6,), f"{shape}: {where} 1"),
    ]:
        refused(view(dynamism, sizes, (3, 2)), [X], text)
    refused(view(dynamism, (3, 2), (3, 2), (1, 0)), [X], f"{shape}: {where} 0")
    other = view(dynamism, (3, 2), (3, 2), None, ScalarType.INT32)
    refused(other, [X], f"a kernel does not take this data type: {where} 2")


def test_a_view_is_not_enlarged() -> None:
    """A dynamic view of little memory cannot be resized to more, whatever its bound is."""
    def write(m: MethodBuilder) -> None:
        x, big = m.add_tensor(F32, (2,), Planned(0)), m.add_constant(F32, (64,), bytes(256))
        view = m.add_tensor(F32, (64,), AtRuntime(), dynamism=Dynamism.BOUND)
        m.add_input(x)
        m.kernel("executorch_prim::et_view", "default", x, m.add_int_list([2]), view)
        m.kernel("aten::clone", "out", big, m.add_null(), view, view)

    text = "a result does not have the size that the file says: aten::clone.out, instruction 1, needed 256, available 8"
    refused(program(write), [X[0, :2]], text)
