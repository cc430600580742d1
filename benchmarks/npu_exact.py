"""Every delegate of the benchmark models on the NPU model, under every memory mode and both optimisation goals.

    python benchmarks/npu_exact.py --models ../shared/bench/models.py

Each model is compiled once for a target; the delegates' inputs are those of whole runs of the ``.pte`` on real
samples. Then Vela compiles each delegate's TOSA graph again for every memory mode and ``optimise``, the NPU model
executes the stream, and every output byte of three samples and every layer of one sample is compared with the TOSA
reference model. Each model runs in a child process. The exit code is the number of rows that are not exact.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import CALIBRATION, EVALUATION, load_models, run_child

TARGETS = "ethos-u55-128,ethos-u65-512,ethos-u85-256"
SAMPLES = 3
Row = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One delegate call of a run: which delegate, and its inputs."""

    number: int
    inputs: list[Any]


def delegate_calls(compiled: Any, samples: list[tuple[Any, ...]]) -> list[Call]:
    """The delegate calls of running the file on the samples, delegates on the NPU model."""
    import numpy as np

    from fvp.ethosu.delegate import run_delegate
    from tosa_ref.host import Host

    calls: list[Call] = []

    def watch(number: int, blob: bytes, inputs: list[Any]) -> list[Any]:
        calls.append(Call(number, [np.array(a) for a in inputs]))
        return run_delegate(number, blob, inputs)

    host = Host(compiled.buffer, delegate_runner=watch)
    for sample in samples:
        host.run([x.numpy() for x in sample])
    return calls


def compile_delegate(tosa: bytes, target: str, mode: str, optimise: str) -> Any:
    """Vela's raw model with its debug database; RuntimeError if Vela refuses."""
    from ethosu import regor

    from arm_lower.spec import EthosUCompileSpec

    spec = EthosUCompileSpec(target, memory_mode=mode)
    system = f"[architecture]\nmacs={spec.macs // spec.cores}\ncores={spec.cores}\n[vela]\n"
    system += f"system_config_name={spec.system_config}\nmemory_mode_name={mode}\n{spec.ini.text}\n"
    options = "[compiler]\nenable_db=true\noutput_format=Raw\ncop_format=COP1\n[scheduler]\n"
    options += f"optimize={optimise}\narena_size_limit={spec.arena_limit}\ndisable_feature=\n"
    options += "cpu_tensor_alignment=16\ntensor_allocator=HillClimb\n[graph]\n"
    return regor.compile(f"Ethos{spec.family.upper()}", tosa, "TOSA", system, options, False)


@dataclass
class Reference:
    """One delegate on the reference model: its outputs, and for one call every tensor that a layer may write."""

    graph: Any
    model: Any
    inner: dict[str, Any] | None = None

    def given(self, call: Call) -> list[Any]:
        import numpy as np

        signature = self.model.signature.inputs
        return [np.frombuffer(a.tobytes(), t.dtype.numpy).reshape(t.shape) for a, t in zip(call.inputs, signature)]

    def outputs(self, call: Call) -> list[Any]:
        found: list[Any] = self.model.run(self.given(call))
        return found

    def tensors(self, call: Call) -> dict[str, Any]:
        """Values of all intermediate tensors by name; int48 cannot leave the reference model."""
        from arm_lower.tosa.ir import DType, Graph
        from tosa_ref.run import run

        if self.inner is None:
            made = [t for op in self.graph.ops for t in op.outputs if t.dtype is not DType.INT48]
            values = run(Graph("all", self.graph.inputs, made, self.graph.ops), self.given(call))
            self.inner = {t.name: v for t, v in zip(made, values)}
        return self.inner


def measure(models: str, name: str, targets: list[str], modes: list[str]) -> list[Row]:
    """Rows of one model: target, memory mode, optimise, delegates, what was compared and what differs."""
    import arm_lower
    from arm_lower.errors import ArmLowerError
    from arm_lower.spec import EthosUCompileSpec
    from quant import EthosUQuantizer, quantize
    from tosa_ref.run import ReferenceModel

    factory, example, generate = load_models(models)[name]
    inputs = example()
    samples = generate(EVALUATION[0], SAMPLES)
    rows: list[Row] = []
    for target in targets:
        quantized = quantize(factory(), inputs, generate(*CALIBRATION), EthosUQuantizer(target))
        compiled = arm_lower.compile(quantized, None, target, example_inputs=inputs, effort="fast")
        calls = delegate_calls(compiled, samples)
        references = [Reference(d.tosa, ReferenceModel(d.tosa_bytes)) for d in compiled.delegates]
        wanted = [references[call.number].outputs(call) for call in calls]
        for mode in modes or EthosUCompileSpec(target).ini.names("Memory_Mode"):
            for optimise in ("Size", "Performance"):
                row: Row = {"model": name, "target": target, "memory_mode": mode, "optimise": optimise}
                try:
                    made = [compile_delegate(d.tosa_bytes, target, mode, optimise) for d in compiled.delegates]
                except (RuntimeError, ArmLowerError) as error:  # Vela's refusal, or a mode that this system lacks
                    rows.append({**row, "refused": str(error)})
                    continue
                rows.append({**row, **compare(made, calls, wanted, references)})
    return rows


