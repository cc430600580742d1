"""The report: sums, layout costs, JSON, text."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from arm_lower.edge.program import CpuOp, Delegate, EdgeProgram
from arm_lower.errors import ArmLowerError
from arm_lower.memory import Plan
from arm_lower.pte.model import KernelCall, Method, Operator, Program
from arm_lower.report import Report, build_report
from arm_lower.report.build import _layers
from arm_lower.report.layout import Move, layout_moves
from arm_lower.spec import EthosUCompileSpec
from arm_lower.tosa.ir import DType, Graph, Op, Tensor
from arm_lower.vela import Layer as VelaLayer
from arm_lower.vela import VelaResult, VelaTensor


def tensor(name: str, shape: tuple[int, ...], dtype: DType = DType.INT8, data: Any = None) -> Tensor:
    return Tensor(name, shape, dtype, data)


def conv(x: Tensor, weight: np.ndarray, name: str, bias: int = 0) -> tuple[Op, Tensor]:
    out = tensor(name, (1, *x.shape[1:3], weight.shape[0]), DType.INT32)
    w = tensor(f"{name}.w", weight.shape, DType.INT8, weight)
    b = tensor(f"{name}.b", (weight.shape[0],), DType.INT32, np.full(weight.shape[0], bias, np.int32))
    return Op("CONV2D", [x, w, b], [out], {}, "net.conv:aten.conv2d.default"), out


def bordered_graph() -> Graph:
    """x -> transpose -> conv -> rescale -> transpose -> out, and a transpose between two computations."""
    x, xt = tensor("x", (1, 3, 4, 4)), tensor("xt", (1, 4, 4, 3))
    first, acc = conv(xt, np.ones((3, 1, 1, 3), np.int8), "acc")
    y, yt, z = tensor("y", (1, 4, 4, 3)), tensor("yt", (1, 3, 4, 4)), tensor("z", (1, 3, 4, 4))
    out = tensor("out", (1, 4, 4, 3))
    return Graph(
        "g",
        [x],
        [out],
        [
            Op("TRANSPOSE", [x], [xt], {"perms": (0, 2, 3, 1)}),
            first,
            Op("RESCALE", [acc], [y]),
            Op("TRANSPOSE", [y], [yt], {"perms": (0, 3, 1, 2)}),
            Op("ABS", [yt], [z]),
            Op("TRANSPOSE", [z], [out], {"perms": (0, 2, 3, 1)}),
        ],
    )


def vela_result(graph: Graph, layers: list[VelaLayer]) -> VelaResult:
    def place(t: Tensor) -> VelaTensor:
        return VelaTensor(t.name, (1, 1, *t.shape), 1, 0, 1, t.size)

    return VelaResult(
        command_stream=b"COP1" + bytes(12),
        read_only=bytes(100),
        inputs=[place(t) for t in graph.inputs],
        outputs=[place(t) for t in graph.outputs],
        scratch_size=4096,
        scratch_fast_size=0,
        sram_bytes=4096,
        npu_cycles=90,
        total_cycles=sum(layer.op_cycles for layer in layers),
        macs=432,
        weight_bytes=100,
        memories={"Sram": 4096},
        layers=layers,
        settings="Performance",
        tried={},
    )


def report() -> Report:
    graph = bordered_graph()
    layers = [
        VelaLayer("xt", "Transpose", "net.conv:aten.conv2d.default", 10, 20, 0),
        VelaLayer("y", "Conv2D", "net.conv:aten.conv2d.default", 50, 60, 432),
        VelaLayer("yt", "Transpose", "net.act:aten.abs.default", 15, 15, 0),
        VelaLayer("z", "Abs", ":aten.abs.default", 5, 5, 0),
        VelaLayer("out", "Transpose", "net:output layout", 10, 12, 0),
    ]
    delegate = Delegate("EthosUBackend", b"blob", [], graph, b"tosa", vela_result(graph, layers))
    cpu = [CpuOp("sort_1", "aten.sort.default", "net.head", "no lowering", "do it after the model")]
    edge = EdgeProgram("forward", cast(Any, None), {}, (), {"forward_0": delegate}, cpu)
    method = Method(
        "forward",
        (),
        (),
        (),
        operators=(Operator("quantized_decomposed::quantize_per_tensor", "out"), Operator("aten::sort", "values")),
        instructions=(KernelCall(0, ()), KernelCall(1, ()), KernelCall(0, ())),
    )
    program = Program((method,), constants=(bytes(8),))
    executorch = SimpleNamespace(program=program, buffer=bytes(1000), plans={"forward": Plan({}, 128, 96, "size")})
    return build_report(
        edge, cast(Any, executorch), {"lower": 0.5}, EthosUCompileSpec("ethos-u55-128")
    )  # fmt: skip


def test_layout_operators_belong_to_the_border_they_start_or_end_at() -> None:
    found = {name: move.border for name, move in layout_moves(bordered_graph()).items()}
    assert found == {"xt": "input x", "yt": "inside", "out": "output out"}


@pytest.mark.parametrize(
    ("weight", "bias", "moves"),
    [
        (np.eye(3, dtype=np.int8).reshape(3, 1, 1, 3), 0, True),
        (np.eye(3, dtype=np.int8).reshape(3, 1, 1, 3), 1, False),
        (2 * np.eye(3, dtype=np.int8).reshape(3, 1, 1, 3), 0, False),
        (np.ones((3, 1, 1, 3), np.int8), 0, False),
    ],
)
def test_a_convolution_that_copies_is_a_layout_operator(weight: np.ndarray, bias: int, moves: bool) -> None:
    x, y = tensor("x", (1, 4, 4, 3)), tensor("y", (1, 4, 4, 3))
    op, acc = conv(x, weight, "acc", bias)
    graph = Graph("g", [x], [y], [op, Op("RESCALE", [acc], [y])])
    assert layout_moves(graph) == (dict.fromkeys(("acc", "y"), Move("input x", True)) if moves else {})


def test_a_row_of_an_operator_that_vela_joined_with_a_move_is_no_layout_cost() -> None:
    move = layout_moves(bordered_graph())["out"]
    assert move.is_made_by("Transpose") and not move.is_made_by("Conv2D")


def test_steps_of_a_split_transpose_are_layout_costs_too() -> None:
    """Vela names only the last step; a step of another operator is not one of them."""
    graph = bordered_graph()
    where = ("net.conv:aten.conv2d.default", 10, 20, 0)
    layers = [
        VelaLayer("#7", "Conv2D", *where),
        VelaLayer("#8", "Transpose", *where),
        VelaLayer("#9", "Transpose", *where),
        VelaLayer("xt", "Transpose", *where),
        VelaLayer("#10", "Transpose", *where),
        VelaLayer("y", "Conv2D", *where),
    ]
    delegate = Delegate("EthosUBackend", b"", [], graph, b"", vela_result(graph, layers))
    found = _layers("d", delegate, layout_moves(graph))
    assert [layer.layout for layer in found] == ["", *["input x"] * 3, "", ""]


def test_figures() -> None:
    r = report()
    assert (r.total_cycles, r.npu_cycles, r.macs, r.weight_bytes, r.sram_bytes) == (112, 90, 432, 100, 4096)
    assert (r.pte_bytes, r.constant_bytes) == (1000, 8)
    assert r.layout_cycles == 20 + 15 + 12
    assert {b.name: (b.direction, b.layout_cycles, b.nbytes) for b in r.borders} == {
        "x": ("input", 20, 48),
        "out": ("output", 12, 48),
    }
    assert r.kernel_calls == {"aten::sort.values": 1, "quantized_decomposed::quantize_per_tensor.out": 2}
    assert r.kernels == ("aten::sort.values", "quantized_decomposed::quantize_per_tensor.out")
    assert r.compute_kernel_calls == 1
    assert [(layer.module_path, layer.torch_op) for layer in r.layers][:1] == [("net.conv", "aten.conv2d.default")]
    assert {p.name: p.nbytes for p in r.pools} == {"method arena": 128, "NPU scratch": 4096, ".pte file": 1000}


def test_json_round_trip() -> None:
    r = report()
    assert Report.from_json(r.to_json()) == r
    assert json.loads(r.to_json())["cpu_ops"][0]["module_path"] == "net.head"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 99}', '{"format": 1}', '{"format": 1, "delegates": [{}]}']
)
def test_foreign_json_is_refused(text: str) -> None:
    with pytest.raises(ArmLowerError, match="report"):
        Report.from_json(text)


def test_text_shows_costs_reasons_and_origins() -> None:
    text = report().to_text()
    for part in (
        "ethos-u55-128 (Ethos_U55_High_End_Embedded, Shared_Sram)",
        "112 in all",
        "47 only change the layout",
        "no lowering (try: do it after the model)",
        "sort_1: aten.sort.default in net.head",
        "layout changes inside the delegates: 15 cycles",
        "arena of forward: lower bound 96, 33.3% above it",
        "(layout, input x)",
        "quantized_decomposed::quantize_per_tensor.out 2",
    ):
        assert part in " ".join(text.split()) or part in text, part
    assert "Most expensive layers (2 of 5)" in report().to_text(layers=2)
    assert "Most expensive" not in report().to_text(layers=0)
