"""The scale of an int32 bias, and which axis of a weight its scales belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from quant.nodes import argument, aten

TRANSPOSED = frozenset({aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input})


@dataclass(frozen=True)
class BiasScale:
    """Scale of an int32 bias = input scale * weight scale, zero point 0.

    Attributes:
        per_channel: One scale for each output channel, else one for the tensor.
        repeat: Output channels per weight scale.
        interleave: The output channels that share a weight scale lie side by side, else the weight's scales
            repeat as a whole.
    """

    per_channel: bool
    repeat: int = 1
    interleave: bool = False

    def __call__(self, observers: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale (float32) and zero point (int64) from the observers of input and weight."""
        activation, weight = (observer.calculate_qparams()[0].to(torch.float32) for observer in observers)
        scale = activation * (self.expand(weight) if self.per_channel else weight)
        return scale, torch.zeros_like(scale, dtype=torch.int64)

    def expand(self, per_weight_channel: torch.Tensor) -> torch.Tensor:
        """(weight scales,) -> (output channels,)"""
        if self.interleave:
            return per_weight_channel.repeat_interleave(self.repeat)
        return per_weight_channel.repeat(self.repeat)


def weight_axis(node: fx.Node, shape: Sequence[int]) -> int:
    """The axis of the weight of convolution or linear layer ``node`` that has one scale per index, for a
    weight of ``shape``.

    A weight is (out, in / groups, ...), axis 0; of a transposed convolution (in, out / groups, ...), axis 1, or axis 0
    if it has one input channel per group, so that axis 0 counts the groups.
    """
    if node.target not in TRANSPOSED:
        return 0
    return 0 if _by_group(node, shape) else 1


def bias_scale(node: fx.Node, shape: Sequence[int], per_channel: bool) -> BiasScale:
    """How the bias of ``node`` follows from its input and its weight of ``shape``."""
    if node.target not in TRANSPOSED or not per_channel:
        return BiasScale(per_channel)
    if _by_group(node, shape):
        return BiasScale(True, repeat=shape[1], interleave=True)
    return BiasScale(True, repeat=argument(node, 6, 1))


def _by_group(node: fx.Node, shape: Sequence[int]) -> bool:
    groups = argument(node, 6, 1)
    return bool(groups > 1 and shape[0] == groups)
