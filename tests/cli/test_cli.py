"""The command line, in this process; one test starts it as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from arm_lower.cli import main

NET = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)).eval()

def pair():
    return net(), (torch.zeros(1, 3, 8, 8),)

def samples():
    g = torch.Generator().manual_seed(0)
    ramp = torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)
    return [(ramp * torch.rand(1, generator=g) + torch.rand(1, generator=g),) for _ in range(4)]

def wrong_shape():
    return samples() + [(torch.zeros(1, 3, 9, 8),)]

def wrong_dtype():
    return samples() + [(torch.zeros(1, 3, 8, 8, dtype=torch.int32),)]

def wrong_for_the_model():
    return [(torch.zeros(1, 3, 9, 8),)]

def without_batch():
    return [(torch.zeros(3, 8, 8),)]

program = torch.export.export(net(), samples()[0])

def keywords():
    class Keywords(nn.Module):
        def forward(self, x, *, y):
            return x + y
    x, = samples()[0]
    return torch.export.export(Keywords().eval(), (x,), {"y": x})

def with_nan():
    return samples() + [(torch.full((1, 3, 8, 8), float("nan")),)]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli")
    (path / "net.py").write_text(NET)
    return path


@pytest.fixture(scope="module")
def compiled(folder: Path) -> Path:
    """A file compiled by the command, with its record."""
    out = folder / "net.pte"
    assert main(["compile", f"{folder}/net.py:net", "--calibration", f"{folder}/net.py:samples",
                 "--target", "ethos-u55-128", "-o", str(out)]) == 0  # fmt: skip
    return out


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Standard error of a command that must fail with exit code 2 and without a traceback."""
    assert main([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    assert captured.err.startswith("arm-lower: error: ") or "\narm-lower: error: " in captured.err
    return captured.err


def test_compile_writes_file_and_record(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {p.name for p in compiled.with_suffix(".record").iterdir()}
    assert {"report.json", "io.json"} < names and any(n.endswith(".tosa") for n in names)
    assert main(["report", str(compiled)]) == 0
    assert "ethos-u55-128" in capsys.readouterr().out


def test_run_gives_what_the_model_gives(compiled: Path, folder: Path) -> None:
    from arm_lower.load import load_model, load_samples

    (x,) = load_samples(f"{folder}/net.py:samples")[0]
    np.savez(folder / "in.npz", x.numpy())
    arguments = ["--platform", "ref", "--inputs", folder / "in.npz", "--out", folder / "out.npz"]
    assert main(["run", str(compiled), *map(str, arguments)]) == 0
    model, _ = load_model(f"{folder}/net.py:net")
    with torch.no_grad():
        wanted = model(x).numpy()  # type: ignore[operator]
    with np.load(folder / "out.npz") as file:
        assert file.files == ["output0"]
        np.testing.assert_allclose(file["output0"], wanted, atol=0.05 * np.abs(wanted).max())


def test_inspect(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(compiled)]) == 0
    assert "EthosUBackend" in capsys.readouterr().out


def test_report_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "json.pte"
    assert main(["compile", f"{folder}/net.py:net", "--calibration", f"{folder}/net.py:samples", "--no-record",
                 "--target", "ethos-u85-256", "--io-layout", "channels_last", "--io-dtype", "int8",
                 "-o", str(out), "--report", "json", "--effort", "fast"]) == 0  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert report["pte_bytes"] == out.stat().st_size
    assert len(report["delegates"]) == 1 and report["kernel_calls"] == {}
    assert not out.with_suffix(".record").exists()


def test_an_unquantized_model_compiles_for_the_cpu_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = folder / "net.pt2"
    from arm_lower.load import load_model

    model, example = load_model(f"{folder}/net.py:pair")
    torch.export.save(torch.export.export(model, example), program)  # type: ignore[arg-type]
    for source in (f"{folder}/net.py:pair", str(program)):
        out = folder / "cpu.pte"
        assert main(["compile", source, "--target", "ethos-u55-128", "-o", str(out), "--report", "text"]) == 0
        text = capsys.readouterr().out
        assert "0 delegate(s)" in text and "quantize" in text


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--target", "ethos-u55-127", "did you mean 'ethos-u55-128'"),
        ("--system-config", "Ethos_U55_High_End", "Ethos_U55_High_End_Embedded"),
        ("--memory-mode", "Shared_SRAM", "Shared_Sram"),
        ("--sram-limit", "256", "needed"),
        ("--calibration", "{folder}/net.py:wrong_shape", "9"),
        ("--calibration", "{folder}/net.py:wrong_dtype", "int32"),
        ("--calibration", "{folder}/net.py:wrong_for_the_model", "cannot export"),
        ("--calibration", "{folder}/net.py:with_nan", "NaN"),
        ("--calibration", "{folder}/missing.npz", "cannot read"),
        ("--output", "{folder}/missing/out.pte", "cannot write"),
        ("--output", "{folder}", "cannot write"),
        ("--output", "{folder}/net.py/out.pte", "cannot write"),
    ],
)
def test_bad_input_of_compile(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, wanted: str
) -> None:
    settings = {
        "--target": "ethos-u55-128",
        "--calibration": f"{folder}/net.py:samples",
        "--output": f"{folder}/bad.pte",
        option: value.format(folder=folder),
    }
    before = sorted(os.listdir(folder))
    error = fails(capsys, "compile", f"{folder}/net.py:net", *(part for item in settings.items() for part in item))
    assert wanted.lower() in error.lower()
    assert [n for n in sorted(os.listdir(folder)) if n != "__pycache__"] == [n for n in before if n != "__pycache__"]


