"""Small TOSA graphs for tests of Vela and of the NPU limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from arm_lower.tosa.ir import Attr, DType, Graph, Op, Tensor
from arm_lower.tosa.serialize import to_flatbuffer
from arm_lower.tosa.spec import infer


class Maker:
    """Appends operators to a graph; nothing but the TOSA specification is checked."""

    def __init__(self) -> None:
        self.graph = Graph("test")
        self.random = np.random.default_rng(0)

    def name(self) -> str:
        return f"t{len(self.graph.ops)}_{len(self.graph.inputs)}_{self.random.integers(1 << 40)}"

    def input(self, shape: Sequence[int], dtype: str = "int8") -> Tensor:
        tensor = Tensor(self.name(), tuple(shape), DType(dtype))
        self.graph.inputs.append(tensor)
        return tensor

    def const(self, shape: Sequence[int], dtype: str = "int8", low: int = -7, high: int = 7) -> Tensor:
        kind = DType(dtype)
        data = self.random.integers(low, high, tuple(shape), endpoint=True).astype(kind.numpy)
        return Tensor(self.name(), tuple(shape), kind, data)

    def op(self, kind: str, *inputs: Tensor, **attrs: Attr) -> Tensor:
        outputs = [Tensor(self.name(), shape, dtype) for shape, dtype in infer(kind, list(inputs), attrs)]
        location = f"layer{len(self.graph.ops)}:aten.{kind.lower()}.default"
        self.graph.ops.append(Op(kind, list(inputs), outputs, attrs, location))
        return outputs[0]

    def rescale(self, x: Tensor, out: str = "int8") -> Tensor:
        wide = x.dtype is not DType.INT48
        return self.op("RESCALE", x, multiplier=(1 << (30 if wide else 14),), shift=(38 if wide else 22,), input_zp=0,
                       output_zp=0, scale32=wide, rounding="single", per_channel=False, input_unsigned=False,
                       output_unsigned=False, out_dtype=out)

    def conv(self, x: Tensor, out: int = 4, kernel: Sequence[int] = (1, 1), stride: Sequence[int] = (1, 1),
             pad: Sequence[int] = (0, 0, 0, 0), dilation: Sequence[int] = (1, 1), weights: str = "int8",
             depthwise: bool = False, computed: bool = False, weight: tuple[int, int] = (-7, 7),
             bias: tuple[int, int] = (-7, 7)) -> Tensor:
        channels = x.shape[-1]
        shape = (*kernel, channels, 1) if depthwise else (out, *kernel, channels)
        acc = "int48" if x.dtype is DType.INT16 else "int32"
        w = self.input(shape, weights) if computed else self.const(shape, weights, *weight)
        b = self.const((channels if depthwise else out,), acc, *bias)
        kind = "DEPTHWISE_CONV2D" if depthwise else "CONV2D"
        return self.op(kind, x, w, b, pad=tuple(pad), stride=tuple(stride), dilation=tuple(dilation), acc_type=acc,
                       input_zp=0, weight_zp=0)

    def transposed(self, x: Tensor, out: int = 4, kernel: Sequence[int] = (2, 2), stride: Sequence[int] = (2, 2),
                   computed: bool = False, weight: tuple[int, int] = (-7, 7),
                   bias: tuple[int, int] = (-7, 7)) -> Tensor:
        shape = (out, *kernel, x.shape[-1])
        acc = "int48" if x.dtype is DType.INT16 else "int32"
        w = self.input(shape) if computed else self.const(shape, "int8", *weight)
        return self.op("TRANSPOSE_CONV2D", x, w, self.const((out,), acc, *bias), out_pad=(0, 0, 0, 0),
                       stride=tuple(stride), acc_type=acc, input_zp=0, weight_zp=0)

    def pool(self, kind: str, x: Tensor, kernel: Sequence[int] = (2, 2), stride: Sequence[int] = (1, 1),
             pad: Sequence[int] = (0, 0, 0, 0)) -> Tensor:
        extra: dict[str, Attr] = {}
        if kind == "AVG_POOL2D":
            extra = {"acc_type": "int32", "input_zp": 0, "output_zp": 0}
        return self.op(kind, x, kernel=tuple(kernel), stride=tuple(stride), pad=tuple(pad), **extra)

    def finish(self, *outputs: Tensor) -> bytes:
        self.graph.outputs = list(outputs)
        return to_flatbuffer(self.graph)


Build = Callable[[Maker], Tensor]


def graph_of(build: Build) -> tuple[Graph, bytes]:
    """The graph that ``build`` makes, with its result as output, and its flatbuffer."""
    maker = Maker()
    data = maker.finish(build(maker))
    return maker.graph, data


def small_net(width: int = 16, size: int = 16) -> bytes:
    """Five 3x3 convolutions with a residual addition in int32."""
    m = Maker()
    x = m.input((1, size, size, 3))
    for _ in range(3):
        x = m.rescale(m.conv(x, width, (3, 3), pad=(1, 1, 1, 1)))
    y = m.rescale(m.conv(x, width, (3, 3), pad=(1, 1, 1, 1)))
    z = m.rescale(m.op("ADD", m.rescale(x, "int32"), m.rescale(y, "int32")))
    return m.finish(m.rescale(m.conv(z, 2 * width, (3, 3), (2, 2), (1, 0, 1, 0))))
