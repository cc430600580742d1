"""The examples of the documentation run, its links lead somewhere, and it names no command that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from arm_lower.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential()
        self.backbone.add_module("stem", nn.Conv2d(1, 4, 3, padding=1))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.backbone(x)))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    ramp = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8)
    calibration = [(ramp * (i + 1) / 8 + 0.1 * i,) for i in range(8)]
    scope = {"model": Net().eval(), "calibration": calibration, "inputs": calibration[0], "torch": torch}
    if page.name != "README.md":
        from arm_lower import EthosUCompileSpec
        from quant import EthosUQuantizer, get_symmetric_quantization_config

        scope["spec"] = EthosUCompileSpec("ethos-u55-128")
        scope |= {"EthosUQuantizer": EthosUQuantizer}
        scope |= {"get_symmetric_quantization_config": get_symmetric_quantization_config}
    for block in blocks(page, "python"):
        local = dict(scope)
        if "compiled.verify(inputs)" in block:
            local["inputs"] = calibration
        exec(compile(block, f"{page.name}", "exec"), local)
    if page.name == "README.md":
        assert (tmp_path / "model.pte").is_file() and (tmp_path / "model.record").is_dir()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_commands_of_the_readme_parse(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()]
    commands = [line.split("#")[0].split() for line in lines if line.startswith("arm-lower")]
    assert len(commands) >= 5
    for _, name, *options in commands:
        with pytest.raises(SystemExit) as exit_info:
            main([name, *options, "--help"])
        assert exit_info.value.code == 0
        text = capsys.readouterr().out
        assert all(option in text for option in options if option.startswith("-"))


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


def test_sections_that_the_code_cites_exist() -> None:
    page = (ROOT / "docs/formulations.md").read_text(encoding="utf-8")
    headings = re.findall(r"\*\*(\d+\.?\d*[a-z]?)\b|^## (\d+)\b", page, re.M)
    sections = {a or b for a, b in headings} | {"7.3", "8.2"}  # named in the middle of a paragraph
    cited = {
        number
        for path in (ROOT / "arm_lower").rglob("*.py")
        for numbers in re.findall(r"formulations\.md ([\d., a-z]*?)[):;]?(?:$|[.)]| with)", path.read_text(), re.M)
        for number in re.findall(r"\d+(?:\.\d+)?[a-z]?", numbers)
    }
    assert len(cited) > 10
    assert cited <= sections, sorted(cited - sections)
