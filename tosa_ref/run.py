"""A TOSA graph on Arm's TOSA reference model, in process."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from arm_lower.errors import ArmLowerError, TosaError
from arm_lower.tosa.ir import DType, Graph, Tensor
from arm_lower.tosa.serialize import from_flatbuffer, signature, to_flatbuffer

Array = npt.NDArray[np.generic]

log = logging.getLogger(__name__)

_stdio = threading.Lock()

_NOT_CROSSING = (DType.INT4, DType.INT48)
# Operators whose result has the values of their first input and no others.
_SAME_VALUES = frozenset({"RESHAPE", "TRANSPOSE", "REVERSE", "TILE", "IDENTITY", "SLICE"})


def run(graph: Graph | bytes, inputs: Sequence[Array], *, level_8k: bool = False) -> list[Array]:
    """Runs a graph, or a TOSA flatbuffer, once; see `ReferenceModel`."""
    return ReferenceModel(graph, level_8k=level_8k).run(inputs)


class ReferenceModel:
    """A graph, or a TOSA flatbuffer, ready to run.

    Args:
        graph: The graph or the file's bytes.
        level_8k: Also fail if a limit of TOSA's level 8K is exceeded.

    Attributes:
        signature: Inputs, outputs and operators.

    Raises:
        TosaError: The bytes are no TOSA file.
        ArmLowerError: An input or output has a type that the reference model's API lacks.
    """

    def __init__(self, graph: Graph | bytes, *, level_8k: bool = False) -> None:
        self.data = graph if isinstance(graph, bytes) else to_flatbuffer(graph)
        self.level = "EIGHTK" if level_8k else "NONE"
        self.signature = signature(self.data)
        for t in (*self.signature.inputs, *self.signature.outputs):
            if t.dtype in _NOT_CROSSING:
                raise ArmLowerError(f"graph input or output {t.name!r} is {t.dtype}, which the model's API lacks",
                                    "end the graph before it or after its RESCALE")
        indexed = not {"GATHER", "SCATTER"}.isdisjoint(self.signature.operators)
        self._indices = _index_limits(from_flatbuffer(self.data)) if indexed else {}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs in the graph's order. Integer TOSA is exact: they are the only right result.

        Args:
            inputs: One array for each graph input, of its shape and its numpy type (`DType.numpy`).

        Raises:
            ArmLowerError: The inputs do not fit, or the reference model refuses the graph or calls its result
                unpredictable (a REQUIRE of the specification fails, as an int32 overflow does); with its own words.
        """
        arrays = check_inputs(self.signature.inputs, inputs)
        safe = self._indices is not None and all(
            0 <= arrays[i].min() and arrays[i].max() < limit for i, limit in self._indices.items())
        outputs = (_run_here if safe else _run_isolated)(self.data, arrays, self.level)
        for t, array in zip(self.signature.outputs, outputs):
            if array.shape != t.shape or array.dtype != t.dtype.numpy:
                raise TosaError(f"output {t.name!r} came out as {array.dtype} {list(array.shape)}, "
                                f"the graph says {t.dtype} {list(t.shape)}")
        return outputs


def _index_limits(graph: Graph) -> dict[int, int] | None:
    """Graph inputs whose values are indices, with the number that they must be below; None if an index is computed or
    a constant one is out of range: it makes the reference model abort the process, where others only fail."""
    producers = graph.producers()
    limits: dict[int, int] = {}
    for op in graph.ops:
        if op.kind not in ("GATHER", "SCATTER"):
            continue
        limit, source = op.inputs[0].shape[1], op.inputs[1]
        while source in producers and producers[source].kind in _SAME_VALUES:
            source = producers[source].inputs[0]
        if source in graph.inputs:
            index = graph.inputs.index(source)
            limits[index] = min(limit, limits.get(index, limit))
        elif source.data is None or source.size and not 0 <= source.data.min() <= source.data.max() < limit:
            return None
    return limits


