"""Which nodes form a delegate: levels, convexity, what crosses a border, and what is worth no delegate."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import lowering
import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from arm_lower.edge.build import from_module
from arm_lower.edge.program import EdgeProgram, call_delegate
from arm_lower.partition import MOVES, Partition, capability, levels, own_dequantize, partition

MAP = (1, 3, 6, 5)


class Net(nn.Module):
    """A function of submodules and inputs."""

    def __init__(self, fn: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.fn = fn
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.fn(self, *args)


def conv(out: int = 3, channels: int = 3) -> nn.Module:
    return nn.Conv2d(channels, out, 3, padding=1)


def cpu(x: torch.Tensor) -> torch.Tensor:
    """An operator that no NPU has."""
    return x.cumsum(-1) * 0.25


def lowered(
    module: nn.Module, *shapes: tuple[int, ...], target: str = lowering.TARGETS[0]
) -> tuple[fx.GraphModule, EdgeProgram, list[tuple[Any, ...]]]:
    torch.manual_seed(0)
    calibration = lowering.samples(*(shapes or (MAP,)))
    q = lowering.quantized(module, calibration)
    return q, lowering.lowered(q, calibration[0], target), calibration


def agree(q: fx.GraphModule, program: EdgeProgram, sample: tuple[Any, ...], lsb: float = 1.0) -> None:
    """Every output within ``lsb`` of the quantized model; outputs that are not quantized within 1e-5."""
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(q(*sample))
    for found, want, step in zip(lowering.execute(program, *sample), wanted, lowering.output_steps(q), strict=True):
        assert found.shape == want.shape and found.dtype == want.dtype
        assert float((found - want).abs().max()) <= lsb * step * 1.001 + 1e-5


def cut(module: nn.Module, *shapes: tuple[int, ...]) -> tuple[EdgeProgram, list[Partition]]:
    """The program before it is cut and its partitions; each is checked to be convex."""
    torch.manual_seed(0)
    calibration = lowering.samples(*(shapes or (MAP,)))
    program = from_module(lowering.quantized(module, calibration), calibration[0])
    own_dequantize(program.graph)
    reasons: dict[fx.Node, Any] = {}
    partitions = None
    while partitions is None:
        supported, _ = capability(program, "u55", reasons)
        partitions = partition(program.graph, supported, reasons)
    for p in partitions:
        assert_convex(p)
    assert all(v % 2 == (n in supported) for n, v in levels(program.graph, supported).items())
    return program, partitions


def assert_convex(p: Partition) -> None:
    members, reached = set(p.nodes), set[fx.Node]()
    todo = {u for n in members for u in n.users} - members
    while todo:
        n = todo.pop()
        reached.add(n)
        todo |= set(n.users) - reached
    assert not reached & members, f"a path leaves the partition and comes back through {reached & members}"


def kinds(program: EdgeProgram) -> list[list[str]]:
    """Computing TOSA operators of each delegate, in order of first appearance."""
    return [
        list(dict.fromkeys(op.kind for op in d.tosa.ops if op.kind not in MOVES and op.kind != "RESCALE"))
        for d in program.delegates.values()
    ]


def calls(program: EdgeProgram) -> list[fx.Node]:
    return [n for n in program.graph.nodes if n.target is call_delegate]


# -- levels and convexity ----------------------------------------------------------------------------------------


def attention(self: Any, x: torch.Tensor) -> torch.Tensor:
    t = self.trunk(x).flatten(2).transpose(1, 2)
    q, k, v = self.q(t), self.k(t), self.v(t)
    scores = q @ k.transpose(1, 2)
    mixed = cpu(F.softmax(scores, -1)) @ v
    return self.head(mixed.transpose(1, 2).reshape(x.shape))


def attention_net() -> nn.Module:
    linear = {name: nn.Linear(16, 16) for name in "qkv"}
    return Net(attention, trunk=conv(16, 16), head=conv(16, 16), **linear)


def test_attention_with_a_hole_is_convex() -> None:
    """B04: the trunk and the value branch go around an operator on the CPU."""
    program, partitions = cut(attention_net(), (1, 16, 8, 8))
    assert len(partitions) >= 2


@pytest.mark.parametrize("target", lowering.TARGETS)
def test_attention_with_a_hole_runs(target: str) -> None:
    q, program, calibration = lowered(attention_net(), (1, 16, 8, 8), target=target)
    assert "cumsum" in {c.op.split(".")[1] for c in program.cpu_ops}
    assert len(program.delegates) >= 2
    assert kinds(program)[0][0] == "CONV2D" and kinds(program)[-1][-1] == "CONV2D"
    agree(q, program, calibration[0], lsb=4.0)


def test_two_branches_of_one_level_are_one_partition() -> None:
    """Parts that no path joins still share a delegate."""
    _, partitions = cut(Net(lambda s, x, y: (s.a(x), s.b(y)), a=conv(), b=conv()), MAP, MAP)
    assert len(partitions) == 1


def test_branch_around_the_cpu() -> None:
    """x -> conv -> CPU -> add, and conv -> add: the add must not be in the conv's partition."""
    module = Net(lambda s, x: (lambda y: y + F.relu(s.b(cpu(y))))(s.a(x)), a=conv(), b=conv())
    _, partitions = cut(module)
    assert len(partitions) == 2
    q, program, calibration = lowered(module)
    assert len(program.delegates) == 2
    agree(q, program, calibration[0], lsb=2.0)


