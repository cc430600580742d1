"""Executes decoded commands on regions of memory.

`Program` walks the register stream once and freezes each operation with the registers it sees (`Task`); running it
is then a loop over tasks. Every operation follows the hardware's pipeline: read feature maps, accumulate, scale with
rounding, add the output zero point, clamp, look up, write.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fvp.ethosu import arith
from fvp.ethosu.arith import DOUBLE, NATURAL, SYMMETRIC, TO_LOWER, TO_ZERO, Kernel, rescale
from fvp.ethosu.decode import Arch, Command, Stream, Value
from fvp.ethosu.errors import DecodeError, AccessError
from fvp.ethosu.memory import FeatureMap, Memory
from fvp.ethosu.weights import Order, Scales, read_scales, unpack

Array = npt.NDArray[Any]

_ROUND = {
    **{"NATURAL": NATURAL, "DBL": DOUBLE, "DOUBLE_SYMMETRIC": DOUBLE, "TRUNCATE": TO_ZERO, "TRUNCATE_TO_ZERO": TO_ZERO},
    **{"TRUNCATE_TO_LOWER": TO_LOWER, "SYMMETRIC": SYMMETRIC},
}
_TRANSPOSE = {
    "HWC": (0, 1, 2),
    "WHC": (1, 0, 2),
    "HCW": (0, 2, 1),
    "WCH": (1, 2, 0),
    "CHW": (2, 0, 1),
    "CWH": (2, 1, 0),
}
_UBLOCK85 = {
    128: {"1X2": 8, "1X1": 16},
    256: {"1X2": 16, "1X4": 8, "2X2": 8},
    512: {"2X2": 16, "1X4": 16},
    1024: {"2X2": 32, "1X4": 32, "2X4": 16},
    2048: {"2X2": 64, "1X4": 64, "4X4": 16},
}
_LUT85 = {
    "LUT_U8_U8": 256,
    "LUT_S8_S8": 256,
    "LUT_S8_S16": 512,
    "LUT_S8_S32": 1024,
    "LUT_S16_S16": 2048,
    "LUT_S16_S32": 2048,
}
_CHUNK = 1 << 20  # elements of a gathered patch matrix


class Registers:
    """The register file; reading a register that no command wrote is an error."""

    def __init__(self, values: dict[str, dict[str, Value]], where: str) -> None:
        self._values = values
        self.where = where

    def raw(self, name: str, key: str) -> Value:
        if name not in self._values:
            raise DecodeError(f"{self.where}: register {name} is used and was never written")
        return self._values[name][key]

    def num(self, name: str, key: str = "n") -> int:
        v = self.raw(name, key)
        assert isinstance(v, int)
        return v

    def txt(self, name: str, key: str) -> str:
        v = self.raw(name, key)
        assert isinstance(v, str)
        return v

    def zero_point(self, role: str, signed: bool) -> int:
        v = self.num(f"{role}_ZERO_POINT", "zp")
        return v - 65536 if signed and v > 32767 else v


@dataclass(frozen=True)
class Scaling:
    """A global scale: multiplier, right shift, rounding."""

    scale: int
    shift: int
    mode: str

    def apply(self, acc: Array, bound: int) -> Array:
        return rescale(acc, self.scale, self.shift, self.mode, bound)

    def bound(self, bound: int) -> int:
        return (bound * self.scale >> self.shift) + 1


@dataclass(frozen=True)
class Window:
    """Kernel geometry. Sizes are taps, (y, x)."""

    size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int, int, int]  # top, left, bottom, right

    def span(self, axis: int) -> int:
        return (self.size[axis] - 1) * self.dilation[axis] + 1


@dataclass(frozen=True)
class Tensor:
    """An operand or result: feature map in memory, chain buffer, scalar or nothing.

    Attributes:
        where: ``memory``, ``chain``, ``scalar`` or ``none``.
        fm: Element type and geometry; its addresses only count in ``memory``.
        zp: Zero point.
        value: The scalar, or the number of the chain buffer.
    """

    where: str
    fm: FeatureMap
    zp: int
    value: int = 0


@dataclass(frozen=True)
class Activation:
    """Clamp and table lookup after scaling."""

    lo: int | None
    hi: int | None
    table: str = ""  # "", "S8", "U8", "S16" by the kind of index
    entry: int = 1  # bytes of an entry
    at: int = 0  # offset in LUT memory


@dataclass(frozen=True)
class Weights:
    """Where weights and scales are and how they are ordered."""

    order: Order | None
    fast: bool
    region: int
    streams: tuple[tuple[int, int], ...]
    scale_region: int
    scale_streams: tuple[tuple[int, int], ...]
    layout: str


@dataclass(frozen=True)
class Task:
    """One operation with everything it reads from the register file.

    Attributes:
        name: Command name.
        mode: Pooling, elementwise or resize mode; empty for convolutions.
        where: Text for messages: offset and command.
    """

    name: str
    mode: str
    where: str
    offset: int
    ifm: Tensor | None = None
    ifm2: Tensor | None = None
    ofm: Tensor | None = None
    window: Window | None = None
    upscale: str = "NONE"
    weights: Weights | None = None
    per_channel: bool = False
    scaling: Scaling = Scaling(1, 0, NATURAL)
    a_scale: Scaling = Scaling(1, 0, NATURAL)
    b_scale: Scaling = Scaling(1, 0, NATURAL)
    shift_other: str = ""  # U55 add/sub: "A" or "B" is the operand that is only shifted left
    swapped: bool = False
    activation: Activation = Activation(None, None)
    transpose: str = "HWC"
    reverse: str = "NONE"
    acc_input: str = "RESET"
    keep: bool = False
    from_ifm2: bool = False
    resize: tuple[int, ...] = ()
    dma: dict[str, int] = field(default_factory=dict)
    block: tuple[int, int, int] = (1, 1, 1)
    blockdep: int = 0
    wait: int = 0
    clobbers_lut: bool = False


class _Cache:
    """Least recently used weights and scales, bounded by the bytes of the decoded forms."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._items: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

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


