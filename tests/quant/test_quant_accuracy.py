"""The layer-by-layer report."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from quant_helpers import Function
from torch import nn

from arm_lower.errors import QuantizationError
from quant import quantize
from quant.accuracy import compare_layers, sqnr_db


def samples(n: int = 4) -> list[tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return [(F.interpolate(torch.rand(1, 3, 4, 4), size=(12, 12), mode="bilinear"),) for _ in range(n)]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten()).eval()


def test_sqnr() -> None:
    y = torch.tensor([3.0, 4.0])
    assert sqnr_db([y], [y]) == math.inf
    assert sqnr_db([y], [y + torch.tensor([0.5, 0.0])]) == pytest.approx(20.0)
    assert sqnr_db([y, y], [y, y + 0.5]) == pytest.approx(20.0)


def test_report() -> None:
    model = net()
    q = quantize(model, None, samples())
    report = compare_layers(model, q, samples(), blame=True)
    assert [(x.name, x.module_path) for x in report.layers] == [
        ("input_1", ""),
        ("relu", "2"),
        ("conv2d_1", "3"),
        ("flatten", "4"),
    ]
    assert all(25 < x.sqnr_db <= x.own_db + 1 < 80 for x in report.layers)
    assert sum(x.blame or 0 for x in report.layers) == pytest.approx(1.0)
    assert report.layers[3].blame == 0.0
    assert report.outputs_db[0] == pytest.approx(report.layers[-1].sqnr_db, abs=0.5)
    text = str(report)
    assert "SQNR dB" in text and "aten.conv2d.default" in text and text.endswith("dB")
    assert len(report.worst(2)) == 2


def test_the_layer_with_too_narrow_a_range_is_found() -> None:
    model = net()
    q = quantize(model, None, samples())
    for node in q.graph.nodes:
        if node.args and getattr(node.args[0], "name", "") == "relu":
            (dequantize,) = node.users
            for n in (node, dequantize):
                n.args = (n.args[0], n.args[1] / 8, *n.args[2:])
    q.recompile()
    report = compare_layers(model, q, samples(), blame=True)
    worst = report.worst(1)[0]
    assert worst.name == "relu" and worst.clipped > 0.1 and worst.own_db < 20
    by_own = compare_layers(model, q, samples()).worst(1)[0]
    assert by_own.name == "relu" and by_own.blame is None


def test_a_graph_of_another_model_is_refused() -> None:
    q = quantize(Function(lambda x: x.exp()), None, samples())
    with pytest.raises(QuantizationError, match="not a quantized form of this model"):
        compare_layers(net(), q, samples())
    with pytest.raises(QuantizationError, match="no quantize operator"):
        compare_layers(net(), torch.fx.symbolic_trace(nn.Identity()), samples())
    with pytest.raises(QuantizationError, match="no sample"):
        compare_layers(net(), q, [])
