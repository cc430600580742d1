"""Functional operators to kernels."""

from __future__ import annotations

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
