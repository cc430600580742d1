"""The plugin as a user has it: a folder with a smoke test and pytest."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import pytest
from device_programs import compiled, one_kernel, samples, stand_in

from fvp.pytest_plugin import Device

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """pytester forgets modules that are first imported in one of its runs; torch cannot be imported twice."""
    Device("qemu", "corstone-300").check(compiled(), samples()[0])


SMOKE = """
from pathlib import Path
import numpy as np
MODEL = Path(__file__).with_name("model.pte")

def test_smoke(arm_lower_fvp):
    arm_lower_fvp.check(MODEL, [np.full({shape}, 0.25, np.float32)])
"""


def smoke(
    pytester: pytest.Pytester, data: bytes, *options: str, shape: tuple[int, ...] = (8,)
) -> tuple[dict[str, int], str]:
    """Outcomes and text of a user's test run."""
    (pytester.path / "model.pte").write_bytes(data)
    pytester.makepyfile(test_smoke=SMOKE.format(shape=shape))
    result = pytester.runpytest_inprocess("-rs", "-p", "no:cacheprovider", *options)
    return result.parseoutcomes(), result.stdout.str()


def test_it_is_registered() -> None:
    points = metadata.entry_points(group="pytest11")
    assert {p.value for p in points if p.name == "arm_lower_fvp"} == {"fvp.pytest_plugin"}


def test_a_smoke_test_passes(pytester: pytest.Pytester) -> None:
    outcomes, text = smoke(pytester, compiled().buffer, shape=(1, 3, 8, 8))
    assert outcomes == {"passed": 1}, text


def test_a_compiled_model_and_tensors_are_taken(arm_lower_fvp: object) -> None:
    """The fixture in this very session."""
    assert isinstance(arm_lower_fvp, Device)
    assert arm_lower_fvp.check(compiled(), samples()[0]).npu == "host"


def test_a_device_that_computes_something_else_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A simulator that runs the application and then changes the result."""
    then = f"""
code = subprocess.run([{shutil.which("qemu-system-arm")!r}, *sys.argv[1:]]).returncode
data = bytearray(open("out", "rb").read())
data[-1] ^= 0x01
open("out", "wb").write(data)
sys.exit(code)
"""
    stand_in(tmp_path, "qemu-system-arm", then)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    outcomes, text = smoke(pytester, one_kernel())
    assert outcomes == {"failed": 1}
    assert "AssertionError: the device differs from the runtime on the host: output 0 is " in text


def test_without_the_fvp_it_is_skipped_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARM_LOWER_FVP_HOME", str(pytester.path))
    monkeypatch.delenv("CI", raising=False)
    outcomes, text = smoke(pytester, one_kernel(), "--arm-lower-platform", "fvp")
    assert outcomes == {"skipped": 1}
    assert "FVP_Corstone_SSE-300_Ethos-U55 is neither on PATH nor below ARM_LOWER_FVP_HOME" in text


def test_without_the_fvp_ci_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARM_LOWER_FVP_HOME", str(pytester.path))
    monkeypatch.setenv("CI", "true")
    outcomes, text = smoke(pytester, one_kernel(), "--arm-lower-platform", "fvp")
    assert not outcomes.keys() & {"skipped", "passed"}
    assert "FVP_Corstone_SSE-300_Ethos-U55 is neither on PATH nor below ARM_LOWER_FVP_HOME" in text


def test_without_qemu_it_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for tool in ("gcc", "ar", "as", "ld"):
        (tmp_path / f"arm-none-eabi-{tool}").symlink_to(shutil.which(f"arm-none-eabi-{tool}") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    outcomes, text = smoke(pytester, one_kernel())
    assert outcomes == {"failed": 1} and "qemu-system-arm is not on PATH" in text


def test_a_wrong_board_fails(pytester: pytest.Pytester) -> None:
    outcomes, text = smoke(pytester, one_kernel(), "--arm-lower-board", "corstone-301")
    assert outcomes == {"failed": 1} and "unknown board 'corstone-301'" in text
