"""What the device's loader says of files that are not as they should be. Every error code of a file, with its text."""

from __future__ import annotations

import ctypes
import struct
import time
from functools import cache
from typing import Any

import pytest
from pte_edit import Path, edited, patched, with_cell, with_unknown_fields

from arm_lower.pte.emit import emit
from arm_lower.pte.model import (
    AtRuntime,
    DelegateSpec,
    Dynamism,
    Planned,
    ProgramBuilder,
    ScalarType,
)
from arm_lower.pte.read import File
from arm_lower.pte.schema import Row
from fvp import native
from fvp.native import DeviceError, Native

F32 = ScalarType.FLOAT32
BACKENDS = {"Test": lambda call, data, inputs: []}
X, CONSTANT, STATE, Y, SIZES, LIST, TENSORS, OPTIONAL, NEVER, SLOT, DYNAMIC = range(11)


@cache
def good() -> bytes:
    """A file with everything that an index or offset can lead to."""
    b = ProgramBuilder()
    m = b.method("forward")
    assert m.add_tensor(F32, (4,), Planned(0)) == X
    assert m.add_constant(F32, (4,), struct.pack("<4f", 1, 2, 3, 4)) == CONSTANT
    assert m.add_tensor(F32, (4,), Planned(16, initial=b.initial_state(bytes(16)))) == STATE
    assert m.add_tensor(F32, (4,), AtRuntime()) == Y
    assert m.add_int(4) == SIZES
    assert m.add_int_list_of([SIZES]) == LIST
    assert m.add_tensor_list([X, CONSTANT]) == TENSORS
    assert m.add_optional_tensor_list([X, None]) == OPTIONAL
    assert m.add_bool(False) == NEVER
    assert m.new_int() == SLOT
    assert m.add_tensor(F32, (2, 3), AtRuntime(), dynamism=Dynamism.BOUND) == DYNAMIC
    m.add_delegate(DelegateSpec("Test", bytes(range(32))))
    m.kernel("aten::sym_numel", "", X, SLOT)
    m.move(SLOT, SIZES)
    m.kernel("executorch_prim::et_view", "default", X, LIST, Y)
    m.jump_false(NEVER, 4)
    m.add_input(X)
    m.add_output(Y)
    second = b.method("second")
    second.add_output(second.add_int(7))
    return emit(b.build())


PLAN: Path = ("execution_plan", 0)
ZEROS = bytes(16)


def value(index: int, *rest: str | int) -> Path:
    return (*PLAN, "values", index, "val", *rest)


def instruction(number: int, *rest: str | int) -> Path:
    return (*PLAN, "chains", 0, "instructions", number, "instr_args", *rest)


def failure(pte: bytes, **settings: Any) -> tuple[int, str]:
    """Status and text of the error, (0, "") if both methods load."""
    try:
        loaded = Native(pte, BACKENDS, **settings)
        loaded.method()
        loaded.method("second")
    except DeviceError as error:
        return error.status, str(error)
    return 0, ""


def test_the_good_file_loads() -> None:
    assert failure(good()) == (0, "")
    assert failure(edited(good())) == (0, "")


TRUNCATED, FOREIGN, TOO_NEW, MISALIGNED, CORRUPT, UNSUPPORTED = 1, 2, 3, 4, 5, 6
HEADER = 8
TEXTS = {CORRUPT: "the file is corrupt", UNSUPPORTED: "the file uses a feature that this runtime does not have"}


@pytest.mark.parametrize(
    ("offset", "data", "status", "text"),
    [
        (4, b"ET13", FOREIGN, "not an ExecuTorch program: no ET12 identifier"),
        (4, b"TFL3", FOREIGN, "not an ExecuTorch program: no ET12 identifier"),
        (0, struct.pack("<I", 2), CORRUPT, "the file is corrupt: Program at byte 0"),
        (0, struct.pack("<I", 0xFFFFFFF0), CORRUPT, "the file is corrupt: Program at byte 0"),
        (HEADER, b"eh01", CORRUPT, None),
        (HEADER + 4, struct.pack("<I", 16), CORRUPT, "the file is corrupt: extended header at byte 8"),
        (HEADER + 8, struct.pack("<Q", 1 << 40), TRUNCATED, None),
        (HEADER + 8, struct.pack("<Q", 0), CORRUPT, "the file is corrupt: extended header at byte 8"),
        (HEADER + 16, struct.pack("<Q", 1 << 20), TRUNCATED, None),
        (HEADER + 16, struct.pack("<Q", 8), CORRUPT, "the file is corrupt: extended header at byte 8"),
        (HEADER + 24, struct.pack("<Q", 1 << 20), TRUNCATED, None),
        (HEADER + 24, struct.pack("<Q", 20), CORRUPT, None),
    ],
)
def test_head(offset: int, data: bytes, status: int, text: str | None) -> None:
    found = failure(patched(good(), offset, data))
    assert found[0] == status, found
    assert text is None or found[1] == text


