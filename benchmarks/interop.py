"""Every model of a set against ExecuTorch's own runtime and Model Explorer, in child processes.

    python benchmarks/interop.py --models ../shared/bench/models.py --interop .venv-interop/bin/python

For each model: compiled without a partitioner, it runs in the stock runtime within 1e-4 of eager (relative to the
largest output); quantized and compiled for each target, it loads there as a program with both verification levels, and
Model Explorer's PTE adapter converts it and shows the TOSA graphs of its delegates.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import CALIBRATION, EVALUATION, load_models, outputs_of, run_child

STOCK_CHILD = Path(__file__).resolve().parents[1] / "tests" / "interop" / "pte_child.py"
TOLERANCE = 1e-4
SAMPLES = 2
MODES = ("Minimal", "InternalConsistency")

Job = dict[str, Any]


def compile_all(models: str, name: str, targets: list[str], folder: Path) -> None:
    """Writes the files and the jobs of one model; runs in a child process."""
    import numpy as np
    import torch

    import arm_lower
    from quant import EthosUQuantizer, quantize

    factory, example, generate = load_models(models)[name]
    model, inputs = factory(), example()
    arm_lower.to_edge(torch.export.export(model, inputs)).to_executorch().save(folder / "cpu.pte")
    calls = []
    with torch.no_grad():
        for i, sample in enumerate(generate(EVALUATION[0], SAMPLES)):
            np.savez(folder / f"in{i}.npz", *[x.numpy() for x in sample])
            np.savez(folder / f"eager{i}.npz", *[y.numpy() for y in outputs_of(model(*sample))])
            calls.append({"method": "forward", "inputs": str(folder / f"in{i}.npz")})
    jobs: list[Job] = [{"kind": "run", "pte": str(folder / "cpu.pte"), "calls": calls}]
    quantized = quantize(model, inputs, generate(*CALIBRATION), EthosUQuantizer(targets[0]))
    for target in targets:
        path = folder / f"{target}.pte"
        compiled = arm_lower.compile(quantized, None, target, example_inputs=inputs)
        compiled.save(path)
        graphs = [str(p) for p in sorted(path.with_suffix(".record").glob("*.tosa"))]
        delegates = len(compiled.report.delegates)
        jobs.append({"kind": "load", "pte": str(path), "delegates": delegates})
        jobs.append(
            {"kind": "explore", "pte": str(path), "settings": {"delegate_file_paths": graphs}, "delegates": delegates}
        )
    (folder / "jobs.json").write_text(json.dumps(jobs))


def problems(jobs: list[Job], results: list[Any], folder: Path) -> Iterator[str]:
    """What did not hold, one text each."""
    if len(results) != len(jobs):
        yield f"the child died in job {len(results)}: {jobs[len(results)]}"
    for job, result in zip(jobs, results, strict=False):
        if isinstance(result, dict) and "error" in result:
            yield f"{job['kind']} {Path(job['pte']).name}: {result['error']}"
        elif job["kind"] == "run":
            yield from _wrong_outputs(job, folder)
        elif job["kind"] == "load":
            yield from (f"{job['pte']}: not loaded with {m} verification" for m in MODES if m not in result)
        elif job["kind"] == "explore":
            shown = [graph for graph in result if len(graph["nodes"]) > 2]
            if len(shown) < 1 + job["delegates"]:
                yield f"{Path(job['pte']).name}: Model Explorer shows {len(shown)} graphs of 1 + {job['delegates']}"


def _wrong_outputs(job: Job, folder: Path) -> Iterator[str]:
    import numpy as np

    for i in range(len(job["calls"])):
        with np.load(folder / f"eager{i}.npz") as file:
            eager = [file[k] for k in file.files]
        for mode in MODES:
            with np.load(f"{job['pte']}.{i}.{mode}.npz") as file:
                found = [file[k] for k in file.files]
            for k, (y, z) in enumerate(zip(eager, found, strict=True)):
                error = float(np.abs(y.astype(np.float64) - z).max() / max(np.abs(y).max(), 1e-30))
                if not error <= TOLERANCE:
                    yield f"sample {i}, output {k}, {mode}: relative error {error:.2e}"


def check(options: argparse.Namespace, name: str) -> list[str]:
    """Problems of one model."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ours = [sys.executable, __file__, "--models", options.models, "--targets", options.targets]
        error = run_child([*ours, "--child", name, temporary], options.timeout)
        if error:
            return [f"compiling: {error}"]
        results = folder / "results.json"
        error = run_child([options.interop, str(STOCK_CHILD), str(folder / "jobs.json"), str(results)], options.timeout)
        if not results.is_file():
            return [f"the stock runtime's process: {error}"]
        jobs = json.loads((folder / "jobs.json").read_text())
        return list(problems(jobs, json.loads(results.read_text()), folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, help="Python file with MODELS")
    parser.add_argument("--targets", default="ethos-u55-128,ethos-u85-256", help="comma-separated")
    parser.add_argument("--only", help="comma-separated names of models")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one model")
    default = os.environ.get("ARM_LOWER_INTEROP_PYTHON", ".venv-interop/bin/python")
    parser.add_argument("--interop", default=default, help="interpreter that has ExecuTorch and Model Explorer")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, folder = options.child
        compile_all(options.models, name, options.targets.split(","), Path(folder))
        return 0
    if not Path(options.interop).is_file():
        sys.exit(f"no interpreter {options.interop}: run `make interop`, or give --interop")
    failed = 0
    for name in options.only.split(",") if options.only else load_models(options.models):
        found = check(options, name)
        failed += bool(found)
        print(f"{'FAIL' if found else 'PASS'} {name}", *found, sep="\n     ", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
