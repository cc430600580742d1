"""Whole programs on the host: kernels, delegates with their record, memory, and every refusal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from arm_lower.errors import ArmLowerError, PteError
from arm_lower.pte import ethosu_blob
from arm_lower.pte.emit import emit
from arm_lower.pte.model import (
    AtRuntime,
    DelegateSpec,
    Dynamism,
    External,
    FreeCall,
    MethodBuilder,
    Planned,
    Program,
    ProgramBuilder,
    ScalarType,
)
from arm_lower.tosa.ir import Attr, DType, Graph, Op, Tensor
from arm_lower.tosa.serialize import to_flatbuffer
from arm_lower.tosa.spec import infer
from tosa_ref import host
from tosa_ref.host import Host, run_pte

sys.path.append(str(Path(__file__).parents[1] / "pte"))
import pte_samples as samples  # noqa: E402  programs shared with the tests of the file format

F32, I8 = ScalarType.FLOAT32, ScalarType.INT8
GIVEN = AtRuntime()


@pytest.mark.parametrize("make", [
    samples.network, samples.quantized, samples.counter, samples.branches, samples.loop, samples.methods,
    samples.dynamic, samples.lists, samples.odd_tensors,
], ids=lambda f: f.__name__)  # fmt: skip
def test_samples(make: Callable[[], samples.Sample]) -> None:
    sample = make()
    program = Host(emit(sample.program))
    for call in sample.calls:
        found = program.run([t.numpy() for t in call.inputs], call.method)
        for a, b in zip(found, call.expected, strict=True):
            expected = b.numpy() if isinstance(b, torch.Tensor) else np.asarray(b)
            assert a.dtype == expected.dtype or not isinstance(b, torch.Tensor)
            np.testing.assert_allclose(a, expected, rtol=1e-5, atol=1e-6)


def test_state_lives_in_the_host() -> None:
    data = emit(samples.counter().program)
    ones = [np.ones(2, np.float32)]
    assert [run_pte(data, ones)[0].tolist() for _ in range(2)] == [[8, 10], [8, 10]]
    kept = Host(data)
    assert [kept.run(ones)[0].tolist() for _ in range(2)] == [[8, 10], [10, 12]]


def test_the_callers_arrays_are_not_shared() -> None:
    m, program = method()
    x = given(m, (2,))
    m.kernel("aten::copy_", "", x, m.add_constant(F32, (2,), bytes(8)), m.add_bool(False), x)
    m.add_output(x)
    array = np.ones(2, np.float32)
    result, = run_pte(emit(program.build()), [array])
    assert result.tolist() == [0, 0] and array.tolist() == [1, 1]


# -- one kernel ----------------------------------------------------------------------------------------------


def method() -> tuple[MethodBuilder, ProgramBuilder]:
    program = ProgramBuilder()
    return program.method("forward"), program


def given(m: MethodBuilder, sizes: Sequence[int], scalar_type: ScalarType = F32, dynamism: Dynamism = Dynamism.STATIC,
          dim_order: Sequence[int] | None = None) -> int:
    index = m.add_tensor(scalar_type, sizes, GIVEN, dim_order, dynamism)
    m.add_input(index)
    return index


def taken(m: MethodBuilder, sizes: Sequence[int], scalar_type: ScalarType = F32) -> int:
    index = m.add_tensor(scalar_type, sizes, GIVEN)
    m.add_output(index)
    return index


@pytest.mark.parametrize(("name", "a", "b", "result"), [
    ("add.Scalar", 7, 2, 9), ("sub.Scalar", 7, 2, 5), ("mul.Scalar", 7, 2, 14), ("floordiv.Scalar", 7, 2, 3),
    ("floordiv.int", 7, 2, 3), ("mod.Scalar", 7, 2, 1), ("mod.int", 7, 2, 1), ("truediv.Scalar", 7, 2, 3.5),
    ("eq.Scalar", 7, 2, False), ("gt.Scalar", 7, 2, True), ("ge.Scalar", 2, 2, True), ("lt.Scalar", 7, 2, False),
    ("le.Scalar", 2, 2, True), ("sym_max.Scalar", 7, 2, 7), ("sym_min.Scalar", 7, 2, 2),
])  # fmt: skip
def test_scalar_kernels(name: str, a: int, b: int, result: float) -> None:
    m, program = method()
    out = {bool: m.new_bool, int: m.new_int, float: m.new_double}[type(result)]()
    kernel, overload = name.split(".")
    m.kernel(f"executorch_prim::{kernel}", overload, m.add_int(a), m.add_int(b), out)
    m.add_output(out)
    found, = run_pte(emit(program.build()), [])
    assert found.item() == result and type(found.item()) is type(result)


def test_quantized_kernels() -> None:
    """Per channel, with int8 limits, as torch's own operators."""
    m, program = method()
    x = given(m, (2, 3))
    scales = m.add_constant(ScalarType.FLOAT64, (3,), np.array([0.5, 0.25, 2.0]).tobytes())
    zeros = m.add_constant(ScalarType.INT64, (3,), np.array([0, 3, -1], np.int64).tobytes())
    literals = [m.add_int(1), m.add_int(-128), m.add_int(127), m.add_int(int(I8))]
    q = m.add_tensor(I8, (2, 3), Planned(0))
    y = taken(m, (2, 3))
    m.add_output(q)
    m.kernel("quantized_decomposed::quantize_per_channel", "out", x, scales, zeros, *literals, q, q)
    m.kernel("quantized_decomposed::dequantize_per_channel", "out", q, scales, zeros, *literals, m.add_null(), y, y)
    real, ints = run_pte(emit(program.build()), [np.array([[1, 1, 1], [-90, 0.3, 5]], np.float32)])
    assert ints.tolist() == [[2, 7, -1], [-128, 4, 1]]
    assert real.tolist() == [[1, 1, 0], [-64, 0.25, 4]]


