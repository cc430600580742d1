"""Delegates of a ``.pte`` on the NPU model: what `tosa_ref.host` takes as ``delegate_runner``.

Host("model.pte", delegate_runner=run_delegate).run(inputs)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from arm_lower.pte.ethosu_blob import EthosUBlob, unpack
from fvp.ethosu.disasm import listing
from fvp.ethosu.program import load
from fvp.ethosu.trace import Source

Array = npt.NDArray[Any]


@lru_cache(maxsize=32)
def _unpacked(blob: bytes) -> EthosUBlob:
    return unpack(blob)


def run_delegate(call: int, blob: bytes, inputs: Sequence[Array]) -> list[Array]:
    """Execute a delegate's own bytes.

    Args:
        call: Number of the call, as `tosa_ref.host` counts.
        blob: The "vela bin stream" of the delegate.
        inputs: Its arguments as they lie in memory.

    Returns:
        The results as they lie in memory: signed integers of the element size, in Vela's 6-D shape.

    Raises:
        NpuError: The stream is corrupt, or an operation does what it must not.
        PteError: The blob is corrupt.
    """
    b = _unpacked(bytes(blob))
    raw: list[Array | bytes] = [np.ascontiguousarray(a).tobytes() for a in inputs]
    return load(b.command_stream).run(b.read_only, raw, b.inputs, b.outputs, b.scratch_size)


def describe(blob: bytes, registers: bool = False, layers: Mapping[int, Source] | None = None) -> str:
    """The listing of a delegate's command stream; see `fvp.ethosu.disasm.listing`."""
    return listing(load(_unpacked(bytes(blob)).command_stream).stream, layers, registers)