def check_inputs(wanted: Sequence[Tensor], inputs: Sequence[Array]) -> list[Array]:
    """The inputs as contiguous arrays.

    Raises:
        ArmLowerError: Their number, shapes or types are not those of ``wanted``.
    """
    if len(inputs) != len(wanted):
        names = ", ".join(t.name for t in wanted)
        raise ArmLowerError(f"{len(inputs)} inputs are given, the graph has {len(wanted)} ({names})")
    arrays = []
    for index, (t, value) in enumerate(zip(wanted, inputs)):
        array = np.asarray(value)
        if array.shape != t.shape or array.dtype != t.dtype.numpy:
            raise ArmLowerError(f"input {index} ({t.name!r}) is {array.dtype} {list(array.shape)}, "
                                f"the graph wants {t.dtype.numpy} {list(t.shape)}")
        arrays.append(np.require(array, requirements="C"))  # not ascontiguousarray: it makes rank 0 rank 1
    return arrays


def _run_here(data: bytes, arrays: Sequence[Array], level: str) -> list[Array]:
    import tosa_reference_model as model

    with _captured() as said:
        try:
            outputs, status = model.run(data, list(arrays), tosa_level=level)
        except ValueError as error:
            outputs, status = [], str(error)
    text = said()
    if status != model.GraphStatus.TOSA_VALID:
        raise _failure(getattr(status, "name", str(status)), text)
    if text:
        log.debug("reference model: %s", text)
    return list(outputs)


_CHILD = """
import sys
from pathlib import Path
import numpy as np
import tosa_reference_model as model
folder, level = Path(sys.argv[1]), sys.argv[2]
with np.load(folder / "in.npz") as z:
    inputs = [z[f"a{i}"] for i in range(len(z.files))]
outputs, status = model.run((folder / "graph.tosa").read_bytes(), inputs, tosa_level=level)
if status != model.GraphStatus.TOSA_VALID:
    sys.exit(status.name)
np.savez(folder / "out.npz", **{f"a{i}": a for i, a in enumerate(outputs)})
"""


def _run_isolated(data: bytes, arrays: Sequence[Array], level: str) -> list[Array]:
    """The same in a child process, for graphs whose input values may abort the reference model."""
    with tempfile.TemporaryDirectory(prefix="tosa-ref-") as name:
        folder = Path(name)
        (folder / "graph.tosa").write_bytes(data)
        arguments: dict[str, Any] = {f"a{i}": a for i, a in enumerate(arrays)}
        np.savez(folder / "in.npz", **arguments)
        child = subprocess.run([sys.executable, "-c", _CHILD, name, level],
                               capture_output=True, text=True, errors="replace", check=False)
        if child.returncode != 0 or not (folder / "out.npz").exists():
            raise _failure(f"exit code {child.returncode}", child.stdout + child.stderr)
        with np.load(folder / "out.npz") as z:
            return [z[f"a{i}"] for i in range(len(z.files))]


def _failure(status: str, text: str) -> ArmLowerError:
    return ArmLowerError(f"the TOSA reference model says {status}: {_words(text) or 'nothing more'}")


def _words(text: str) -> str:
    """The reference model's reasons in what it wrote: backtraces and source positions are left out."""
    lines = text.splitlines()
    found = [line for line in lines if line.startswith(("ERROR:", "Operator validation error:"))]
    found += [after for line, after in pairwise(lines) if " AT /" in line]
    return "; ".join(dict.fromkeys(line.strip() for line in found if line.strip()))


@contextmanager
def _captured() -> Iterator[Callable[[], str]]:
    """What C++ code writes to file descriptors 1 and 2 in this block; afterwards the callable gives the text.

    The reference model has no other way to be silent, or to say why it fails. Other threads wait for the
    block, but text that they write in it is caught too and only logged.
    """
    with _stdio, tempfile.TemporaryFile() as sink:
        text: list[str] = []
        saved = _redirect(sink)
        try:
            yield lambda: text[0]
        finally:
            _flush_c()
            for fd, copy in saved.items():
                os.dup2(copy, fd)
                os.close(copy)
            sink.seek(0)
            text.append(sink.read().decode(errors="replace"))


def _redirect(sink: IO[bytes]) -> dict[int, int]:
    """Sends descriptors 1 and 2 to ``sink``; gives copies of what they were. A closed one is left alone."""
    _flush_c()
    saved = {}
    for fd in (1, 2):
        try:
            saved[fd] = os.dup(fd)
        except OSError:
            continue
        os.dup2(sink.fileno(), fd)
    return saved


def _flush_c() -> None:
    """Flushes C's own buffers, so that text does not cross the border of the redirection."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)