def test_a_model_with_dynamic_shapes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "dynamic.pt2")
    error = fails(capsys, "compile", folder / "dynamic.pt2", "--target", "ethos-u55-128", "-o", folder / "never.pte")
    assert "dynamic" in error and not (folder / "never.pte").exists()


@pytest.mark.parametrize("content", [b"", b"not a program", "cut", "flipped"])
def test_broken_files(compiled: Path, capsys: pytest.CaptureFixture[str], content: bytes | str) -> None:
    data = compiled.read_bytes()
    broken = compiled.with_name("broken.pte")
    middle = len(data) // 3
    cases = {"cut": data[:middle], "flipped": data[:4] + b"ET99" + data[8:]}
    broken.write_bytes(cases[content] if isinstance(content, str) else content)
    np.savez(compiled.with_name("zero.npz"), np.zeros((1, 3, 8, 8), np.float32))
    out = compiled.with_name("never.npz")
    fails(capsys, "inspect", broken)
    fails(capsys, "run", broken, "--platform", "ref", "--inputs", compiled.with_name("zero.npz"), "--out", out)
    assert not out.exists()


def test_run_without_record_or_with_wrong_inputs(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "alone.pte"
    alone.write_bytes(compiled.read_bytes())
    np.savez(tmp_path / "in.npz", np.zeros((1, 3, 8, 8), np.float32))
    np.savez(tmp_path / "small.npz", np.zeros((1, 3, 8, 7), np.float32))
    rest = ("--out", tmp_path / "out.npz")
    assert ".record" in fails(capsys, "run", alone, "--platform", "ref", "--inputs", tmp_path / "in.npz", *rest)
    fails(capsys, "run", compiled, "--platform", "ref", "--inputs", tmp_path / "small.npz", *rest)
    fails(capsys, "run", tmp_path / "none.pte", "--platform", "ref", "--inputs", tmp_path / "in.npz", *rest)
    fails(capsys, "inspect", tmp_path / "none.pte")
    fails(capsys, "report", tmp_path / "none.pte")


def test_an_exported_program_by_its_name(folder: Path, compiled: Path) -> None:
    out = folder / "named.pte"
    assert main(["compile", f"{folder}/net.py:program", "--calibration", f"{folder}/net.py:samples",
                 "--target", "ethos-u55-128", "-o", str(out), "--no-record"]) == 0  # fmt: skip
    assert out.read_bytes() == compiled.read_bytes()


@pytest.mark.parametrize("model", ["net", "program", "pt2", "bare"])
@pytest.mark.parametrize("samples", ["wrong_for_the_model", "without_batch", "wrong_dtype", "pairs", "strings", "half"])
def test_calibration_that_does_not_fit(
    folder: Path, capfd: pytest.CaptureFixture[str], model: str, samples: str
) -> None:
    """Of a module, a program in a .py file and in a .pt2 file with and without its example inputs."""
    from arm_lower.load import load_model

    program = load_model(f"{folder}/net.py:program")[0]
    assert isinstance(program, torch.export.ExportedProgram)
    program._example_inputs = None if model == "bare" else program.example_inputs
    torch.export.save(program, folder / "model.pt2")
    x = np.zeros((2, 1, 3, 8, 8), np.float32)
    np.savez(folder / "pairs.npz", x, x)
    np.savez(folder / "strings.npz", x.astype(str))
    np.savez(folder / "half.npz", x.astype(np.float16))
    source = f"{folder}/model.pt2" if model in ("pt2", "bare") else f"{folder}/net.py:{model}"
    calibration = f"{folder}/net.py:{samples}" if "_" in samples else f"{folder}/{samples}.npz"
    capfd.readouterr()
    error = fails(capfd, "compile", source, "--calibration", calibration, "--target", "ethos-u55-128",
                  "-o", folder / "never.pte")  # fmt: skip
    assert "calibration sample" in error or "array 0" in error
    assert "documentation" not in error and not (folder / "never.pte").exists()


def test_keyword_inputs_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--calibration", f"{folder}/net.py:samples", "--target", "ethos-u55-128", "-o", folder / "never.pte")
    assert "keyword inputs (y)" in fails(capsys, "compile", f"{folder}/net.py:keywords", *arguments)


def test_big_endian_arrays(folder: Path, compiled: Path) -> None:
    x = np.linspace(-1, 1, 192).reshape(1, 1, 3, 8, 8)
    for name, order in (("little", "<f4"), ("big", ">f4")):
        np.savez(folder / f"{name}.npz", np.concatenate([x, x / 2]).astype(order))
        np.savez(folder / f"{name}_in.npz", x[0].astype(order))
        assert main(["compile", f"{folder}/net.py:net", "--calibration", f"{folder}/{name}.npz", "--no-record",
                     "--target", "ethos-u55-128", "-o", f"{folder}/{name}.pte"]) == 0  # fmt: skip
        assert main(["run", str(compiled), "--platform", "npu", "--inputs", f"{folder}/{name}_in.npz",
                     "--out", f"{folder}/{name}_out.npz"]) == 0  # fmt: skip
    for kind in ("{}.pte", "{}_out.npz"):
        assert (folder / kind.format("big")).read_bytes() == (folder / kind.format("little")).read_bytes()


@pytest.mark.parametrize("command", ["compile", "run"])
def test_outputs_that_are_no_files(
    folder: Path, compiled: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    os.mkfifo(folder / f"{command}.pipe")
    np.savez(folder / "zero.npz", np.zeros((1, 3, 8, 8), np.float32))
    commands = {
        "compile": (f"{folder}/net.py:pair", "--target", "ethos-u55-128", "-o"),
        "run": (compiled, "--platform", "npu", "--inputs", folder / "zero.npz", "--out"),
    }
    assert "it is a pipe" in fails(capsys, command, *commands[command], folder / f"{command}.pipe")


def test_inspect_npu_without_delegates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "cpu_only.pte"
    assert main(["compile", f"{folder}/net.py:pair", "--target", "ethos-u55-128", "-o", str(out)]) == 0
    capsys.readouterr()
    assert main(["inspect", "--npu", str(out)]) == 0
    assert capsys.readouterr().out == f"{out} has no Ethos-U delegate\n"


def test_torch_logs_nothing(folder: Path) -> None:
    """In a process of its own: torch binds its log to standard error when it is imported."""
    for samples in ("without_batch", "wrong_for_the_model"):
        command = [sys.executable, "-m", "arm_lower", "compile", "net.py:net", "--calibration", f"net.py:{samples}",
                   "--target", "ethos-u55-128", "-o", "never.pte"]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        first, second, *rest = done.stderr.splitlines()
        assert done.returncode == 2 and done.stdout == "" and rest == []
        assert first.startswith("arm-lower: error: ") and "calibration sample 0" in first
        assert second.startswith("  hint: ") and "batch dimension" in second


def test_usage_errors_have_the_same_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["compile"], ["compile", "a.py:b", "--target", "t", "-o", "x", "--sram-limit", "0"], ["fly"]):
        with pytest.raises(SystemExit) as exit_info:
            main(arguments)
        assert exit_info.value.code == 2
    assert "is not a size above 0" in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for name in ("torch", "ethos-u-vela", "tosa-tools", "Arm GCC", "QEMU", "FVP Corstone SSE-300 Ethos-U55"):
        assert name in text


def test_as_a_process(compiled: Path, tmp_path: Path) -> None:
    """No output but what was asked for, errors without a traceback, and a reader that leaves early is no error."""
    command = [sys.executable, "-m", "arm_lower"]
    shown = subprocess.run([*command, "inspect", compiled], capture_output=True, text=True, check=True)
    assert shown.stderr == "" and "EthosUBackend" in shown.stdout
    failed = subprocess.run([*command, "inspect", tmp_path / "none.pte"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2 and "Traceback" not in failed.stderr and failed.stdout == ""
    piped = subprocess.run(
        f"{sys.executable} -m arm_lower inspect {compiled} | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert piped.stderr == "" and piped.stdout.count("\n") == 1


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, arm_lower; print([m for m in ('torch', 'numpy', 'ethosu', 'flatbuffers') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_public_names_resolve_and_compile_stays_a_function() -> None:
    code = (
        "import arm_lower; from arm_lower.compile import Compiled; "
        "print([n for n in arm_lower.__all__ if getattr(arm_lower, n) is None], callable(arm_lower.compile), "
        "arm_lower.Compiled is Compiled, set(arm_lower.__all__) <= set(dir(arm_lower)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] True True True"
