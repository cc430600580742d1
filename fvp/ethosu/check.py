"""Is what Vela made of a TOSA graph what the graph says? The check behind ``compile(..., verify=True)``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from arm_lower.tosa.ir import DType, Graph
from fvp.ethosu.errors import NpuError
from fvp.ethosu.hazard import hazards
from fvp.ethosu.program import Described, load
from fvp.ethosu.trace import Layered, Source, Step, command_sources, first_difference, run_traced
from tosa_ref.run import ReferenceModel

Array = npt.NDArray[Any]


class Compiled(Protocol):
    """Of `arm_lower.vela.VelaResult`, what is needed to run it."""

    @property
    def command_stream(self) -> bytes: ...
    @property
    def read_only(self) -> bytes: ...
    @property
    def inputs(self) -> Sequence[Described]: ...
    @property
    def outputs(self) -> Sequence[Described]: ...
    @property
    def scratch_size(self) -> int: ...
    @property
    def scratch_fast_size(self) -> int: ...


class Named(Compiled, Layered, Protocol):
    """The same with names for its commands."""


def random_inputs(graph: Graph, seed: int) -> list[Array]:
    """Values for each graph input, uniform over its type's range (int32: 20 bits, so that sums stay in range)."""
    rng = np.random.default_rng(seed)
    values: list[Array] = []
    for t in graph.inputs:
        if t.dtype is DType.BOOL:
            values.append(rng.integers(0, 2, t.shape).astype(np.bool_))
            continue
        low, high = t.dtype.range if t.dtype is not DType.INT32 else (-(1 << 20), 1 << 20)
        values.append(rng.integers(low, high, t.shape, endpoint=True).astype(t.dtype.numpy))
    return values


@dataclass(frozen=True)
class Finding:
    """Where a stream first leaves the reference.

    Attributes:
        message: What differs, with the layer, its PyTorch module, the element and both values as far as they are known.
        layer: The layer, None if none can be blamed.
    """

    message: str
    layer: Source | None = None


def disagreement(tosa: bytes, compiled: Compiled, inputs: Sequence[Array], model: ReferenceModel | None = None) -> str:
    """Runs one set of inputs on the reference model and on the NPU model.

    Args:
        tosa: The flatbuffer that was compiled.
        compiled: Vela's result.
        inputs: One array for each graph input.
        model: The reference model of ``tosa``, to save loading it again.

    Returns:
        "" if every output byte is equal. Otherwise the first element that differs, or what the NPU model refused.

    Raises:
        ArmLowerError: The reference model refuses the graph or the inputs.
    """
    return _difference((model or ReferenceModel(tosa)).run(list(inputs)), compiled, inputs)


def _difference(wanted: Sequence[Array], compiled: Compiled, inputs: Sequence[Array]) -> str:
    raw: list[Array | bytes] = [np.ascontiguousarray(a).tobytes() for a in inputs]
    sizes = compiled.scratch_size, compiled.scratch_fast_size or None
    try:
        program = load(compiled.command_stream)
        found = program.run(compiled.read_only, raw, compiled.inputs, compiled.outputs, *sizes)
    except NpuError as error:
        return error.message
    for k, (a, b) in enumerate(zip(wanted, found, strict=True)):
        want, got = np.asarray(a), b.reshape(a.shape)
        got = got != 0 if want.dtype == np.bool_ else got
        bad = np.argwhere(want != got)
        if len(bad):
            at = tuple(int(v) for v in bad[0])
            values = f"TOSA {want[at]}, NPU {got[at]}"
            return f"output {k}: {len(bad)} of {want.size} elements differ, the first at {at}: {values}"
    return ""


def examine(
    graph: Graph, compiled: Named, inputs: Sequence[Array], wanted: Sequence[Array] | None = None
) -> Finding | None:
    """Runs one set of inputs as `disagreement` does, and finds the layer at fault.

    Args:
        graph: What was compiled.
        compiled: Vela's result.
        inputs: One array for each graph input.
        wanted: Outputs of the reference model, if they are known.

    Returns:
        None if every output byte is equal.

    Raises:
        ArmLowerError: The reference model refuses the graph or the inputs.
    """
    text = _difference(wanted if wanted is not None else ReferenceModel(graph).run(list(inputs)), compiled, inputs)
    if not text:
        return None
    try:
        program = load(compiled.command_stream)
    except NpuError:
        return Finding(text)
    layers = command_sources(compiled, program.stream.start)
    raw: list[Array | bytes] = [np.ascontiguousarray(a).tobytes() for a in inputs]
    sizes = compiled.scratch_size, compiled.scratch_fast_size or None
    steps: list[Step] = []
    with suppress(NpuError):  # which ``text`` has
        run_traced(program, compiled.read_only, raw, compiled.inputs, compiled.outputs, *sizes, layers, True, steps)
    difference = first_difference(steps, _values(graph, {s.source.name for s in steps if s.source}, inputs))
    if difference is not None:
        return Finding(str(difference), difference.layer)
    offset = _OFFSET.match(text)
    layer = layers.get(int(offset[1], 16)) if offset else None
    return Finding(f"layer {layer.name} ({layer.location}): {text}" if layer else text, layer)


_OFFSET = re.compile(r"offset (0x[0-9a-f]+)")


def _values(graph: Graph, names: set[str], inputs: Sequence[Array]) -> dict[str, Array]:
    """What the reference model has for the tensors ``names``, as far as its API lets them out."""
    inside = [t for op in graph.ops for t in op.outputs if t.name in names and t.dtype not in (DType.INT48, DType.INT4)]
    if not inside:
        return {}
    found = ReferenceModel(Graph(graph.name, graph.inputs, inside, graph.ops)).run(list(inputs))
    return {t.name: np.asarray(a) for t, a in zip(inside, found, strict=True)}


def overlaps(compiled: Compiled) -> list[str]:
    """The hazards of a stream as text; see `fvp.ethosu.hazard`. Only silicon can say whether they bite."""
    return [str(h) for h in hazards(load(compiled.command_stream))]
