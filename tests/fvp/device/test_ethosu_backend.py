"""Delegate data of Ethos-U: what the C backend accepts, refuses and copies."""

from __future__ import annotations

import ctypes as c
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "ethosu")]

from npu_cases import CASES
from npu_harness import I16, QUICK, Compiled, G, compile_graph, difference

from arm_lower.errors import ArmLowerError
from arm_lower.pte.ethosu_blob import pack, unpack
from fvp.ethosu import load
from fvp.ethosu.memory import Memory, Region
from fvp.native import build
from fvp.sources import FIRMWARE

OK, UNSUPPORTED, SCRATCH_SMALL, FAST_SMALL, MISALIGNED, CONSTANT, UNBOUND = 0, 6, 22, 23, 24, 46, 47
CORRUPT, ARGUMENTS, BUS = 50, 51, 64
U8, F32, BOOL = 0, 6, 11  # torch's numbers
_DTYPES = {"int8": 1, "int16": 2, "int32": 3}


class _Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("size", c.c_int32), ("dtype", c.c_uint32), ("constant", c.c_uint32)]


class _Result(c.Structure):
    _fields_ = [("argument", c.c_int32), ("needed", c.c_uint32), ("available", c.c_uint32), ("text", c.c_char * 320)]


class _Job(c.Structure):
    _fields_ = [("commands", c.c_void_p), ("command_bytes", c.c_uint32), ("weights", c.c_void_p),
                ("weight_bytes", c.c_uint32), ("scratch", c.c_void_p), ("scratch_bytes", c.c_uint32),
                ("fast", c.c_void_p), ("fast_bytes", c.c_uint32)]  # fmt: skip


_NPU = c.CFUNCTYPE(c.c_int32, c.POINTER(_Job), c.c_void_p, c.c_size_t)


def _aligned(data: bytes | int, by: int = 0) -> Any:
    """uint8 at a multiple of 16, plus ``by``; from bytes, or that many 0xA5."""
    raw = np.full(data, 0xA5, np.uint8) if isinstance(data, int) else np.frombuffer(data, np.uint8)
    memory = np.empty(raw.size + 32, np.uint8)
    start = -memory.ctypes.data % 16 + by
    memory[start : start + raw.size] = raw
    return memory[start : start + raw.size]


def _view(address: int | None, size: int) -> Any:
    return np.ctypeslib.as_array((c.c_uint8 * size).from_address(address)) if address else np.zeros(0, np.uint8)


def model(job: Any, text: int, size: int) -> int:
    """The NPU model on the job's memory."""
    j = job.contents
    names = ("weights", "scratch", "fast")
    regions = {
        k: Region(n, _view(getattr(j, n), getattr(j, f"{n.rstrip('s') if k == 0 else n}_bytes")))
        for k, n in enumerate(names)
    }
    load(c.string_at(j.commands, j.command_bytes)).execute(Memory(regions, check=False))
    return OK


class Backend:
    def __init__(self) -> None:
        core = sorted((FIRMWARE / "core").glob("*.c"))
        ethosu = [FIRMWARE / "ethosu" / n for n in ("backend.c", "payload.c")]
        path = build([*core, *ethosu, Path(__file__).parent / "ethosu_shim.c"], ("-O1",), ("-shared",), "shim.so")
        self.library = c.CDLL(str(path))

    def check(self, blob: bytes, by: int = 0) -> tuple[int, int]:
        """Status and scratch size."""
        data, scratch = _aligned(blob, by), c.c_uint32()
        return self.library.shim_check(c.c_void_p(data.ctypes.data), len(blob), c.byref(scratch)), scratch.value

    def regions(self, payload: bytes) -> int:
        """A bit for each region that the commands use."""
        data = _aligned(payload)
        return self.library.shim_regions(c.c_void_p(data.ctypes.data), len(payload))

    def run(
        self, blob: bytes, tensors: Sequence[Any], scratch: Any = None, fast: Any = None,
        npu: Callable[..., int] = model, dtypes: Sequence[int] | None = None, constant: int = -1,
    ) -> tuple[int, _Result]:  # fmt: skip
        data = _aligned(blob)
        scratch = _aligned(unpack(blob).scratch_size) if scratch is None else scratch
        fast = np.zeros(0, np.uint8) if fast is None else fast
        rows = (_Tensor * len(tensors))()
        for i, t in enumerate(tensors):
            dtype = dtypes[i] if dtypes else _DTYPES[t.dtype.name]
            rows[i] = _Tensor(None if t is None else t.ctypes.data, t.size, dtype, i == constant)
        result = _Result()
        status = self.library.shim_run(
            c.c_void_p(data.ctypes.data), len(blob), rows, len(tensors), c.c_void_p(scratch.ctypes.data),
            scratch.size, c.c_void_p(fast.ctypes.data if fast.size else 0), fast.size, _NPU(npu), c.byref(result),
        )  # fmt: skip
        return status, result


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend()


