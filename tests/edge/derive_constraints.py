"""Derives arm_lower/edge/constraints.yaml and arm_lower/kernels/dtypes.yaml by trying.

    python tests/edge/derive_constraints.py INTEROP_PYTHON

Every operator of the cases in tests/op_cases.py (as exported, and as expanded for the portable kernels) is
called in eager torch with each dtype in each tensor argument: what torch accepts is what the Edge dialect
allows. What has a kernel is then run in the stock ExecuTorch runtime with the dtypes that torch accepts: what
fails there, or gives other numbers, is left out of the kernel's dtypes.
"""

from __future__ import annotations

import operator
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
import yaml
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from op_cases import all_cases, exported  # noqa: E402
from runtime_client import run_all  # noqa: E402

from arm_lower.edge import build, cpu  # noqa: E402
from arm_lower.edge.meta import fake  # noqa: E402
from arm_lower.edge.program import EdgeProgram  # noqa: E402
from arm_lower.errors import ArmLowerError  # noqa: E402
from arm_lower.kernels import kernel_for  # noqa: E402
from arm_lower.kernels.emit import emit  # noqa: E402
from arm_lower.kernels.limits import limited  # noqa: E402
from arm_lower.pte import emit as pte  # noqa: E402
from arm_lower.pte.model import ProgramBuilder  # noqa: E402

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
)  # fmt: skip
SETS = {
    "any": [str(d)[6:] for d in DTYPES],
    "number": [str(d)[6:] for d in DTYPES if d != torch.bool],
    "integer": [str(d)[6:] for d in DTYPES if not d.is_floating_point and d != torch.bool],
    "integer_or_bool": [str(d)[6:] for d in DTYPES if not d.is_floating_point],
    "float": [str(d)[6:] for d in DTYPES if d.is_floating_point],
    "index": ["int32", "int64"],
}

Call = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]


class _Recorder(fx.Interpreter):
    """Keeps the first call of each operator with its real arguments."""

    def __init__(self, program: EdgeProgram, calls: dict[str, Call]) -> None:
        super().__init__(program.graph_module)
        self.calls = calls

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(target, OpOverload):
            self.calls.setdefault(str(target), (target, args, kwargs))
        return super().call_function(target, args, kwargs)


def example_calls() -> dict[str, Call]:
    """One call of every operator, by operator name."""
    calls: dict[str, Call] = {}
    for name, case in all_cases().items():
        for prepare in (False, True):
            program = build.from_exported(exported(name))
            if prepare:
                cpu.prepare(program)
            with torch.no_grad():
                _Recorder(program, calls).run(*pytree.tree_leaves(case.inputs), *program.constants.values())
    return {name: calls[name] for name in sorted(calls)}


def variants(call: Call) -> Iterator[tuple[str, torch.dtype, bool, Call]]:
    """(argument, dtype, alone, call): the call with one tensor argument, or all of its kind, in another dtype."""
    target, args, kwargs = call
    for i, argument in enumerate(target._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        if not any(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(value)):
            continue
        own = next(v.dtype for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor))
        for dtype in DTYPES:
            one = pytree.tree_map_only(torch.Tensor, lambda t, d=dtype: t.to(d), value)
            alone = (
                tuple(one if j == i else a for j, a in enumerate(args)),
                {**kwargs, **({argument.name: one} if argument.name in kwargs else {})},
            )
            yield argument.name, dtype, True, (target, *alone)
            yield argument.name, dtype, False, (target, *_converted((args, kwargs), own, dtype))


