"""Corrupt, truncated and foreign files: a PteError that says where, and nothing else."""

from __future__ import annotations

import struct
import time
from functools import lru_cache

import pte_samples
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arm_lower.errors import PteError
from arm_lower.pte import model, schema
from arm_lower.pte.check import check
from arm_lower.pte.emit import emit
from arm_lower.pte.read import read, read_layout
from arm_lower.pte.schema import Row
from arm_lower.pte.text import describe_file


@lru_cache
def _files() -> tuple[bytes, ...]:
    programs = [make().program for make in pte_samples.SAMPLES.values()]
    return tuple(emit(p) for p in [*programs, pte_samples.delegated(inline=True).program])


@lru_cache
def _delegated() -> bytes:
    return emit(pte_samples.delegated().program)


def _patched(offset: int, fmt: str, value: int) -> bytes:
    data = bytearray(_delegated())
    struct.pack_into("<" + fmt, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "offset 0: expected a .pte file, found 0 bytes"),
        (b"PK\x03\x04" * 40, "offset 4: expected the file identifier 'ET12'"),
        (bytes(4) + b"ET13" + bytes(80), "found b'ET13'"),
        (bytes(4) + b"ET12eh00", "offset 8: expected an extended header of 32 bytes"),
    ],
)
def test_foreign_files(data: bytes, message: str) -> None:
    with pytest.raises(PteError) as caught:
        read(data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("offset", "fmt", "value", "message"),
    [
        (0, "I", 1 << 31, "offset 2147483648: root table: expected 4 bytes inside the program"),
        (0, "I", 61, "expected an offset that is a multiple of 4"),
        (8, "I", 0, "the file has no extended header that says where they are"),
        (12, "I", 16, "offset 12: expected a header length of at least 24, found 16"),
        (16, "Q", 1 << 40, "offset 16: expected a program size of 40 to 1792 (the file), found 1099511627776"),
        (16, "Q", 39, "offset 16: expected a program size of 40 to"),
        (16, "Q", 640, "inside the program, which has 640"),
        (24, "Q", 64, "offset 24: expected the segments to begin between"),
        (24, "Q", 1 << 63, "offset 24: expected the segments to begin between"),
        (24, "Q", 0, "no extended header that says where they are"),
        (32, "Q", 513, "offset 32: expected 513 bytes of segments from 1280 on, the file ends at 1792"),
        (32, "Q", 256, "segment 1 is 0..512 after 1280, past the end of the data at 1536"),
    ],
)
def test_wrong_header(offset: int, fmt: str, value: int, message: str) -> None:
    with pytest.raises(PteError) as caught:
        read(_patched(offset, fmt, value))
    assert message in str(caught.value)


def test_old_header_without_data_size_is_read() -> None:
    data = bytearray(_patched(12, "I", 24))
    data[32:40] = bytes(8)
    assert read(bytes(data)) == pte_samples.delegated().program


def _root(**cells: schema.Cell) -> bytes:
    """A file whose Program has these fields instead of the usual ones."""
    usual: dict[str, schema.Cell] = {
        "execution_plan": (_plan(),),
        "constant_buffer": (),
        "constant_segment": Row("SubsegmentOffsets", {"offsets": (0,)}),
        "segments": (Row("DataSegment"),),
    }
    return schema.encode(Row("Program", usual | cells))


def _plan(**cells: schema.Cell) -> Row:
    usual: dict[str, schema.Cell] = {
        "name": "forward",
        "values": (),
        "inputs": (),
        "outputs": (),
        "chains": (Row("Chain", {"instructions": ()}),),
        "operators": (),
        "delegates": (),
        "non_const_buffer_sizes": (0,),
    }
    return Row("ExecutionPlan", usual | cells)


def _values(*rows: Row) -> bytes:
    return _root(execution_plan=(_plan(values=tuple(Row("EValue", {"val": row}) for row in rows)),))


def _tensor(**cells: schema.Cell) -> bytes:
    return _values(Row("Tensor", {"sizes": (), "dim_order": b""} | cells))


