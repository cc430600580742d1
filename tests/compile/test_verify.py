"""``compile(..., verify=True)``: streams that are wrong are repaired or refused, with the layer and module at fault."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lowering
import pytest
import torch
from torch import nn

import arm_lower
from arm_lower import exactness, vela
from arm_lower.cli import main
from arm_lower.compile import Compiled
from arm_lower.errors import ArmLowerError
from arm_lower.pte.read import read
from arm_lower.report import Report
from arm_lower.targets import faults
from arm_lower.tosa.ir import Graph
from arm_lower.vela_worker import Job, Raw

CALIBRATION = lowering.samples((1, 3, 16, 16))
DIFFERENCE = r"layer (\S+) \((\S+):(\S+)\): \d+ elements differ, the first at \([\d, ]+\): reference -?\d+, NPU -?\d+"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Sliced(nn.Module):
    """A maximum over the channels of a slice: Vela reads the whole map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.top = Top()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.conv(x)[:, :, 2:10, 3:9])


class Top(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax(1)


def compiled(model: type[nn.Module] = Net, target: str = "ethos-u55-128", **options: Any) -> Compiled:
    torch.manual_seed(0)
    return arm_lower.compile(model().eval(), CALIBRATION, target, **{"effort": "fast", **options})


def flipped(only: str = "") -> Callable[[Sequence[Job]], list[Raw | str]]:
    """Vela with one bit of the weights wrong, for the settings whose text has ``only``."""
    true = vela.run_jobs

    def run(jobs: Sequence[Job]) -> list[Raw | str]:
        found: list[Raw | str] = []
        for job, raw in zip(jobs, true(jobs)):
            if not isinstance(raw, str) and only in job["options"]:
                weights = bytearray(raw["read_only"])
                weights[40] ^= 8
                raw = {**raw, "read_only": bytes(weights)}
            found.append(raw)
        return found

    return run


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
def test_an_exact_delegate(target: str) -> None:
    c = compiled(target=target, verify=True)
    assert [d.verified for d in c.report.delegates] == ["exact for 4 sample(s) and 2 random input(s)"]
    assert "forward_0 on the NPU model: exact for 4 sample(s)" in c.report.to_text()
    assert Report.from_json(c.report.to_json()) == c.report and c.report.seconds["verify"] > 0
    assert c.buffer == compiled(target=target).buffer and not compiled().report.delegates[0].verified


def test_without_calibration_and_with_other_borders() -> None:
    c = arm_lower.compile(
        lowering.quantized(Net(), CALIBRATION), None, "ethos-u85-256", example_inputs=CALIBRATION[0], verify=True,
        io_dtype="int8", io_layout="channels_last", effort="fast",
    )  # fmt: skip
    assert c.report.delegates[0].verified == "exact for 1 sample(s) and 2 random input(s)"


def test_nothing_to_verify() -> None:
    c = arm_lower.compile(Net().eval(), None, "ethos-u55-128", example_inputs=CALIBRATION[0], verify=True)
    assert not c.report.delegates and c.report.cpu_ops


def test_repair_with_another_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vela, "run_jobs", flipped("optimize=Performance"))
    c = compiled(effort="normal", verify=True)
    (delegate,) = c.report.delegates
    assert delegate.settings.startswith("Size") and not c.report.cpu_ops
    said = re.fullmatch(
        r"exact for 4 sample\(s\) and 2 random input\(s\) with (.*); with Performance, .* it is not: " + DIFFERENCE,
        delegate.verified,
    )
    assert said and said[1] == delegate.settings and said[3] == "body.0"
    assert c.verify(CALIBRATION).exact


