"""Compiled models in the device runtime on the host, delegates on the model of the NPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import arm_lower
from arm_lower.pte.model import DelegateCall
from arm_lower.pte.read import read
from fvp.ethosu.delegate import run_delegate
from fvp.native import DeviceError, Native, run_npu
from tosa_ref.host import Host

Runner = Callable[..., Any]


class Separable(nn.Module):
    """Keyword spotting as in MLPerf Tiny, small: convolution, depthwise and pointwise ones, pooling, dense, softmax."""

    def __init__(self) -> None:
        super().__init__()
        channels = 16
        layers: list[nn.Module] = [nn.Conv2d(1, channels, (10, 4), 2, (4, 1)), nn.BatchNorm2d(channels), nn.ReLU()]
        for _ in range(2):
            layers += [nn.Conv2d(channels, channels, 3, 1, 1, groups=channels), nn.BatchNorm2d(channels), nn.ReLU()]
            layers += [nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 12))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.body(x), -1)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 64))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Mixed(nn.Module):
    """Parts that stay on the CPU between parts on the NPU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 4, 3, 1, 1)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.first(x))
        z = torch.cumsum(self.norm(y), -1)
        return self.second(z), torch.topk(y.flatten(1), 5).values


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "separable": (Separable, (1, 1, 49, 10)),
    "autoencoder": (Autoencoder, (1, 64)),
    "mixed": (Mixed, (1, 3, 10, 12)),
}


def image(shape: tuple[int, ...], seed: int) -> Tensor:
    """Smooth, so that calibration does not complain."""
    return torch.from_numpy(np.cumsum(np.random.default_rng(seed).standard_normal(shape), -1).astype(np.float32))


@pytest.fixture(scope="module", params=[(m, t) for m in MODELS for t in ("ethos-u55-128", "ethos-u85-256")],
                ids=lambda p: "-".join(p))
def compiled(request: pytest.FixtureRequest) -> tuple[bytes, tuple[int, ...]]:
    model, shape = MODELS[request.param[0]]
    torch.manual_seed(0)
    samples = [(image(shape, seed),) for seed in range(4)]
    return arm_lower.compile(model().eval(), samples, request.param[1], effort="fast").buffer, shape


def recorded(calls: list[Any]) -> Runner:
    """`run_delegate` that keeps what it was given and gave."""
    def run(call: int, blob: bytes, inputs: Any) -> Any:
        outputs = run_delegate(call, blob, inputs)
        calls.append((call, [np.asarray(a).tobytes() for a in (*inputs, *outputs)]))
        return outputs

    return run


def test_same_bytes_at_every_delegate(compiled: tuple[bytes, tuple[int, ...]]) -> None:
    pte, shape = compiled
    ours: list[Any] = []
    theirs: list[Any] = []
    native, host = Native(pte, {"EthosUBackend": recorded(ours)}), Host(pte, delegate_runner=recorded(theirs))
    for seed in range(3):
        x = image(shape, seed + 10).numpy()
        for a, b in zip(native.run([x]), host.run([x]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
    calls = sum(isinstance(i, DelegateCall) for i in read(pte).methods[0].instructions)
    assert len(ours) == len(theirs) == 3 * calls > 0
    assert ours == theirs


def test_backend_in_c(compiled: tuple[bytes, tuple[int, ...]]) -> None:
    """The device's own backend on the NPU model gives the same bytes; scratch memory suffices exactly."""
    pte, shape = compiled
    x = image(shape, 20).numpy()
    native, other = Native(pte, npu=run_npu, fast_scratch=1 << 16), Native(pte)
    for a, b in zip(native.run([x]), other.run([x]), strict=True):
        np.testing.assert_array_equal(a, b)
    needed = native.needs()["scratch"]
    assert needed > 0 and other.needs()["scratch"] == 0
    text = f"^NPU scratch memory is too small: scratch, needed {needed}, available {needed - 16}$"
    with pytest.raises(DeviceError, match=text):
        Native(pte, npu=run_npu, less={"scratch": 16}).run([x])


def test_without_an_npu(compiled: tuple[bytes, tuple[int, ...]]) -> None:
    with pytest.raises(DeviceError, match="^a delegate has no backend in this build: EthosUBackend$"):
        Native(compiled[0], {}).method()


def test_errors_of_delegates(compiled: tuple[bytes, tuple[int, ...]]) -> None:
    pte, shape = compiled
    x = image(shape, 1).numpy()

    def broken(call: int, blob: bytes, inputs: Any) -> Any:
        raise OSError("gone")

    with pytest.raises(OSError, match="^gone$"):
        Native(pte, {"EthosUBackend": broken}).run([x])

    def failing(commands: bytes, regions: Any) -> None:
        raise arm_lower.errors.ArmLowerError("the model says no")

    text = "^the NPU model on the host reports an error: the model says no, instruction "
    with pytest.raises(DeviceError, match=text):
        Native(pte, npu=failing, fast_scratch=1 << 16).run([x])
