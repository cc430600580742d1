"""Compiles a set of models and prints each result beside the peer's, with a verdict for each bar.

    python benchmarks/zoo.py --models ../shared/bench/models.py --targets ethos-u55-128,ethos-u85-256 --json zoo.json

The model file has ``MODELS[name] = (factory, example_inputs, generate)``. What the peer (ExecuTorch) reached is read
from ``executorch_1_5_1.json`` beside it. Each model runs in a child process, so one that fails or crashes does not
stop the others. Cycles are Vela estimates; SQNR is ``10 log10(sum y^2 / sum (y - q)^2)`` for each output over all
evaluation samples against the fp32 model.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import CALIBRATION, EVALUATION, load_models, outputs_of, run_child, sqnr_db

PEER_FILE = "executorch_1_5_1.json"

# Models that are more than convolutions and fully connected layers: they need not be one delegate yet, and the
# cycle, SRAM and size bars are not for them.
SEQUENCE_AND_SEGMENTATION = frozenset({"lstm_kws", "decoder_opt_2l", "vit_tiny_d4", "deeplabv3_mbv3"})

# Total cycles on ethos-u85-256 that the peer reaches with channels-last inputs and outputs.
CHANNELS_LAST_CYCLES = {
    "mobilenet_v1_025": 123_747,
    "mobilenet_v2": 3_200_232,
    "mobilenet_v3_small": 1_037_531,
    "resnet8": 83_895,
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """One requirement on one row.

    Attributes:
        name: What is measured.
        found: The value.
        allowed: The limit.
        passed: Whether it holds.
    """

    name: str
    found: float
    allowed: float
    passed: bool

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'} {self.name} {_short(self.found)} (limit {_short(self.allowed)})"


def at_most(name: str, found: float, allowed: float) -> Bar:
    return Bar(name, found, allowed, found <= allowed)


def at_least(name: str, found: float, allowed: float) -> Bar:
    return Bar(name, found, allowed, found >= allowed)


# ---- one model, in a child process ---------------------------------------------------------------------------


def measure(models: str, name: str, targets: list[str], io_layout: str) -> list[Row]:
    """Rows of one model, one for each target."""
    import torch

    from arm_lower import compile as lower  # here, so that importing is not timed as compiling: the peer's is not
    from quant import EthosUQuantizer, quantize

    factory, example, generate = load_models(models)[name]
    model, inputs = factory(), example()
    samples = generate(*EVALUATION)
    with torch.no_grad():
        reference = [outputs_of(model(*s)) for s in samples]
    started = time.perf_counter()
    quantized = quantize(model, inputs, generate(*CALIBRATION), EthosUQuantizer(targets[0]))
    quantize_s = time.perf_counter() - started
    with torch.no_grad():
        fake = [outputs_of(quantized(*s)) for s in samples]

    rows = []
    for target in targets:
        started = time.perf_counter()
        compiled = lower(quantized, None, target, example_inputs=inputs, io_layout=io_layout)
        lower_s = time.perf_counter() - started
        report = compiled.report
        executed = execute(compiled, samples)
        rows.append(
            {
                "model": name,
                "target": target,
                "io_layout": io_layout,
                "quantize_s": quantize_s,
                "lower_s": lower_s,
                "seconds": dict(report.seconds),
                "pte_bytes": report.pte_bytes,
                "delegates": len(report.delegates),
                "cpu_kernel_calls": report.compute_kernel_calls,
                "cpu_ops": [f"{op.op}: {op.reason}" for op in report.cpu_ops],
                "npu_cycles": report.npu_cycles,
                "total_cycles": report.total_cycles,
                "layout_cycles": report.layout_cycles,
                "macs": report.macs,
                "sram_bytes": report.sram_bytes,
                "weight_bytes": report.weight_bytes,
                "settings": [d.settings for d in report.delegates],
                "sqnr_fake_db": per_output(reference, fake),
                "sqnr_executed_db": per_output(reference, executed),
            }
        )
    return rows


def execute(compiled: Any, samples: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Outputs of the saved file, run on the host from the file and its record alone."""
    from tosa_ref.host import Host

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pte"
        compiled.save(path)
        host = Host(path)
        return [host.run([x.numpy() for x in sample]) for sample in samples]


def per_output(reference: list[list[Any]], found: list[list[Any]]) -> list[float]:
    """SQNR of each output over all samples."""
    return [
        sqnr_db([y[i] for y in reference], [q[i] for q in found])
        for i in range(len(reference[0]))
        if reference[0][i].dtype.is_floating_point
    ]


# ---- verdicts ------------------------------------------------------------------------------------------------


def bars(row: Row, peer: Row | None, plain_mobilenet: Row | None) -> Iterator[Bar]:
    """Every requirement on a row.

    Args:
        row: Of `measure`.
        peer: The peer's row, if it has one; made with contiguous inputs and outputs.
        plain_mobilenet: Row of mobilenet_v2 on the same target, for mobilenet_v2_lrn.
    """
    name, target, last = row["model"], row["target"], row["io_layout"] == "channels_last"
    if name not in SEQUENCE_AND_SEGMENTATION:
        yield Bar("delegates", row["delegates"], 1, row["delegates"] == 1)
        yield at_most("CPU compute kernels", row["cpu_kernel_calls"], 0)
    if last and target == "ethos-u85-256" and name in CHANNELS_LAST_CYCLES:
        yield at_most("channels-last total cycles", row["total_cycles"], CHANNELS_LAST_CYCLES[name])
    if peer and not last and name not in SEQUENCE_AND_SEGMENTATION:
        yield at_most("total cycles", row["total_cycles"], peer["vela52_total_cycles"])
        yield at_most("SRAM bytes", row["sram_bytes"], 1.02 * 1024 * peer["vela52_sram_kib"])
        yield at_most(".pte bytes", row["pte_bytes"], 1.02 * peer["pte_bytes"] + 2048)
    if name == "mobilenet_v2_lrn" and plain_mobilenet:
        yield at_most("cycles over mobilenet_v2", row["total_cycles"], 1.03 * plain_mobilenet["total_cycles"])
    for i, executed in enumerate(row["sqnr_executed_db"]):
        if peer:
            yield at_least(f"SQNR {i}", executed, peer["sqnr_db"][i] - 0.5)
        yield at_least(f"SQNR {i} against fake-quant", executed, row["sqnr_fake_db"][i] - 0.5)
    if peer:
        yield at_most("seconds", row["lower_s"], peer["lower_s"] / 5)
    if name == "mobilenet_v2":
        yield at_most("seconds of mobilenet_v2", row["lower_s"], 3.0)