def _two() -> tuple[G, Compiled]:
    g = G(3)
    x, y = g.input((1, 6, 6, 8)), g.input((1, 4, 4, 4), I16)
    g.out(g.rescale(g.conv(x, 12)), g.op("CLAMP", y, min=-1000, max=1000))
    return g, compile_graph(g.graph, "u55-128")


def _blob(compiled: Compiled) -> bytes:
    return pack(compiled.payload, compiled.read_only, compiled.scratch, compiled.inputs, compiled.outputs)


GRAPH, COMPILED = _two()
BLOB = _blob(COMPILED)
INPUTS = GRAPH.feed()
WANT = COMPILED.run(INPUTS)


def _outputs() -> list[Any]:
    return [np.full(w.shape, 0x55, w.dtype) for w in WANT]


# ---- the blob --------------------------------------------------------------------------------------------------


def _blocks(blob: bytes) -> list[tuple[bytes, bytes, int]]:
    """Name, data, external."""
    found, at = [], 0
    while at < len(blob):
        name, size, external = struct.unpack_from("<16sIB", blob, at)
        found.append((name.rstrip(b"\0"), blob[at + 32 : at + 32 + size], external))
        at += 32 + size + -size % 16
    return found


def _join(blocks: Sequence[tuple[bytes, bytes, int]]) -> bytes:
    return b"".join(
        struct.pack("<16sIB11s", name, len(data), external, b"") + data + bytes(-len(data) % 16)
        for name, data, external in blocks
    )


def _with(name: str, data: bytes | Callable[[bytes], bytes] | None, external: int = 0) -> bytes:
    """The blob with another block of this name, or without it."""
    out = []
    for n, d, e in _blocks(BLOB):
        if n != name.encode():
            out.append((n, d, e))
        elif data is not None:
            out.append((n, data(d) if callable(data) else data, external))
    return _join(out)


def _row(side: str, index: int, value: int, row: int = 0) -> bytes:
    def change(data: bytes) -> bytes:
        out = bytearray(data)
        struct.pack_into("<i", out, 4 + 36 * row + 4 * index, value)
        return bytes(out)

    return _with(side, change)


def _commands(change: Callable[[list[int]], list[int]]) -> bytes:
    changed = change(list(_WORDS))
    return _with("cmd_data", struct.pack(f"<{len(changed)}I", *changed))


def _flip(at: int, value: int) -> bytes:
    return BLOB[:at] + bytes([value]) + BLOB[at + 1 :]


_LAST = len(BLOB) - 32
_SHAPE, _ELEMENT, _OFFSET, _REGION = 0, 6, 7, 8
_WORDS = struct.unpack(f"<{len(COMPILED.payload) // 4}I", COMPILED.payload)
_STREAM = next(i for i, w in enumerate(_WORDS) if w & 0xFF == 2)  # the action that holds the commands

