"""A minute of fuzzing of the device runtime. For more: benchmarks/fuzz_device.py --seconds 1800."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import fuzz, one_operator_programs, overlapping, programs, write_seeds
from pte_edit import with_unknown_fields
from pte_samples import SAMPLES

from arm_lower.pte.emit import emit

SECONDS = 60


@pytest.mark.fuzz
def test_no_bytes_lead_to_a_fault(tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    single = one_operator_programs(1)
    write_seeds(seeds, {**single, **overlapping(single), **programs()})
    (report,) = fuzz([seeds], SECONDS)
    if report.finding:
        kept = tmp_path / "crash.pte"
        kept.write_bytes(report.crash)
        pytest.fail(f"{kept}:\n{report.finding}")
    assert report.executions > 20_000, report.text
    assert report.slow == 0, report.text


def test_fields_that_the_schema_does_not_have(tmp_path: Path) -> None:
    """Nothing checks them, so nothing may read them."""
    files = {**one_operator_programs(1), **programs()}
    for offset in (0x7FFC, 0xFFFF):
        write_seeds(tmp_path / "seeds", {f"{n}-{offset}": with_unknown_fields(p, offset) for n, p in files.items()})
    (report,) = fuzz([tmp_path / "seeds"], seconds=0)
    assert not report.finding, report.finding
    assert report.executions == 2 * len(files)


def test_the_fuzzer_finds_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that only a mutated input reaches: an output of int64 numbers."""
    monkeypatch.setenv("AL_FUZZ_FAULT", "1")
    write_seeds(tmp_path / "seeds", {"branches": emit(SAMPLES["branches"]().program)})
    (report,) = fuzz([tmp_path / "seeds"], 60)
    assert "AddressSanitizer: heap-buffer-overflow" in report.finding, report
    assert "fuzz_target.c" in report.finding
    assert report.crash[4:8] == b"ET12"
