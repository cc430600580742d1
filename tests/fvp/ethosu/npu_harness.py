"""Compile a TOSA graph with Vela in memory, run it on the NPU model and on the reference model, compare."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from ethosu import regor

import tosa_ref.run
from arm_lower.tosa.ir import DType, Graph, Op, Tensor
from arm_lower.tosa.serialize import to_flatbuffer
from arm_lower.tosa.spec import infer
from fvp.ethosu import IO, Program, load

B, I4, I8, I16, I32, I48 = DType.BOOL, DType.INT4, DType.INT8, DType.INT16, DType.INT32, DType.INT48
_SYSTEM = {
    "u55": ("EthosU55", "Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "u65": ("EthosU65", "Ethos_U65_Embedded", "Dedicated_Sram"),
    "u85": ("EthosU85", "Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB"),
}
TARGETS = (
    *("u55-32", "u55-64", "u55-128", "u55-256", "u65-256", "u65-512"),
    *("u85-128", "u85-256", "u85-512", "u85-1024", "u85-2048"),
)
QUICK = ("u55-128", "u65-512", "u85-256")


def full() -> bool:
    """Whether the long versions of the tests run: environment variable NPU_FULL."""
    return os.environ.get("NPU_FULL", "") not in ("", "0")


class G:
    """Builds a small graph; shapes and types come from the TOSA specification."""

    def __init__(self, seed: int = 0) -> None:
        self.graph = Graph("case")
        self.rng = np.random.default_rng(seed)
        self.ranges: list[tuple[int, int] | None] = []
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def input(self, shape: tuple[int, ...], dtype: DType = I8, span: tuple[int, int] | None = None) -> Tensor:
        t = Tensor(self._name(), tuple(shape), dtype)
        self.graph.inputs.append(t)
        self.ranges.append(span)
        return t

    def const(self, values: Any, dtype: DType) -> Tensor:
        array = np.ascontiguousarray(np.asarray(values, dtype.numpy))
        return Tensor(self._name(), array.shape, dtype, array)

    def random(self, shape: tuple[int, ...], dtype: DType, lo: int, hi: int) -> Tensor:
        return self.const(self.rng.integers(lo, hi, shape, endpoint=True), dtype)

    def op(self, kind: str, *inputs: Tensor, **attrs: Any) -> Tensor:
        ((shape, dtype),) = infer(kind, inputs, attrs)
        out = Tensor(self._name(), shape, dtype)
        self.graph.ops.append(Op(kind, list(inputs), [out], attrs))
        return out

    def _trim(self, x: Tensor, pads: list[int]) -> tuple[Tensor, list[int]]:
        """TOSA wants the window to cover the input exactly: what padding cannot give is sliced off."""
        size = list(x.shape)
        for a in (0, 1):
            size[1 + a] += min(0, pads[2 * a + 1])
            pads[2 * a + 1] = max(0, pads[2 * a + 1])
        if size != list(x.shape):
            x = self.op("SLICE", x, start=(0, 0, 0, 0), size=tuple(size))
        return x, pads

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] = (1, 1, 1, 1),
        zp: int = 3,
        wzp: int = 0,
        weights: tuple[int, int] = (-127, 127),
        bias: int = 1000,
        sparse: bool = False,
    ) -> Tensor:
        w = self.rng.integers(*weights, (channels, *kernel, x.shape[3]), endpoint=True)
        if sparse:
            w.reshape(-1, x.shape[3])[:, 1::4] = 0
            w.reshape(-1, x.shape[3])[:, 2::4] = 0
        acc = I48 if x.dtype is I16 else I32
        b = self.random((channels,), acc, -bias, bias)
        pads = list(pad)
        for a in (0, 1):
            total = x.shape[1 + a] + pads[2 * a] + pads[2 * a + 1] - (kernel[a] - 1) * dilation[a] - 1
            pads[2 * a + 1] -= total % stride[a]
        x, pads = self._trim(x, pads)
        return self.op(
            *("CONV2D", x, self.const(w, I8), b),
            **{"pad": tuple(pads), "stride": stride, "dilation": dilation, "acc_type": str(acc)},
            **{"input_zp": 0 if x.dtype is I16 else zp, "weight_zp": wzp},
        )

    def depthwise(
        self,
        x: Tensor,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] = (1, 1, 1, 1),
        zp: int = 3,
        multiplier: int = 1,
    ) -> Tensor:
        acc = I48 if x.dtype is I16 else I32
        c = x.shape[3]
        pads = list(pad)
        for a in (0, 1):
            total = x.shape[1 + a] + pads[2 * a] + pads[2 * a + 1] - (kernel[a] - 1) * dilation[a] - 1
            pads[2 * a + 1] -= total % stride[a]
        x, pads = self._trim(x, pads)
        return self.op(
            *("DEPTHWISE_CONV2D", x, self.random((*kernel, c, multiplier), I8, -127, 127)),
            self.random((c * multiplier,), acc, -1000, 1000),
            **{"pad": tuple(pads), "stride": stride, "dilation": dilation, "acc_type": str(acc)},
            **{"input_zp": 0 if x.dtype is I16 else zp, "weight_zp": 0},
        )

    def transpose_conv(
        self, x: Tensor, channels: int, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int, int, int]
    ) -> Tensor:
        acc = I48 if x.dtype is I16 else I32
        return self.op(
            *("TRANSPOSE_CONV2D", x, self.random((channels, *kernel, x.shape[3]), I8, -127, 127)),
            self.random((channels,), acc, -1000, 1000),
            **{
                "out_pad": pad,
                "stride": stride,
                "acc_type": str(acc),
                "input_zp": 0 if x.dtype is I16 else 3,
                "weight_zp": 0,
            },
        )

    def rescale(
        self,
        x: Tensor,
        out: DType = I8,
        scale: float | None = None,
        izp: int = 0,
        ozp: int = 0,
        per_channel: bool = False,
        rounding: str = "single",
        scale32: bool | None = None,
        unsigned: str = "",
    ) -> Tensor:
        """``scale`` None: random multipliers around a value that keeps convolution results in range."""
        n = x.shape[-1] if per_channel else 1
        wide = x.dtype is not I48 if scale32 is None else scale32
        bits = 31 if wide else 15
        if scale is None:
            base = {
                (I32, I8): 2.0**-9,
                (I32, I16): 2.0**-4,
                (I48, I16): 2.0**-9,
                (I48, I8): 2.0**-17,
                (I48, I32): 2.0**-2,
            }.get((x.dtype, out), 1.0)
            scales = base * self.rng.uniform(0.4, 1.9, n)
        else:
            scales = np.full(n, scale) * (self.rng.uniform(0.6, 1.0, n) if per_channel else 1.0)
        m, e = np.frexp(scales)
        mult = np.minimum(np.rint(m * 2.0**bits), 2.0**bits - 1).astype(np.int64)
        return self.op(
            *("RESCALE", x),
            **{"multiplier": tuple(int(v) for v in mult), "shift": tuple(int(bits - v) for v in e), "scale32": wide},
            **{"input_zp": izp if x.dtype is I8 or unsigned else 0, "output_zp": ozp if out is I8 or unsigned else 0},
            **{"rounding": rounding, "per_channel": per_channel, "out_dtype": str(out)},
            **{"input_unsigned": unsigned == "input", "output_unsigned": unsigned == "output"},
        )

    def out(self, *tensors: Tensor) -> G:
        self.graph.outputs += tensors
        return self

    def feed(self, seed: int = 1) -> list[Any]:
        rng = np.random.default_rng(seed)
        values = []
        for t, span in zip(self.graph.inputs, self.ranges):
            if t.dtype is B:
                values.append(rng.integers(0, 2, t.shape).astype(np.bool_))
                continue
            lo, hi = span or (t.dtype.range if t.dtype is not I32 else (-(1 << 20), 1 << 20))
            values.append(rng.integers(lo, hi, t.shape, endpoint=True).astype(t.dtype.numpy))
        return values


@dataclass(frozen=True)
class Compiled:
    """What `Program.run` wants, out of Vela's raw model."""

    payload: bytes
    read_only: bytes
    inputs: tuple[IO, ...]
    outputs: tuple[IO, ...]
    scratch: int
    fast: int

    @property
    def program(self) -> Program:
        return load(self.payload)

    def run(self, inputs: list[Any], program: Program | None = None) -> list[Any]:
        return (program or self.program).run(self.read_only, inputs, self.inputs, self.outputs, self.scratch, self.fast)


