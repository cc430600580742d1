"""What `Device.check` of the pytest plugin takes for equal. Apart from test_pytest_plugin.py, whose pytester forgets
modules between its runs."""

from __future__ import annotations

import pytest
import torch
from device_programs import samples

import arm_lower
from fvp.pytest_plugin import Device
from tosa_ref.host import Host


class Hybrid(torch.nn.Module):
    """Convolution and linear for the NPU; layer_norm on the CPU, whose result is quantized again."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.LayerNorm((8, 8, 8))
        self.linear = torch.nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(self.norm(self.convolution(x)).flatten(1))
        return y


@pytest.fixture(scope="module")
def hybrid() -> bytes:
    torch.manual_seed(4)
    return arm_lower.compile(Hybrid().eval(), samples(), "ethos-u55-128").buffer


def test_float_results_that_are_quantized_again(arm_lower_fvp: Device, hybrid: bytes) -> None:
    calls = [op.name for op in arm_lower_fvp.check(hybrid, samples()[0]).ops]
    assert calls.count("EthosUBackend") == 2 and "aten::native_layer_norm.out" in calls


def test_a_wrong_kernel_is_no_rounding(
    arm_lower_fvp: Device, hybrid: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device and its runtime on the host agree, torch does not."""
    right = Host.run

    def wrong(self: Host, inputs: object, method: str | None = None) -> object:
        return [y * 1.2 for y in right(self, inputs, method)]  # type: ignore[arg-type]

    monkeypatch.setattr(Host, "run", wrong)
    with pytest.raises(AssertionError, match=r"differs from torch: output 0 has a SQNR of 1\d\.\d dB, 20 are needed"):
        arm_lower_fvp.check(hybrid, samples()[0])
