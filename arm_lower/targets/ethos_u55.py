"""What Ethos-U55 and Ethos-U65 accept: the sections "Ethos-U55 and Ethos-U65 TOSA" of Vela 5.2's SUPPORTED_OPS.md.

Every row was tried on Vela with a graph on each side of the limit (tests/targets). Where Vela accepts more than its
document, the row follows Vela if Vela visibly splits the operator into legal ones, and follows the document if the
value would merely be written into a register that the hardware documentation limits (``refused=False``).
"""

from __future__ import annotations

from dataclasses import replace

from arm_lower.targets.rules import Limits, Row

_U85 = "Ethos-U85 has it"
_AXIS = 1 << 16
_CONV = ("CONV2D", "DEPTHWISE_CONV2D")
_KERNEL = (*_CONV, "TRANSPOSE_CONV2D")
_POOL = ("AVG_POOL2D", "MAX_POOL2D")
_MOVES = ("CONCAT", "RESHAPE", "SLICE", "TILE", "PAD", "TRANSPOSE")
_WHOLE = ("int8", "int16", "int32")

_ABSENT = {
    "BITWISE_AND": _U85,
    "BITWISE_OR": _U85,
    "BITWISE_XOR": _U85,
    "BITWISE_NOT": _U85,
    "INTDIV": _U85,
    "LOGICAL_AND": _U85,
    "LOGICAL_RIGHT_SHIFT": "ARITHMETIC_RIGHT_SHIFT with rounding is there; " + _U85,
    "LOGICAL_OR": _U85,
    "LOGICAL_XOR": _U85,
    "LOGICAL_NOT": _U85,
    "SELECT": "MAXIMUM, MINIMUM or a table may say the same; " + _U85,
    "EQUAL": _U85,
    "GREATER": _U85,
    "GREATER_EQUAL": _U85,
    "REDUCE_ALL": _U85,
    "REDUCE_ANY": _U85,
    "GATHER": "indices known at compile time become slices; " + _U85,
    "SCATTER": _U85,
}

PADDING = (
    # Vela 5.2 writes the padding into registers of 7 and 8 bits without a look: 128 becomes 0. Seen on all families.
    Row((*_CONV, "MAX_POOL2D"), "padding at the top or left", "not in the document", high=127, refused=False,
        hint="pad with an operator of its own"),
    Row((*_CONV, "MAX_POOL2D"), "padding at the bottom or right", "not in the document", high=255, refused=False,
        hint="pad with an operator of its own"),
)

SPLITS = (
    # Vela 5.2 makes several operators of these, of which some have no input and read beside it. Seen on all families.
    Row(_CONV, "phases of the dilation without input", "not in the document", high=0, refused=False,
        hint="write the zeros of the dilation into the kernel"),
    Row(_CONV, "rows that read only padding", "not in the document", high=0, refused=False,
        hint="pad with an operator of its own"),
)

