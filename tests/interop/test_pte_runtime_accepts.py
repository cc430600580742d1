"""Our files in the stock runtime, its exporter's reader and Model Explorer; the exporter's files in our reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pte_samples
import pytest

from arm_lower.pte import model
from arm_lower.pte.check import check
from arm_lower.pte.emit import emit
from arm_lower.pte.read import read
from arm_lower.pte.text import describe_file

CHILD = Path(__file__).with_name("pte_child.py")
PEERS = ("counter", "ethosu", "methods", "network", "pick", "split", "xnnpack")
MODES = ("Minimal", "InternalConsistency")
Jobs = Callable[[list[dict[str, Any]]], list[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pte")


@pytest.fixture(scope="module")
def run_jobs(folder: Path, run_interop: Callable[..., str]) -> Jobs:
    """Runs jobs of pte_child.py in one child process."""

    def run(jobs: list[dict[str, Any]]) -> list[Any]:
        (folder / "jobs.json").write_text(json.dumps(jobs))
        run_interop(CHILD, folder / "jobs.json", folder / "results.json", timeout=600)
        found: list[Any] = json.loads((folder / "results.json").read_text())
        return found

    return run


@pytest.fixture(scope="module")
def samples() -> dict[str, pte_samples.Sample]:
    found = {name: make() for name, make in pte_samples.SAMPLES.items()}
    return found | {"delegated_inline": pte_samples.delegated(inline=True)}


@pytest.fixture(scope="module")
def first(folder: Path, run_jobs: Jobs, samples: dict[str, pte_samples.Sample]) -> dict[tuple[str, str], Any]:
    """Results for our files by (kind, name), and the exporter's files written to ``folder``."""
    (folder / "blob").write_bytes(pte_samples.blob())
    jobs: list[dict[str, Any]] = [{"kind": "export", "folder": str(folder), "blob": str(folder / "blob"), "name": ""}]
    for name, sample in samples.items():
        path = folder / f"our_{name}.pte"
        path.write_bytes(emit(sample.program))
        for i, call in enumerate(sample.calls):
            np.savez(folder / f"our_{name}.in{i}.npz", *[x.numpy() for x in call.inputs])
        calls = [
            {"method": call.method, "inputs": str(folder / f"our_{name}.in{i}.npz")}
            for i, call in enumerate(sample.calls)
        ]
        kinds = ("run" if calls else "load", "exir", "explore")
        jobs += [{"kind": kind, "name": name, "pte": str(path), "calls": calls} for kind in kinds]
    return {(job["kind"], job["name"]): result for job, result in zip(jobs, run_jobs(jobs))}


@pytest.fixture(scope="module")
def second(folder: Path, run_jobs: Jobs, first: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """Results of the exporter's files after they went through our reader and emitter."""
    jobs: list[dict[str, Any]] = []
    for name in PEERS:
        path = folder / f"again_{name}.pte"
        path.write_bytes(emit(read((folder / f"{name}.pte").read_bytes())))
        inputs = sorted(folder.glob(f"{name}.in*.npz"))
        calls = [{"method": "forward", "inputs": str(file)} for file in inputs]
        jobs.append({"kind": "run" if calls else "load", "name": name, "pte": str(path), "calls": calls})
    return {job["name"]: result for job, result in zip(jobs, run_jobs(jobs))}


def _arrays(path: Path) -> list[np.ndarray[Any, Any]]:
    with np.load(path) as file:
        return [file[key] for key in file.files]


RUNNABLE = [name for name in pte_samples.SAMPLES if name not in ("delegated", "named")]


@pytest.mark.parametrize("name", RUNNABLE)
def test_runs_with_right_numbers(
    name: str, folder: Path, first: dict[tuple[str, str], Any], samples: dict[str, pte_samples.Sample]
) -> None:
    sample = samples[name]
    assert first["run", name] == {"methods": sorted(m.name for m in sample.program.methods)}
    for mode in MODES:
        for i, call in enumerate(sample.calls):
            found = _arrays(folder / f"our_{name}.pte.{i}.{mode}.npz")
            assert len(found) == len(call.expected)
            for array, expected in zip(found, call.expected):
                wanted = np.asarray(expected)
                assert array.shape == wanted.shape
                if wanted.dtype.kind == "f":
                    np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)
                    np.testing.assert_array_equal(np.signbit(array), np.signbit(wanted))
                else:
                    np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("name", ["delegated", "delegated_inline"])
def test_delegate_loads_up_to_the_missing_backend(name: str, first: dict[tuple[str, str], Any]) -> None:
    for mode in MODES:
        found = first["load", name][mode]
        assert found["methods"] == ["forward"]
        assert "0x:20" in found["error"]


@pytest.mark.parametrize("name", list(pte_samples.SAMPLES))
def test_exporter_reads_it(
    name: str, first: dict[tuple[str, str], Any], samples: dict[str, pte_samples.Sample]
) -> None:
    program = samples[name].program
    found = first["exir", name]
    assert found["values"] == len(program.methods[0].values)
    assert found["instructions"] == len(program.methods[0].instructions)
    assert found["delegates"] == [len(d.data) for m in program.methods for d in m.delegates]
    assert found["named"] == sorted(key for key, _ in program.named_data)
    if program.constants:
        # Entry 0 is the placeholder; padding counts as part of the constant before it.
        assert found["constants"][0] == 0
        assert all(len(c) <= size <= len(c) + 16 for c, size in zip(program.constants, found["constants"][1:]))


@pytest.mark.parametrize("name", list(pte_samples.SAMPLES))
def test_model_explorer_converts_it(
    name: str, first: dict[tuple[str, str], Any], samples: dict[str, pte_samples.Sample]
) -> None:
    graphs = {graph["graph"]: graph for graph in first["explore", name]}
    for method in samples[name].program.methods:
        labels = graphs[method.name]["nodes"]
        for instruction in method.instructions:
            if isinstance(instruction, model.KernelCall):
                assert method.operators[instruction.operator].name in labels
            if isinstance(instruction, model.DelegateCall):
                assert method.delegates[instruction.delegate].id in labels
        assert graphs[method.name]["edges"] or not method.instructions


@pytest.mark.parametrize("name", PEERS)
def test_exporters_file_is_read_and_still_runs(
    name: str, folder: Path, first: dict[tuple[str, str], Any], second: dict[str, Any]
) -> None:
    assert name in first["export", ""]
    data = (folder / f"{name}.pte").read_bytes()
    program = check(data)
    ours = emit(program)
    assert read(ours) == program
    assert len(ours) <= len(data)
    text = describe_file(data)
    for method in program.methods:
        assert f"method {method.name}" in text
    if name == "ethosu":
        assert "scratch: 1024 bytes" in text
        assert all("0x:20" in second[name][mode]["error"] for mode in MODES)
        return
    assert "error" not in second[name]
    expected = sorted(folder.glob(f"{name}.out*.npz"))
    assert expected
    for i, file in enumerate(expected):
        for mode in MODES:
            found = _arrays(folder / f"again_{name}.pte.{i}.{mode}.npz")
            for array, wanted in zip(found, _arrays(file), strict=True):
                np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)
