"""What the portable kernels refuse although the operator allows it, as seen with the ExecuTorch 1.5.1 runtime.

Dtypes are data (``dtypes.yaml``, made by tests/edge/derive_constraints.py); shapes and values are functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # defines torch.ops.quantized_decomposed
from torch._ops import OpOverload

from arm_lower.kernels.registry import kernel_for
from arm_lower.tables import load_table

_aten = torch.ops.aten


DTYPES = "dtypes.yaml"


def usable(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True if a kernel exists for this operator and takes these operands (tensors with shape and dtype)."""
    return unusable(target, args, kwargs) is None


def unusable(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why no kernel can run this operator on these operands, or None if one can."""
    if kernel_for(target) is None:
        return "the portable library has no kernel for it"
    return limited(target, args, kwargs) or _refused_dtype(target, args, kwargs)


def limited(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why the kernel of an operator cannot work with these shapes and values, or None."""
    limit = _LIMITS.get(target)
    return limit(*args, **kwargs) if limit is not None else None


def _refused_dtype(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    rules = _dtypes().get(str(target))
    if rules is None:
        return None
    for i, argument in enumerate(target._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        handled = rules.get(argument.name)
        if handled is not None and isinstance(value, torch.Tensor) and value.dtype not in handled:
            names = ", ".join(str(d).removeprefix("torch.") for d in sorted(handled, key=str))
            return f"its kernel takes {argument.name} as {names}, not {str(value.dtype).removeprefix('torch.')}"
    return None


@cache
def _dtypes() -> dict[str, dict[str, frozenset[torch.dtype]]]:
    document = load_table("arm_lower.kernels", DTYPES)
    return {
        name: {argument: frozenset(getattr(torch, d) for d in dtypes) for argument, dtypes in arguments.items()}
        for name, arguments in document["operators"].items()
    }


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