def test_views_move_no_data() -> None:
    m, program = method()
    x = given(m, (2, 6))
    view, twice = m.add_tensor(F32, (4, 3), GIVEN), taken(m, (4, 3))
    m.kernel("executorch_prim::et_view", "default", x, m.add_int_list((4, -1)), view)
    m.kernel("aten::mul", "Scalar_out", view, m.add_int(2), twice, twice)
    result, = run_pte(emit(program.build()), [np.arange(12, dtype=np.float32).reshape(2, 6)])
    assert result.tolist() == (2 * np.arange(12).reshape(4, 3)).tolist()


@pytest.mark.parametrize("offset", [None, 0, 2])
def test_strides_count_from_the_tensor(offset: int | None) -> None:
    """Not from where the memory begins that it lies in."""
    m, program = method()
    x, out = m.add_tensor(F32, (2, 3), Planned(64)), m.add_tensor(F32, (2, 2), Planned(128))
    m.add_input(x)
    m.add_output(out)
    where = m.add_null() if offset is None else m.add_int(offset)
    m.kernel("aten::as_strided_copy", "out", x, m.add_int_list((2, 2)), m.add_int_list((2, 1)), where, out, out)
    found, = run_pte(emit(program.build()), [np.arange(6, dtype=np.float32).reshape(2, 3)])
    start = offset or 0
    assert found.tolist() == [[start, start + 1], [start + 2, start + 3]]


def test_dynamic_sizes_are_checked() -> None:
    data = emit(samples.dynamic().program)
    with pytest.raises(ArmLowerError) as error:
        run_pte(data, [np.zeros((5, 6), np.float32)])
    assert error.value.message == "input 0 is float32 [5, 6], the file wants float32 up to [4, 6]"


def test_dynamic_quantized() -> None:
    """Out tensors of bounded size get the size of the result from kernels of every kind."""
    m, program = method()
    x = given(m, (4, 2), dynamism=Dynamism.BOUND)
    last = m.add_tensor(F32, (4, 2), Planned(0), (1, 0), Dynamism.BOUND)
    q = m.add_tensor(I8, (4, 2), Planned(32), (1, 0), Dynamism.BOUND)
    m.add_output(q)
    m.kernel("dim_order_ops::_to_dim_order_copy", "out", x, m.add_bool(False), m.add_int_list((1, 0)), last, last)
    literals = [m.add_double(0.5), m.add_int(1), m.add_int(-128), m.add_int(127), m.add_int(int(I8))]
    m.kernel("quantized_decomposed::quantize_per_tensor", "out", last, *literals, q, q)
    program_host = Host(emit(program.build()))
    for rows in (3, 4, 1):
        values = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        assert program_host.run([values])[0].tolist() == (values * 2 + 1).tolist()


# -- delegates -----------------------------------------------------------------------------------------------