class Builder:
    """Freezes an operation with the registers that are current when it is issued."""

    def __init__(self, arch: Arch, values: dict[str, dict[str, Value]], cmd: Command) -> None:
        self.arch, self.cmd = arch, cmd
        self.where = f"offset {cmd.offset:#x}: {cmd}"
        self.r = Registers(values, self.where)
        self.u85 = arch.product == "u85"

    def feature_map(self, role: str, shape: tuple[int, int, int]) -> FeatureMap:
        r = self.r
        return FeatureMap(
            role,
            r.num(f"{role}_REGION", "region"),
            (
                r.num(f"{role}_BASE0", "addr"),
                r.num(f"{role}_BASE1", "addr"),
                r.num(f"{role}_BASE2", "addr"),
                r.num(f"{role}_BASE3", "addr"),
            ),
            r.num(f"{role}_HEIGHT0_M1") + 1,
            r.num(f"{role}_HEIGHT1_M1") + 1,
            r.num(f"{role}_WIDTH0_M1") + 1,
            (r.num(f"{role}_STRIDE_Y", "addr"), r.num(f"{role}_STRIDE_X", "addr"), r.num(f"{role}_STRIDE_C", "addr")),
            r.txt(f"{role}_PRECISION", "format") == "NHCWB16",
            shape,
            r.num(f"{role}_PRECISION", "bits"),
            bool(r.num(f"{role}_PRECISION", "signed")),
        )

    def tensor(self, role: str, shape: tuple[int, int, int]) -> Tensor:
        """An operand; ``shape`` is (H, W, C)."""
        r = self.r
        signed = bool(r.num(f"{role}_PRECISION", "signed"))
        zp = r.zero_point(role, signed)
        storage = r.txt(f"{role}_PRECISION", "storage") if self.u85 else "TILE2X2"
        if storage == "TILE2X2":
            return Tensor("memory", self.feature_map(role, shape), zp)
        if storage == "TILE3X1":
            raise DecodeError(f"{self.where}: {role} storage TILE3X1 is not modelled")
        bits = r.num(f"{role}_PRECISION", "bits")
        bare = FeatureMap(role, -1, (0, 0, 0, 0), shape[0], shape[0], shape[1], (0, 0, 0), False, shape, bits, signed)
        if storage == "CHAINED":
            return Tensor("chain", bare, zp, r.num(f"{role}_REGION", "region"))
        return Tensor(
            "none" if role == "OFM" else "scalar", bare, zp, 0 if role == "OFM" else r.num("OP_SCALAR", "value")
        )

    @property
    def ofm_shape(self) -> tuple[int, int, int]:
        r = self.r
        return r.num("OFM_HEIGHT_M1") + 1, r.num("OFM_WIDTH_M1") + 1, r.num("OFM_DEPTH_M1") + 1

    def ofm(self) -> dict[str, Any]:
        shape = self.ofm_shape
        if not self.u85:
            return {"ofm": self.tensor("OFM", shape)}
        transpose, reverse = self.r.txt("OFM_PRECISION", "transpose"), self.r.txt("OFM_PRECISION", "reverse")
        h, w, c = (shape[a] for a in _TRANSPOSE[transpose])
        return {"ofm": self.tensor("OFM", (h, w, c)), "transpose": transpose, "reverse": reverse}

    def window(self) -> Window:
        r = self.r

        def k(key: str) -> int:
            return r.num("KERNEL_STRIDE", key)

        if r.txt("KERNEL_STRIDE", "decomposition") != "D8X8":
            raise DecodeError(f"{self.where}: kernel decomposition D4X4 is not modelled")
        dilation = k("dy_m1") + 1, k("dx_m1") + 1
        size = r.num("KERNEL_HEIGHT_M1") // dilation[0] + 1, r.num("KERNEL_WIDTH_M1") // dilation[1] + 1
        stride = 1 + k("sy_lsb") + 2 * k("sy_msb"), 1 + k("sx_lsb") + 2 * k("sx_msb")
        pads = [r.num(f"IFM_PAD_{side}", "pad") for side in ("TOP", "LEFT", "BOTTOM", "RIGHT")]
        return Window(size, stride, dilation, (pads[0], pads[1], pads[2], pads[3]))

    def ifm_shape(self, w: Window, upscale: str) -> tuple[int, int, int]:
        """Height and width follow from the OFM, as no register holds them."""
        oh, ow, _ = self.ofm_shape
        h = (oh - 1) * w.stride[0] + w.span(0) - w.pad[0] - w.pad[2]
        v = (ow - 1) * w.stride[1] + w.span(1) - w.pad[1] - w.pad[3]
        if h < 1 or v < 1:
            raise DecodeError(f"{self.where}: padding leaves an input of {h} x {v}")
        if upscale != "NONE":
            h, v = (h + 1) // 2, (v + 1) // 2
        return h, v, self.depth()

    def depth(self) -> int:
        return self.r.num("IFM_DEPTH_M1") + 1

    def scale_layout(self) -> str:
        return "u55" if not self.u85 else {"I32": "i32", "I48": "i48"}[self.r.txt("ACC_FORMAT", "format")]

    def ublock(self) -> int:
        if not self.u85:
            return 4 if self.arch.macs == 32 else 8
        name = self.r.txt("ACC_FORMAT", "microblock")
        table = _UBLOCK85[self.arch.macs]
        if name not in table:
            raise DecodeError(f"{self.where}: micro-block {name} does not exist on {self.arch.name}")
        return table[name]

    def weights(self, depthwise: bool, w: Window, channels: int, with_weights: bool) -> Weights:
        r, arch = self.r, self.arch
        order, streams, fast, region = None, [], False, 0
        cores = arch.cores
        if arch.product == "u65" and cores == 2 and r.txt("PARALLEL_MODE", "mode") == "SINGLE_CORE":
            raise DecodeError(f"{self.where}: single-core mode on {arch.name} is not modelled")
        if with_weights:
            sparse = False
            if self.u85:
                fast = r.txt("WEIGHT_FORMAT", "format") == "FWD"
                sparse = r.txt("WEIGHT_FORMAT", "sparsity") != "NONE"
            order = Order(
                arch.product,
                arch.macs,
                cores,
                (self.ofm_shape[2], *w.size, 1 if depthwise else channels),
                depthwise,
                r.txt("KERNEL_STRIDE", "order") == "PART_KERNEL_FIRST" and not depthwise,
                r.num("IFM_PRECISION", "bits"),
                r.num("OFM_BLK_DEPTH_M1") + 1,
                self.ublock(),
                w.dilation,
                w.stride if self.u85 else (1, 1),
                sparse,
            )
            region = r.num("WEIGHT_REGION", "region")
            for k in range(1 if fast else cores):
                name = f"WEIGHT{k or ''}"
                n = r.num(f"{name}_LENGTH")
                streams.append((r.num(f"{name}_BASE", "addr") if n else 0, n))
        scales = [(r.num("SCALE_BASE", "addr"), r.num("SCALE_LENGTH"))]
        if arch.product == "u65" and cores == 2:
            n = r.num("SCALE1_LENGTH")
            scales.append((r.num("SCALE1_BASE", "addr") if n else 0, n))
        return Weights(
            order, fast, region, tuple(streams), r.num("SCALE_REGION", "region"), tuple(scales), self.scale_layout()
        )

    def ofm_scaling(self) -> Scaling:
        r = self.r
        if self.u85:
            if r.num("OFM_SCALE", "dbl_rnd"):
                raise DecodeError(f"{self.where}: OFM_SCALE.dbl_rnd is not modelled")
            mode = r.txt("OFM_SCALE", "round")
        else:
            mode = r.txt("OFM_PRECISION", "round")
        if mode not in _ROUND:
            raise DecodeError(f"{self.where}: rounding mode {mode} is not modelled")
        return Scaling(r.num("OFM_SCALE", "scale"), r.num("OFM_SCALE", "shift"), _ROUND[mode])

    def activation(self) -> Activation:
        r = self.r
        function, clip = r.txt("ACTIVATION", "function"), r.txt("ACTIVATION", "clip")
        bits, signed = r.num("OFM_PRECISION", "bits"), bool(r.num("OFM_PRECISION", "signed"))
        lo, hi = r.num("ACTIVATION_MIN", "value"), r.num("ACTIVATION_MAX", "value")
        if function in ("TANH", "SIGMOID"):
            raise DecodeError(f"{self.where}: activation function {function} is not modelled")
        if self.u85:
            signed = signed if function == "NONE" else function != "LUT_U8_U8"
            if signed:
                lo, hi = (
                    (lo ^ 0x8000) - 0x8000,
                    (hi ^ 0x8000) - 0x8000 if function != "NONE" or bits <= 16 or lo > 32767 else hi,
                )
            limits: tuple[int | None, int | None] = (None, None) if clip == "NONE" else (lo, hi)
            if function == "NONE":
                return Activation(*limits)
            size = _LUT85[function]
            kind = function[4:].split("_")[0]
            entry = {"U8": 1, "S8": 1, "S16": 2, "S32": 4}[function.split("_")[2]]
            return Activation(*limits, kind, entry, r.num("ACTIVATION", "table") * size)
        if signed:
            lo, hi = (lo ^ 0x8000) - 0x8000, (hi ^ 0x8000) - 0x8000
        if clip == "FORCE_INT8":
            lo, hi = max(lo, -128), min(hi, 127)
        elif clip == "FORCE_UINT8":
            lo, hi = max(lo, 0), min(hi, 255)
        limits = (None, None) if bits == 32 and clip == "OFM_PRECISION" else (lo, hi)
        if function == "NONE":
            return Activation(*limits)
        slot = int(function.split("_")[1])
        if bits == 16:
            return Activation(*limits, "S16", 2, slot * 256)
        return Activation(*limits, "S8" if signed else "U8", bits // 8, slot * 256)

    def common(self) -> dict[str, Any]:
        r = self.r
        block = r.num("OFM_BLK_HEIGHT_M1") + 1, r.num("OFM_BLK_WIDTH_M1") + 1, r.num("OFM_BLK_DEPTH_M1") + 1
        act = self.activation()
        d: dict[str, Any] = {
            "name": self.cmd.name,
            "mode": str(self.cmd.fields.get("mode", "")),
            "where": self.where,
            "offset": self.cmd.offset,
            "activation": act,
            "block": block,
            "blockdep": r.num("BLOCKDEP"),
            # without reserved banks the accumulators of an operation that looks nothing up overwrite the tables
            "clobbers_lut": not self.u85 and self.arch.shram // self.arch.cores <= 16 and not act.table,
            **self.ofm(),
        }
        if self.u85:
            d["acc_input"], d["keep"] = r.txt("ACC_FORMAT", "input"), r.txt("ACC_FORMAT", "output") == "DISABLE"
        return d

    def conv(self) -> Task:
        r = self.r
        w, upscale = self.window(), r.txt("IFM_UPSCALE", "mode")
        shape = self.ifm_shape(w, upscale)
        depthwise = self.cmd.name == "OP_DEPTHWISE"
        dynamic = bool(self.cmd.fields.get("weights_ifm2", 0))
        per_channel = r.txt("OFM_PRECISION", "scale_mode") == "PER_CHANNEL"
        d: dict[str, Any] = {
            "ifm": self.tensor("IFM", shape),
            "window": w,
            "upscale": upscale,
            "per_channel": per_channel,
            **self.common(),
        }
        oh, ow, oc = self.ofm_shape
        if d["acc_input"] == "IFM2" if self.u85 else False:
            d["ifm2"] = self.tensor("IFM2", (oh, ow, oc))
        if dynamic:
            d["ifm2"], d["from_ifm2"] = self.tensor("IFM2", (shape[0], oc, shape[2])), True
        if not dynamic or per_channel:
            d["weights"] = self.weights(depthwise, w, shape[2], not dynamic)
        d["scaling"] = (
            self.ofm_scaling()
            if self.u85 or not per_channel
            else Scaling(1, 0, _ROUND[r.txt("OFM_PRECISION", "round")])
        )
        return Task(**d)

    def pool(self) -> Task:
        r, mode = self.r, str(self.cmd.fields["mode"])
        w, upscale = self.window(), r.txt("IFM_UPSCALE", "mode")
        per_channel = r.txt("OFM_PRECISION", "scale_mode") == "PER_CHANNEL"
        d: dict[str, Any] = {"window": w, "upscale": upscale, "per_channel": per_channel, **self.common()}
        oh, ow, oc = self.ofm_shape
        if mode == "NONE":
            if d["acc_input"] == "IFM2":
                d["ifm2"] = self.tensor("IFM2", (oh, ow, oc))
        else:
            h, v, c = self.ifm_shape(w, upscale)
            if mode != "REDUCE_SUM":
                c = oc
            d["ifm"] = self.tensor("IFM", (h, v, c))
            if self.u85 and d["acc_input"] == "IFM2":
                d["ifm2"] = self.tensor("IFM2", (oh, ow, oc))
        if per_channel:
            d["weights"] = self.weights(False, w, 0, False)
        d["scaling"] = (
            self.ofm_scaling()
            if self.u85 or not per_channel
            else Scaling(1, 0, _ROUND[r.txt("OFM_PRECISION", "round")])
        )
        return Task(**d)

    def elementwise(self) -> Task:
        r, mode = self.r, str(self.cmd.fields["mode"])
        d = self.common()
        oh, ow, oc = self.ofm_shape
        unary = mode in ("ABS", "CLZ", "LRELU", "NOT")

        def extent(reg: str) -> tuple[int, int, int]:
            return 1 if r.num(reg, "h") else oh, 1 if r.num(reg, "w") else ow, 1 if r.num(reg, "c") else oc

        if mode == "LRELU":
            raise DecodeError(f"{self.where}: LRELU is not modelled, Vela emits it for TFLite only")
        if self.u85:
            d["ifm"] = self.tensor("IFM", extent("IFM_BROADCAST"))
            if not unary:
                d["ifm2"] = self.tensor("IFM2", extent("IFM2_BROADCAST"))
            for reg, key in (("IFM_SCALE", "a_scale"), ("IFM2_SCALE", "b_scale")):
                if key == "b_scale" and unary:
                    continue
                if r.num(reg, "dbl_rnd"):
                    raise DecodeError(f"{self.where}: {reg}.dbl_rnd is not modelled")
                d[key] = Scaling(r.num(reg, "scale"), r.num(reg, "shift"), _ROUND[r.txt(reg, "round")])
            d["scaling"] = self.ofm_scaling()
            return Task(**d)
        if r.txt("IFM_UPSCALE", "mode") != "NONE":
            raise DecodeError(f"{self.where}: IFM_UPSCALE on an elementwise operation is not modelled")
        d["ifm"] = self.tensor("IFM", (oh, ow, oc))
        if not unary:
            d["swapped"] = bool(r.num("IFM2_BROADCAST", "swapped"))
            if r.num("IFM2_BROADCAST", "scalar"):
                signed, bits = bool(r.num("IFM2_PRECISION", "signed")), r.num("IFM2_PRECISION", "bits")
                v = r.num("IFM2_SCALAR", "value")
                v = v - 65536 if signed and v > 32767 else v
                bare = FeatureMap("IFM2", -1, (0, 0, 0, 0), 1, 1, 1, (0, 0, 0), False, (1, 1, 1), bits, signed)
                d["ifm2"] = Tensor("scalar", bare, r.zero_point("IFM2", signed), v)
            else:
                d["ifm2"] = self.tensor("IFM2", extent("IFM2_BROADCAST"))
        if mode in ("ADD", "SUB"):
            one = _ROUND[r.txt("IFM_PRECISION", "round")]
            opa = Scaling(r.num("OPA_SCALE", "scale"), r.num("OPA_SCALE", "shift"), one)
            scale_mode = r.txt("IFM_PRECISION", "scale_mode")
            if scale_mode == "OPA_OPB_16":
                d["a_scale"], d["b_scale"] = (
                    Scaling(opa.scale & 0xFFFF, 0, one),
                    Scaling(r.num("OPB_SCALE", "scale"), 0, one),
                )
            elif scale_mode == "OPA_32":
                d["a_scale"], d["shift_other"] = opa, "B"
            else:
                d["b_scale"], d["shift_other"] = opa, "A"
        if r.txt("OFM_PRECISION", "scale_mode") == "GLOBAL":
            d["scaling"] = self.ofm_scaling()
        else:  # no scale stream exists for these
            d["scaling"] = Scaling(1, 0, _ROUND[r.txt("OFM_PRECISION", "round")])
        return Task(**d)

    def resize(self) -> Task:
        r = self.r
        d = self.common()
        shape = r.num("KERNEL_HEIGHT_M1") + 1, r.num("KERNEL_WIDTH_M1") + 1, self.ofm_shape[2]
        d["ifm"], d["scaling"] = self.tensor("IFM", shape), self.ofm_scaling()
        axis = [
            (
                r.num(f"RESIZE_{a}_SCALE_N_M1") + 1,
                r.num(f"RESIZE_{a}_STEP", "one_int"),
                r.num(f"RESIZE_{a}_STEP", "one_mod"),
                r.num(f"RESIZE_{a}_OFFSET"),
            )
            for a in "YX"
        ]
        return Task(**d, resize=(*axis[0], *axis[1]))

    def transfer(self) -> Task:
        """OP_DMA_START."""
        r = self.r
        d = {
            "src": r.num("DMA0_SRC", "addr"),
            "src_region": r.num("DMA0_SRC_REGION", "region"),
            "src_internal": int(r.txt("DMA0_SRC_REGION", "mode") == "INTERNAL"),
            "dst": r.num("DMA0_DST", "addr"),
            "dst_region": r.num("DMA0_DST_REGION", "region"),
            "dst_internal": int(r.txt("DMA0_DST_REGION", "mode") == "INTERNAL"),
            "len": r.num("DMA0_LEN", "addr"),
            **{"n0": 1, "n1": 1, "ss0": 0, "ss1": 0, "ds0": 0, "ds1": 0, "index": 0},
        }
        if self.u85:
            dims = r.txt("DMA0_SRC_REGION", "stride")
            src_idx, dst_idx = (r.txt(f"DMA0_{x}_REGION", "idx") == "ENABLED" for x in ("SRC", "DST"))
            d["n0"] = r.num("DMA0_SIZE0")
            if dims != "D1" or src_idx:
                d["ss0"] = r.num("DMA0_SRC_STRIDE0", "addr")
            if dims != "D1" or dst_idx:
                d["ds0"] = r.num("DMA0_DST_STRIDE0", "addr")
            if dims == "D3":
                d["n1"], d["ss1"], d["ds1"] = (
                    r.num("DMA0_SIZE1"),
                    r.num("DMA0_SRC_STRIDE1", "addr"),
                    r.num("DMA0_DST_STRIDE1", "addr"),
                )
            if src_idx and dst_idx:
                raise DecodeError(f"{self.where}: source and destination are both indexed")
            if src_idx or dst_idx:
                d["index"] = 1 if src_idx else 2
                d["idx"], d["idx_region"], d["idx_max"] = (
                    r.num("DMA0_IDX", "addr"),
                    r.num("DMA0_IDX_REGION", "region"),
                    r.num("DMA0_IDX_MAX"),
                )
                d["idx_skip"] = r.num("DMA0_IDX_SKIP1", "addr") if dims == "D3" else 0
        else:
            dims = r.txt("DMA0_DST_REGION", "stride")
            if r.txt("DMA0_SRC_REGION", "stride") != "D1" or (dims != "D1" and self.arch.product == "u55"):
                raise DecodeError(f"{self.where}: strided DMA on this side is not modelled")
            if dims != "D1":
                d["n0"] = r.num("DMA0_SIZE0")
                d["ss0"], d["ds0"] = d["len"], d["len"] + r.num("DMA0_SKIP0", "addr")
            if dims == "D3":
                d["n1"] = r.num("DMA0_SIZE1")
                d["ss1"], d["ds1"] = d["len"] * d["n0"], d["n0"] * d["ds0"] + r.num("DMA0_SKIP1", "addr")
        return Task(self.cmd.name, "", self.where, self.cmd.offset, dma=d)


def build(stream: Stream) -> list[Task | Command]:
    """Tasks in stream order; waits, branches and OP_STOP stay commands.

    Registers are frozen in stream order. Where a branch leads or leaves they could hold other values at run time, so
    there the register file starts empty again, and an operation that relies on an older write is refused.
    """
    values: dict[str, dict[str, Value]] = {}
    targets = {stream.start + int(c.fields["target"]) for c in stream.commands if c.name == "OP_BRANCH"}
    out: list[Task | Command] = []
    for cmd in stream.commands:
        if cmd.offset in targets:
            values = {}
        if not cmd.is_op:
            values[cmd.name] = cmd.fields
            continue
        b = Builder(stream.arch, values, cmd)
        if cmd.name in ("OP_CONV", "OP_DEPTHWISE"):
            out.append(b.conv())
        elif cmd.name == "OP_POOL":
            out.append(b.pool())
        elif cmd.name == "OP_ELEMENTWISE":
            out.append(b.elementwise())
        elif cmd.name == "OP_RESIZE":
            out.append(b.resize())
        elif cmd.name == "OP_DMA_START":
            out.append(b.transfer())
        else:
            out.append(cmd)
            if cmd.name == "OP_BRANCH":
                values = {}
    return out


def branch_targets(stream: Stream, tasks: list[Task | Command]) -> dict[Value, int]:
    """Index of the task that runs next, by the target field of a branch.

    Raises:
        DecodeError: A branch leads into the middle of a command or out of the stream.
    """
    entry: dict[Value, int] = {}
    starts = {c.offset for c in stream.commands}
    for cmd in stream.commands:
        if cmd.name == "OP_BRANCH":
            at = stream.start + int(cmd.fields["target"])
            if at not in starts:
                raise DecodeError(f"offset {cmd.offset:#x}: {cmd} leads to no command")
            entry[cmd.fields["target"]] = next(i for i, t in enumerate(tasks) if t.offset >= at)
    return entry


class Machine:
    """Registers are frozen in tasks; this holds what operations leave behind: LUT memory, chain buffers, accumulators."""

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
            out = out.transpose(_TRANSPOSE[t.transpose])
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
                return (pairs[i, 0] << 7) + pairs[i, 1] * frac
            return pairs[i, 0] + ((pairs[i, 1] * frac + 64) >> 7)
        kind = "u1" if a.table == "U8" and a.entry == 1 else f"<i{a.entry}"
        i = v if a.table == "U8" else v + 128
        if i.size and (int(i.min()) < 0 or int(i.max()) > 255):
            raise AccessError(f"{t.where}: a table index passes the 256 entries")
        return raw.view(kind).astype(np.int64)[i]

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
        for stored, source in enumerate(_TRANSPOSE[t.transpose]):
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
            total = np.zeros((n, ow, oc), dtype)
            tmp = np.empty_like(total)
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
        a = x.astype(kind) - kind(t.ifm.zp)
        b = y.astype(kind) - kind(t.ifm2.zp)
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
            v = {
                "AND": lambda: a & b,
                "OR": lambda: a | b,
                "XOR": lambda: a ^ b,
                "NOT": lambda: ~a,
                "AND_NOT": lambda: a & ~b,
            }[mode]()
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
            if at.size and (int(at.min()) < 0 or int(at.max()) + n > region.data.size):
                raise AccessError(
                    f"{t.where}: the {what} takes bytes {int(at.min()):#x}..{int(at.max()) + n:#x} of {region.name}, which has {region.data.size:#x}"
                )
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
    return ((at >= 0) & (at < size)).sum(1)


def _reciprocal(n: Array) -> tuple[Array, Array]:
    """Multiplier and shift with which the hardware divides a sum by ``n`` pixels."""
    n = n.astype(np.int64)
    e = np.frexp((n - 1).astype(np.float64))[1].astype(np.int64)
    scale = ((np.int64(1) << (31 + e)) + (np.int64(1) << e) + n - 1) // n
    return scale, 31 + e


def _wrap32(v: Array) -> Array:
    return (v & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def _clz32(v: Array) -> Array:
    v = v & 0xFFFFFFFF
    return 32 - np.frexp(v.astype(np.float64))[1].astype(np.int64)