BAD = {
    "empty": (b"", CORRUPT),
    "size is no multiple of 16": (BLOB[:-1], CORRUPT),
    "first block has another name": (b"x" + BLOB[1:], CORRUPT),
    "last block has another name": (BLOB[:_LAST] + b"x" + BLOB[_LAST + 1 :], CORRUPT),
    "no last block": (BLOB[:_LAST], CORRUPT),
    "something after the last block": (BLOB + _join([(b"inputs", b"", 0)]), CORRUPT),
    "twice": (BLOB + BLOB, CORRUPT),
    "unknown block": (_join([*_blocks(BLOB)[:-1], (b"tosa", b"", 0), _blocks(BLOB)[-1]]), CORRUPT),
    "name is only a beginning": (_with("cmd_data", None)[:32] + _join([(b"cmd_data2", COMPILED.payload, 0)])
                                 + _with("cmd_data", None)[32:], CORRUPT),  # fmt: skip
    "block twice": (_join([*_blocks(BLOB)[:-1], _blocks(BLOB)[1], _blocks(BLOB)[-1]]), CORRUPT),
    "reserved byte": (_flip(31, 1), CORRUPT),
    "external": (_with("cmd_data", b"0" * 64, 1), UNSUPPORTED),
    "external is 2": (_with("cmd_data", b"0" * 64, 2), CORRUPT),
    "block past the end": (_flip(32 + 19, 0x7F), CORRUPT),
    "first block not empty": (_with("vela_bin_stream", bytes(16)), CORRUPT),
    "last block not empty": (_with("vela_end_stream", bytes(16)), CORRUPT),
    **{f"no {n}": (_with(n, None), CORRUPT) for n in ("cmd_data", "scratch_size", "inputs", "outputs")},
    "scratch size of 8 bytes": (_with("scratch_size", bytes(8)), CORRUPT),
    "table without count": (_with("inputs", b""), CORRUPT),
    "table too short": (_with("inputs", lambda d: d[:-4]), CORRUPT),
    "table too long": (_with("outputs", lambda d: d + bytes(36)), CORRUPT),
    "negative count": (_with("outputs", struct.pack("<i", -1)), CORRUPT),
    "count too large": (_with("outputs", struct.pack("<i", 0x38E38E39)), CORRUPT),  # 9 * count is 1 in 32 bits
    "size 0": (_row("inputs", _SHAPE + 2, 0), CORRUPT),
    "negative size": (_row("inputs", _SHAPE + 5, -8), CORRUPT),
    "product overflows": (_row("outputs", _SHAPE, 0x40000000), CORRUPT),
    "element of 3 bytes": (_row("inputs", _ELEMENT, 3), CORRUPT),
    "region 2": (_row("outputs", _REGION, 2), CORRUPT),
    "negative offset": (_row("outputs", _OFFSET, -16), CORRUPT),
    "outside of the scratch memory": (_row("outputs", _OFFSET, COMPILED.scratch - 12 * 36 + 1), CORRUPT),
    "scratch too small for the inputs": (_with("scratch_size", struct.pack("<I", 16)), CORRUPT),
    "no COP1": (_with("cmd_data", lambda d: b"COP3" + d[4:]), CORRUPT),
    "commands are no words": (_with("cmd_data", lambda d: d + b"\0"), CORRUPT),
    "commands cut off": (_with("cmd_data", lambda d: d[:-4]), CORRUPT),
    "no commands": (_with("cmd_data", b"COP1"), CORRUPT),
    "config cut off": (_with("cmd_data", b"COP1" + struct.pack("<2I", 1, 0x1807)), CORRUPT),
    "commands before config": (_commands(lambda w: [w[0], *[5] * 3, *w[4:]]), CORRUPT),
    "second stream": (_commands(lambda w: w + [w[_STREAM], *w[_STREAM + 1 :]]), CORRUPT),
    "stream too long": (_commands(lambda w: [*w[:_STREAM], w[_STREAM] + 0x10000, *w[_STREAM + 1 :]]), CORRUPT),
    "stream too short": (_commands(lambda w: [*w[:_STREAM], w[_STREAM] - 0x10000, *w[_STREAM + 1 :]]), CORRUPT),
    "stream not aligned": (_commands(lambda w: [*w[:_STREAM], 5, *w[_STREAM:]]), CORRUPT),
    "NOP with an argument": (_commands(lambda w: [*w[:_STREAM - 1], 0x10005, *w[_STREAM:]]), CORRUPT),
    "dump of memory": (_commands(lambda w: [*w[:_STREAM - 1], 4, *w[_STREAM:]]), UNSUPPORTED),
    "no OP_STOP": (_commands(lambda w: [*w[:-1], 0x00000010]), CORRUPT),
    "command cut off": (_commands(lambda w: [*w[:-1], 0x4000]), CORRUPT),
    "region without a base": (_commands(lambda w: [0x0003010F if v == 0x0001010F else v for v in w]), UNSUPPORTED),
}  # fmt: skip


def test_good_blob(backend: Backend) -> None:
    assert backend.check(BLOB) == (OK, COMPILED.scratch)


@pytest.mark.parametrize("name", BAD)
def test_bad_blob(backend: Backend, name: str) -> None:
    blob, status = BAD[name]
    assert blob != BLOB
    assert backend.check(blob)[0] == status


@pytest.mark.parametrize("by", [1, 4, 8])
def test_blob_is_not_aligned(backend: Backend, by: int) -> None:
    assert backend.check(BLOB, by)[0] == CORRUPT


def test_blob_without_weights(backend: Backend) -> None:
    """The block may be missing, as in ExecuTorch."""
    assert backend.check(_with("weight_data", None)) == (OK, COMPILED.scratch)


