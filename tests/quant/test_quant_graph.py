"""Rewrites before annotation keep what the model computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quant_helpers import Function, targets
from torch import fx, nn

from arm_lower.errors import QuantizationError
from quant import EthosUQuantizer, convert_pt2e, prepare_pt2e, quantize
from quant.graph import normalize


def randomized(module: nn.Module) -> nn.Module:
    """Batch norms with statistics that matter."""
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            if m.affine:
                nn.init.uniform_(m.weight, -1.5, 1.5)
                nn.init.normal_(m.bias)
            nn.init.normal_(m.running_mean)
            nn.init.uniform_(m.running_var, 0.3, 3.0)
    return module.eval()


def normalized(module: nn.Module, inputs: tuple[Any, ...]) -> fx.GraphModule:
    gm = torch.export.export(module.eval(), inputs).module()
    assert isinstance(gm, fx.GraphModule)
    return normalize(gm, is_qat=False)


class SharedConv(nn.Module):
    """One convolution, two batch norms behind two uses of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.first, self.second = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.conv(F.relu(self.first(self.conv(x)))))


class ReadTwice(nn.Module):
    """The convolution's result is read beside the batch norm: it must not be folded into."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.norm(y) - y


IMAGE, LINE, ROWS = torch.randn(2, 4, 6, 6), torch.randn(2, 4, 9), torch.randn(3, 4)


@pytest.mark.parametrize(
    "module, x, operators",
    [
        (nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)), IMAGE, ["aten.conv2d.default"]),
        (nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)), IMAGE, ["aten.conv2d.default"]),
        (nn.Sequential(nn.Conv2d(4, 6, 3, padding="same"), nn.BatchNorm2d(6)), IMAGE, ["aten.conv2d.padding"]),
        (nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6, eps=0.1)), LINE, ["aten.conv1d.default"]),
        (nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6)), IMAGE, ["aten.conv_transpose2d.input"]),
        (
            nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)),
            IMAGE,
            ["aten.conv_transpose2d.input"],
        ),
        (nn.Sequential(nn.ConvTranspose1d(4, 6, 3), nn.BatchNorm1d(6)), LINE, ["aten.conv_transpose1d.default"]),
        (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), ROWS, ["aten.linear.default"]),
        (nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6, affine=False)), ROWS, ["aten.linear.default"]),
        (nn.Sequential(nn.Linear(9, 6), nn.BatchNorm1d(4)), LINE, ["aten.linear.default", "aten.conv1d.default"]),
        (nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)), IMAGE, ["aten.conv2d.default"] * 2),
        (
            nn.Sequential(nn.BatchNorm1d(4)),
            ROWS,
            ["aten.reshape.default", "aten.conv1d.default", "aten.reshape.default"],
        ),
        (SharedConv(), IMAGE, ["aten.conv2d.default", "aten.relu.default", "aten.conv2d.default"]),
        (ReadTwice(), IMAGE, ["aten.conv2d.default", "aten.conv2d.default", "aten.sub.Tensor"]),
    ],
)
def test_batch_norms_fold(module: nn.Module, x: torch.Tensor, operators: list[str]) -> None:
    randomized(module)
    gm = normalized(module, (x,))
    assert targets(gm) == operators
    torch.testing.assert_close(gm(x), module(x), rtol=1e-4, atol=1e-4)


def test_the_model_is_not_changed() -> None:
    module = randomized(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True)))
    before = {k: v.clone() for k, v in module.state_dict().items()}
    exported = torch.export.export(module, (IMAGE,))
    expected = exported.module()(IMAGE)
    quantize(exported, (IMAGE,), [(IMAGE,), (IMAGE + 1,)])
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    torch.testing.assert_close(exported.module()(IMAGE), expected)


def _aliased(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    view = y.view(-1)
    y.relu_()
    return view.sum() + y.sum()


def _overwritten_slice(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0].mul_(3.0)
    return y + 1


def _old_value_read_before(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y.exp()
    return y.add_(1.0) + z


@pytest.mark.parametrize("function", [_aliased, _overwritten_slice, _old_value_read_before])
def test_inplace_operators(function: Any) -> None:
    module = Function(function)
    gm = normalized(module, (IMAGE,))
    assert not any(t.split(".")[1].endswith("_") for t in targets(gm))
    torch.testing.assert_close(gm(IMAGE), module(IMAGE))


def test_change_of_an_input_is_not_written_back() -> None:
    gm = normalized(Function(lambda x: x.add_(1.0) * 2), (IMAGE.clone(),))
    assert targets(gm) == ["aten.add.Tensor", "aten.mul.Tensor"]
    before = IMAGE.clone()
    torch.testing.assert_close(gm(IMAGE), (before + 1) * 2)
    assert torch.equal(IMAGE, before)


def test_constants_fold() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x)

    module = Net().eval()
    gm = normalized(module, (IMAGE,))
    assert targets(gm) == ["aten.conv2d.default"]
    torch.testing.assert_close(gm(IMAGE), module(IMAGE))


def test_large_expansions_do_not_fold() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.p.expand(1 << 23)

    assert "aten.expand.default" in targets(normalized(Net(), (torch.zeros(1 << 23),)))


def test_tensors_by_keyword_are_made_positional() -> None:
    module = Function(lambda x, y: torch.add(input=x, other=y))
    q = quantize(module, (IMAGE, IMAGE + 1), [(IMAGE, IMAGE + 1)] * 2)
    assert "aten.add.Tensor" in targets(q)


@pytest.mark.parametrize("how", ["module()", "module(check_guards=False)", "program", "torchao"])
def test_any_way_to_export(how: str) -> None:
    """B-peer 2: the guards that torch puts into ``.module()`` do not get into the user's way."""
    exported = torch.export.export(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()).eval(), (IMAGE,))
    source = {"module()": exported.module, "module(check_guards=False)": lambda: exported.module(check_guards=False)}
    model = source[how]() if how in source else exported
    if how == "torchao":
        from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e as prepare

        prepared = prepare(exported.module(), EthosUQuantizer())
    else:
        prepared = prepare_pt2e(model, EthosUQuantizer())
    prepared(IMAGE)
    q = convert_pt2e(prepared)
    assert targets(q) == ["aten.conv2d.default", "aten.relu.default"]
    assert all(n.op != "call_module" for n in q.graph.nodes)


def test_one_dequantize_for_each_quantized_tensor() -> None:
    q = quantize(Function(lambda x: (x.exp() + x, x * 2, x.abs())), (IMAGE,), [(IMAGE,), (IMAGE,)])
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
    sources = [n.args[0] for n in q.graph.nodes if n.target is dequantize]
    assert len(sources) == len(set(sources))


@pytest.mark.parametrize(
    "module, name", [(nn.Sequential(nn.Dropout(0.5)), "dropout"), (nn.BatchNorm2d(4), "batch_norm")]
)
def test_a_model_in_training_mode_is_refused(module: nn.Module, name: str) -> None:
    exported = torch.export.export(module.train(), (IMAGE,))
    with pytest.raises(QuantizationError, match=f"{name}.*training mode.*\n.*model.eval"):
        prepare_pt2e(exported, EthosUQuantizer())


def test_something_that_is_no_exported_model_is_refused() -> None:
    with pytest.raises(QuantizationError, match="Linear is no exported model"):
        prepare_pt2e(nn.Linear(2, 2), EthosUQuantizer())  # type: ignore[arg-type]
    with pytest.raises(QuantizationError, match="needs a prepared GraphModule"):
        convert_pt2e(nn.Linear(2, 2))  # type: ignore[arg-type]