def _instructions(*rows: Row, **cells: schema.Cell) -> bytes:
    chain = Row("Chain", {"instructions": tuple(Row("Instruction", {"instr_args": row}) for row in rows)})
    return _root(execution_plan=(_plan(chains=(chain,), **cells),))


def _delegate(location: int, index: int) -> bytes:
    reference = Row("BackendDelegateDataReference", {"location": location, "index": index})
    delegate = Row("BackendDelegate", {"id": "X", "processed": reference})
    return _root(execution_plan=(_plan(delegates=(delegate,)),))


def test_hand_made_files_are_right_as_such() -> None:
    assert read(_root()).methods[0].name == "forward"
    assert read(_tensor()).methods[0].values


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_root(version=99), "schema version 99 is newer than 0"),
        (_root(execution_plan=()), "execution_plan is empty"),
        (_root(execution_plan=(_plan(chains=()),)), "expected one chain of instructions, found 0"),
        (_root(segments=()), "SubsegmentOffsets: segment 0 is named, the file has 0"),
        (_root(named_data=(Row("NamedData", {"key": "k", "segment_index": 1}),)), "NamedData: segment 1 is named"),
        (_root(constant_segment=None, segments=None, constant_buffer=()), ""),
        (_delegate(0, 0), "inline data 0 is named, the file has 0"),
        (_delegate(1, 7), "segment 7 is named, the file has 1"),
        (_delegate(2, 0), "location 2 is neither 0 (inline) nor 1 (segment)"),
        (_tensor(scalar_type=99), "scalar type 99 is unknown"),
        (_tensor(shape_dynamism=3), "shape_dynamism 3 is none of 0, 1, 2"),
        (_tensor(sizes=(-1,)), "sizes [-1] has a negative one"),
        (_tensor(storage_offset=4), "storage_offset is 4, the runtime supports 0 only"),
        (_tensor(data_buffer_idx=1), "constant 0 is used, the file has 0"),
        (
            _tensor(data_buffer_idx=1, allocation_info=Row("AllocationDetails", {"memory_id": 1})),
            "has an initial state",
        ),
        (_values(Row("IntList", {"items": (0,)})), "value 0 (list) names value 0 (IntListValue), expected IntValue"),
        (_values(Row("TensorList", {"items": (-1,)})), "value 0 (list) names value -1, there are 1 values"),
        (_instructions(Row("KernelCall", {"args": ()})), "instruction 0 calls operator 0, there are 0"),
        (_instructions(Row("DelegateCall", {"args": ()})), "instruction 0 calls delegate 0, there are 0"),
        (_instructions(Row("FreeCall", {"value_index": 3})), "instruction 0 has the argument 3, there are 0 values"),
        (_instructions(Row("JumpFalseCall", {"destination_instruction": 2})), "instruction 0 jumps to 2"),
        (_root(execution_plan=(_plan(inputs=(4,)),)), "method 'forward': input 0 is value 4, there are 0 values"),
    ],
)
def test_wrong_content(data: bytes, message: str) -> None:
    if not message:
        assert read(data)
        return
    with pytest.raises(PteError) as caught:
        read(data)
    assert message in str(caught.value)
    assert str(caught.value).startswith("offset ")