def test_same_verdict_as_the_compiler(backend: Backend) -> None:
    """With random damage, C accepts what Python does; the command words are only looked at by the NPU."""
    rng = np.random.default_rng(2)
    accepted = refused = 0
    skip = set(range(48, 64 + len(COMPILED.payload)))
    places = [i for i in range(len(BLOB)) if i not in skip]
    for _ in range(3000):
        blob = bytearray(BLOB)
        for at in rng.choice(places, int(rng.integers(1, 3))):
            blob[at] ^= 1 << int(rng.integers(8))
        status, scratch = backend.check(bytes(blob))
        try:
            found = unpack(bytes(blob))
        except ArmLowerError:
            assert status in (CORRUPT, UNSUPPORTED)
            refused += 1
            continue
        if found.external:
            assert status == UNSUPPORTED
            continue
        assert (status, scratch) == (OK, found.scratch_size)
        accepted += 1
    assert accepted > 300 and refused > 300


# ---- calls -----------------------------------------------------------------------------------------------------


def test_results(backend: Backend) -> None:
    """Scratch memory is full of 0xA5 before the call, and what it holds must not matter."""
    outputs = _outputs()
    status, _ = backend.run(BLOB, [*INPUTS, *outputs])
    assert status == OK and not difference(WANT, outputs)


def _cop2() -> list[int]:
    """The payload in the newer format."""
    stream = list(_WORDS[_STREAM + 1 :])
    total = 4 * (16 + len(stream)) - 16
    head = [0x32504F43, 1, total, 0, 1, total - 8, 36, 0x4D554556, 1, 20, _WORDS[2], _WORDS[3], 0, 0, 0]
    return [*head, 0xFFFFFFFF, *stream]


def test_cop2(backend: Backend) -> None:
    outputs = _outputs()
    assert backend.run(_commands(lambda w: _cop2()), [*INPUTS, *outputs])[0] == OK
    assert not difference(WANT, outputs)


@pytest.mark.parametrize("word", range(1, 10))
def test_cop2_header(backend: Backend, word: int) -> None:
    words = _cop2()
    words[word] ^= 0x42
    assert backend.check(_commands(lambda w: words))[0] == CORRUPT


def test_cop2_cut_off(backend: Backend) -> None:
    assert backend.check(_commands(lambda w: _cop2()[:14]))[0] == CORRUPT


def _error(npu: int, text: bytes) -> Callable[..., int]:
    def run(job: Any, buffer: int, size: int) -> int:
        c.memmove(buffer, text + b"\0", len(text) + 1)
        return npu

    return run


def test_error_of_the_npu(backend: Backend) -> None:
    outputs = _outputs()
    status, result = backend.run(BLOB, [*INPUTS, *outputs], npu=_error(BUS, b"status 0x4"))
    assert status == BUS and result.text == b"NPU bus error: status 0x4"
    assert all((o == 0x55).all() for o in outputs)


def test_error_without_details(backend: Backend) -> None:
    status, result = backend.run(BLOB, [*INPUTS, *_outputs()], npu=_error(BUS, b""))
    assert status == BUS and result.text == b"NPU bus error: EthosUBackend"


def _unreachable(job: Any, buffer: int, size: int) -> int:
    raise AssertionError("the NPU was called")


def _with_tensor(i: int, tensor: Any) -> list[Any]:
    tensors = [*INPUTS, *_outputs()]
    tensors[i] = tensor
    return tensors


def test_wrong_number_of_arguments(backend: Backend) -> None:
    status, result = backend.run(BLOB, [*INPUTS, *_outputs()][:-1], npu=_unreachable)
    assert (status, result.argument, result.needed, result.available) == (ARGUMENTS, -1, 4, 3)


@pytest.mark.parametrize("i", range(4))
@pytest.mark.parametrize("more", [-1, 1])
def test_wrong_size(backend: Backend, i: int, more: int) -> None:
    right = [*INPUTS, *_outputs()][i]
    wrong = np.zeros(right.size + more, right.dtype)
    status, result = backend.run(BLOB, _with_tensor(i, wrong), npu=_unreachable)
    assert (status, result.argument, result.needed, result.available) == (ARGUMENTS, i, right.nbytes, wrong.nbytes)


@pytest.mark.parametrize("i, dtype", [(0, 2), (0, F32), (1, 1), (2, 3), (3, 4)])
def test_wrong_dtype(backend: Backend, i: int, dtype: int) -> None:
    """Also where the number of bytes is right."""
    tensors = [*INPUTS, *_outputs()]
    dtypes = [_DTYPES[t.dtype.name] for t in tensors]
    dtypes[i] = dtype
    status, result = backend.run(BLOB, tensors, npu=_unreachable, dtypes=dtypes)
    assert (status, result.argument) == (ARGUMENTS, i)


