"""The "vela bin stream": what the Ethos-U backend of ExecuTorch gets as a delegate's data.

Little-endian blocks, back to back: a 16-byte name padded with zeros, the unpadded size as u32, a byte that is 1 if
the data is kept outside (by key), 11 zero bytes, the data, zeros up to a multiple of 16. The first block is
``vela_bin_stream`` and the last ``vela_end_stream``, both empty; no other names than those below are allowed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from arm_lower.errors import PteError

BACKEND_ID = "EthosUBackend"
IO_REGION = 1
"""The NPU region of the scratch memory; the runtime takes every input and output to be in it."""

_HEADER = struct.Struct("<16sIB11s")
_TENSOR = struct.Struct("<9i")
_FIRST = "vela_bin_stream"
_LAST = "vela_end_stream"
_MIDDLE = ("cmd_data", "weight_data", "scratch_size", "inputs", "outputs")
_COMMAND_MAGIC = (b"COP1", b"COP2")
_KEY_SIZE = 64


class VelaTensor(Protocol):
    """An input or output as Vela describes it.

    Attributes:
        shape: Six sizes, ones first.
        element_size: Bytes of an element.
        offset: Byte offset in the scratch memory.
        region: NPU region, 1 for scratch.
    """

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def element_size(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def region(self) -> int: ...


@dataclass(frozen=True)
class BlobTensor:
    """An input or output read from a stream; the attributes of `VelaTensor`."""

    shape: tuple[int, ...]
    element_size: int
    offset: int
    region: int

    @property
    def nbytes(self) -> int:
        """Bytes in the scratch memory."""
        return prod(self.shape) * self.element_size


@dataclass(frozen=True)
class EthosUBlob:
    """An unpacked stream.

    Attributes:
        command_stream: Driver payload, begins with ``COP1``.
        read_only: Weights and biases as the NPU reads them: a view of the stream.
        scratch_size: Bytes of scratch memory that the runtime must provide, inputs and outputs included.
        inputs: In the order of the delegate call's arguments.
        outputs: Follow the inputs there.
        external: Block name -> key of the program's named data, for blocks whose bytes are outside.
    """

    command_stream: bytes = field(repr=False)
    read_only: memoryview = field(repr=False)
    scratch_size: int
    inputs: tuple[BlobTensor, ...]
    outputs: tuple[BlobTensor, ...]
    external: tuple[tuple[str, str], ...] = ()


def pack(
    command_stream: bytes,
    read_only: bytes | memoryview,
    scratch_size: int,
    inputs: Sequence[VelaTensor],
    outputs: Sequence[VelaTensor],
) -> bytes:
    """The stream of one compiled subgraph. It needs a 16-byte aligned address; `arm_lower.pte.emit` sees to it.

    Args:
        command_stream: Vela's command stream with its driver header.
        read_only: Vela's encoded weights.
        scratch_size: Bytes.
        inputs: In the order of the TOSA graph's inputs.
        outputs: In the order of the TOSA graph's outputs.

    Raises:
        PteError: The runtime would refuse the stream, or it would read or write outside of the scratch memory.
    """
    if not 0 <= scratch_size < 1 << 32:
        raise PteError(f"scratch size {scratch_size} does not fit 32 bits")
    blob = b"".join(
        (
            *_block(_FIRST, b""),
            *_block("cmd_data", command_stream),
            *_block("weight_data", read_only),
            *_block("scratch_size", struct.pack("<I", scratch_size)),
            *_block("inputs", _pack_tensors(inputs)),
            *_block("outputs", _pack_tensors(outputs)),
            *_block(_LAST, b""),
        )
    )
    unpack(blob)
    return blob


def unpack(blob: bytes) -> EthosUBlob:
    """Reads a stream, with all the checks of the runtime and those that it leaves out.

    Raises:
        PteError: The stream is malformed, or an input or output lies outside of the scratch memory.
    """
    blocks = _blocks(blob)
    data: dict[str, memoryview] = {}
    external: list[tuple[str, str]] = []
    for offset, name, payload, outside in blocks:
        if name in data or name in dict(external):
            raise PteError(f"offset {offset}: block {name!r} is there twice")
        if outside:
            external.append((name, _key(offset, name, bytes(payload))))
        else:
            data[name] = payload
    for name in ("cmd_data", "scratch_size", "inputs", "outputs"):
        if name not in data and name not in dict(external):
            raise PteError(f"block {name!r} is missing from the Ethos-U stream")
    for name in ("scratch_size", "inputs", "outputs"):
        if name not in data:
            raise PteError(f"block {name!r} of the Ethos-U stream is kept outside, only its bytes can be read")
    commands = bytes(data.get("cmd_data", b""))
    if "cmd_data" in data and commands[:4] not in _COMMAND_MAGIC:
        raise PteError(f"block 'cmd_data': expected it to begin with COP1 or COP2, found {commands[:4]!r}")
    if len(data["scratch_size"]) != 4:
        raise PteError(f"block 'scratch_size': expected 4 bytes, found {len(data['scratch_size'])}")
    (scratch_size,) = struct.unpack("<I", data["scratch_size"])
    return EthosUBlob(
        commands,
        data.get("weight_data", memoryview(b"")),
        scratch_size,
        _unpack_tensors("inputs", data["inputs"], scratch_size),
        _unpack_tensors("outputs", data["outputs"], scratch_size),
        tuple(external),
    )


def _block(name: str, data: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    return _HEADER.pack(name.encode(), len(data), 0, bytes(11)), data, bytes(-len(data) % 16)


def _pack_tensors(tensors: Sequence[VelaTensor]) -> bytes:
    rows: list[bytes] = [struct.pack("<i", len(tensors))]
    for tensor in tensors:
        if len(tensor.shape) != 6:
            raise PteError(f"shape {tuple(tensor.shape)} of a delegate input or output: expected 6 sizes, ones first")
        try:
            rows.append(_TENSOR.pack(*tensor.shape, tensor.element_size, tensor.offset, tensor.region))
        except struct.error:
            raise PteError(f"shape {tuple(tensor.shape)} or offset {tensor.offset} does not fit 32 bits") from None
    return b"".join(rows)


def _blocks(blob: bytes) -> list[tuple[int, str, memoryview, bool]]:
    """Offset, name, data and whether it is outside, of each block between the first and the last."""
    size = len(blob)
    if size % 16:
        raise PteError(f"an Ethos-U stream has a multiple of 16 bytes, found {size}")
    found: list[tuple[int, str, memoryview, bool]] = []
    view = memoryview(blob)
    offset = 0
    while offset < size:
        if offset + _HEADER.size > size:
            raise PteError(
                f"offset {offset}: expected a block header of {_HEADER.size} bytes, the stream ends at {size}"
            )
        raw_name, length, outside, reserved = _HEADER.unpack_from(blob, offset)
        start = offset + _HEADER.size
        name = raw_name.rstrip(b"\0").decode("ascii", "backslashreplace")
        if outside > 1 or any(reserved):
            raise PteError(f"offset {offset}: block {name!r}: reserved bytes of its header are not zero")
        if start + length > size:
            raise PteError(f"offset {offset}: block {name!r} has {length} bytes, past the end of the stream at {size}")
        found.append((offset, name, view[start : start + length], bool(outside)))
        offset = start + length + -length % 16
    return _between(found)


def _between(found: list[tuple[int, str, memoryview, bool]]) -> list[tuple[int, str, memoryview, bool]]:
    names = [name for _, name, _, _ in found]
    if len(found) < 2 or (names[0], names[-1]) != (_FIRST, _LAST):
        raise PteError(
            f"expected an Ethos-U stream from block {_FIRST!r} to {_LAST!r}, found {', '.join(names) or 'nothing'}"
        )
    for offset, name, payload, _ in (found[0], found[-1]):
        if payload:
            raise PteError(f"offset {offset}: block {name!r} must be empty, found {len(payload)} bytes")
    for offset, name, _, _ in found[1:-1]:
        if name not in _MIDDLE:
            raise PteError(f"offset {offset}: unknown block {name!r}; allowed are {', '.join(_MIDDLE)}")
    return found[1:-1]


def _key(offset: int, name: str, payload: bytes) -> str:
    if len(payload) != _KEY_SIZE or not payload.isascii():
        raise PteError(
            f"offset {offset}: block {name!r} is outside: expected a key of 64 characters, found {payload!r}"
        )
    return payload.decode("ascii")


def _unpack_tensors(name: str, data: memoryview, scratch_size: int) -> tuple[BlobTensor, ...]:
    count = struct.unpack_from("<i", data)[0] if len(data) >= 4 else -1
    if count < 0 or len(data) != 4 + count * _TENSOR.size:
        raise PteError(f"block {name!r}: expected a count and that many tensors of 36 bytes, found {len(data)} bytes")
    tensors: list[BlobTensor] = []
    for i in range(count):
        row = _TENSOR.unpack_from(data, 4 + i * _TENSOR.size)
        tensor = BlobTensor(row[:6], row[6], row[7], row[8])
        where = f"{name[:-1]} {i} of the Ethos-U stream"
        if min(tensor.shape) < 1 or tensor.element_size not in (1, 2, 4):
            raise PteError(f"{where} has shape {tensor.shape} and elements of {tensor.element_size} bytes")
        if tensor.region != IO_REGION:
            raise PteError(f"{where} is in region {tensor.region}, the runtime looks for it in {IO_REGION} (scratch)")
        if tensor.offset < 0 or tensor.offset + tensor.nbytes > scratch_size:
            raise PteError(
                f"{where} is at bytes {tensor.offset}..{tensor.offset + tensor.nbytes} of a scratch of {scratch_size}"
            )
        tensors.append(tensor)
    return tuple(tensors)
