"""What stays on the CPU says why and what to do, word for word; what Vela refuses moves there and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowering
import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from arm_lower import vela
from arm_lower.edge.build import from_exported, from_module
from arm_lower.edge.program import CpuOp, EdgeProgram
from arm_lower.errors import ArmLowerError, VelaError
from arm_lower.partition import EthosUPartitioner
from arm_lower.spec import EthosUCompileSpec
from arm_lower.tosa.ir import Graph, Op
from arm_lower.tosa.serialize import from_flatbuffer
from quant import EthosUQuantizer

MAP = (1, 3, 6, 6)
QUANTIZE = "quantize the model: see EthosUQuantizer.set_global and set_module_name"
WORDS = "Vela refused the graph for ethos-u55-128: no such thing"
HINT = "ask Vela"


class Net(nn.Module):
    def __init__(self, fn: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.fn = fn
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.fn(self, *args)


def conv(out: int = 3, channels: int = 3) -> nn.Module:
    return nn.Conv2d(channels, out, 3, padding=1)


def prepared(
    module: nn.Module, quantizer: EthosUQuantizer | None = None
) -> tuple[fx.GraphModule, list[tuple[Any, ...]]]:
    torch.manual_seed(0)
    calibration = lowering.samples(MAP)
    return lowering.quantized(module, calibration, quantizer), calibration


def reasons(program: EdgeProgram) -> dict[str, tuple[str, str]]:
    """Operator name -> reason and hint."""
    return {op.op.split(".")[1]: (op.reason, op.hint) for op in program.cpu_ops}


def agree(q: fx.GraphModule, program: EdgeProgram, sample: tuple[Any, ...], lsb: float = 2.0) -> None:
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(q(*sample))
    for found, want, step in zip(lowering.execute(program, *sample), wanted, lowering.output_steps(q), strict=True):
        assert float((found - want).abs().max()) <= lsb * step + 1e-5


# -- reasons -----------------------------------------------------------------------------------------------------


def test_model_that_is_not_quantized() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    program = EthosUPartitioner(EthosUCompileSpec("ethos-u55-128")).lower(
        from_exported(torch.export.export(module, lowering.samples(MAP)[0]))
    )
    assert not program.delegates
    assert program.cpu_ops == [
        CpuOp("conv2d", "aten.conv2d.default", "0", "its input is float", QUANTIZE),
        CpuOp("relu", "aten.relu.default", "1", "its input is float", QUANTIZE),
        CpuOp("flatten", "aten.flatten.using_ints", "2", "its input is float", QUANTIZE),
        CpuOp("linear", "aten.linear.default", "3", "its input is float", QUANTIZE),
    ]


def test_operator_without_a_lowering() -> None:
    q, calibration = prepared(Net(lambda s, x: s.b(s.a(x).cumsum(-1)), a=conv(), b=conv()))
    program = lowering.lowered(q, calibration[0])
    assert program.cpu_ops == [
        CpuOp("cumsum", "aten.cumsum.default", "", "operator aten.cumsum.default has no NPU lowering")
    ]


def test_module_left_out_by_the_quantizer() -> None:
    q, calibration = prepared(
        Net(lambda s, x: s.c(F.relu(s.b(s.a(x)))), a=conv(), b=conv(), c=conv()),
        EthosUQuantizer().set_module_name("b", None),
    )
    program = lowering.lowered(q, calibration[0])
    assert reasons(program)["conv2d"] == (
        "the weight is not a quantized constant",
        "quantize the module, or keep its weight a parameter",
    )
    assert [c.module_path for c in program.cpu_ops if "conv2d" in c.op] == ["b"]
    assert len(program.delegates) == 2
    agree(q, program, calibration[0])


def without_quantize(q: fx.GraphModule, reader: str) -> None:
    """Takes the quantize and dequantize in front of a node away."""
    node = next(n for n in q.graph.nodes if reader in n.name)
    dequantize = node.args[0]
    node.replace_input_with(dequantize, dequantize.args[0].args[0])
    q.graph.eliminate_dead_code()
    q.recompile()


def test_float_result_that_the_cpu_reads() -> None:
    q, calibration = prepared(Net(lambda s, x: F.relu(s.a(x)).cumsum(-1), a=conv()))
    without_quantize(q, "cumsum")
    program = lowering.lowered(q, calibration[0])
    assert not program.delegates
    why = "operator aten.cumsum.default has no NPU lowering"
    relu = f"its result is needed as float by cumsum on the CPU: {why}"
    assert program.cpu_ops == [
        CpuOp("conv2d", "aten.conv2d.default", "a", f"its result is needed as float by relu on the CPU: {relu}"),
        CpuOp("relu", "aten.relu.default", "", relu),
        CpuOp("cumsum", "aten.cumsum.default", "", why),
    ]
    agree(q, program, calibration[0])


def test_float_result_that_is_an_output() -> None:
    q, calibration = prepared(Net(lambda s, x: s.a(x), a=conv()))
    drop_output_quantize(q)
    program = lowering.lowered(q, calibration[0])
    assert program.cpu_ops == [
        CpuOp(
            "conv2d",
            "aten.conv2d.default",
            "a",
            "its result is a float that no quantize node follows",
            "annotate its output in the quantizer",
        )
    ]
    agree(q, program, calibration[0])


def drop_output_quantize(q: fx.GraphModule) -> None:
    output = q.graph.output_node()
    (dequantize,) = output.all_input_nodes
    output.replace_input_with(dequantize, dequantize.args[0].args[0])
    q.graph.eliminate_dead_code()
    q.recompile()


def test_only_movement_says_so() -> None:
    q, calibration = prepared(Net(lambda s, x: s.a(x).cumsum(-1).permute(0, 2, 3, 1), a=conv()))
    program = lowering.lowered(q, calibration[0])
    assert reasons(program)["permute"] in {
        ("only moves data, with nothing to compute beside it on the NPU", ""),
        ("its input is float", QUANTIZE),
    }


def test_limits_of_the_target() -> None:
    """A reason names the limit that an operator breaks, on the target where it does."""
    module = Net(lambda s, x: F.interpolate(s.a(x), size=(7, 11), mode="bilinear"), a=conv())
    q, calibration = prepared(module)
    for target in lowering.TARGETS:
        for op in lowering.lowered(q, calibration[0], target).cpu_ops:
            assert op.reason and "Traceback" not in op.reason


def test_integer_inputs_of_other_types() -> None:
    program = EthosUPartitioner(EthosUCompileSpec("ethos-u55-128")).lower(
        from_exported(torch.export.export(Net(lambda s, x: x.abs()).eval(), (torch.ones(2, 3, dtype=torch.int64),)))
    )
    assert program.cpu_ops == [CpuOp("abs_1", "aten.abs.default", "", "its input has dtype torch.int64")]


def test_dead_nodes_make_no_delegate_inputs() -> None:
    """Vela drops inputs that nothing reads, so they must not be in a delegate's signature."""
    torch.manual_seed(0)
    calibration = lowering.samples(MAP, MAP)
    program = from_module(
        lowering.quantized(Net(lambda s, x, y: (s.a(x), F.relu(s.b(y))), a=conv(), b=conv()), calibration),
        calibration[0],
    )
    outputs = program.outputs()
    program.graph.output_node().args = ((outputs[0],),)
    program = EthosUPartitioner(EthosUCompileSpec("ethos-u55-128", effort="fast")).lower(program)
    (delegate,) = program.delegates.values()
    assert len(delegate.tosa.inputs) == 1 and not program.cpu_ops