def test_repair_without_the_operator_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bit lies in the first convolution; without it, its place is beyond what the rest of the weights use."""
    monkeypatch.setattr(vela, "run_jobs", flipped())
    c = compiled(verify=True)
    moved = {op.module_path: op for op in c.report.cpu_ops}
    assert "body.0" in moved and len(c.report.delegates) == 1
    assert re.fullmatch(r"Vela's command stream for it is wrong: " + DIFFERENCE, moved["body.0"].reason)
    assert moved["body.0"].hint == "another effort or memory_mode may do"
    assert c.verify(CALIBRATION).exact


def test_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vela, "run_jobs", flipped())
    monkeypatch.setattr(exactness, "MOVES", 0)
    with pytest.raises(ArmLowerError) as caught:
        compiled(verify=True)
    said = re.fullmatch(
        r"delegate forward_0: the command stream that Vela wrote is not what the TOSA graph says: " + DIFFERENCE,
        caught.value.message,
    )
    assert said and said[2] == "body.0" and said[3].startswith("aten.")
    assert caught.value.hint == (
        "try another effort, memory_mode or target, or leave the module out of the quantization, which keeps it on "
        "the CPU"
    )


def test_a_stream_that_breaks_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    true = vela.run_jobs

    def run(jobs: Sequence[Job]) -> list[Raw | str]:
        return [r if isinstance(r, str) else {**r, "scratch": (r["scratch"][0], 1), "command_stream": damaged(r)}
                for r in true(jobs)]  # fmt: skip

    def damaged(raw: Raw) -> bytes:
        return raw["command_stream"][:-8] + bytes(4) + raw["command_stream"][-4:]

    monkeypatch.setattr(vela, "run_jobs", run)
    with pytest.raises(ArmLowerError, match="delegate forward_0: the command stream that Vela wrote is not what"):
        compiled(verify=True)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_a_real_fault(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    avoided = compiled(Sliced, target, verify=True)
    assert avoided.report.delegates[0].verified and not avoided.report.cpu_ops
    assert "CLAMP" in [op.kind for op in avoided.delegates[0].tosa.ops]

    monkeypatch.setattr(faults, "avoid", lambda graph, accelerator: [])
    wrong = compiled(Sliced, target).verify(CALIBRATION)
    assert not wrong.exact and f"elements differ; {wrong.delegates[0].where}\n" in str(wrong)
    said = re.fullmatch(DIFFERENCE, wrong.delegates[0].where)
    assert said and (said[2], said[3]) == ("top", "aten.amax.default")

    repaired = compiled(Sliced, target, verify=True)
    assert [op.op for op in repaired.report.cpu_ops] == ["aten.amax.default"]
    assert repaired.verify(CALIBRATION).exact


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        "net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()\n"
        "samples = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]\n"
    )
    net, out = str(tmp_path / "net.py"), tmp_path / "net.pte"
    assert main(["compile", f"{net}:net", "--calibration", f"{net}:samples", "--target", "ethos-u55-128", "-o",
                 str(out), "--effort", "fast", "--verify", "--report", "text"]) == 0  # fmt: skip
    assert "forward_0 on the NPU model: exact for 2 sample(s)" in capsys.readouterr().out

    assert main(["inspect", "--npu", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "method forward, delegate 0"
    convolutions = [line for line in lines if "OP_CONV" in line]
    assert convolutions and all(re.search(r"; \S+ [02]:aten\.\S+$", line) for line in convolutions), convolutions

    out.with_suffix(".record").rename(tmp_path / "elsewhere")
    assert main(["inspect", "--npu", str(out)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("method forward, delegate 0; no record of it in ") and first.endswith("are not known")

    record = tmp_path / "net.record"
    record.mkdir()
    for text in ("[]", "{", json.dumps({_digest(out): {"layers": [], "commands": [[0, 3]]}})):
        (record / "commands.json").write_text(text)
        assert main(["inspect", "--npu", str(out)]) == 2
        assert f"error: {record / 'commands.json'} is corrupt: " in capsys.readouterr().err


def _digest(pte: Path) -> str:
    return hashlib.sha256(read(pte.read_bytes()).methods[0].delegates[0].data).hexdigest()


def test_a_fault_without_remedy_goes_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def avoid(graph: Graph, accelerator: str) -> list[str]:
        for op in graph.ops:
            if op.kind == "REDUCE_MAX":
                raise faults.Miscompiled(faults.FAULTS[0], op)
        return []

    monkeypatch.setattr(faults, "avoid", avoid)
    c = compiled(Sliced)
    (op,) = c.report.cpu_ops
    assert (op.op, op.module_path, op.hint) == ("aten.amax.default", "top", "compute it on the CPU")
    assert op.reason == f"Vela 5.2 would miscompile REDUCE_MAX: {faults.FAULTS[0].name}"
    assert len(c.report.delegates) == 1
