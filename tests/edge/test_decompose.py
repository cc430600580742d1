"""Operators without a kernel become operators with one, and compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.utils._pytree as pytree
from op_cases import Module, all_cases, exported
from torch import nn
from torch._decomp import decomposition_table

from arm_lower.edge import cpu
from arm_lower.edge.build import from_exported
from arm_lower.edge.decompose import expand
from arm_lower.edge.meta import copy_program, module_path
from arm_lower.edge.program import EdgeProgram
from arm_lower.edge.verifier import verify
from arm_lower.errors import ArmLowerError

CASES = all_cases()


def one(layer: nn.Module, *inputs: torch.Tensor) -> EdgeProgram:
    return from_exported(torch.export.export(layer.eval(), inputs))


def names(program: EdgeProgram) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("name", CASES)
def test_prepared_program_computes_the_same(name: str) -> None:
    case = CASES[name]
    program = from_exported(exported(name))
    with torch.no_grad():
        wanted = pytree.tree_leaves(Module(case.function).eval()(*[t.clone() for t in case.inputs]))
    cpu.prepare(program)
    verify(program)
    program.graph_module.recompile()
    with torch.no_grad():
        found = program.graph_module(*case.inputs, *program.constants.values())
    for a, b in zip(wanted, found, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = float(a.double().nan_to_num(0, 0, 0).abs().max()) if a.numel() else 1.0
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5 * max(scale, 1.0), equal_nan=True)


def test_expand_replaces_one_node_only() -> None:
    program = one(nn.Sequential(nn.Hardswish(), nn.Hardswish()), torch.randn(2, 3))
    first, second = (n for n in program.graph.nodes if n.op == "call_function")
    assert expand(program, first)
    assert names(program) == [
        "aten.add.Tensor",
        "aten.clamp.default",
        "aten.mul.Tensor",
        "aten.mul.Tensor",
        "aten.hardswish.default",
    ]
    assert all(module_path(n) == "0" for n in program.graph.nodes if n.op == "call_function" and n is not second)
    assert all("val" in n.meta for n in program.graph.nodes if n.op != "output")
    program.graph.lint()


def test_expand_leaves_operators_with_kernels_alone() -> None:
    program = one(nn.ReLU(), torch.randn(2, 3))
    (relu,) = (n for n in program.graph.nodes if n.op == "call_function")
    before = str(program.graph)
    assert not expand(program, relu)
    assert str(program.graph) == before


def test_expand_of_several_results() -> None:
    program = one(nn.LSTM(3, 4), torch.randn(5, 1, 3))
    lstm = next(n for n in program.graph.nodes if "lstm" in str(n.target))
    assert expand(program, lstm)
    assert names(program).count("aten.linear.default") == 6  # one for the inputs of all steps, one for each step
    program.graph.lint()


def test_dtype_and_shape_decide_together_with_literals() -> None:
    for slope in (1.0, 2.0):
        program = one(Module(lambda x, s=slope: torch.nn.functional.celu(x, s)), torch.randn(2, 3))
        cpu.prepare(program)
        x = torch.randn(2, 3)
        torch.testing.assert_close(program.graph_module(x)[0], torch.nn.functional.celu(x, slope))


def test_constants_are_folded_when_not_larger() -> None:
    weight = torch.randn(64, 32)
    program = one(Module(lambda x: x @ weight.t() + torch.arange(64.0)), torch.randn(2, 32))
    cpu.prepare(program)
    assert names(program) == ["aten.mm.default", "aten.add.Tensor"]
    assert sum(t.numel() for t in program.constants.values()) == 64 * 32 + 64


def test_large_expansion_is_not_folded() -> None:
    program = one(Module(lambda x: x + torch.ones(1, 300).expand(200, 300)), torch.randn(1, 1))
    cpu.prepare(program)
    assert "aten.expand.default" in names(program)
    assert all(t.numel() <= 300 for t in program.constants.values())


def test_random_operators_are_not_folded() -> None:
    program = one(Module(lambda x: x + torch.rand(3)), torch.randn(3))
    cpu.prepare(program)
    assert "aten.rand.default" in names(program)


@pytest.mark.parametrize(
    "function", [lambda x: x[:0] + 1, lambda x: torch.cat([x[:0], x[3:]]), lambda x: x[:0].amax(1)]
)
def test_values_without_elements_are_constants(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    program = one(Module(function), torch.randn(3, 4))
    cpu.prepare(program)
    assert names(program) == ["aten.clone.default"]
    program.graph_module.recompile()
    (found,) = program.graph_module(torch.randn(3, 4), *program.constants.values())
    assert found.shape == function(torch.randn(3, 4)).shape


def test_program_without_inputs_or_constants() -> None:
    program = one(Module(lambda: torch.arange(4)))
    cpu.prepare(program)
    verify(program)
    assert [t.tolist() for t in program.constants.values()] == [[0, 1, 2, 3]]


def test_numbers_wrap_around_in_the_type_of_the_tensor() -> None:
    x = torch.tensor([200, 3], dtype=torch.uint8)
    program = one(Module(lambda x: x // 300), x)
    cpu.prepare(program)
    program.graph_module.recompile()
    assert torch.equal(program.graph_module(x, *program.constants.values())[0], x // 300)


def test_decomposition_of_torch_that_fails_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise TypeError("not these operands")

    monkeypatch.setitem(decomposition_table, torch.ops.aten.lgamma.default, fails)
    with pytest.raises(ArmLowerError, match=r"lgamma.*no kernel"):
        cpu.prepare(one(Module(torch.lgamma), torch.rand(7)))


def test_operator_without_any_kernel_is_named() -> None:
    class Gamma(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.lgamma(x)

    program = one(nn.Sequential(nn.ReLU(), Gamma()), torch.rand(3))
    original = str(copy_program(program))
    with pytest.raises(ArmLowerError, match=r"lgamma.*in module 1.*no kernel") as caught:
        cpu.prepare(copy_program(program))
    assert caught.value.hint
    assert str(program) == original
