"""Programs that make one call of an ATen operator: what torch computes, what the stock runtime does."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from runtime_client import run_all
from torch import Tensor, fx
from torch._ops import OpOverload

from arm_lower.errors import ArmLowerError
from arm_lower.program import to_edge

TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}


class Call(NamedTuple):
    """An operator and its arguments."""

    target: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def __str__(self) -> str:
        def short(t: Tensor) -> str:
            return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"

        args, kwargs = pytree.tree_map_only(Tensor, short, (self.args, self.kwargs))
        return f"{self.target}{tuple(args)}{kwargs or ''}"


class Outcome(NamedTuple):
    """What became of some calls.

    Attributes:
        ran: Number of those that torch, the compiler and the stock runtime took.
        refused: Call as text -> what the compiler said.
        wrong: Call as text -> what the stock runtime did instead.
    """

    ran: int
    refused: dict[str, str]
    wrong: dict[str, str]


def expected(call: Call) -> list[Tensor] | None:
    """The results in torch, or None if it refuses the call or gives no tensors."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = pytree.tree_leaves(call.target(*call.args, **call.kwargs))
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError, AssertionError):
        return None  # a table of combinations has some that do not exist
    return results if results and all(isinstance(r, Tensor) for r in results) else None


def compiled(call: Call, count: int) -> tuple[bytes, list[Tensor]]:
    """A file that makes the call, which has ``count`` results, and its inputs."""
    graph, inputs = fx.Graph(), []

    def feed(tensor: Tensor) -> fx.Node:
        inputs.append(tensor)
        return graph.placeholder(f"x{len(inputs)}")

    args, kwargs = pytree.tree_map_only(Tensor, feed, (call.args, call.kwargs))
    node = graph.call_function(call.target, tuple(args), kwargs)
    results = [node]
    if [str(r.type) for r in call.target._schema.returns] != ["Tensor"]:
        results = [graph.call_function(operator.getitem, (node, i)) for i in range(count)]
    graph.output(tuple(results))
    module = fx.GraphModule(torch.nn.Module(), graph)
    return to_edge(module, tuple(inputs)).to_executorch().buffer, inputs


def run(calls: Iterable[Call], python: Path, folder: Path) -> Outcome:
    """Compiles and runs all calls that torch takes."""
    refused: dict[str, str] = {}
    taken, files = [], []
    for call in calls:
        wanted = expected(call)
        if wanted is None:
            continue
        try:
            data, inputs = compiled(call, len(wanted))
        except ArmLowerError as error:
            refused[str(call)] = error.message
            continue
        taken.append((call, wanted))
        files.append((data, "forward", [inputs]))
    results = run_all(python, files, folder)
    differences = {
        str(call): difference(wanted, found) for (call, wanted), found in zip(taken, results, strict=True)
    }
    return Outcome(len(files), refused, {name: text for name, text in differences.items() if text})


def difference(wanted: list[Tensor], found: Any) -> str:
    """What differs, or an empty string."""
    if isinstance(found, str):
        return found[-300:]
    for a, b in zip(wanted, found[0], strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype}{list(a.shape)} is {b.dtype}{list(b.shape)}"
        tolerance = TOLERANCE.get(a.dtype, 1e-4)
        exact = not a.dtype.is_floating_point
        if not (torch.equal(a, b) if exact else torch.allclose(a, b, tolerance, tolerance, equal_nan=True)):
            return f"{a.tolist()} is {b.tolist()}"
    return ""