def test_delegates_with_cpu_operators_between() -> None:
    q, program, calibration = lowered(Net(lambda s, x: s.c(cpu(s.b(cpu(s.a(x))))), a=conv(), b=conv(), c=conv()))
    assert kinds(program)[0] == kinds(program)[2] == ["CONV2D"] and len(program.delegates) == 3
    assert [c.args[0] for c in calls(program)] == list(program.delegates) == ["forward_0", "forward_1", "forward_2"]
    agree(q, program, calibration[0], lsb=2.0)


def test_results_of_an_early_delegate_that_a_late_one_reads() -> None:
    """An output of the first delegate is an input of the second beside what the CPU made of it."""
    q, program, calibration = lowered(
        Net(lambda s, x: (lambda y: s.b(y) + s.c(cpu(y)) * y)(s.a(x)), a=conv(), b=conv(), c=conv())
    )
    first, second = calls(program)
    reads = {n.args[0] for n in second.all_input_nodes if n.target is operator.getitem}
    assert reads == {first}
    agree(q, program, calibration[0], lsb=3.0)


def test_delegate_inputs_and_outputs_are_each_once() -> None:
    """A tensor with many readers crosses a border once."""
    q, program, calibration = lowered(
        Net(
            lambda s, x: (s.a(x) + s.b(x) + torch.cat([x, x], 1)[:, :3], cpu(s.a(x)), cpu(F.relu(s.a(x)))),
            a=conv(),
            b=conv(),
        )
    )
    (call,) = calls(program)
    assert len(call.args) == 2
    for d in program.delegates.values():
        assert len(d.tosa.outputs) == len({id(t) for t in d.tosa.outputs}) == len(call.meta["val"])
    agree(q, program, calibration[0], lsb=3.0)


# -- borders -----------------------------------------------------------------------------------------------------


def test_border_types_are_those_of_the_command_stream() -> None:
    """B41: what the graph says of a delegate's results is what Vela writes."""
    _, program, _ = lowered(
        Net(lambda s, x: cpu(s.a(x).view(1, 4, 4, 16).permute(0, 2, 1, 3)), a=nn.Linear(32, 16)), (1, 16, 32)
    )
    (call,), (delegate,) = calls(program), program.delegates.values()
    for val, tensor, written in zip(call.meta["val"], delegate.tosa.outputs, delegate.vela.outputs, strict=True):
        assert val.dtype == torch.int8 and val.element_size() == written.element_size
        assert val.numel() == tensor.size == written.size


def test_several_outputs() -> None:
    q, program, calibration = lowered(
        Net(lambda s, x: (s.a(x), {"b": s.b(F.relu(s.a(x)))}, [s.b(x).mean((2, 3))]), a=conv(), b=conv())
    )
    assert len(program.delegates) == 1 and not program.cpu_ops
    agree(q, program, calibration[0], lsb=2.0)


def test_output_that_is_returned_twice() -> None:
    q, program, calibration = lowered(Net(lambda s, x: (lambda y: (y, F.relu(y), y))(s.a(x)), a=conv()))
    assert len(program.outputs()) == 3 and len(program.delegates) == 1
    agree(q, program, calibration[0])


def test_input_that_is_returned() -> None:
    q, program, calibration = lowered(Net(lambda s, x, y: (x, s.a(y), y), a=conv()), MAP, MAP)
    assert len(program.delegates) == 1
    found = lowering.execute(program, *calibration[0])
    assert torch.equal(found[0], calibration[0][0]) and torch.equal(found[2], calibration[0][1])
    agree(q, program, calibration[0])


def test_only_an_input_that_is_returned() -> None:
    _, program, calibration = lowered(Net(lambda s, x: x))
    assert not program.delegates and not program.cpu_ops
    assert torch.equal(lowering.execute(program, *calibration[0])[0], calibration[0][0])


def test_input_that_nobody_reads() -> None:
    q, program, calibration = lowered(Net(lambda s, x, y: s.a(x), a=conv()), MAP, (2, 2))
    assert len(program.user_inputs()) == 2 and len(calls(program)[0].args) == 2
    agree(q, program, calibration[0])


def test_constant_output() -> None:
    module = Net(lambda s, x: (s.a(x), s.table + 1.0), a=conv())
    module.register_buffer("table", torch.arange(4.0))
    q, program, calibration = lowered(module)
    agree(q, program, calibration[0])