HEADER = (
    f"{'':30} {'del':>3} {'cpu':>3} {'NPU cycles':>13} {'total cycles':>13} {'SRAM KiB':>9} {'.pte bytes':>11} "
    f"{'s':>7}  {'SQNR dB: fake-quant / executed'}"
)


def line(row: Row) -> str:
    label = f"{row['model']} {row['target'].removeprefix('ethos-')}" + (" cl" if _is_last(row) else "")
    return (
        f"{label:30} {row['delegates']:3} {row['cpu_kernel_calls']:3} {row['npu_cycles']:13,} "
        f"{row['total_cycles']:13,} {row['sram_bytes'] / 1024:9.1f} {row['pte_bytes']:11,} {row['lower_s']:7.2f}  "
        f"{_decibels(row['sqnr_fake_db'])} / {_decibels(row['sqnr_executed_db'])}"
    )


def peer_line(peer: Row) -> str:
    return (
        f"{'  peer':30} {peer['delegates']:3} {peer['cpu_ops_not_qdq']:3} {peer['vela52_npu_cycles']:13,.0f} "
        f"{peer['vela52_total_cycles']:13,.0f} {peer['vela52_sram_kib']:9.1f} {peer['pte_bytes']:11,} "
        f"{peer['lower_s']:7.2f}  {_decibels(peer['sqnr_db'])}"
    )


def _is_last(row: Row) -> bool:
    return bool(row["io_layout"] == "channels_last")


def _decibels(values: list[float]) -> str:
    return ", ".join(f"{v:.2f}" for v in values)


def _short(value: float) -> str:
    if math.isinf(value) or value != int(value):
        return f"{value:.2f}"
    return f"{int(value):,}"


# ---- the whole set -------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, help="Python file with MODELS")
    parser.add_argument("--targets", default="ethos-u55-128,ethos-u85-256", help="comma-separated")
    parser.add_argument("--json", type=Path, help="file for all rows, written after each model")
    parser.add_argument("--io-layout", choices=("contiguous", "channels_last"), default="contiguous")
    parser.add_argument("--only", help="comma-separated names of models")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one model")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    targets = options.targets.split(",")
    if options.child:
        rows = measure(options.models, options.child, targets, options.io_layout)
        options.json.write_text(json.dumps(rows))
        return 0

    peers = read_peers(Path(options.models).with_name(PEER_FILE))
    known = load_models(options.models)
    names = options.only.split(",") if options.only else list(known)
    unknown = [n for n in names if n not in known]
    if unknown:
        sys.exit(f"no model {', '.join(unknown)}; there are {', '.join(known)}")
    return run_all(options, names, targets, peers)


def run_all(options: argparse.Namespace, names: list[str], targets: list[str], peers: dict[str, Row]) -> int:
    """Measures and prints every model; the number of failed bars decides the exit code."""
    results: dict[str, Row] = {}
    failures: dict[str, str] = {}
    passed, missed = 0, []
    print(HEADER)
    for name in names:
        rows, error = in_child(options, name)
        if error:
            failures[name] = error
            print(f"{name}: FAIL {error}", flush=True)
        for row in rows:
            key = f"{name} {row['target']}"
            results[key] = row
            peer = peers.get(key)
            print(line(row))
            if peer:
                print(peer_line(peer))
            for reason in list(dict.fromkeys(row["cpu_ops"]))[:3]:
                print(f"    on the CPU: {reason}")
            verdicts = list(bars(row, peer, results.get(f"mobilenet_v2 {row['target']}")))
            row["bars"] = [str(b) for b in verdicts]
            passed += sum(b.passed for b in verdicts)
            missed += [f"{key}: {b}" for b in verdicts if not b.passed]
            print(f"    {sum(b.passed for b in verdicts)} of {len(verdicts)} bars hold")
            for b in verdicts:
                if not b.passed:
                    print(f"    {b}")
            sys.stdout.flush()
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps({"rows": results, "failures": failures}, indent=1) + "\n")
    print(f"\n{passed} bars hold, {len(missed)} do not, {len(failures)} models failed")
    for text in [*missed, *(f"{n}: {e}" for n, e in failures.items())]:
        print(f"  {text}")
    return 1 if missed or failures else 0


def in_child(options: argparse.Namespace, name: str) -> tuple[list[Row], str]:
    """Rows of a model measured in a process of its own, and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--models", options.models, "--targets", options.targets]
        command += ["--io-layout", options.io_layout, "--child", name, "--json", str(file)]
        error = run_child(command, options.timeout)
        return (json.loads(file.read_text()) if not error else []), error


def read_peers(path: Path) -> dict[str, Row]:
    """The peer's rows by "MODEL TARGET"; none if there is no such file."""
    rows: dict[str, Row] = json.loads(path.read_text())["rows"] if path.is_file() else {}
    return rows


if __name__ == "__main__":
    sys.exit(main())