def compare(made: list[Any], calls: list[Call], wanted: list[list[Any]], references: list[Reference]) -> Row:
    """Every output of every call, and every layer of the first call of each delegate."""
    import numpy as np

    from fvp.ethosu import IO, database_tables, first_difference, hazards, load, run_traced, sources

    compared, wrong, layers, first = 0, 0, 0, ""
    traced: set[int] = set()
    started = time.perf_counter()
    for call, want in zip(calls, wanted):
        m = made[call.number]
        program = load(m.command_stream)
        raw: list[Any] = [a.tobytes() for a in call.inputs]
        descs = [[IO.of(t) for t in side] for side in (m.inputs, m.outputs)]
        fast = m.scratch_fast.size if m.scratch_fast else None
        if call.number in traced:
            found = program.run(bytes(m.read_only.data), raw, *descs, m.scratch.size, fast)
        else:
            traced.add(call.number)
            known = sources(database_tables(m.opt_database), program.stream.start)
            read_only = bytes(m.read_only.data)
            found, steps = run_traced(program, read_only, raw, *descs, m.scratch.size, fast, known, keep=True)
            inner = references[call.number].tensors(call)
            layers += len({s.source.name for s in steps if s.source and s.source.name in inner})
            difference = first_difference(steps, inner)
            if difference is not None:
                wrong += difference.count
                first = first or f"call {call.number}, {difference}"
        for k, (a, b) in enumerate(zip(want, found)):
            bad = np.flatnonzero(np.asarray(a).ravel().astype(np.int64) != b.ravel().astype(np.int64))
            compared += b.nbytes
            wrong += len(bad)
            if len(bad) and not first:
                at = int(bad[0])
                first = f"call {call.number}, output {k}, element {at}: {a.ravel()[at]} != {b.ravel()[at]}"
    late = [str(h) for m in made for h in hazards(load(m.command_stream))]
    seconds = time.perf_counter() - started
    return {
        **{"delegates": len(made), "compared": compared, "layers": layers, "wrong": wrong, "first": first},
        **{"hazards": late, "seconds": seconds},
    }


def line(row: Row) -> str:
    label = f"{row['model']:20} {row['target'].removeprefix('ethos-'):9} {row['memory_mode']:20} {row['optimise']:12}"
    if "refused" in row:
        return f"{label} refused: {row['refused'].splitlines()[0][:100]}"
    verdict = "exact" if not row["wrong"] else f"{row['wrong']} WRONG: {row['first']}"
    late = f", {len(row['hazards'])} hazards" if row["hazards"] else ""
    return f"{label} {row['delegates']:3} {row['compared']:10,} bytes {row['layers']:4} layers {verdict}{late}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, help="Python file with MODELS")
    parser.add_argument("--targets", default=TARGETS, help="comma-separated")
    parser.add_argument("--modes", default="", help="comma-separated memory modes; all by default")
    parser.add_argument("--only", help="comma-separated names of models")
    parser.add_argument("--json", type=Path, help="file for all rows, written after each model")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one model")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    targets, modes = options.targets.split(","), [m for m in options.modes.split(",") if m]
    if options.child:
        options.json.write_text(json.dumps(measure(options.models, options.child, targets, modes)))
        return 0
    names = options.only.split(",") if options.only else list(load_models(options.models))
    rows: list[Row] = []
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.json"
            command = [sys.executable, __file__, "--models", options.models, "--targets", options.targets]
            command += ["--modes", options.modes, "--child", name, "--json", str(file)]
            error = run_child(command, options.timeout)
            found = [] if error else json.loads(file.read_text())
        if error:
            failed += 1
            print(f"{name:20} FAILED: {error}", flush=True)
        for row in found:
            print(line(row), flush=True)
        rows += found
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
    compared = [r for r in rows if "refused" not in r]
    wrong = sum(bool(r["wrong"]) for r in compared)
    late = sum(bool(r["hazards"]) for r in compared)
    print(
        f"{len(compared)} programs, {sum(r['compared'] for r in compared):,} output bytes and "
        f"{sum(r['layers'] for r in compared):,} layers compared: {len(compared) - wrong} exact, {wrong} not; "
        f"{len(rows) - len(compared)} refused by Vela, {failed} models failed, {late} programs with hazards"
    )
    return wrong + failed


if __name__ == "__main__":
    sys.exit(main())
