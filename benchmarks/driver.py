"""The register-level NPU driver on models: application for Cortex-M33, emulated, with the NPU's registers in Python.

    python benchmarks/driver.py --models ../shared/bench/models.py

Each model is compiled and built as for a board, and executed on real samples: the driver probes the NPU, sets its
base pointers and starts it, and `fvp.registers` executes the commands on the memory of the emulated CPU. All output
bytes are compared with those of `tosa_ref.host` on the TOSA reference model. Then every fault that the register model
can inject must come out as its own error. The last table has the bytes of the driver's parts. The exit code is the
number of rows that fail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import CALIBRATION, EVALUATION, Entry, load_models

MODELS = "ds_cnn,mobilenet_v1_025,autoencoder"
TARGETS = "ethos-u55-128,ethos-u65-512,ethos-u85-256"
SAMPLES = 3

FAULT_CODES = {"bus": 64, "parse": 65, "weights": 72, "ecc": 66, "branch": 67, "stopped": 69, "reset": 63, "access": 74}
"""Fault of `fvp.registers` -> number of the error on the device. Those that end with the time-out, 50 million status
reads, are in tests/fvp/device/test_ethosu_driver.py with a shorter one."""


@dataclass(frozen=True)
class Case:
    """A model compiled for a target, with inputs and the outputs that it must give."""

    name: str
    target: str
    pte: bytes
    samples: list[list[Any]]
    expected: list[list[Any]]


def compile_case(entry: Entry, name: str, target: str) -> Case:
    from arm_lower import compile as lower
    from quant import EthosUQuantizer, quantize
    from tosa_ref.host import Host

    factory, example, generate = entry
    model, inputs = factory(), example()
    quantized = quantize(model, inputs, generate(*CALIBRATION), EthosUQuantizer(target))
    compiled = lower(quantized, None, target, example_inputs=inputs)
    samples = [[x.numpy() for x in sample] for sample in generate(*EVALUATION)[:SAMPLES]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pte"
        compiled.save(path)
        host = Host(path)
        expected = [host.run(sample) for sample in samples]
    return Case(name, target, compiled.buffer, samples, expected)


def differing_bytes(expected: list[list[Any]], found: list[list[Any]]) -> tuple[int, int]:
    """Bytes that differ, and all of them; everything differs where shapes or types do."""
    import numpy as np

    bad = total = 0
    for want, got in zip(expected, found, strict=True):
        for w, g in zip(want, got, strict=True):
            total += w.nbytes
            if (w.shape, w.dtype) != (g.shape, g.dtype):
                bad += w.nbytes
            else:
                a, b = (np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8) for x in (w, g))
                bad += int((a != b).sum())
    return bad, total


def run_case(case: Case) -> bool:
    from fvp.builder import build
    from fvp.unicorn import board, run

    firmware = build(case.pte, board())
    started = time.perf_counter()
    found = run(firmware, case.samples)
    seconds = time.perf_counter() - started
    bad, total = differing_bytes(case.expected, found)
    print(
        f"{case.name:18} {case.target:15} {len(case.samples)} samples, {total:7,} bytes, {bad} differ; "
        f"text {firmware.sizes.text:,}, {seconds:.1f} s  {'FAIL' if bad else 'PASS'}",
        flush=True,
    )
    return not bad


def run_faults(case: Case) -> int:
    """How many faults do not come out as their own error."""
    from fvp.builder import build
    from fvp.registers import EthosU
    from fvp.unicorn import EmulatorError, board, run

    firmware = build(case.pte, board())
    failures = 0
    product, macs = firmware.needs.family, firmware.needs.macs
    other = {"u55": ("u55", 256), "u65": ("u65", 256), "u85": ("u85", 512)}[product]
    rows: list[tuple[str, EthosU, int]] = [
        (fault, EthosU(None, product, macs, fault=fault), code)  # type: ignore[arg-type]
        for fault, code in FAULT_CODES.items()
    ]
    rows.append(("other MACs", EthosU(None, *other), 62))  # type: ignore[arg-type]
    rows.append(("other product", EthosU(None, "u85" if product != "u85" else "u55", 256), 61))  # type: ignore[arg-type]
    for name, npu, code in rows:
        found, text = 0, "no error"
        try:
            run(firmware, case.samples[:1], npu)
        except EmulatorError as error:
            found, text = error.status, error.message
        failures += found != code
        print(f"{case.target:15} {name:13} {text}  {'PASS' if found == code else f'FAIL, expected {code}'}", flush=True)
    return failures


def print_sizes() -> None:
    """Bytes of text of each part for a Cortex-M55, whole files at -Os."""
    import subprocess

    from fvp.sources import FIRMWARE, INCLUDES

    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for name in ("backend", "payload", "driver", "cosim"):
            objects.append(str(Path(folder) / f"{name}.o"))
            includes = [f"-I{FIRMWARE / i}" for i in INCLUDES]
            command = ["arm-none-eabi-gcc", "-mcpu=cortex-m55", "-mfloat-abi=hard", "-std=c11", "-Os", *includes]
            subprocess.run([*command, "-c", str(FIRMWARE / "ethosu" / f"{name}.c"), "-o", objects[-1]], check=True)
        found = subprocess.run(["arm-none-eabi-size", *objects], check=True, capture_output=True, text=True).stdout
    print(found.replace(folder + "/", "").strip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, help="Python file with MODELS")
    parser.add_argument("--only", default=MODELS, help="comma-separated names of models")
    parser.add_argument("--targets", default=TARGETS, help="comma-separated")
    options = parser.parse_args()
    models = load_models(options.models)
    failures = 0
    for target in options.targets.split(","):
        case = None
        for name in options.only.split(","):
            case = compile_case(models[name], name, target)
            failures += not run_case(case)
        if case is not None:
            failures += run_faults(case)
    print_sizes()
    print(f"{failures} rows failed")
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main())