def _converted(given: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """Arguments with every tensor of dtype ``old``, and every literal ``old``, as ``new``."""

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype == old:
            return value.to(new)
        return new if value is old else value

    return pytree.tree_map(convert, given)


def accepted(call: Call) -> Any:
    """What eager torch gives, or None if it refuses: the refusals are what the tables are made of."""
    target, args, kwargs = call
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return target(*args, **kwargs)
    except (RuntimeError, TypeError, IndexError, NotImplementedError, ValueError, AssertionError):
        return None


def torch_table(calls: Mapping[str, Call]) -> dict[str, dict[str, Any]]:
    """Operator -> argument -> dtypes, and ``same``: arguments whose dtypes must agree."""
    table: dict[str, dict[str, Any]] = {}
    for name, call in calls.items():
        if accepted(call) is None:
            raise ValueError(f"{name}: torch refuses the call that its dtypes are derived from")
        allowed: dict[str, dict[torch.dtype, set[bool]]] = {}
        for argument, dtype, alone, variant in variants(call):
            found = allowed.setdefault(argument, {})
            if accepted(variant) is not None:
                found.setdefault(dtype, set()).add(alone)
        if not allowed:
            continue
        entry: dict[str, Any] = {
            argument: name_set([str(d)[6:] for d in DTYPES if d in found]) for argument, found in allowed.items()
        }
        tied = [argument for argument, found in allowed.items() if any(True not in ways for ways in found.values())]
        if len(tied) > 1:
            entry["same"] = tied
        table[name] = entry
    return table


def name_set(names: list[str]) -> Any:
    """The name of a set with these members, or the list."""
    return next((key for key, members in SETS.items() if members == names), names)


def one_call(call: Call) -> tuple[bytes, list[torch.Tensor]] | None:
    """A file that makes this call only, and its inputs; None if no kernel takes it."""
    target, args, kwargs = call
    if kernel_for(target) is None or limited(target, args, kwargs) is not None:
        return None
    graph, inputs = fx.Graph(), []
    mode = FakeTensorMode()

    def feed(tensor: torch.Tensor) -> fx.Node:
        node = graph.placeholder(f"x{len(inputs)}")
        node.meta["val"] = fake(mode, tensor.shape, tensor.dtype)
        inputs.append(tensor.contiguous())
        return node

    def blank(value: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: fake(mode, t.shape, t.dtype), value)

    node_args, node_kwargs = pytree.tree_map_only(torch.Tensor, feed, (args, kwargs))
    node = graph.call_function(target, tuple(node_args), node_kwargs)
    value = blank(accepted(call))
    node.meta["val"] = tuple(value) if isinstance(value, list) else value
    results: list[fx.Node] = [node]
    if not isinstance(value, torch.Tensor):
        results = []
        for i, item in enumerate(value):
            part = graph.call_function(operator.getitem, (node, i))
            part.meta["val"] = item
            results.append(part)
    graph.output(tuple(results))
    program = EdgeProgram("forward", fx.GraphModule(torch.nn.Module(), graph), {})
    builder = ProgramBuilder()
    cpu._fit_scalars(program)
    emit(program, builder)
    return pte.emit(builder.build()), inputs


def kernel_table(calls: Mapping[str, Call], python: Path, folder: Path) -> dict[str, dict[str, list[str]]]:
    """Operator -> argument -> dtypes that its kernel handles, where that is less than torch accepts."""
    trials: list[tuple[str, str, torch.dtype, Any]] = []
    cases = []
    for name, call in calls.items():
        for argument, dtype, _, variant in variants(call):
            wanted = accepted(variant)
            try:
                built = None if wanted is None else one_call(variant)
            except ArmLowerError:
                built = None
            if built is not None:
                trials.append((name, argument, dtype, wanted))
                cases.append((built[0], "forward", [built[1]]))
    print(len(cases), "programs", flush=True)
    results = run_all(python, cases, folder)
    good: dict[str, dict[str, set[torch.dtype]]] = {}
    tried: dict[str, dict[str, set[torch.dtype]]] = {}
    for (name, argument, dtype, wanted), result in zip(trials, results, strict=True):
        tried.setdefault(name, {}).setdefault(argument, set()).add(dtype)
        good.setdefault(name, {}).setdefault(argument, set())
        if not isinstance(result, str) and all(map(agrees, pytree.tree_leaves(wanted), result[0])):
            good[name][argument].add(dtype)
        else:
            print(name, argument, dtype, result if isinstance(result, str) else "other numbers", flush=True)
    return {
        name: {
            a: [str(d)[6:] for d in DTYPES if d in good[name][a]] for a in arguments if good[name][a] != arguments[a]
        }
        for name, arguments in tried.items()
        if any(good[name][a] != arguments[a] for a in arguments)
    }


def agrees(wanted: torch.Tensor, found: torch.Tensor) -> bool:
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return False
    coarse = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(wanted.dtype, 1e-3)
    a, b = wanted.double(), found.double()
    return torch.allclose(a, b, rtol=coarse, atol=coarse, equal_nan=True)


def document(title: str, **parts: Any) -> str:
    return f"# {title}\n# Made by tests/edge/derive_constraints.py.\n" + "".join(
        yaml.safe_dump({key: value}, default_flow_style=None, sort_keys=False, width=118)
        for key, value in parts.items()
    )


def main() -> None:
    torch.set_num_threads(1)
    calls = example_calls()
    print(len(calls), "operators", flush=True)
    text = document(
        "Dtypes that the tensor arguments of an Edge operator may have: what eager torch accepts.\n"
        "# `same` lists arguments that must have one dtype.",
        sets=SETS, operators=torch_table(calls),
    )  # fmt: skip
    (ROOT / "arm_lower/edge/constraints.yaml").write_text(text, encoding="utf-8")
    if len(sys.argv) < 2:
        return
    with tempfile.TemporaryDirectory() as folder:
        kernels = kernel_table(calls, Path(sys.argv[1]), Path(folder))
    text = document(
        "Dtypes that a portable kernel handles in an argument, where that is less than torch accepts, as seen with\n"
        "# the ExecuTorch 1.5.1 runtime.",
        operators=kernels,
    )
    (ROOT / "arm_lower/kernels/dtypes.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
