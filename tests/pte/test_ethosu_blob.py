"""The Ethos-U stream: exact bytes, and every way in which it can be wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arm_lower.errors import PteError
from arm_lower.pte.ethosu_blob import BlobTensor, pack, unpack


@dataclass
class FromVela:
    """As the compiler's result gives it: more attributes than needed."""

    name: str
    shape: tuple[int, ...]
    element_size: int
    offset: int
    region: int
    size: int


COMMANDS = b"COP1" + b"\x01\x02\x03"
INPUT = FromVela("in", (1, 1, 1, 2, 2, 3), 1, 0, 1, 12)
OUTPUT = FromVela("out", (1, 1, 1, 1, 1, 5), 2, 16, 1, 10)
BLOB = pack(COMMANDS, b"weights", 64, [INPUT], [OUTPUT])


def _block(name: bytes, data: bytes, external: int = 0) -> bytes:
    header = name.ljust(16, b"\0") + struct.pack("<IB", len(data), external) + bytes(11)
    return header + data + bytes(-len(data) % 16)


def _tensors(*rows: tuple[int, ...]) -> bytes:
    return struct.pack("<i", len(rows)) + b"".join(struct.pack("<9i", *row) for row in rows)


IN_ROW, OUT_ROW = (1, 1, 1, 2, 2, 3, 1, 0, 1), (1, 1, 1, 1, 1, 5, 2, 16, 1)
BLOCKS = {
    b"vela_bin_stream": b"",
    b"cmd_data": COMMANDS,
    b"weight_data": b"weights",
    b"scratch_size": struct.pack("<I", 64),
    b"inputs": _tensors(IN_ROW),
    b"outputs": _tensors(OUT_ROW),
    b"vela_end_stream": b"",
}


def _stream(**changes: bytes | None) -> bytes:
    blocks = BLOCKS | {name.encode(): data for name, data in changes.items()}
    return b"".join(_block(name, data) for name, data in blocks.items() if data is not None)


def test_exact_bytes() -> None:
    assert BLOB == _stream()
    assert len(BLOB) % 16 == 0


def test_unpack() -> None:
    blob = unpack(BLOB)
    assert (blob.command_stream, blob.read_only, blob.scratch_size) == (COMMANDS, b"weights", 64)
    assert blob.inputs == (BlobTensor((1, 1, 1, 2, 2, 3), 1, 0, 1),)
    assert blob.outputs == (BlobTensor((1, 1, 1, 1, 1, 5), 2, 16, 1),)
    assert blob.outputs[0].nbytes == 10
    assert blob.external == ()
    assert pack(blob.command_stream, blob.read_only, blob.scratch_size, blob.inputs, blob.outputs) == BLOB


