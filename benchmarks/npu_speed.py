"""How long the NPU model takes, beside the TOSA reference model in the same process on the same delegates.

    python benchmarks/npu_speed.py --models ../shared/bench/models.py

For each model and target: seconds of all delegate calls of one sample, the smallest of several runs of either side,
taken in turn; "first" is the first run of the NPU model, which decodes the weights; the peak is what the NPU model
allocates in a first run, caches included. Each model runs in a child process of one thread. Bars: the geometric mean
of the ratios at most 3, MobileNetV2 on ethos-u55-128 under 2 s, under 1 GB.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

from common import CALIBRATION, EVALUATION, load_models, run_child

RATIO = 3.0
MOBILENET_SECONDS = 2.0
MEGABYTES = 1000.0
Row = dict[str, Any]


def measure(models: str, name: str, targets: list[str], repeats: int) -> list[Row]:
    """Rows of one model, one for each target."""
    import numpy as np
    from npu_exact import delegate_calls

    import arm_lower
    from fvp.ethosu import load
    from quant import EthosUQuantizer, quantize
    from tosa_ref.run import ReferenceModel

    factory, example, generate = load_models(models)[name]
    inputs = example()
    rows = []
    for target in targets:
        quantized = quantize(factory(), inputs, generate(*CALIBRATION), EthosUQuantizer(target))
        compiled = arm_lower.compile(quantized, None, target, example_inputs=inputs, effort="fast")
        delegates = compiled.delegates
        calls = delegate_calls(compiled, generate(EVALUATION[0], 1))
        references = [ReferenceModel(d.tosa_bytes) for d in delegates]
        given = []
        for call in calls:
            signature = references[call.number].signature.inputs
            arrays = [
                np.frombuffer(a.tobytes(), t.dtype.numpy).reshape(t.shape) for a, t in zip(call.inputs, signature)
            ]
            given.append(arrays)

        reference, npu = partial(run_reference, references, calls, given), partial(run_npu, delegates, calls)
        reference()
        forget()
        tracemalloc.start()
        npu()
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        forget()
        first = seconds(npu)
        pairs = [(seconds(reference), seconds(npu)) for _ in range(repeats)]
        slow, fast_s = (min(p[i] for p in pairs) for i in (0, 1))
        row = {
            "model": name,
            "target": target,
            "reference_s": slow,
            "npu_s": fast_s,
            "first_s": first,
            "peak_mb": peak,
        }
        row["operations"] = sum(len(load(d.vela.command_stream).tasks) for d in delegates)
        rows.append(row)
    return rows


def run_reference(references: list[Any], calls: list[Any], given: list[Any]) -> None:
    for call, arrays in zip(calls, given):
        references[call.number].run(arrays)


def run_npu(delegates: list[Any], calls: list[Any]) -> None:
    from fvp.ethosu import load

    for call in calls:
        v = delegates[call.number].vela
        raw: list[Any] = [a.tobytes() for a in call.inputs]
        sizes = v.scratch_size, v.scratch_fast_size or None
        load(v.command_stream).run(v.read_only, raw, v.inputs, v.outputs, *sizes)


def forget() -> None:
    """Empties the caches of decoded programs and weights."""
    from fvp.ethosu import exec as executor
    from fvp.ethosu.program import load
    from fvp.ethosu.weights import positions

    load.cache_clear()
    positions.cache_clear()
    executor.clear_caches()


def seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def line(row: Row) -> str:
    return (
        f"{row['model']:20} {row['target'].removeprefix('ethos-'):9} {row['operations']:5} operations  "
        f"reference {row['reference_s']:8.3f} s  NPU model {row['npu_s']:8.3f} s (first {row['first_s']:7.3f} s)  "
        f"ratio {row['npu_s'] / row['reference_s']:5.2f}  peak {row['peak_mb']:.0f} MB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, help="Python file with MODELS")
    parser.add_argument("--targets", default="ethos-u55-128,ethos-u85-256", help="comma-separated")
    parser.add_argument("--only", help="comma-separated names of models")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for all rows")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        rows = measure(options.models, options.child, options.targets.split(","), options.repeats)
        options.json.write_text(json.dumps(rows))
        return 0
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    names = options.only.split(",") if options.only else list(load_models(options.models))
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.json"
            command = [sys.executable, __file__, "--models", options.models, "--targets", options.targets]
            command += ["--repeats", str(options.repeats), "--child", name, "--json", str(file)]
            error = run_child(command, 3600)
            found = [] if error else json.loads(file.read_text())
        print("\n".join(line(r) for r in found) or f"{name}: {error}", flush=True)
        rows += found
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if not rows:
        return 1
    mean = math.exp(sum(math.log(r["npu_s"] / r["reference_s"]) for r in rows) / len(rows))
    mobilenet = [r["npu_s"] for r in rows if r["model"] == "mobilenet_v2" and r["target"] == "ethos-u55-128"]
    bars = [
        ("geometric mean of the ratios", mean, RATIO),
        ("peak MB, largest", max(r["peak_mb"] for r in rows), MEGABYTES),
    ]
    bars += [("MobileNetV2 on ethos-u55-128, s", s, MOBILENET_SECONDS) for s in mobilenet]
    for name, value, limit in bars:
        print(f"{'PASS' if value <= limit else 'FAIL'} {name}: {value:.2f} (limit {limit:g})")
    return sum(value > limit for _, value, limit in bars)


if __name__ == "__main__":
    sys.exit(main())
