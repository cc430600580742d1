"""CPU operators and whole CPU programs in the stock ExecuTorch runtime, against eager torch."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from op_cases import Module, all_cases, exported
from runtime_client import run_all
from torch import Tensor, nn

from arm_lower.program import to_edge

Results = list[list[Any]]


def compiled(module: nn.Module, inputs: tuple[Any, ...]) -> bytes:
    return to_edge(torch.export.export(module.eval(), inputs)).to_executorch().buffer


def eager(module: nn.Module, calls: list[tuple[Any, ...]]) -> Results:
    """Flat outputs of a copy of ``module`` for calls made one after the other."""
    module = copy.deepcopy(module).eval()
    results = []
    with torch.no_grad():
        for call in calls:
            given = [t.clone() if isinstance(t, torch.Tensor) else t for t in call]
            leaves = pytree.tree_leaves(module(*given), is_leaf=lambda x: x is None)
            results.append([t.clone() if isinstance(t, torch.Tensor) else t for t in leaves])
    return results


def difference(wanted: Results, found: Any) -> str:
    """What differs, or an empty string."""
    if isinstance(found, str):
        return found[-600:]
    for a, b in zip(pytree.tree_leaves(wanted), pytree.tree_leaves(found), strict=True):
        if not isinstance(a, torch.Tensor):
            if a != b:
                return f"{a} is {b}"
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype}{list(a.shape)} is {b.dtype}{list(b.shape)}"
        scale = float(a.double().nan_to_num(0, 0, 0).abs().max()) if a.numel() else 1.0
        if not torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5 * max(scale, 1.0), equal_nan=True):
            return f"off by {float((a.double() - b.double()).abs().max())}"
    return ""


def test_operators(interop_python: Path, tmp_path: Path) -> None:
    cases = all_cases()
    files = [(to_edge(exported(n)).to_executorch().buffer, "forward", [c.inputs]) for n, c in cases.items()]
    results = run_all(interop_python, files, tmp_path)
    wrong = {}
    for (name, case), found in zip(cases.items(), results, strict=True):
        if text := difference(eager(Module(case.function), [case.inputs]), found):
            wrong[name] = text
    assert not wrong


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.full((3,), 3.0))
        self.register_buffer("steps", torch.arange(4))
        self.register_buffer("cache", torch.zeros(2, 5))

    def forward(self, x: Tensor) -> Any:
        self.count.add_(1)
        self.steps.copy_(self.steps + 2)
        self.cache[:, 1:3] = x
        return self.count * 2, self.steps, self.cache + 0, self.cache


class Swap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.ones(3))
        self.register_buffer("b", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        a, b = self.a.clone(), self.b.clone()
        self.a.copy_(b + x)
        self.b.copy_(a)
        return self.a * 1, self.b * 1


class Mixed(nn.Module):
    def forward(self, x: Tensor, k: int, y: float) -> Any:
        return x, x, x + k, k, torch.ones(3) * y


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Hardswish(inplace=True), nn.MaxPool2d(2))
        self.head = nn.Linear(8 * 9, 5)

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        return torch.log_softmax(self.head(y.flatten(1)), 1), y


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.linear(x).relu()
        with torch.autocast("cpu", enabled=False):
            z = self.linear(x)
        return y, y.float() + z


def assign_under_masks(x: Tensor) -> Tensor:
    y = x * 2
    y[y < 0] = 0
    y[:, y[0] > 0.5] = 3
    y[y[:, 0] > 0] = x[0]
    return y


IMAGE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
SMALL = torch.randn(2, 2, generator=torch.Generator().manual_seed(2))
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], list[tuple[Any, ...]]]] = {
    "buffers": (Buffers, [(SMALL,), (SMALL + 1,), (SMALL * 2,)]),
    "buffers swapped": (Swap, [(torch.ones(3),)] * 3),
    "trunk": (Trunk, [(IMAGE,), (IMAGE * 2,)]),
    "channels last": (Trunk, [(IMAGE.to(memory_format=torch.channels_last),)]),
    "numbers": (Mixed, [(SMALL, 3, 2.0)]),
    "input changed in place": (lambda: Module(lambda x: x.relu_() + 1), [(SMALL,)]),
    "autocast": (Autocast, [(torch.linspace(-2, 2, 16).reshape(2, 8),)]),
    "vmap": (lambda: Module(lambda x: torch.vmap(torch.dot)(x, x + 1)), [(SMALL,)]),
    "masks": (lambda: Module(assign_under_masks), [(IMAGE[0, 0],)]),
    "as_strided": (lambda: Module(lambda x: (x + 1).as_strided((5, 3), (1, 2), 9) * 1), [(IMAGE,)]),
    "no inputs": (lambda: Module(lambda: torch.arange(5) * 2), [()]),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), [(torch.randn(2, 6, 16),)]),
}


def test_programs(interop_python: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    modules = {name: factory() for name, (factory, _) in PROGRAMS.items()}
    wanted = {name: eager(module, PROGRAMS[name][1]) for name, module in modules.items()}
    files = [(compiled(module, PROGRAMS[name][1][0]), "forward", PROGRAMS[name][1]) for name, module in modules.items()]
    results = run_all(interop_python, files, tmp_path)
    assert {
        name: difference(wanted[name], found) for name, found in zip(modules, results, strict=True)
    } == dict.fromkeys(modules, "")


def test_inputs_and_outputs_in_the_arena_or_not(interop_python: Path, tmp_path: Path) -> None:
    module = Trunk()
    manager = to_edge(torch.export.export(module.eval(), (IMAGE,)))
    calls = [(IMAGE,), (IMAGE + 1,)]
    files = [manager.to_executorch(alloc_graph_input=p, alloc_graph_output=p).buffer for p in (True, False)]
    for found in run_all(interop_python, [(data, "forward", calls) for data in files], tmp_path):
        assert difference(eager(module, calls), found) == ""


def test_methods(interop_python: Path, tmp_path: Path) -> None:
    module = Trunk()
    exported = {
        "train_of_thought": torch.export.export(module.eval(), (IMAGE,)),
        "double": torch.export.export(Module(lambda x: x * 2), (SMALL,)),
    }
    data = to_edge(exported).to_executorch().buffer
    found = run_all(interop_python, [(data, "double", [(SMALL,)]), (data, "train_of_thought", [(IMAGE,)])], tmp_path)
    assert difference([[SMALL * 2]], found[0]) == ""
    assert difference(eager(module, [(IMAGE,)]), found[1]) == ""


def quantize_chain(x: Tensor) -> Tensor:
    q = torch.ops.quantized_decomposed
    for layer in range(3):
        x = q.quantize_per_tensor(x, 0.05, -layer, -128, 127, torch.int8)
        x = q.dequantize_per_tensor(x, 0.05, -layer, -128, 127, torch.int8)
        x = F.hardtanh(x + 0.5, -3.0, 3.0)
    return x


def test_quantized_graph_on_the_cpu(interop_python: Path, tmp_path: Path) -> None:
    module = Module(quantize_chain)
    program = to_edge(torch.export.export(module, (IMAGE,)).module(), (IMAGE,)).to_executorch()
    assert {"quantized_decomposed::quantize_per_tensor.out"} < set(program.kernels)
    (found,) = run_all(interop_python, [(program.buffer, "forward", [(IMAGE,)])], tmp_path)
    assert difference(eager(module, [(IMAGE,)]), found) == ""


UNARY = (
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    F.hardswish,
    F.silu,
    F.gelu,
    F.softplus,
    torch.abs,
    lambda x: x * 0.5,
    lambda x: x - 1.0,
    lambda x: x.softmax(-1),
    lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: x.flip(0),
    lambda x: x.clamp(-1, 1),
    lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    lambda x: x.reshape(-1).view(x.shape),
    lambda x: torch.cat(torch.chunk(x, 2, -1)[::-1], -1) if x.shape[-1] > 1 else x,
    lambda x: (x + 1).relu_(),
    lambda x: torch.stack(x.unbind(0)[::-1]),
    lambda x: F.pad(x, (1, 1))[..., 1:-1],
    lambda x: x.cumsum(0),
)
BINARY = (
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    torch.minimum,
    lambda x, y: torch.where(x > y, x, y * 2),
    lambda x, y: x + y.mean(-1, keepdim=True),
    lambda x, y: x * y.amax(0, keepdim=True),
    lambda x, y: x / (y.abs() + 1),
    lambda x, y: torch.matmul(x.reshape(x.shape[0], -1), y.reshape(y.shape[0], -1).t()).sum() + x,
)


class RandomGraph(nn.Module):
    """A random chain with branches over one shape; several outputs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        rank = draw.randint(2, 4)
        self.shape = tuple(draw.randint(1, 6) for _ in range(rank))
        self.steps: list[tuple[Any, int, int]] = []
        for i in range(draw.randint(1, 12)):
            arity = draw.random()
            operation = draw.choice(UNARY) if arity < 0.6 else draw.choice(BINARY)
            self.steps.append((operation, draw.randint(0, i + 1), draw.randint(0, i + 1) if arity >= 0.6 else -1))
        self.outputs = sorted({draw.randint(0, len(self.steps) + 1), len(self.steps) + 1})

    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        values = [x, y]
        for operation, a, b in self.steps:
            values.append(operation(values[a]) if b < 0 else operation(values[a], values[b]))
        return [values[i] for i in self.outputs]

    def inputs(self) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(len(self.steps))
        return torch.randn(self.shape, generator=g), torch.randn(self.shape, generator=g)


def test_random_graphs(interop_python: Path, tmp_path: Path) -> None:
    modules = [RandomGraph(seed) for seed in range(100)]
    files = [(compiled(m, m.inputs()), "forward", [m.inputs()]) for m in modules]
    results = run_all(interop_python, files, tmp_path)
    wrong = {
        seed: text
        for seed, (m, found) in enumerate(zip(modules, results, strict=True))
        if (text := difference(eager(m, [m.inputs()]), found))
    }
    assert not wrong
