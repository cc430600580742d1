"""Random programs that change tensors, views of them, and a buffer: what is made functional computes the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from arm_lower.edge.functionalize import writes
from arm_lower.program import to_edge
from quant.graph import make_functional
from tosa_ref.host import Host

SHAPE = (2, 4, 6)


def functional(module: nn.Module, *inputs: Tensor) -> torch.fx.GraphModule:
    gm = torch.export.export(copy.deepcopy(module), inputs).module(check_guards=False)
    make_functional(gm)
    return gm


def close(found: Tensor, wanted: Tensor, atol: float = 1e-5) -> None:
    """Not equal, since sums go over other strides."""
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=atol, equal_nan=True)


def views(x: Tensor) -> list[Callable[[], Tensor]]:
    n, d = x.shape[0], x.dim()
    made: list[Callable[[], Tensor]] = [
        lambda: x[1:], lambda: x[:-1], lambda: x[::2], lambda: x[-1], lambda: x[0:1], lambda: x.detach(),
        lambda: x.contiguous(), lambda: x.reshape(-1), lambda: x.unsqueeze(-1), lambda: x.flatten(),
        lambda: x.narrow(0, 0, n - n // 2), lambda: x.split(max(n // 2, 1))[-1], lambda: x.chunk(2)[0],
        lambda: x.unbind()[0], lambda: x.view_as(x), lambda: x.to(torch.float32),
    ]  # fmt: skip
    if d > 1:
        made += [
            lambda: x.transpose(0, 1), lambda: x.movedim(0, -1), lambda: x[:, -1], lambda: x[..., 1:],
            lambda: x.permute(*reversed(range(d))), lambda: x.split([1, x.shape[-1] - 1], -1)[1],
            lambda: x.flatten(0, 1),
        ]  # fmt: skip
    return made


def write(x: Tensor, other: Tensor, kind: int) -> Tensor:
    kinds: list[Callable[[], Tensor]] = [
        lambda: x.add_(1.0), lambda: x.mul_(0.5), lambda: x.relu_(), lambda: x.zero_(), lambda: x.fill_(0.25),
        lambda: x.neg_(), lambda: x.clamp_(-0.5, 0.5), lambda: x.copy_(other.sum()), lambda: x.sub_(other.mean()),
        lambda: x.masked_fill_(x > 0.1, -0.125), lambda: x.copy_(torch.ones_like(x, dtype=torch.int64)),
    ]  # fmt: skip
    return kinds[kind % len(kinds)]()


class Program(nn.Module):
    """Values made from the input, a buffer, and one another; some are changed. All of them are results."""

    def __init__(self, steps: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.register_buffer("state", torch.linspace(-1, 1, 48).reshape(SHAPE))

    def forward(self, x: Tensor) -> list[Tensor]:
        pool = [x * 2, self.state]
        for kind, which, detail in self.steps:
            chosen = pool[which % len(pool)]
            if kind == 0 or chosen.numel() == 0:
                pool.append(chosen + 0.5)
            elif kind == 1 and chosen.dim() > 0:
                made = views(chosen)
                pool.append(made[detail % len(made)]())
            else:
                pool.append(write(chosen, pool[detail % len(pool)], detail))
        return [y.clone() for y in pool]


STEPS = st.lists(st.tuples(st.sampled_from((0, 1, 1, 2, 2)), st.integers(0, 20), st.integers(0, 30)), max_size=12)
INPUT = torch.linspace(-1, 1, 48).reshape(SHAPE).flip(2)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_random_programs(steps: Any) -> None:
    eager, x = Program(steps), INPUT
    gm = functional(eager, x.clone())
    assert {str(n.target) for n in gm.graph.nodes if writes(n)} <= {"aten.copy_.default"}
    for call in range(3):
        want, got = eager(x + call), gm(x + call)
        for w, g in zip(want, got, strict=True):
            close(g, w)
    close(gm.state, eager.state)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_random_programs_as_files(steps: Any) -> None:
    eager, x = Program(steps), INPUT
    exported = torch.export.export(copy.deepcopy(eager), (x.clone(),))
    host = Host(to_edge(exported).to_executorch().buffer)
    for call in range(3):
        for w, g in zip(eager(x + call), host.run([(x + call).numpy()]), strict=True):
            # Sums of values that cancel each other: what is left has the size of the rounding of the terms.
            close(torch.as_tensor(g).reshape(w.shape), w, atol=1e-4)
