"""Building the runtime for the host, its command line, and the size of its core for a Cortex-M."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from pte_samples import SAMPLES

from arm_lower.errors import ArmLowerError
from arm_lower.pte.emit import emit
from fvp import native
from fvp.native import FIRMWARE, Native, build, build_executable, build_library, library_sources


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARM_LOWER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


def built(sources: list[Path]) -> Path:
    return build(sources, ("-O0",), ("-shared",), "al.so")


CORE = [FIRMWARE / "core" / "flatbuffer.c", FIRMWARE / "core" / "error.c"]


def test_cached(cache: Path) -> None:
    first = built(CORE)
    assert first.parent == cache
    times = {p: p.stat().st_mtime_ns for p in cache.iterdir()}
    assert len(times) == 4  # two objects, the registry's, the library; nothing half-made is left
    assert built(CORE) == first
    assert {p: p.stat().st_mtime_ns for p in cache.iterdir()} == times
    assert built(CORE[:1]) != first
    assert build(CORE, ("-O1",), ("-shared",), "al.so") != first


def test_at_the_same_time(cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: built(CORE), range(8)))) == 1
    assert len(list(cache.iterdir())) == 4


def test_a_source_that_does_not_compile(cache: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("int f(void) { return nothing; }\n")
    with pytest.raises(ArmLowerError, match=r"(?s)^broken\.c does not compile:\n.*nothing.*undeclared"):
        built([*CORE, broken])
    assert not list(cache.glob("*broken*"))


def test_no_compiler(cache: Path) -> None:
    with pytest.raises(ArmLowerError, match="^no-such-cc is needed to build the runtime for the host, and is not "):
        build(CORE, (), ("-shared",), "al.so", "no-such-cc")


def test_a_kernel_file_left_out() -> None:
    few = [s for s in library_sources(["simd_portable"])]
    with pytest.raises(native.DeviceError, match="^an operator has no kernel in this build: aten::convolution.out$"):
        Native(emit(SAMPLES["network"]().program), sources=few).run([])


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = build_executable("al_run", sanitize=False)
    return subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, cwd=cwd)


def test_command_line(tmp_path: Path) -> None:
    sample = SAMPLES["network"]()
    (tmp_path / "model.pte").write_bytes(emit(sample.program))
    (tmp_path / "x.bin").write_bytes(sample.calls[0].inputs[0].numpy().tobytes())
    done = run("model.pte", "x.bin", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    for number, wanted in enumerate(sample.calls[0].expected):
        found = np.frombuffer((tmp_path / f"output-{number}.bin").read_bytes(), wanted.numpy().dtype)
        np.testing.assert_allclose(found, wanted.numpy().ravel(), rtol=1e-4, atol=1e-6)
    done = run("model.pte", "model.pte", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "error: model.pte does not fit input 0\n")
    (tmp_path / "short.pte").write_bytes(emit(sample.program)[:-1])
    done = run("short.pte", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("error 1: the file is shorter than its header says: needed ")
    done = run("nothing.pte", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "al_run model.pte [input.bin...]\n")


def test_size_of_the_core(tmp_path: Path) -> None:
    """At most 12 kB for a Cortex-M55, all of it, before the linker drops what is not used."""
    total = 0
    for source in sorted((FIRMWARE / "core").glob("*.c")):
        if source.stem == "prim":  # operators
            continue
        made = tmp_path / f"{source.stem}.o"
        subprocess.run(["arm-none-eabi-gcc", "-std=c11", "-Os", "-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard",
                        "-Wall", "-Wextra", "-Werror", "-Wconversion", "-ffunction-sections", "-fdata-sections",
                        f"-I{FIRMWARE / 'include'}", "-c", str(source), "-o", str(made)], check=True)
        size = subprocess.run(["arm-none-eabi-size", str(made)], check=True, capture_output=True, text=True).stdout
        text, data, bss = (int(n) for n in size.splitlines()[1].split()[:3])
        assert data == bss == 0, f"{source.name} has global state"
        total += text
    assert total <= 12_000


def test_stack_of_the_core(tmp_path: Path) -> None:
    """No function of core or kernels takes a kilobyte, none an amount that is not known."""
    large = []
    for source in [*sorted((FIRMWARE / "core").glob("*.c")), *sorted((FIRMWARE / "kernels").glob("*.c"))]:
        made = tmp_path / f"{source.stem}.o"
        subprocess.run(["arm-none-eabi-gcc", "-std=c11", "-Os", "-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard",
                        "-fstack-usage", f"-I{FIRMWARE / 'include'}", f"-I{FIRMWARE / 'kernels'}", "-c", str(source),
                        "-o", str(made)], check=True)
        for line in made.with_suffix(".su").read_text().splitlines():
            function, size, kind = line.split("\t")
            if int(size) >= 1024 or kind != "static":
                large.append(f"{source.name} {os.path.basename(function)}: {size} bytes, {kind}")
    assert not large


def test_the_library_is_built_once() -> None:
    assert build_library() == build_library() and build_library().exists()