def tosa(kind: str, shape: tuple[int, ...], **attrs: Attr) -> bytes:
    x = Tensor("x", shape, DType.INT8)
    (size, dtype), = infer(kind, [x], attrs)
    y = Tensor("y", size, dtype)
    return to_flatbuffer(Graph("delegate", [x], [y], [Op(kind, [x], [y], attrs)]))


def blob(inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]) -> bytes:
    def tensors(shapes: Sequence[tuple[int, ...]], at: int) -> list[ethosu_blob.BlobTensor]:
        return [ethosu_blob.BlobTensor((1,) * (6 - len(s)) + s, 1, at + 256 * i, 1) for i, s in enumerate(shapes)]

    return ethosu_blob.pack(b"COP1" + bytes(60), b"", 2048, tensors(inputs, 0), tensors(outputs, 1024))


def two_calls() -> Program:
    """y = second(first(x)), the first one transposes [2, 3], the second clamps."""
    m, program = method()
    x = given(m, (2, 3), I8)
    between = m.add_tensor(I8, (3, 2), Planned(0))
    y = taken(m, (3, 2), I8)
    first = DelegateSpec("EthosUBackend", blob([(2, 3)], [(3, 2)]))
    second = DelegateSpec("EthosUBackend", blob([(3, 2)], [(3, 2)]))
    m.delegate_call(m.add_delegate(first), x, between)
    m.delegate_call(m.add_delegate(second), between, y)
    return program.build()


def save(folder: Path, program: Program, *graphs: bytes) -> Path:
    path = folder / "model.pte"
    path.write_bytes(emit(program))
    record = folder / "model.record"
    record.mkdir()
    for i, graph in enumerate(graphs):
        (record / f"output_tag{len(graphs) - 1 - i}_TOSA-1.0+INT.tosa").write_bytes(graph)
    return path


X = np.arange(6, dtype=np.int8).reshape(2, 3)


def test_record_counts_down(tmp_path: Path) -> None:
    path = save(tmp_path, two_calls(), tosa("TRANSPOSE", (2, 3), perms=(1, 0)), tosa("CLAMP", (3, 2), min=1, max=4))
    (tmp_path / "model.record" / "report.json").write_text("{}")
    assert run_pte(path, [X])[0].tolist() == [[1, 3], [1, 4], [2, 4]]
    assert run_pte(str(path), [X])[0].tolist() == [[1, 3], [1, 4], [2, 4]]
    moved = (tmp_path / "model.record").rename(tmp_path / "elsewhere")
    assert run_pte(path.read_bytes(), [X], moved)[0].tolist() == [[1, 3], [1, 4], [2, 4]]


def test_ten_calls_are_sorted_by_number(tmp_path: Path) -> None:
    m, program = method()
    tensors = [given(m, (2,), I8), *(m.add_tensor(I8, (2,), Planned(16 * i)) for i in range(11))]
    for a, b in zip(tensors, tensors[1:], strict=False):
        m.delegate_call(m.add_delegate(DelegateSpec("EthosUBackend", blob([(2,)], [(2,)]))), a, b)
    m.add_output(tensors[-1])
    pad = [tosa("CLAMP", (2,), min=-128, max=100 - i) for i in range(10)]
    path = save(tmp_path, program.build(), *pad, tosa("REVERSE", (2,), axis=0))
    assert run_pte(path, [np.array([127, 1], np.int8)])[0].tolist() == [1, 91]


def test_methods_share_a_record(tmp_path: Path) -> None:
    """Calls are numbered over all methods in file order."""
    program = ProgramBuilder()
    for name in ("first", "second"):
        m = program.method(name)
        x, y = given(m, (2,), I8), taken(m, (2,), I8)
        m.delegate_call(m.add_delegate(DelegateSpec("EthosUBackend", blob([(2,)], [(2,)]))), x, y)
    path = save(tmp_path, program.build(), tosa("REVERSE", (2,), axis=0), tosa("CLAMP", (2,), min=0, max=1))
    loaded = Host(path)
    x = [np.array([5, 0], np.int8)]
    assert loaded.run(x, "second")[0].tolist() == [1, 0]
    assert loaded.run(x, "first")[0].tolist() == [0, 5]
    with pytest.raises(PteError, match="^no method 'forward'"):
        loaded.run(x)