def test_what_the_runtime_allows() -> None:
    """Any order in the middle, no weights, COP2, outputs over inputs, blocks kept outside by key."""
    names = [b"vela_bin_stream", b"outputs", b"inputs", b"scratch_size", b"cmd_data", b"vela_end_stream"]
    assert unpack(b"".join(_block(name, BLOCKS[name]) for name in names)).read_only == b""
    assert unpack(_stream(cmd_data=b"COP2")).command_stream == b"COP2"
    assert unpack(_stream(outputs=_tensors(IN_ROW))).outputs[0].offset == 0
    key = "0123456789abcdef" * 4
    parts = [_block(n, d) if n != b"weight_data" else _block(n, key.encode(), 1) for n, d in BLOCKS.items()]
    assert unpack(b"".join(parts)).external == (("weight_data", key),)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"", "found nothing"),
        (BLOB[:-16], "offset"),
        (BLOB[:-8], f"has a multiple of 16 bytes, found {len(BLOB) - 8}"),
        (BLOB[:-32], "from block 'vela_bin_stream' to 'vela_end_stream'"),
        (BLOB[32:], "from block 'vela_bin_stream' to 'vela_end_stream'"),
        (BLOB + _block(b"vela_end_stream", b""), "unknown block 'vela_end_stream'"),
        (_stream(vela_bin_stream=b"x"), "block 'vela_bin_stream' must be empty, found 1 bytes"),
        (_stream(vela_end_stream=b"x"), "block 'vela_end_stream' must be empty, found 1 bytes"),
        (
            _stream(tosa_graph=None)[:-32] + _block(b"tosa", b"") + _block(b"vela_end_stream", b""),
            "unknown block 'tosa'",
        ),
        (_stream(cmd_data=b"NOPE"), "expected it to begin with COP1 or COP2, found b'NOPE'"),
        (_stream(cmd_data=None), "block 'cmd_data' is missing"),
        (_stream(scratch_size=None), "block 'scratch_size' is missing"),
        (_stream(inputs=None), "block 'inputs' is missing"),
        (_stream(outputs=None), "block 'outputs' is missing"),
        (_stream(scratch_size=bytes(8)), "block 'scratch_size': expected 4 bytes, found 8"),
        (_stream(inputs=b""), "block 'inputs': expected a count and that many tensors of 36 bytes, found 0 bytes"),
        (_stream(inputs=_tensors(IN_ROW)[:-4]), "found 36 bytes"),
        (_stream(inputs=struct.pack("<i", -1)), "block 'inputs': expected a count"),
        (
            _stream(inputs=_tensors((1, 1, 1, 2, 0, 3, 1, 0, 1))),
            "input 0 of the Ethos-U stream has shape (1, 1, 1, 2, 0, 3)",
        ),
        (_stream(inputs=_tensors((1, 1, 1, 2, 2, 3, 3, 0, 1))), "elements of 3 bytes"),
        (_stream(outputs=_tensors((1, 1, 1, 1, 1, 5, 2, 16, 99))), "output 0 of the Ethos-U stream is in region 99"),
        (_stream(outputs=_tensors((1, 1, 1, 1, 1, 5, 2, 60, 1))), "is at bytes 60..70 of a scratch of 64"),
        (_stream(outputs=_tensors((1, 1, 1, 1, 1, 5, 2, -2, 1))), "is at bytes -2..8 of a scratch of 64"),
        (_block(b"vela_bin_stream", b"") * 1, "from block 'vela_bin_stream'"),
        (_stream()[:32] + _block(b"cmd_data", COMMANDS) + _stream()[32:], "block 'cmd_data' is there twice"),
        (
            _stream()[:32] + _block(b"weight_data", b"short", 1) + _stream(weight_data=None)[32:],
            "a key of 64 characters",
        ),
        (
            _stream()[:32] + _block(b"inputs", b"k" * 64, 1) + _stream(inputs=None)[32:],
            "'inputs' of the Ethos-U stream is kept",
        ),
        (_stream()[:20] + b"\2" + _stream()[21:], "reserved bytes of its header are not zero"),
        (_stream()[:48] + b"\xff\xff\xff\x7f" + _stream()[52:], "block 'cmd_data' has 2147483647 bytes, past the end"),
    ],
)
def test_wrong_stream(blob: bytes, message: str) -> None:
    with pytest.raises(PteError) as caught:
        unpack(blob)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"x", b"", 64, [INPUT], [OUTPUT]), "expected it to begin with COP1"),
        ((COMMANDS, b"", -1, [], []), "scratch size -1 does not fit 32 bits"),
        ((COMMANDS, b"", 1 << 32, [], []), "scratch size 4294967296 does not fit 32 bits"),
        ((COMMANDS, b"", 16, [INPUT], [OUTPUT]), "is at bytes 16..26 of a scratch of 16"),
        ((COMMANDS, b"", 64, [BlobTensor((2, 2, 3), 1, 0, 1)], []), "shape (2, 2, 3) of a delegate input or output"),
        ((COMMANDS, b"", 64, [BlobTensor((1, 1, 1, 1, 1, 1), 1, 1 << 31, 1)], []), "offset 2147483648 does not fit"),
    ],
)
def test_pack_refuses(arguments: tuple[bytes, bytes, int, list[FromVela], list[FromVela]], message: str) -> None:
    with pytest.raises(PteError) as caught:
        pack(*arguments)
    assert message in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(BLOB) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(BLOB)))
def test_fuzz(edits: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(BLOB)
    for offset, value in edits:
        data[offset] = value
    for blob in (bytes(data), bytes(data[: cut // 16 * 16])):
        try:
            unpack(blob)
        except PteError as error:
            assert error.message
