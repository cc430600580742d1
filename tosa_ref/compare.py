"""How two results differ, and which operator is the first to differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arm_lower.errors import ArmLowerError
from arm_lower.tosa.ir import DType, Graph, Tensor
from tosa_ref.run import run

Array = npt.NDArray[np.generic]

_HIDDEN = (DType.INT4, DType.INT48)  # the reference model's API has no arrays of these types


@dataclass(frozen=True)
class Difference:
    """One tensor, as the reference has it and as it was found.

    Attributes:
        name: Name of the tensor.
        bit_exact: All bytes are equal.
        max_difference: Largest absolute difference; in LSB for integers, in the tensor's unit for floats.
        sqnr_db: Signal to quantization noise, ``10 log10(sum(r^2) / sum((r - f)^2))``; inf if equal.
        differing: Number of elements that differ.
        size: Number of elements.
        index: First element that differs in C order, None if none does.
        reference: Value of that element in the reference.
        found: Value of that element in the other.
    """

    name: str
    bit_exact: bool
    max_difference: float
    sqnr_db: float
    differing: int
    size: int
    index: tuple[int, ...] | None = None
    reference: float | int | bool | None = None
    found: float | int | bool | None = None

    def __str__(self) -> str:
        if self.bit_exact:
            return f"{self.name}: bit-exact ({self.size} elements)"
        return (f"{self.name}: {self.differing} of {self.size} elements differ, at most by {self.max_difference:g}, "
                f"SQNR {self.sqnr_db:.1f} dB; first at {list(self.index or ())}: reference {self.reference}, "
                f"found {self.found}")


@dataclass(frozen=True)
class NodeDifference:
    """The first operator whose result differs.

    Attributes:
        index: Position in the reference graph's ``ops``.
        kind: TOSA operator.
        location: Where it came from, ``module.path:aten_operator``.
        difference: How its result differs.
    """

    index: int
    kind: str
    location: str
    difference: Difference

    def __str__(self) -> str:
        place = f" from {self.location}" if self.location else ""
        return f"operator {self.index}, {self.kind}{place}: {self.difference}"


def compare_arrays(name: str, reference: Array, found: Array) -> Difference:
    """Compares two arrays of one tensor.

    Raises:
        ArmLowerError: Their shapes or types differ.
    """
    if reference.shape != found.shape or reference.dtype != found.dtype:
        raise ArmLowerError(f"{name}: cannot compare {reference.dtype} {list(reference.shape)} "
                            f"with {found.dtype} {list(found.shape)}")
    where = np.flatnonzero(_bits(reference) != _bits(found))
    if where.size == 0:
        return Difference(name, True, 0, math.inf, 0, reference.size)
    a, b = reference.ravel()[where], found.ravel()[where]
    first = tuple(int(i) for i in np.unravel_index(where[0], reference.shape))
    return Difference(name, False, _max_difference(a, b), sqnr_db(reference, found), int(where.size), reference.size,
                      first, a[0].item(), b[0].item())


def compare(reference: Sequence[Array], found: Sequence[Array], names: Sequence[str] = ()) -> list[Difference]:
    """Compares the outputs of two runs, one by one.

    Args:
        names: Names to report; ``output 0``, ``output 1`` ... where there are none.

    Raises:
        ArmLowerError: Numbers of outputs, shapes or types differ.
    """
    if len(reference) != len(found):
        raise ArmLowerError(f"the reference has {len(reference)} outputs, the other has {len(found)}")
    return [compare_arrays(names[i] if i < len(names) else f"output {i}", a, b)
            for i, (a, b) in enumerate(zip(reference, found))]


def sqnr_db(reference: Array, found: Array) -> float:
    """``10 log10(sum(r^2) / sum((r - f)^2))``: inf for equal values, -inf for noise on an all-zero reference."""
    r, f = reference.astype(np.float64), found.astype(np.float64)
    noise, signal = float(np.sum((r - f) ** 2)), float(np.sum(r ** 2))
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 and math.isfinite(noise) else -math.inf


def intermediates(graph: Graph, inputs: Sequence[Array]) -> dict[str, Array]:
    """Every operator's result on the reference model, by tensor name.

    int48 and int4 results are missing: the reference model cannot return them.

    Raises:
        ArmLowerError: As `tosa_ref.run.run`.
    """
    tensors: list[Tensor] = [t for op in graph.ops for t in op.outputs if t.dtype not in _HIDDEN]
    values = run(Graph(graph.name, graph.inputs, tensors, graph.ops), inputs)
    return {t.name: value for t, value in zip(tensors, values)}


def first_difference(graph: Graph, reference: Mapping[str, Array], found: Mapping[str, Array]) -> NodeDifference | None:
    """The first operator of ``graph`` whose result differs; None if no tensor that both have differs.

    Args:
        graph: Gives the order, and the operators' names.
        reference: Right values by tensor name, as `intermediates` gives them.
        found: The other's values by tensor name; tensors that are in one of the two only are skipped.
    """
    for index, op in enumerate(graph.ops):
        for t in op.outputs:
            if t.name not in reference or t.name not in found:
                continue
            difference = compare_arrays(t.name, reference[t.name], found[t.name])
            if not difference.bit_exact:
                return NodeDifference(index, op.kind, op.location, difference)
    return None


def compare_graphs(reference: Graph, other: Graph, inputs: Sequence[Array]) -> NodeDifference | None:
    """Runs two graphs with the same input names on the reference model, and finds the first tensor of the same name
    that differs: for example a graph before and after a rewrite."""
    return first_difference(reference, intermediates(reference, inputs), intermediates(other, inputs))


def _bits(array: Array) -> Array:
    """The elements' bits, flat: equality of values would call NaN unequal to itself and 0.0 equal to -0.0."""
    flat = np.ascontiguousarray(array).ravel()
    return flat.view(np.dtype(f"u{flat.dtype.itemsize}"))


def _max_difference(a: Array, b: Array) -> float:
    if a.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
        return math.inf if np.isnan(gap).any() else float(gap.max())
    # Python ints: a difference of two int64 does not fit int64.
    return max(abs(int(x) - int(y)) for x, y in zip(a.tolist(), b.tolist()))
