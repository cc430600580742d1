"""What a quantized operator looks like: the specs of its activations, weight and bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torchao.quantization.pt2e.fake_quantize import FusedMovingAvgObsFakeQuantize
from torchao.quantization.pt2e.observer import (
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from torchao.quantization.pt2e.quantizer import QuantizationSpec

from arm_lower.errors import QuantizationError
from quant.observers import PerChannelFakeQuantize, PerChannelWeightObserver, RangeObserver

ObserverFactory = Callable[..., Any]


@dataclass(frozen=True)
class QuantizationConfig:
    """Quantization of one operator.

    Attributes:
        input_activation: Spec of the tensors that the operator reads, per tensor, affine.
        output_activation: Spec of the tensor that it writes.
        weight: Spec of a constant weight, symmetric; per channel when its ``qscheme`` says so (the channel
            axis is filled in by the annotation rule of the operator).
        is_qat: Observers are fake-quantize modules for training.
    """

    input_activation: QuantizationSpec
    output_activation: QuantizationSpec
    weight: QuantizationSpec
    is_qat: bool = False

    @property
    def is_per_channel(self) -> bool:
        return bool(self.weight.qscheme == torch.per_channel_symmetric)

    def weight_spec(self, ch_axis: int) -> QuantizationSpec:
        """``weight`` with its channel axis; unchanged when weights are per tensor."""
        return replace(self.weight, ch_axis=ch_axis) if self.is_per_channel else self.weight


def get_symmetric_quantization_config(
    is_per_channel: bool = True,
    is_qat: bool = False,
    is_dynamic: bool = False,
    act_qmin: int = -128,
    act_qmax: int = 127,
    weight_qmin: int = -127,
    weight_qmax: int = 127,
    *,
    act_observer: ObserverFactory | None = None,
    weight_observer: ObserverFactory | None = None,
) -> QuantizationConfig:
    """int8 asymmetric per-tensor activations, int8 symmetric weights; the name and the order are ExecuTorch's.

    Args:
        is_per_channel: One weight scale for each output channel, else one for the tensor.
        is_qat: For `prepare_qat_pt2e`: observers also fake-quantize, and gradients pass through them.
        is_dynamic: Must be False; an Ethos-U has no dynamic quantization.
        act_qmin, act_qmax: Range of quantized activations, within int8.
        weight_qmin, weight_qmax: Range of quantized weights, within int8.
        act_observer, weight_observer: Observer classes (or ``Observer.with_args(...)``) to use instead of
            the defaults; for QAT the observer inside the fake-quantize module.

    Raises:
        QuantizationError: A dynamic config or an empty or too wide range.
    """
    if is_dynamic:
        raise QuantizationError(
            "is_dynamic=True: an Ethos-U needs every scale at compile time",
            "leave is_dynamic out and calibrate with representative inputs",
        )
    _check_range("act_qmin/act_qmax", act_qmin, act_qmax)
    _check_range("weight_qmin/weight_qmax", weight_qmin, weight_qmax)
    activation_ctr: Any
    weight_ctr: Any
    if is_qat:
        activation_ctr = FusedMovingAvgObsFakeQuantize.with_args(
            observer=act_observer or MovingAverageMinMaxObserver, averaging_constant=0.01
        )
        default = MovingAveragePerChannelMinMaxObserver if is_per_channel else MovingAverageMinMaxObserver
        # Averaging constant 1: a weight is known exactly, there is nothing to smooth.
        fake_quantize = PerChannelFakeQuantize if is_per_channel else FusedMovingAvgObsFakeQuantize
        weight_ctr = fake_quantize.with_args(observer=weight_observer or default, averaging_constant=1.0)
    else:
        activation_ctr = act_observer or RangeObserver
        weight_ctr = weight_observer or (PerChannelWeightObserver if is_per_channel else MinMaxObserver)
    activation = QuantizationSpec(
        dtype=torch.int8,
        observer_or_fake_quant_ctr=activation_ctr,
        quant_min=act_qmin,
        quant_max=act_qmax,
        qscheme=torch.per_tensor_affine,
    )
    weight = QuantizationSpec(
        dtype=torch.int8,
        observer_or_fake_quant_ctr=weight_ctr,
        quant_min=weight_qmin,
        quant_max=weight_qmax,
        qscheme=torch.per_channel_symmetric if is_per_channel else torch.per_tensor_symmetric,
        ch_axis=0 if is_per_channel else None,
    )
    return QuantizationConfig(activation, activation, weight, is_qat)


def _check_range(names: str, low: int, high: int) -> None:
    if not -128 <= low < high <= 127:
        raise QuantizationError(f"{names} = {low}, {high}: an int8 range has -128 <= min < max <= 127")
