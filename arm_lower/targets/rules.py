"""The engine behind the tables of NPU limits: what is measured on an operator, and how a row is checked.

A row says: on these operators this measure must be in this range, or be one of these values. The measures are the
only code; everything an NPU accepts is data in `arm_lower.targets.ethos_u55` and `arm_lower.targets.ethos_u85`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from arm_lower.errors import Unsupported
from arm_lower.tosa.ir import DType, Op

Value = int | str | bool


@dataclass(frozen=True)
class Row:
    """One limit.

    Attributes:
        ops: TOSA operators it holds for.
        measure: Name in `MEASURES`; also what the message calls it.
        source: The line of Vela's SUPPORTED_OPS.md; where Vela differs from it, what it does instead.
        low: Smallest allowed number.
        high: Largest allowed number.
        allowed: Allowed values, instead of a range.
        when: Name in `MEASURES` of a condition; the row holds only where it is true.
        hint: What to try instead.
        refused: False if Vela 5.2 compiles what the row forbids. Its document excludes it, or the command stream
            it writes is wrong, and nothing but this row stands between the user and wrong results.
    """

    ops: tuple[str, ...]
    measure: str
    source: str
    low: int | None = None
    high: int | None = None
    allowed: tuple[Value, ...] | None = None
    when: str = ""
    hint: str = ""
    refused: bool = True

    def problem(self, op: Op) -> str:
        """What breaks the row, in a few words like ``stride 4 > 3``; "" when the row holds."""
        if self.when and not MEASURES[self.when](op):
            return ""
        value = MEASURES[self.measure](op)
        condition = f" ({self.when})" if self.when else ""
        if self.allowed is not None:
            allowed = ", ".join(str(v) for v in self.allowed)
            return "" if value in self.allowed else f"{self.measure} is {value}{condition}, allowed: {allowed}"
        number = int(value)
        if self.high is not None and number > self.high:
            return f"{self.measure} {number} > {self.high}{condition}"
        if self.low is not None and number < self.low:
            return f"{self.measure} {number} < {self.low}{condition}"
        return ""


@dataclass(frozen=True)
class Limits:
    """What one family of NPUs accepts.

    Attributes:
        name: As printed, for example ``Ethos-U55``.
        absent: Operators it lacks, with what to try instead.
        rows: Limits on the others.
    """

    name: str
    absent: Mapping[str, str]
    rows: tuple[Row, ...]

    @cached_property
    def by_op(self) -> Mapping[str, tuple[Row, ...]]:
        """The rows of each operator, in table order."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            for op in row.ops:
                found.setdefault(op, []).append(row)
        return {op: tuple(rows) for op, rows in found.items()}

    def check(self, op: Op) -> None:
        """Raises `Unsupported` when the NPU does not take ``op``."""
        if op.kind in self.absent:
            raise Unsupported(f"{self.name} has no {op.kind}", self.absent[op.kind])
        for row in self.by_op.get(op.kind, ()):
            problem = row.problem(op)
            if problem:
                raise Unsupported(f"{self.name} {op.kind}: {problem}", row.hint)


# -- measures ------------------------------------------------------------------------------------------------


def _ints(op: Op, name: str) -> tuple[int, ...]:
    value = op.attrs[name]
    if isinstance(value, tuple):
        return value
    return (int(value),)


def _dilation(op: Op) -> tuple[int, int]:
    y, x = _ints(op, "dilation") if "dilation" in op.attrs else (1, 1)
    return y, x


def _kernel(op: Op) -> tuple[int, int]:
    """Height and width of the kernel as the hardware sees it: Vela passes a dilation of up to 2 on to the hardware,
    which counts the holes; a larger one it splits into convolutions without dilation."""
    if "kernel" in op.attrs:
        height, width = _ints(op, "kernel")
    elif op.kind == "DEPTHWISE_CONV2D":
        height, width = op.inputs[1].shape[:2]
    else:
        height, width = op.inputs[1].shape[1:3]
    dy, dx = _dilation(op)
    return (height - 1) * (dy if dy <= 2 else 1) + 1, (width - 1) * (dx if dx <= 2 else 1) + 1


