"""Runs in an environment with the stock ExecuTorch and Model Explorer, as a child process of the tests.

``python pte_child.py JOBS.json RESULTS.json``: a job is an object with a ``kind`` (a function below); its result is
the function's value or ``{"error": text}``. A crash loses the jobs that follow, so their results are missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401  (registers the quantized kernels)
import numpy as np
import torch
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.runtime import Runtime, Verification

Job = dict[str, Any]


def run(job: Job) -> Any:
    """Executes the calls of a program in both verification modes and saves what they return."""
    for mode in (Verification.Minimal, Verification.InternalConsistency):
        program = Runtime.get().load_program(Path(job["pte"]), verification=mode)
        methods = {name: program.load_method(name) for name in program.method_names}
        for i, call in enumerate(job["calls"]):
            with np.load(call["inputs"]) as file:
                inputs = [torch.from_numpy(file[key]) for key in file.files]
            outputs = methods[call["method"]].execute(inputs)
            np.savez(f"{job['pte']}.{i}.{mode.name}.npz", *[np.array(o) for o in outputs])
    return {"methods": sorted(methods)}


def load(job: Job) -> Any:
    """Loads program and method without executing; says how far it came."""
    found = {}
    for mode in (Verification.Minimal, Verification.InternalConsistency):
        program = Runtime.get().load_program(Path(job["pte"]), verification=mode)
        found[mode.name] = {"methods": sorted(program.method_names)}
        try:
            program.load_method("forward")
        except RuntimeError as error:
            found[mode.name]["error"] = str(error)
    return found


def exir(job: Job) -> Any:
    """Reads a file with the exporter's own reader."""
    file = deserialize_pte_binary(Path(job["pte"]).read_bytes())
    plan = file.program.execution_plan[0]
    return {
        "values": len(plan.values),
        "instructions": len(plan.chains[0].instructions),
        "constants": [len(b.storage) for b in file.program.constant_buffer],
        "delegates": [len(d.data) for d in file.program.backend_delegate_data],
        "mutable": [len(b.storage) for b in file.mutable_data or []],
        "named": sorted(file.named_data.pte_data) if file.named_data else [],
    }


def explore(job: Job) -> Any:
    """Converts a file with Model Explorer's adapter; labels and edges of each graph."""
    from pte_adapter_model_explorer.main import PTEAdapter

    collections = PTEAdapter().convert(job["pte"], job.get("settings", {}))["graphCollections"]
    return [
        {
            "graph": graph.id,
            "nodes": [node.label for node in graph.nodes],
            "edges": sum(len(node.incomingEdges or []) for node in graph.nodes),
        }
        for collection in collections
        for graph in collection.graphs
    ]


def export(job: Job) -> Any:
    """Writes programs with the exporter, each with inputs and eager outputs beside it."""
    torch.manual_seed(0)
    folder = Path(job["folder"])
    blob = Path(job["blob"]).read_bytes()
    names = []
    for name, make in _PEERS.items():
        data, inputs, outputs = make(blob)
        (folder / f"{name}.pte").write_bytes(data)
        for i, (args, results) in enumerate(zip(inputs, outputs, strict=True)):
            np.savez(folder / f"{name}.in{i}.npz", *[a.numpy() for a in args])
            np.savez(folder / f"{name}.out{i}.npz", *[r.detach().numpy() for r in results])
        names.append(name)
    return names


class EthosUBackend(BackendDetails):  # type: ignore[misc]
    """Stands in for the peer's compiler: the exporter writes the given stream as it would write Vela's."""

    @staticmethod
    def preprocess(program: Any, specs: list[CompileSpec]) -> PreprocessResult:
        by_key = {spec.key: spec.value for spec in specs}
        return PreprocessResult(processed_bytes=by_key["blob"])