# -- the closed loop ---------------------------------------------------------------------------------------------


def refuse(monkeypatch: pytest.MonkeyPatch, kind: str, when: Callable[[Op], bool] = lambda op: True) -> list[Graph]:
    """Vela refuses every graph with an operator of this kind; gives the graphs it compiled."""
    real, compiled = vela.compile, []

    def compile(data: bytes, spec: EthosUCompileSpec, *args: Any, **kwargs: Any) -> vela.VelaResult:
        graph = from_flatbuffer(data)
        if any(op.kind == kind and when(op) for op in graph.ops):
            raise VelaError(WORDS, HINT)
        compiled.append(graph)
        return real(data, spec, *args, **kwargs)

    monkeypatch.setattr(vela, "compile", compile)
    return compiled


def residual(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.relu(self.b(F.hardswish(self.a(x))) + x)


@pytest.mark.parametrize(
    "kind,fn,moved,delegates",
    [
        ("MAX_POOL2D", lambda s, x: s.b(F.max_pool2d(F.relu(s.a(x)), 2)), {"max_pool2d"}, 2),
        ("TABLE", lambda s, x: s.b(F.hardswish(s.a(x))), {"hardswish"}, 2),
        ("TABLE", residual, {"hardswish"}, 2),
        ("ADD", residual, {"add", "relu"}, 1),
        ("REDUCE_SUM", lambda s, x: s.b(F.softmax(s.a(x), 1)), {"softmax"}, 2),
        ("CONV2D", lambda s, x: s.b(F.max_pool2d(s.a(x), 2)), {"conv2d"}, 1),
        ("MUL", lambda s, x: (s.a(x), s.a(x) * s.b(x)), {"mul"}, 1),
    ],
    ids=["pool", "table", "table in a branch", "sum and its relu", "middle of a softmax", "all convolutions", "end"],
)
def test_operator_that_vela_refuses(
    kind: str, fn: Callable[..., Any], moved: set[str], delegates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, calibration = prepared(Net(fn, a=conv(), b=conv()))
    refuse(monkeypatch, kind)
    program = lowering.lowered(q, calibration[0])
    assert reasons(program) == {op: (WORDS, HINT) for op in moved}
    assert len(program.delegates) == delegates
    assert not any(op.kind == kind for d in program.delegates.values() for op in d.tosa.ops)
    agree(q, program, calibration[0])


def test_one_of_several_that_vela_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    q, calibration = prepared(Net(lambda s, x: s.c(F.relu(s.b(F.relu(s.a(x))))), a=conv(), b=conv(5), c=conv(3, 5)))
    refuse(monkeypatch, "CONV2D", lambda op: op.inputs[1].shape[0] == 5)
    program = lowering.lowered(q, calibration[0])
    assert [(c.op, c.module_path) for c in program.cpu_ops] == [("aten.conv2d.default", "b"), ("aten.relu.default", "")]
    assert len(program.delegates) == 2
    agree(q, program, calibration[0])


def test_requantization_that_vela_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of scale between two quantize nodes has no operator of its own; the loop ends all the same."""
    torch.manual_seed(0)
    calibration = lowering.samples(MAP)
    q = lowering.quantized(Net(lambda s, x: s.a(x), a=conv()), calibration)
    quantize = next(n for n in q.graph.nodes if "quantize_per_tensor" in n.name and n.args[0].op == "placeholder")
    dequantize = next(iter(quantize.users))
    with q.graph.inserting_after(dequantize):
        again = q.graph.call_function(quantize.target, (dequantize, 2 * quantize.args[1], *quantize.args[2:]))
    with q.graph.inserting_after(again):
        back = q.graph.call_function(dequantize.target, (again, 2 * quantize.args[1], *dequantize.args[2:]))
    dequantize.replace_all_uses_with(back, delete_user_cb=lambda user: user is not again)
    q.recompile()
    refuse(monkeypatch, "RESCALE", lambda op: op.inputs[0].dtype is op.output.dtype)
    program = lowering.lowered(q, calibration[0])
    assert len(program.delegates) == 1 and not program.cpu_ops
    agree(q, program, calibration[0])


def test_vela_that_refuses_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    q, calibration = prepared(Net(residual, a=conv(), b=conv()))

    def compile(*_: Any, **__: Any) -> None:
        raise VelaError(WORDS, HINT)

    monkeypatch.setattr(vela, "compile", compile)
    program = lowering.lowered(q, calibration[0])
    assert not program.delegates and set(reasons(program)) == {"conv2d", "hardswish", "add", "relu"}
    agree(q, program, calibration[0], lsb=0.0)


def test_memory_limit_is_no_operators_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is the user's decision: no operator moves."""
    q, calibration = prepared(Net(residual, a=conv(), b=conv()))
    with pytest.raises(ArmLowerError, match="sram_limit does not fit"):
        EthosUPartitioner(EthosUCompileSpec("ethos-u55-128", sram_limit=64, effort="fast")).lower(
            from_module(q, calibration[0])
        )


# -- what only fails where a delegate ends -----------------------------------------------------------------------


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("view", ["view(1, 4, 4)", "unsqueeze(0)", "permute(1, 0)", "view(8, 2).transpose(0, 1)"])
def test_views_of_masks(view: str, target: str) -> None:
    """A view moves nothing until its result leaves the delegate: only then is bool too much for Ethos-U55."""
    net = Net(lambda m, x: eval(f"(x > 0).reshape(4, 4).{view}")).eval()
    x = torch.randn(16)
    program = EthosUPartitioner(EthosUCompileSpec(target)).lower(from_exported(torch.export.export(net, (x,))))
    assert not program.delegates
    assert torch.equal(lowering.execute(program, x)[0], net(x))


@pytest.mark.parametrize("rank", [7, 8])
@pytest.mark.parametrize("name", ["relu", "transpose", "add", "sigmoid"])
def test_ranks_that_tosa_does_not_have(name: str, rank: int) -> None:
    shape = (1, 2, 3, 1, 2, 2, 2, 2)[:rank]
    fns: dict[str, Callable[..., Any]] = {
        "relu": lambda m, x: x.relu(), "transpose": lambda m, x: x.relu().transpose(0, rank - 1),
        "add": lambda m, x: x + x.relu(), "sigmoid": lambda m, x: x.sigmoid()}  # fmt: skip
    calibration = lowering.samples(shape)
    q = lowering.quantized(Net(fns[name]), calibration)
    program = lowering.lowered(q, calibration[0])
    assert not program.delegates
    found = [op.reason for op in program.cpu_ops]
    assert name == "add" or any(f"has rank {rank}, level 8K allows 6 of TOSA" in reason for reason in found)
    agree(q, program, calibration[0])