def _padding(op: Op, first: bool) -> int:
    """Larger padding of top and left (``first``) or of bottom and right, as the hardware sees it; see `_kernel`."""
    pads = _ints(op, "pad")[0 if first else 1 :: 2]
    return max(pad if d <= 2 else -(-pad // d) for pad, d in zip(pads, _dilation(op)))


def _empty_phases(op: Op) -> int:
    """Rows and columns of the result that only read between the elements of the input, with a dilation above 2."""
    count = 0
    for axis, d in enumerate(_dilation(op)):
        size, stride, pad = op.inputs[0].shape[1 + axis], _ints(op, "stride")[axis], _ints(op, "pad")[2 * axis]
        if d > 2:
            count += sum((i * stride - pad) % d >= size for i in range(op.output.shape[1 + axis]))
    return count


def _padding_rows(op: Op) -> int:
    """Rows of padding, at the top or the bottom, that a whole kernel fits into."""
    height = op.inputs[1].shape[0 if op.kind == "DEPTHWISE_CONV2D" else 1]
    return max(0, max(_ints(op, "pad")[:2]) - _dilation(op)[0] * (height - 1))


def is_wide_average(op: Op) -> bool:
    """Whether an AVG_POOL2D is more than Ethos-U85 does in one operation; without padding it is not."""
    return any(_ints(op, "pad")) and (max(_kernel(op)) > 8 or max(_ints(op, "stride")) > 3)


def _transposed_stride(op: Op) -> str:
    """Stride of a transposed convolution. Along an axis on which the input and the kernel have one element the stride
    means nothing: it counts as that of the other axis."""
    strides = list(_ints(op, "stride"))
    flat = [op.inputs[0].shape[axis] == 1 and op.inputs[1].shape[axis] == 1 for axis in (1, 2)]
    for axis in (0, 1):
        if flat[axis]:
            strides[axis] = 1 if flat[1 - axis] else strides[1 - axis]
    return str(tuple(strides))


def _upscale(op: Op) -> str:
    """The up-scaling of a RESIZE as one of the two forms that U55 knows, else ``other``."""
    yn, yd, xn, xd = _ints(op, "scale")
    offset, border = _ints(op, "offset"), _ints(op, "border")
    height, width = op.inputs[0].shape[1:3]
    factors = {n // 2 if d == 2 else n for n, d, size in ((yn, yd, height), (xn, xd, width)) if size > 1 or n > d}
    if len(factors) != 1:
        return "other"
    half = all(d == 2 and n % 2 == 0 for n, d in ((yn, yd), (xn, xd))) and all(
        o == -(n // 2 - 1) and b == n // 2 - 1 for o, b, n in zip(offset, border, (yn, xn))
    )
    corners = (yd, xd) == (1, 1) and offset == (0, 0) and border == (0, 0) and height > 1 and width > 1
    if not half and not corners:
        return "other"
    return f"{'half-pixel' if half else 'align-corners'} x{factors.pop()}"


def _axis(op: Op) -> int:
    return _ints(op, "axis")[0]


def _largest_plane(op: Op) -> int:
    """Largest axis of a TRANSPOSE within the last three axes, else the largest product of all axes but two."""
    shape, perms = op.inputs[0].shape, _ints(op, "perms")
    lead = max(len(shape) - 3, 0)
    if perms == tuple(range(len(perms))):
        return 0
    if prod(shape[:lead]) == 1 and perms[:lead] == tuple(range(lead)):
        return max(shape)
    return prod(shape) // prod(sorted(shape)[:2])


def _permutation(op: Op) -> str:
    """The permutation in the letters of Vela's document, for up to four axes."""
    perms = _ints(op, "perms")
    if len(perms) > 4:
        return str(perms)
    lead = 4 - len(perms)
    return "".join("NHWC"[p] for p in (*range(lead), *(p + lead for p in perms)))


def _sizes_of_4(op: Op) -> tuple[int, int, int, int]:
    n, h, w, c = ((1,) * 4 + op.inputs[0].shape)[-4:]
    return n, h, w, c


def _weight_sum(op: Op) -> int:
    """Largest sum of absolute weights of an output channel. Counted only where the fan-in could exceed any limit."""
    weights = op.inputs[1]
    fan_in = prod(weights.shape[1:])
    if weights.data is None or fan_in <= 1 << 15:
        return 0
    values = weights.data.astype(np.int64) - _ints(op, "weight_zp")[0]
    return int(np.abs(values).sum(axis=tuple(range(1, values.ndim))).max())


def _bias_bits(op: Op) -> int:
    bias = op.inputs[2].data
    if bias is None or op.inputs[2].dtype is not DType.INT48 or not bias.size:
        return 0
    return 1 + max(int(v).bit_length() for v in (int(bias.max()), ~int(bias.min())))


MEASURES: Mapping[str, Callable[[Op], Value]] = {
    "data type": lambda op: str(op.inputs[0].dtype),
    "data types": lambda op: " x ".join(str(t.dtype) for t in op.inputs[:2]),
    "data types in and out": lambda op: f"{op.inputs[0].dtype} -> {op.output.dtype}",
    "int32": lambda op: op.inputs[0].dtype is DType.INT32,
    "int8 or int16": lambda op: op.inputs[0].dtype in (DType.INT8, DType.INT16),
    "stride": lambda op: max(_ints(op, "stride")),
    "stride > 3": lambda op: max(_ints(op, "stride")) > 3,
    "stride (y, x)": _transposed_stride,
    "kernel height": lambda op: _kernel(op)[0],
    "kernel size": lambda op: max(_kernel(op)),
    "kernel height * width": lambda op: prod(_kernel(op)),
    "dilation": lambda op: max(_dilation(op)),
    "padding": lambda op: max(_ints(op, "pad")),
    "phases of the dilation without input": _empty_phases,
    "rows that read only padding": _padding_rows,
    "padded, with kernel > 8 or stride > 3": is_wide_average,
    "padded": lambda op: any(_ints(op, "pad")),
    "not padded": lambda op: not any(_ints(op, "pad")),
    "padding at the top or left": lambda op: _padding(op, True),
    "padding at the bottom or right": lambda op: _padding(op, False),
    "input channels": lambda op: op.inputs[0].shape[-1],
    "output channels": lambda op: op.output.shape[-1],
    "height or width": lambda op: max(*op.inputs[0].shape[1:3], *op.output.shape[1:3]),
    "height * width": lambda op: prod(op.inputs[0].shape[-3:-1]),
    "batch": lambda op: prod(op.inputs[0].shape[:-3]),
    "constant weights": lambda op: all(t.data is not None for t in op.inputs[1:3]),
    "sum of absolute weights": _weight_sum,
    "bits of the bias": _bias_bits,
    "inner size": lambda op: op.inputs[0].shape[2],
    "columns": lambda op: op.inputs[1].shape[2],
    "rounding": lambda op: bool(op.attrs["round"]),
    "mode": lambda op: str(op.attrs["mode"]),
    "up-scaling": _upscale,
    "axis from the end": lambda op: _axis(op) - len(op.inputs[0].shape),
    "not over channels": lambda op: _axis(op) != len(op.inputs[0].shape) - 1,
    "size of the axis": lambda op: op.inputs[0].shape[_axis(op)],
    "size before the axis": lambda op: prod(op.inputs[0].shape[: _axis(op)]),
    "size after the axis": lambda op: prod(op.inputs[0].shape[_axis(op) + 1 :]),
    "rank": lambda op: len(op.inputs[0].shape),
    "permutation": _permutation,
    "largest axis or plane": _largest_plane,
    "int32 NHWC": lambda op: op.inputs[0].dtype is DType.INT32 and _permutation(op) == "NHWC",
    "int32 NWHC or NCWH": lambda op: op.inputs[0].dtype is DType.INT32 and _permutation(op) in ("NWHC", "NCWH"),
    "int32 NHCW": lambda op: op.inputs[0].dtype is DType.INT32 and _permutation(op) == "NHCW",
    "channels": lambda op: _sizes_of_4(op)[3],
    "N": lambda op: _sizes_of_4(op)[0],
    "H or W": lambda op: max(_sizes_of_4(op)[1:3]),
    "N * H": lambda op: prod(_sizes_of_4(op)[:2]),
    "W or C": lambda op: max(_sizes_of_4(op)[2:]),
}
"""Everything a row can ask of an operator. Sizes are numbers of elements."""
