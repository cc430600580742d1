"""Random small models: convolutions, activations, arithmetic, data movement, operators for the CPU, several outputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Step = tuple[str, list[int], dict[str, Any]]
MAX_ELEMENTS = 4096


class RandomModel(nn.Module):
    """A straight-line program over a pool of tensors, the same for equal seeds.

    Attributes:
        inputs: Shape of each input.
        steps: What is computed, for error messages.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        r = random.Random(seed)
        torch.manual_seed(seed)
        self.inputs = [self._shape(r) for _ in range(r.choice((1, 1, 2)))]
        self.steps: list[str] = []
        self._program: list[tuple[Callable[..., Any], list[int]]] = []
        self.layers = nn.ModuleList()
        pool = [torch.randn(s) for s in self.inputs]
        with torch.no_grad():
            for _ in range(r.randint(2, 8)):
                self._grow(r, pool)
        used = {i for _, args in self._program for i in args}
        leaves = [i for i in range(len(self.inputs), len(pool)) if i not in used]
        extra = [i for i in range(len(self.inputs), len(pool)) if i in used and r.random() < 0.15]
        self.results = sorted(leaves + extra)

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        pool = list(inputs)
        for fn, args in self._program:
            pool.append(fn(*(pool[i] for i in args)))
        return [pool[i] for i in self.results]

    def __repr__(self) -> str:
        return f"RandomModel({self.seed}): {self.inputs} " + "; ".join(self.steps)

    @staticmethod
    def _shape(r: random.Random) -> tuple[int, ...]:
        rank = r.choice((1, 2, 3, 4, 4, 4, 4, 5))
        if rank == 4:
            return (r.choice((1, 1, 1, 2)), r.choice((1, 3, 4, 8)), r.randint(3, 9), r.randint(3, 9))
        return (
            *(r.choice((1, 1, 2)) for _ in range(max(rank - 3, 0))),
            *(r.randint(1, 6) for _ in range(min(rank, 3))),
        )

    def _grow(self, r: random.Random, pool: list[torch.Tensor]) -> None:
        i = r.randrange(len(pool)) if r.random() < 0.3 else len(pool) - 1
        x = pool[i]
        kinds = list(KINDS)
        r.shuffle(kinds)
        for kind in kinds:
            made = KINDS[kind](self, r, pool, i, x)
            if made is None:
                continue
            fn, args = made
            y = fn(*(pool[a] for a in args))
            if not isinstance(y, torch.Tensor) or y.numel() > MAX_ELEMENTS or y.numel() == 0 or y.dim() > 5:
                continue
            self._program.append((fn, args))
            self.steps.append(f"{len(pool)}={kind}{args}->{list(y.shape)}")
            pool.append(y)
            return

    def layer(self, r: random.Random, make: Callable[[], nn.Module], fits: Callable[[nn.Module], bool]) -> nn.Module:
        """A new layer, or one used before: shared weights."""
        old = [m for m in self.layers if fits(m)]
        if old and r.random() < 0.4:
            return r.choice(old)
        self.layers.append(make().eval())
        return self.layers[-1]


Made = tuple[Callable[..., Any], list[int]] | None
Maker = Callable[[RandomModel, random.Random, list[torch.Tensor], int, torch.Tensor], Made]


def conv(m: RandomModel, r: random.Random, pool: list[torch.Tensor], i: int, x: torch.Tensor) -> Made:
    if x.dim() != 4 or not x.is_floating_point() or min(x.shape[2:]) < 2:
        return None
    c = x.shape[1]
    groups = r.choice((1, 1, c))
    k = r.choice((1, 2, 3))
    layer = m.layer(
        r,
        lambda: nn.Conv2d(
            c,
            groups * r.choice((1, 2, 4)),
            min(k, *x.shape[2:]),
            r.choice((1, 1, 2)),
            r.choice((0, 1)),
            groups=groups,
            bias=r.random() < 0.7,
        ),
        lambda o: isinstance(o, nn.Conv2d) and o.in_channels == c and max(o.kernel_size) <= min(x.shape[2:]),
    )
    return layer, [i]


def linear(m: RandomModel, r: random.Random, pool: list[torch.Tensor], i: int, x: torch.Tensor) -> Made:
    if x.dim() < 2 or not x.is_floating_point():
        return None
    features = x.shape[-1]
    return m.layer(
        r,
        lambda: nn.Linear(features, r.randint(1, 8)),
        lambda o: isinstance(o, nn.Linear) and o.in_features == features,
    ), [i]


