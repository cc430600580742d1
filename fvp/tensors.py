"""The file of tensors that the runner on the device reads and writes (``fvp/firmware/port/main.c``).

For each tensor little-endian u32: ``ALT1``, dtype (torch's number), rank, sizes; in outputs then one byte for each
dimension, the order in memory; then the data as it lies in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from arm_lower.errors import ArmLowerError
from arm_lower.pte import model as pte

Array = npt.NDArray[np.generic]
MAGIC = b"ALT1"
NONE = 255
"""dtype that stands for None."""
_HEAD = struct.Struct("<4sII")
_DTYPES = {0: "u1", 1: "i1", 2: "i2", 3: "i4", 4: "i8", 5: "f2", 6: "f4", 7: "f8", 11: "?"}
_NUMBERS = {np.dtype(name): number for number, name in _DTYPES.items()}
_MAX_RANK = 16


def encode_inputs(method: pte.Method, inputs: Sequence[Any]) -> bytes:
    """One set of inputs, in the order in memory that the method has for each. What does not fit the method is encoded
    as it is: the device refuses it.

    Raises:
        ArmLowerError: An input has a type that no device takes.
    """
    parts = []
    for number, given in enumerate(inputs):
        value = method.values[method.inputs[number]] if number < len(method.inputs) else None
        parts.append(_encode(number, given, value))
    return b"".join(parts)


def _encode(number: int, given: Any, value: pte.Value | None) -> bytes:
    if given is None:
        return _HEAD.pack(MAGIC, NONE, 0)
    if isinstance(given, str):
        given = np.frombuffer(given.encode(), np.uint8)
    array = np.asarray(given)
    code = _NUMBERS.get(array.dtype.newbyteorder("="))
    if code is None or array.ndim > _MAX_RANK:
        raise ArmLowerError(
            f"input {number} is {array.dtype} with {array.ndim} dimensions; the device takes up to {_MAX_RANK} "
            f"dimensions of {', '.join(np.dtype(n).name for n in _DTYPES.values())}"
        )
    head = _HEAD.pack(MAGIC, code, array.ndim) + struct.pack(f"<{array.ndim}i", *array.shape)
    if isinstance(value, pte.TensorValue) and len(value.dim_order) == array.ndim:
        array = array.transpose(value.dim_order)
    return head + np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def decode_outputs(data: bytes) -> list[Array]:
    """All tensors of a file, with logical dimensions, contiguous.

    Raises:
        ArmLowerError: The file is truncated or something else, or holds a type that numpy does not have.
    """
    at = 0
    result: list[Array] = []
    while at < len(data):
        array, at = _decode(data, at, len(result))
        result.append(array)
    return result


def _decode(data: bytes, at: int, number: int) -> tuple[Array, int]:
    try:
        magic, code, rank = _HEAD.unpack_from(data, at)
        if magic != MAGIC or rank > _MAX_RANK:
            raise ArmLowerError(f"the device's output {number} does not begin with {MAGIC!r}, a dtype and a rank")
        sizes = struct.unpack_from(f"<{rank}i", data, at + _HEAD.size)
        order = struct.unpack_from(f"{rank}B", data, at + _HEAD.size + 4 * rank)
    except struct.error as error:
        raise ArmLowerError(f"the device's output {number} is truncated: {error}") from error
    if code not in _DTYPES:
        raise ArmLowerError(f"the device's output {number} has dtype {code}, which numpy does not have")
    dtype = np.dtype(_DTYPES[code]).newbyteorder("<")
    start = at + _HEAD.size + 5 * rank
    end = start + int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize
    if end > len(data):
        raise ArmLowerError(f"the device's output {number} is truncated: {end} bytes are expected, {len(data)} there")
    array = np.frombuffer(data[start:end], dtype).reshape([sizes[d] for d in order])
    return np.ascontiguousarray(array.transpose(np.argsort(order)) if rank else array).reshape(sizes), end
