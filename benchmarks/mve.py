"""Instructions of kernels with and without MVE, on a Cortex-M55 in QEMU.

    python benchmarks/mve.py

Each row is a program with one operator. It is built twice, with the same compiler and the flags of every application
(``fvp.builder``): as it is, and with ``-DAL_PORTABLE``, which takes the plain C loops and newlib's memcpy. The numbers
are what the runner counts (``qemu -icount``) for the call of the operator: the kernel with the checks of its
arguments, not its inner loop alone. The column -O2 is the plain code with -O2 in the place of -Os. These are
instructions, not cycles: a vector instruction takes two cycles or more on a Cortex-M55, a gather more than that.

Results of both have to be equal. The last table has the bytes of code. The exit code is the number of rows that
differ or miss their bar, the factor in the column of that name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import common  # noqa: F401  (this repository on the path)
import numpy as np
import torch
from torch import Tensor

from arm_lower.program import to_edge
from fvp import builder
from fvp.compare import problems
from fvp.elf import Elf
from fvp.runner import RunResult, run

BOARD = "mps3-an547"


@dataclass(frozen=True)
class Row:
    """A function of tensors that becomes the operator ``kernel``; ``bar`` 0 for none."""

    name: str
    kernel: str
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    bar: float = 0


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def rows() -> list[Row]:
    torch.manual_seed(5)
    q = torch.ops.quantized_decomposed
    floats = torch.randn(1, 3, 64, 64) * 40
    signed = torch.randint(-128, 128, (1, 3, 64, 64), dtype=torch.int8)
    unsigned = torch.randint(0, 256, (12288,), dtype=torch.uint8)
    image = torch.randint(-128, 128, (1, 3, 224, 224), dtype=torch.int8)
    hwc = torch.randint(-128, 128, (1, 16, 16, 64), dtype=torch.int8)
    matrix = torch.randint(-128, 128, (64, 64), dtype=torch.int8)
    x, w, m, bias = torch.randn(8, 128), torch.randn(64, 128), torch.randn(128, 64), torch.randn(64)
    quantize = "quantized_decomposed::quantize_per_tensor.out"
    dequantize = "quantized_decomposed::dequantize_per_tensor.out"
    permute = "aten::permute_copy.out"
    return [
        Row("quantize to int8, 12288", quantize,
            lambda x: q.quantize_per_tensor(x, 0.5, 3, -128, 127, torch.int8), (floats,), 4),
        Row("quantize to uint8, 12288", quantize,
            lambda x: q.quantize_per_tensor(x, 0.5, 128, 0, 255, torch.uint8), (floats,), 4),
        Row("quantize to int8, 490", quantize,
            lambda x: q.quantize_per_tensor(x, 0.5, 3, -128, 127, torch.int8), (floats.flatten()[:490],), 4),
        Row("dequantize int8, 12288", dequantize,
            lambda x: q.dequantize_per_tensor(x, 0.5, 3, -128, 127, torch.int8), (signed,), 4),
        Row("dequantize uint8, 12288", dequantize,
            lambda x: q.dequantize_per_tensor(x, 0.5, 128, 0, 255, torch.uint8), (unsigned,), 4),
        Row("dequantize int8, 12", dequantize,
            lambda x: q.dequantize_per_tensor(x, 0.5, 3, -128, 127, torch.int8), (signed.flatten()[:12],)),
        Row("int8 copy, 150528", "aten::clone.out", torch.clone, (image,), 4),
        Row("int8 copy, 12288", "aten::clone.out", torch.clone, (signed,), 4),
        Row("int8 copy of lines, 3x64x57", "aten::slice_copy.Tensor_out", lambda x: x[..., 3:60].clone(), (signed,)),
        Row("int8 NCHW -> NHWC, 3x64x64", permute, lambda x: x.permute(0, 2, 3, 1).contiguous(), (signed,), 4),
        Row("int8 NHWC -> NCHW, 16x16x64", permute, lambda x: x.permute(0, 3, 1, 2).contiguous(), (hwc,), 4),
        Row("int8 transpose, 64x64", permute, lambda x: x.permute(1, 0).contiguous(), (matrix,), 4),
        Row("float32 NCHW -> NHWC, 3x64x64", permute, lambda x: x.permute(0, 2, 3, 1).contiguous(), (floats,)),
        Row("linear, 8x128 by 64", "aten::linear.out", torch.nn.functional.linear, (x, w, bias)),
        Row("addmm, 8x128 by 64", "aten::addmm.out", torch.addmm, (bias, x, m)),
        Row("mm, 8x128 by 64", "aten::mm.out", torch.mm, (x, m)),
        Row("softmax, 1x1000", "aten::_softmax.out", lambda x: torch.softmax(x, -1), (torch.randn(1, 1000) * 4,)),
        Row("softmax, 1x10", "aten::_softmax.out", lambda x: torch.softmax(x, -1), (torch.randn(1, 10) * 4,)),
    ]  # fmt: skip


def built(pte: bytes, portable: bool, optimize: str = "-Os") -> builder.Firmware:
    flags = tuple(optimize if f == "-Os" else f for f in builder._FLAGS)
    with patch.object(builder, "_FLAGS", flags):
        return builder.build(pte, BOARD, portable=portable)


def call(result: RunResult, kernel: str) -> int:
    """Instructions of the only call of a kernel."""
    (op,) = [op for op in result.ops if op.name == kernel]
    return op.instructions


def compare(row: Row) -> tuple[int, int, int, str]:
    """Instructions of the plain code, of -O2, with MVE; and what is wrong."""
    exported = torch.export.export(Model(row.function).eval(), row.inputs)
    pte = to_edge(exported).to_executorch().buffer
    inputs = [x.numpy() for x in row.inputs]
    results = []
    for portable, optimize in ((True, "-Os"), (True, "-O2"), (False, "-Os")):
        results.append(run(built(pte, portable, optimize), inputs))
    before, quick, after = results
    counts = [call(r, row.kernel) for r in results]
    bits = [np.ascontiguousarray(o) for o in before.outputs]
    wrong = "; ".join(problems(after.outputs, bits, 0))
    if counts[0] < row.bar * counts[2]:
        wrong = f"{wrong}; below {row.bar:g}x".strip("; ")
    return counts[0], counts[1], counts[2], wrong


def code() -> list[tuple[str, int, int]]:
    """Bytes of functions that take part in all rows: plain, with MVE."""
    parts = ("al_quantize_run", "al_quantize_one", "al_dequantize_run", "al_copy_plane", "al_dot_run", "al_matmul_run",
             "al_softmax_run", "memcpy", "memmove", "memset")  # fmt: skip
    x = torch.randn(2, 3, 4)
    q = torch.ops.quantized_decomposed

    def function(x: Tensor, m: Tensor) -> Any:
        y = q.dequantize_per_tensor(
            q.quantize_per_tensor(x, 0.5, 0, -128, 127, torch.int8).permute(2, 1, 0), 0.5, 0, -128, 127, torch.int8
        )
        return torch.softmax(y, -1), torch.mm(m, m), torch.nn.functional.linear(m, m)

    pte = to_edge(torch.export.export(Model(function).eval(), (x, torch.randn(4, 4)))).to_executorch().buffer
    sizes: list[dict[str, int]] = []
    for portable in (True, False):
        firmware = built(pte, portable)
        sizes.append({f.name: f.nbytes for f in Elf(firmware.elf).functions()} | {"all code": firmware.sizes.text})
    return [(n, *(s.get(n, 0) for s in sizes)) for n in (*parts, "all code")]  # type: ignore[misc]


def main() -> int:
    print(f"{'':32}{'plain':>10}{'plain -O2':>11}{'MVE':>10}{'ratio':>8}{'bar':>5}")
    failed = 0
    for row in rows():
        before, quick, after, wrong = compare(row)
        bar = f"{row.bar:g}" if row.bar else ""
        print(f"{row.name:32}{before:10,}{quick:11,}{after:10,}{before / after:8.1f}{bar:>5}  {wrong}", flush=True)
        failed += bool(wrong)
    print(f"\n{'bytes of code':32}{'plain':>10}{'':11}{'MVE':>10}")
    for name, before, after in code():
        print(f"{name:32}{before:10,}{'':11}{after:10,}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
