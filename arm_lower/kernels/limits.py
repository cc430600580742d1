"""What the portable kernels refuse although the operator allows it, as seen with the ExecuTorch 1.5.1 runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # defines torch.ops.quantized_decomposed
from torch._ops import OpOverload

from arm_lower.kernels.registry import kernel_for

_aten = torch.ops.aten


def usable(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True if a kernel exists for this operator and takes these operands (tensors with shape and dtype)."""
    return unusable(target, args, kwargs) is None


def unusable(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why no kernel can run this operator on these operands, or None if one can."""
    if kernel_for(target) is None:
        return "the portable library has no kernel for it"
    limit = _LIMITS.get(target)
    return limit(*args, **kwargs) if limit is not None else None


def _ranks(*allowed: int) -> Callable[..., str | None]:
    def check(x: torch.Tensor, *args: Any, **kwargs: Any) -> str | None:
        if x.dim() in allowed:
            return None
        return f"its kernel takes rank {' or '.join(map(str, allowed))}, not {x.dim()}"

    return check


def _linear(x: torch.Tensor, *args: Any, **kwargs: Any) -> str | None:
    return None if x.dim() >= 2 else "its kernel takes no vectors"


def _remainder(x: Any, y: Any, *args: Any, **kwargs: Any) -> str | None:
    """For integers the kernel gives C's remainder, which takes the sign of the dividend."""
    floats = [t for t in (x, y) if isinstance(t, float) or (isinstance(t, torch.Tensor) and t.is_floating_point())]
    return None if floats else "its kernel is wrong for negative integers"


def _add_scalar(x: torch.Tensor, other: object, alpha: object = 1) -> str | None:
    if isinstance(other, float) and not x.is_floating_point():
        return "its kernel adds no fraction to integers"
    return None


def _pad(x: torch.Tensor, padding: Sequence[int], *args: Any, **kwargs: Any) -> str | None:
    return "its kernel cannot crop" if any(p < 0 for p in padding) else None


def _quantize_per_channel(x: torch.Tensor, scales: torch.Tensor, *args: Any, **kwargs: Any) -> str | None:
    return None if scales.dtype == torch.float64 else "its kernel takes float64 scales"


_LIMITS: dict[OpOverload, Callable[..., str | None]] = {
    _aten.convolution.default: _ranks(3, 4),
    _aten.avg_pool2d.default: _ranks(3, 4),
    _aten.max_pool2d_with_indices.default: _ranks(3, 4),
    _aten._adaptive_avg_pool2d.default: _ranks(3, 4),
    _aten.adaptive_avg_pool2d.default: _ranks(3, 4),
    _aten.linear.default: _linear,
    _aten.remainder.Scalar: _remainder,
    _aten.remainder.Tensor: _remainder,
    _aten.add.Scalar: _add_scalar,
    _aten.constant_pad_nd.default: _pad,
    torch.ops.quantized_decomposed.quantize_per_channel.default: _quantize_per_channel,
}
