"""Quantization-aware training."""

from __future__ import annotations

import pytest
import torch
from quant_helpers import targets
from torch import nn

from quant import EthosUQuantizer, convert_pt2e, get_symmetric_quantization_config, prepare_qat_pt2e

X = torch.randn(4, 3, 10, 10)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8, eps=1e-2),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        nn.Dropout(0.2),
        nn.ConvTranspose2d(8, 6, 2, groups=2),
        nn.BatchNorm2d(6),
        nn.Flatten(),
        nn.Linear(6 * 49, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, 4),
    )


def prepared(model: nn.Module, **config: bool) -> torch.fx.GraphModule:
    torch.manual_seed(0)
    quantizer = EthosUQuantizer()
    if config:
        quantizer.set_global(get_symmetric_quantization_config(is_qat=True, **config))
    return prepare_qat_pt2e(torch.export.export(model.train(), (X,)).module(), quantizer)


def train(gm: torch.fx.GraphModule, steps: int = 3) -> list[float]:
    optimizer = torch.optim.SGD(gm.parameters(), lr=0.05)
    target = torch.randint(0, 4, (4,), generator=torch.Generator().manual_seed(0))
    losses = []
    gm.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(gm(X), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_parameters_stay_trainable() -> None:
    """B93: one step of SGD over ``parameters()`` changes every weight."""
    model = net()
    gm = prepared(model)
    names = {name for name, _ in model.named_parameters()}
    assert {name for name, _ in gm.named_parameters()} == names
    before = {name: p.detach().clone() for name, p in gm.named_parameters()}
    train(gm, 1)
    unchanged = {name for name, p in gm.named_parameters() if torch.equal(before[name], p)}
    # a bias in front of a batch norm is subtracted again: it has no gradient but rounding
    assert unchanged <= {"3.bias", "7.bias", "10.bias"}


def test_training_lowers_the_loss() -> None:
    losses = train(prepared(net()), 12)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("is_per_channel", [True, False])
def test_converted_model_computes_what_was_trained(is_per_channel: bool) -> None:
    gm = prepared(net(), is_per_channel=is_per_channel)
    train(gm, 8)
    gm.eval()
    with torch.no_grad():
        for m in gm.modules():
            if hasattr(m, "observer_enabled"):
                m.observer_enabled.zero_()
        expected = gm(X)
    q = convert_pt2e(gm)
    assert targets(q) == [
        "aten.conv2d.default",
        "aten.relu.default",
        "aten.conv2d.default",
        "aten.hardtanh.default" if "aten.hardtanh.default" in targets(q) else "aten.relu6.default",
        "aten.conv_transpose2d.input",
        "aten.flatten.using_ints",
        "aten.linear.default",
        "aten.relu.default",
        "aten.linear.default",
    ]
    step = max(
        n.args[1] for n in q.graph.nodes if n.target is torch.ops.quantized_decomposed.quantize_per_tensor.default
    )
    tolerance = 4 * step if is_per_channel else 20 * step
    assert (q(X) - expected).abs().max() < tolerance
    dtypes = {b.dtype for b in q.buffers()} | {p.dtype for p in q.parameters()}
    assert torch.int32 in dtypes and torch.int8 in dtypes
    float_constants = [
        n.name
        for n in q.graph.nodes
        if n.op == "get_attr" and getattr(q, str(n.target)).is_floating_point() and "scale" not in n.name
    ]
    assert float_constants == []


def test_modes_keep_momentum_and_epsilon() -> None:
    gm = prepared(net())
    norms = [n for n in gm.graph.nodes if n.target is torch.ops.aten.batch_norm.default]
    first = norms[0].args[6:8]
    gm.eval()
    assert [n.args[5] for n in norms] == [False] * 4 and norms[0].args[6:8] == first
    torch.testing.assert_close(gm(X), gm(X))
    gm.train()
    assert [n.args[5] for n in norms] == [True] * 4 and norms[0].args[6:8] == first


def test_the_default_config_becomes_one_for_training() -> None:
    gm = prepared(net())
    assert any(type(m).__name__ == "FusedMovingAvgObsFakeQuantize" for m in gm.modules())


def test_channel_axis_of_transposed_weights() -> None:
    gm = prepared(net())
    axes = {m.ch_axis for m in gm.modules() if type(m).__name__ == "PerChannelFakeQuantize"}
    assert axes == {0, 1}
