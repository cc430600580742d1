"""Fuzzing of the device runtime: loader, executor, every kernel and the Ethos-U backend, under ASan and UBSan.

    python benchmarks/fuzz_device.py --seconds 1800 --jobs 2 --corpus DIR [--libfuzzer]

Seeds are programs of one operator, programs by hand, and small compiled models. Inputs with new coverage are kept in
the corpus and used by the next run. Ends with status 1 and writes ``crash-N.pte`` to the corpus if anything is found;
``al_run crash-N.pte`` or ``fuzz_target crash-N.pte`` (fvp/native.py builds both) show it again. The fuzzer needs gcc
only; ``--libfuzzer`` runs clang's in place of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The root first: tests has a folder of the name fvp, too.
sys.path[1:1] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "fvp" / "device")]

import torch  # noqa: E402
from fuzzing import Report, fuzz, libfuzzer, one_operator_programs, overlapping, programs, write_seeds  # noqa: E402
from test_native_models import MODELS, image  # noqa: E402

import arm_lower  # noqa: E402


def models() -> dict[str, bytes]:
    """Compiled ones, with delegates."""
    found = {}
    for name, (model, shape) in MODELS.items():
        for target in ("ethos-u55-128", "ethos-u85-256"):
            torch.manual_seed(0)
            samples = [(image(shape, seed),) for seed in range(4)]
            found[f"{name}-{target}"] = arm_lower.compile(model().eval(), samples, target, effort="fast").buffer
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the device runtime.")
    parser.add_argument("--seconds", type=int, default=1800, help="of each job")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="of the first job's random numbers")
    parser.add_argument("--corpus", type=Path, required=True, help="folder for inputs")
    parser.add_argument("--libfuzzer", action="store_true", help="clang's libFuzzer in place of our own")
    options = parser.parse_args()
    seeds, kept = options.corpus / "seeds", options.corpus / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    single = one_operator_programs(4)
    write_seeds(seeds, {**single, **overlapping(single), **programs(), **models()})
    numbers = range(options.seed, options.seed + options.jobs)
    reports = ([libfuzzer([seeds], options.seconds, options.seed, kept)] if options.libfuzzer
               else fuzz([seeds, kept], options.seconds, numbers, kept))
    for number, report in zip(numbers, reports):
        show(report, options.corpus / f"crash-{number}.pte")
    return int(any(r.finding or r.slow for r in reports))


def show(report: Report, crash: Path) -> None:
    print(report.text)
    if report.finding:
        crash.write_bytes(report.crash)
        print(f"{crash}:\n{report.finding}")


if __name__ == "__main__":
    sys.exit(main())
