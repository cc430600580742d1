"""A whole .pte on the host, its delegates on the NPU model, from the bytes of the file alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import arm_lower
from arm_lower.errors import PteError
from fvp.ethosu import NpuError
from fvp.ethosu.delegate import describe, run_delegate
from tosa_ref.host import Host


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Hardswish(), nn.Conv2d(8, 12, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5), nn.Softmax(-1),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module", params=["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
def compiled(request: pytest.FixtureRequest) -> arm_lower.compile:  # type: ignore[valid-type]
    samples = [(torch.randn(1, 3, 20, 24),) for _ in range(4)]
    return arm_lower.compile(_model(), samples, request.param, effort="fast")


def test_npu_model_equals_reference_model(compiled, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "model.pte"
    compiled.save(path)
    assert compiled.delegates
    on_npu, on_reference = Host(compiled.buffer, delegate_runner=run_delegate), Host(path)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, 3, 20, 24)).astype(np.float32)
        for a, b in zip(on_npu.run([x]), on_reference.run([x]), strict=True):
            np.testing.assert_array_equal(a, b)


def test_listing_of_a_delegate(compiled) -> None:  # type: ignore[no-untyped-def]
    text = describe(compiled.delegates[0].processed)
    assert "OP_CONV" in text and "OP_STOP" in text


def test_a_damaged_delegate(compiled) -> None:  # type: ignore[no-untyped-def]
    blob = bytearray(compiled.delegates[0].processed)
    at = blob.index(b"COP1")
    blob[at + 5] ^= 0xFF
    inputs = [np.zeros(np.prod(t.shape) * t.element_size, np.int8) for t in compiled.delegates[0].vela.inputs]
    with pytest.raises(NpuError):
        run_delegate(0, bytes(blob), inputs)
    with pytest.raises(PteError):
        run_delegate(0, bytes(blob[:100]), inputs)
