"""The engine behind the tables of NPU limits: what is measured on an operator, and how a row is checked.

A row says: on this operator this measure must be in this range, or be one of these values. The measures are the
only code; everything an NPU accepts is data in `arm_lower.targets.ethos_u55` and `arm_lower.targets.ethos_u85`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from arm_lower.errors import Unsupported
from arm_lower.tosa.ir import Op

Value = int | str | bool


@dataclass(frozen=True)
class Row:
    """One limit.

    Attributes:
        ops: TOSA operators it holds for.
        measure: Name in `MEASURES`; also what the message calls it.
        low: Smallest allowed number.
        high: Largest allowed number.
        allowed: Allowed values, instead of a range.
        when: Name in `MEASURES` of a condition; the row holds only where it is true.
        source: The line of Vela's SUPPORTED_OPS.md, or what was seen where Vela differs from it.
        hint: What to try instead.
    """

    ops: tuple[str, ...]
    measure: str
    source: str
    low: int | None = None
    high: int | None = None
    allowed: tuple[Value, ...] | None = None
    when: str = ""
    hint: str = ""

    def problem(self, op: Op) -> str:
        """What breaks the row, in a few words like ``stride 4 > 3``; "" when the row holds."""
        if self.when and not MEASURES[self.when](op):
            return ""
        value = MEASURES[self.measure](op)
        if self.allowed is not None:
            return "" if value in self.allowed else f"{self.measure} {value}, allowed: {_listed(self.allowed)}"
        number = int(value)
        condition = f" with {self.when}" if self.when else ""
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


def _listed(values: tuple[Value, ...]) -> str:
    return ", ".join(str(v) for v in values)


# -- measures ------------------------------------------------------------------------------------------------


def _types(op: Op) -> str:
    inputs = list(dict.fromkeys(str(t.dtype) for t in op.inputs))
    return f"{' x '.join(inputs)} -> {op.output.dtype}"


def _ints(op: Op, name: str) -> tuple[int, ...]:
    value = op.attrs[name]
    return value if isinstance(value, tuple) else (int(value),)


def _kernel(op: Op) -> tuple[int, int]:
    """Height and width of the kernel, dilation not counted."""
    if "kernel" in op.attrs:
        height, width = _ints(op, "kernel")
        return height, width
    shape = op.inputs[1].shape
    return (shape[0], shape[1]) if op.kind == "DEPTHWISE_CONV2D" else (shape[1], shape[2])


def _largest(op: Op, *axes: int) -> int:
    """Largest size of these axes over the first input and the output."""
    return max(t.shape[a] for t in (op.inputs[0], op.output) for a in axes if -len(t.shape) <= a < len(t.shape))


def _axis(op: Op) -> int:
    return _ints(op, "axis")[0]


MEASURES: Mapping[str, Callable[[Op], Value]] = {
    "data types": _types,
    "stride": lambda op: max(_ints(op, "stride")),
    "stride (y, x)": lambda op: str(_ints(op, "stride")),
    "kernel height": lambda op: _kernel(op)[0],
    "kernel size": lambda op: max(_kernel(op)),
    "kernel height * width": lambda op: prod(_kernel(op)),
    "padding": lambda op: any(_ints(op, "pad")),
    "no padding": lambda op: not any(_ints(op, "pad")),
    "batch": lambda op: op.inputs[0].shape[0],
    "largest of H, W, C": lambda op: _largest(op, 1, 2, 3),
    "channels": lambda op: _largest(op, -1),
    "rank": lambda op: len(op.inputs[0].shape),
    "axis from the end": lambda op: _axis(op) - len(op.inputs[0].shape),
    "reduced size": lambda op: op.inputs[0].shape[_axis(op)],
    "size before the axis": lambda op: prod(op.inputs[0].shape[: _axis(op)]),
    "size after the axis": lambda op: prod(op.inputs[0].shape[_axis(op) + 1 :]),
    "rounding": lambda op: bool(op.attrs["round"]),
}