def test_unsigned_and_bool_are_bytes(backend: Backend) -> None:
    outputs = _outputs()
    assert backend.run(BLOB, [*INPUTS, *outputs], dtypes=[U8, 2, BOOL, 2])[0] == OK
    assert not difference(WANT, outputs)


def test_output_is_a_constant(backend: Backend) -> None:
    status, result = backend.run(BLOB, [*INPUTS, *_outputs()], npu=_unreachable, constant=3)
    assert (status, result.argument) == (CONSTANT, 3)


def test_scratch_too_small(backend: Backend) -> None:
    scratch = _aligned(COMPILED.scratch - 16)
    status, result = backend.run(BLOB, [*INPUTS, *_outputs()], scratch, npu=_unreachable)
    assert (status, result.needed, result.available) == (SCRATCH_SMALL, COMPILED.scratch, COMPILED.scratch - 16)


def test_scratch_not_aligned(backend: Backend) -> None:
    scratch = _aligned(COMPILED.scratch, 8)
    assert backend.run(BLOB, [*INPUTS, *_outputs()], scratch, npu=_unreachable)[0] == MISALIGNED


def test_fast_scratch_is_missing(backend: Backend) -> None:
    blob = _commands(lambda w: [0x0002010F if v == 0x0001010F else v for v in w])
    assert backend.check(blob)[0] == OK
    assert backend.run(blob, [*INPUTS, *_outputs()], npu=_unreachable)[0] == FAST_SMALL


@pytest.mark.parametrize("target", QUICK)
def test_regions_of_every_kind_of_command(backend: Backend, target: str) -> None:
    """With buffers of weights in fast memory there are DMAs to and from region 2."""
    chained = fast = 0
    for name, make in sorted({case.name: case.build for case in CASES}.items()):
        for arena in (0, 1024):
            try:
                compiled = compile_graph(make().graph, target, arena=arena)
            except RuntimeError:
                continue  # not for this NPU
            program = load(compiled.payload)
            assert backend.check(_blob(compiled))[0] == OK, name
            mask = backend.regions(compiled.payload)
            assert bool(mask & 4) == (program.fast_size > 0) and mask < 8, name
            fast += program.fast_size > 0
            chained += any(x.fields.get("storage") == "CHAINED" for x in program.stream.commands)
    assert (fast > 0, chained > 0) == (not target.startswith("u55"), target.startswith("u85"))


ALL = 0xFFFFFFFF  # refused


@pytest.mark.parametrize(
    "config, commands, regions",
    [
        (0x20000118, [0x80000114, 0x0005011F, 0x0001010F, 0x00000002], 0b11),  # OFM is chain buffer 5
        (0x20000118, [0x00000114, 0x0005011F, 0x0001010F, 0x00000002], ALL),
        (0x20000118, [0x80000105, 0x0002010F, 0x0001011F, 0x00000005], 0b11),  # IFM
        (0x20000118, [0xC0000185, 0x0007018F, 0x0001011F, 0x00000006], 0b11),  # IFM2 is a number
        (0x1807, [0x80000105, 0x0002010F, 0x0001011F, 0x00000005], 0b111),  # rounding on U55
        (0x1807, [0x0002010F], 0),  # never used
        (0x1807, [0x01070131, 0x00020130, 0x00000010], 0b100),  # a DMA into the NPU
        (0x20000118, [0x00010130, 0x08010131, 0x00020134, 0x00000010], 0b110),  # scatter by indices
        (0x20000118, [0x00010130, 0x00010131, 0x00020134, 0x00000010], 0b10),
    ],
)
def test_which_regions_are_used(backend: Backend, config: int, commands: list[int], regions: int) -> None:
    """On U85 the region of a feature map that stays in the NPU is the number of a buffer."""
    words = [*commands, 0xFFFF0000]
    head = [0x31504F43, 1, config, 0, 5, 5, 5, len(words) << 16 | 2]
    assert backend.regions(struct.pack(f"<{len(head) + len(words)}I", *head, *words)) & ALL == regions


def test_corrupt_blob_in_a_call(backend: Backend) -> None:
    status, _ = backend.run(_row("outputs", _OFFSET, 1 << 20), [*INPUTS, *_outputs()], _aligned(COMPILED.scratch),
                            npu=_unreachable)  # fmt: skip
    assert status == CORRUPT
