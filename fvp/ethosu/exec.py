"""Executes tasks on regions of memory.

Every operation follows the hardware's pipeline: read feature maps, accumulate, scale with rounding, add the output
zero point, clamp, look up, write.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fvp.ethosu import arith
from fvp.ethosu.arith import NATURAL, Array, Kernel, rescale
from fvp.ethosu.decode import Arch
from fvp.ethosu.errors import AccessError, DecodeError
from fvp.ethosu.memory import Memory
from fvp.ethosu.task import TRANSPOSE, Task, Tensor, Window
from fvp.ethosu.weights import Scales, read_scales, unpack

_CHUNK = 1 << 20  # elements of a gathered patch matrix


class _Cache:
    """Least recently used weights and scales, bounded by the bytes of the decoded forms."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._items: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    def clear(self) -> None:
        self._items.clear()
        self._size = 0

    def get(self, key: Any, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        if key in self._items:
            self._items.move_to_end(key)
            return self._items[key][0]
        value = make()
        self._items[key] = (value, size(value))
        self._size += self._items[key][1]
        while self._size > self._limit and len(self._items) > 1:
            self._size -= self._items.popitem(last=False)[1][1]
        return value


_WEIGHTS = _Cache(256 << 20)
_SCALES = _Cache(16 << 20)


def clear_caches() -> None:
    """Forget all decoded weights and scales."""
    _WEIGHTS.clear()
    _SCALES.clear()


class Machine:
    """What operations leave behind, as their registers are frozen in tasks: tables, chain buffers, accumulators."""

    def __init__(self, arch: Arch, memory: Memory) -> None:
        self.arch, self.memory = arch, memory
        self.chain: dict[int, Array] = {}
        self.acc: tuple[Array, int] | None = None
        self.last: Array | None = None

    def condition(self, branch: str, offset: int) -> bool:
        """What a conditional branch sees: whether the single element that was written last is not zero."""
        if self.last is None or self.last.size != 1:
            raise DecodeError(f"offset {offset:#x}: {branch} follows an operation that did not write a single value")
        return bool(self.last.ravel()[0])

    def execute(self, t: Task) -> Array | None:
        """Run one task; returns the values it wrote as (H, W, C), None for a DMA."""
        if t.name == "OP_DMA_START":
            self._dma(t)
            return None
        self._guard(t)
        if t.name in ("OP_CONV", "OP_DEPTHWISE"):
            out = self._conv(t)
        elif t.name == "OP_POOL":
            out = self._pool(t)
        elif t.name == "OP_ELEMENTWISE":
            out = self._elementwise(t)
        else:
            out = self._resize(t)
        self.last = out
        if t.clobbers_lut:
            assert self.memory.lut.written is not None
            self.memory.lut.written[:] = False
        return out

    def _guard(self, t: Task) -> None:
        """Refuses what no program can mean before any of it is computed, so that corrupt sizes cost nothing."""
        most = self.memory.total
        for x, factor in ((t.ofm, 1), (t.ifm, 16), (t.ifm2, 16)):
            if x is None:
                continue
            h, w, c = x.fm.shape
            if h * w * c > most * factor:
                raise AccessError(f"{t.where}: {x.fm.role} {x.fm.shape} has more elements than all memory has bytes")
            if x.where == "memory":
                x.fm.check(self.memory, t.where)
        if t.weights is not None and t.weights.order is not None:
            o, kh, kw, c = t.weights.order.shape
            given = sum(n for _, n in t.weights.streams)
            if o * kh * kw * c > 512 * given + 4096:
                raise DecodeError(f"{t.where}: {o * kh * kw * c} weights cannot be in {given} bytes")
            oh, ow, _ = self._ofm_dims(t)
            if oh * ow * o * kh * kw * c > 1 << 36:
                raise DecodeError(f"{t.where}: more than 2**36 multiply-accumulates in one operation")

    # operands

    def _load(self, x: Tensor, t: Task) -> Array:
        if x.where == "memory":
            return x.fm.load(self.memory, t.where)
        if x.where == "scalar":
            return np.full((1, 1, 1), x.value, np.int64)
        if x.value not in self.chain:
            raise AccessError(f"{t.where}: {x.fm.role} reads chain buffer {x.value}, which nothing has written")
        v = self.chain[x.value]
        for have, want in zip(v.shape, x.fm.shape):
            if have not in (1, want) and want != 1:
                raise AccessError(f"{t.where}: {x.fm.role} is {x.fm.shape}, chain buffer {x.value} holds {v.shape}")
        return v

    def _weights(self, t: Task) -> Kernel:
        w = t.weights
        assert w is not None and w.order is not None
        data = [
            self.memory.bytes(w.region, a, n, t.where, f"weight stream {k}") if n else b""
            for k, (a, n) in enumerate(w.streams)
        ]
        order = w.order

        def make() -> Kernel:
            try:
                return Kernel(unpack(order, data, w.fast))
            except DecodeError as e:
                raise DecodeError(f"{t.where}: {e.message}") from None

        key = (order, w.fast, *(hashlib.blake2b(d, digest_size=16).digest() for d in data))
        kernel: Kernel = _WEIGHTS.get(key, make, lambda k: k.w.size * 10 + 1024)
        return kernel

    def _scales(self, t: Task, channels: int) -> Scales:
        w = t.weights
        assert w is not None
        data = [self.memory.bytes(w.scale_region, a, n, t.where, "scales") if n else b"" for a, n in w.scale_streams]

        def make() -> Scales:
            try:
                return read_scales(data, channels, w.layout)
            except DecodeError as e:
                raise DecodeError(f"{t.where}: {e.message}") from None

        scales: Scales = _SCALES.get((channels, w.layout, *data), make, lambda s: 24 * channels + 1024)
        return scales

    # output stage

    def _finish(self, t: Task, acc: Array, bound: int, bias: Array | None = None) -> Array:
        """Accumulator to OFM. ``acc`` is int64 and is overwritten; no |acc| passes ``bound`` before the bias."""
        if t.acc_input == "KEEP":
            if self.acc is None or self.acc[0].shape != acc.shape:
                raise AccessError(f"{t.where}: continues from accumulators of another shape")
            acc += self.acc[0]
            bound += self.acc[1]
        elif t.acc_input == "IFM2" and t.mode != "NONE":
            assert t.ifm2 is not None
            acc += self._load(t.ifm2, t).astype(np.int64) - t.ifm2.zp
            bound += 1 << t.ifm2.fm.bits
        if t.keep:
            self.acc = acc, bound
            return acc
        assert t.ofm is not None
        if t.per_channel:
            s = self._scales(t, acc.shape[2])
            acc += s.bias
            bound += int(np.abs(s.bias).max(initial=0))
            shift: Any = int(s.shift[0]) if (s.shift == s.shift[0]).all() else s.shift
            scale: Any = int(s.scale[0]) if (s.scale == s.scale[0]).all() else s.scale
            acc = rescale(acc, scale, shift, t.scaling.mode, bound)
        else:
            acc = t.scaling.apply(acc, bound)
        return self._write(t, acc)

    def _write(self, t: Task, acc: Array) -> Array:
        assert t.ofm is not None
        if t.ofm.zp:
            acc += t.ofm.zp
        a = t.activation
        if a.lo is not None and a.hi is not None:
            np.clip(acc, a.lo, a.hi, out=acc)
        if a.table:
            acc = self._lookup(t, acc)
        out = acc.astype(t.ofm.fm.dtype)
        if t.transpose != "HWC":
            out = out.transpose(TRANSPOSE[t.transpose])
        if t.reverse != "NONE":
            out = np.flip(out, "HWC".index(t.reverse))
        if t.ofm.where == "memory":
            t.ofm.fm.store(self.memory, out, t.where)
        elif t.ofm.where == "chain":
            self.chain[t.ofm.value] = out
        return out

    def _lookup(self, t: Task, v: Array) -> Array:
        a, lut = t.activation, self.memory.lut
        size = 2048 if a.table == "S16" else 256 * a.entry
        if a.at + size > 2048:
            raise AccessError(f"{t.where}: a table of {size} bytes at {a.at} passes the end of the LUT memory")
        assert lut.written is not None
        if self.memory.check and not lut.written[a.at : a.at + size].all():
            raise AccessError(
                f"{t.where}: the table at {a.at} of the LUT memory was not loaded, or was overwritten since"
            )
        raw = lut.data[a.at : a.at + size]
        if a.table == "S16":
            pairs = raw.view("<i2").reshape(512, 2).astype(np.int64)
            i, frac = (v >> 7) + 256, v & 127
            if i.size and (int(i.min()) < 0 or int(i.max()) > 511):
                raise AccessError(f"{t.where}: a table index passes the 512 entries")
            if a.entry == 4:
                found: Array = (pairs[i, 0] << 7) + pairs[i, 1] * frac
            else:
                found = pairs[i, 0] + ((pairs[i, 1] * frac + 64) >> 7)
            return found
        kind = "u1" if a.table == "U8" and a.entry == 1 else f"<i{a.entry}"
        i = v if a.table == "U8" else v + 128
        if i.size and (int(i.min()) < 0 or int(i.max()) > 255):
            raise AccessError(f"{t.where}: a table index passes the 256 entries")
        entries: Array = raw.view(kind).astype(np.int64)
        found = entries[i]
        return found

    # operations

    def _padded(self, x: Array, w: Window, upscale: str, fill: int, dtype: Any) -> Array:
        """The input with upscaling and padding made explicit."""
        if upscale == "NEAREST":
            x = x.repeat(2, 0).repeat(2, 1)
        elif upscale == "ZEROS":
            full = np.full((2 * x.shape[0], 2 * x.shape[1], x.shape[2]), fill, dtype)
            full[::2, ::2] = x
            x = full
        t, le, b, r = w.pad
        if upscale == "NONE" and not any(w.pad):
            return x.astype(dtype)
        h = x.shape[0] + t + b
        v = x.shape[1] + le + r
        out = np.full((h, v, x.shape[2]), fill, dtype)
        out[t : t + x.shape[0], le : le + x.shape[1]] = x
        return out

    def _conv(self, t: Task) -> Array:
        assert t.ifm is not None and t.window is not None and t.ofm is not None
        x = self._load(t.ifm, t)
        if t.from_ifm2:
            return self._matmul(t, x)
        kernel = self._weights(t)
        bits = t.ifm.fm.bits
        top = 1 << (bits - 1 if t.ifm.fm.signed else bits)
        zp = t.ifm.zp
        top = max(top, abs(zp))
        bound = kernel.norm * (top + abs(zp))
        if bits == 32 and bound >= 1 << 53:
            raise DecodeError(f"{t.where}: 32-bit convolution input is not modelled")
        w = t.window
        oh, ow, oc = self._ofm_dims(t)
        if t.name == "OP_DEPTHWISE":
            acc = self._depthwise(t, x, kernel, top, oh, ow)
        else:
            acc = np.empty((oh, ow, oc), np.int64)
            xp = self._padded(x, w, t.upscale, zp, np.float32 if bits <= 16 else np.float64)
            for rows, patch in _patches(xp, w, oh, ow):
                acc[rows] = arith.dot(patch, kernel, top).reshape(-1, ow, oc)
        if zp:
            acc -= zp * kernel.sums
        return self._finish(t, acc, bound)

    def _ofm_dims(self, t: Task) -> tuple[int, int, int]:
        assert t.ofm is not None
        dims = [0, 0, 0]
        for stored, source in enumerate(TRANSPOSE[t.transpose]):
            dims[source] = t.ofm.fm.shape[stored]
        return dims[0], dims[1], dims[2]

    def _depthwise(self, t: Task, x: Array, kernel: Kernel, top: int, oh: int, ow: int) -> Array:
        w = t.window
        assert w is not None and t.ifm is not None
        oc = len(kernel.w)
        if x.shape[2] not in (1, oc):
            raise DecodeError(f"{t.where}: depthwise from {x.shape[2]} to {oc} channels is not modelled")
        dtype = np.float32 if kernel.norm * top < 1 << 24 else np.float64
        xp = self._padded(x, w, t.upscale, t.ifm.zp, dtype)
        if xp.shape[2] != oc:
            xp = np.repeat(xp, oc, 2)
        taps = kernel.taps.astype(dtype, copy=False)
        acc = np.empty((oh, ow, oc), np.int64)
        (sy, sx), (dy, dx) = w.stride, w.dilation
        step = max(1, (1 << 16) // max(1, ow * oc))
        for y0 in range(0, oh, step):
            n = min(step, oh - y0)
            total: Array = np.zeros((n, ow, oc), dtype)
            tmp: Array = np.empty_like(total)
            for ky in range(w.size[0]):
                top_row = y0 * sy + ky * dy
                for kx in range(w.size[1]):
                    part = xp[top_row : top_row + (n - 1) * sy + 1 : sy, kx * dx : kx * dx + (ow - 1) * sx + 1 : sx]
                    np.multiply(part, taps[ky, kx], out=tmp)
                    total += tmp
            acc[y0 : y0 + n] = total
        return acc

    def _matmul(self, t: Task, x: Array) -> Array:
        """Convolution whose weights are IFM2: (batch, output channel, depth)."""
        assert t.ifm is not None and t.ifm2 is not None and t.window is not None
        if t.window != Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0)) or t.upscale != "NONE":
            raise DecodeError(f"{t.where}: a matrix product with a kernel is not modelled")
        y = self._load(t.ifm2, t)
        k = x.shape[2]
        bound = k << (t.ifm.fm.bits + t.ifm2.fm.bits)
        kind = arith.float_type(bound)
        a: Array = x.astype(kind)
        b: Array = y.astype(kind)
        a -= t.ifm.zp
        b -= t.ifm2.zp
        acc = np.matmul(a, b.transpose(0, 2, 1)).astype(np.int64)
        return self._finish(t, acc, bound)

    def _pool(self, t: Task) -> Array:
        w, mode = t.window, t.mode
        assert w is not None
        oh, ow, oc = self._ofm_dims(t)
        if mode == "NONE":
            if t.ifm2 is not None:
                acc = self._load(t.ifm2, t).astype(np.int64)
                acc -= t.ifm2.zp
                return self._finish(t, acc, 1 << t.ifm2.fm.bits)
            return self._finish(t, np.zeros((oh, ow, oc), np.int64), 0)
        assert t.ifm is not None
        x, zp, bits = self._load(t.ifm, t), t.ifm.zp, t.ifm.fm.bits
        bound = 1 << bits
        (kh, kw), unit = w.size, w.size == (1, 1) and w.stride == (1, 1) and t.upscale == "NONE" and not any(w.pad)
        if mode == "REDUCE_SUM":
            if not unit:
                raise DecodeError(f"{t.where}: REDUCE_SUM with a kernel is not modelled")
            acc = x.sum(2, dtype=np.int64, keepdims=True)
            acc -= zp * x.shape[2]
            return self._finish(t, acc, bound * x.shape[2])
        if mode in ("ARGMAX_X", "ARGMAX_Y"):
            return self._argmax(t, x)
        if unit:
            acc = x.astype(np.int64)
            acc -= zp
            return self._finish(t, acc, bound)
        if mode in ("MAX", "MIN"):
            info = np.iinfo(x.dtype)
            best, fill = (np.maximum, info.min) if mode == "MAX" else (np.minimum, info.max)
            v = self._windows(self._padded(x, w, t.upscale, int(fill), x.dtype), w, oh, ow, best)
            acc = v.astype(np.int64)
            acc -= zp
            return self._finish(t, acc, bound)
        kind = np.int32 if bound * kh * kw < 1 << 31 else np.int64
        v = self._windows(self._padded(x, w, t.upscale, zp, kind), w, oh, ow, np.add)
        acc = v.astype(np.int64)
        acc -= zp * kh * kw
        bound *= kh * kw
        if mode == "AVERAGE" and (self.arch.product == "u85" or any(w.pad)):
            if t.scaling.scale != 1 or t.scaling.shift != 0 or t.per_channel:
                raise DecodeError(
                    f"{t.where}: an average over valid pixels together with another scale is not modelled"
                )
            n = _counts(x.shape[0], w.pad[0], kh, w.stride[0], w.dilation[0], oh)[:, None] * _counts(
                x.shape[1], w.pad[1], kw, w.stride[1], w.dilation[1], ow
            )
            if not n.all():
                raise DecodeError(f"{t.where}: a window lies in the padding alone")
            scale, shift = _reciprocal(n)
            return self._write(t, rescale(acc, scale[..., None], shift[..., None], NATURAL, bound))
        return self._finish(t, acc, bound)

    @staticmethod
    def _windows(x: Array, w: Window, oh: int, ow: int, combine: Any) -> Array:
        """Combine a window, first along x, then along y."""
        (kh, kw), (sy, sx), (dy, dx) = w.size, w.stride, w.dilation
        row = x[:, : (ow - 1) * sx + 1 : sx].copy()
        for k in range(1, kw):
            combine(row, x[:, k * dx : k * dx + (ow - 1) * sx + 1 : sx], out=row)
        out = row[: (oh - 1) * sy + 1 : sy].copy()
        for k in range(1, kh):
            combine(out, row[k * dy : k * dy + (oh - 1) * sy + 1 : sy], out=out)
        return out

    def _argmax(self, t: Task, x: Array) -> Array:
        """The accumulator holds index << 16 | value; the output shift keeps the index of the first maximum."""
        w = t.window
        assert w is not None
        axis = 1 if t.mode == "ARGMAX_X" else 0
        oh, ow, _ = self._ofm_dims(t)
        if any(w.pad) or t.upscale != "NONE" or w.size[1 - axis] != 1 or w.dilation != (1, 1):
            raise DecodeError(f"{t.where}: this form of {t.mode} is not modelled")
        sy, sx = w.stride
        view = np.lib.stride_tricks.sliding_window_view(x, w.size[axis], axis=axis)[
            : (oh - 1) * sy + 1 : sy, : (ow - 1) * sx + 1 : sx
        ]
        index = view.argmax(-1).astype(np.int64)
        value = np.take_along_axis(view, index[..., None], -1)[..., 0].astype(np.int64)
        return self._finish(t, (index << 16) | (value & 0xFFFF), w.size[axis] << 17)

    def _elementwise(self, t: Task) -> Array:
        assert t.ifm is not None
        mode = t.mode
        a = self._load(t.ifm, t).astype(np.int64) - t.ifm.zp
        dims = self._ofm_dims(t)
        a_bound = 1 << (t.ifm.fm.bits + (t.ifm.zp != 0))
        b, b_bound = a, 0
        if t.ifm2 is not None:
            b = self._load(t.ifm2, t).astype(np.int64) - t.ifm2.zp
            b_bound = 1 << (t.ifm2.fm.bits + (t.ifm2.zp != 0))
            if t.swapped:
                a, b, a_bound, b_bound = b, a, b_bound, a_bound
        shift = 19 if t.ifm.fm.bits == 8 else 14
        if t.shift_other == "A":
            a, a_bound = a << shift, a_bound << shift
        else:
            a, a_bound = t.a_scale.apply(a, a_bound), t.a_scale.bound(a_bound)
        if t.ifm2 is not None:
            if t.shift_other == "B":
                b, b_bound = b << shift, b_bound << shift
            else:
                b, b_bound = t.b_scale.apply(b, b_bound), t.b_scale.bound(b_bound)
        bound = a_bound + b_bound
        if mode in ("ADD", "SUB"):
            v = a + b if mode == "ADD" else a - b
        elif mode == "MUL":
            v, bound = a * b, a_bound * b_bound
        elif mode in ("MIN", "MAX"):
            v = np.minimum(a, b) if mode == "MIN" else np.maximum(a, b)
        elif mode == "ABS":
            v = np.abs(a)
        elif mode == "CLZ":
            v, bound = _clz32(a), 32
        elif mode == "SHL":
            v = _wrap32(a << np.clip(b, 0, 63))
        elif mode == "SHR":
            v = self._asr(t, a, b)
        elif mode == "LSR":
            v = _wrap32((a & ((1 << t.ifm.fm.bits) - 1)) >> np.clip(b, 0, 63))
        elif mode == "DIV":
            v = self._div(t, a, b)
        elif mode.startswith("CMP_"):
            ok = {"EQ": a == b, "NE": a != b, "GE": a >= b, "GT": a > b}[mode[4:]]
            v, bound = -ok.astype(np.int64), 1
        else:
            v = _bitwise(mode, a, b)
        if v.shape != dims:
            v = np.broadcast_to(v, dims).copy()
        return self._finish(t, v, bound)

    def _asr(self, t: Task, a: Array, b: Array) -> Array:
        """Arithmetic shift right by a tensor, rounded as the output is."""
        shape = np.broadcast_shapes(a.shape, b.shape)
        s = np.broadcast_to(np.clip(b, 0, 63), shape)
        return arith._shift_right(np.broadcast_to(a, shape).copy(), np.broadcast_to(a < 0, shape), s, t.scaling.mode)

    def _div(self, t: Task, a: Array, b: Array) -> Array:
        if (b == 0).any():
            raise DecodeError(f"{t.where}: division by zero")
        q = np.abs(a) // np.abs(b)
        return np.where((a < 0) != (b < 0), -q, q)

    def _resize(self, t: Task) -> Array:
        assert t.ifm is not None
        if t.mode == "REPLICATE":
            raise DecodeError(f"{t.where}: RESIZE in REPLICATE mode is not modelled")
        if t.scaling.shift < 16:
            raise DecodeError(f"{t.where}: OFM_SCALE.shift is {t.scaling.shift}, RESIZE takes 16 or more")
        x = self._load(t.ifm, t).astype(np.int64) - t.ifm.zp
        oh, ow, _ = self._ofm_dims(t)
        yn, yi, ym, yo, xn, xi, xm, xo = t.resize
        iy, fy = np.divmod(np.arange(oh) * (yi * yn + ym) + yo, yn)
        ix, fx = np.divmod(np.arange(ow) * (xi * xn + xm) + xo, xn)
        h, w = x.shape[:2]
        if t.mode == "NEAREST":
            y = np.clip(iy + (2 * fy >= yn), 0, h - 1)
            z = np.clip(ix + (2 * fx >= xn), 0, w - 1)
            acc, bound = x[y][:, z], 1 << t.ifm.fm.bits
        else:
            y0, y1 = np.clip(iy, 0, h - 1), np.clip(iy + 1, 0, h - 1)
            x0, x1 = np.clip(ix, 0, w - 1), np.clip(ix + 1, 0, w - 1)
            fy, fx = fy[:, None, None], fx[None, :, None]
            rows = x[y0] * (yn - fy) + x[y1] * fy
            acc = rows[:, x0] * (xn - fx) + rows[:, x1] * fx
            bound = (yn * xn) << t.ifm.fm.bits
        s = t.scaling
        return self._write(t, rescale(acc.copy(), s.scale, s.shift - 16, s.mode, bound))

    def _dma(self, t: Task) -> None:
        d, m = t.dma, self.memory
        src = m.lut if d["src_internal"] else m.region(d["src_region"], t.where, "DMA source")
        dst = m.lut if d["dst_internal"] else m.region(d["dst_region"], t.where, "DMA destination")
        base = self.arch.lut_base
        s0 = d["src"] - (base if d["src_internal"] else 0)
        d0 = d["dst"] - (base if d["dst_internal"] else 0)
        if not dst.writable:
            raise AccessError(
                f"{t.where}: the destination is region {d['dst_region']} ({dst.name}), which is read-only"
            )
        n = d["len"]
        count = d["n0"] * d["n1"]
        if n * count > m.total or not n * count:
            raise AccessError(f"{t.where}: moves {n * count} bytes")
        i, j = np.arange(d["n0"]), np.arange(d["n1"])[:, None]
        at_s = s0 + i * d["ss0"] + j * d["ss1"]
        at_d = d0 + i * d["ds0"] + j * d["ds1"]
        if d["index"]:
            at_i = d["idx"] + 4 * i + j * (4 * d["n0"] + d["idx_skip"])
            index = self._indices(t, at_i)
            if d["index"] == 1:
                at_s = s0 + index * d["ss0"] + j * d["ss1"]
            else:
                at_d = d0 + index * d["ds0"] + j * d["ds1"]
        for at, region, what in ((at_s, src, "source"), (at_d, dst, "destination")):
            lo, hi, size = int(at.min()), int(at.max()) + n, region.data.size
            if lo < 0 or hi > size:
                span = f"{lo:#x}..{hi:#x}"
                raise AccessError(f"{t.where}: the {what} takes bytes {span} of {region.name}, which has {size:#x}")
        for a, b in zip(at_s.ravel().tolist(), at_d.ravel().tolist()):
            dst.data[b : b + n] = src.data[a : a + n]
            if dst.written is not None:
                dst.written[b : b + n] = True if src.written is None else src.written[a : a + n]

    def _indices(self, t: Task, at: Array) -> Array:
        d = t.dma
        region = self.memory.region(d["idx_region"], t.where, "DMA index")
        if int(at.min()) < 0 or int(at.max()) + 4 > region.data.size or (at % 4).any():
            raise AccessError(
                f"{t.where}: the indices pass the end of region {d['idx_region']} ({region.name}) or are misaligned"
            )
        bytes_ = at[..., None] + np.arange(4)
        if region.written is not None and self.memory.check and not region.written[bytes_].all():
            raise AccessError(f"{t.where}: reads indices that nothing has written")
        index = np.ascontiguousarray(region.data[bytes_]).view("<i4")[..., 0].astype(np.int64)
        if int(index.min()) < 0 or int(index.max()) > d["idx_max"]:
            raise AccessError(f"{t.where}: index {int(index.min())}..{int(index.max())} passes 0..{d['idx_max']}")
        return index


