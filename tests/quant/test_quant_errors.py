"""What newcomers get wrong is said clearly: a QuantizationError with a hint, at the call where it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from arm_lower.errors import ArmLowerError, QuantizationError
from arm_lower.spec import EthosUCompileSpec
from quant import (
    EthosUQuantizer,
    calibrate,
    convert_pt2e,
    get_symmetric_quantization_config,
    prepare_pt2e,
    prepare_qat_pt2e,
    quantize,
)

X = torch.linspace(-1, 1, 8).reshape(1, 8)
SAMPLES = [(X * k,) for k in (0.3, 0.7, 1.0)]
CONFIG = get_symmetric_quantization_config()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()


def exported() -> Any:
    return torch.export.export(network(), (X,))


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


MISTAKES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "convert without calibration": (
        lambda: convert_pt2e(prepare_pt2e(exported(), EthosUQuantizer())), "was not calibrated", "prepared(*sample)"),
    "convert per tensor without calibration": (
        lambda: convert_pt2e(prepare_pt2e(exported(), EthosUQuantizer().set_global(
            get_symmetric_quantization_config(is_per_channel=False)))), "was not calibrated", "prepared(*sample)"),
    "convert without training": (
        lambda: convert_pt2e(prepare_qat_pt2e(exported(), EthosUQuantizer())), "was not calibrated", "sample"),
    "convert a module": (lambda: convert_pt2e(network()), "needs a prepared GraphModule, not Sequential", ""),
    "quantize what is prepared": (
        lambda: quantize(prepare_pt2e(exported(), EthosUQuantizer()), (X,), SAMPLES), "prepared already", "convert"),
    "config as quantizer": (
        lambda: quantize(network(), (X,), SAMPLES, CONFIG), "the quantizer is a QuantizationConfig", "set_global"),
    "prepare with a config": (lambda: prepare_pt2e(exported(), CONFIG), "is a QuantizationConfig", "set_global"),
    "prepare without quantizer": (lambda: prepare_pt2e(exported(), None), "is None", "EthosUQuantizer()"),
    "prepare for training without": (lambda: prepare_qat_pt2e(exported(), None), "is None", "EthosUQuantizer()"),
    "prepare with the class": (lambda: prepare_pt2e(exported(), EthosUQuantizer), "is a ", "EthosUQuantizer()"),
    "prepare a module": (lambda: prepare_pt2e(network(), EthosUQuantizer()), "is no exported model", "torch.export"),
    "set_global": (lambda: EthosUQuantizer().set_global("int8"), r"set_global: .*'int8'", "get_symmetric"),
    "set_io": (lambda: EthosUQuantizer().set_io(torch.int8), "set_io: the config is a dtype", "get_symmetric"),
    "set_module_name": (lambda: EthosUQuantizer().set_module_name("0", 8), "set_module_name: .* int", "get_symmetric"),
    "set_module_type": (lambda: EthosUQuantizer().set_module_type(nn.ReLU, "x"), "set_module_type: ", "get_symmetric"),
    "config function": (lambda: EthosUQuantizer().set_global(get_symmetric_quantization_config), "function", "get_sym"),
    "type is an instance": (
        lambda: EthosUQuantizer().set_module_type(nn.ReLU(), None), "ReLU instance", "give the class, ReLU"),
    "type is a number": (lambda: EthosUQuantizer().set_module_type(3, None), "the type is a int", "class"),
    "name is a number": (lambda: EthosUQuantizer().set_module_name(0, None), "the name is a int", "get_submodule"),
    "name is a module": (lambda: EthosUQuantizer().set_module_name(nn.ReLU(), None), "the name is a ReLU", "path"),
    "target": (lambda: EthosUQuantizer("foo"), "unknown target 'foo'", "ethos-u55-128"),
    "target is a config": (lambda: EthosUQuantizer(CONFIG), "compile_spec is a QuantizationConfig", "set_global"),
    "calibrate a module": (lambda: calibrate(network(), SAMPLES), "was given a Sequential", "prepare_pt2e"),
    "samples are a tensor": (lambda: quantize(network(), (X,), X), "samples are a Tensor", "list of argument tuples"),
    "samples are none": (lambda: quantize(network(), (X,), None), "samples are a NoneType", "list of argument"),
    "calibrate with a tensor": (
        lambda: calibrate(prepare_pt2e(exported(), EthosUQuantizer()), X), "samples are a Tensor", "list of argument"),
    "plain tensors": (lambda: quantize(network(), None, [X, X]), "sample 0 is a Tensor, not a tuple", "(x,)"),
    "plain tensors behind": (lambda: quantize(network(), (X,), [X]), "sample 0 is a Tensor, not a tuple", "(x,)"),
    "example is a tensor": (lambda: quantize(network(), X, SAMPLES), "example_inputs is a Tensor", "(x,)"),
    "no sample": (lambda: quantize(network(), None, []), "no calibration sample", "a few dozen"),
    "model is a function": (lambda: quantize(torch.relu, (X,), SAMPLES), "the model is a builtin", "torch.nn.Module"),
    "model cannot be exported": (
        lambda: quantize(Branch().eval(), (X,), SAMPLES), "torch.export cannot export Branch", "torch.where"),
    "example of another shape": (
        lambda: quantize(network(), (X[:, :3],), SAMPLES), r"cannot be called with .*float32\[1, 3\]", "as the model"),
    "first sample of another shape": (
        lambda: quantize(network(), None, [(X[0, :3],)]), r"calibration sample 0, float32\[3\]", "batch dimension"),
    "first sample of another type": (
        lambda: quantize(network(), None, [(X.long(),)]), r"sample 0, int64\[1, 8\]", "samples like the inputs"),
    "sample of a prepared model": (
        lambda: calibrate(prepare_pt2e(exported(), EthosUQuantizer()), [(X[:, :3],)]),
        r"fails on calibration sample 0, float32\[1, 3\]", "like the inputs"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    call, message, hint = MISTAKES[name]
    with pytest.raises(ArmLowerError, match=message) as caught:
        call()
    assert hint in caught.value.hint
    other = ("target", "model cannot be exported", "example of another shape")
    assert isinstance(caught.value, QuantizationError) or name in other or name.startswith("first sample")


def test_what_is_no_mistake() -> None:
    for spec in (None, "ethos-u55-128", EthosUCompileSpec("ethos-u55-128")):
        EthosUQuantizer(spec).set_global(CONFIG).set_io(None).set_module_type("torch.nn.ReLU", None)
    prepared = prepare_pt2e(exported(), EthosUQuantizer().set_global(None))
    assert not [n for n in convert_pt2e(prepared).graph.nodes if "quantize" in str(n.target)]  # nothing to calibrate


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(8)])
def test_training_mode_is_said_with_the_module(layer: nn.Module) -> None:
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Linear(8, 8), layer))
    program = torch.export.export(model.train(), (torch.rand(4, 8),))
    with pytest.raises(QuantizationError, match=r"in module body\.1.* is in training mode") as caught:
        prepare_pt2e(program, EthosUQuantizer())
    assert "eval()" in caught.value.hint
