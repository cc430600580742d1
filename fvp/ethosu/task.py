"""Operations with everything they read from the register file.

The stream is walked once; each operation is frozen as a `Task` with the registers that are current when it is
issued. A register that was never written, a field value without meaning and a combination whose meaning is not
established are errors here, before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fvp.ethosu.arith import DOUBLE, NATURAL, SYMMETRIC, TO_LOWER, TO_ZERO, Array, rescale
from fvp.ethosu.decode import Arch, Command, Stream, Value
from fvp.ethosu.errors import DecodeError
from fvp.ethosu.memory import FeatureMap
from fvp.ethosu.weights import Order

_ROUND = {
    **{"NATURAL": NATURAL, "DBL": DOUBLE, "DOUBLE_SYMMETRIC": DOUBLE, "TRUNCATE": TO_ZERO, "TRUNCATE_TO_ZERO": TO_ZERO},
    **{"TRUNCATE_TO_LOWER": TO_LOWER, "SYMMETRIC": SYMMETRIC},
}
TRANSPOSE = {
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
        h, w, c = (shape[a] for a in TRANSPOSE[transpose])
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
            return self._activation85(function, lo, hi, bits, signed)
        if signed:
            lo, hi = _signed16(lo), _signed16(hi)
        if clip == "FORCE_INT8":
            lo, hi = max(lo, -128), min(hi, 127)
        elif clip == "FORCE_UINT8":
            lo, hi = max(lo, 0), min(hi, 255)
        limits: tuple[int | None, int | None] = (lo, hi)
        if bits == 32 and clip == "OFM_PRECISION":
            limits = None, None
        if function == "NONE":
            return Activation(*limits)
        slot = int(function.split("_")[1])
        if bits == 16:
            return Activation(*limits, table="S16", entry=2, at=slot * 256)
        return Activation(*limits, table="S8" if signed else "U8", entry=bits // 8, at=slot * 256)

    def _activation85(self, function: str, lo: int, hi: int, bits: int, signed: bool) -> Activation:
        signed = signed if function == "NONE" else function != "LUT_U8_U8"
        limits: tuple[int | None, int | None] = (None, None)
        if self.r.txt("ACTIVATION", "clip") == "B16":
            if signed and function == "NONE" and bits > 16 and hi > 32767:
                raise DecodeError(f"{self.where}: a 16-bit clamp of a {bits}-bit result at {hi} is not modelled")
            limits = (_signed16(lo), _signed16(hi)) if signed else (lo, hi)
        if function == "NONE":
            return Activation(*limits)
        size = _LUT85[function]
        _, index, value = function.split("_")
        entry = {"U8": 1, "S8": 1, "S16": 2, "S32": 4}[value]
        return Activation(*limits, table=index, entry=entry, at=self.r.num("ACTIVATION", "table") * size)

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


def _signed16(v: int) -> int:
    return (v ^ 0x8000) - 0x8000


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
