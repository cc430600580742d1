"""Functional operators to kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arm_lower.kernels import kernel_for, library_of, names, unusable
from arm_lower.kernels.registry import PORTABLE, QUANTIZED

aten = torch.ops.aten
quantized = torch.ops.quantized_decomposed


def test_data_files() -> None:
    assert len(names(PORTABLE)) == 240
    assert len(names(QUANTIZED)) == 19
    assert library_of("aten::add.out") == PORTABLE
    assert library_of("quantized_decomposed::quantize_per_tensor.out") == QUANTIZED
    assert library_of("aten::nothing.out") is None


@pytest.mark.parametrize(
    ("target", "kernel"),
    [
        (aten.add.Tensor, "aten::add.out"),
        (aten.add.Scalar, "aten::add.Scalar_out"),
        (aten.view.default, "aten::view_copy.out"),
        (aten.reshape.default, "aten::view_copy.out"),
        (aten.permute.default, "aten::permute_copy.out"),
        (aten.select.int, "aten::select_copy.int_out"),
        (aten.split.Tensor, "aten::split_copy.Tensor_out"),
        (aten.mean.dim, "aten::mean.out"),
        (aten.sum.dim_IntList, "aten::sum.IntList_out"),
        (aten.max.dim, "aten::max.dim_max"),
        (aten.div.Tensor_mode, "aten::div.out_mode"),
        (aten.arange.start_step, "aten::arange.start_out"),
        (aten._to_copy.default, "aten::_to_copy.out"),
        (aten.adaptive_avg_pool2d.default, "aten::_adaptive_avg_pool2d.out"),
        (aten.upsample_bilinear2d.vec, "aten::upsample_bilinear2d.vec_out"),
        (quantized.quantize_per_tensor.default, "quantized_decomposed::quantize_per_tensor.out"),
        (quantized.quantize_per_tensor.tensor, "quantized_decomposed::quantize_per_tensor.Tensor_out"),
    ],
)
def test_kernel_names(target: torch._ops.OpOverload, kernel: str) -> None:
    found = kernel_for(target)
    assert str(found) == kernel
    assert library_of(kernel) is not None


@pytest.mark.parametrize(
    "target",
    [
        aten.hardswish.default,
        aten.conv2d.default,
        aten.relu_.default,
        aten.upsample_bilinear2d.default,
        aten.lstm.input,
    ],
)
def test_operators_without_kernel(target: torch._ops.OpOverload) -> None:
    assert kernel_for(target) is None


def test_arguments_follow_the_kernel() -> None:
    mean = kernel_for(aten.mean.dim)
    assert mean is not None
    assert [a.name for a in mean.arguments] == ["self", "dim", "keepdim", "dtype"]
    full = kernel_for(aten.full.default)
    assert full is not None
    assert [a.name for a in full.arguments] == ["size", "fill_value"]
    pool = kernel_for(aten.max_pool2d_with_indices.default)
    assert pool is not None
    assert pool.out_count == 2
    assert pool.arguments[1].length == 2
    split = kernel_for(aten.split.Tensor)
    assert split is not None
    assert split.out_count == 0


def test_limits() -> None:
    x = torch.ones(1, 2, 3, 4, 5)
    assert "rank" in str(unusable(aten.avg_pool2d.default, (x, 2), {}))
    assert unusable(aten.avg_pool2d.default, (x[0], 2), {}) is None
    assert "negative integers" in str(unusable(aten.remainder.Scalar, (x.int(), 3), {}))
    assert unusable(aten.remainder.Scalar, (x, 3), {}) is None
    assert "no kernel" in str(unusable(aten.silu.default, (x,), {}))
    assert "takes index as int64, not int32" in str(unusable(aten.gather.default, (x, 0, x.int()), {}))


X, U, NUMBER = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.uint8), torch.tensor(1)


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "reason"),
    [
        (aten.narrow.default, (X, -1, 0, 1), {}, "no negative dim or start"),
        (aten.narrow_copy.default, (X, 1, -2, 1), {}, "no negative dim or start"),
        (aten.sum.dim_IntList, (NUMBER, [-1]), {}, "rank 0"),
        (aten.cumsum.default, (NUMBER, 0), {}, "rank 0"),
        (aten.unfold.default, (NUMBER, 0, 1, 1), {}, "rank 0"),
        (aten.roll.default, (X, [5]), {}, "along dimensions only"),
        (aten.cat.default, ([X.int(), X],), {}, "one dtype"),
        (aten.where.self, (X > 0, X, NUMBER), {}, "one dtype"),
        (aten.maximum.default, (U, NUMBER), {}, "convert a tensor of rank 0 to uint8"),
        (aten.add.Scalar, (X > 0, 2), {}, "higher kind"),
        (aten.add.Scalar, (X.int(), 1.5), {}, "higher kind"),
        (aten.add.Scalar, (U, 1, -1), {}, "no negative alpha"),
        (aten.sub.Tensor, (U, U), {"alpha": -1}, "no negative alpha"),
        (aten.add.Tensor, (NUMBER, X), {"alpha": 2}, "the wrong operand"),
        (aten.clamp.default, (U, None, -1), {}, "no negative numbers for uint8"),
        (aten.fmod.Scalar, (U, -1), {}, "no negative numbers for uint8"),
        (aten.pow.Tensor_Scalar, (X.int(), 3), {}, "do not wrap around"),
        (aten.bitwise_left_shift.Tensor_Scalar, (X.int(), 32), {}, "less than the width"),
        (aten.bitwise_right_shift.Tensor_Scalar, (U, -1), {}, "less than the width"),
        (aten.trunc.default, (X.int(),), {}, "large integers"),
        (aten.var_mean.correction, (NUMBER.float(), [0]), {}, "no mean"),
        (aten._fft_r2c.default, (X, [1], 0, False), {}, "one half"),
        (aten._to_copy.default, (X,), {"dtype": torch.complex64}, "complex"),
    ],
)
def test_limits_by_kernel(target: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any], reason: str) -> None:
    assert reason in str(unusable(target, args, kwargs))


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (aten.narrow.default, (X, 1, 0, 1), {}),
        (aten.sum.dim_IntList, (NUMBER, []), {}),
        (aten.sum.dim_IntList, (X, [-1]), {}),
        (aten.roll.default, (X, [5], [-1]), {}),
        (aten.cat.default, ([X, X], -1), {}),
        (aten.maximum.default, (X, NUMBER), {}),
        (aten.maximum.default, (U, X.int()), {}),
        (aten.add.Tensor, (X, NUMBER), {"alpha": -2}),
        (aten.add.Scalar, (X.int(), 2, -1), {}),
        (aten.clamp.default, (X, -1, None), {}),
        (aten.pow.Tensor_Scalar, (X, 3), {}),
        (aten.bitwise_left_shift.Tensor_Scalar, (X.int(), 31), {}),
        (aten.var_mean.correction, (X, [0]), {}),
    ],
)
def test_limits_leave_the_rest_alone(target: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> None:
    assert unusable(target, args, kwargs) is None
