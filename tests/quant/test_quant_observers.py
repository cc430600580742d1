"""The choice of ranges."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from quant.observers import BINS, PerChannelWeightObserver, RangeObserver


def observed(*samples: torch.Tensor) -> RangeObserver:
    observer = RangeObserver(torch.int8, quant_min=-128, quant_max=127)
    for sample in samples:
        assert observer(sample) is sample
    return observer


def fake(observer: RangeObserver, x: torch.Tensor) -> torch.Tensor:
    scale, zero_point = observer.calculate_qparams()
    return torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero_point), -128, 127)


def error(observer: RangeObserver, x: torch.Tensor) -> float:
    return float(((fake(observer, x) - x) ** 2).mean())


def test_range_contains_zero_and_zero_is_exact() -> None:
    for samples in (torch.rand(8, 100) + 3, -torch.rand(8, 100) - 3, torch.randn(8, 100)):
        observer = observed(*samples)
        low, high = observer.range()
        assert low <= 0 <= high
        assert float(fake(observer, torch.zeros(1))) == 0.0


def test_equal_samples_need_little_head_room() -> None:
    x = torch.linspace(0, 1, 4096)
    low, high = observed(*[x] * 64).range()
    assert low == 0 and 0.95 <= high <= 1.05


def test_few_and_different_samples_get_head_room() -> None:
    torch.manual_seed(0)
    samples = [torch.rand(64) * (0.5 + torch.rand(1)) for _ in range(8)]
    few = observed(*samples)
    assert few.range()[1] > few.max_val
    many = observed(*samples, *[torch.rand(64) * (0.5 + torch.rand(1)) for _ in range(500)])
    assert many.range()[1] / many.max_val < few.range()[1] / few.max_val


def test_a_lone_outlier_in_a_large_tensor_is_cut_off() -> None:
    torch.manual_seed(0)
    samples = [torch.randn(400000).abs() for _ in range(16)]
    samples[3][7] = 60.0
    observer = observed(*samples)
    assert observer.range()[1] < 20
    assert error(observer, torch.randn(40000).abs()) < 0.2 * (60 / 255) ** 2 / 12


def test_more_data_is_not_worse() -> None:
    """A histogram observer that re-bins with interpolation gets worse with more calibration data."""
    torch.manual_seed(0)

    def draw() -> torch.Tensor:
        return torch.randn(512) * torch.rand(1).exp()

    unseen = torch.cat([draw() for _ in range(200)])
    few = [draw() for _ in range(8)]
    many = few + [draw() for _ in range(120)]
    assert error(observed(*many), unseen) <= 1.05 * error(observed(*few), unseen)


def test_error_counts_behind_the_functions_that_read_the_tensor() -> None:
    torch.manual_seed(0)
    samples = [torch.randn(4096) * 4 for _ in range(8)]
    plain, weighed = observed(*samples), observed(*samples)
    weighed.functions = (F.hardswish,)
    assert weighed.range()[0] > -5 > plain.range()[0]
    x = torch.randn(20000) * 4
    assert ((F.hardswish(fake(weighed, x)) - F.hardswish(x)) ** 2).mean() < (
        (F.hardswish(fake(plain, x)) - F.hardswish(x)) ** 2
    ).mean()


def test_histogram_merges_exactly_when_it_widens() -> None:
    observer = observed(torch.full((10,), 0.3), torch.full((5,), 100.0), torch.full((3,), -1000.0))
    assert float(observer._counts.sum()) == 18
    width = 2 * observer._bound / BINS
    centres = (torch.arange(BINS) + 0.5) * width - observer._bound
    for value, count in ((0.3, 10), (100.0, 5), (-1000.0, 3)):
        assert float(observer._counts[:, (centres - value).abs() <= width].sum()) == count
    assert float(observed(torch.full((4,), 1e-30), torch.full((4,), 1e30))._counts.sum()) == 8


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_ignored(bad: float) -> None:
    observer = observed(torch.tensor([0.0, 1.0, bad]), torch.tensor([bad]))
    assert observer.non_finite and (observer.min_val, observer.max_val) == (0.0, 1.0)
    assert torch.isfinite(observer.calculate_qparams()[0]).all()


def test_nothing_seen() -> None:
    scale, zero_point = observed().calculate_qparams()
    assert (float(scale), int(zero_point)) == (1.0, 0)
    assert observed(torch.zeros(0)).samples == 0


def test_places_of_one_run_are_one_sample() -> None:
    observer = RangeObserver(torch.int8, quant_min=-128, quant_max=127)
    observer.places = 3
    for _ in range(6):
        observer(torch.rand(4))
    assert observer.samples == 2 and len(observer._highs) == 2


def test_observers_copy() -> None:
    observer = observed(torch.rand(10))
    assert copy.deepcopy(observer).calculate_qparams() == observer.calculate_qparams()


def test_weights() -> None:
    w = torch.tensor([[1.0, -4.0], [0.0, 0.0], [0.5, 0.25]])
    observer = PerChannelWeightObserver(0, quant_min=-127, quant_max=127)
    observer(w)
    scale, zero_point = observer.calculate_qparams()
    torch.testing.assert_close(scale, torch.tensor([4.0, 4.0, 0.5]) / 127)
    assert not zero_point.any()
    by_column = PerChannelWeightObserver(1, quant_min=-127, quant_max=127)
    by_column(w)
    torch.testing.assert_close(by_column.calculate_qparams()[0], torch.tensor([1.0, 4.0]) / 127)
    line = PerChannelWeightObserver(0, quant_min=-127, quant_max=127)
    line(torch.tensor([2.0, -3.0]))
    torch.testing.assert_close(line.calculate_qparams()[0], torch.tensor([2.0, 3.0]) / 127)
