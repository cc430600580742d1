"""Every model of a set as firmware on a Cortex-M55 in QEMU, with the NPU model for its delegates.

    python benchmarks/device.py --models ../shared/bench/models.py --json device.json

Three groups: the models compiled for the target; the MLPerf Tiny models in float32 on the CPU alone; files that
ExecuTorch itself has written (``--interop`` is an interpreter that can: ``make peer``). Outputs on the device are
compared twice. With the host build of the runtime (`fvp.native`, the NPU model for delegates): all bytes, floats too.
With torch on the host (`tosa_ref.host`), where delegates run on the TOSA reference model (those of ExecuTorch's files
on the NPU model): every byte if only quantize and dequantize run on the CPU, else within 2 units in the last place of
the largest magnitude for each call of a float kernel, since torch sums in another order. Where the result of a float
kernel is quantized again, a last bit can tip it to the next step, and later layers multiply that: there the device must
be as near to the float model in torch as torch on the host is (SQNR, less 0.2 dB).
A board that is too small is named, and mps3-an547 taken, which may use its DDR for everything.

``text`` is code and constants of the whole application as ``arm-none-eabi-size`` counts them, ``instructions`` those of
the core for one execution (QEMU's icount; the NPU's work is none), ``stack`` the most that was in use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from common import CALIBRATION, EVALUATION, load_models, outputs_of, run_child, sqnr_db

Row = dict[str, Any]

MLPERF_TINY = ("ds_cnn", "mobilenet_v1_025", "resnet8", "autoencoder")
BOARDS = ("corstone-300", "mps3-an547")
CORE_BYTES = 12 * 1024
APPLICATION_BYTES = 40 * 1024
"""Of DS-CNN: core, driver, its kernels, start-up."""
SAMPLES = 2
SQNR_LESS_DB = 0.2


loaded = cache(load_models)  # torchvision's operators can be defined once only


def files(models: str, name: str, target: str, folder: Path) -> list[Any]:
    """Writes the `.pte` of a model for a target, ``cpu`` for none, and returns samples."""
    import torch

    import arm_lower
    from quant import EthosUQuantizer, quantize

    factory, example, generate = loaded(models)[name]
    model, inputs = factory(), example()
    path = folder / f"{name} {target}.pte"
    if target == "cpu":
        arm_lower.to_edge(torch.export.export(model, inputs)).to_executorch().save(path)
    else:
        quantized = quantize(model, inputs, generate(*CALIBRATION), EthosUQuantizer(target))
        arm_lower.compile(quantized, None, target, example_inputs=inputs).save(path)
    return [[x.numpy() for x in sample] for sample in generate(EVALUATION[0], SAMPLES)]


def eager(models: str, name: str, samples: list[Any]) -> list[list[Any]]:
    """Outputs of the float model in torch."""
    import torch

    model = loaded(models)[name][0]()
    with torch.no_grad():
        return [[y.numpy() for y in outputs_of(model(*map(torch.from_numpy, s)))] for s in samples]


def measure(models: str, path: Path, samples: list[Any]) -> Row:
    """One row: build, run, compare."""
    from arm_lower.errors import ArmLowerError
    from fvp.builder import build
    from fvp.compare import ULPS, float_calls, problems, quantizes_floats, ulps_apart
    from fvp.ethosu.delegate import run_delegate
    from fvp.native import Native, run_npu
    from fvp.runner import run_samples
    from tosa_ref.host import Host

    row: Row = {"model": path.stem, "refused": "", "problems": []}
    firmware = None
    for board in BOARDS:
        try:
            firmware = build(path, board)
            break
        except ArmLowerError as error:
            row["refused"] = error.message
    if firmware is None:
        return row
    result = run_samples(firmware, samples, timeout=1200)
    record = path.with_suffix(".record")
    host = Host(path, record if record.is_dir() else None, None if record.is_dir() else run_delegate)
    wanted = [host.run(s) for s in samples]
    native = Native(path.read_bytes(), npu=run_npu)
    built_here = [native.run(s) for s in samples]
    pairs = [pair for f, w in zip(result.samples, wanted, strict=True) for pair in zip(f, w, strict=True)]
    cpu_kernels = [n for n in firmware.needs.kernels if not n.startswith("quantized_decomposed::")]
    method = firmware.needs.program.methods[0]
    allowed = ULPS * float_calls(method)
    for found, expected in zip(result.samples, wanted, strict=True):
        row["problems"] += problems(found, expected, allowed)
    if row["problems"] and quantizes_floats(method):
        reference = eager(models, path.stem.split()[0], samples)
        device_db, host_db = ([sqnr_db(*pair) for pair in zip(flat(reference), flat(y), strict=True)]
                              for y in (result.samples, wanted))  # fmt: skip
        row["sqnr_device_db"], row["sqnr_host_db"] = min(device_db), min(host_db)
        if all(d >= h - SQNR_LESS_DB for d, h in zip(device_db, host_db, strict=True)):
            row["problems"] = []
    for found, expected in zip(result.samples, built_here, strict=True):
        row["problems"] += [f"{text} from the host build" for text in problems(found, expected, 0)]
    return row | {
        "board": firmware.board.name,
        "ulps_allowed": allowed,
        "ulps": max((ulps_apart(f, w) for f, w in pairs if w.dtype.kind == "f"), default=0.0),
        "text": firmware.sizes.text,
        "listed_text": listed_text(firmware.elf),
        "arena": firmware.needs.arena,
        "scratch": firmware.needs.scratch,
        "model_bytes": firmware.needs.model,
        "placement": {p.block: p.memory for p in firmware.placement.blocks},
        "instructions": result.instructions[-1],
        "kernels": {op.name: op.instructions for op in result.ops},
        "cpu_kernels": len(cpu_kernels),
        "stack_used": result.stack_used,
        "stack_size": result.stack_size,
        "needs": {n: [p.size, p.needed] for n, p in result.pools.items() if p.needed},
        "seconds": result.wall_seconds,
    }


def flat(samples: Any) -> list[Any]:
    return [y for outputs in samples for y in outputs]


def listed_text(elf: Path) -> int:
    """Code and constants without the model, as ``arm-none-eabi-size`` has them."""
    text = subprocess.run(["arm-none-eabi-size", "-A", str(elf)], capture_output=True, text=True, check=True).stdout
    sections = {n: int(v) for n, v in re.findall(r"^(\.[\w.]+)\s+(\d+)", text, re.MULTILINE)}
    return sum(sections.get(n, 0) for n in (".vectors", ".text", ".text.kernels", ".ARM.exidx"))


def core_text() -> dict[str, int]:
    """Code of each file of the runtime's core, before the linker drops what is not used."""
    from fvp.boards import load_board
    from fvp.builder import compile_sources
    from fvp.sources import FIRMWARE

    objects = compile_sources(sorted((FIRMWARE / "core").glob("*.c")), load_board("corstone-300"))
    text = subprocess.run(
        ["arm-none-eabi-size", *map(str, objects)], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in text.splitlines()[1:])
    return {Path(r[-1]).stem: int(r[0]) for r in rows}