_ROWS = (
    *SPLITS,
    # -- elementwise
    Row(("ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT"), "data type", "DataTypes: int32 only", allowed=("int32",),
        hint="RESCALE to int32 first"),
    Row(("ARITHMETIC_RIGHT_SHIFT",), "rounding", "Round: true only", allowed=(True,), refused=False,
        hint="the hardware always rounds"),
    # TABLE: the document says int8 only, Vela 5.2 takes int16 as well (six operations, slow): no row.
    # -- pooling. "Tensor axis: N=1" of AVG_POOL2D: Vela splits the batch. Strides above 3: one operation for each
    # output pixel, and only without padding.
    Row(_POOL, "padding", "Kernel stride: 1 <= stride <= 3; Vela splits larger strides without padding", high=0,
        when="stride > 3", hint="pad with an operator of its own, or use a stride of at most 3"),
    Row(("AVG_POOL2D",), "kernel size", "IF padding is used: 1 <= kernel_x <= 8 and 1 <= kernel_y <= 8", high=8,
        when="padded", hint="pad with an operator of its own if padding counts, or pool without padding"),
    Row(("AVG_POOL2D",), "kernel height * width", "ELSE: 1 <= kernel_x*kernel_y <= 65536", high=_AXIS,
        when="not padded", refused=False, hint="pool in two steps"),
    Row(("MAX_POOL2D",), "kernel height * width", "1 <= kernel_x*kernel_y <= 65536", high=_AXIS, refused=False,
        hint="pool in two steps"),
    Row(_POOL, "kernel height", "1 <= kernel_y <= 256", high=256, refused=False, hint="pool in two steps"),
    Row(_POOL, "height or width", "HWC in range 1..65536", high=_AXIS, refused=False,
        hint="fold a part of the long axis into the other"),
    Row(_POOL, "input channels", "HWC in range 1..65536", high=_AXIS),
    # -- convolution. DEPTHWISE_CONV2D is missing from the document; Vela treats it like CONV2D but for the stride.
    Row(_CONV, "data types", "(i8_t,i8_t,i32_t), (i8_t,i4_t,i32_t), (i16_t,i8_t,i48_t)",
        allowed=("int8 x int8", "int8 x int4", "int16 x int8")),
    # int16 is only supported if followed by RESCALE: a rule of the graph, which Vela itself tells.
    Row(_KERNEL, "constant weights", "not in the document: Vela refuses weights or a bias computed at run time",
        allowed=(True,), hint="MATMUL takes two computed operands"),
    Row(("CONV2D",), "padding", "Kernel stride: 1 <= stride <= 3; Vela splits larger strides without padding", high=0,
        when="stride > 3", hint="pad with an operator of its own, or fold the stride into channels"),
    Row(("CONV2D",), "dilation", "Kernel stride: 1 <= stride <= 3; Vela splits larger strides without dilation", high=1,
        when="stride > 3"),
    Row(("DEPTHWISE_CONV2D",), "stride", "Kernel stride: 1 <= stride <= 3", high=3,
        hint="a smaller stride followed by a slice, or the stride folded into channels"),
    Row(_CONV, "kernel height", "1 <= kernel_y <= 64", high=64, refused=False,
        hint="lay the long axis along the width"),
    Row(_CONV, "kernel height * width", "1 <= kernel_x*kernel_y <= 4096", high=4096, refused=False,
        hint="split the kernel and add the parts"),
    Row(_CONV, "input channels", "C in range 1..65536", high=_AXIS, hint="split the channels and add the parts"),
    Row(("CONV2D", "TRANSPOSE_CONV2D"), "sum of absolute weights", "Sum of absolute weights must not exceed 127*65536",
        high=127 * 65536, refused=False, hint="split the channels and add the parts"),
    Row(_CONV, "bits of the bias", "Bias must fit in signed int40", high=40, refused=False),
    # -- transposed convolution
    Row(("TRANSPOSE_CONV2D",), "data types", "(i8_t,i8_t,i32_t), (i8_t,i4_t,i32_t); Vela refuses int16 in every form",
        allowed=("int8 x int8", "int8 x int4"), hint="write it as convolutions of stride 1 and a CONCAT"),
    Row(("TRANSPOSE_CONV2D",), "stride (y, x)", "(1,1), (2,2); (1,2) and (2,1) only along an axis of size 1",
        allowed=("(1, 1)", "(2, 2)"), hint="write it as convolutions of stride 1 and a CONCAT"),
    Row(("TRANSPOSE_CONV2D",), "kernel height", "1 <= kernel_y <= 64", high=64, refused=False),
    Row(("TRANSPOSE_CONV2D",), "kernel height * width", "1 <= kernel_x*kernel_y <= 4096", high=4096, refused=False),
    Row(("TRANSPOSE_CONV2D",), "input channels", "HWC in range 1..65536", high=_AXIS),
    Row(("TRANSPOSE_CONV2D",), "output channels", "HWC in range 1..65536", high=_AXIS, refused=False),
    Row(("TRANSPOSE_CONV2D",), "height or width", "HWC in range 1..65536", high=_AXIS, refused=False),
    # -- matrix product
    Row(("MATMUL",), "data types", "(i8_t, i8_t, i32_t)", allowed=("int8 x int8",), hint="int8 operands; " + _U85),
    Row(("MATMUL",), "inner size", "WC in range 1..65536", high=_AXIS, hint="split it and add the parts"),
    Row(("MATMUL",), "columns", "WC in range 1..65536", high=_AXIS, hint="split the columns"),
    # -- resize. Bilinear wants a RESCALE by 2^-n with multiplier 1, which is not legal TOSA: no legal form compiles.
    # Vela's code for unequal factors doubles both axes each time and is wrong, so they count as "other".
    Row(("RESIZE",), "mode", "Bilinear mode must be followed by RESCALE with scale=1", allowed=("nearest",),
        hint="write it as two 1x1 convolutions; " + _U85),
    Row(("RESIZE",), "up-scaling", "Upscale must be power-of-two in range 2x..8x; of these forms only",
        allowed=tuple(f"{form} x{n}" for form in ("half-pixel", "align-corners") for n in (2, 4, 8)),
        hint="repeat the channels with a 1x1 convolution and reshape; " + _U85),
    Row(("RESIZE",), "batch", "not in the document", high=1, hint="resize each image by itself"),
    # -- data movement
    Row(_MOVES, "data type", "DataTypes: INT8, INT16, INT32", allowed=_WHOLE, hint="Ethos-U85 moves bool"),
    Row(("IDENTITY",), "data type", "INT8->INT8, INT16->INT16, INT32->INT32, INT48->INT48", allowed=(*_WHOLE, "int48")),
    Row(("REVERSE",), "data type", "INT8->INT8 and INT16->INT16; Vela compiles int32, refuses bool", allowed=_WHOLE[:2],
        refused=False),
    Row(("REVERSE",), "axis from the end", "Only W-axis and H-axis reverse are supported; Vela refuses only channels",
        low=-3, high=-2, hint="reshape so that the axis is the height or the width"),
    Row(("CAST",), "data types in and out", "Any PRO-INT combination if bool is not used; down-casting from int32 is "
        "not supported (Vela compiles it)", hint="a RESCALE saturates where the CAST would wrap",
        allowed=("int8 -> int16", "int8 -> int32", "int16 -> int8", "int16 -> int32")),
    Row(("TRANSPOSE",), "largest axis or plane", "(H, W, C) <= 2^16; of more axes the product of any N-2", high=_AXIS,
        when="int8 or int16", hint="split the tensor, or keep the layout"),
    Row(("TRANSPOSE",), "rank", "IF IFM is Int32: Rank must be <= 4", high=4, when="int32", refused=False),
    Row(("TRANSPOSE",), "permutation", "IF IFM is Int32: NHWC, NWHC, NHCW, NCWH", when="int32", refused=False,
        allowed=("NHWC", "NWHC", "NHCW", "NCWH"), hint="transpose before the RESCALE to int32"),
    Row(("TRANSPOSE",), "channels", "NHWC: C <= 2^15", high=1 << 15, when="int32 NHWC", refused=False),
    Row(("TRANSPOSE",), "N", "NWHC, NCWH: N == 1", high=1, when="int32 NWHC or NCWH", refused=False),
    Row(("TRANSPOSE",), "H or W", "NWHC, NCWH: H <= 2^16, W <= 2^16", high=_AXIS, when="int32 NWHC or NCWH"),
    Row(("TRANSPOSE",), "channels", "NWHC, NCWH: C <= 2^14; Vela refuses it for NWHC", high=1 << 14,
        when="int32 NWHC or NCWH"),
    Row(("TRANSPOSE",), "N * H", "NHCW: N*H <= 2^16", high=_AXIS, when="int32 NHCW"),
    Row(("TRANSPOSE",), "W or C", "NHCW: W <= 2^16, C <= 2^16", high=_AXIS, when="int32 NHCW"),
    # -- reductions
    Row(("ARGMAX",), "data type", "not in the document: Vela refuses int16", allowed=("int8",)),
    Row(("ARGMAX",), "axis from the end", "Reduction axis must be channel", allowed=(-1,),
        hint="transpose so that the axis is the last one"),
    Row(("ARGMAX",), "size of the axis", "C in range 1..127", high=127, hint=_U85),
    Row(("ARGMAX",), "batch", "N=1", high=1),
    Row(("ARGMAX",), "height * width", "W*H in range 1..65536", high=_AXIS, refused=False),
    Row(("REDUCE_MAX", "REDUCE_MIN"), "data type", "INT8->INT8 and INT16->INT16", allowed=_WHOLE[:2],
        hint="reduce before the RESCALE to int32"),
    Row(("REDUCE_SUM",), "size of the axis", "Reduced axis must be in range 1..65536", high=_AXIS,
        when="not over channels", hint="reduce in two steps"),
    Row(("REDUCE_SUM",), "size before the axis", "product of axes before the reduced axis <= 65536", high=_AXIS,
        when="not over channels", hint="transpose so that the axis is the last one, or reduce in two steps"),
    Row(("REDUCE_SUM",), "size after the axis", "product of axes after the reduced axis <= 65536", high=_AXIS,
        when="not over channels", hint="transpose so that the axis is the last one, or reduce in two steps"),
)

LIMITS = Limits("Ethos-U55", _ABSENT, (*PADDING, *_ROWS))
LIMITS_U65 = replace(LIMITS, name="Ethos-U65")
