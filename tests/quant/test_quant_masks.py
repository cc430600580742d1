"""Attention masks: numbers that are so low that a softmax makes them 0 do not spoil the range of the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import arm_lower
from fvp.ethosu.delegate import run_delegate
from quant import quantize
from tosa_ref.compare import sqnr_db
from tosa_ref.host import Host

LEAST = torch.finfo(torch.float32).min
CAUSAL = torch.ones(6, 6).triu(1)
MASKS = {"-100": -100.0, "-1e4": -1e4, "-1e9": -1e9, "least": LEAST, "inf": -math.inf}


class Scores(nn.Module):
    def __init__(self, mask: Callable[..., Tensor], *buffers: Tensor) -> None:
        super().__init__()
        self.linear, self.mask = nn.Linear(16, 6), mask
        self.register_buffer("fixed", torch.zeros(6, 6))

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return self.mask(self.linear(x) * 3, self.fixed, *more).softmax(-1)


def additive(value: float) -> Tensor:
    return torch.zeros(6, 6).masked_fill(CAUSAL.bool(), value)


def samples(*kinds: str) -> list[tuple[Tensor, ...]]:
    torch.manual_seed(2)

    def allowed() -> Tensor:
        chosen = (torch.rand(1, 1, 6) > 0.3).float()
        chosen[..., 0] = 1  # a row without any would be noise
        return chosen

    return [(torch.randn(1, 6, 16), *(allowed() for _ in kinds)) for _ in range(8)]


def near(model: nn.Module, data: list[tuple[Tensor, ...]], least_db: float = 28) -> None:
    torch.manual_seed(1)
    compiled = arm_lower.compile(model.eval(), data, "ethos-u55-128")
    host = Host(compiled.buffer, delegate_runner=run_delegate)
    with torch.no_grad():
        for sample in data:
            assert sqnr_db(model(*sample).numpy(), host.run([x.numpy() for x in sample])[0]) > least_db


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("how", ["added", "added twice", "masked_fill", "where"])
def test_fixed_mask(how: str, name: str) -> None:
    value = MASKS[name]
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "added": lambda scores, mask: scores + mask,
        "added twice": lambda scores, mask: scores + mask + mask,
        "masked_fill": lambda scores, mask: scores.masked_fill(mask < 0, value),
        "where": lambda scores, mask: torch.where(mask == 0, scores, torch.tensor(value)),
    }
    torch.manual_seed(0)
    model = Scores(ways[how])
    model.fixed.copy_(additive(value))
    near(model, samples())


@pytest.mark.parametrize("value", [-1e4, -1e9])
def test_mask_of_an_input(value: float) -> None:
    torch.manual_seed(0)
    near(Scores(lambda scores, fixed, allowed: scores + (1.0 - allowed) * value), samples("allowed"))
    with_values = [(x, (1 - allowed) * value) for x, allowed in samples("allowed")]
    near(Scores(lambda scores, fixed, mask: scores + mask), with_values)


def test_causal_and_padding_mask() -> None:
    torch.manual_seed(0)
    model = Scores(lambda scores, fixed, allowed: scores + fixed + (1.0 - allowed) * -1e4)
    model.fixed.copy_(additive(LEAST))
    near(model, samples("allowed"))


class Attention(nn.Module):
    """Heads as most transformers write them, with a mask in the buffers that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.register_buffer("mask", additive(LEAST)[None, None])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            q, k, v = layer(x).view(1, 6, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
            weights = (q @ k.transpose(2, 3) * 0.5 + self.mask).softmax(-1)
            x = x + (weights @ v).transpose(1, 2).reshape(1, 6, 16)
        return x


def test_attention() -> None:
    torch.manual_seed(0)
    near(Attention(), samples())


def softmax_range(values: Tensor) -> tuple[float, float]:
    """Range of a softmax's input that has these values."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1)

    quantized: Any = quantize(Model(), (values,), [(values,), (values * 0.9,)])
    node = next(n for n in quantized.graph.nodes if "quantize_per_tensor" in str(n.target))
    scale, zero = float(node.args[1]), int(node.args[2])
    return (-128 - zero) * scale, (127 - zero) * scale


def test_what_is_no_mask_keeps_its_range() -> None:
    """Wide logits without a gap; a row that is low as a whole; numbers that are low but not low enough."""
    sure = torch.tensor([[60.0, -1, 2, -3]])
    for values in (torch.linspace(-120, 10, 64)[None], torch.tensor([[-25.0, -26, -27], [5.0, 4, 3]]), sure):
        low, high = softmax_range(values)
        assert low < 0.9 * float(values.min()) and high > 0.8 * float(values.max())


def test_margin() -> None:
    """Masked numbers become the lowest one, which is half a step of a softmax of them all below the others."""
    low, _ = softmax_range(torch.tensor([[3.0, 1.0, -2.0, -1e9]]))
    assert low == pytest.approx(-2.0 - math.log(512 * 4), rel=0.01)


def test_other_readers_see_the_numbers() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x * 2
            return y.softmax(-1), y

    x = torch.tensor([[1.0, 2.0, -300.0]])
    quantized = quantize(Model(), (x,), [(x,), (x * 0.9,)])
    assert float(quantized(x)[1][0, 2]) < -500