def unary(m: RandomModel, r: random.Random, pool: list[torch.Tensor], i: int, x: torch.Tensor) -> Made:
    if not x.is_floating_point():
        return None
    return r.choice(
        (
            F.relu,
            F.relu6,
            torch.sigmoid,
            torch.tanh,
            F.hardswish,
            F.silu,
            F.gelu,
            torch.abs,
            lambda t: t.clamp(-0.5, 0.8),
            lambda t: t * 1.5,
            lambda t: 1.0 - t,
            lambda t: t / 2 + 0.25,
        )
    ), [i]


def binary(m: RandomModel, r: random.Random, pool: list[torch.Tensor], i: int, x: torch.Tensor) -> Made:
    partners = [j for j, y in enumerate(pool) if y.dtype == x.dtype and x.is_floating_point() and _broadcasts(x, y)]
    return r.choice((torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum)), [
        i,
        r.choice(partners),
    ] if partners else [i, i]


def _broadcasts(x: torch.Tensor, y: torch.Tensor) -> bool:
    try:
        return torch.broadcast_shapes(x.shape, y.shape) == x.shape
    except RuntimeError:
        return False


def pool2d(m: RandomModel, r: random.Random, pool: list[torch.Tensor], i: int, x: torch.Tensor) -> Made:
    if x.dim() != 4 or not x.is_floating_point() or min(x.shape[2:]) < 2:
        return None
    k, s = r.choice((2, 2, 3)), r.choice((1, 2, 3, 4))
    k = min(k, *x.shape[2:])
    return r.choice(
        (
            lambda t: F.max_pool2d(t, k, s),
            lambda t: F.avg_pool2d(t, k, s),
            lambda t: F.adaptive_avg_pool2d(t, 1),
            lambda t: F.avg_pool2d(t, k, s, k // 2),
        )
    ), [i]


def reduce(m: RandomModel, r: random.Random, pool: list[torch.Tensor], i: int, x: torch.Tensor) -> Made:
    if not x.is_floating_point() or not x.dim():
        return None
    d, keep = r.randrange(x.dim()), r.random() < 0.5
    return r.choice(
        (
            lambda t: t.mean(d, keepdim=keep),
            lambda t: t.amax(d, keepdim=keep),
            lambda t: t.sum(d, keepdim=keep),
            lambda t: t.softmax(d),
        )
    ), [i]


def move(m: RandomModel, r: random.Random, pool: list[torch.Tensor], i: int, x: torch.Tensor) -> Made:
    rank = x.dim()
    order = list(range(rank))
    r.shuffle(order)
    d = r.randrange(rank) if rank else 0
    choices: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t.reshape(-1),
        lambda t: t.unsqueeze(0),
        lambda t: t.squeeze(),
    ]
    if rank:
        n = x.shape[d]
        choices += [
            lambda t: t.permute(order),
            lambda t: t.reshape(*t.shape[:d], -1),
            lambda t: t.narrow(d, n // 3, max(n // 2, 1)),
            lambda t: t.select(d, n - 1),
            lambda t: torch.flatten(t, d),
            lambda t: t.transpose(0, d),
        ]
    if x.is_floating_point() and rank:
        choices += [lambda t: F.pad(t, (1, 1)), lambda t: t.repeat_interleave(2, d)]
    return r.choice(choices), [i]


def join(m: RandomModel, r: random.Random, pool: list[torch.Tensor], i: int, x: torch.Tensor) -> Made:
    if not x.dim():
        return None
    d = r.randrange(x.dim())
    partners = [
        j
        for j, y in enumerate(pool)
        if y.dtype == x.dtype
        and y.dim() == x.dim()
        and all(a == b for k, (a, b) in enumerate(zip(x.shape, y.shape)) if k != d)
    ]
    return (lambda *ts: torch.cat(ts, d)), [i, r.choice(partners)]


def cpu_only(m: RandomModel, r: random.Random, pool: list[torch.Tensor], i: int, x: torch.Tensor) -> Made:
    if not x.is_floating_point() or not x.dim():
        return None
    return r.choice(
        (
            lambda t: t.cumsum(-1),
            lambda t: t.flip(-1) if t.dim() else t,
            lambda t: F.layer_norm(t, t.shape[-1:]),
            lambda t: t.argmax(-1),
            lambda t: (t > 0.1).to(torch.float32),
        )
    ), [i]


KINDS: dict[str, Maker] = {
    "conv": conv,
    "conv again": conv,
    "linear": linear,
    "unary": unary,
    "unary again": unary,
    "binary": binary,
    "pool2d": pool2d,
    "reduce": reduce,
    "move": move,
    "move again": move,
    "join": join,
    "cpu": cpu_only,
}