# ---- verdicts ------------------------------------------------------------------------------------------------------


def failures(row: Row) -> Iterator[str]:
    """What a row does not fulfil."""
    if "board" not in row:
        yield row["refused"]
        return
    yield from row["problems"]
    if row["text"] != row["listed_text"]:
        yield f"text is {row['text']}, arm-none-eabi-size says {row['listed_text']}"
    for name, (size, needed) in row["needs"].items():
        if size != -(-needed // 16) * 16:
            yield f"{name}: {size} bytes are there, {needed} are needed"
    if row["stack_used"] > row["stack_size"]:
        yield f"stack: {row['stack_used']} bytes used of {row['stack_size']}"
    if row["model"] == "ds_cnn ethos-u55-128" and row["text"] > APPLICATION_BYTES:
        yield f"text {row['text']}, {APPLICATION_BYTES} are allowed"


HEADER = (
    f"{'':34} {'board':13} {'text':>7} {'.pte':>11} {'arena':>10} {'scratch':>10} {'instructions':>14} {'stack':>6} "
    f"{'cpu':>3} {'ULP':>11}"
)


def line(row: Row) -> str:
    if "board" not in row:
        return f"{row['model']:34} does not fit"
    return (
        f"{row['model']:34} {row['board']:13} {row['text']:7,} {row['model_bytes']:11,} {row['arena']:10,} "
        f"{row['scratch']:10,} {row['instructions']:14,} {row['stack_used']:6,} {row['cpu_kernels']:3} "
        f"{row['ulps']:5.1f} of {row['ulps_allowed']:g}"
        + (f", SQNR {row['sqnr_device_db']:.2f}, host {row['sqnr_host_db']:.2f}" if "sqnr_host_db" in row else "")
    )


# ---- processes -----------------------------------------------------------------------------------------------------


def child(options: argparse.Namespace) -> None:
    """Rows of one model, or of one file of ExecuTorch's, into ``--json``."""
    import numpy as np

    kind, name = options.child
    if kind == "file":
        with np.load(Path(name).with_suffix(".npz")) as file:
            samples = [[file[k] for k in file.files]]
        rows = [measure(options.models, Path(name), samples)]
        rows[0]["model"] += " (ExecuTorch)"
    else:
        with tempfile.TemporaryDirectory() as folder:
            samples = files(options.models, name, kind, Path(folder))
            rows = [measure(options.models, Path(folder) / f"{name} {kind}.pte", samples)]
    options.json.write_text(json.dumps(rows))


def in_child(options: argparse.Namespace, kind: str, name: str) -> tuple[list[Row], str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--models", options.models, "--child", kind, name, "--json", str(file)]
        error = run_child(command, options.timeout)
        return (json.loads(file.read_text()) if not error else []), error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, help="Python file with MODELS")
    parser.add_argument("--target", default="ethos-u55-128")
    parser.add_argument("--only", help="comma-separated names of models; nothing of ExecuTorch's then")
    parser.add_argument("--json", type=Path, help="file for all rows, written after each model")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one model")
    default = os.environ.get("ARM_LOWER_INTEROP_PYTHON", ".venv-interop/bin/python")
    parser.add_argument("--interop", default=default, help="interpreter that has ExecuTorch with its Arm backend")
    parser.add_argument("--child", nargs=2, metavar=("KIND", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return 0
    names = options.only.split(",") if options.only else list(load_models(options.models))
    jobs = [(options.target, n) for n in names] + [("cpu", n) for n in MLPERF_TINY if n in names]
    with tempfile.TemporaryDirectory() as folder:
        missed = peer_files(options, Path(folder)) if not options.only else []
        jobs += [("file", str(p)) for p in sorted(Path(folder).glob("*.pte"))]
        missed += run_all(options, jobs)
    missed += core_rows()
    print(f"\n{len(jobs)} applications, {len(missed)} failures", *missed, sep="\n  ")
    return 1 if missed else 0


def peer_files(options: argparse.Namespace, folder: Path) -> list[str]:
    """ExecuTorch's own files."""
    if not Path(options.interop).is_file():
        return [f"no interpreter {options.interop}: run `make peer`, or give --interop"]
    script = Path(__file__).with_name("peer_files.py")
    error = run_child([options.interop, str(script), options.models, str(folder)], options.timeout)
    return [f"ExecuTorch's files: {error}"] if error else []


def run_all(options: argparse.Namespace, jobs: list[tuple[str, str]]) -> list[str]:
    results: list[Row] = []
    missed = []
    print(HEADER)
    for kind, name in jobs:
        rows, error = in_child(options, kind, name)
        if error:
            missed.append(f"{name} {kind}: {error}")
            print(f"{name} {kind}: FAIL {error}", flush=True)
        for row in rows:
            row["failures"] = list(failures(row))
            missed += [f"{row['model']}: {text}" for text in row["failures"]]
            print(line(row), *(f"    FAIL {text}" for text in row["failures"]), sep="\n", flush=True)
        results += rows
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    return missed


def core_rows() -> list[str]:
    """The operators of executorch_prim are linked like kernels, if a program calls them."""
    sizes = core_text()
    operators = sizes.pop("core_prim")
    total = sum(sizes.values())
    print(f"\ncore: {total:,} bytes of text ({', '.join(f'{n} {v:,}' for n, v in sizes.items())})", end="")
    print(f", operators of executorch_prim {operators:,}")
    return [f"core: {total} bytes, {CORE_BYTES} are allowed"] if total > CORE_BYTES else []


if __name__ == "__main__":
    sys.exit(main())