def test_channels_last_arguments(tmp_path: Path) -> None:
    """The delegate gets the bytes as they lie in memory: NHWC here."""
    m, program = method()
    x = given(m, (1, 2, 1, 3), I8, dim_order=(0, 2, 3, 1))
    y = m.add_tensor(I8, (1, 2, 1, 3), Planned(0), (0, 2, 3, 1))
    m.add_output(y)
    m.delegate_call(m.add_delegate(DelegateSpec("EthosUBackend", blob([(1, 1, 3, 2)], [(1, 1, 3, 2)]))), x, y)
    path = save(tmp_path, program.build(), tosa("REVERSE", (1, 1, 3, 2), axis=3))
    values = np.arange(6, dtype=np.int8).reshape(1, 2, 1, 3)
    assert run_pte(path, [values])[0].tolist() == values[:, ::-1].tolist()
    seen = []

    def runner(call: int, data: bytes, inputs: list[np.ndarray]) -> list[np.ndarray]:
        seen.append((call, data[:15], [a.tolist() for a in inputs]))
        return [inputs[0].ravel()]

    assert run_pte(path.read_bytes(), [values], delegate_runner=runner)[0].tolist() == values.tolist()
    assert seen == [(0, b"vela_bin_stream", [[[[[0, 3], [1, 4], [2, 5]]]]])]


def test_missing_records(tmp_path: Path) -> None:
    with pytest.raises(ArmLowerError) as error:
        run_pte(emit(two_calls()), [X])
    assert error.value.message == (
        "method 'forward', instruction 0: the program has delegates and was given as bytes, without a record folder")
    path = save(tmp_path, two_calls(), tosa("CLAMP", (3, 2), min=1, max=4))
    with pytest.raises(ArmLowerError) as error:
        run_pte(path, [X])
    record = tmp_path / "model.record"
    assert error.value.message == (
        f"method 'forward', instruction 0: looked for {record / 'output_tag1_*.tosa'}, the TOSA of delegate call 0: "
        "the folder has 1 such files, the program makes 2 delegate calls")
    with pytest.raises(ArmLowerError, match="looked for .*nowhere.output_tag1_.*the folder has 0 such files"):
        run_pte(path, [X], tmp_path / "nowhere")
    with pytest.raises(ArmLowerError, match="^no file .*absent.pte$"):
        run_pte(tmp_path / "absent.pte", [X])


def test_a_record_of_another_program(tmp_path: Path) -> None:
    path = save(tmp_path, two_calls(), tosa("CLAMP", (2, 4), min=1, max=4), tosa("CLAMP", (3, 2), min=1, max=4))
    expected = r"\+INT.tosa is of another program: its inputs have \[8\] bytes, those of delegate call 0 have \[6\]$"
    with pytest.raises(ArmLowerError, match=expected):
        run_pte(path, [X])


@pytest.mark.parametrize(("results", "message"), [
    ([], "delegate call 0 gave 0 outputs, 1 are wanted"),
    ([np.zeros(5, np.int8)], "delegate call 0 gave 5 bytes, value 1 has 6"),
])  # fmt: skip
def test_results_of_runners_are_checked(results: list[np.ndarray], message: str) -> None:
    with pytest.raises(ArmLowerError) as error:
        run_pte(emit(two_calls()), [X], delegate_runner=lambda call, data, inputs: results)
    assert error.value.message == f"method 'forward', instruction 0: {message}"


def test_other_backends() -> None:
    m, program = method()
    x = given(m, (2,))
    m.delegate_call(m.add_delegate(DelegateSpec("XnnpackBackend", b"123")), x, taken(m, (2,)))
    with pytest.raises(ArmLowerError, match="delegate 0 is for 'XnnpackBackend', the host runs 'EthosUBackend'$"):
        run_pte(emit(program.build()), [np.zeros(2, np.float32)])


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "message"), [
    ([], "method 'forward' takes 1 inputs, 0 are given"),
    ([X, X], "method 'forward' takes 1 inputs, 2 are given"),
    ([X.T], "input 0 is int8 [3, 2], the file wants int8 [2, 3]"),
    ([X[0]], "input 0 is int8 [3], the file wants int8 [2, 3]"),
    ([X.astype(np.uint8)], "input 0 is uint8 [2, 3], the file wants int8 [2, 3]"),
    ([X.tolist()], "input 0 is int64 [2, 3], the file wants int8 [2, 3]"),
])  # fmt: skip
def test_inputs_that_do_not_fit(inputs: list[object], message: str) -> None:
    with pytest.raises(ArmLowerError) as error:
        run_pte(emit(two_calls()), inputs)
    assert error.value.message == message