@pytest.mark.parametrize("field", [f.name for f in schema.TABLES["ExecutionPlan"] if f.required])
def test_missing_field_is_named(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lax = tuple(schema.Field(f.name, f.slot, f.kind, False) for f in schema.TABLES["ExecutionPlan"])
    strict = schema.TABLES
    monkeypatch.setattr(schema, "TABLES", {**strict, "ExecutionPlan": lax})
    data = _root(execution_plan=(_plan(**{field: None}),))
    monkeypatch.setattr(schema, "TABLES", strict)
    with pytest.raises(PteError, match=f"ExecutionPlan: expected the field {field}, which the runtime needs"):
        read(data)


def test_inline_constants_of_old_files_are_read() -> None:
    tensor = Row("Tensor", {"sizes": (2,), "dim_order": b"\0", "scalar_type": 1, "data_buffer_idx": 1})
    plan = _plan(values=(Row("EValue", {"val": tensor}),))
    buffers = (Row("Buffer"), Row("Buffer", {"storage": b"\x05\x06\x00\x00"}))
    program = read(_root(execution_plan=(plan,), constant_segment=None, segments=None, constant_buffer=buffers))
    assert program.constants == (b"\x05\x06",)


@pytest.mark.parametrize(("code", "message"), [(1, ""), (2, "expected a table Int"), (12, "type code 12 is none of")])
def test_type_code_without_table(code: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ExecuTorch accepts it for Null."""
    strict = schema.TABLES
    monkeypatch.setattr(schema, "TABLES", {**strict, "EValue": (schema.Field("val", 0, "u8", False),)})
    data = _root(execution_plan=(_plan(values=(Row("EValue", {"val": code}),)),))
    monkeypatch.setattr(schema, "TABLES", strict)
    if not message:
        assert read(data).methods[0].values == (model.NullValue(),)
        return
    with pytest.raises(PteError, match=message):
        read(data)


def _work(data: bytes) -> None:
    """Everything that is done with a file of unknown origin."""
    for function in (read, read_layout, describe_file, check):
        try:
            function(data)
        except PteError as error:
            assert error.message


@pytest.mark.parametrize("size", range(0, 1792, 13))
def test_truncated(size: int) -> None:
    with pytest.raises(PteError):
        read(_delegated()[:size])


EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4)
WORDS = st.lists(
    st.tuples(
        st.integers(0, 1 << 14),
        st.one_of(st.sampled_from([0, 1, 4, 8, 1 << 31, (1 << 32) - 1, (1 << 31) - 1]), st.integers(0, 4096)),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(pte_samples.SAMPLES)), EDITS)
def test_flipped_bytes(which: int, edits: list[tuple[int, int]]) -> None:
    data = bytearray(_files()[which])
    for offset, value in edits:
        data[offset % len(data)] = value
    _work(bytes(data))


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(pte_samples.SAMPLES)), WORDS)
def test_overwritten_words(which: int, edits: list[tuple[int, int]]) -> None:
    data = bytearray(_files()[which])
    for index, value in edits:
        struct.pack_into("<I", data, index * 4 % (len(data) - 3) // 4 * 4, value)
    _work(bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
@example(b"")
def test_rubbish_after_the_identifier(tail: bytes) -> None:
    _work(b"\x08\x00\x00\x00ET12" + tail)


def test_overlapping_vectors_do_not_take_long() -> None:
    """Each of many tables claims a long vector that ends at the end of the file: quadratic without a budget."""
    count = 20_000
    buffers = tuple(Row("CompileSpec", {"key": str(i), "value": b""}) for i in range(count))
    reference = Row("BackendDelegateDataReference", {"location": 0, "index": 0})
    delegate = Row("BackendDelegate", {"id": "X", "processed": reference, "compile_specs": buffers})
    inline = (Row("BackendDelegateInlineData", {"data": b"x"}),)
    data = bytearray(_root(execution_plan=(_plan(delegates=(delegate,)),), backend_delegate_data=inline))
    read(bytes(data))
    # Empty vectors are shared, so make every string claim all that follows it instead.
    size = len(data)
    for offset in range(0, size - 8, 4):
        if data[offset : offset + 4] in (b"\x05\0\0\0", b"\x04\0\0\0") and data[offset + 4 : offset + 8].isdigit():
            struct.pack_into("<I", data, offset, size - offset - 5)
    data[-1] = 0
    start = time.monotonic()
    with pytest.raises(PteError):
        read(bytes(data))
    assert time.monotonic() - start < 5


def test_repeated_long_lists_are_refused() -> None:
    values = (Row("EValue", {"val": Row("Int")}), Row("EValue", {"val": Row("IntList", {"items": (0,) * 5000})}))
    call = Row("Instruction", {"instr_args": Row("KernelCall", {"args": (1,) * 5000})})
    operator = Row("Operator", {"name": "aten::x"})
    plan = _plan(values=values, operators=(operator,), chains=(Row("Chain", {"instructions": (call,)}),))
    with pytest.raises(PteError, match="25005000 arguments with the members of lists, at most 10000000 make sense"):
        read(_root(execution_plan=(plan,)))
