"""Would the stream still be right if the hardware overlapped everything that the stream lets it overlap?

The rules, as Vela's generators assume them:

- DMA transfers run beside kernels and beside each other until DMA_WAIT k leaves at most k of them; kernels run
  beside transfers until KERNEL_WAIT n leaves at most n. The queues hold a fixed number: a full one waits.
- Kernels follow each other in order, but BLOCKDEP b lets the first blocks of a kernel start while the last blocks of
  the one before are unfinished: block i may meet the j-th last block when i + j < b. Each pipeline stage keeps the
  order of blocks, so only a read of what the earlier kernel has yet to write can go wrong.
- The kernels of a chain (U85) run as one.

Two accesses that may overlap in time, touch a common byte, and are not both reads are a hazard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fvp.ethosu.decode import Arch, Command
from fvp.ethosu.memory import FeatureMap
from fvp.ethosu.program import Program
from fvp.ethosu.task import TRANSPOSE, Task, Tensor

Array = npt.NDArray[Any]
Box = tuple[int, int, int, int, int, int]  # y0, y1, x0, x1, c0, c1
_LUT = -1  # stands for the LUT memory among region numbers
_DEPTH = {"u55": (1, 2), "u65": (2, 2), "u85": (4, 2)}  # transfers and kernels that may be outstanding


@dataclass(frozen=True)
class Hazard:
    """Two commands whose order the stream does not enforce and whose result depends on it.

    Attributes:
        first, second: Byte offsets in the payload, in program order.
        kind: ``read after write``, ``write after read`` or ``write after write``.
        text: Both commands and the bytes they share.
    """

    first: int
    second: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class _Access:
    region: int
    spans: tuple[tuple[int, int], ...]
    write: bool
    fm: FeatureMap | None = None


@dataclass(frozen=True)
class _Issued:
    task: Task
    accesses: tuple[_Access, ...]


def _bytes_of(x: Tensor | None, write: bool) -> Iterator[_Access]:
    if x is not None and x.where == "memory":
        yield _Access(x.fm.region, tuple(x.fm.spans()), write, x.fm)


def _accesses(t: Task, arch: Arch) -> tuple[_Access, ...]:
    found: list[_Access] = []
    if t.dma:
        d = t.dma
        for side, write in (("src", False), ("dst", True)):
            internal = d[f"{side}_internal"]
            at = d[side] - (arch.lut_base if internal else 0)
            s = side[0]
            reach = (d["n0"] - 1) * d[f"{s}s0"] + (d["n1"] - 1) * d[f"{s}s1"]
            if d["index"] == (1 if side == "src" else 2):
                reach = d["idx_max"] * d[f"{s}s0"] + (d["n1"] - 1) * d[f"{s}s1"]
            lo, hi = at + min(0, reach), at + max(0, reach) + d["len"]
            found.append(_Access(_LUT if internal else d[f"{side}_region"], ((lo, hi),), write))
        if d["index"]:
            found.append(_Access(d["idx_region"], ((d["idx"], d["idx"] + 4 * d["n0"] * d["n1"]),), False))
        return tuple(found)
    found += [*_bytes_of(t.ifm, False), *_bytes_of(t.ifm2, False), *_bytes_of(t.ofm, True)]
    if t.weights is not None:
        w = t.weights
        found += [_Access(w.region, ((a, a + n),), False) for a, n in w.streams if n]
        if t.per_channel:
            found += [_Access(w.scale_region, ((a, a + n),), False) for a, n in w.scale_streams if n]
    a = t.activation
    if a.table:
        size = 2048 if a.table == "S16" else 256 * a.entry
        found.append(_Access(_LUT, ((a.at, a.at + size),), False))
    elif t.clobbers_lut:
        found.append(_Access(_LUT, ((0, 2048),), True))
    return tuple(found)


def _mark(fm: FeatureMap, lo: int, hi: int) -> Array:
    """Which bytes of lo..hi a feature map covers exactly."""
    out = np.zeros(hi - lo, np.bool_)
    for _, _, h, w, base in fm.parts():
        out[_addresses(fm, h, w, base, (0, h, 0, w, 0, fm.shape[2])) - lo] = True
    return out


def _addresses(fm: FeatureMap, h: int, w: int, base: int, box: Box) -> Array:
    """Byte addresses of a box of a tile at ``base``; every byte of every element."""
    y0, y1, x0, x1, c0, c1 = box
    e = fm.bits // 8
    sy, sx, sc = fm.strides
    y, x, c = np.arange(y0, y1)[:, None, None], np.arange(x0, x1)[:, None], np.arange(c0, c1)
    at = base + y * sy + (x * 16 * e + c // 16 * sc + c % 16 * e if fm.brick else x * sx + c * e)
    return (at[..., None] + np.arange(e)).ravel()


def _conflict(a: _Access, b: _Access) -> tuple[int, int] | None:
    """A common range of two accesses, exact to the byte where both are feature maps."""
    if a.region != b.region or not (a.write or b.write):
        return None
    for lo1, hi1 in a.spans:
        for lo2, hi2 in b.spans:
            lo, hi = max(lo1, lo2), min(hi1, hi2)
            if lo >= hi:
                continue
            if a.fm is None and b.fm is None:
                return lo, hi
            low, high = min(lo1, lo2), max(hi1, hi2)
            marks = []
            for access, (s, e) in ((a, (lo1, hi1)), (b, (lo2, hi2))):
                full = np.zeros(high - low, np.bool_)
                if access.fm is None:
                    full[s - low : e - low] = True
                else:
                    first = min(p for p, _ in access.spans)
                    last = max(q for _, q in access.spans)
                    covered = _mark(access.fm, first, last)
                    full[s - low : e - low] = covered[s - first : e - first]
                marks.append(full)
            both = np.flatnonzero(marks[0] & marks[1])
            if len(both):
                return low + int(both[0]), low + int(both[-1]) + 1
    return None


def _pairs(first: _Issued, second: _Issued) -> Iterator[Hazard]:
    for a in first.accesses:
        for b in second.accesses:
            shared = _conflict(a, b)
            if shared is not None:
                kind = {(True, True): "write after write", (True, False): "read after write"}.get(
                    (a.write, b.write), "write after read"
                )
                where = "LUT memory" if a.region == _LUT else f"region {a.region}"
                text = f"{first.task.where} and {second.task.where} share {where} {shared[0]:#x}..{shared[1]:#x}"
                yield Hazard(first.task.offset, second.task.offset, kind, text)


def _computed(t: Task) -> tuple[int, int, int]:
    """The result's size before it is transposed."""
    assert t.ofm is not None
    size = [0, 0, 0]
    for at, source in enumerate(TRANSPOSE[t.transpose]):
        size[source] = t.ofm.fm.shape[at]
    return size[0], size[1], size[2]


