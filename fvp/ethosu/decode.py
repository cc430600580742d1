"""From a driver payload to named commands.

The encodings are those of Vela 5.2's interface headers, in which every field of every command of Ethos-U55/U65
(one header) and Ethos-U85 has a place. Nothing is guessed: an unknown opcode, a field value without a meaning or a
reserved bit that is set raises `DecodeError` with the byte offset, the words and the opcode.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from fvp.ethosu.errors import DecodeError

Value = int | str

_ENUMS: dict[str, tuple[str, ...]] = {
    # "-" marks a code without meaning.
    "fmt": ("NHWC", "NHCWB16"),
    "up": ("NONE", "NEAREST", "ZEROS"),
    "opscale": ("OPA_OPB_16", "OPA_32", "OPB_32"),
    "round55": ("DBL", "TRUNCATE", "NATURAL"),
    "scalemode": ("PER_CHANNEL", "GLOBAL"),
    "acc55": ("I32", "I40", "F16"),
    "clip55": ("OFM_PRECISION", "-", "FORCE_UINT8", "FORCE_INT8", "-", "FORCE_INT16"),
    "act55": ("NONE", "-", "-", "TANH", "SIGMOID", *["-"] * 11, *(f"TABLE_{i}" for i in range(8))),
    "pool55": ("MAX", "AVERAGE", "REDUCE_SUM"),
    "ew55": ("MUL", "ADD", "SUB", "MIN", "MAX", "LRELU", "ABS", "CLZ", "SHR", "SHL"),
    "order": ("DEPTH_FIRST", "PART_KERNEL_FIRST"),
    "decomp": ("D8X8", "D4X4"),
    "parallel": ("SINGLE_CORE", "DUAL_CORE_DEPTH"),
    "rmode": ("EXTERNAL", "INTERNAL"),
    "stride": ("D1", "D2", "D3"),
    "onoff": ("DISABLED", "ENABLED"),
    "storage": ("TILE2X2", "TILE3X1", "CHAINED", "NONE"),
    "reverse": ("NONE", "H", "W", "C"),
    "transpose": ("HWC", "WHC", "HCW", "WCH", "-", "-", "CHW", "CWH"),
    "pool85": ("MAX", "AVERAGE", "REDUCE_SUM", "SUM", "NONE", "MIN", "ARGMAX_X", "ARGMAX_Y"),
    "ew85": (
        *("MUL", "ADD", "SUB", "MIN", "MAX", "LRELU", "ABS", "CLZ", "SHR", "SHL", "LSR", "DIV", "-", "-", "-", "-"),
        *("CMP_EQ", "CMP_NE", "CMP_GE", "CMP_GT"),
        *["-"] * 13,
        *("AND", "OR", "XOR", "NOT", "-", "-", "-", "-", "-", "AND_NOT"),
    ),
    "resize": ("BILINEAR", "REPLICATE", "NEAREST"),
    "act85": (
        *("NONE", "LUT_U8_U8", "-", "-", "LUT_S8_S8", "LUT_S8_S16", "-", "LUT_S8_S32", "LUT_S16_S16", "LUT_S16_S32"),
        *("TANH", "SIGMOID"),
    ),
    "clip85": ("B16", "NONE"),
    "acc85": ("I32", "I48"),
    "accin": ("RESET", "KEEP", "IFM2"),
    "accout": ("ENABLE", "DISABLE"),
    "ublock": ("1X1", "1X2", "1X4", "2X2", "2X4", "4X4"),
    "wformat": ("SWD", "FWD"),
    "sparsity": ("NONE", "SPARSE_2_4"),
    "rifm": ("DOUBLE_SYMMETRIC", "NATURAL"),
    "rofm": (
        *("DOUBLE_SYMMETRIC", "NATURAL", "DOUBLE_ASYMMETRIC", "SYMMETRIC", "TRUNCATE_TO_ZERO", "TRUNCATE_TO_LOWER"),
    ),
    "branch": ("ALWAYS", "RF_TRUE"),
}

# One command a line: [0|1] opcode name field:bit:width[:kind]. Bits count from the parameter half of the first word
# (0..15) and go on in the payload word of a CMD1 (16..47). Kinds: an enumeration above, "s" signed, "bits" the
# precision code 8/16/32/64, "addr"/"saddr" the 40-bit (signed) address whose top byte sits in the parameter.
_BOTH = """
0 000 OP_STOP mask:0:16
0 001 OP_IRQ mask:0:16
0 003 OP_DEPTHWISE
0 010 OP_DMA_START
0 013 OP_PMU_MASK enable:0:1
0 100 IFM_PAD_TOP pad:0:7
0 101 IFM_PAD_LEFT pad:0:7
0 102 IFM_PAD_RIGHT pad:0:8
0 103 IFM_PAD_BOTTOM pad:0:8
0 104 IFM_DEPTH_M1 n:0:16
0 107 IFM_UPSCALE mode:0:2:up
0 109 IFM_ZERO_POINT zp:0:16
0 10a IFM_WIDTH0_M1 n:0:16
0 10b IFM_HEIGHT0_M1 n:0:16
0 10c IFM_HEIGHT1_M1 n:0:16
0 10f IFM_REGION region:0:3
0 111 OFM_WIDTH_M1 n:0:16
0 112 OFM_HEIGHT_M1 n:0:16
0 113 OFM_DEPTH_M1 n:0:16
0 118 OFM_ZERO_POINT zp:0:16
0 11a OFM_WIDTH0_M1 n:0:16
0 11b OFM_HEIGHT0_M1 n:0:16
0 11c OFM_HEIGHT1_M1 n:0:16
0 11f OFM_REGION region:0:3
0 120 KERNEL_WIDTH_M1 n:0:16
0 121 KERNEL_HEIGHT_M1 n:0:16
0 122 KERNEL_STRIDE sx_lsb:0:1 sy_lsb:1:1 order:2:1:order dx_m1:3:1 dy_m1:4:1 decomposition:5:1:decomp sx_msb:6:1 \
sy_msb:9:1
0 126 ACTIVATION_MIN value:0:16
0 127 ACTIVATION_MAX value:0:16
0 128 WEIGHT_REGION region:0:3
0 129 SCALE_REGION region:0:3
0 132 DMA0_SIZE0 n:0:16
0 133 DMA0_SIZE1 n:0:16
0 189 IFM2_ZERO_POINT zp:0:16
0 18a IFM2_WIDTH0_M1 n:0:16
0 18b IFM2_HEIGHT0_M1 n:0:16
0 18c IFM2_HEIGHT1_M1 n:0:16
0 18f IFM2_REGION region:0:3
1 000 IFM_BASE0 addr:0:8:addr
1 001 IFM_BASE1 addr:0:8:addr
1 002 IFM_BASE2 addr:0:8:addr
1 003 IFM_BASE3 addr:0:8:addr
1 004 IFM_STRIDE_X addr:0:8:saddr
1 005 IFM_STRIDE_Y addr:0:8:saddr
1 006 IFM_STRIDE_C addr:0:8:saddr
1 010 OFM_BASE0 addr:0:8:addr
1 011 OFM_BASE1 addr:0:8:addr
1 012 OFM_BASE2 addr:0:8:addr
1 013 OFM_BASE3 addr:0:8:addr
1 014 OFM_STRIDE_X addr:0:8:saddr
1 015 OFM_STRIDE_Y addr:0:8:saddr
1 016 OFM_STRIDE_C addr:0:8:saddr
1 020 WEIGHT_BASE addr:0:8:addr
1 021 WEIGHT_LENGTH n:16:32
1 022 SCALE_BASE addr:0:8:addr
1 023 SCALE_LENGTH n:16:20
1 030 DMA0_SRC addr:0:8:addr
1 031 DMA0_DST addr:0:8:addr
1 032 DMA0_LEN addr:0:8:addr
1 080 IFM2_BASE0 addr:0:8:addr
1 081 IFM2_BASE1 addr:0:8:addr
1 082 IFM2_BASE2 addr:0:8:addr
1 083 IFM2_BASE3 addr:0:8:addr
1 084 IFM2_STRIDE_X addr:0:8:saddr
1 085 IFM2_STRIDE_Y addr:0:8:saddr
1 086 IFM2_STRIDE_C addr:0:8:saddr
1 090 WEIGHT1_BASE addr:0:8:addr
1 091 WEIGHT1_LENGTH n:16:32
"""
_U55_U65 = """
0 002 OP_CONV
0 005 OP_POOL mode:0:3:pool55
0 006 OP_ELEMENTWISE mode:0:6:ew55
0 011 OP_DMA_WAIT k:0:1
0 012 OP_KERNEL_WAIT n:0:2
0 105 IFM_PRECISION signed:0:1 bits:2:2:bits format:6:2:fmt scale_mode:8:2:opscale round:14:2:round55
0 10d IFM_IB_END n:0:6
0 114 OFM_PRECISION signed:0:1 bits:1:2:bits format:6:2:fmt scale_mode:8:1:scalemode round:14:2:round55
0 115 OFM_BLK_WIDTH_M1 n:0:6
0 116 OFM_BLK_HEIGHT_M1 n:0:5
0 117 OFM_BLK_DEPTH_M1 n:0:7
0 124 ACC_FORMAT format:0:2:acc55
0 125 ACTIVATION function:0:5:act55 clip:12:3:clip55
0 12d AB_START n:0:6
0 12f BLOCKDEP n:0:2
0 130 DMA0_SRC_REGION region:0:3 mode:8:1:rmode stride:9:2:stride
0 131 DMA0_DST_REGION region:0:3 mode:8:1:rmode stride:9:2:stride
0 180 IFM2_BROADCAST h:0:1 w:1:1 c:2:1 swapped:6:1 scalar:7:1
0 181 IFM2_SCALAR value:0:16
0 185 IFM2_PRECISION signed:0:1 bits:2:2:bits format:6:2:fmt
0 18d IFM2_IB_START n:0:6
1 024 OFM_SCALE shift:0:6 scale:16:32
1 025 OPA_SCALE shift:0:6 scale:16:32
1 026 OPB_SCALE scale:16:16
"""
_U65 = """
0 123 PARALLEL_MODE mode:0:1:parallel
1 033 DMA0_SKIP0 addr:0:8:saddr
1 034 DMA0_SKIP1 addr:0:8:saddr
1 092 SCALE1_BASE addr:0:8:addr
1 093 SCALE1_LENGTH n:16:20
"""
_U85 = """
0 002 OP_CONV weights_ifm2:0:1
0 005 OP_POOL mode:0:3:pool85
0 006 OP_ELEMENTWISE mode:0:6:ew85
0 007 OP_RESIZE mode:0:2:resize
0 011 OP_DMA_WAIT k:0:2
0 012 OP_KERNEL_WAIT n:0:1
0 105 IFM_PRECISION signed:0:1 bits:2:2:bits format:6:2:fmt storage:14:2:storage
0 108 IFM_BROADCAST h:0:1 w:1:1 c:2:1 scalar:3:1
0 114 OFM_PRECISION signed:0:1 bits:1:2:bits format:6:2:fmt scale_mode:8:1:scalemode reverse:9:2:reverse \
transpose:11:3:transpose storage:14:2:storage
0 115 OFM_BLK_WIDTH_M1 n:0:7
0 116 OFM_BLK_HEIGHT_M1 n:0:7
0 117 OFM_BLK_DEPTH_M1 n:0:10
0 124 ACC_FORMAT format:0:2:acc85 input:4:2:accin output:6:1:accout microblock:8:3:ublock
0 125 ACTIVATION function:0:5:act85 table:5:3 clip:12:1:clip85
0 12a RESIZE_X_SCALE_N_M1 n:0:11
0 12b RESIZE_Y_SCALE_N_M1 n:0:11
0 12c RESIZE_X_OFFSET n:0:12:s
0 12d RESIZE_Y_OFFSET n:0:12:s
0 12e WEIGHT_FORMAT format:0:1:wformat sparsity:4:1:sparsity
0 12f BLOCKDEP n:0:3
0 130 DMA0_SRC_REGION region:0:3 mode:8:1:rmode stride:9:2:stride idx:11:1:onoff
0 131 DMA0_DST_REGION region:0:3 mode:8:1:rmode idx:11:1:onoff
0 134 DMA0_IDX_REGION region:0:3
0 180 IFM2_BROADCAST h:0:1 w:1:1 c:2:1 scalar:3:1
0 185 IFM2_PRECISION signed:0:1 bits:2:2:bits format:6:2:fmt storage:14:2:storage
1 024 OFM_SCALE shift:0:6 dbl_rnd:6:5 round:13:3:rofm scale:16:31
1 025 IFM_SCALE shift:0:6 dbl_rnd:6:5 round:13:1:rifm scale:16:31
1 026 IFM2_SCALE shift:0:6 dbl_rnd:6:5 round:13:1:rifm scale:16:31
1 027 OP_SCALAR value:16:32:s
1 033 DMA0_SRC_STRIDE0 addr:0:8:saddr
1 034 DMA0_SRC_STRIDE1 addr:0:8:saddr
1 035 DMA0_DST_STRIDE0 addr:0:8:saddr
1 036 DMA0_DST_STRIDE1 addr:0:8:saddr
1 037 DMA0_IDX addr:0:8:addr
1 038 DMA0_IDX_MAX n:16:31
1 039 DMA0_IDX_SKIP1 addr:0:8:saddr
1 092 WEIGHT2_BASE addr:0:8:addr
1 093 WEIGHT2_LENGTH n:16:32
1 094 WEIGHT3_BASE addr:0:8:addr
1 095 WEIGHT3_LENGTH n:16:32
1 096 RESIZE_X_STEP one_int:0:4 blk_int:4:11 one_mod:16:11 blk_mod:32:11
1 097 RESIZE_Y_STEP one_int:0:4 blk_int:4:11 one_mod:16:11 blk_mod:32:11
1 100 OP_BRANCH cond:0:1:branch target:16:32
"""


@dataclass(frozen=True)
class Arch:
    """The accelerator that a payload was made for.

    Attributes:
        product: ``u55``, ``u65`` or ``u85``.
        macs: Multipliers, over all cores.
        cores: Weight streams a convolution reads at once.
        shram: KiB of internal memory over all cores (0 on U85, whose LUT memory is apart).
    """

    product: str
    macs: int
    cores: int
    shram: int

    @property
    def name(self) -> str:
        return f"ethos-{self.product}-{self.macs}"

    @property
    def lut_base(self) -> int:
        """DMA address of LUT slot 0 in internal memory."""
        return 0 if self.product == "u85" else self.shram // (self.cores or 1) * 1024 - 2048


@dataclass(frozen=True)
class Command:
    """One command of the stream.

    Attributes:
        offset: Byte offset of its first word in the payload.
        name: Register or operation, for example ``IFM_BASE0`` or ``OP_CONV``.
        fields: Named fields, numbers or enumeration names.
        words: The raw words.
    """

    offset: int
    name: str
    fields: dict[str, Value]
    words: tuple[int, ...]

    @property
    def is_op(self) -> bool:
        return self.name.startswith("OP_") and self.name != "OP_SCALAR"

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.fields.items())])


@dataclass
class Stream:
    """A decoded payload.

    Attributes:
        arch: Accelerator named by the Config action.
        commands: In stream order; ends with ``OP_STOP``.
        start: Byte offset of the first command in the payload.
        actions: Driver actions in order, ``(byte offset, text)``.
    """

    arch: Arch
    commands: list[Command]
    start: int
    actions: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Layout:
    name: str
    fields: tuple[tuple[str, int, int, str], ...]
    used: int  # bits that belong to a field; all others must be zero


@cache
def _table(product: str) -> dict[tuple[int, int], _Layout]:
    text = _BOTH + {"u55": _U55_U65, "u65": _U55_U65 + _U65, "u85": _U85}[product]
    table = {}
    for line in text.replace("\\\n", "").split("\n"):
        if not line:
            continue
        ctrl, opcode, name, *tokens = line.split()
        fields, used = [], 0
        for token in tokens:
            parts = token.split(":")
            kind = parts[3] if len(parts) > 3 else ""
            bit, width = int(parts[1]), int(parts[2])
            fields.append((parts[0], bit, width, kind))
            used |= ((1 << width) - 1) << bit
            if kind in ("addr", "saddr"):
                used |= 0xFFFFFFFF << 16
        table[int(ctrl), int(opcode, 16)] = _Layout(name, tuple(fields), used)
    return table


def _value(raw: int, bit: int, width: int, kind: str) -> Value | None:
    if kind in ("addr", "saddr"):
        v = raw >> 16 | (raw & 0xFF) << 32
        return v - (1 << 40) if kind == "saddr" and v >> 39 else v
    v = raw >> bit & ((1 << width) - 1)
    if not kind:
        return v
    if kind == "s":
        return v - (1 << width) if v >> (width - 1) else v
    if kind == "bits":
        return 8 << v
    names = _ENUMS[kind]
    return names[v] if v < len(names) and names[v] != "-" else None


def decode_words(words: list[int], product: str, base: int = 0) -> list[Command]:
    """Decode a bare register command stream.

    Args:
        words: 32-bit words of the stream.
        product: ``u55``, ``u65`` or ``u85``.
        base: Byte offset of ``words[0]`` in its payload, for messages.

    Raises:
        DecodeError: Unknown opcode or field value, reserved bit set, or a stream that is cut off or has no OP_STOP.
    """
    table, out, i, n = _table(product), [], 0, len(words)
    while i < n:
        w, at = words[i], base + 4 * i
        ctrl, opcode = w >> 14 & 3, w & 0x3FF
        layout = table.get((ctrl, opcode))
        if layout is None or w >> 10 & 0xF:
            raise DecodeError(
                f"offset {at:#x}: word {w:#010x} (control {ctrl}, opcode {opcode:#05x}) is no command of {product}"
            )
        raw = w >> 16
        if ctrl:
            if i + 1 == n:
                raise DecodeError(f"offset {at:#x}: {layout.name} is cut off at the end of the stream")
            raw |= words[i + 1] << 16
        if raw & ~layout.used:
            raise DecodeError(
                f"offset {at:#x}: {layout.name} (opcode {opcode:#05x}, bits {raw:#x}) sets a reserved bit"
            )
        fields: dict[str, Value] = {}
        for name, bit, width, kind in layout.fields:
            v = _value(raw, bit, width, kind)
            if v is None:
                code = raw >> bit & ((1 << width) - 1)
                raise DecodeError(
                    f"offset {at:#x}: {layout.name} (opcode {opcode:#05x}): field {name} has the unknown value {code}"
                )
            fields[name] = v
        out.append(Command(at, layout.name, fields, tuple(words[i : i + 1 + (ctrl != 0)])))
        i += 1 + (ctrl != 0)
        if layout.name == "OP_STOP" and i == n:
            return out
    raise DecodeError(f"offset {base + 4 * n:#x}: the command stream ends without OP_STOP")


def _config(word: int, at: int) -> Arch:
    macs, product, shram = 1 << (word & 0xF), word >> 28, word >> 8 & 0xFF
    if product == 0 and macs in (32, 64, 128, 256):
        return Arch("u55", macs, 1, shram)
    if product == 1 and macs in (256, 512):
        return Arch("u65", macs, macs // 256, shram)
    if product == 2 and macs in (128, 256, 512, 1024, 2048):
        return Arch("u85", macs, {512: 2, 1024: 4, 2048: 4}.get(macs, 1), 0)
    raise DecodeError(
        f"offset {at:#x}: config word {word:#010x} (product {product}, {macs} MACs) is no Ethos-U55, U65 or U85"
    )


def decode(payload: bytes) -> Stream:
    """Decode a driver payload as Vela writes it into a ``.pte``.

    Args:
        payload: The ``command_stream`` of Vela's raw output: driver actions of format COP1 or COP2, which hold the
            accelerator's configuration and one register command stream.

    Raises:
        DecodeError: The payload is cut off, foreign, or holds anything that has no meaning.
    """
    if payload[:4] not in (b"COP1", b"COP2"):
        raise DecodeError(f"offset 0x0: the payload starts with {bytes(payload[:4])!r}, allowed is b'COP1' or b'COP2'")
    if len(payload) % 4:
        raise DecodeError(f"offset {len(payload):#x}: the payload is not a whole number of 32-bit words")
    words: list[int] = np.frombuffer(payload, "<u4").tolist()
    return _decode1(words) if payload[:4] == b"COP1" else _decode2(words)


def _decode1(words: list[int]) -> Stream:
    """'COP1', then tagged words: Config with two more, NOP, and one command stream."""
    arch: Arch | None = None
    stream: Stream | None = None
    actions: list[tuple[int, str]] = []
    i = 1
    while i < len(words):
        w, at = words[i], 4 * i
        kind, high, param = w & 0xFF, w >> 8 & 0xFF, w >> 16
        if high and kind != 2 or (param and kind == 5):
            raise DecodeError(f"offset {at:#x}: driver action {kind} (word {w:#010x}) sets a reserved bit")
        if kind == 1:
            if i + 2 >= len(words):
                raise DecodeError(f"offset {at:#x}: the Config action is cut off")
            arch = _config(words[i + 1], at + 4)
            actions.append((at, f"CONFIG {arch.name} config={words[i + 1]:#010x} id={words[i + 2]:#010x}"))
            i += 3
        elif kind == 2:
            length = param | high << 16
            if arch is None:
                raise DecodeError(f"offset {at:#x}: a command stream comes before the Config action")
            if stream is not None:
                raise DecodeError(f"offset {at:#x}: a second command stream")
            if i + 1 + length > len(words):
                left = len(words) - i - 1
                raise DecodeError(f"offset {at:#x}: a command stream of {length} words, {left} are left")
            actions.append((at, f"COMMAND_STREAM words={length}"))
            commands = decode_words(words[i + 1 : i + 1 + length], arch.product, at + 4)
            stream = Stream(arch, commands, at + 4, actions)
            i += 1 + length
        elif kind == 5:
            actions.append((at, "NOP"))
            i += 1
        else:
            raise DecodeError(f"offset {at:#x}: driver action {kind} (word {w:#010x}) is unknown or not supported")
    if stream is None:
        raise DecodeError("the payload holds no command stream")
    return stream


def _decode2(words: list[int]) -> Stream:
    """'COP2', version and 64-bit length; one entry with 'VEUM' metadata that names the accelerator."""
    if len(words) < 15:
        raise DecodeError(f"offset {4 * len(words):#x}: the COP2 header is cut off")
    total = words[2] | words[3] << 32
    kind, length, meta, tag, version, size, config, ident = *words[4:10], words[10], words[11]
    if words[1] != 1 or total != 4 * len(words) - 16:
        raise DecodeError(
            f"offset 0x4: COP2 version {words[1]:#x} with {total} bytes, the payload has {4 * len(words) - 16}"
        )
    if kind != 1 or length != total - 8:
        raise DecodeError(f"offset 0x10: entry {kind} of {length} bytes, allowed is one command stream of {total - 8}")
    if tag != 0x4D554556 or version != 1 or size != 20 or meta % 4 or meta < 32 or meta + 4 > length:
        raise DecodeError(
            f"offset 0x18: metadata of {meta} bytes (tag {tag:#x}, version {version:#x}, {size} bytes) is unknown"
        )
    arch = _config(config, 40)
    start = 6 + (4 + meta) // 4
    actions = [
        (16, f"CONFIG {arch.name} config={config:#010x} id={ident:#010x}"),
        (48, f"ADDRESSING features={words[12]:#x} staging={words[13] | words[14] << 32}"),
        (4 * start, f"COMMAND_STREAM words={len(words) - start}"),
    ]
    return Stream(arch, decode_words(words[start:], arch.product, 4 * start), 4 * start, actions)
