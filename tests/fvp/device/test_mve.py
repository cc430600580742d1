"""The MVE loops of the kernels beside the plain ones, on a Cortex-M55 in QEMU; and that the comparison sees a wrong
lane."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fvp import qemu
from fvp.boards import linker_script, load_board, place
from fvp.builder import compile_flags, find_toolchain
from fvp.sources import FIRMWARE

HERE = Path(__file__).parent / "mve_firmware"
KERNELS = FIRMWARE / "kernels"
CHECKS = ("quantize", "dequantize", "copy", "memory", "dot", "matmul", "exp", "softmax")
RUNS = ("quantize", "dequantize", "dot", "matmul", "softmax")
BOARD = load_board("mps3-an547")
_CHECK = re.compile(r"^check (\w+) cases=(\d+) failures=(\d+)$", re.MULTILINE)


def compiled(source: Path, folder: Path, options: Sequence[str] = (), includes: Sequence[Path] = ()) -> Path:
    result = folder / f"{source.parent.name}_{source.stem}.o"
    flags = [*(f"-I{i}" for i in includes), *compile_flags(BOARD), *options]
    subprocess.run([find_toolchain().gcc, *flags, "-c", str(source), "-o", str(result)], check=True)
    return result


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All but the checks, which have the MVE loops in them."""
    folder = tmp_path_factory.mktemp("mve")
    names = ["-DAL_PORTABLE", *(f"-Dal_{n}_run=portable_{n}_run" for n in RUNS)]
    sources = [KERNELS / "move.c", FIRMWARE / "core" / "values.c"]
    sources += [FIRMWARE / "port" / f"{n}.c" for n in ("startup", "console", "clock", "semihosting", "memory")]
    return [compiled(KERNELS / "simd_portable.c", folder, names), *(compiled(s, folder) for s in sources)]


def checks(objects: Sequence[Path], folder: Path, mve: str, only: str = "") -> dict[str, tuple[int, int]]:
    """Check -> cases and failures, with ``mve`` as the text of simd_mve.c."""
    (folder / "simd_mve.c").write_text(mve, encoding="utf-8")
    (folder / "checks.ld").write_text(linker_script(place(BOARD, "Shared_Sram", {}), 8192), encoding="utf-8")
    chosen = [f"-DCHECKS=check_{only}()", "-Wno-unused"] if only else []
    program = compiled(HERE / "main.c", folder, chosen, [folder])
    elf = folder / "checks.elf"
    command = [find_toolchain().gcc, "-mcpu=cortex-m55", "-mfloat-abi=hard", "-mthumb", "-nostartfiles"]
    command += ["--specs=nano.specs", "-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments"]
    command += ["-T", str(folder / "checks.ld"), str(program), *map(str, objects), "-lm", "-o", str(elf)]
    subprocess.run(command, check=True)
    run = subprocess.run(
        qemu.command(BOARD, elf, [], count=False), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    print(run.stdout)
    assert run.returncode == 0 and "\ndone\n" in run.stdout, run.stdout[-2000:]
    return {name: (int(cases), int(failures)) for name, cases, failures in _CHECK.findall(run.stdout)}


@pytest.fixture(scope="module")
def found(objects: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    return checks(objects, tmp_path_factory.mktemp("checks"), (KERNELS / "simd_mve.c").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CHECKS)
def test_as_the_plain_code(found: dict[str, tuple[int, int]], name: str) -> None:
    cases, failures = found[name]
    assert cases > 500 and failures == 0


@dataclass(frozen=True)
class Mutation:
    """A change of simd_mve.c, and the check that sees it."""

    check: str
    name: str
    old: str
    new: str


MUTATIONS = (
    Mutation("quantize", "rounds ties away", "vrndnq_f32(vmulq_f32(", "vrndaq_f32(vmulq_f32("),
    Mutation("quantize", "no zero point", "inverse)), zero);", "inverse)), inverse);"),
    Mutation("quantize", "no upper end", "vminq_s32(vmaxq_s32(vcvtq_s32_f32(scaled), low), high)",
             "vmaxq_s32(vcvtq_s32_f32(scaled), low)"),
    Mutation("quantize", "subnormal scales", "size >= FLT_MIN && ", ""),
    Mutation("quantize", "large scales", "size <= 0x1p124f && ", ""),
    Mutation("quantize", "NaN outside of the range", " && q->low <= 0 && q->high >= 0", ""),
    Mutation("quantize", "no last elements", "for (; done < n; done++) al_store", "if (done < n) al_store"),
    Mutation("dequantize", "bytes have a sign", "vldrbq_u32, vcvtq_f32_u32", "vldrbq_s32, vcvtq_f32_s32"),
    Mutation("dequantize", "subnormal results", "quads > 0 && isnormal(scale)", "quads > 0"),
    Mutation("copy", "lane of a gather", "get = vmulq_n_u16(lanes, (uint16_t)from_next);",
             "get = vsetq_lane_u16(0, vmulq_n_u16(lanes, (uint16_t)from_next), 5);"),
    Mutation("copy", "lane of a scatter", "put = vmulq_n_u16(lanes, (uint16_t)to_next),",
             "put = vsetq_lane_u16(0, vmulq_n_u16(lanes, (uint16_t)to_next), 7),"),
    Mutation("copy", "large steps", "UINT16_MAX / 7", "UINT16_MAX"),
    Mutation("copy", "back to front", " || from_next < 0", ""),
    Mutation("copy", "no last vector", "if (count % lanes == 0) continue;", "continue;"),
    Mutation("dot", "three lanes", "vgetq_lane_f32(v, 3)", "vgetq_lane_f32(v, 2)"),
    Mutation("dot", "no last elements", "k = n % 4", "k = 0"),
    Mutation("matmul", "four columns twice", "vld1q_f32(b + 4), *a", "vld1q_f32(b), *a"),
    Mutation("matmul", "infinite sums", "vcmpgeq_f32(vdupq_n_f32(FLT_MAX), vabsq_f32(value))", "0xffff"),
    Mutation("exp", "a coefficient", "0x1.123a20p-7f", "0x1.122a20p-7f"),
    Mutation("exp", "no end", "vcmpgtq_f32(vdupq_n_f32(-87.33f), x)", "0"),
    Mutation("exp", "NaN", "vcmpgtq_f32(vdupq_n_f32(-87.33f), x)", "vcmpltq_n_f32(x, -87.33f)"),
    Mutation("softmax", "lanes that do not count", "vpselq_f32(e, vdupq_n_f32(0), p)", "e"),
    Mutation("softmax", "wrong correction", "vfmaq_n_f32(e, result, -total)", "e"),
)  # fmt: skip


def test_a_wrong_lane_fails(objects: list[Path], tmp_path: Path) -> None:
    source = (KERNELS / "simd_mve.c").read_text(encoding="utf-8")
    unseen, unknown = [], []
    for m in MUTATIONS:
        if source.count(m.old) != 1:
            unknown.append(m.name)
        elif checks(objects, tmp_path, source.replace(m.old, m.new), m.check)[m.check][1] == 0:
            unseen.append(m.name)
    assert (unseen, unknown) == ([], [])
