"""`arm_lower.compile` end to end on tiny models: borders, verification, determinism, what is said of bad input."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowering
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import arm_lower
from arm_lower.compile import Compiled
from arm_lower.errors import ArmLowerError, QuantizationError
from arm_lower.partition import EthosUPartitioner
from arm_lower.program import to_edge
from arm_lower.pte.model import TensorValue
from arm_lower.pte.read import read
from arm_lower.spec import EthosUCompileSpec
from arm_lower.tosa.serialize import from_flatbuffer
from quant import EthosUQuantizer, get_symmetric_quantization_config

TARGET = "ethos-u55-128"
MAP = (1, 3, 8, 8)
CALIBRATION = lowering.samples(MAP)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 5, 1)).eval()


def compiled(
    model: nn.Module | None = None, calibration: Any = CALIBRATION, target: str = TARGET, **options: Any
) -> Compiled:
    return arm_lower.compile(model or network(), calibration, target, **{"effort": "fast", **options})


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(ArmLowerError) as caught:
        call()
    return caught.value.message, caught.value.hint


def kinds(c: Compiled) -> list[str]:
    return [op.kind for d in c.delegates for op in d.tosa.ops]


# -- borders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", lowering.TARGETS)
@pytest.mark.parametrize("io_dtype", ["float", "int8"])
@pytest.mark.parametrize("io_layout", ["contiguous", "channels_last"])
def test_borders(io_layout: str, io_dtype: str, target: str) -> None:
    c = compiled(target=target, io_layout=io_layout, io_dtype=io_dtype)
    (x,), (y,) = c.boundary["inputs"], c.boundary["outputs"]
    dtype = "float32" if io_dtype == "float" else "int8"
    assert (x.shape, x.dtype, x.layout) == (MAP, dtype, io_layout)
    assert (y.shape, y.dtype, y.layout) == ((1, 5, 4, 4), dtype, io_layout)
    assert x.scale and y.scale and x.zero_point is not None and y.zero_point is not None
    method = read(c.buffer).methods[0]
    for index, tensor in ((method.inputs[0], x), (method.outputs[0], y)):
        value = method.values[index]
        assert isinstance(value, TensorValue) and tuple(value.sizes) == tensor.shape
        assert tuple(value.dim_order) == ((0, 2, 3, 1) if io_layout == "channels_last" else (0, 1, 2, 3))
        assert value.nbytes == int(np.prod(tensor.shape)) * (4 if io_dtype == "float" else 1)
    v = c.verify(CALIBRATION)
    assert v.exact and v.delegates[0].compared == 4 * 80
    assert v.outputs[0].max_difference <= y.scale * 1.001 and v.outputs[0].step == y.scale


def test_no_transpose_is_left_with_channels_last() -> None:
    assert {"TRANSPOSE", "RESHAPE"} & set(kinds(compiled()))
    assert kinds(compiled(io_layout="channels_last")) == ["CONV2D", "RESCALE", "MAX_POOL2D", "CONV2D", "RESCALE"]


def test_integer_borders_leave_no_operator_on_the_cpu() -> None:
    c = compiled(io_dtype="int8")
    assert c.report.kernels == () or not c.report.kernels
    assert compiled().report.kernels


def test_integer_borders_give_the_same_results() -> None:
    """B66: integers with the scale and zero point of the boundary are the floats of the other file."""
    whole, integers = compiled().verify(CALIBRATION), compiled(io_dtype="int8")
    (y,) = integers.boundary["outputs"]
    for a, b in zip(whole.results, integers.verify(CALIBRATION).results, strict=True):
        assert b[0].dtype == np.int8
        assert np.array_equal(a[0], (b[0].astype(np.float32) - y.zero_point) * np.float32(y.scale))


def test_integers_can_be_given() -> None:
    c = compiled(io_dtype="int8")
    x = np.random.default_rng(0).integers(-128, 128, MAP).astype(np.int8)
    v = c.verify([(x,), (torch.from_numpy(x),)])
    assert v.exact and v.outputs[0].max_difference <= 1.001 * v.outputs[0].step
    assert np.array_equal(v.results[0][0], v.results[1][0])


def test_borders_that_cannot_be_integers_stay() -> None:
    """A float that the CPU reads has no integers behind it."""
    torch.manual_seed(0)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x), x.cumsum(-1)

    c = compiled(Two().eval(), io_dtype="int8")
    assert [t.dtype for t in c.boundary["outputs"]][0] == "int8"
    v = c.verify(CALIBRATION)
    assert v.exact and all(o.max_difference <= (o.step or 1e-5) * 1.001 for o in v.outputs)


def test_channels_last_with_inputs_of_other_ranks() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            z = self.a(x)
            return z * self.b(y)[:, :, None, None], z.mean((2, 3))

    torch.manual_seed(0)
    calibration = lowering.samples(MAP, (1, 6))
    c = compiled(Mixed().eval(), calibration, io_layout="channels_last")
    assert [t.layout for t in c.boundary["inputs"]] == ["channels_last", "contiguous"]
    assert [t.layout for t in c.boundary["outputs"]] == ["channels_last", "contiguous"]
    v = c.verify(calibration)
    assert v.exact and all(o.max_difference <= 2.001 * o.step for o in v.outputs)


# -- verification ------------------------------------------------------------------------------------------------


def test_verification_as_text() -> None:
    v = compiled().verify(CALIBRATION[:2])
    lines = str(v).splitlines()
    assert lines[0] == "delegate call 0: reference model == NPU model, 160 elements"
    assert lines[1].endswith("from the quantized model, SQNR inf dB") and "(0.0 LSB)" in lines[1]


def test_verification_sees_a_wrong_command_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    import fvp.ethosu.delegate as npu

    real = npu.run_delegate

    def off_by_one(call: int, blob: bytes, inputs: list[Any]) -> list[Any]:
        outputs = [np.array(o) for o in real(call, blob, inputs)]
        outputs[0].reshape(-1)[3] += 1
        return outputs

    monkeypatch.setattr(npu, "run_delegate", off_by_one)
    v = compiled().verify(CALIBRATION[:2])
    assert not v.exact and v.delegates[0].different == 2
    assert str(v).startswith("delegate call 0: reference model != NPU model, 2 of 160 elements differ")


def test_verification_of_arrays_and_single_tensors() -> None:
    c = compiled()
    a, *others = (c.verify([s]) for s in (CALIBRATION[0], (CALIBRATION[0][0].numpy(),), CALIBRATION[0][0]))
    for v in others:
        assert np.array_equal(a.results[0][0], v.results[0][0]) and v.outputs == a.outputs


def test_verification_without_samples() -> None:
    assert refused(lambda: compiled().verify([])) == (
        "verify was given no sample",
        "give at least one tuple of arguments",
    )


def test_verification_of_inputs_that_do_not_fit() -> None:
    c = compiled()
    assert (
        refused(lambda: c.verify([(torch.zeros(1, 3, 4, 4),)]))[0]
        == "input 0 is float32 [1, 3, 4, 4], the file wants float32 [1, 3, 8, 8]"
    )
    assert (
        refused(lambda: c.verify([(torch.zeros(MAP), torch.zeros(1))]))[0]
        == "method 'forward' takes 1 inputs, 2 are given"
    )


def test_verification_twice_with_state() -> None:
    """Mutable buffers start anew each time."""

    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 3, 1)
            self.register_buffer("last", torch.zeros(MAP))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.relu(self.a(x) + self.last)
            self.last.copy_(y)
            return y

    torch.manual_seed(0)
    c = compiled(Memory().eval())
    assert not c.quantized.last.any()  # calibration leaves the initial state alone
    first, second = c.verify(CALIBRATION), c.verify(CALIBRATION)
    assert first.exact and first.outputs == second.outputs
    assert first.outputs[0].max_difference <= 4.001 * first.outputs[0].step
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first.results, second.results))


# -- without quantization ----------------------------------------------------------------------------------------


def test_unquantized_model_is_all_on_the_cpu_and_says_so() -> None:
    c = compiled(calibration=None, example_inputs=CALIBRATION[0])
    assert not c.delegates and c.quantized is None
    assert [op.op for op in c.report.cpu_ops] == [
        "aten.conv2d.default",
        "aten.relu.default",
        "aten.max_pool2d.default",
        "aten.conv2d.default",
    ]
    assert {op.reason for op in c.report.cpu_ops} == {"its input is float"}
    assert {op.hint for op in c.report.cpu_ops} == {
        "quantize the model: see EthosUQuantizer.set_global and set_module_name"
    }
    assert "its input is float" in str(c.report)
    v = c.verify(CALIBRATION)
    assert str(v) == "nothing to compare: no delegate, and no quantized model"
    with torch.no_grad():
        assert np.allclose(v.results[0][0], network()(*CALIBRATION[0]).numpy(), atol=1e-5)


def test_quantized_graph_module_and_exported_program() -> None:
    q = lowering.quantized(network(), CALIBRATION)
    a = arm_lower.compile(q, None, TARGET, example_inputs=CALIBRATION[0], effort="fast")
    b = arm_lower.compile(torch.export.export(network(), CALIBRATION[0]), CALIBRATION, TARGET, effort="fast")
    assert a.verify(CALIBRATION).exact and b.verify(CALIBRATION).exact
    assert a.delegates[0].processed == b.delegates[0].processed == compiled().delegates[0].processed


def test_quantization_settings() -> None:
    per_tensor = compiled(quantization=get_symmetric_quantization_config(is_per_channel=False))
    left_out = compiled(quantization=EthosUQuantizer().set_module_name("3", None))
    assert per_tensor.verify(CALIBRATION).exact and len(per_tensor.delegates) == 1
    assert [op.module_path for op in left_out.report.cpu_ops] == ["3"]


# -- bad input ---------------------------------------------------------------------------------------------------


def test_memory_limit_that_is_too_small() -> None:
    needed = compiled(effort="normal", sram_limit=1 << 20).report.sram_bytes
    message, hint = refused(lambda: compiled(effort="normal", sram_limit=100))
    found = int(message.split()[4])
    assert message == f"sram_limit does not fit: {found} bytes of SRAM needed, 100 available, {found - 100} too many"
    assert found <= needed
    advice = "raise sram_limit, use a smaller input or narrower layers before the largest feature maps"
    assert hint == f"{advice}, or try effort='max'"


@pytest.mark.parametrize(
    "options,message,hint",
    [
        (
            {"target": "ethos-u55-129"},
            "unknown target 'ethos-u55-129'; did you mean 'ethos-u55-128'?",
            "valid names: ethos-u55-32, ethos-u55-64",
        ),
        (
            {"system_config": "Foo"},
            "unknown system_config 'Foo' in Arm/vela.ini",
            "valid names: Ethos_U55_Deep_Embedded",
        ),
        ({"memory_mode": "Foo"}, "unknown memory_mode 'Foo' in Arm/vela.ini", "valid names: Sram_Only, Shared_Sram"),
        ({"io_layout": "nhwc"}, "io_layout is 'nhwc'; allowed are contiguous, channels_last", ""),
        ({"io_dtype": "uint8"}, "io_dtype is 'uint8'; allowed are float, int8", ""),
        ({"effort": "huge"}, "unknown effort 'huge'", "valid names: fast, normal, max"),
        ({"quantization": "int8"}, "quantization is a str", "give an EthosUQuantizer or a QuantizationConfig"),
        (
            {"model": "model.pt"},
            "the model is a str",
            "give a torch.nn.Module, an ExportedProgram or a quantized GraphModule",
        ),
    ],
)
def test_wrong_names(options: dict[str, Any], message: str, hint: str) -> None:
    found = refused(lambda: compiled(**options))
    assert found[0] == message and found[1].startswith(hint)


def test_training_mode() -> None:
    assert refused(lambda: compiled(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))) == (
        "Sequential is in training mode",
        "call model.eval() first",
    )


@pytest.mark.parametrize("calibration", [None, CALIBRATION], ids=["float", "quantized"])
def test_dynamic_shapes(calibration: Any) -> None:
    exported = torch.export.export(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1)).eval(),
        CALIBRATION[0],
        dynamic_shapes=({2: torch.export.Dim.AUTO},),
    )
    message, hint = refused(lambda: arm_lower.compile(exported, calibration, TARGET))
    assert message.startswith("input ") and "size of dimension 2 is dynamic" in message and "fixed sizes" in hint


@pytest.mark.parametrize(
    "bad,message,hint",
    [
        (
            (torch.zeros(1, 3, 4, 4),),
            "calibration sample 1, input 0 (input_1) has the shape (1, 3, 4, 4), the model takes (1, 3, 8, 8)",
            "",
        ),
        (
            (torch.zeros(MAP, dtype=torch.float64),),
            "calibration sample 1, input 0 (input_1) has the dtype torch.float64, the model takes torch.float32",
            "convert with .to(torch.float32)",
        ),
        (
            (torch.full(MAP, float("nan")),),
            "calibration sample 1, input 0 (input_1) contains NaN",
            "leave the sample out or repair its preprocessing",
        ),
        (
            (torch.full(MAP, float("inf")),),
            "calibration sample 1, input 0 (input_1) contains infinity",
            "leave the sample out or repair its preprocessing",
        ),
        ((torch.zeros(MAP), torch.zeros(MAP)), "calibration sample 1 has 2 inputs, the model takes 1", ""),
        (
            (np.zeros(MAP, np.float32),),
            "calibration sample 1, input 0 is a numpy array, not a torch.Tensor",
            "convert with torch.from_numpy",
        ),
    ],
    ids=["shape", "dtype", "NaN", "infinity", "number", "numpy"],
)
def test_calibration_that_does_not_fit(bad: tuple[Any, ...], message: str, hint: str) -> None:
    assert refused(lambda: compiled(calibration=[CALIBRATION[0], bad])) == (message, hint)


@pytest.mark.parametrize(
    "calibration,kind", [(torch.zeros(4, 3, 8, 8), "Tensor"), (5, "int"), ("x.npz", "str"), ({"x": 1}, "dict")]
)
def test_calibration_of_another_kind(calibration: Any, kind: str) -> None:
    """A tensor would be taken apart along the batch."""
    assert refused(lambda: compiled(calibration=calibration)) == (
        f"calibration is a {kind}",
        "give a list of argument tuples: [(x0,), (x1,), ...]",
    )


def test_no_calibration_and_no_example() -> None:
    want = (
        "no calibration data and no example inputs",
        "give calibration, or example_inputs=(...) to compile without it",
    )
    assert refused(lambda: compiled(calibration=None)) == want
    assert refused(lambda: compiled(calibration=[])) == want
    with pytest.raises(QuantizationError, match="there is no calibration sample"):
        compiled(calibration=[], example_inputs=CALIBRATION[0])


def test_model_that_cannot_be_exported() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    message, hint = refused(lambda: compiled(Branch().eval()))
    assert message.startswith("torch.export cannot export Branch: ") and "torch.export" in hint


# -- files -------------------------------------------------------------------------------------------------------


def test_save(tmp_path: Path) -> None:
    c = compiled()
    c.save(tmp_path / "net.pte")
    assert (tmp_path / "net.pte").read_bytes() == c.buffer
    record = tmp_path / "net.record"
    assert sorted(p.name for p in record.iterdir()) == [
        "commands.json",
        "io.json",
        "output_tag0_TOSA-1.0+INT+int16+int4+u55.tosa",
        "report.json",
    ]
    written = from_flatbuffer((record / "output_tag0_TOSA-1.0+INT+int16+int4+u55.tosa").read_bytes())
    assert str(written).splitlines()[1:] == str(c.delegates[0].tosa).splitlines()[1:]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.pte", "net.record"]


def test_record_names_count_down_in_call_order() -> None:
    class Holes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 7, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x).cumsum(-1))

    torch.manual_seed(0)
    c = compiled(Holes().eval(), target="ethos-u85-256")
    names = [n for n in c.record if n.endswith(".tosa")]
    assert [n.split("_")[1] for n in names] == ["tag1", "tag0"]
    assert [from_flatbuffer(c.record[n]).outputs[0].shape[1] for n in names] == [3, 7]


def test_save_again_replaces_the_record(tmp_path: Path) -> None:
    c = compiled()
    c.save(tmp_path / "net.pte")
    (tmp_path / "net.record" / "output_tag7_old.tosa").write_bytes(b"old")
    c.save(tmp_path / "net.pte")
    assert set(c.record) == {p.name for p in (tmp_path / "net.record").iterdir()}
    c.save(tmp_path / "net.pte", record=False)
    assert [p.name for p in tmp_path.iterdir()] == ["net.pte"]


def test_save_leaves_other_folders_alone(tmp_path: Path) -> None:
    folder = tmp_path / "net.record"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    c = compiled()
    assert refused(lambda: c.save(tmp_path / "net.pte")) == (
        f"cannot write {folder}: it is there and is no record of a compilation",
        "move it away, or choose another name",
    )
    assert [p.name for p in tmp_path.iterdir()] == ["net.record"]
    c.save(tmp_path / "net.pte", record=False)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_save_follows_links_and_refuses_what_is_no_file(tmp_path: Path) -> None:
    c = compiled()
    (tmp_path / "real").mkdir()
    (tmp_path / "net.pte").symlink_to("real/a.pte")
    (tmp_path / "net.record").symlink_to("real/b")
    for _ in range(2):  # dangling, then there
        c.save(tmp_path / "net.pte")
        assert (tmp_path / "real/a.pte").read_bytes() == c.buffer
        assert {p.name for p in (tmp_path / "real/b").iterdir()} == set(c.record)
        assert (tmp_path / "net.pte").is_symlink() and (tmp_path / "net.record").is_symlink()
        assert sorted(p.name for p in (tmp_path / "real").iterdir()) == ["a.pte", "b"]
    os.mkfifo(tmp_path / "pipe.pte")
    os.mkfifo(tmp_path / "other.record")
    before = sorted(p.name for p in tmp_path.iterdir())
    for name, wanted in (("pipe.pte", "it is a pipe"), ("other.pte", "it is there and is no record")):
        assert wanted in refused(lambda name=name: c.save(tmp_path / name))[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_stages_are_copied_but_not_pickled() -> None:
    """Refused where it is written; what is to be handed on instead can be pickled."""
    c = compiled()
    plain = to_edge(torch.export.export(network(), CALIBRATION[0]))
    lowered = plain.to_backend(EthosUPartitioner(EthosUCompileSpec(TARGET)))
    for value in (c, c.program, plain, lowered, lowered.to_executorch()):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            message, hint = refused(lambda v=value, p=protocol: pickle.dumps(v, p))
            assert message.startswith(f"a {type(value).__name__} cannot be pickled") and "save" in hint
        for copied in (copy.copy(value), copy.deepcopy(value)):
            assert type(copied) is type(value) and copied is not value
    assert copy.deepcopy(c).buffer == copy.copy(c).buffer == c.buffer
    assert copy.deepcopy(c).verify(CALIBRATION).outputs == c.verify(CALIBRATION).outputs
    assert copy.deepcopy(lowered).to_executorch().buffer == lowered.to_executorch().buffer
    for value in (c.buffer, c.record, c.boundary, c.report):
        again = pickle.loads(pickle.dumps(value))
        assert again == value


def test_save_to_the_name_of_the_record(tmp_path: Path) -> None:
    assert "a record folder has this name" in refused(lambda: compiled().save(tmp_path / "net.record"))[0]


def test_save_where_nothing_can_be_written(tmp_path: Path) -> None:
    c = compiled()
    assert refused(lambda: c.save(tmp_path / "no" / "net.pte")) == (
        f"cannot write {tmp_path / 'no' / 'net.pte'}: No such file or directory",
        "choose a writable path",
    )
    (tmp_path / "net.pte").mkdir()
    assert refused(lambda: c.save(tmp_path / "net.pte"))[0].endswith("it is a folder")
    assert [p.name for p in tmp_path.iterdir()] == ["net.pte"]


@pytest.mark.parametrize("fails_on", ["everything", "net.pte", "net.record"])
def test_save_that_fails_leaves_all_as_it_was(fails_on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    c = compiled()
    real = os.replace

    def replace(source: Any, destination: Any) -> None:
        if (
            fails_on == "everything"
            or Path(destination).name == fails_on
            and Path(source).name.startswith(f".{fails_on}")
        ):
            if not (fails_on != "everything" and getattr(replace, "done", False)):
                replace.done = True  # type: ignore[attr-defined]
                raise OSError(28, "No space left on device")
        real(source, destination)

    monkeypatch.setattr(os, "replace", replace)
    assert refused(lambda: c.save(tmp_path / "net.pte"))[0].endswith("No space left on device")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(os, "replace", real)
    c.save(tmp_path / "net.pte")
    old = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    replace.done = False  # type: ignore[attr-defined]
    monkeypatch.setattr(os, "replace", replace)
    refused(lambda: compiled(io_dtype="int8").save(tmp_path / "net.pte"))
    assert {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == old


# -- determinism -------------------------------------------------------------------------------------------------

CHILD = """
import hashlib, sys
sys.path[:0] = {paths!r}
import torch
from test_compile_api import compiled
c = compiled()
print(hashlib.sha256(c.buffer + b"".join(v for k, v in sorted(c.record.items()) if k != "report.json")).hexdigest())
"""


def test_the_same_input_gives_the_same_bytes() -> None:
    def digest(c: Compiled) -> str:
        return hashlib.sha256(
            c.buffer + b"".join(v for k, v in sorted(c.record.items()) if k != "report.json")
        ).hexdigest()

    first = compiled()
    assert digest(compiled()) == digest(first)
    here = Path(__file__).parent
    child = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            CHILD.format(paths=[str(here), str(here.parent), str(here.parent.parent)]),
        ],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PATH": ""},
    )
    assert child.stdout.split()[-1] == digest(first)
