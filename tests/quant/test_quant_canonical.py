"""Other names and small compositions of annotated operators are quantized, and go to the NPU, as these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowering
import pytest
import torch
from torch import Tensor, fx, nn

from quant.annotate import RULES
from quant.canonical import write_canonical

MAP = (1, 8, 6, 10)

NAMES: dict[str, Callable[[Tensor], Any]] = {
    "clip": lambda x: x.clip(-0.5, 0.5),
    "absolute": torch.absolute,
    "negative": torch.negative,
    "multiply": lambda x: torch.multiply(x, x.relu()),
    "subtract": lambda x: torch.subtract(x, x.relu()),
    "true_divide": lambda x: torch.true_divide(x, 3.0),
    "expit": torch.special.expit,
    "addcmul": lambda x: torch.addcmul(x, x, x.relu(), value=0.5),
    "float": lambda x: x.float(),
    "type_as": lambda x: x.type_as(x.relu()),
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "movedim": lambda x: x.movedim(1, -1),
    "moveaxis": lambda x: torch.moveaxis(x, (1, 2), (2, 3)),
    "mT": lambda x: x.mT,
    "adjoint": lambda x: x.adjoint(),
    "expand_as": lambda x: x[:, :1].expand_as(x),
    "tile": lambda x: x.tile(1, 2, 1, 1),
    "hstack": lambda x: torch.hstack([x, x.relu()]),
    "dstack": lambda x: torch.dstack([x, x.relu()]),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 2),
    "rot90": lambda x: x.rot90(1, (2, 3)),
    "maximum_values": lambda x: x.max(1)[0],
    "minimum_values": lambda x: x.min(dim=3, keepdim=True).values,
}


class Between(nn.Module):
    """A function behind a convolution, with a sigmoid behind it."""

    def __init__(self, fn: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.conv, self.fn = nn.Conv2d(8, 8, 1), fn

    def forward(self, x: Tensor) -> Any:
        y = self.fn(self.conv(x))
        return torch.sigmoid(y) if isinstance(y, Tensor) else y


def exported(module: nn.Module, *args: Tensor) -> fx.GraphModule:
    module = torch.export.export(module.eval(), args).module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    return module


def calls(gm: fx.GraphModule) -> list[str]:
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function" and "assert" not in str(n.target)]


@pytest.mark.parametrize("name", NAMES)
def test_one_delegate(name: str) -> None:
    torch.manual_seed(0)
    lowering.check(Between(NAMES[name]), lowering.samples(MAP), "ethos-u55-128", 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_function_of_annotated_operators(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(MAP)
    gm = exported(Between(NAMES[name]), x)
    want = gm(x)
    write_canonical(gm, RULES)
    gm.graph.lint()
    gm.recompile()
    torch.testing.assert_close(gm(x), want, rtol=1e-6, atol=1e-6)  # a product and a sum round once more than addcmul
    assert all(n.target in RULES for n in gm.graph.nodes if str(n.target) in calls(gm))
    assert all("val" in n.meta and "nn_module_stack" in n.meta for n in gm.graph.nodes if str(n.target) in calls(gm))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.max(1),  # the indices are read
        lambda x: x.cumsum(1),
        lambda x: torch.logsumexp(x, 1),
        lambda x: x.std(1),
        lambda x: torch.where(x > 0, x, 0.1 * x),
        lambda x: x.sort(1)[0],
    ],
)
def test_others_stay(fn: Callable[[Tensor], Any]) -> None:
    gm = exported(Between(fn), torch.randn(MAP))
    before = calls(gm)
    write_canonical(gm, RULES)
    assert calls(gm) == before


@pytest.mark.parametrize("layer", [nn.LSTM(8, 8), nn.GRU(8, 8), nn.RNN(8, 8), nn.RMSNorm(8), nn.LayerNorm(8)])
def test_recurrent_layers_and_norms_stay(layer: nn.Module) -> None:
    gm = exported(layer, torch.randn(5, 1, 8))
    before = calls(gm)
    write_canonical(gm, RULES)
    assert calls(gm) == before


def test_the_input_itself_is_the_result() -> None:
    x = torch.randn(MAP)
    gm = exported(nn.Identity(), x)
    gm.graph.lint()

    class Float(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.float(), x.clip(0, 1)

    gm = exported(Float(), x)
    write_canonical(gm, RULES)
    gm.recompile()
    first, second = gm(x)
    assert torch.equal(first, x) and torch.equal(second, x.clip(0, 1))
