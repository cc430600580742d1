"""Typed construction of a TOSA graph for one target.

Every method makes one TOSA operator: `arm_lower.tosa.spec.infer` gives the result's shape and dtype and
checks the specification's rules, `arm_lower.targets.check` asks whether the NPU takes it. What the NPU
refuses raises `Unsupported`, which is how the partitioner learns what can be lowered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from arm_lower import targets
from arm_lower.errors import TosaError, Unsupported
from arm_lower.tosa.ir import Attr, DType, Graph, Op, Tensor, as_ints
from arm_lower.tosa.spec import infer, level_error

MAX_AXIS = 65536  # of a TRANSPOSE on U55 and U65


class Builder:
    """Appends operators to a graph.

    Attributes:
        graph: The graph built so far.
        family: ``u55``, ``u65`` or ``u85``; chooses limits and formulations.
        location: Location given to the operators made from now on.
        stem: Prefix of the names of the tensors made from now on.
    """

    UNKNOWN = 2.0**31  # magnitude of an int32 tensor about which nothing is known

    def __init__(self, name: str, family: str) -> None:
        self.graph = Graph(name)
        self.family = family
        self.location = ""
        self.stem = "t"
        self._names: dict[str, int] = {}
        self._magnitude: dict[Tensor, float] = {}
        self._producer: dict[Tensor, Op] = {}  # of int32 tensors

    # -- tensors -------------------------------------------------------------------------------------------

    def name(self, stem: str) -> str:
        """``stem``, or ``stem.1``, ``stem.2`` ... when it is taken."""
        n = self._names.get(stem, 0)
        self._names[stem] = n + 1
        return f"{stem}.{n}" if n else stem

    def input(self, name: str, shape: Sequence[int], dtype: DType) -> Tensor:
        tensor = Tensor(self.name(name), as_ints(shape), dtype)
        self.graph.inputs.append(tensor)
        return tensor

    def const(self, data: npt.NDArray[np.generic], dtype: DType, name: str = "") -> Tensor:
        """A constant of the values of ``data``, which must fit ``dtype``."""
        array = np.require(data, dtype=dtype.numpy, requirements="C")  # not ascontiguousarray: it makes rank 0 rank 1
        return Tensor(self.name(name or f"{self.stem}.const"), as_ints(array.shape), dtype, array)

    def op(self, kind: str, inputs: Sequence[Tensor], **attrs: Attr) -> Tensor:
        """Appends the operator ``kind`` and returns its only result.

        Raises:
            Unsupported: The target does not take this operator with these operands.
        """
        op = Op(kind, list(inputs), [], attrs, self.location)
        try:
            ((shape, dtype),) = infer(kind, op.inputs, attrs)
        except TosaError as error:
            raise Unsupported(error.message, error.hint) from error
        op.outputs.append(Tensor(self.name(self.stem), shape, dtype))
        problem = level_error(kind, op.inputs, attrs, op.outputs)
        if problem:
            raise Unsupported(f"{kind}: {problem} of TOSA")
        targets.check(op, self.family)
        self.graph.ops.append(op)
        if dtype is DType.INT32:
            self._producer[op.output] = op
        return op.output

    def magnitude(self, x: Tensor, zero_point: int = 0) -> float:
        """A bound of |value - zero_point|."""
        low, high = x.dtype.range
        if x.data is not None and x.size:
            low, high = int(x.data.min()), int(x.data.max())
        if x not in self._magnitude and x in self._producer:
            self._magnitude[x] = self._largest(self._producer[x])
        return min(float(max(abs(low - zero_point), abs(high - zero_point))), self._magnitude.get(x, self.UNKNOWN))

    def _surely_below(self, x: Tensor, limit: float) -> bool:
        """Whether a bound that needs no look at the weights is enough: to add up large ones takes time."""
        op = self._producer.get(x)
        if op is None or op.kind != "CONV2D" or op.inputs[2].data is None:
            return False
        products = op.inputs[1].size // op.inputs[1].shape[0]
        bias = float(np.abs(op.inputs[2].data.astype(np.float64)).max())
        return products * 255.0 * self.magnitude(op.inputs[0], op.integer("input_zp")) + bias < limit

    def _largest(self, op: Op) -> float:
        """A bound of the absolute values of an int32 result."""
        x = op.inputs[0]
        if (
            op.kind in ("CONV2D", "DEPTHWISE_CONV2D")
            and op.inputs[1].data is not None
            and op.inputs[2].data is not None
        ):
            w = np.abs(np.subtract(op.inputs[1].data, op.integer("weight_zp"), dtype=np.int16))  # weights have 8 bits
            axes = (1, 2, 3) if op.kind == "CONV2D" else (0, 1)
            sums = w.sum(axis=axes, dtype=np.int64).reshape(-1)
            bias = np.abs(op.inputs[2].data.astype(np.float64))
            return float((sums * self.magnitude(x, op.integer("input_zp")) + bias).max())
        if op.kind in ("ADD", "SUB"):
            return self.magnitude(x) + self.magnitude(op.inputs[1])
        if op.kind == "MUL":
            return self.magnitude(x) * self.magnitude(op.inputs[1])
        if op.kind == "REDUCE_SUM":
            return self.magnitude(x) * x.shape[op.integer("axis")]
        if op.kind in ("MAXIMUM", "MINIMUM"):
            return max(self.magnitude(x), self.magnitude(op.inputs[1]))
        if op.kind in ("RESHAPE", "TRANSPOSE", "SLICE", "IDENTITY", "ABS"):
            return self.magnitude(x)
        return self.UNKNOWN

    # -- operators with operands that need a default or a conversion ------------------------------------------

    def conv2d(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor,
        *,
        pad: Sequence[int],
        stride: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1),
        input_zp: int = 0,
        weight_zp: int = 0,
        depthwise: bool = False,
    ) -> Tensor:
        """CONV2D (weights OHWI) or DEPTHWISE_CONV2D (weights HWCM); pad is top, bottom, left, right.

        TOSA wants the padded input to be covered exactly by the strided kernel: what is too much at the bottom
        and right is taken off the padding, and off the input where the padding is not enough.
        """
        kh, kw = (w.shape[0], w.shape[1]) if depthwise else (w.shape[1], w.shape[2])
        pads = list(pad)
        sizes = list(x.shape)
        for axis, k, s, d, end in ((1, kh, stride[0], dilation[0], 1), (2, kw, stride[1], dilation[1], 3)):
            total = sizes[axis] + pads[end - 1] + pads[end] - (d * (k - 1) + 1)
            if total < 0:
                raise Unsupported(f"kernel {k} with dilation {d} is larger than the padded input of {sizes[axis]}")
            pads[end] -= total % s
            if pads[end] < 0:
                sizes[axis] += pads[end]
                pads[end] = 0
        if sizes != list(x.shape):
            x = self.slice(x, [0] * len(sizes), sizes)
        # Rows that read nothing but padding are rows of the map: Vela cannot compute them alone.
        empty = [max(0, p - dilation[0] * (kh - 1)) for p in pads[:2]]
        x = self.pad(x, (0, 0, *empty, 0, 0, 0, 0), input_zp)
        pads[:2] = [p - e for p, e in zip(pads, empty)]
        kind = "DEPTHWISE_CONV2D" if depthwise else "CONV2D"
        acc = "int48" if x.dtype is DType.INT16 else "int32"
        return self.op(
            kind,
            [x, w, bias],
            pad=as_ints(pads),
            stride=as_ints(stride),
            dilation=as_ints(dilation),
            acc_type=acc,
            input_zp=int(input_zp),
            weight_zp=int(weight_zp),
        )

    def rescale(
        self, x: Tensor, scale: float | npt.NDArray[np.float64], out: DType, *, input_zp: int = 0, output_zp: int = 0
    ) -> Tensor:
        """RESCALE by a real factor, one or one for each element of the last axis, with single rounding.

        TOSA wants |value| < 2^(shift - 1), which a factor breaks that takes values far beyond any type: what a tensor
        that calibration saw as constant asks for. Such a factor is cut to the largest legal one.
        """
        scales = np.atleast_1d(np.asarray(scale, dtype=np.float64))
        limit = 2.0**29 / max(scales.max(), 1e-30)
        legal = out is DType.INT32 or x.dtype is DType.INT48 or self._surely_below(x, limit)
        if not legal and self.magnitude(x, input_zp) < self.UNKNOWN:
            scales = np.minimum(scales, 2.0**29 / max(self.magnitude(x, input_zp), 1.0))
        if np.all(scales == scales[0]):
            scales = scales[:1]
        scale32 = x.dtype is not DType.INT48
        multiplier, shift = quantize_scale(scales, 31 if scale32 else 15)
        y = self.op(
            "RESCALE",
            [x],
            multiplier=multiplier,
            shift=shift,
            input_zp=int(input_zp),
            output_zp=int(output_zp),
            scale32=scale32,
            rounding="single",
            per_channel=len(multiplier) > 1,
            input_unsigned=False,
            output_unsigned=False,
            out_dtype=str(out),
        )
        if out is DType.INT32:
            self._magnitude[y] = self.magnitude(x, input_zp) * float(scales.max()) + 1
        return y

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """RESHAPE; nothing is emitted when the shape is already right, constants are reshaped here."""
        shape = as_ints(shape)
        if shape == x.shape:
            return x
        if x.data is not None:
            return self.const(x.data.reshape(shape), x.dtype, x.name)
        return self.op("RESHAPE", [x], shape=shape)

    def slice(self, x: Tensor, start: Sequence[int], size: Sequence[int]) -> Tensor:
        """SLICE; nothing is emitted when it takes everything."""
        if tuple(size) == x.shape:
            return x
        if x.data is not None:
            return self.const(x.data[tuple(slice(a, a + n) for a, n in zip(start, size))], x.dtype, x.name)
        return self.op("SLICE", [x], start=as_ints(start), size=as_ints(size))

    def pad(self, x: Tensor, padding: Sequence[int], value: int) -> Tensor:
        """PAD with pairs (before, after) of every axis; nothing is emitted for zero padding."""
        if not any(padding):
            return x
        return self.op("PAD", [x], padding=as_ints(padding), pad_const=int(value))

    def concat(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        return xs[0] if len(xs) == 1 else self.op("CONCAT", list(xs), axis=axis)

    def clamp(self, x: Tensor, low: int, high: int) -> Tensor:
        """CLAMP; nothing is emitted when the bounds are the type's own."""
        tmin, tmax = x.dtype.range
        low, high = max(low, tmin), min(high, tmax)
        if (low, high) == (tmin, tmax):
            return x
        return self.op("CLAMP", [x], min=low, max=high)

    def table(self, x: Tensor, values: npt.NDArray[np.generic]) -> Tensor:
        """TABLE of 256 int8 values, indexed by value + 128, or 513 int16 values."""
        return self.op("TABLE", [x, self.const(values, x.dtype, f"{self.stem}.table")])

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """The transposed tensor, in the form that is cheapest on the target (recipes measured with Vela 5.2)."""
        perm = as_ints(perm)
        shape = tuple(x.shape[p] for p in perm)
        if x.data is not None:
            return self.const(np.transpose(x.data, perm), x.dtype, x.name)
        real = [p for p in perm if x.shape[p] != 1]
        if real == sorted(real):
            return self.reshape(x, shape)
        groups = _merge_axes(real)
        sizes = [int(np.prod([x.shape[a] for a in g])) for g in sorted(groups)]
        order = [sorted(groups).index(g) for g in groups]
        if self.family == "u85":
            return self._transpose_u85(x, perm, shape, sizes, order)
        return self.reshape(self._transpose_parts(self.reshape(x, sizes), as_ints(order)), shape)

    def _transpose_parts(self, x: Tensor, perms: tuple[int, ...]) -> Tensor:
        """TRANSPOSE, in parts along the longest axis where the NPU cannot take it whole (images beyond 256 x 256)."""
        longest = max(x.shape)
        if longest <= MAX_AXIS:
            return self.op("TRANSPOSE", [x], perms=perms)
        axis, count = x.shape.index(longest), -(-longest // MAX_AXIS)
        step = -(-longest // (16 * count)) * 16
        parts = []
        for start in range(0, longest, step):
            begin = [start if a == axis else 0 for a in range(len(x.shape))]
            size = [min(step, longest - start) if a == axis else n for a, n in enumerate(x.shape)]
            parts.append(self.op("TRANSPOSE", [self.slice(x, begin, size)], perms=perms))
        return self.concat(parts, perms.index(axis))

    def _transpose_u85(
        self, x: Tensor, perm: tuple[int, ...], shape: tuple[int, ...], sizes: list[int], order: list[int]
    ) -> Tensor:
        few, many = (sizes[0], sizes[1]) if len(sizes) == 2 else (0, 0)
        if len(sizes) == 2 and few <= 8 and many % 8 == 0 and many >= 512 and x.dtype is DType.INT8:
            return self.reshape(self._interleave_conv(x, few, many), shape)
        real = [a for a in range(len(x.shape)) if x.shape[a] != 1]
        y = self.reshape(x, [x.shape[a] for a in real])
        y = self.op("TRANSPOSE", [y], perms=tuple(real.index(p) for p in perm if x.shape[p] != 1))
        return self.reshape(y, shape)

    def _interleave_conv(self, x: Tensor, channels: int, pixels: int) -> Tensor:
        """[C, P] -> [P, C] as a convolution that copies: 14 times faster than TRANSPOSE on U85 for images."""
        weights = np.zeros((8 * channels, channels, 1, 8), np.int8)
        for p in range(8):
            for c in range(channels):
                weights[p * channels + c, c, 0, p] = 1
        x = self.reshape(x, [1, channels, pixels // 8, 8])
        acc = self.conv2d(
            x, self.const(weights, DType.INT8), self.const(np.zeros(8 * channels), DType.INT32), pad=(0, 0, 0, 0)
        )
        return self.rescale(acc, 1.0, DType.INT8)


def quantize_scale(scales: npt.NDArray[np.float64], bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Multiplier of ``bits`` bits and right shift for each factor (TOSA 1.0, RESCALE; shift 2..62).

    Raises:
        Unsupported: A factor is not positive and finite, or too large for the smallest shift.
    """
    if not np.all(np.isfinite(scales)) or np.any(scales <= 0):
        raise Unsupported(
            f"a rescale factor is not a positive finite number: {scales.min()}",
            "look for a tensor that calibration saw as constant zero",
        )
    mantissa, exponent = np.frexp(scales)
    multiplier = np.rint(np.ldexp(mantissa, bits)).astype(np.int64)
    exponent = np.where(multiplier == 1 << bits, exponent + 1, exponent)
    multiplier = np.where(multiplier == 1 << bits, 1 << (bits - 1), multiplier)
    shift = bits - exponent
    if np.any(shift < 2):
        raise Unsupported(f"rescale factor {scales.max():g} is too large for RESCALE")
    excess = np.maximum(shift - 62, 0)
    multiplier = multiplier >> np.minimum(excess, 62)
    return as_ints(multiplier.tolist()), as_ints(np.minimum(shift, 62).tolist())


def _merge_axes(perm: Sequence[int]) -> list[tuple[int, ...]]:
    """Runs of axes that stay together: (2, 3, 0) -> [(2, 3), (0,)]. Axes missing from ``perm`` have size one."""
    present = sorted(perm)
    following = dict(zip(present, present[1:]))
    groups: list[list[int]] = []
    for p in perm:
        if groups and following.get(groups[-1][-1]) == p:
            groups[-1].append(p)
        else:
            groups.append([p])
    return [tuple(g) for g in groups]