def _patches(x: Array, w: Window, oh: int, ow: int) -> Iterator[tuple[slice, Array]]:
    """Rows of the output with their gathered inputs (rows * ow, KH * KW * C)."""
    (kh, kw), (sy, sx), (dy, dx) = w.size, w.stride, w.dilation
    c = x.shape[2]
    s0, s1, s2 = x.strides
    if (kh, kw, sy, sx) == (1, 1, 1, 1) and x.shape[:2] == (oh, ow):
        yield slice(0, oh), x.reshape(oh * ow, c)
        return
    if dx == 1:  # the taps of one kernel row lie side by side
        shape: tuple[int, ...] = (oh, ow, kh, kw * c)
        strides: tuple[int, ...] = (s0 * sy, s1 * sx, s0 * dy, s2)
    else:
        shape, strides = (oh, ow, kh, kw, c), (s0 * sy, s1 * sx, s0 * dy, s1 * dx, s2)
    view: Array = np.lib.stride_tricks.as_strided(x, shape, strides)
    step = max(1, _CHUNK // (ow * kh * kw * c))
    for y in range(0, oh, step):
        part = view[y : y + step]
        yield slice(y, y + step), part.reshape(part.shape[0] * ow, kh * kw * c)


def _counts(size: int, before: int, k: int, stride: int, dilation: int, n: int) -> Array:
    """How many taps of each window lie inside the map along one axis."""
    at = np.arange(n)[:, None] * stride + np.arange(k) * dilation - before
    inside: Array = ((at >= 0) & (at < size)).sum(1)
    return inside


def _reciprocal(n: Array) -> tuple[Array, Array]:
    """Multiplier and shift with which the hardware divides a sum by ``n`` pixels."""
    n = n.astype(np.int64)
    e = np.frexp((n - 1).astype(np.float64))[1].astype(np.int64)
    scale = ((np.int64(1) << (31 + e)) + (np.int64(1) << e) + n - 1) // n
    return scale, 31 + e


def _bitwise(mode: str, a: Array, b: Array) -> Array:
    v: Array
    if mode == "AND":
        v = a & b
    elif mode == "OR":
        v = a | b
    elif mode == "XOR":
        v = a ^ b
    elif mode == "NOT":
        v = ~a
    else:
        v = a & ~b
    return v


def _wrap32(v: Array) -> Array:
    low: Array = (v & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
    return low


def _clz32(v: Array) -> Array:
    v = v & 0xFFFFFFFF
    return 32 - np.frexp(v.astype(np.float64))[1].astype(np.int64)
