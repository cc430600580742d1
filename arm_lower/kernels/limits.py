"""What the portable kernels refuse although the operator allows it, as seen with the ExecuTorch 1.5.1 runtime.

Dtypes are data (``dtypes.yaml``, made by tests/edge/derive_constraints.py); shapes and values are functions here.
"""

from __future__ import annotations

import math
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


def _add_scalar(x: torch.Tensor, other: int | float, alpha: int | float = 1) -> str | None:
    if torch.result_type(x, other) != x.dtype:
        return "its kernel adds no number of a higher kind than the tensor's"
    return _add(x, other, alpha)


def _add(x: torch.Tensor, other: Any, alpha: int | float = 1) -> str | None:
    refused = alpha < 0 and torch.result_type(x, other) == torch.uint8
    return "its kernel takes no negative alpha for uint8" if refused else None


def _unsigned(x: torch.Tensor, *numbers: int | float | None, **named: int | float | None) -> str | None:
    """For operators with numbers that are converted to the tensor's type."""
    given = [n for n in (*numbers, *named.values()) if n is not None]
    refused = x.dtype == torch.uint8 and any(n < 0 for n in given)
    return "its kernel takes no negative numbers for uint8" if refused else None


def _one_integer(x: Any, other: Any, *args: Any, **kwargs: Any) -> str | None:
    """torch converts the number of a tensor of rank 0 to the type that is computed in, where it may wrap around."""
    if not isinstance(x, torch.Tensor) or not isinstance(other, torch.Tensor):
        return None
    dtype = torch.result_type(x, other)
    wrong = [t for t in (x, other) if t.dim() == 0 and t.dtype not in (dtype, torch.bool)]
    refused = not dtype.is_floating_point and wrong
    return f"its kernel does not convert a tensor of rank 0 to {str(dtype).removeprefix('torch.')}" if refused else None


def _add_tensor(x: Any, other: Any, *, alpha: int | float = 1) -> str | None:
    if alpha != 1 and isinstance(x, torch.Tensor) and x.dim() == 0:
        return "its kernel gives the factor alpha to the wrong operand if the first has rank 0"
    return _one_integer(x, other) or _add(x, other, alpha)


def _where(condition: torch.Tensor, x: Any, other: Any) -> str | None:
    dtypes = {t.dtype for t in (x, other) if isinstance(t, torch.Tensor)}
    return None if len(dtypes) < 2 else "its kernel takes two tensors of one dtype"


def _shift(x: torch.Tensor, other: int | float) -> str | None:
    within = 0 <= other < torch.iinfo(torch.int64 if x.dtype == torch.bool else x.dtype).bits
    return None if within else "its kernel shifts by less than the width of the type"


def _power(x: torch.Tensor, exponent: int | float) -> str | None:
    whole = isinstance(exponent, int) and not x.is_floating_point()
    return "its kernel goes through floating point, where integers do not wrap around" if whole else None


def _narrow(x: torch.Tensor, dim: int, start: int, length: int) -> str | None:
    return "its kernel takes no negative dim or start" if dim < 0 or start < 0 else None


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> str | None:
    return None if dims else "its kernel rolls along dimensions only"


def _no_number(x: torch.Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> str | None:
    return "its kernel has no dim for a tensor of rank 0" if x.dim() == 0 and dim not in ([], None) else None


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> str | None:
    return None if len({t.dtype for t in tensors}) == 1 else "its kernel takes tensors of one dtype"


def _var_mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: int | float | None = None, keepdim: bool = False
) -> str | None:
    count = math.prod(x.shape[d] for d in (dim or range(x.dim()))) if x.dim() else 1
    wrong = count - (1 if correction is None else correction) <= 0
    return "its kernel gives no mean where there is no variance" if wrong else None


def _integer(x: torch.Tensor) -> str | None:
    return None if x.is_floating_point() else "its kernel is wrong for large integers"


def _one_sided(x: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> str | None:
    return None if onesided else "its kernel gives one half of the spectrum only"


def _real(x: torch.Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> str | None:
    refused = dtype is not None and dtype != x.dtype and (dtype.is_complex or x.is_complex())
    return "its kernel converts no complex numbers" if refused else None


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
    _aten.add.Tensor: _add_tensor,
    _aten.sub.Scalar: _add,
    _aten.sub.Tensor: _add_tensor,
    **dict.fromkeys(
        (
            _aten.mul.Tensor, _aten.div.Tensor_mode, _aten.floor_divide.default, _aten.fmod.Tensor,
            _aten.maximum.default, _aten.minimum.default, _aten.pow.Tensor_Tensor, _aten.eq.Tensor, _aten.ne.Tensor,
            _aten.lt.Tensor, _aten.le.Tensor, _aten.gt.Tensor, _aten.ge.Tensor, _aten.bitwise_and.Tensor,
            _aten.bitwise_or.Tensor, _aten.bitwise_xor.Tensor,
        ),
        _one_integer,
    ),
    _aten.where.self: _where,
    _aten.pow.Tensor_Scalar: _power,
    _aten.bitwise_left_shift.Tensor_Scalar: _shift,
    _aten.bitwise_right_shift.Tensor_Scalar: _shift,
    _aten.clamp.default: _unsigned,
    _aten.hardtanh.default: _unsigned,
    _aten.fmod.Scalar: _unsigned,
    _aten.narrow.default: _narrow,
    _aten.narrow_copy.default: _narrow,
    _aten.roll.default: _roll,
    _aten.sum.dim_IntList: _no_number,
    _aten.cumsum.default: _no_number,
    _aten.unfold.default: _no_number,
    _aten.cat.default: _cat,
    _aten.var_mean.correction: _var_mean,
    _aten.ceil.default: _integer,
    _aten.floor.default: _integer,
    _aten.trunc.default: _integer,
    _aten._fft_r2c.default: _one_sided,
    _aten._to_copy.default: _real,
    _aten.constant_pad_nd.default: _pad,
    torch.ops.quantized_decomposed.quantize_per_channel.default: _quantize_per_channel,
}
