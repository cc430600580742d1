"""Weight and scale streams: decoding, and the way back to output-row-column-input order.

Formats: "SWD" is the Golomb-Rice coded stream that all three products read, "FWD" is U85's fixed-width one. The
nests below repeat the order in which the hardware asks for weights; the stream pads every incomplete block with zeros
and this module checks that what should be padding is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fvp.ethosu.errors import DecodeError

Ints = npt.NDArray[Any]


class _Bits:
    """Random access to a little-endian bit stream; reading past the end is an error."""

    def __init__(self, data: bytes) -> None:
        self.size = 8 * len(data)
        raw = np.frombuffer(data + bytes(8), np.uint8).astype(np.uint32)
        self._wide = raw[:-3] | raw[1:-2] << 8 | raw[2:-1] << 16 | raw[3:] << 24
        self.words: list[int] = self._wide.tolist()

    def get(self, pos: int, width: int) -> int:
        if pos + width > self.size:
            raise DecodeError(f"weight stream: cut off at bit {pos} of {self.size}")
        return self.words[pos >> 3] >> (pos & 7) & ((1 << width) - 1)

    def gather(self, pos: Ints, width: int) -> Ints:
        """Fields of ``width`` bits at each of ``pos``."""
        if width == 0 or not pos.size:
            return np.zeros(pos.shape, np.int64)
        if int(pos.max()) + width > self.size:
            raise DecodeError(f"weight stream: cut off at bit {int(pos.max())} of {self.size}")
        found: Ints = self._wide[pos >> 3] >> (pos & 7).astype(np.uint32) & np.uint32((1 << width) - 1)
        return found.astype(np.int64)


_ARANGE12 = np.arange(12)


def _runs(counts: list[int], starts: list[int], width: int, limit: int) -> Ints:
    """Bit positions of consecutive fields: ``counts[i]`` fields of ``width`` bits from ``starts[i]`` on."""
    n = np.asarray(counts, np.int64)
    total = int(n.sum())
    first = np.cumsum(n) - n
    at: Ints = np.repeat(np.asarray(starts, np.int64) - first * width, n) + np.arange(total) * width
    return at[:limit]


def _slice(
    bits: _Bits, pos: int, n: int, nz: int, div: int, trunc: bool, raw: bool, zdiv: int
) -> tuple[int, Ints, Ints]:
    """Decode one slice body: ``n`` weight indices and ``nz`` zero-run lengths (``nz`` = 0: no zero runs).

    Weights and zero runs come in chunks of up to 12 unary codes; the remainders of a chunk follow the unary part of
    the next one. The loop only finds where each part lies, the values are gathered afterwards.
    """
    per = 8 if raw and div > 5 else 12
    zlen = 12 if zdiv < 3 else 8
    if raw and not nz:
        at = pos + np.arange(n, dtype=np.int64) * div
        return pos + n * div, bits.gather(at, div), np.zeros(0, np.int64)
    words, size = bits.words, bits.size
    w_pos = z_pos = w_done = z_done = 0
    w_prev = z_prev = 0
    w_on = z_on = False
    u0s: list[int] = []
    u1s: list[int] = []
    zus: list[int] = []
    w_counts: list[int] = []
    w_starts: list[int] = []
    z_counts: list[int] = []
    z_starts: list[int] = []
    while True:
        balance = w_pos - z_pos if nz else 0
        w_now = w_pos < n and (balance < 8 or not nz)
        z_now = nz > 0 and balance >= 0 and z_pos < nz
        if pos > size:
            raise DecodeError(f"weight stream: cut off at bit {pos} of {size}")
        u0 = zcount = wcount = 0
        if w_now and not raw:
            u0 = words[pos >> 3] >> (pos & 7) & 0xFFF
            pos += 12
        if z_now:
            if pos >= size:
                raise DecodeError(f"weight stream: cut off at bit {pos} of {size}")
            zu = words[pos >> 3] >> (pos & 7) & ((1 << zlen) - 1)
            pos += zlen
            zus.append(zu)
            zcount = zlen - zu.bit_count()
            z_pos += zcount
        if w_now:
            if raw:
                wcount = per
            else:
                ones = u0.bit_count()
                if pos >= size and ones:
                    raise DecodeError(f"weight stream: cut off at bit {pos} of {size}")
                u1 = words[pos >> 3] >> (pos & 7) & ((1 << ones) - 1) if ones else 0
                pos += ones
                u0s.append(u0)
                u1s.append(u1)
                wcount = 12 if trunc else 12 - u1.bit_count()
            w_pos += wcount
        if w_on:
            c = min(w_prev, n - w_done)
            w_counts.append(c)
            w_starts.append(pos)
            w_done += c
            pos += c * div
        if z_on:
            c = min(z_prev, nz - z_done)
            z_counts.append(c)
            z_starts.append(pos)
            z_done += c
            pos += c * zdiv
        w_on, z_on, w_prev, z_prev = w_now, z_now, wcount, zcount
        if not (w_on or z_on):
            break
    if pos > size:
        raise DecodeError(f"weight stream: cut off at bit {pos} of {size}")
    w = bits.gather(_runs(w_counts, w_starts, div, n), div)
    if not raw:
        code = (np.asarray(u0s, np.int64)[:, None] >> _ARANGE12) & 1
        rank = np.cumsum(code, axis=1) - code
        code += code * (np.asarray(u1s, np.int64)[:, None] >> rank & 1)
        flat = code.ravel()
        ends = np.arange(flat.size) if trunc else np.flatnonzero(flat < 2)
        w += np.diff(np.cumsum(flat)[ends], prepend=0)[:n] << div
    z = np.zeros(0, np.int64)
    if nz:
        one = (np.asarray(zus, np.int64)[:, None] >> np.arange(zlen) & 1).ravel()
        ends = np.flatnonzero(one == 0)
        z = (np.diff(np.cumsum(one)[ends], prepend=0)[:nz] << zdiv) + bits.gather(
            _runs(z_counts, z_starts, zdiv, nz), zdiv
        )
    return pos, w, z


def decode_swd(data: bytes, limit: int) -> Ints:
    """Decode a Golomb-Rice weight stream ("mlw").

    Args:
        data: The bytes that WEIGHT_BASE/WEIGHT_LENGTH name, padding included.
        limit: More weights than this are an error, so that a corrupt stream cannot fill the memory.

    Returns:
        Weights in stream order, zero point already removed, int16.

    Raises:
        DecodeError: The stream is cut off or uses a code that has no meaning.
    """
    bits = _Bits(data)
    pos, out, total = 0, [], 0
    palette: list[int] = []
    offset = palbits = 0
    fresh, had_runs = True, False
    while bits.size - pos >= 3:
        zdiv = bits.get(pos, 3)
        pos += 3
        if zdiv == 7:  # end of a stream; the next one, if any, starts at the next byte
            pos = (pos + 7) & ~7
            fresh = True
            continue
        if zdiv == 4 or zdiv == 5:
            raise DecodeError(f"weight stream: zero-run divisor code {zdiv} at bit {pos - 3} has no meaning")
        runs = zdiv != 6
        n, div, trunc, new = bits.get(pos, 15) + 1, bits.get(pos + 15, 3), bits.get(pos + 18, 1), bits.get(pos + 19, 1)
        pos += 20
        if fresh and not new or (not new and runs != had_runs):
            raise DecodeError(f"weight stream: the slice at bit {pos - 23} has no palette of its kind")
        fresh, had_runs = False, runs
        if new:
            offset, size, palbits = bits.get(pos, 5), bits.get(pos + 5, 5), bits.get(pos + 10, 3) + 2
            pos += 13
            size += size > 0
            palette = [bits.get(pos + i * palbits, palbits) for i in range(size)]
            pos += size * palbits
        raw = div == 7
        if raw:
            div = (len(palette) - 1).bit_length() if palette else palbits
        elif div == 6:
            raise DecodeError(f"weight stream: weight divisor code {div} at bit {pos} has no meaning")
        pos, w, z = _slice(bits, pos, n, (n + new) if runs else 0, div, bool(trunc), raw, zdiv)
        if int(w.max()) >= 512:
            raise DecodeError(f"weight stream: index {int(w.max())} in the slice that ends at bit {pos} passes 9 bits")
        val = w + (offset - len(palette))
        if palette:
            val = np.where(w < len(palette), np.asarray(palette, np.int64)[np.minimum(w, len(palette) - 1)], val)
        val = np.where(val & 1, -(val >> 1), val >> 1).astype(np.int16)
        count = n + (int(z.sum()) if runs else 0)
        total += count
        if total > limit:
            raise DecodeError(f"weight stream: more than the {limit} weights that the operation reads")
        if runs:
            full = np.zeros(count, np.int16)
            lead = int(z[0]) if new else 0
            after = z[1:] if new else z
            full[lead + np.arange(n) + np.cumsum(after) - after] = val
            val = full
        out.append(val)
    return np.concatenate(out) if out else np.zeros(0, np.int16)


def decode_fwd(data: bytes, count: int) -> Ints:
    """Decode U85's fixed-width stream: a 256-bit header, then ``count`` codes of 2, 4 or 8 bits.

    Raises:
        DecodeError: The stream is shorter than its header or its codes.
    """
    if len(data) < 32:
        raise DecodeError(f"fast weight stream: {len(data)} bytes, the header alone has 32")
    head = int.from_bytes(data[:32], "little")
    raw, two = head & 1, head >> 1 & 1
    adjust = head >> 104 & 0xFF
    adjust -= (adjust & 0x80) << 1
    width = 8 if raw else 2 if two else 4
    if len(data) - 32 < (count * width + 7) // 8:
        raise DecodeError(
            f"fast weight stream: {len(data) - 32} bytes of codes, {count} weights of {width} bits are read"
        )
    body = np.frombuffer(data, np.uint8, offset=32)
    if raw:
        plain: Ints = body[:count].view(np.int8).astype(np.int16) - np.int16(adjust)
        return plain
    codes = (body[:, None] >> np.arange(0, 8, width, dtype=np.uint8) & ((1 << width) - 1)).ravel()[:count]
    folded = np.asarray([head >> 112 + 9 * i & 0x1FF for i in range(16)])
    table: Ints = np.where(folded & 1, -(folded >> 1), folded >> 1).astype(np.int16)
    weights: Ints = table[codes]
    return weights


@dataclass(frozen=True)
class Order:
    """Everything that decides the order of a weight stream.

    Attributes:
        product, macs, cores: Of the accelerator; ``cores`` streams are read side by side.
        shape: (O, KH, KW, I) of the operation; I = 1 for depthwise.
        depthwise, part_kernel: Traversal.
        ifm_bits: 8, 16 or 32.
        block: OFM block depth over all cores.
        ublock: OFM micro-block depth.
        dilation, stride: (y, x).
        sparse: 2:4 sparse weights (U85).
    """

    product: str
    macs: int
    cores: int
    shape: tuple[int, int, int, int]
    depthwise: bool
    part_kernel: bool
    ifm_bits: int
    block: int
    ublock: int
    dilation: tuple[int, int]
    stride: tuple[int, int]
    sparse: bool

    @property
    def ifm_block(self) -> int:
        """IFM channels that are worked on at once; not in the stream, so it is derived as Vela does."""
        if self.product != "u85":
            return 16 if self.part_kernel or self.ifm_bits == 16 else 32
        if self.part_kernel:
            return 16
        if self.ifm_bits == 32 or (self.macs <= 256 and self.ublock == 16 and not self.sparse):
            return 32
        return 128 if self.sparse and self.ifm_bits == 8 else 64


def _flat(shape: tuple[int, int, int, int], o: Ints, y: Ints, x: Ints, i: Ints, ok: Ints) -> Ints:
    """Flat OHWI index, -1 where ``ok`` is false; all operands broadcast."""
    n, h, w, c = shape
    return np.where(ok & (o < n) & (i < c), ((o * h + y) * w + x) * c + i, -1).ravel()


def _nest55(q: Order, core: int) -> Ints:
    n, kh, kw, c = q.shape
    depth = (q.block + q.cores - 1 - core) // q.cores
    mine = len(range(core, n, q.cores))
    step_y, step_x = 8 // q.dilation[0], 8 // q.dilation[1]
    ub, iub, big = q.ublock, 8, q.ifm_block
    r = 4 if q.depthwise else (2 if q.ifm_bits == 16 else 4) if q.part_kernel else 1
    out = []
    for o0 in range(0, mine, depth):
        o_blk = np.arange(0, min(depth, mine - o0), ub)
        for i0 in range(0, 1 if q.depthwise else c, big):
            if q.depthwise:
                outer, inner, iz = np.zeros(1, int), np.zeros(1, int), np.zeros(1, int)
            elif q.part_kernel:
                outer, inner, iz = np.arange(0, min(big, c - i0), iub), np.zeros(1, int), np.arange(iub)
            else:
                outer, inner, iz = np.zeros(1, int), np.arange(0, big, iub), np.arange(iub)
            for y0 in range(0, kh, step_y):
                sh = min(kh - y0, step_y)
                for x0 in range(0, kw, step_x):
                    sw = min(kw - x0, step_x)
                    e = np.arange(-(-sh * sw // r) * r)
                    ky, kx = e // sw, e % sw
                    # axes: outer ifm, ofm micro-block, element, inner ifm, ofm in block, ifm in block
                    a = np.ix_(outer, o_blk, e, inner, np.arange(ub), iz)
                    o = o0 + a[1] + a[4]
                    ok = (ky < sh)[None, None, :, None, None, None] & (o < mine)
                    y = (y0 + ky)[None, None, :, None, None, None]
                    x = (x0 + kx)[None, None, :, None, None, None]
                    out.append(_flat(q.shape, o * q.cores + core, y, x, i0 + a[0] + a[3] + a[5], ok))
    return np.concatenate(out)


def _taps85(q: Order, sh: int, sw: int, r: int, pad: int) -> Ints:
    """(n, 2) kernel positions of one sub-kernel in stream order, -1 where a unit of padding stands."""
    sy, sx = q.stride if q.part_kernel or q.depthwise else (1, 1)
    left = -(-sh * sw // r) * r
    taps: list[tuple[int, int]] = []
    for py in range(sy):
        for px in range(sx):
            nh, nw = (sh + sy - 1 - py) // sy, (sw + sx - 1 - px) // sx
            for y in range(nh):
                for x in range(nw):
                    taps.append((py + y * sy, px + (x if y % 2 == 0 else nw - 1 - x) * sx))
                    left -= 1
                    if q.depthwise and left % r == 0:
                        taps += [(-1, -1)] * pad
    if left > 0:
        taps += [(-1, -1)] * (left + (pad if q.depthwise else 0))
    return np.asarray(taps)


def _nest85(q: Order, stream: int) -> Ints:
    n, kh, kw, c = q.shape
    r = 10 if q.depthwise else (10 if q.ifm_bits == 16 or q.sparse else 5) if q.part_kernel else 1
    pad = 0 if q.ifm_bits != 16 and q.macs <= 256 else 2 if q.macs <= 512 else 6
    big = q.ifm_block
    iub = 1 if q.depthwise else 8 if q.part_kernel and q.ifm_bits == 16 and not q.sparse else big
    step = 1 if q.depthwise else 16 if q.sparse else 8
    oz = (np.arange(4 * stream, q.ublock, 4 * q.cores)[:, None] + np.arange(4)).ravel()
    step_y, step_x = 8 // q.dilation[0], 8 // q.dilation[1]
    i_starts = list(range(0, 1 if q.depthwise else c, big))
    out = []
    for nth, o0 in enumerate(range(0, n, q.block)):
        o_blk = np.arange(0, min(q.block, n - o0), q.ublock)
        for i0 in i_starts if nth % 2 == 0 else i_starts[::-1]:  # the serpentine starts where the last block ended
            outer = np.arange(0, 1 if q.depthwise else min(big, c - i0), iub)
            for x0 in range(0, kw, step_x):
                for y0 in range(0, kh, step_y):
                    taps = _taps85(q, min(kh - y0, step_y), min(kw - x0, step_x), r, pad)
                    a = np.ix_(outer, o_blk, np.arange(len(taps)), np.arange(0, iub, step), oz, np.arange(step))
                    ky, kx = (taps[:, k][None, None, :, None, None, None] for k in (0, 1))
                    out.append(_flat(q.shape, o0 + a[1] + a[4], y0 + ky, x0 + kx, i0 + a[0] + a[3] + a[5], ky >= 0))
    return np.concatenate(out)


@lru_cache(maxsize=256)
def positions(q: Order, stream: int, fast: bool = False) -> tuple[Ints, Ints]:
    """Where the weights of a stream go.

    Returns:
        For each stream position its flat OHWI index (-1: padding), and the stream positions that carry a weight.
    """
    if q.product != "u85":
        index = _nest55(q, stream)
    elif fast and q.cores > 1:  # one stream that interleaves those of all cores block by block
        iub = 8 if q.part_kernel and q.ifm_bits == 16 and not q.sparse else q.ifm_block
        r = (10 if q.ifm_bits == 16 or q.sparse else 5) if q.part_kernel else 1
        size = q.ublock * iub * r // q.cores
        parts = [_nest85(q, s) for s in range(q.cores)]
        count = max(-(-p.size // size) for p in parts)
        index = np.concatenate([p[k * size : (k + 1) * size] for k in range(count) for p in parts])
    else:
        index = _nest85(q, stream)
    index = index.astype(np.int32)
    return index, np.flatnonzero(index >= 0).astype(np.int32)


def unpack(q: Order, streams: list[bytes], fast: bool) -> Ints:
    """Decode and reorder the weights of one operation.

    Args:
        q: The operation's shape and traversal.
        streams: One stream per core; an empty one belongs to a core without channels.
        fast: FWD instead of SWD coding.

    Returns:
        int16 (O, KH, KW, I).

    Raises:
        DecodeError: A stream is corrupt, too short, or has weights where the order wants padding.
    """
    out = np.zeros(int(np.prod(q.shape)), np.int16)
    for s, data in enumerate(streams):
        if not data:
            continue
        index, used = positions(q, s, fast)
        # Vela pads a stream to 16 bytes, and padding can decode to a few weights of its own
        w = decode_fwd(data, index.size) if fast else decode_swd(data, index.size + 4096)
        if w.size < index.size:
            raise DecodeError(f"weight stream {s}: {w.size} weights, the operation reads {index.size} ({q})")
        w = w[: index.size]
        out[index[used]] = w[used]
        if np.count_nonzero(w) != np.count_nonzero(w[used]):
            raise DecodeError(f"weight stream {s}: weights stand where the traversal wants zero padding ({q})")
    return out.reshape(q.shape)


@dataclass(frozen=True)
class Scales:
    """Per-channel bias, multiplier and right shift; int64 each."""

    bias: Ints
    scale: Ints
    shift: Ints


def read_scales(streams: list[bytes], channels: int, layout: str) -> Scales:
    """Unpack 10-byte scale records.

    Args:
        streams: One per core on U55/U65 (channel k in stream k mod cores), one on U85.
        channels: How many channels the operation has.
        layout: ``u55`` (40-bit bias, 32-bit scale), ``i32`` (32-bit bias, 31-bit scale) or ``i48`` (48-bit bias,
            15-bit scale).

    Raises:
        DecodeError: A stream holds fewer records than the operation has channels.
    """
    bias, scale, shift = (np.zeros(channels, np.int64) for _ in range(3))
    nb, ns = {"u55": (5, 4), "i32": (4, 4), "i48": (6, 2)}[layout]
    for k, data in enumerate(streams):
        n = len(range(k, channels, len(streams)))
        if len(data) < 10 * n:
            raise DecodeError(f"scale stream {k}: {len(data)} bytes, {n} channels need {10 * n}")
        r = np.frombuffer(data[: 10 * n], np.uint8).reshape(n, 10).astype(np.int64)
        b = sum(r[:, i] << 8 * i for i in range(nb))
        top = 8 * nb - 1
        bias[k :: len(streams)] = (b ^ 1 << top) - (1 << top)
        scale[k :: len(streams)] = sum(r[:, nb + i] << 8 * i for i in range(ns))
        shift[k :: len(streams)] = r[:, nb + ns] & 0x3F
        if layout != "u55" and (r[:, nb + ns - 1] & 0x80).any() or (r[:, nb + ns] >> 6).any():
            raise DecodeError(f"scale stream {k}: a record sets a reserved bit")
    return Scales(bias, scale, shift)