def test_header_without_the_size_of_the_segments() -> None:
    """Older files: the size is 0, or the header ends before it."""
    assert failure(patched(good(), HEADER + 24, bytes(8))) == (0, "")
    assert failure(patched(good(), HEADER + 4, struct.pack("<I", 24))) == (0, "")


def test_truncated_anywhere() -> None:
    for size in range(len(good())):
        status, text = failure(good()[:size])
        assert status == TRUNCATED, (size, text)
    assert failure(good()[:8])[1] == "the file is shorter than its header says: needed 64, available 8"
    last = len(good())
    assert failure(good()[:-1])[1] == f"the file is shorter than its header says: needed {last}, available {last - 1}"
    assert failure(good() + b"more") == (0, "")


def test_too_new() -> None:
    text = "schema version is newer than this runtime: version 1"
    assert failure(edited(good(), (("version",), 1))) == (TOO_NEW, text)
    # What follows is not looked at: it may have changed.
    assert failure(edited(good(), (("version",), 1), ((*PLAN, "inputs"), (99,)))) == (TOO_NEW, text)


def test_misaligned() -> None:
    library = native._library(native.build_library())
    memory = ctypes.create_string_buffer(len(good()) + 32)
    aligned = ctypes.addressof(memory) + -ctypes.addressof(memory) % 16
    program, error = ctypes.create_string_buffer(64), native._Error()
    load = library.al_program_load
    load.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    for offset in range(17):
        ctypes.memmove(aligned + offset, good(), len(good()))
        status = load(program, aligned + offset, len(good()), ctypes.byref(error))
        assert status == error.status == (MISALIGNED if offset % 16 else 0)
    text = ctypes.create_string_buffer(200)
    library.al_error_text(ctypes.byref(native._Error(MISALIGNED, -1, -1)), text, 200)
    assert text.value == b"the program is not at a 16-byte aligned address"


