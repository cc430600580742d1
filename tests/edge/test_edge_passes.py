"""ExportPass, pattern rewrites, scalars to tensors, PassManager, dialect and verifier."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from arm_lower.edge.build import from_exported
from arm_lower.edge.dialect import constraint, edge
from arm_lower.edge.meta import copy_program, fake, module_path
from arm_lower.edge.passes import ExportPass, NodeMetadata, PassManager, PatternRewrite, ScalarsToTensors
from arm_lower.edge.program import EdgeProgram
from arm_lower.edge.verifier import problems, verify
from arm_lower.errors import ArmLowerError
from arm_lower.program import to_edge

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 6), nn.ReLU())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.block(x)
        a, b = torch.split(y * 2 + 1, 3, 1)
        return a, b.max(1)[0]


@pytest.fixture
def program() -> EdgeProgram:
    torch.manual_seed(0)
    return from_exported(torch.export.export(Net().eval(), (torch.randn(2, 4),)))


def run(program: EdgeProgram, x: Tensor) -> Any:
    with torch.no_grad():
        return program.graph_module(x, *program.constants.values())


def names(program: EdgeProgram) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))


class ReluToHardtanh(ExportPass):
    def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata) -> Any:
        if op is not edge.aten.relu.default:
            return super().call_operator(op, args, kwargs, meta)
        assert args[0].to_tensor().shape == (2, 6)
        low = super().call_operator(edge.aten.clamp.default, (args[0], 0.0, None), {}, meta)
        return super().call_operator(edge.aten.clamp.default, (low, None, 0.5), {}, meta)


class Nothing(ExportPass):
    pass


def test_pass_without_override_changes_nothing(program: EdgeProgram) -> None:
    result = Nothing()(program.graph_module)
    assert not result.modified
    old = {n.name: n.meta["val"] for n in program.graph.nodes if n.op != "output"}
    new = {n.name: n.meta["val"] for n in result.graph_module.graph.nodes if n.op != "output"}
    assert list(old.values()) == list(new.values())
    assert all(a is b for a, b in zip(old.values(), new.values(), strict=True))


def test_call_operator_replaces_and_keeps_the_origin(program: EdgeProgram) -> None:
    wanted = run(program, X)[0].clamp(max=2.0)
    found = PassManager([ReluToHardtanh()])(program)
    assert names(found).count("aten.clamp.default") == 2
    clamps = [n for n in found.graph.nodes if n.target is aten.clamp.default]
    assert all(module_path(n) == "block.1" for n in clamps)
    torch.testing.assert_close(run(found, X)[0], wanted)
    assert ReluToHardtanh()(from_exported(torch.export.export(nn.ReLU(), (torch.randn(2, 6),))).graph_module).modified


def test_pass_may_add_constants(program: EdgeProgram) -> None:
    class AddOne(ExportPass):
        def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata) -> Any:
            value = super().call_operator(op, args, kwargs, meta)
            if op is not aten.relu.default:
                return value
            return super().call_operator(aten.add.Tensor, (value, self.constant("one", torch.ones(6))), {}, meta)

    wanted = run(program, X)[0] + 2
    found = PassManager([AddOne()])(program)
    verify(found)
    assert "one" in found.constants
    torch.testing.assert_close(run(found, X)[0], wanted)


def test_pass_that_keeps_arguments_but_swaps_them_is_a_change() -> None:
    program = from_exported(torch.export.export(_Sub(), (torch.ones(2), torch.zeros(2))))

    class Swap(ExportPass):
        def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata) -> Any:
            return super().call_operator(op, args[::-1], kwargs, meta)

    assert Swap()(program.graph_module).modified
    found = PassManager([Swap()])(program)
    assert found.graph_module(torch.ones(2), torch.zeros(2))[0].tolist() == [-1, -1]


class _Sub(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x - y


def test_scalars_to_tensors(program: EdgeProgram) -> None:
    wanted = run(program, X)
    found = PassManager([ScalarsToTensors()])(program)
    for node in found.graph.nodes:
        if node.target in (aten.mul.Tensor, aten.add.Tensor):
            assert isinstance(node.args[1], fx.Node)
            assert node.args[1].meta["val"].shape == ()
    torch.testing.assert_close(run(found, X), wanted)


def test_scalar_takes_the_dtype_of_the_result() -> None:
    program = from_exported(torch.export.export(_Plus(), (torch.ones(2, dtype=torch.int32),)))
    found = PassManager([ScalarsToTensors()])(program)
    assert [t.dtype for t in found.constants.values()] == [torch.float32]


class _Plus(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1.5


def test_pattern_rewrite(program: EdgeProgram) -> None:
    def pattern(x: Any) -> Any:
        return edge.aten.add.Tensor(edge.aten.mul.Tensor(x, 2), 1)

    def replacement(x: Any) -> Any:
        return edge.aten.add.Tensor(edge.aten.add.Tensor(x, x), 1.0)

    wanted = run(program, X)
    found = PassManager([PatternRewrite(pattern, replacement)])(program)
    assert "aten.mul.Tensor" not in names(found)
    assert all("val" in n.meta for n in found.graph.nodes if n.op != "output")
    torch.testing.assert_close(run(found, X), wanted)


def test_pattern_that_does_not_match(program: EdgeProgram) -> None:
    def pattern(x: Any) -> Any:
        return edge.aten.sigmoid.default(x)

    result = PatternRewrite(pattern, pattern)(program.graph_module)
    assert not result.modified


def test_manager_says_which_pass_raised(program: EdgeProgram) -> None:
    def bad(module: fx.GraphModule) -> None:
        raise ValueError("no luck")

    with pytest.raises(ArmLowerError, match="pass bad failed: ValueError: no luck"):
        PassManager([Nothing(), bad])(program)


def test_manager_says_which_pass_broke_what(program: EdgeProgram) -> None:
    def in_place(module: fx.GraphModule) -> None:
        next(n for n in module.graph.nodes if n.target is aten.relu.default).target = aten.relu_.default

    def wrong_value(module: fx.GraphModule) -> None:
        node = next(n for n in module.graph.nodes if n.target is aten.relu.default)
        node.meta["val"] = fake(node.meta["val"].fake_mode, (2, 7), torch.float32)

    def no_value(module: fx.GraphModule) -> None:
        del next(n for n in module.graph.nodes if n.target is aten.relu.default).meta["val"]

    cases = {in_place: "pass in_place broke method forward.*relu_.*in module block.1.*changes its arguments",
             wrong_value: r"pass wrong_value broke.*gives float32\[2, 6\], its meta\['val'\] says float32\[2, 7\]",
             no_value: "pass no_value broke.*has no value"}  # fmt: skip
    for one, message in cases.items():
        with pytest.raises(ArmLowerError, match=f"(?s){message}"):
            PassManager([one])(copy_program(program))


def test_transform_returns_a_new_stage() -> None:
    manager = to_edge(torch.export.export(Net().eval(), (torch.randn(2, 4),)))
    changed = manager.transform([ReluToHardtanh()])
    assert "aten.relu.default" in names(manager.program())
    assert "aten.relu.default" not in names(changed.program())
    assert names(manager.transform({"forward": []}).program()) == names(manager.program())


def test_edge_namespace() -> None:
    assert edge.aten.add.Tensor is aten.add.Tensor
    with pytest.raises(AttributeError, match="did you mean add"):
        _ = edge.aten.addd
    with pytest.raises(AttributeError, match="has no overload Tenser; it has .*Tensor"):
        _ = edge.aten.add.Tenser
    with pytest.raises(AttributeError, match="functional"):
        _ = edge.aten.add_.Tensor


def test_constraints() -> None:
    conv = constraint(aten.conv2d.default)
    assert conv is not None
    assert conv.same == ("input", "weight", "bias")
    assert torch.bool not in conv.dtypes["input"]
    embedding = constraint(aten.embedding.default)
    assert embedding is not None
    assert embedding.dtypes["indices"] == {torch.int32, torch.int64}


def _with_dtype(program: EdgeProgram, target: Any, dtype: torch.dtype) -> EdgeProgram:
    """The first operand of an operator said to be of another dtype."""
    node = next(n for n in program.graph.nodes if n.target is target)
    value = node.args[0].meta["val"]
    node.args[0].meta["val"] = fake(value.fake_mode, value.shape, dtype)
    return program


def test_verifier_names_node_dtype_and_allowed_set() -> None:
    program = from_exported(torch.export.export(nn.Sequential(nn.ReLU(), nn.Softmax(1)), (torch.randn(2, 3),)))
    (text,) = problems(_with_dtype(program, aten.softmax.int, torch.int8))
    assert "softmax" in text
    assert "in module 1" in text
    assert "argument self is int8, allowed are bfloat16, float16, float32, float64" in text


def test_verifier_wants_one_dtype() -> None:
    program = from_exported(
        torch.export.export(nn.Sequential(nn.ReLU(), nn.Conv2d(1, 1, 1)), (torch.randn(1, 1, 2, 2),))
    )
    (text,) = problems(_with_dtype(program, aten.conv2d.default, torch.int8))
    assert "arguments must have one dtype, but input is int8, weight is float32" in text


def test_verifier_checks_constants_and_order(program: EdgeProgram) -> None:
    name = next(iter(program.constants))
    broken = copy_program(program)
    broken.constants[name] = torch.zeros(9, 9)
    assert f"constant {name} is float32[9, 9]" in problems(broken)[0]
    broken = copy_program(program)
    del broken.constants[name]
    assert any("user inputs come first" in p for p in problems(broken)) or name != list(program.constants)[-1]
    broken = copy_program(program)
    broken.constants["ghost"] = torch.zeros(1)
    assert "constant ghost has no placeholder" in problems(broken)
    broken = copy_program(program)
    broken.mutated = (name,)
    assert any("the new value of buffer" in p for p in problems(broken))
    with pytest.raises(ArmLowerError, match="not a valid Edge program"):
        verify(broken)