def test_shared_weights() -> None:
    """One layer used in two delegates and twice in one."""
    q, program, calibration = lowered(Net(lambda s, x: s.a(cpu(s.a(s.a(x)))), a=conv()))
    assert len(program.delegates) == 2
    agree(q, program, calibration[0], lsb=2.0)


def test_tied_parameters() -> None:
    module = Net(lambda s, x: s.b(F.relu(s.a(x))), a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    module.b.weight = module.a.weight
    q, program, calibration = lowered(module, (4, 8))
    assert len(program.delegates) == 1
    agree(q, program, calibration[0], lsb=1.0)


def test_dequantize_with_many_readers() -> None:
    """Each reader takes its own dequantize along, whether it goes to the NPU or stays."""
    module = Net(lambda s, x: (lambda y: (cpu(y), s.b(y), y.sin(), y[:, :1].flip(1)))(s.a(x)), a=conv(), b=conv())
    q, program, calibration = lowered(module)
    assert not any(len(n.users) > 1 for n in program.graph.nodes if "dequantize" in str(n.target))
    agree(q, program, calibration[0], lsb=2.0)


def test_scalar_results_keep_their_rank() -> None:
    module = Net(lambda s, x: s.a(x).mean() * s.factor + s.factor, a=conv())
    module.factor = nn.Parameter(torch.tensor(0.3))
    q, program, calibration = lowered(module)
    assert len(program.delegates) == 1 and lowering.execute(program, *calibration[0])[0].shape == ()
    agree(q, program, calibration[0], lsb=2.0)


# -- mutable buffers ---------------------------------------------------------------------------------------------


class Memory(nn.Module):
    """Adds what it made last time."""

    def __init__(self) -> None:
        super().__init__()
        self.a = conv()
        self.register_buffer("last", torch.zeros(MAP))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.a(x) + self.last)
        self.last.copy_(y)
        return y


def test_mutable_buffer_is_an_input_of_the_delegate() -> None:
    """It changes between calls: a delegate that had it as a constant would compute with the first value for ever."""
    _, program, _ = lowered(Memory())
    (call,), (delegate,) = calls(program), program.delegates.values()
    assert program.mutated == ("last",)
    assert len(call.args) == 3
    assert "ADD" in kinds(program)[0] and not any(t.shape == (1, 6, 5, 3) for t in delegate.tosa.constants())


def test_mutable_buffer_keeps_its_state() -> None:
    q, program, calibration = lowered(Memory())
    state = program.constants["last"]
    q.last.copy_(state)
    for sample in calibration[:3]:
        args = [
            state if n.name == "last" else program.constants[n.name] if n.name in program.constants else sample[0]
            for n in program.graph.nodes
            if n.op == "placeholder"
        ]
        with torch.no_grad():
            state, found = lowering.Execute(program).run(*args)
            want = q(*sample)
        assert float((found - want).abs().max()) <= lowering.output_steps(q)[0] * 2.001
        assert torch.equal(state, found)


def test_mutable_buffer_written_from_the_middle() -> None:
    """The value that is read again after an in-place copy is the new one."""

    class Copy(Memory):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            self.last.copy_(y)
            return F.relu(y + self.last)

    q, program, calibration = lowered(Copy())
    assert program.mutated == ("last",) and len(program.delegates) == 1
    agree(q, program, calibration[0])


# -- nothing to compute ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda s, x: cpu(cpu(x).view(6, 15).view(MAP)),
        lambda s, x: x.squeeze(1),
        lambda s, x: x.detach().clone(),
        lambda s, x: cpu(x).expand(2, 3, 6, 5),
        lambda s, x: cpu(x).permute(0, 2, 3, 1),
        lambda s, x: F.pad(cpu(x), (1, 1)),
    ],
    ids=["two views", "squeeze", "detach clone", "expand", "permute", "pad"],
)
def test_no_delegate_without_compute(fn: Callable[..., Any]) -> None:
    """B06, B07: nothing but data movement stays on the CPU."""
    q, program, calibration = lowered(Net(fn))
    assert not program.delegates
    assert all(c.reason for c in program.cpu_ops)
    agree(q, program, calibration[0])


def test_movement_beside_compute_goes_along() -> None:
    _, program, _ = lowered(Net(lambda s, x: s.a(x).permute(0, 2, 3, 1).flatten(1), a=conv()))
    assert len(program.delegates) == 1 and not program.cpu_ops


def test_movement_behind_the_cpu_stays() -> None:
    """One delegate for the convolution; the views behind the CPU operator get none."""
    q, program, calibration = lowered(Net(lambda s, x: cpu(s.a(x)).permute(0, 2, 3, 1).flatten(1), a=conv()))
    assert len(program.delegates) == 1
    assert {c.op for c in program.cpu_ops} >= {"aten.cumsum.default", "aten.permute.default"}
    agree(q, program, calibration[0], lsb=2.0)
