"""The check of a compiled delegate finds what Vela got wrong, and only that."""

from __future__ import annotations

import pytest
from npu_harness import G
from npu_networks import residuals
from test_npu_faults import per_channel_after_matmul, rescale_of_slice

from arm_lower import vela
from arm_lower.spec import EthosUCompileSpec
from arm_lower.tosa.serialize import to_flatbuffer
from fvp.ethosu.check import disagreement, overlaps, random_inputs


def _check(g: G, target: str) -> str:
    tosa = to_flatbuffer(g.graph)
    compiled = vela.compile(tosa, EthosUCompileSpec(target, effort="fast"))
    return disagreement(tosa, compiled, random_inputs(g.graph, 3))


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
def test_a_network(target: str) -> None:
    assert not _check(residuals(), target)
    tosa = to_flatbuffer(residuals().graph)
    assert not overlaps(vela.compile(tosa, EthosUCompileSpec(target, effort="fast")))


def test_miscompiled_patterns() -> None:
    assert "elements differ, the first at" in _check(rescale_of_slice(False), "ethos-u55-128")
    assert "TOSA" in _check(per_channel_after_matmul(False), "ethos-u85-256")
    assert not _check(rescale_of_slice(True), "ethos-u55-128")
    assert not _check(per_channel_after_matmul(True), "ethos-u85-256")
