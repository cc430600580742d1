"""Regions, tensors in them, and every check on an access.

Addresses in a command stream are relative to the base pointer of a region, so each region is an array of bytes of
its own that starts at zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fvp.ethosu.errors import AccessError

Array = npt.NDArray[Any]
_NAMES = {0: "read-only", 1: "scratch", 2: "fast scratch", 3: "input", 4: "output"}


@dataclass
class Region:
    """Bytes behind one base pointer.

    Attributes:
        name: For messages.
        data: uint8.
        written: bool per byte, or None for a region that is valid from the start.
        writable: False for weights and constants.
    """

    name: str
    data: Array
    written: Array | None = None
    writable: bool = True


@dataclass(frozen=True)
class FeatureMap:
    """A tensor as a command addresses it: up to four tiles, NHWC or bricks of 16 channels.

    Attributes:
        role: IFM, IFM2 or OFM.
        region: Region number.
        bases: Address of each tile: top left, top right, bottom left, bottom right.
        h0, h1, w0: Height of the left and right top tiles, width of the left ones.
        strides: Bytes per (row, column, 16-channel brick); NHWC ignores the last, bricks ignore the column.
        brick: NHCWB16 instead of NHWC.
        shape: (H, W, C) elements.
        bits, signed: Element type.
    """

    role: str
    region: int
    bases: tuple[int, int, int, int]
    h0: int
    h1: int
    w0: int
    strides: tuple[int, int, int]
    brick: bool
    shape: tuple[int, int, int]
    bits: int
    signed: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"<{'i' if self.signed else 'u'}{self.bits // 8}")

    def parts(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(y, x, height, width, address) of each tile in use."""
        h, w, _ = self.shape
        left, top0, top1 = min(w, self.w0), min(h, self.h0), min(h, self.h1)
        yield 0, 0, top0, left, self.bases[0]
        if w > left:
            yield 0, left, top1, w - left, self.bases[1]
        if h > top0:
            yield top0, 0, h - top0, left, self.bases[2]
        if w > left and h > top1:
            yield top1, left, h - top1, w - left, self.bases[3]

    def _layout(self, h: int, w: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape in elements and strides in bytes of a tile."""
        e, c = self.bits // 8, self.shape[2]
        sy, sx, sc = self.strides
        if self.brick:
            return (h, -(-c // 16), w, 16), (sy, sc, 16 * e, e)
        return (h, w, c), (sy, sx, e)

    def _span(self, h: int, w: int, base: int) -> tuple[int, int]:
        """First byte and byte after the last one of a tile."""
        shape, strides = self._layout(h, w)
        reach = [(n - 1) * s for n, s in zip(shape, strides)]
        return base + sum(r for r in reach if r < 0), base + sum(r for r in reach if r > 0) + self.bits // 8

    def spans(self) -> list[tuple[int, int]]:
        return [self._span(h, w, base) for _, _, h, w, base in self.parts()]

    def _check(self, memory: Memory, h: int, w: int, base: int, where: str) -> Region:
        region = memory.region(self.region, where, self.role)
        lo, hi = self._span(h, w, base)
        if lo < 0 or hi > region.data.size:
            raise AccessError(
                f"{where}: {self.role} {self.shape} takes bytes {lo:#x}..{hi:#x} of region {self.region} "
                f"({region.name}), which has {region.data.size:#x}"
            )
        align = 16 if self.brick else self.bits // 8
        used = (base, self.strides[0], self.strides[2]) if self.brick else (base, *self.strides[:2])
        if any(v % align for v in used):
            raise AccessError(
                f"{where}: {self.role} address {base:#x} with strides {self.strides} is not aligned to {align} bytes"
            )
        return region

    def check(self, memory: Memory, where: str) -> None:
        """Region, bounds and alignment of every tile.

        Raises:
            AccessError: One of them is wrong; names the command, the addresses and the region.
        """
        for _, _, h, w, base in self.parts():
            self._check(memory, h, w, base, where)

    def load(self, memory: Memory, where: str) -> Array:
        """The tensor as (H, W, C); may be a view of the region."""
        tiles = list(self.parts())
        if len(tiles) == 1:
            return self._load(memory, *tiles[0][2:], where)
        out = np.empty(self.shape, self.dtype)
        for y, x, h, w, base in tiles:
            out[y : y + h, x : x + w] = self._load(memory, h, w, base, where)
        return out

    def _load(self, memory: Memory, h: int, w: int, base: int, where: str) -> Array:
        region = self._check(memory, h, w, base, where)
        shape, strides = self._layout(h, w)
        c = self.shape[2]
        if memory.check and region.written is not None:
            e = self.bits // 8
            seen: Array = np.ndarray(
                (*shape[:-1], shape[-1] * e), np.bool_, region.written.data, base, (*strides[:-1], 1)
            )
            if self.brick and c % 16:
                ok = bool(seen[:, :-1].all() and seen[:, -1, :, : c % 16 * e].all())
            else:
                ok = bool(seen.all())
            if not ok:
                raise AccessError(
                    f"{where}: {self.role} {self.shape} at {base:#x} of region {self.region} ({region.name}) "
                    "holds bytes that nothing has written"
                )
        v: Array = np.ndarray(shape, self.dtype, region.data.data, base, strides)
        if self.brick:
            v = v.transpose(0, 2, 1, 3).reshape(h, w, shape[1] * 16)[:, :, :c]
        return v

    def store(self, memory: Memory, values: Array, where: str) -> None:
        """Write (H, W, C) values, truncated to the element type."""
        for y, x, h, w, base in self.parts():
            region = self._check(memory, h, w, base, where)
            if not region.writable:
                raise AccessError(
                    f"{where}: {self.role} at {base:#x} writes region {self.region} ({region.name}), which is read-only"
                )
            shape, strides = self._layout(h, w)
            part = values if (h, w) == self.shape[:2] else values[y : y + h, x : x + w]
            e, c = self.bits // 8, self.shape[2]
            dst: Array = np.ndarray(shape, self.dtype, region.data.data, base, strides)
            mark: Array | None = None
            if memory.check and region.written is not None:
                mark = np.ndarray((*shape[:-1], shape[-1] * e), np.bool_, region.written.data, base, (*strides[:-1], 1))
            if not self.brick:
                dst[...] = part
                if mark is not None:
                    mark[...] = True
                continue
            full = c // 16
            if full:
                dst[:, :full] = part[:, :, : full * 16].reshape(h, w, full, 16).transpose(0, 2, 1, 3)
                if mark is not None:
                    mark[:, :full] = True
            if c % 16:
                dst[:, full, :, : c % 16] = part[:, :, full * 16 :]
                if mark is not None:
                    mark[:, full, :, : c % 16 * e] = True


class Memory:
    """All regions of one run.

    Args:
        regions: By number.
        check: Track which bytes were written and refuse to compute with others.
    """

    def __init__(self, regions: dict[int, Region], check: bool = True) -> None:
        self.regions = regions
        self.check = check
        self.total = sum(r.data.size for r in regions.values()) + 2048
        self.lut = Region("LUT", np.zeros(2048, np.uint8), np.zeros(2048, np.bool_))

    def region(self, number: int, where: str, role: str) -> Region:
        if number not in self.regions:
            have = ", ".join(f"{k} ({r.name})" for k, r in sorted(self.regions.items()))
            raise AccessError(f"{where}: {role} is in region {number}, this program has {have}")
        return self.regions[number]

    def bytes(self, number: int, base: int, length: int, where: str, role: str) -> bytes:
        """A plain range, for weights and scales."""
        region = self.region(number, where, role)
        if base + length > region.data.size:
            raise AccessError(
                f"{where}: {role} takes bytes {base:#x}..{base + length:#x} of region {number} ({region.name}), "
                f"which has {region.data.size:#x}"
            )
        if base % 16:
            raise AccessError(f"{where}: {role} address {base:#x} is not aligned to 16 bytes")
        if self.check and region.written is not None and not region.written[base : base + length].all():
            raise AccessError(
                f"{where}: {role} at {base:#x} of region {number} ({region.name}) holds bytes that nothing has written"
            )
        return region.data[base : base + length].tobytes()


def region_name(number: int) -> str:
    return _NAMES.get(number, f"region {number}")
