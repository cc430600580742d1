"""Calibration: what is refused, what is warned of, and progress."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quant_helpers import Function, prepared
from torch import nn

from arm_lower.errors import QuantizationError
from quant import CalibrationWarning, calibrate, quantize
from quant.calibrate import noise_arguments

EXAMPLE = (torch.zeros(1, 3, 16, 16), torch.zeros(2, dtype=torch.int64))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(image)).mean((2, 3)) + index.sum()


def smooth(seed: int = 0, shape: tuple[int, ...] = (1, 3, 16, 16)) -> torch.Tensor:
    """Something like a picture."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(*shape[:2], 4, 4, generator=generator)
    return F.interpolate(coarse, size=shape[2:], mode="bilinear") - 0.4


def samples(n: int = 4) -> list[tuple[Any, ...]]:
    return [(smooth(i), torch.tensor([i, 1])) for i in range(n)]


BAD = [
    ([], "there is no calibration sample"),
    ([smooth()], r"calibration sample 0 is a Tensor, not a tuple of arguments\n.*write \(x,\)"),
    ([(smooth(),)], "calibration sample 0 has 1 inputs, the model takes 2"),
    (
        [*samples(2), (smooth(0, (1, 3, 16, 8)), EXAMPLE[1])],
        r"calibration sample 2, input 0 \(image\) has the shape \(1, 3, 16, 8\), the model takes \(1, 3, 16, 16\)",
    ),
    (
        [(smooth().double(), EXAMPLE[1])],
        r"input 0 \(image\) has the dtype torch.float64, the model takes torch.float32",
    ),
    ([(smooth(), torch.zeros(2))], r"input 1 \(index\) has the dtype torch.float32, the model takes torch.int64"),
    ([(smooth().numpy(), EXAMPLE[1])], r"input 0 \(image\) is a ndarray, not a torch.Tensor"),
    ([samples(1)[0], (smooth() / 0 * 0, EXAMPLE[1])], r"calibration sample 1, input 0 \(image\) contains NaN"),
    ([(smooth() / 0, EXAMPLE[1])], r"input 0 \(image\) contains infinity"),
]


@pytest.mark.parametrize("data, message", BAD, ids=range(len(BAD)))
def test_bad_samples(data: list[Any], message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        quantize(Net().eval(), EXAMPLE, data)


def test_good_samples_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        quantize(Net().eval(), EXAMPLE, samples())


def test_example_inputs_may_be_left_out() -> None:
    assert quantize(Net().eval(), None, samples())(*samples(1)[0]).shape == (1, 4)
    exported = torch.export.export(Net().eval(), EXAMPLE)
    assert quantize(exported, None, samples())(*samples(1)[0]).shape == (1, 4)
    with pytest.raises(QuantizationError, match="there is no calibration sample"):
        quantize(Net().eval(), None, [])


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    quantize(Net().eval(), EXAMPLE, samples(3), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]

    def stream() -> Iterator[tuple[Any, ...]]:
        yield from samples(2)

    seen.clear()
    assert calibrate(prepared(Net(), EXAMPLE), stream(), progress=lambda done, total: seen.append((done, total))) == 2
    assert seen == [(1, 1), (2, 2)]


def test_a_single_sample() -> None:
    with pytest.warns(CalibrationWarning, match="a single sample"):
        quantize(Net().eval(), EXAMPLE, samples(1))


@pytest.mark.parametrize("make", [torch.randn, torch.rand])
def test_random_noise(make: Any) -> None:
    torch.manual_seed(0)
    data = [(make(1, 3, 16, 16), EXAMPLE[1]) for _ in range(4)]
    with pytest.warns(CalibrationWarning, match="calibration input image looks like random noise"):
        quantize(Net().eval(), EXAMPLE, data)


def _sparse(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand_like(x) < 0.1)


@pytest.mark.parametrize(
    "data",
    [
        [smooth(i) for i in range(4)],
        [smooth(i) + 0.05 * torch.randn(1, 3, 16, 16) for i in range(4)],
        [torch.randn(1, 8) for _ in range(8)],
        [torch.randn(1, 400).cumsum(1) for _ in range(4)],
        [_sparse(torch.randn(1, 3, 16, 16)) for _ in range(4)],
        [torch.zeros(1, 3, 16, 16)] * 4,
        [torch.randint(0, 9, (1, 512)) for _ in range(4)],
        [torch.randint(0, 2, (1, 512)).float() for _ in range(4)],
        [torch.sin(torch.linspace(0, 90, 512) + i)[None] for i in range(4)],
    ],
)
def test_data_that_is_no_noise_or_too_small_to_tell(data: list[torch.Tensor]) -> None:
    assert noise_arguments([(x,) for x in data]) == []


def test_noise_is_found_in_its_argument() -> None:
    torch.manual_seed(1)
    assert noise_arguments([(smooth(i), torch.randn(1, 512)) for i in range(4)]) == [1]


def test_a_tensor_with_one_value() -> None:
    class Dead(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.max_pool2d(F.relu(x - 100), 2)

    with pytest.warns(CalibrationWarning, match=r"relu \(aten.relu.default\) was 0 in every calibration sample"):
        quantize(Dead().eval(), (smooth(),), [(smooth(i),) for i in range(3)])


def test_an_observer_that_nothing_reached() -> None:
    gm = prepared(Function(lambda x: torch.cat([x.exp(), x * 2])), (smooth(),))
    (exp,) = (n for n in gm.graph.nodes if n.name == "exp")
    (observer,) = exp.users
    observer.replace_all_uses_with(exp)
    with pytest.warns(CalibrationWarning, match="was never observed"):
        observer_call = gm.get_submodule(str(observer.target))
        observer_call.forward = lambda x: x  # type: ignore[method-assign]
        gm.recompile()
        calibrate(gm, [(smooth(i),) for i in range(2)])


def test_infinity_inside() -> None:
    with pytest.warns(CalibrationWarning, match="NaN or infinity"):
        q = quantize(Function(lambda x: torch.log(x - x) + x), (smooth(),), [(smooth(i),) for i in range(2)])
    assert all(torch.isfinite(b).all() for b in q.buffers() if b.is_floating_point())