CASES: dict[str, tuple[Path, Any, int, str]] = {
    "no plan": (("execution_plan",), (), CORRUPT, "Program"),
    "no chain": ((*PLAN, "chains"), (), CORRUPT, "ExecutionPlan"),
    "input": ((*PLAN, "inputs"), (11,), CORRUPT, "ExecutionPlan"),
    "negative input": ((*PLAN, "inputs"), (-1,), CORRUPT, "ExecutionPlan"),
    "output": ((*PLAN, "outputs"), (11,), CORRUPT, "ExecutionPlan"),
    "negative arena": ((*PLAN, "non_const_buffer_sizes"), (0, -1), CORRUPT, "ExecutionPlan"),
    "huge arena": ((*PLAN, "non_const_buffer_sizes"), (0, 1 << 31), CORRUPT, "ExecutionPlan"),
    "many arenas": ((*PLAN, "non_const_buffer_sizes"), (0, 32, 0, 0, 0, 0), UNSUPPORTED, "ExecutionPlan"),
    "no arena": ((*PLAN, "non_const_buffer_sizes"), (0,), CORRUPT, "Tensor"),
    "arena too small": ((*PLAN, "non_const_buffer_sizes"), (0, 31), CORRUPT, "Tensor"),
    "memory id 0": (value(X, "allocation_info", "memory_id"), 0, CORRUPT, "Tensor"),
    "memory id 2": (value(X, "allocation_info", "memory_id"), 2, CORRUPT, "Tensor"),
    "offset": (value(X, "allocation_info", "memory_offset_low"), 20, CORRUPT, "Tensor"),
    "offset 2^32": (value(X, "allocation_info", "memory_offset_high"), 1, CORRUPT, "Tensor"),
    "odd offset": (value(X, "allocation_info", "memory_offset_low"), 2, CORRUPT, "Tensor"),
    "overflow": (value(X, "allocation_info", "memory_offset_low"), 0xFFFFFFF0, CORRUPT, "Tensor"),
    "scalar type": (value(X, "scalar_type"), 8, UNSUPPORTED, "Tensor"),
    "negative scalar type": (value(X, "scalar_type"), -1, UNSUPPORTED, "Tensor"),
    "storage offset": (value(X, "storage_offset"), 4, UNSUPPORTED, "Tensor"),
    "sparse": (value(X, "layout"), 1, UNSUPPORTED, "Tensor"),
    "unbound sizes": (value(X, "shape_dynamism"), 2, UNSUPPORTED, "Tensor"),
    "negative size": (value(X, "sizes"), (-4,), CORRUPT, "Tensor"),
    "huge": (value(Y, "sizes"), (1 << 30,), UNSUPPORTED, "Tensor"),
    "rank": (value(X, "dim_order"), b"\0\1", CORRUPT, "Tensor"),
    "dim order": (value(X, "dim_order"), b"\1", CORRUPT, "Tensor"),
    "dim order twice": (value(DYNAMIC, "dim_order"), b"\0\0", CORRUPT, "Tensor"),
    "rank 17": (value(DYNAMIC, "sizes"), (1,) * 17, UNSUPPORTED, "Tensor"),
    "constant": (value(CONSTANT, "data_buffer_idx"), 2, CORRUPT, "Tensor"),
    "constant too long": (value(CONSTANT, "sizes"), (5,), CORRUPT, "Tensor"),
    "state": (value(STATE, "data_buffer_idx"), 2, CORRUPT, "Tensor"),
    "no states": (("mutable_data_segments",), (), CORRUPT, "Tensor"),
    "no constants": (("constant_segment",), None, UNSUPPORTED, "Tensor"),
    "constants in the FlatBuffer": (("constant_segment", "offsets"), (), UNSUPPORTED, "Tensor"),
    "odd constant": (("constant_segment", "offsets"), (0, 2), CORRUPT, "Tensor"),
    "constant offset": (("constant_segment", "offsets"), (0, 4), CORRUPT, "Tensor"),
    "constant offset wraps": (("constant_segment", "offsets"), (0, (1 << 64) - 4), CORRUPT, "Tensor"),
    "constant segment": (("constant_segment", "segment_index"), 3, CORRUPT, "Tensor"),
    "int list": (value(LIST, "items"), (11,), CORRUPT, "IntList"),
    "negative int list": (value(LIST, "items"), (-1,), CORRUPT, "IntList"),
    "int list 2^32": (value(LIST, "items"), (1 << 32,), CORRUPT, "IntList"),
    "tensor list": (value(TENSORS, "items"), (X, 11), CORRUPT, "TensorList"),
    "none in a tensor list": (value(TENSORS, "items"), (X, -1), CORRUPT, "TensorList"),
    "optional list": (value(OPTIONAL, "items"), (-2,), CORRUPT, "OptionalTensorList"),
    "segment": (("segments", 2, "size"), 33, CORRUPT, "DataSegment"),
    "segment offset": (("segments", 0, "offset"), 1 << 63, CORRUPT, "DataSegment"),
    "operator": (instruction(0, "op_index"), 2, CORRUPT, "KernelCall"),
    "negative operator": (instruction(0, "op_index"), -1, CORRUPT, "KernelCall"),
    "argument": (instruction(0, "args"), (X, 11), CORRUPT, "KernelCall"),
    "negative argument": (instruction(0, "args"), (X, -1), CORRUPT, "KernelCall"),
    "move from": (instruction(1, "move_from"), 11, CORRUPT, "MoveCall"),
    "move to": (instruction(1, "move_to"), -1, CORRUPT, "MoveCall"),
    "jump to": (instruction(3, "destination_instruction"), 5, CORRUPT, "JumpFalseCall"),
    "jump if": (instruction(3, "cond_value_index"), 11, CORRUPT, "JumpFalseCall"),
    "delegate location": ((*PLAN, "delegates", 0, "processed", "location"), 2, CORRUPT, "BackendDelegate"),
    "delegate index": ((*PLAN, "delegates", 0, "processed", "index"), 3, CORRUPT, "BackendDelegate"),
    "delegate inline": ((*PLAN, "delegates", 0, "processed", "location"), 0, CORRUPT, "BackendDelegate"),
    "delegate misaligned": (("segments", 2, "offset"), 264, CORRUPT, None),
}


@pytest.mark.parametrize("name", CASES)
def test_meaning(name: str) -> None:
    path, new, status, table = CASES[name]
    pte = edited(good(), (path, new))
    found, text = failure(pte)
    assert found == status, text
    if table:
        assert text.startswith(f"{TEXTS[status]}: {table} at byte "), text
        assert int(text.rpartition(" ")[2]) < len(pte)


