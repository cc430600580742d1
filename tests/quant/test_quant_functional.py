"""Models that change tensors in place, through views too, and buffers, are quantized as what they compute."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from quant_helpers import Function
from torch import Tensor, nn

import arm_lower
from arm_lower.edge.functionalize import NotFunctional, writes
from fvp.ethosu.delegate import run_delegate
from quant import EthosUQuantizer, convert_pt2e, prepare_pt2e, quantize
from quant.graph import make_functional, normalize
from tosa_ref.compare import sqnr_db
from tosa_ref.host import Host

SHAPE = (2, 4, 6)


def changes(gm: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in gm.graph.nodes if writes(n)]


# ---- what cannot be expressed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["diagonal", "unfold", "as_strided"])
def test_unknown_views_are_left_to_torch(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        view = {"diagonal": lambda: y.diagonal(0, 1, 2), "unfold": lambda: y.unfold(2, 2, 2),
                "as_strided": lambda: y.as_strided((4, 2), (1, 4))}[name]()  # fmt: skip
        view.add_(1.0)
        return y * 3

    x = torch.linspace(-1, 1, 48).reshape(SHAPE)
    gm = torch.export.export(Function(function), (x,)).module()
    before = changes(gm)
    with pytest.raises(NotFunctional, match="a change through"):
        make_functional(gm)
    assert changes(gm) == before  # as it was
    again = normalize(gm, is_qat=False)
    assert not changes(again)
    torch.testing.assert_close(again(x), function(x))
    quantized = quantize(Function(function), (x,), [(x,), (-x,)])
    assert sqnr_db(function(x).numpy(), quantized(x).numpy()) > 30


# ---- through quantization and compilation --------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.conv, self.change = nn.Conv2d(2, 8, 3), change

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        self.change(y)
        return y.sigmoid()


def _swap(y: Tensor) -> None:
    y[:, :4] = y[:, 4:]


def _set(y: Tensor) -> None:
    y[:, :4] = 0.0


def _scale(y: Tensor) -> None:
    y[:, 2:5] *= 2.0


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "set": _set, "scale": _scale, "swap": _swap, "relu": lambda y: torch.relu_(y[:, 2:5]),
    "transposed": lambda y: y.transpose(1, 2).add_(1.0), "flat": lambda y: y.view(1, -1).mul_(-1.0),
    "row": lambda y: y[:, :, 3].copy_(y[:, :, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_a_part(name: str) -> None:
    torch.manual_seed(0)
    model = Layer(CHANGES[name]).eval()
    samples = [(torch.randn(1, 2, 8, 8),) for _ in range(4)]
    compiled = arm_lower.compile(model, samples, "ethos-u55-128")
    host = Host(compiled.buffer, delegate_runner=run_delegate)
    assert len(compiled.delegates) == 1 and not compiled.report.cpu_ops
    for sample in samples:
        with torch.no_grad():
            assert sqnr_db(model(*sample).numpy(), host.run([sample[0].numpy()])[0]) > 30


class Stateful(nn.Module):
    """``update`` changes ``state``, the output is read after that."""

    def __init__(self, update: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.linear, self.update = nn.Linear(8, 8), update
        self.register_buffer("state", torch.zeros(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.update(self, y)
        return y + self.state


def _assign(m: nn.Module, y: Tensor) -> None:
    m.state = m.state * 0.5 + y


def _decay(m: nn.Module, y: Tensor) -> None:
    m.state.mul_(0.5).add_(y)


def _part(m: nn.Module, y: Tensor) -> None:
    m.state[:, :4] = y[:, :4]


def _shift(m: nn.Module, y: Tensor) -> None:
    m.state.copy_(torch.cat([m.state[:, 4:], y[:, :4]], 1))


def _count(m: nn.Module, y: Tensor) -> None:
    m.state += 1


UPDATES: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "assign": _assign, "decay": _decay, "part": _part, "shift": _shift, "count": _count,
    "copy": lambda m, y: m.state.copy_(m.state * 0.5 + y), "add": lambda m, y: m.state.add_(1.0),
    "fill": lambda m, y: m.state.fill_(2.0),
}  # fmt: skip


class Delayed(Stateful):
    """The output is read before the change, which does not depend on an input: folding must not run it."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) + self.state
        self.state.fill_(2.0)
        return y


@pytest.mark.parametrize("kind", ["buffer", "parameter"])
@pytest.mark.parametrize("change", ["w.add_(x[0])", "w[2:6].mul_(0.5)", "w.view(2, 4)[0].copy_(x[0, :4])"])
def test_the_users_state_is_kept(kind: str, change: str) -> None:
    """Whatever the model writes to, and through whichever views: calibration changes neither it nor the result's."""

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            w = torch.ones(8)
            if kind == "buffer":
                self.register_buffer("w", w)
            else:
                self.w = nn.Parameter(w, requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            eval(change, {"w": self.w, "x": x})
            return self.w * x

    model = Writing().eval()
    samples = [(torch.linspace(0, 1 + i, 8)[None],) for i in range(4)]
    q = quantize(model, samples[0], samples)
    assert torch.equal(model.w, torch.ones(8))
    tensors = {**dict(q.named_parameters()), **dict(q.named_buffers())}
    assert torch.equal(tensors["w"], torch.ones(8))


def test_initial_state_is_kept() -> None:
    torch.manual_seed(0)
    model = Delayed(_assign).eval()
    samples = [(torch.randn(1, 8),) for _ in range(4)]
    host = Host(arm_lower.compile(copy.deepcopy(model), samples, "ethos-u55-128").buffer, delegate_runner=run_delegate)
    with torch.no_grad():
        for sample in samples:
            assert float((model(*sample) - torch.as_tensor(host.run([sample[0].numpy()])[0])).abs().max()) < 0.05


PATHS = ("compile", "ours", "torchao")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", UPDATES)
def test_state_between_calls(name: str, path: str) -> None:
    """As a whole, and with prepare and convert of this package and of torchao."""
    torch.manual_seed(0)
    model = Stateful(UPDATES[name]).eval()
    samples = [(torch.randn(1, 8),) for _ in range(6)]
    source = copy.deepcopy(model)
    if path == "compile":
        program = arm_lower.compile(source, samples, "ethos-u55-128").buffer
    else:
        gm = torch.export.export(source, samples[0]).module()
        if path == "ours":
            prepared = prepare_pt2e(gm, EthosUQuantizer("ethos-u55-128"))
        else:
            from torchao.quantization.pt2e import quantize_pt2e as torchao

            prepared = torchao.prepare_pt2e(gm, EthosUQuantizer("ethos-u55-128"))
        state = prepared.state.clone()
        for sample in samples:
            prepared(*sample)
        prepared.state.copy_(state)
        converted = convert_pt2e(prepared) if path == "ours" else torchao.convert_pt2e(prepared)
        if path == "torchao":
            converted.state.copy_(state)  # torchao's folding runs what it folds
        program = arm_lower.compile(converted, None, "ethos-u55-128", example_inputs=samples[0]).buffer
    host = Host(program, delegate_runner=run_delegate)
    with torch.no_grad():
        for sample in samples:
            want, got = model(*sample).numpy(), host.run([sample[0].numpy()])[0]
            assert float(np.abs(want - got).max()) < 0.03 * float(np.abs(want).max()) + 0.05
