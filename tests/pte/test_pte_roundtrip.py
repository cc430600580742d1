"""What is written reads back, in the layout that the runtime and its tools expect."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import pte_samples
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arm_lower.errors import PteError
from arm_lower.pte import model
from arm_lower.pte.check import check
from arm_lower.pte.emit import emit
from arm_lower.pte.model import DelegateSpec, MethodBuilder, Planned, Program, ProgramBuilder, ScalarType
from arm_lower.pte.read import read, read_layout

NAMES = list(pte_samples.SAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_reads_back_and_is_deterministic(name: str) -> None:
    program = pte_samples.SAMPLES[name]().program
    data = emit(program)
    assert read(data) == program
    assert check(data) == program
    assert emit(pte_samples.SAMPLES[name]().program) == data
    assert emit(read(data)) == data


@pytest.mark.parametrize(
    ("name", "digest"), [("delegated", "dd4a9adc2dfe1ef0"), ("loop", "ffd822d80a92a945"), ("named", "9a8f40da6c394eed")]
)
def test_bytes_are_the_same_everywhere(name: str, digest: str) -> None:
    """Also with every version of the flatbuffers package; change the digests only with the format."""
    assert hashlib.sha256(emit(pte_samples.SAMPLES[name]().program)).hexdigest()[:16] == digest


def test_layout_of_a_delegated_program() -> None:
    data = emit(pte_samples.delegated().program)
    blob = pte_samples.blob()
    layout = read_layout(data)
    assert data[4:12] == b"ET12eh00"
    assert struct.unpack_from("<IQQQ", data, 12) == (32, layout.program_size, layout.segment_base, len(blob))
    assert layout.segment_base % 128 == 0
    assert layout.segment_base - layout.program_size < 128
    constants, delegate = layout.segments
    assert (constants.size, constants.use) == (0, "constants")
    assert (delegate.size, delegate.use) == (len(blob), "delegate 0 of forward")
    assert data[delegate.offset :] == blob


def test_overhead_is_small() -> None:
    """The benchmark allows 2 KiB more than ExecuTorch; its own overhead for this kind of program is about 2.5 KiB."""
    assert len(emit(pte_samples.delegated().program)) - len(pte_samples.blob()) <= 1280


def test_program_without_data_has_no_header() -> None:
    data = emit(pte_samples.branches().program)
    layout = read_layout(data)
    assert not layout.has_header
    assert layout.segment_base == 0
    assert [s.size for s in layout.segments] == [0]


def test_constants_without_elements_get_a_segment() -> None:
    """The runtime takes an empty segment for "no constants" and then refuses the tensor."""
    layout = read_layout(emit(pte_samples.odd_tensors().program))
    assert layout.has_header
    assert layout.segments[0].size == 16


def test_constants_are_aligned_and_stored_once() -> None:
    b = ProgramBuilder()
    for name in ("one", "two"):
        m = b.method(name)
        for size in (3, 5, 3):
            m.add_output(m.add_constant(ScalarType.INT8, (size,), bytes(range(size))))
    program = b.build()
    assert program.constants == (bytes(range(3)), bytes(range(5)))
    data = emit(program)
    segment = read_layout(data).segments[0]
    assert segment.size == 16 + 5
    assert data[segment.offset :] == bytes(range(3)) + bytes(13) + bytes(range(5))


def test_equal_constants_of_a_foreign_list_share_their_bytes() -> None:
    b = ProgramBuilder()
    m = b.method("forward")
    m.add(model.TensorValue(ScalarType.INT8, (4,), (0,), model.Constant(0)))
    m.add(model.TensorValue(ScalarType.INT8, (4,), (0,), model.Constant(1)))
    program = replace(b.build(), constants=(b"same", b"same"))
    data = emit(program)
    assert read(data) == program
    assert read_layout(data).segments[0].size == 4


def test_unused_constant_is_refused_unless_empty() -> None:
    program = pte_samples.network().program
    assert read(emit(replace(program, constants=(*program.constants, b"")))).constants[-1] == b""
    with pytest.raises(PteError, match="constant 4 has 3 bytes, no tensor uses it"):
        emit(replace(program, constants=(*program.constants, b"abc")))


def test_equal_delegates_share_a_segment() -> None:
    program = pte_samples.delegated().program
    method = program.methods[0]
    again = replace(method, name="again", delegates=(replace(method.delegates[0], compile_specs=()),))
    other = replace(method, name="other", delegates=(replace(method.delegates[0], data=pte_samples.blob(weights=7)),))
    data = emit(replace(program, methods=(method, again, other)))
    uses = [s.use for s in read_layout(data).segments]
    assert uses == ["constants", "delegate 0 of forward, delegate 0 of again", "delegate 0 of other"]


@pytest.mark.parametrize("filler", range(17))
def test_inline_delegate_is_aligned_whatever_comes_before(filler: int) -> None:
    program = pte_samples.delegated(inline=True).program
    renamed = replace(program.methods[0], name="f" * (filler + 1))
    data = emit(replace(program, methods=(renamed,)))
    assert not read_layout(data).has_header
    assert data.index(pte_samples.blob()) % 16 == 0
    assert read(data).methods[0].delegates[0].inline


def test_initial_states_are_kept() -> None:
    data = emit(pte_samples.counter().program)
    assert [s.use for s in read_layout(data).segments] == ["constants", "initial states"]
    assert read(data).initial_states == (struct.pack("<2f", 3.0, 4.0),)


@pytest.mark.parametrize("value", [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324, 0.1])
def test_doubles_keep_their_bits(value: float) -> None:
    b = ProgramBuilder()
    m = b.method("forward")
    m.add_output(m.add_double(value))
    m.add_output(m.add_double_list((value, 1.0, value)))
    scalar, vector = read(emit(b.build())).methods[0].values
    assert isinstance(scalar, model.DoubleValue) and isinstance(vector, model.DoubleListValue)
    assert struct.pack("<d", scalar.value) == struct.pack("<d", value)
    assert struct.pack("<3d", *vector.items) == struct.pack("<3d", value, 1.0, value)


def test_zeros_of_either_sign_are_two_values() -> None:
    m = ProgramBuilder().method("forward")
    assert m.add_double(0.0) != m.add_double(-0.0)
    assert m.add_int(1) != m.add_bool(True)
    assert m.add_int(1) != m.new_int(1)
    assert m.add_int_list((1, 2)) == m.add_int_list((1, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.add_int(1 << 63), r"Int\.int_val: 9223372036854775808 does not fit i64"),
        (lambda m: m.add_string("\ud800"), "cannot be written in UTF-8"),
        (lambda m: m.add_tensor(ScalarType.INT8, (1 << 31,), model.AtRuntime()), r"Tensor\.sizes: 2147483648"),
    ],
)
def test_what_does_not_fit_is_refused(change: object, message: str) -> None:
    b = ProgramBuilder()
    m = b.method("forward")
    m.add_output(change(m))  # type: ignore[operator]
    with pytest.raises(PteError, match=message):
        emit(b.build())


def test_method_lookup_names_what_there_is() -> None:
    program = pte_samples.methods().program
    assert program.method("minus").name == "minus"
    with pytest.raises(PteError, match="no method 'times'.*\n.*plus, minus, get_answer"):
        program.method("times")


def test_builder_refuses_conflicts() -> None:
    b = ProgramBuilder()
    b.named_data("key", b"a")
    b.named_data("key", b"a")
    with pytest.raises(PteError, match="'key' is given twice"):
        b.named_data("key", b"b")
    m = b.method("forward")
    m.move(m.new_int(), m.new_int())
    with pytest.raises(PteError, match="instruction 0 of forward is MoveCall, not a jump"):
        m.set_destination(0)


INTS = st.integers(-(1 << 63), (1 << 63) - 1)
SIZES = st.lists(st.integers(0, 5), max_size=5)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _add_value(draw: st.DrawFn, m: MethodBuilder, tensors: list[int], offset: list[int]) -> int:
    kind = draw(st.integers(0, 10))
    literals = (
        lambda: m.add_null(),
        lambda: m.add_int(draw(INTS)),
        lambda: m.add_bool(draw(st.booleans())),
        lambda: m.add_double(draw(st.floats())),
        lambda: m.add_string(draw(TEXT)),
        lambda: m.add_int_list(draw(st.lists(INTS, max_size=4))),
        lambda: m.add_double_list(draw(st.lists(st.floats(), max_size=4))),
        lambda: m.add_bool_list(draw(st.lists(st.booleans(), max_size=4))),
        lambda: m.add_optional_tensor_list(draw(st.lists(st.sampled_from([*tensors, None]), max_size=4))),
    )
    if kind < len(literals):
        return literals[kind]()
    sizes = draw(SIZES)
    scalar_type = draw(st.sampled_from(list(ScalarType)))
    order = draw(st.permutations(range(len(sizes))))
    tensor = model.TensorValue(scalar_type, tuple(sizes), tuple(order), model.AtRuntime())
    storage: model.Storage = model.AtRuntime()
    if draw(st.booleans()):
        storage = m.program.constant(draw(st.binary(min_size=tensor.nbytes, max_size=tensor.nbytes)))
    elif draw(st.booleans()):
        storage = Planned(offset[0], draw(st.integers(1, 3)))
        offset[0] += -(-tensor.nbytes // 16) * 16
        if draw(st.booleans()):
            state = m.program.initial_state(draw(st.binary(min_size=tensor.nbytes, max_size=tensor.nbytes)))
            storage = replace(storage, initial=state)
    dynamism = draw(st.sampled_from([model.Dynamism.STATIC, model.Dynamism.BOUND]))
    tensors.append(m.add_tensor(scalar_type, sizes, storage, order, dynamism, draw(TEXT)))
    return tensors[-1]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of random values, with delegates and named data, and few instructions."""
    b = ProgramBuilder()
    for name in draw(st.lists(TEXT.filter(bool), min_size=1, max_size=3, unique=True)):
        m = b.method(name)
        tensors: list[int] = []
        offset = [0]
        for _ in range(draw(st.integers(0, 6))):
            index = _add_value(draw, m, tensors, offset)
            value = m.values[index]
            planned = isinstance(value, model.TensorValue) and isinstance(value.storage, Planned)
            # A planned output that nothing writes would be an error.
            (m.add_input if planned else m.add_output)(index)
        if draw(st.booleans()):
            m.container = (draw(TEXT), draw(TEXT))
        for _ in range(draw(st.integers(0, 2))):
            specs = tuple(draw(st.lists(st.tuples(TEXT, st.binary(max_size=9)), max_size=3)))
            m.add_delegate(
                DelegateSpec(draw(TEXT), draw(st.binary(min_size=1, max_size=40)), specs, draw(st.booleans()))
            )
        m.jump_false(m.add_bool(True))
        m.move(m.add_int(1), m.new_int())
    for key, data in draw(st.dictionaries(TEXT, st.binary(max_size=30), max_size=3)).items():
        b.named_data(key, data)
    return b.build()


@settings(max_examples=150, deadline=None)
@given(programs())
def test_random_programs_read_back(program: Program) -> None:
    data = emit(program)
    assert read(data) == program
    assert emit(read(data)) == data