class _Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.Hardswish(), torch.nn.AvgPool2d(2)
        )
        self.classifier = torch.nn.Linear(128, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.features(x)
        return torch.softmax(self.classifier(torch.cat([y, -y], 1)[:, :8].flatten(1)), -1)


class _Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.add_(x)
        return self.state * 2


class _Pick(torch.nn.Module):
    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        return torch.cond(flag, lambda t: t + 1, lambda t: t * 2, (x,))


class _Split(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = torch.split(x.reshape(x.shape[0], 4, 2), 2, dim=1)
        return a.contiguous() * b, torch.max(x, dim=1).indices


Peer = tuple[bytes, list[tuple[torch.Tensor, ...]], list[tuple[torch.Tensor, ...]]]


def _edge(model: torch.nn.Module, args: tuple[torch.Tensor, ...], shapes: Any = None) -> Any:
    exported = torch.export.export(model.eval(), args, dynamic_shapes=shapes, strict=False)
    return to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))


def _peer(model: torch.nn.Module, *inputs: tuple[torch.Tensor, ...], shapes: Any = None) -> Peer:
    data = _edge(model, inputs[0], shapes).to_executorch().buffer
    return data, list(inputs), [_tuple(model(*args)) for args in inputs]


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _network(_: bytes) -> Peer:
    return _peer(_Network().eval(), (torch.randn(1, 3, 8, 8),))


def _counter(_: bytes) -> Peer:
    # Exported from zeros, which is also what the exporter's default (no initial state in the file) gives.
    x = torch.tensor([1.0, 2.0, 3.0])
    data = _edge(_Counter(), (x,)).to_executorch().buffer
    return data, [(x,), (x,)], [(x * 2,), (x * 4,)]


def _pick(_: bytes) -> Peer:
    x = torch.randn(2, 3)
    return _peer(_Pick(), (x, torch.tensor(True)), (x, torch.tensor(False)))


def _split(_: bytes) -> Peer:
    batch = torch.export.Dim("batch", min=1, max=4)
    return _peer(_Split(), (torch.randn(3, 8),), (torch.randn(2, 8),), shapes=({0: batch},))


def _methods(_: bytes) -> Peer:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    programs = {name: torch.export.export(model, (x,)) for name in ("forward", "again")}
    data = to_edge(programs, constant_methods={"get_size": 7}).to_executorch().buffer
    return data, [(x,)], [(model(x),)]


def _xnnpack(_: bytes) -> Peer:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    x = torch.randn(2, 8)
    exported = torch.export.export(model, (x,))
    data = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch().buffer
    return data, [(x,)], [(model(x),)]


def _ethosu(blob: bytes) -> Peer:
    from executorch.exir.backend.backend_api import to_backend

    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.amax(x, (2, 3)).repeat(1, 2)[:, :4]

    inner = to_edge(torch.export.export(Inner(), (torch.zeros(1, 3, 8, 8, dtype=torch.int8),))).exported_program()
    lowered = to_backend("EthosUBackend", inner, [CompileSpec("blob", blob), CompileSpec("target", b"ethos-u55-128")])

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lowered = lowered

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lowered(x.to(torch.int8)).to(torch.float32)

    data = _edge(Outer(), (torch.zeros(1, 3, 8, 8),)).to_executorch().buffer
    return data, [], []


_PEERS: dict[str, Callable[[bytes], Peer]] = {
    "network": _network,
    "counter": _counter,
    "pick": _pick,
    "split": _split,
    "methods": _methods,
    "xnnpack": _xnnpack,
    "ethosu": _ethosu,
}
_KINDS: dict[str, Callable[[Job], Any]] = {"run": run, "load": load, "exir": exir, "explore": explore, "export": export}


def main(jobs_path: str, results_path: str) -> None:
    torch.set_num_threads(1)
    results = []
    for job in json.loads(Path(jobs_path).read_text()):
        try:
            results.append(_KINDS[job["kind"]](job))
        except Exception as error:  # noqa: BLE001  (whatever the peer raises is the result)
            results.append({"error": f"{type(error).__name__}: {error}"})
        Path(results_path).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
