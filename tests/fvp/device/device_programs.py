"""Small programs, and simulators that are none, for the tests of builder and runner."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from torch import nn

import arm_lower
from arm_lower.pte.emit import emit
from arm_lower.pte.ethosu_blob import BACKEND_ID
from arm_lower.pte.model import AtRuntime, DelegateSpec, Planned, ProgramBuilder, ScalarType

F32, I8 = ScalarType.FLOAT32, ScalarType.INT8


def one_kernel(*names: str, count: int = 8, planned: bool = True) -> bytes:
    """Unary kernels (``aten::relu.out`` by default) one after the other, on ``count`` float32 values."""
    b = ProgramBuilder()
    m = b.method("forward")
    size = -(-4 * count // 16) * 16
    x = m.add_tensor(F32, (count,), Planned(0) if planned else AtRuntime())
    y = m.add_tensor(F32, (count,), Planned(size) if planned else AtRuntime())
    m.add_input(x)
    for full in names or ("aten::relu.out",):
        name, _, overload = full.partition(".")
        m.kernel(name, overload, x, y, y)
    m.add_output(y)
    return emit(b.build())


def delegate_of(data: bytes, target: str, mode: str = "Shared_Sram", delegate_id: str = BACKEND_ID) -> bytes:
    """One delegate call int8[1, 3, 8, 8] -> int8[1, 4], with the compile specs of a target."""
    b = ProgramBuilder()
    m = b.method("forward")
    x, y = m.add_tensor(I8, (1, 3, 8, 8), Planned(0)), m.add_tensor(I8, (1, 4), Planned(192))
    m.add_input(x)
    flags = f"--accelerator-config={target} --memory-mode={mode}".encode()
    m.delegate_call(m.add_delegate(DelegateSpec(delegate_id, data, (("compile_flags", flags),))), x, y)
    m.add_output(y)
    return emit(b.build())


SHAPE = (1, 3, 8, 8)


def samples(count: int = 4) -> list[tuple[torch.Tensor]]:
    ramp = torch.linspace(-1, 1, 192).reshape(SHAPE)
    return [(ramp * (i + 1) / count + 0.1 * i,) for i in range(count)]


@cache
def compiled(target: str = "ethos-u55-128", memory_mode: str | None = None) -> arm_lower.Compiled:
    """A convolution with quantize and dequantize around it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()).eval()
    return arm_lower.compile(model, samples(), target, memory_mode=memory_mode)


RECORDER = """#!{python}
import json, os, subprocess, sys
with open({record!r}, "w") as file:
    json.dump({{"arguments": sys.argv[1:], "library_path": os.environ.get("LD_LIBRARY_PATH", "")}}, file)
{then}
"""

# Runs the same application in QEMU, as if it were an FVP.
AS_QEMU = """
values = dict(a.split("=", 1) for flag, a in zip(sys.argv, sys.argv[1:]) if flag == "-C")
prefix = next(k for k in values if k.endswith("semihosting-cwd")).removesuffix("-cwd")
words = ",".join("arg=" + w for w in values[prefix + "-cmd_line"].split())
elf = sys.argv[sys.argv.index("-a") + 1]
command = [{qemu!r}, "-M", "mps3-an547", "-display", "none", "-monitor", "none", "-serial", "stdio", "-kernel", elf,
           "-semihosting-config", "enable=on,target=native," + words]
if "--data" in sys.argv:
    file, address = sys.argv[sys.argv.index("--data") + 1].split("@")
    command += ["-device", "loader,file=" + file + ",addr=" + address + ",force-raw=on"]
sys.exit(subprocess.run(command, cwd=values[prefix + "-cwd"]).returncode)
"""


def stand_in(folder: Path, name: str, then: str = "") -> Path:
    """An executable ``name`` in ``folder`` that records its arguments in ``name.json`` and then does ``then``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    text = RECORDER.format(python=sys.executable, record=str(folder / f"{name}.json"), then=then)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path
