"""to_edge ... to_executorch: what is in the file."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arm_lower.edge.meta import fake
from arm_lower.edge.program import Delegate, EdgeProgram, call_delegate
from arm_lower.errors import ArmLowerError
from arm_lower.partition import EthosUPartitioner
from arm_lower.program import to_edge, to_edge_transform_and_lower
from arm_lower.pte.model import (
    AtRuntime,
    Constant,
    DelegateCall,
    IntValue,
    KernelCall,
    Method,
    NullValue,
    Planned,
    TensorValue,
)
from arm_lower.pte.read import read
from arm_lower.spec import EthosUCompileSpec


def export(module: nn.Module, *args: Any, **kwargs: Any) -> torch.export.ExportedProgram:
    return torch.export.export(module.eval(), args, kwargs)


def method(data: bytes, name: str = "forward") -> Method:
    return read(data).method(name)


def tensor(m: Method, index: int) -> TensorValue:
    value = m.values[index]
    assert isinstance(value, TensorValue)
    return value


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).relu()


X = torch.randn(1, 3, 8, 8)


def test_kernels_plan_and_values() -> None:
    program = to_edge(export(Small(), X)).to_executorch()
    assert program.kernels == ["aten::convolution.out", "aten::relu.out"]
    assert set(program.libraries.values()) == {"portable.txt"}
    assert program.plan.size == program.plan.lower_bound == 4 * (3 * 64 + 4 * 36)
    m = method(program.buffer)
    assert m.arena_sizes == (program.plan.size,)
    assert isinstance(tensor(m, m.inputs[0]).storage, Planned)
    assert tensor(m, m.outputs[0]).sizes == (1, 4, 6, 6)
    constants = [v for v in m.values if isinstance(v, TensorValue) and isinstance(v.storage, Constant)]
    assert len(constants) == 2


def test_inputs_and_outputs_at_run_time() -> None:
    m = method(to_edge(export(Small(), X)).to_executorch(alloc_graph_input=False, alloc_graph_output=False).buffer)
    assert isinstance(tensor(m, m.inputs[0]).storage, AtRuntime)
    assert isinstance(tensor(m, m.outputs[0]).storage, AtRuntime)


def test_same_input_gives_the_same_bytes() -> None:
    torch.manual_seed(0)
    exported = export(Small(), X)
    manager = to_edge(exported)
    assert manager.to_executorch().buffer == manager.to_executorch().buffer == to_edge(exported).to_executorch().buffer


def test_stages_are_left_alone() -> None:
    manager = to_edge(export(Small(), X))
    before = str(manager)
    manager.to_executorch()
    assert str(manager) == before
    assert "conv2d" in before


def test_methods_share_constants() -> None:
    module = Small()
    program = to_edge({"one": export(module, X), "two": export(module, X)}).to_executorch()
    assert [m.name for m in program.program.methods] == ["one", "two"]
    assert len(program.program.constants) == 2
    assert program.plans["one"].size == program.plans["two"].size


def test_buffers_keep_their_initial_values() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.tensor([3.0, 4.0]))

        def forward(self, x: Tensor) -> Tensor:
            self.n.add_(x)
            return self.n * 2

    program = to_edge(export(Counter(), torch.ones(2))).to_executorch()
    assert program.program.initial_states == (torch.tensor([3.0, 4.0]).numpy().tobytes(),)
    m = program.program.methods[0]
    (state,) = (
        v for v in m.values if isinstance(v, TensorValue) and isinstance(v.storage, Planned) and v.storage.initial == 0
    )
    assert state.sizes == (2,)
    last = m.instructions[-1]
    assert isinstance(last, KernelCall)
    assert str(m.operators[last.operator]) == "aten::copy_"


def test_numbers_and_none_among_inputs_and_outputs() -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor, k: int, n: None = None, *, y: float = 1.0) -> Any:
            return x, x, x + k, k, n, torch.ones(2)

    m = method(to_edge(export(Mixed(), torch.ones(2), 3, y=2.5)).to_executorch().buffer)
    kinds = [type(m.values[i]).__name__ for i in m.inputs]
    assert kinds[:2] == ["TensorValue", "IntValue"]
    assert "DoubleValue" in kinds
    outputs = [m.values[i] for i in m.outputs]
    assert outputs[3] == IntValue(3)
    assert outputs[4] == NullValue()
    assert len({i for i in m.outputs[:3]}) == 3, "each output has a tensor of its own"
    assert m.inputs[0] not in m.outputs


def test_channels_last_input() -> None:
    m = method(to_edge(export(Small(), X.to(memory_format=torch.channels_last))).to_executorch().buffer)
    assert tensor(m, m.inputs[0]).dim_order == (0, 2, 3, 1)
    assert tensor(m, m.outputs[0]).dim_order == (0, 1, 2, 3)
    first = m.instructions[0]
    assert isinstance(first, KernelCall)
    assert str(m.operators[first.operator]) == "dim_order_ops::_to_dim_order_copy.out"


def test_number_where_a_kernel_wants_a_tensor() -> None:
    class Floor(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x // 2 + (x > 1.0) * 3

    program = to_edge(export(Floor(), torch.ones(2))).to_executorch()
    assert "aten::floor_divide.out" in program.kernels
    assert "aten::gt.Scalar_out" in program.kernels
    assert "aten::mul.Scalar_out" in program.kernels


class Twice:
    """A backend that takes every relu; its delegate has two results. Channels-last if asked."""

    def __init__(self, channels_last: bool = False) -> None:
        self.channels_last = channels_last

    def lower(self, program: EdgeProgram) -> EdgeProgram:
        for i, node in enumerate([n for n in program.graph.nodes if "relu" in str(n.target)]):
            value = node.meta["val"]
            value = fake(value.fake_mode, value.shape, value.dtype, self.channels_last)
            with program.graph.inserting_before(node):
                call = program.graph.call_function(call_delegate, (f"d{i}", node.args[0]))
                call.meta["val"] = (value, value)
                item = program.graph.call_function(operator.getitem, (call, 1))
                item.meta["val"] = value
            node.replace_all_uses_with(item)
            program.graph.erase_node(node)
            program.delegates[f"d{i}"] = Delegate("TestBackend", b"\x01" * 16, [("target", b"test")], None, b"", None)  # type: ignore[arg-type]
        return program


@pytest.mark.parametrize("channels_last", [False, True])
def test_delegates(channels_last: bool) -> None:
    lowered = to_edge_transform_and_lower(export(Small(), X), partitioner=[Twice(channels_last)])
    program = lowered.to_executorch()
    m = program.program.methods[0]
    assert [d.id for d in m.delegates] == ["TestBackend"]
    assert m.delegates[0].compile_specs == (("target", b"test"),)
    (call,) = (i for i in m.instructions if isinstance(i, DelegateCall))
    assert len(call.args) == 3
    order = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)
    assert tensor(m, call.args[2]).dim_order == order
    assert m.outputs == (call.args[2],)
    assert program.kernels == ["aten::convolution.out"]


def test_delegate_results_meet_kernels_in_their_layout() -> None:
    module = nn.Sequential(Small(), nn.Conv2d(4, 2, 1))
    program = to_edge(export(module, X)).to_backend(Twice(channels_last=True)).to_executorch()
    assert "dim_order_ops::_to_dim_order_copy.out" in program.kernels


def storages(m: Method) -> list[Any]:
    return [tensor(m, i).storage for i in m.outputs]


def test_views_share_memory() -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.relu().permute(0, 2, 1).reshape(2, 12).unsqueeze(1).transpose(0, 1)  # the permute moves data
            return y.relu()

    program = to_edge(export(Views(), torch.ones(2, 3, 4))).to_executorch()
    assert program.kernels == ["aten::permute_copy.out", "aten::relu.out", "executorch_prim::et_view.default"]
    m = program.program.methods[0]
    permuted = [
        i.args[-1] for i in m.instructions if isinstance(i, KernelCall) and "permute" in str(m.operators[i.operator])
    ]
    views = [i.args[-1] for i in m.instructions if isinstance(i, KernelCall) and "view" in str(m.operators[i.operator])]
    assert {tensor(m, i).storage for i in views} == {tensor(m, permuted[0]).storage}
    assert program.plan.size == 2 * 96


def test_outputs_share_no_memory() -> None:
    class Outputs(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = x.relu()
            return x.view(-1), y, y.view(-1), y.unsqueeze(0), (y + 1).view(-1)

    for planned in (True, False):
        program = to_edge(export(Outputs(), torch.ones(2, 8))).to_executorch(alloc_graph_output=planned)
        m = program.program.methods[0]
        found = [s.offset for s in storages(m) if isinstance(s, Planned)]
        assert len(set(found)) == len(found) == (5 if planned else 0)
        assert ("executorch_prim::et_view.default" in program.kernels) == planned


def test_view_of_a_buffer_is_a_copy() -> None:
    class State(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("s", torch.zeros(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            old = self.s.view(-1)
            self.s.copy_(x)
            return old

    assert "aten::view_copy.out" in to_edge(export(State(), torch.ones(2, 2))).to_executorch().kernels


def test_unknown_method_is_named() -> None:
    with pytest.raises(ArmLowerError, match="no method 'backward'") as caught:
        to_edge(export(Small(), X)).program("backward")
    assert "forward" in caught.value.hint


@pytest.mark.parametrize(("source", "message"), [({}, "no program"), (nn.ReLU(), "method forward is a ReLU")])
def test_bad_sources(source: Any, message: str) -> None:
    with pytest.raises(ArmLowerError, match=message):
        to_edge(source)


def test_graph_module_needs_examples() -> None:
    with pytest.raises(ArmLowerError, match="example inputs"):
        to_edge(export(nn.ReLU(), X).module())


def test_control_flow_is_refused_with_its_name() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))

    with pytest.raises(ArmLowerError, match="cond"):
        to_edge(export(Branch(), X)).to_executorch()


def test_file_is_written_whole(tmp_path: Path) -> None:
    program = to_edge(export(Small(), X)).to_executorch()
    program.save(tmp_path / "model.pte")
    assert (tmp_path / "model.pte").read_bytes() == program.buffer
    with pytest.raises(ArmLowerError, match="cannot write"):
        program.save(tmp_path / "missing" / "model.pte")
    assert [p.name for p in tmp_path.iterdir()] == ["model.pte"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (lambda: EthosUCompileSpec("ethos-u55-128"), "EthosUCompileSpec"),
        (lambda: "ethos-u55-128", "str"),
        (lambda: EthosUPartitioner, "the class EthosUPartitioner"),
        (lambda: [None], "NoneType"),
        (lambda: {"forward": 3}, "int"),
    ],
)
def test_what_is_no_partitioner(given: Any, named: str) -> None:
    manager = to_edge(torch.export.export(nn.ReLU(), (torch.ones(2),)))
    with pytest.raises(ArmLowerError, match=f"no partitioner: {named}") as caught:
        manager.to_backend(given())
    assert "EthosUPartitioner(EthosUCompileSpec(" in caught.value.hint


@pytest.mark.parametrize("spec", ["ethos-u55-128", None, 5, EthosUCompileSpec])
def test_a_partitioner_wants_a_spec(spec: Any) -> None:
    with pytest.raises(ArmLowerError, match="not an EthosUCompileSpec") as caught:
        EthosUPartitioner(spec)
    assert "EthosUCompileSpec('ethos-u55-128')" in caught.value.hint
