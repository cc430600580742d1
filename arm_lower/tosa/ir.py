"""The TOSA graph: three small dataclasses.

All compile-time parameters of an operator (zero points, pads, shapes, multipliers) are attributes; only
data (activations, weights, biases, tables) are tensors. A constant is a tensor that has ``data``: there is
no CONST operator here, `arm_lower.tosa.serialize` writes CONST and CONST_SHAPE where the flatbuffer
wants them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from arm_lower.errors import TosaError

Attr = int | float | bool | str | tuple[int, ...]


class DType(str, Enum):
    """TOSA 1.0 data types that the integer profile uses."""

    BOOL = "bool"
    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT48 = "int48"
    FP32 = "fp32"

    def __str__(self) -> str:
        return self.value

    @property
    def bits(self) -> int:
        return {"bool": 8, "fp32": 32}.get(self.value) or int(self.value[3:])

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type that holds values of this type (int48 in int64, int4 in int8)."""
        names = {"bool": "bool", "int4": "int8", "int48": "int64", "fp32": "float32"}
        return np.dtype(names.get(self.value, self.value))

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type."""
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1


@dataclass(eq=False)
class Tensor:
    """One value of the graph. Constant if ``data`` is given.

    Attributes:
        name: Unique in its graph.
        shape: Static sizes; rank 0 is ``()``.
        dtype: TOSA data type.
        data: Values of a constant, of `DType.numpy` type and exactly ``shape``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: npt.NDArray[np.generic] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(eq=False)
class Op:
    """One TOSA operator.

    Attributes:
        kind: The TOSA name, for example ``CONV2D``.
        inputs: Data operands in the order of the specification, without the operands that are attributes here.
        outputs: Results.
        attrs: Attributes and compile-time operands; lists are tuples of int. `arm_lower.tosa.spec` lists them.
        location: Where it came from, ``module.path:aten_operator``; kept in the flatbuffer's TosaOpLocation.
    """

    kind: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    attrs: dict[str, Attr] = field(default_factory=dict)
    location: str = ""

    @property
    def output(self) -> Tensor:
        return self.outputs[0]

    def integer(self, name: str) -> int:
        """An attribute that is one integer.

        Raises:
            TosaError: It is something else.
        """
        value = self.attrs[name]
        if isinstance(value, (str, tuple)):
            raise TosaError(f"{self.kind}: attribute {name} is {value!r}; an integer is allowed")
        return int(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers.

        Raises:
            TosaError: It is something else.
        """
        value = self.attrs[name]
        if not isinstance(value, tuple):
            raise TosaError(f"{self.kind}: attribute {name} is {value!r}; a tuple of integers is allowed")
        return value


@dataclass(eq=False)
class Graph:
    """A TOSA graph in topological order."""

    name: str
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def producers(self) -> dict[Tensor, Op]:
        """The operator that makes each non-constant, non-input tensor."""
        return {t: op for op in self.ops for t in op.outputs}

    def consumers(self) -> dict[Tensor, list[Op]]:
        """The operators that read each tensor; one entry per operator, also if it reads the tensor twice."""
        table: dict[Tensor, list[Op]] = {}
        for op in self.ops:
            for t in dict.fromkeys(op.inputs):
                table.setdefault(t, []).append(op)
        return table

    def constants(self) -> Iterator[Tensor]:
        """Constants in the order of first use, each once."""
        seen: set[Tensor] = set()
        for t in [*(t for op in self.ops for t in op.inputs), *self.outputs]:
            if t.data is not None and t not in seen:
                seen.add(t)
                yield t

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Every reader of ``old``, graph outputs included, reads ``new`` instead."""
        for op in self.ops:
            op.inputs = [new if t is old else t for t in op.inputs]
        self.outputs = [new if t is old else t for t in self.outputs]

    def __str__(self) -> str:
        from arm_lower.tosa.text import to_text

        return to_text(self)


def as_ints(values: Sequence[int]) -> tuple[int, ...]:
    """Plain Python ints, so that text and comparisons do not depend on numpy types."""
    return tuple(int(v) for v in values)