def test_external_tensors() -> None:
    extra = Row("ExtraTensorInfo", {"fully_qualified_name": "w", "location": 1})
    status, text = failure(edited(good(), (value(X, "extra_tensor_info"), extra)))
    assert (status, text.partition(" at ")[0]) == (UNSUPPORTED, f"{TEXTS[UNSUPPORTED]}: ExtraTensorInfo")


def test_sizes_that_fit_exactly() -> None:
    changes = [((*PLAN, "non_const_buffer_sizes"), (99, 32)), (instruction(3, "destination_instruction"), 4)]
    assert failure(edited(good(), *changes)) == (0, "")


def test_delegate_inline() -> None:
    b = ProgramBuilder()
    m = b.method("second")
    m.add_delegate(DelegateSpec("Test", bytes(range(20)), inline=True))
    assert failure(emit(b.build())) == (0, "")


@cache
def freed() -> bytes:
    """A method that frees its second value, which the compiler never does."""
    b = ProgramBuilder()
    m = b.method("second")
    m.move(m.add_int(1), m.new_int())
    m.add_output(0)
    return edited(emit(b.build()), (instruction(0), Row("FreeCall", {"value_index": 1})))


def test_free() -> None:
    assert failure(freed()) == (0, "")
    assert Native(freed(), {}).run([], "second") == [1]
    assert failure(edited(freed(), (instruction(0, "value_index"), 2)))[0] == CORRUPT


def test_fields_of_a_later_schema_are_ignored() -> None:
    """Wherever they are: they are not followed. Under the sanitizers: test_fuzz_device.py."""
    for offset in (4, 0x7FFC, 0xFFFF):
        for pte in (good(), freed()):
            wide = with_unknown_fields(pte, offset)
            assert len(wide) > len(edited(pte))
            assert failure(wide) == (0, "")
            assert Native(wide, BACKENDS).run([], "second") == Native(pte, BACKENDS).run([], "second")


def test_every_word_and_byte_of_the_flatbuffer() -> None:
    """Whatever one byte or word is, the file loads or is refused with an error of its own kind."""
    pte = good()
    size = File(pte).program_size
    words = [0, 0x7FFFFFFF, 0xFFFFFFFC, size - 4]
    changes = [(at, bytes([pte[at] ^ x])) for at in range(size) for x in (0x81,)]
    changes += [(at, struct.pack("<I", w)) for at in range(0, size - 3, 4) for w in words]
    counts: dict[int, int] = {}
    for offset, data in changes:
        status, text = failure(patched(pte, offset, data))
        assert status in (0, 1, 2, 3, 5, 6, 10, 11, 12), (offset, data, text)
        counts[status] = counts.get(status, 0) + 1
    assert counts[CORRUPT] > len(changes) / 4, counts


def test_work_on_hostile_files_is_bounded() -> None:
    """200 plans that are one table, with 2000 values that are one table: a million visits in a file of 10 kB."""
    b = ProgramBuilder()
    m = b.method("second")
    m.add_int(1)
    pte = emit(b.build())
    plan = File(pte).root.rows("execution_plan")[0]
    wide = with_cell(plan, ("values",), plan.rows("values") * 2000)
    status, text = failure(edited(pte, (("execution_plan",), (wide,) * 3)))
    assert (status, text) == (0, "")
    hostile = edited(pte, (("execution_plan",), (wide,) * 200))
    start = time.perf_counter()
    with pytest.raises(DeviceError, match="^the file is corrupt: "):
        Native(hostile, {}).method()
    assert time.perf_counter() - start < 2


def test_names() -> None:
    with pytest.raises(DeviceError, match="^the program has no such method: third$"):
        Native(good(), BACKENDS).run([], "third")
    with pytest.raises(DeviceError, match="^a delegate has no backend in this build: Test$"):
        Native(good(), {}).method()
    pte = edited(good(), ((*PLAN, "operators", 1, "overload"), "none"))
    with pytest.raises(DeviceError, match=r"^an operator has no kernel in this build: executorch_prim::et_view\.none$"):
        Native(pte, BACKENDS).method()
    pte = edited(pte, ((*PLAN, "operators", 0, "name"), "aten::sym_numel\0"))
    with pytest.raises(DeviceError, match="^an operator has no kernel in this build: aten::sym_numel"):
        Native(pte, BACKENDS).method()
    assert Native(good(), BACKENDS).run([], "second") == [7]