@lru_cache(maxsize=1)
def _ini() -> str:
    return (files("ethosu") / "config_files" / "Arm" / "vela.ini").read_text()


def compile_raw(
    tosa: bytes,
    target: str,
    *,
    optimize: str = "Performance",
    arena: int = 0,
    disable: str = "",
    memory: str = "",
    system: str = "",
) -> Any:
    """Vela's raw model of a TOSA flatbuffer; RuntimeError if Vela refuses."""
    family, macs = target.split("-")
    arch, config, mode = _SYSTEM[family]
    cores = 2 if target == "u65-512" else 1
    text = f"[architecture]\nmacs={int(macs) // cores}\ncores={cores}\n[vela]\n"
    text += f"system_config_name={system or config}\nmemory_mode_name={memory or mode}\n"
    options = "[compiler]\noutput_format=Raw\ncop_format=COP1\nenable_db=true\n[scheduler]\n"
    options += f"optimize={optimize}\ndisable_feature={disable}\ncpu_tensor_alignment=16\ntensor_allocator=HillClimb\n"
    options += (f"arena_size_limit={arena}\n" if arena else "") + "[graph]\n"
    return regor.compile(arch, tosa, "TOSA", text + _ini(), options=options, verbose=False)


def compile_graph(graph: Graph, target: str, **options: Any) -> Compiled:
    m = compile_raw(to_flatbuffer(graph), target, **options)
    inputs, outputs = (tuple(IO.of(t) for t in side) for side in (m.inputs, m.outputs))
    return Compiled(
        m.command_stream,
        bytes(m.read_only.data),
        inputs,
        outputs,
        m.scratch.size,
        m.scratch_fast.size if m.scratch_fast else 0,
    )


def reference(graph: Graph, inputs: list[Any]) -> list[Any]:
    return [np.asarray(a) for a in tosa_ref.run.run(graph, inputs)]


def difference(want: list[Any], got: list[Any]) -> str:
    """Empty if equal; else which output, how many elements and the first one."""
    for k, (a, b) in enumerate(zip(want, got)):
        b = b.reshape(a.shape)
        if a.dtype == np.bool_:
            b = b != 0
        bad = np.argwhere(a != b)
        if len(bad):
            at = tuple(int(v) for v in bad[0])
            return f"output {k}: {len(bad)} of {a.size} differ, first at {at}: reference {a[at]}, NPU {b[at]}"
    return "" if len(want) == len(got) else f"{len(want)} outputs, the NPU has {len(got)}"
