"""The exact message of every rule that infer() checks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tosa_cases import CONV, RESCALE

from arm_lower.errors import TosaError
from arm_lower.tosa.ir import Attr, DType, Tensor
from arm_lower.tosa.spec import infer

B, I4, I8, I16, I32, I48 = DType.BOOL, DType.INT4, DType.INT8, DType.INT16, DType.INT32, DType.INT48
Operand = tuple[tuple[int, ...], DType]
X = ((1, 5, 6, 3), I8)
W, BIAS = ((4, 3, 3, 3), I8), ((4,), I32)
POOL: dict[str, Attr] = dict(kernel=(2, 2), stride=(2, 2), pad=(0, 0, 0, 0))
DECONV: dict[str, Attr] = dict(out_pad=(0, 0, 0, 0), stride=(1, 1), input_zp=0, weight_zp=0)
SCALE: dict[str, Attr] = dict(scale=(4, 2, 4, 2), offset=(0, 0), border=(2, 2), mode="nearest")
AVG: dict[str, Attr] = {**POOL, "input_zp": 0, "output_zp": 0}

ROWS: list[tuple[str, list[Operand], Mapping[str, Attr], str]] = [
    # arity and attributes
    ("ADD", [((2,), I32)], {}, "1 inputs, allowed is 2 (a, b)"),
    ("ABS", [((2,), I32)] * 2, {}, "2 inputs, allowed is 1 (input)"),
    ("CONCAT", [], {"axis": 0}, "0 inputs, allowed is 1 or more (input*)"),
    ("ABS", [((2,), I32)], {"axis": 1}, "unknown attribute 'axis', allowed are none"),
    ("CLAMP", [((2,), I8)], {"min": 0}, "attribute 'max' is missing, needed are min, max"),
    ("CLAMP", [((2,), I8)], {"min": 0.5, "max": 1}, "min is 0.5, an int is needed"),
    ("CLAMP", [((2,), I8)], {"min": True, "max": 1}, "min is True, an int is needed"),
    ("ARITHMETIC_RIGHT_SHIFT", [((2,), I8)] * 2, {"round": 1}, "round is 1, a bool is needed"),
    ("TILE", [((2,), I8)], {"multiples": (1.0,)}, "multiples is (1.0,), a tuple of int is needed"),
    ("MAX_POOL2D", [X], {**POOL, "pad": (0, 0)}, "pad is (0, 0), 4 values are needed"),
    ("RESIZE", [X], {**SCALE, "mode": "cubic"}, "mode is 'cubic', allowed are nearest, bilinear"),
    # data types
    ("ADD", [((2,), I8)] * 2, {}, "data types int8, allowed are int32"),
    ("ADD", [((2,), I32), ((2,), I8)], {}, "b is int8, it must be int32 as a is"),
    ("CONCAT", [((2,), I8), ((2,), I16)], {"axis": 0}, "input[1] is int16, it must be int8 as input[0] is"),
    ("CONV2D", [X, ((4, 3, 3, 3), I16), BIAS], CONV,
     "data types int8 x int16 x int32, allowed are int8 x int8 x int32, int8 x int4 x int32, int16 x int8 x int48"),
    ("MATMUL", [((1, 2, 2), I8), ((1, 2, 2), I16)], {"a_zp": 0, "b_zp": 0},
     "data types int8 x int16, allowed are int8 x int8, int16 x int16"),
    ("RESCALE", [((2,), B)], RESCALE,
     "data types bool -> int8, allowed are int8 -> int8, int8 -> int16, int8 -> int32, int16 -> int8, int16 -> int16, "
     "int16 -> int32, int32 -> int8, int32 -> int16, int32 -> int32, int48 -> int8, int48 -> int16, int48 -> int32"),
    ("GATHER", [((1, 2, 3), B), ((1, 2), I32)], {},
     "data types bool x int32, allowed are int8 x int32, int16 x int32, int32 x int32"),
    ("CONV2D", [X, W, BIAS], {**CONV, "acc_type": "int48"}, "acc_type is int48, allowed for an int8 input is int32"),
    ("AVG_POOL2D", [X], {**AVG, "acc_type": "int48"}, "acc_type is 'int48', allowed are int32"),
    # ranks and sizes
    ("ABS", [((2, 0), I32)], {}, "input has shape [2, 0], every size must be at least 1"),
    ("CONV2D", [((5, 6, 3), I8), W, BIAS], CONV, "input has rank 3, allowed is 4 (shape [5, 6, 3])"),
    ("CONV2D", [X, W, ((1, 4), I32)], CONV, "bias has rank 2, allowed is 1 (shape [1, 4])"),
    ("REVERSE", [((), I8)], {"axis": 0}, "input has rank 0, allowed is 1 or more (shape [])"),
    ("ADD", [((2, 3), I32), ((3,), I32)], {},
     "a has rank 2 and b has rank 1, TOSA broadcasts only between equal ranks"),
    ("ADD", [((2, 3), I32), ((2, 2), I32)], {}, "shapes [2, 3] and [2, 2] do not broadcast at axis 1"),
    ("SELECT", [((1, 3), B), ((2, 3), I8), ((3, 3), I8)], {},
     "shapes [1, 3] and [2, 3] and [3, 3] do not broadcast at axis 0"),
    # axes
    ("REDUCE_SUM", [((2, 3), I32)], {"axis": 2}, "axis is 2, allowed is 0..1 for shape [2, 3]"),
    ("ARGMAX", [((2, 3), I8)], {"axis": -1}, "axis is -1, allowed is 0..1 for shape [2, 3]"),
    ("CONCAT", [((2, 3), I8), ((2, 4), I8)], {"axis": 0},
     "input[1] has shape [2, 4], it must be [2, 3] but for axis 0"),
    # convolutions
    ("CONV2D", [X, ((4, 3, 3, 2), I8), BIAS], CONV, "weight has 2 input channels, the input has 3"),
    ("CONV2D", [X, W, ((3,), I32)], CONV, "bias has 3 values, allowed is 1 or the 4 output channels"),
    ("CONV2D", [X, W, BIAS], {**CONV, "pad": (-1, 1, 1, 1)}, "pad is [-1, 1, 1, 1], every value must be at least 0"),
    ("CONV2D", [X, W, BIAS], {**CONV, "stride": (0, 1)}, "stride is [0, 1], every value must be at least 1"),
    ("CONV2D", [X, W, BIAS], {**CONV, "dilation": (1, 0)}, "dilation is [1, 0], every value must be at least 1"),
    ("CONV2D", [X, W, BIAS], {**CONV, "stride": (1, 2)},
     "width: padded input minus window is 5, which stride 2 does not divide; "
     "the padding must be trimmed until it does"),
    ("CONV2D", [X, W, BIAS], {**CONV, "dilation": (4, 1)},
     "the window is larger than the padded input along height by 2"),
    ("CONV2D", [X, W, BIAS], {**CONV, "input_zp": 128}, "input_zp is 128, allowed is -128..127"),
    ("CONV2D", [X, ((4, 3, 3, 3), I4), BIAS], {**CONV, "weight_zp": 1}, "weight_zp is 1, allowed for int4 is 0"),
    ("CONV2D", [((1, 5, 6, 3), I16), W, ((4,), I48)], {**CONV, "acc_type": "int48", "input_zp": 1},
     "input_zp is 1, allowed for int16 is 0"),
    ("DEPTHWISE_CONV2D", [X, ((3, 3, 4, 1), I8), BIAS], CONV, "weight has 4 channels, the input has 3"),
    ("DEPTHWISE_CONV2D", [X, ((3, 3, 3, 2), I8), ((3,), I32)], CONV,
     "bias has 3 values, allowed is 1 or the 6 output channels"),
    ("TRANSPOSE_CONV2D", [X, ((4, 3, 3, 2), I8), BIAS], DECONV, "weight has 2 input channels, the input has 3"),
    ("TRANSPOSE_CONV2D", [X, W, BIAS], {**DECONV, "out_pad": (-3, 0, 0, 0)},
     "out_pad is [-3, 0, 0, 0], every pad must be more than minus the kernel [3, 3]"),
    ("TRANSPOSE_CONV2D", [((1, 1, 1, 3), I8), W, BIAS], {**DECONV, "out_pad": (-2, -2, 0, 0)},
     "the output would be -1 x 3"),
    ("MATMUL", [((1, 2, 3), I8), ((2, 3, 4), I8)], {"a_zp": 0, "b_zp": 0}, "a has 1 batches, b has 2"),
    ("MATMUL", [((1, 2, 3), I8), ((1, 2, 4), I8)], {"a_zp": 0, "b_zp": 0}, "a has 3 columns, b has 2 rows"),
    ("MATMUL", [((1, 2, 3), I16), ((1, 3, 4), I16)], {"a_zp": 1, "b_zp": 0}, "a_zp is 1, allowed for int16 is 0"),
    # pools
    ("MAX_POOL2D", [X], {**POOL, "pad": (2, 0, 0, 0)},
     "pad is [2, 0, 0, 0], every pad must be smaller than the kernel [2, 2]"),
    ("MAX_POOL2D", [X], {**POOL, "kernel": (0, 2)}, "kernel is [0, 2], every value must be at least 1"),
    ("MAX_POOL2D", [X], POOL,
     "height: padded input minus window is 3, which stride 2 does not divide; "
     "the padding must be trimmed until it does"),
    ("AVG_POOL2D", [((1, 4, 4, 3), I16)], {**AVG, "output_zp": 2}, "output_zp is 2, allowed for int16 is 0"),
    # values
    ("MUL", [((2,), I8)] * 2, {"shift": 1}, "shift is 1, allowed for int8 is 0"),
    ("MUL", [((2,), I32)] * 2, {"shift": 64}, "shift is 64, allowed for int32 is 0..63"),
    ("CLAMP", [((2,), I8)], {"min": 3, "max": 2}, "min 3 is more than max 2"),
    ("CLAMP", [((2,), I8)], {"min": -129, "max": 2}, "min..max is -129..2, allowed for int8 is -128..127"),
    ("TABLE", [((2,), I8), ((255,), I8)], {}, "table has shape [255], allowed for int8 is [256]"),
    ("TABLE", [((2,), I16), ((256,), I16)], {}, "table has shape [256], allowed for int16 is [513]"),
    ("NEGATE", [((2,), I32)], {"input1_zp": 1, "output_zp": 0}, "input1_zp is 1, allowed for int32 is 0"),
    # layout
    ("PAD", [((2, 3), I8)], {"padding": (1, 1), "pad_const": 0}, "padding has 2 values, allowed is 4 for rank 2"),
    ("PAD", [((2,), I8)], {"padding": (1, -1), "pad_const": 0}, "padding is [1, -1], every value must be at least 0"),
    ("PAD", [((2,), I8)], {"padding": (1, 1), "pad_const": 128}, "pad_const is 128, allowed for int8 is -128..127"),
    ("PAD", [((2,), B)], {"padding": (1, 1), "pad_const": 2}, "pad_const is 2, allowed for bool is 0..1"),
    ("RESHAPE", [((2, 3), I8)], {"shape": (4, 2)}, "shape [4, 2] has 8 elements, the input [2, 3] has 6"),
    ("RESHAPE", [((2, 3), I8)], {"shape": (-1, 2)}, "shape is [-1, 2], every value must be at least 1"),
    ("SLICE", [((2, 3), I8)], {"start": (0,), "size": (1,)},
     "start has 1 and size has 1 values, allowed is 2 for rank 2"),
    ("SLICE", [((2, 3), I8)], {"start": (0, 2), "size": (1, 2)},
     "start 2 plus size 2 is more than the 3 elements of axis 1"),
    ("SLICE", [((2, 3), I8)], {"start": (0, 0), "size": (1, 0)}, "size is [1, 0], every value must be at least 1"),
    ("TILE", [((2, 3), I8)], {"multiples": (2,)}, "multiples has 1 values, allowed is 2 for rank 2"),
    ("TRANSPOSE", [((2, 3), I8)], {"perms": (0, 0)}, "perms is [0, 0], allowed is a permutation of 0..1"),
    # gather, scatter, resize
    ("GATHER", [((1, 2, 3), I8), ((2, 2), I32)], {}, "values has 1 batches, indices has 2"),
    ("SCATTER", [((1, 4, 3), I8), ((1, 2), I32), ((1, 2, 2), I8)], {},
     "input has shape [1, 2, 2], allowed is [1, 2, 3]"),
    ("SCATTER", [((1, 1, 3), I8), ((1, 2), I32), ((1, 2, 3), I8)], {},
     "indices has 2 rows to write, values_in has only 1"),
    ("RESIZE", [X], {**SCALE, "scale": (4096, 1, 1, 1)}, "height: scale numerator is 4096, allowed is at most 2048"),
    ("RESIZE", [X], {**SCALE, "scale": (1, 16, 1, 1)}, "height: scale denominator is 16, allowed is less than 16 * 1"),
    ("RESIZE", [X], {**SCALE, "offset": (0, 64)}, "width: offset is 64, allowed is -4..63"),
    ("RESIZE", [X], {**SCALE, "border": (4, 0)}, "height: border is 4, allowed is -64..3"),
    ("RESIZE", [X], {**SCALE, "border": (1, 2)},
     "height: (size - 1) * 4 - offset + border is 17, allowed is a multiple of 2"),
    ("RESIZE", [((1, 9000, 1, 1), I8)], SCALE, "height goes from 9000 to 18000, allowed is less than 16384"),
    # rescale
    ("RESCALE", [((2,), I8)], {**RESCALE, "input_unsigned": True, "output_unsigned": True},
     "input_unsigned and output_unsigned are both set, allowed is one"),
    ("RESCALE", [((2,), I32)], {**RESCALE, "output_unsigned": True},
     "output_unsigned is set with int32, allowed is int8 and int16 only"),
    ("RESCALE", [((2,), I8)], {**RESCALE, "input_unsigned": True, "out_dtype": "int32"},
     "input_unsigned is set with int32, allowed is int8 and int16 only"),
    ("RESCALE", [((2,), I16)], {**RESCALE, "input_unsigned": True, "input_zp": 5},
     "input_zp is 5, allowed for uint16 is 0 or 32768"),
    ("RESCALE", [((2,), I8)], {**RESCALE, "input_unsigned": True, "input_zp": -1}, "input_zp is -1, allowed is 0..255"),
    ("RESCALE", [((2,), I48)], RESCALE, "scale32 is set for an int48 input, which needs 16-bit multipliers"),
    ("RESCALE", [((2,), I8)], {**RESCALE, "scale32": False, "rounding": "double"},
     "rounding is double without scale32"),
    ("RESCALE", [((2,), I8)], {**RESCALE, "multiplier": (1, 2)},
     "2 multipliers and 1 shifts, allowed is 1 without per_channel"),
    ("RESCALE", [((2, 3), I8)], {**RESCALE, "per_channel": True},
     "1 multipliers and 1 shifts, allowed is 3 for the last axis"),
    ("RESCALE", [((2,), I8)], {**RESCALE, "multiplier": (-1,)},
     "multiplier has values -1..-1, allowed is 0..2147483647"),
    ("RESCALE", [((2,), I8)], {**RESCALE, "scale32": False, "multiplier": (32768,)},
     "multiplier has values 32768..32768, allowed is 0..32767"),
    ("RESCALE", [((2,), I8)], {**RESCALE, "shift": (1,)}, "shift has values 1..1, allowed is 2..62"),
    ("RESCALE", [((2,), I8)], {**RESCALE, "output_zp": 1, "out_dtype": "int16"},
     "output_zp is 1, allowed for int16 is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "inputs", "attrs", "message"), ROWS, ids=lambda v: v if isinstance(v, str) else "")
def test_message(kind: str, inputs: list[Operand], attrs: Mapping[str, Attr], message: str) -> None:
    with pytest.raises(TosaError) as error:
        infer(kind, [Tensor(f"x{i}", s, d) for i, (s, d) in enumerate(inputs)], attrs)
    assert error.value.message == f"{kind}: {message}"


def test_unknown_operator_lists_the_known() -> None:
    with pytest.raises(TosaError, match="TANH: not an operator of the TOSA 1.0 integer profile") as error:
        infer("TANH", [], {})
    assert "CONV2D, DEPTHWISE_CONV2D" in error.value.hint