def _out_boxes(t: Task, count: int) -> list[Box]:
    """The last ``count`` output blocks as they are stored, the very last one first.

    Blocks are cut before the result is transposed or reversed; depth runs fastest, then width, then height.
    """
    assert t.ofm is not None
    axes, stored, size = TRANSPOSE[t.transpose], t.ofm.fm.shape, _computed(t)
    n = [-(-s // b) for s, b in zip(size, t.block)]
    total = n[0] * n[1] * n[2]
    out = []
    for k in range(total - 1, max(-1, total - 1 - count), -1):
        index = k // (n[1] * n[2]), k // n[2] % n[1], k % n[2]
        spans = [(i * b, min(s, i * b + b)) for i, b, s in zip(index, t.block, size)]
        (y0, y1), (x0, x1), (c0, c1) = (
            _flip(spans[a], stored[at], t.reverse == "HWC"[at]) for at, a in enumerate(axes)
        )
        out.append((y0, y1, x0, x1, c0, c1))
    return out


def _flip(span: tuple[int, int], size: int, backwards: bool) -> tuple[int, int]:
    return (size - span[1], size - span[0]) if backwards else span


def _in_boxes(t: Task, x: Tensor, count: int) -> list[Box]:
    """What the first ``count`` blocks of an operation read of one input; deep inputs are read in steps of depth."""
    h, w, c = _computed(t)
    ih, iw, ic = x.fm.shape
    bh, bw, bc = t.block
    elementwise = t.window is None
    deep = t.name == "OP_CONV" or t.mode == "REDUCE_SUM"
    step = t.weights.order.ifm_block if t.weights is not None and t.weights.order is not None and deep else bc
    nw, nc = -(-w // bw), -(-c // bc)
    slices = -(-ic // step) if deep else 1
    total = -(-h // bh) * nw * nc * slices
    out = []
    for k in range(min(count, total)):
        block, part = divmod(k, slices)
        y, v, z = block // (nw * nc), block // nc % nw, block % nc
        y0, y1 = y * bh, min(h, y * bh + bh)
        x0, x1 = v * bw, min(w, v * bw + bw)
        if t.window is not None:
            win = t.window
            y0, y1 = y0 * win.stride[0] - win.pad[0], (y1 - 1) * win.stride[0] + win.span(0) - win.pad[0]
            x0, x1 = x0 * win.stride[1] - win.pad[1], (x1 - 1) * win.stride[1] + win.span(1) - win.pad[1]
            if t.upscale != "NONE":
                y0, y1, x0, x1 = y0 // 2, (y1 + 1) // 2, x0 // 2, (x1 + 1) // 2
        c0, c1 = (part * step, min(ic, part * step + step)) if deep else (z * bc, min(ic, z * bc + bc))
        if elementwise:
            y0, y1 = (0, 1) if ih == 1 else (y0, y1)
            x0, x1 = (0, 1) if iw == 1 else (x0, x1)
            c0, c1 = (0, 1) if ic == 1 else (c0, c1)
        out.append((max(0, y0), min(ih, y1), max(0, x0), min(iw, x1), c0, c1))
    return out


def _box_bytes(fm: FeatureMap, box: Box) -> Array:
    y0, y1, x0, x1, c0, c1 = box
    parts = []
    for ty, tx, h, w, base in fm.parts():
        a, b, c, d = max(y0 - ty, 0), min(y1 - ty, h), max(x0 - tx, 0), min(x1 - tx, w)
        if a < b and c < d and c0 < c1:
            parts.append(_addresses(fm, h, w, base, (a, b, c, d, c0, c1)))
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _blocks(first: Task, second: Task, depth: int) -> Iterator[Hazard]:
    """Reads of ``second`` that BLOCKDEP lets happen before the writes of ``first`` they need."""
    if first.ofm is None or first.ofm.where != "memory" or not depth:
        return
    late = _out_boxes(first, depth)
    written = [_box_bytes(first.ofm.fm, box) for box in late]
    lo, hi = min(s for s, _ in first.ofm.fm.spans()), max(e for _, e in first.ofm.fm.spans())
    for x in (second.ifm, second.ifm2):
        if x is None or x.where != "memory" or x.fm.region != first.ofm.fm.region:
            continue
        if all(e <= lo or s >= hi for s, e in x.fm.spans()):
            continue
        for i, box in enumerate(_in_boxes(second, x, depth)):
            mark = np.zeros(hi - lo, np.bool_)
            at = _box_bytes(x.fm, box)
            mark[at[(at >= lo) & (at < hi)] - lo] = True
            for j, w in enumerate(written[: max(0, depth - i)]):
                if w.size and mark[w - lo].any():
                    late_one = f"BLOCKDEP {depth} lets block {i} read what the block {j} from the end has yet to write"
                    text = f"{first.where} and {second.where}: {late_one}"
                    yield Hazard(first.offset, second.offset, "read after write", text)
                    return


def _is_chained(t: Task) -> bool:
    return any(x is not None and x.where == "chain" for x in (t.ifm, t.ifm2))


def hazards(program: Program) -> list[Hazard]:
    """All hazards of a program, in stream order; an empty list means that every allowed overlap is harmless.

    A branch waits for everything before it (Vela emits both waits), so each stretch between branches is checked by
    itself.
    """
    arch = program.stream.arch
    most_dma, most_kernels = _DEPTH[arch.product]
    transfers: list[_Issued] = []
    kernels: list[_Issued] = []
    before: Task | None = None
    last: Task | None = None
    found: list[Hazard] = []
    for t in program.tasks:
        if isinstance(t, Command):
            if t.name == "OP_DMA_WAIT":
                k = int(t.fields["k"])
                transfers = transfers[len(transfers) - k :] if k else []
            elif t.name == "OP_KERNEL_WAIT":
                n = int(t.fields["n"])
                kernels = kernels[len(kernels) - n :] if n else []
            elif t.name == "OP_BRANCH":
                before = last = None
            continue
        new = _Issued(t, _accesses(t, arch))
        if t.dma:
            for old in (*transfers, *kernels):
                found += _pairs(old, new)
            transfers = [*transfers, new][-most_dma:]
            continue
        for old in transfers:
            found += _pairs(old, new)
        kernels = [*kernels, new][-most_kernels:]
        if not _is_chained(t):  # else a link of the chain that `before` precedes
            before = last
        if before is not None:
            found += _blocks(before, t, t.blockdep)
        last = t
    return found