def test_scalar_inputs_are_fixed() -> None:
    m, program = method()
    for index in (m.add_int(3), m.add_null(), m.add_string("s")):
        m.add_input(index)
        m.add_output(index)
    data = emit(program.build())
    assert [a.tolist() for a in run_pte(data, [3, None, "s"])] == [3, None, "s"]
    with pytest.raises(ArmLowerError, match="^input 0 is 4, the file was made for 3$"):
        run_pte(data, [4, None, "s"])


def _call(name: str, overload: str, *extra: int | float, out: tuple[int, ...] = (2,)) -> bytes:
    m, program = method()
    x, y = given(m, (2,)), taken(m, out)
    numbers = [m.add_int(v) if isinstance(v, int) else m.add_double(v) for v in extra]
    m.kernel(name, overload, x, *numbers, y, y)
    return emit(program.build())


@pytest.mark.parametrize(("data", "message"), [
    (_call("aten::fly", "out"), "kernel aten::fly.out has no counterpart in torch, the host cannot run it"),
    (_call("cortex_m::add", "out"), "kernel cortex_m::add.out has no counterpart in torch, the host cannot run it"),
    (_call("aten::relu", "out", out=(3,)), "kernel aten::relu.out makes [2], the file says [3] for value 1"),
    (_call("aten::logit", "out", 0),
     "kernel aten::logit.out: argument eps is 0, the runtime needs a float"),
    (_call("aten::elu", "out", 1.0), "kernel aten::elu.out: 4 arguments, 5 and the returned value are needed"),
    (_call("aten::select_copy", "int_out", 0, 5, out=()),
     "kernel aten::select_copy.int_out: select(): index 5 out of range"),
    (_call("dim_order_ops::_clone_dim_order", "out", out=(3,)),
     "kernel dim_order_ops::_clone_dim_order.out: result is torch.float32 [2], the out tensor is torch.float32 [3]"),
])  # fmt: skip
def test_kernels_that_fail(data: bytes, message: str) -> None:
    with pytest.raises(ArmLowerError) as error:
        run_pte(data, [np.ones(2, np.float32)])
    assert error.value.message.startswith(f"method 'forward', instruction 0: {message}")


def test_freed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only foreign files have them: our emitter refuses, so the program is handed over behind the reader."""
    m, program = method()
    x, y = given(m, (2,)), taken(m, (2,))
    m.instructions.append(FreeCall(x))
    m.kernel("aten::relu", "out", x, y, y)
    monkeypatch.setattr(host, "read", lambda data: program.build())
    with pytest.raises(ArmLowerError, match="instruction 1: value 0 is used after it was freed$"):
        run_pte(b"", [np.ones(2, np.float32)])


def test_endless_loops_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "INSTRUCTION_LIMIT", 100)
    m, program = method()
    m.jump_false(m.add_bool(False), 0)
    with pytest.raises(ArmLowerError, match="^method 'forward' runs more than 100 instructions$"):
        run_pte(emit(program.build()), [])


def test_moved_tensors() -> None:
    m, program = method()
    x, y = given(m, (2,)), taken(m, (2,))
    other = m.add_tensor(F32, (2,), Planned(0))
    m.kernel("aten::neg", "out", x, other, other)
    m.move(other, y)
    assert run_pte(emit(program.build()), [np.ones(2, np.float32)])[0].tolist() == [-1, -1]


def test_no_bfloat16() -> None:
    m, program = method()
    given(m, (2,), ScalarType.BFLOAT16)
    with pytest.raises(ArmLowerError, match="bfloat16 inputs and outputs cannot be given as numpy arrays"):
        run_pte(emit(program.build()), [np.ones(2, np.float32)])


def test_no_external_data() -> None:
    m, program = method()
    m.add_output(m.add_tensor(F32, (2,), External(), fqn="big.weight"))
    with pytest.raises(ArmLowerError, match="^tensor 'big.weight' is in a .ptd file, which the host does not read$"):
        run_pte(emit(program.build()), [])


def test_damaged_files() -> None:
    with pytest.raises(PteError):
        run_pte(emit(two_calls())[:100], [X])
