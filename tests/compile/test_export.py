"""torch.export inside a compilation: its log, its errors, several threads."""

from __future__ import annotations

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import lowering
import pytest
import torch
from torch import nn

import arm_lower
from arm_lower.errors import ArmLowerError
from arm_lower.export import describe, export, exporting, in_order
from arm_lower.program import to_edge
from quant import EthosUQuantizer, prepare_pt2e, prepare_qat_pt2e, quantize

TARGETS = ("ethos-u55-128", "ethos-u85-256")
SAMPLES = lowering.samples((1, 3, 8, 8))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)).eval()


class Item(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Length(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


class NumPy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() + 1)


@pytest.mark.parametrize(("model", "hint"), [(Branch(), "torch.where"), (NumPy(), "torch.export documentation")])
def test_a_model_that_cannot_be_exported(model: nn.Module, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArmLowerError, match=f"torch.export cannot export {type(model).__name__}: ") as caught:
        export(model.eval(), (torch.ones(2),))
    assert hint in caught.value.hint and "batch" not in caught.value.hint and "\n" not in caught.value.message
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_model_prints_is_kept(fails: bool, capsys: pytest.CaptureFixture[str]) -> None:
    class Talks(Branch):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("hello", file=sys.stderr)
            return super().forward(x) if fails else x + 1

    with pytest.raises(ArmLowerError) if fails else nullcontext():
        export(Talks().eval(), (torch.ones(2),))
    error = capsys.readouterr().err
    assert set(error.split()) == {"hello"}


@pytest.mark.parametrize(
    "arguments", [(torch.ones(3, 8, 8),), (torch.ones(1, 3, 9, 8),), (torch.ones(1, 3, 8, 8).double(),), (), (None,),
                  (torch.ones(1, 3, 8, 8), 2), ("x",), ({"x": torch.ones(1)},)]  # fmt: skip
)
def test_arguments_that_the_model_cannot_take(arguments: tuple[object, ...], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArmLowerError) as caught:
        arm_lower.compile(network(), [arguments], TARGETS[0])
    assert f"it cannot be called with calibration sample 0, {describe(arguments)}: " in caught.value.message
    assert "[samples, *shape" in caught.value.hint
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("model", [Item(), Length()])
def test_what_depends_on_values_is_said(model: nn.Module) -> None:
    x = torch.arange(4.0) - 1
    program = torch.export.export(model.eval(), (x,))
    for call in (lambda: arm_lower.compile(model.eval(), None, TARGETS[0], example_inputs=(x,)),
                 lambda: arm_lower.compile(model.eval(), [(x,)], TARGETS[0]), lambda: to_edge(program)):
        with pytest.raises(ArmLowerError, match="depends on values") as caught:
            call()
        assert ".item()" in caught.value.hint and "fixed sizes" not in caught.value.hint


@pytest.mark.parametrize("prepare", [prepare_pt2e, prepare_qat_pt2e])
def test_a_prepared_module_must_be_converted(prepare: object) -> None:
    prepared = prepare(torch.export.export(network(), SAMPLES[0]), EthosUQuantizer())  # type: ignore[operator]
    for call in (lambda: arm_lower.compile(prepared, None, TARGETS[0], example_inputs=SAMPLES[0]),
                 lambda: to_edge(prepared, SAMPLES[0])):
        with pytest.raises(ArmLowerError, match="has observers") as caught:
            call()
        assert "convert_pt2e" in caught.value.hint


def test_the_log_of_torch_is_as_before() -> None:
    log = logging.getLogger("torch")
    level = log.level
    try:
        for before, inside in ((logging.WARNING, logging.CRITICAL), (logging.INFO, logging.INFO)):
            log.setLevel(before)
            with pytest.raises(KeyError), exporting():
                assert log.level == inside
                raise KeyError
            assert log.level == before
    finally:
        log.setLevel(level)


def decomposed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(144, 4)).eval()


def test_modules_are_compiled_in_threads() -> None:
    """Exports, calibrations, conversions and decompositions of several threads, of which torch knows nothing."""

    def build(model: nn.Module, calibrated: bool, target: str) -> bytes:
        calibration, examples = (SAMPLES, None) if calibrated else (None, SAMPLES[0])
        return arm_lower.compile(model, calibration, target, example_inputs=examples, effort="fast").buffer

    kinds = [(make, calibrated, t) for make in (network, decomposed) for calibrated in (True, False) for t in TARGETS]
    alone = [build(make(), calibrated, target) for make, calibrated, target in kinds]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(build, make(), calibrated, target) for make, calibrated, target in kinds * 3]
        modules = [pool.submit(quantize, network(), SAMPLES[0], SAMPLES) for _ in range(4)]
        assert [job.result() for job in jobs] == alone * 3
        found = [m.result()(*SAMPLES[0]) for m in modules]
    assert all(torch.equal(y, found[0]) for y in found)


def test_arguments_without_structure() -> None:
    assert in_order((({"a": 1}, [2, None]), {}), None) == [1, 2, None]


@pytest.mark.parametrize("data", [b"", b"PK nonsense", b"PK\x05\x06" + bytes(18)])
def test_files_that_hold_no_program_are_said_in_two_lines(tmp_path: Path, data: bytes) -> None:
    """In a process of its own: torch binds its log to standard error when it is imported."""
    (tmp_path / "bad.pt2").write_bytes(data)
    command = [sys.executable, "-m", "arm_lower", "compile", "bad.pt2", "--target", TARGETS[0], "-o", "out.pte"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("arm-lower: error: bad.pt2 is not an exported program: ")
    assert lines[-1].startswith("  hint: ") and "Traceback" not in done.stderr
    assert not (tmp_path / "out.pte").exists()
