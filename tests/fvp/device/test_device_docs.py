"""docs/device.md does what it says: every command, its board, its C code, its smoke test."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from device_programs import compiled, samples

import arm_lower
import arm_lower.errors
from arm_lower.cli import main
from fvp.builder import build, save
from fvp.export import export

PAGE = Path(__file__).resolve().parents[3] / "docs" / "device.md"
MODEL = """
import sys
sys.path.insert(0, {here!r})
from device_programs import *

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()).eval()
"""
ARM = ["arm-none-eabi-gcc", "-mcpu=cortex-m55", "-mfloat-abi=hard", "-mthumb", "-Os", "-Wall", "-Wextra", "-Werror"]
MAIN = """
#include "app_kernels.h"
al_status infer(const void *model, const void *input, uint32_t bytes, al_error *error);
int main(void) {
  al_error error;
  return infer((void *)0x70000000, (void *)0x31000000, 768, &error);
}
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL.format(here=str(Path(__file__).parent)))
    Path("mine.toml").write_text(blocks("toml")[0])
    np.savez("in.npz", samples()[0][0].numpy())
    commands = [line.split() for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 8 and all(c[0] == "arm-lower" for c in commands)
    for _, *words in commands:
        assert main(words) == 0, words
    names = {"model.pte", "app.elf", "app.h", "mine.elf", "out.npz", "uart.log", "runtime"}
    assert names <= {p.name for p in tmp_path.iterdir()}
    assert np.load("out.npz")["output0"].shape == (1, 8, 8, 8)
    capsys.readouterr()


def test_the_error_that_is_shown_is_real() -> None:
    from fvp.boards import load_board, place

    shown = re.search(r"\n    (the NPU scratch .*)\n    (.*)\n", PAGE.read_text(encoding="utf-8"))
    assert shown
    with pytest.raises(arm_lower.errors.ArmLowerError) as caught:
        place(load_board("corstone-300"), "Shared_Sram", {"scratch": 3 << 20})
    assert caught.value.message == f"{shown[1]} {shown[2]}"


def test_a_project_of_ones_own_links(tmp_path: Path) -> None:
    firmware = build(compiled().buffer)
    save(firmware, tmp_path / "app.elf")  # its header must not be taken for one of the runtime
    names = export(firmware, tmp_path / "runtime")
    assert {"app_kernels.h", "app_kernels.c", "arm_lower.h", "driver.c", "method.c"} <= set(names)
    assert not {"cosim.c", "main.c", "startup.c"} & set(names)
    (tmp_path / "infer.c").write_text(blocks("c")[0])
    (tmp_path / "main.c").write_text(MAIN)
    sources = [str(tmp_path / "runtime" / n) for n in names if n.endswith(".c")]
    both = ['#include "app.h"', '#include "app_kernels.h"']
    for i, order in enumerate((both, both[::-1])):
        (tmp_path / f"both{i}.c").write_text("\n".join([*order, "uint32_t n[AL_APP_VALUES_BYTES + 1];", ""]))
        subprocess.run([*ARM, "-Iruntime", "-c", f"both{i}.c"], cwd=tmp_path, check=True)
    command = [*ARM, "-ffunction-sections", "-Wl,--gc-sections", "--specs=nosys.specs", "-Iruntime"]
    command += ["infer.c", "main.c"]
    done = subprocess.run([*command, *sources, "-lm", "-o", "a.elf"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(arm_lower.errors.ArmLowerError, match="runtime exists"):
        export(firmware, tmp_path / "runtime")


def test_nothing_but_files_and_new_folders_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is in the way is found before anything is written; links are followed."""
    (tmp_path / "model.pte").write_bytes(compiled().buffer)
    os.mkfifo(tmp_path / "pipe.h")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to("pipe")
    before = sorted(p.name for p in tmp_path.iterdir())
    model, good = str(tmp_path / "model.pte"), str(tmp_path / "good.elf")
    for output, sources, wanted in (
        (tmp_path / "pipe.elf", None, "pipe.h: it is a pipe"),
        (tmp_path / "to_pipe", None, "to_pipe: it is a pipe"),
        (tmp_path / "good.h", None, "the header beside the application"),
        (good, tmp_path / "pipe", "pipe exists"),
        (good, tmp_path / "to_pipe", "to_pipe exists"),
    ):
        more = [] if sources is None else ["--sources", str(sources)]
        assert main(["firmware", model, "-o", str(output), *more]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and wanted in captured.err
        assert sorted(p.name for p in tmp_path.iterdir()) == before
    (tmp_path / "runtime").symlink_to("elsewhere")
    (tmp_path / "good.elf").symlink_to("real.elf")
    assert main(["firmware", model, "-o", good, "--sources", str(tmp_path / "runtime")]) == 0
    assert (tmp_path / "elsewhere/app_kernels.c").is_file() and (tmp_path / "runtime").is_symlink()
    assert (tmp_path / "real.elf").is_file() and (tmp_path / "good.elf").is_symlink()


def test_the_smoke_test(arm_lower_fvp: object) -> None:
    from device_programs import nn, torch

    text = next(b for b in blocks("python") if "def test_" in b)
    assert len(text.strip().splitlines()) == 3
    torch.manual_seed(0)
    scope = {"arm_lower": arm_lower, "model": nn.Conv2d(3, 4, 3).eval(), "calibration": samples()}
    exec(text, scope)
    scope["test_keyword_spotting"](arm_lower_fvp)  # type: ignore[operator]


def test_the_recipe_is_yaml_and_installs_what_make_installs() -> None:
    recipe = yaml.safe_load(blocks("yaml")[0])
    text = str(recipe["jobs"]["device"]["steps"])
    for package in ("gcc-arm-none-eabi", "libnewlib-arm-none-eabi", "qemu-system-arm"):
        assert package in text and package in (PAGE.parents[1] / "Makefile").read_text(encoding="utf-8")
