"""Configs, filters, boundary, and the numbers in a converted graph."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quant_helpers import Function, annotations, prepared, targets
from torch import fx, nn

from arm_lower.errors import QuantizationError
from quant import EthosUQuantizer, get_symmetric_quantization_config, quantize
from quant.config import QuantizationConfig

pytestmark = pytest.mark.filterwarnings("ignore::quant.CalibrationWarning")
qdq = torch.ops.quantized_decomposed
X = torch.randn(1, 8, 6, 6)
INT8 = get_symmetric_quantization_config()


def uint8_config() -> QuantizationConfig:
    from dataclasses import replace

    spec = replace(INT8.input_activation, dtype=torch.uint8, quant_min=0, quant_max=255)
    return replace(INT8, input_activation=spec, output_activation=spec)


def net() -> nn.Module:
    body = nn.Sequential(OrderedDict(conv1=nn.Conv2d(8, 8, 1), act=nn.ReLU(), conv2=nn.Conv2d(8, 4, 1)))
    return nn.Sequential(OrderedDict(body=body, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(4, 2)))


def constants(gm: fx.GraphModule, target: Any) -> list[tuple[Any, ...]]:
    """Arguments of the ``target`` nodes that read constants, with the constants in place of the nodes."""

    def value(x: fx.Node) -> Any:
        return getattr(gm, str(x.target)) if x.op == "get_attr" else x

    nodes = [n for n in gm.graph.nodes if n.target is target]
    return [fx.map_arg(n.args, value) for n in nodes if n.args[0].op == "get_attr"]


# ---- filters ---------------------------------------------------------------------------------------------


def test_module_name() -> None:
    """B94: a filter acts on the module that it names, and on nothing else."""
    text = annotations(net(), (X,), EthosUQuantizer().set_module_name("body.conv2", None))
    assert text.splitlines() == [
        "conv2d(input_1: q0, body_conv1_weight: w[0], body_conv1_bias: bias) -> -",
        "relu() -> q1",
        "adaptive_avg_pool2d(conv2d_1: q2) -> q2",
        "flatten(adaptive_avg_pool2d: q2) -> q2",
        "linear(flatten: q2, fc_weight: w[0], fc_bias: bias) -> q3",
    ]


def test_only_one_module() -> None:
    quantizer = EthosUQuantizer().set_global(None).set_module_name("body.conv1", INT8)
    assert annotations(net(), (X,), quantizer) == (
        "conv2d(input_1: q0, body_conv1_weight: w[0], body_conv1_bias: bias) -> q1"
    )


def test_the_longest_name_wins_over_the_type_and_the_global_config() -> None:
    per_tensor = get_symmetric_quantization_config(is_per_channel=False)
    quantizer = (
        EthosUQuantizer()
        .set_module_name("body", None)
        .set_module_name("body.conv2", per_tensor)
        .set_module_type(nn.Conv2d, None)
        .set_module_type(nn.Linear, per_tensor)
    )
    assert annotations(net(), (X,), quantizer).splitlines() == [
        "conv2d_1(relu: q0, body_conv2_weight: w, body_conv2_bias: bias) -> q1",
        "adaptive_avg_pool2d(conv2d_1: q1) -> q1",
        "flatten(adaptive_avg_pool2d: q1) -> q1",
        "linear(flatten: q1, fc_weight: w, fc_bias: bias) -> q2",
    ]


def test_module_type_by_name() -> None:
    quantizer = EthosUQuantizer().set_global(None).set_module_type("torch.nn.modules.linear.Linear", INT8)
    assert annotations(net(), (X,), quantizer).startswith("linear(")


@pytest.mark.parametrize(
    "quantizer, message",
    [
        (
            EthosUQuantizer().set_module_name("body.conv_1", None),
            r"set_module_name\('body.conv_1', ...\).*\n.*did you mean .*body.conv1.*found: body, body.act, body.conv1",
        ),
        (
            EthosUQuantizer().set_module_type(nn.LSTM, None),
            r"set_module_type\('torch.nn.modules.rnn.LSTM', ...\).*\n.*torch.nn.modules.conv.Conv2d",
        ),
    ],
)
def test_a_filter_that_matches_nothing(quantizer: EthosUQuantizer, message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        prepared(net(), (X,), quantizer)


def test_training_and_inference_configs_do_not_mix() -> None:
    quantizer = EthosUQuantizer().set_module_type(nn.Linear, get_symmetric_quantization_config(is_qat=True))
    with pytest.raises(QuantizationError, match="mixes configs"):
        prepared(net(), (X,), quantizer)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"is_dynamic": True}, "every scale at compile time"),
        ({"act_qmin": -129}, "act_qmin/act_qmax = -129, 127"),
        ({"weight_qmin": 5, "weight_qmax": 5}, "weight_qmin/weight_qmax = 5, 5"),
    ],
)
def test_bad_configs(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        get_symmetric_quantization_config(**arguments)


# ---- boundary --------------------------------------------------------------------------------------------


def test_boundary_of_another_number_format_stays_at_the_boundary() -> None:
    """B49: a uint8 input does not make the inside uint8."""
    module = Function(lambda x: F.max_pool2d(x.permute(0, 2, 3, 1), 2).exp())
    assert annotations(module, (X,), EthosUQuantizer().set_io(uint8_config())).splitlines() == [
        "x() -> q0:uint8",
        "permute(x: q1) -> q1",
        "max_pool2d(permute: q1) -> q1",
        "exp(max_pool2d: q1) -> q2",
        "output(exp: q3:uint8) -> -",
    ]


def test_int8_boundary_is_the_inside_itself() -> None:
    module = Function(lambda x: x.exp())
    assert annotations(module, (X,), EthosUQuantizer().set_io(INT8)).splitlines() == [
        "x() -> q0",
        "exp(x: q0) -> q1",
        "output(exp: q1) -> -",
    ]
    assert annotations(module, (X,), EthosUQuantizer().set_io(None)) == "exp(x: q0) -> q1"


def test_boundary_of_float_operators_is_quantized_only_if_asked() -> None:
    module = Function(lambda x: F.layer_norm(x, [6]))
    assert annotations(module, (X,)) == ""
    assert annotations(module, (X,), EthosUQuantizer().set_io(INT8)).splitlines() == [
        "x() -> q0",
        "output(layer_norm: q1) -> -",
    ]


def test_both_boundary_formats_convert() -> None:
    for config in (uint8_config(), INT8):
        q = quantize(net().eval(), (X,), [(X,), (2 * X,)], EthosUQuantizer().set_io(config))
        torch.testing.assert_close(q(X), q(X))
        assert targets(q)


# ---- numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module, x, axis, scales",
    [
        (nn.Conv2d(8, 6, 3), X, 0, 6),
        (nn.Conv2d(8, 16, 3, groups=8), X, 0, 16),
        (nn.Conv1d(8, 5, 3), torch.randn(1, 8, 9), 0, 5),
        (nn.Linear(6, 7), X, 0, 7),
        (nn.ConvTranspose2d(8, 6, 2), X, 1, 6),
        (nn.ConvTranspose2d(8, 6, 2, groups=2), X, 1, 3),
        (nn.ConvTranspose2d(8, 16, 2, groups=8), X, 0, 8),
    ],
)
def test_per_channel_weights_and_bias(module: nn.Module, x: torch.Tensor, axis: int, scales: int) -> None:
    """B69, and the bias: int32, scale = input scale * weight scale, zero point 0, per output channel."""
    module.eval()
    q = quantize(module, (x,), [(x,), (x / 2,)])
    weight, bias = constants(q, qdq.dequantize_per_channel.default)
    if bias[0].dtype is torch.int8:
        weight, bias = bias, weight
    assert weight[0].dtype is torch.int8 and bias[0].dtype is torch.int32
    assert (weight[0].min() >= -127) and weight[1].shape == (scales,) and not weight[2].any() and weight[3] == axis
    (input_scale,) = {
        n.args[1]
        for n in q.graph.nodes
        if n.target is qdq.quantize_per_tensor.default and n.args[0].op == "placeholder"
    }
    channels = module.bias.numel()  # type: ignore[union-attr,operator]
    per_output = weight[1].repeat_interleave(channels // scales) if axis == 0 else weight[1].repeat(channels // scales)
    torch.testing.assert_close(bias[1], per_output * input_scale)
    assert not bias[2].any() and bias[3] == 0
    real = bias[0].double() * bias[1].double()
    torch.testing.assert_close(real, module.bias.detach().double(), rtol=0, atol=float(bias[1].max()))  # type: ignore[union-attr,operator]
    error = (q(x) - module(x)).abs().max()
    assert error < 0.05 * module(x).abs().max()


def test_per_tensor_weights() -> None:
    module = nn.Conv2d(8, 6, 3).eval()
    config = get_symmetric_quantization_config(is_per_channel=False)
    q = quantize(module, (X,), [(X,), (X / 2,)], EthosUQuantizer().set_global(config))
    weight, bias = constants(q, qdq.dequantize_per_tensor.default)
    assert {weight[0].dtype, bias[0].dtype} == {torch.int8, torch.int32}


def test_prelu_slopes_are_exact() -> None:
    module = nn.PReLU(8).eval()
    nn.init.uniform_(module.weight, -0.5, 1.5)
    q = quantize(module, (X,), [(X,), (X,)])
    ((integers, scale, *_),) = constants(q, qdq.dequantize_per_channel.default)
    assert set(integers.abs().tolist()) == {127}
    torch.testing.assert_close(integers * scale, module.weight.detach())


@pytest.mark.parametrize(("stride", "readers", "wide"), [(2, 1, True), (1, 1, False), (2, 2, False)])
def test_prelu_reads_16_bits_where_they_cost_no_memory(stride: int, readers: int, wide: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1, stride)
            self.prelu = nn.PReLU(8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.second(self.first(x))
            return (self.prelu(y), y)[:readers]

    q = quantize(Net().eval(), (X,), [(X,), (X / 2,)])
    kinds = {n.args[-1] for n in q.graph.nodes if n.target is qdq.quantize_per_tensor.default}
    assert kinds == ({torch.int8, torch.int16} if wide else {torch.int8})


def test_a_large_bias_of_a_dead_channel_fits_into_int32() -> None:
    """A channel with weights near zero would have a scale on which its bias needs more than 32 bits."""
    module = nn.Conv2d(8, 4, 1).eval()
    with torch.no_grad():
        module.weight[1] = 1e-9
        module.bias[1] = 3.0  # type: ignore[index]
    q = quantize(module, (X,), [(X,), (X,)])
    torch.testing.assert_close(q(X)[:, 1], module(X)[:, 1], rtol=0.02, atol=0.02)


def test_a_weight_of_zeros() -> None:
    module = nn.Conv2d(8, 4, 1).eval()
    with torch.no_grad():
        module.weight.zero_()
    q = quantize(module, (X,), [(X,), (X,)])
    torch.testing.assert_close(q(X), module(X), rtol=0.02, atol=0.02)


def test_softmax_of_equal_logits() -> None:
    """B63: a quarter for each of four, within one step."""
    x = torch.zeros(5, 4)
    module = Function(lambda x: torch.softmax(x, 1))
    q = quantize(module, (x,), [(torch.randn(5, 4),), (torch.randn(5, 4),)])
    assert (q(x) - 0.25).abs().max() <= 1 / 256


@pytest.mark.parametrize("x", [torch.full((2, 8), 3.0), torch.full((2, 8), -3.0), torch.zeros(2, 8)])
def test_constant_activations_convert(x: torch.Tensor) -> None:
    with pytest.warns(UserWarning, match="in every calibration sample"):
        q = quantize(Function(lambda x: x * 2), (x,), [(x,), (x,)])
    torch.testing.assert_close(q(x), 2 * x, rtol=0.02, atol=1e-6)
