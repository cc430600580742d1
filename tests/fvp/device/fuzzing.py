"""Fuzzing of the device runtime under ASan and UBSan: seeds, and the run (fvp/firmware/host/fuzz_*.c)."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import cases_elementwise
import cases_move
import cases_nn
import one_op
import test_native_loader
from pte_edit import edited
from pte_samples import SAMPLES

from arm_lower.pte.emit import emit
from arm_lower.pte.model import Planned, TensorValue
from arm_lower.pte.read import read
from fvp.native import build_fuzzer, build_libfuzzer

LARGEST = 1 << 16
"""Bytes of an input, as in fuzz_engine.c."""


def one_operator_programs(each: int, largest: int = 8000) -> dict[str, bytes]:
    """Up to ``each`` programs of every kernel, chosen from the kernels' test cases."""
    cases = [*cases_elementwise.CASES, *cases_move.CASES, *cases_nn.CASES]
    Random(0).shuffle(cases)
    count: Counter[str] = Counter()
    programs: dict[str, bytes] = {}
    for case in cases:
        if count[case.name] == each:
            continue
        pte = one_op.program(case)
        if len(pte) <= largest:
            count[case.name] += 1
            programs[f"{case.name}-{count[case.name]}"] = pte
    return programs


def overlapping(seeds: dict[str, bytes]) -> dict[str, bytes]:
    """The same programs with the tensors of the arena 16 bytes apart, so that results lie over operands."""
    return {f"{name}-over": _moved_together(pte) for name, pte in seeds.items()}


def _moved_together(pte: bytes) -> bytes:
    values = read(pte).methods[0].values
    planned = [i for i, v in enumerate(values) if isinstance(v, TensorValue) and isinstance(v.storage, Planned)]
    place = ("val", "allocation_info", "memory_offset_low")
    changes = [(("execution_plan", 0, "values", i, *place), 16 * n) for n, i in enumerate(planned)]
    return edited(pte, *changes)


def programs() -> dict[str, bytes]:
    """Small programs with everything that a file can hold."""
    samples = {name: emit(made().program) for name, made in SAMPLES.items()}
    return {"everything": test_native_loader.good(), "freed": test_native_loader.freed(), **samples}


def write_seeds(folder: Path, seeds: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, pte in seeds.items():
        if len(pte) <= LARGEST:
            (folder / re.sub(r"\W+", "_", name)).write_bytes(pte)


@dataclass(frozen=True)
class Report:
    """What one fuzzer did.

    Attributes:
        text: Its last line: executions, inputs, edges, slow inputs.
        finding: The sanitizer's report, empty if there is none.
        crash: The bytes that led to it.
    """

    text: str
    finding: str
    crash: bytes

    @property
    def executions(self) -> int:
        found = re.search(r"executions (\d+)", self.text)
        return int(found[1]) if found else 0

    @property
    def slow(self) -> int:
        found = re.search(r"slow (\d+)", self.text)
        return int(found[1]) if found else 0


def fuzz(folders: Iterable[Path], seconds: int, seeds: Iterable[int] = (1,), found: Path | None = None) -> list[Report]:
    """Runs one fuzzer for each number of ``seeds`` at the same time.

    Args:
        folders: Their files are the first inputs.
        seconds: Of each.
        seeds: Of the random numbers.
        found: Gets inputs with new coverage, and slow ones.
    """
    fuzzer = build_fuzzer()
    inputs = [str(f) for folder in folders for f in sorted(folder.iterdir())]

    def run(seed: int) -> Report:
        with tempfile.TemporaryDirectory() as scratch:
            current = Path(scratch) / "current"
            command = [str(fuzzer), str(seconds), str(seed), str(current), str(found or "-"), *inputs]
            return _run(command, seconds, lambda: _current(current))

    with ThreadPoolExecutor() as pool:
        return list(pool.map(run, seeds))


def libfuzzer(folders: Iterable[Path], seconds: int, seed: int, corpus: Path) -> Report:
    """The same with clang's libFuzzer, which keeps its inputs in ``corpus``."""
    crash = corpus / "crash"
    command = [str(build_libfuzzer()), f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={LARGEST}",
               "-timeout=30", "-print_final_stats=1", f"-exact_artifact_path={crash}", str(corpus),
               *(str(f) for f in folders)]
    return _run(command, seconds, lambda: crash.read_bytes() if crash.exists() else b"")


def _run(command: list[str], seconds: int, crash: Callable[[], bytes]) -> Report:
    # Slow inputs are left in the middle, with their memory.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment,
                          timeout=seconds + 600)
    last = (done.stdout or done.stderr).strip().rpartition("\n")[2]
    if done.returncode == 0:
        return Report(last, "", b"")
    return Report(last, done.stderr[-20000:] or f"status {done.returncode}", crash())


def _current(path: Path) -> bytes:
    raw = path.read_bytes()
    (size,) = struct.unpack_from("<I", raw)
    return raw[4 : 4 + size]
