"""Where the stock ExecuTorch 1.5.1 runtime does not give torch's result, or refuses what torch computes.

Each entry is a pattern for the whole text of a case (`one_op.OneOp.__str__`: ``aten::ceil.out(int32[5, 9])``, the
results behind it: `` -> int32``) and the reason. The first that matches counts. A pattern that no case needs any more
fails the test.
"""

from __future__ import annotations

DEVIATIONS: dict[str, dict[str, str]] = {
    "elementwise": {
        r"et_copy::.*": "its copies between devices want a tensor that is on another device",
        r"aten::_conj_physical\.out\(float.*": "it takes complex numbers only",
        r".* order .*": "it wants one layout for all operands and the result, of contiguous and channels-last",
        r".*layout.*": "likewise, where only the result has another layout",
        r"aten::(ceil|floor|trunc)\.out\(int(32|64).*": "integers go through float32",
        r"aten::(remainder|fmod)\.\w+\(((?!float32|\.\d).)*": "C's remainder: it takes the sign of the dividend; "
        "divisors do not wrap around; int64 goes through double",
        r"aten::pow\.\w+\(((?!float32|\.\d).)*": "integers go through double, which does not wrap around",
        r"aten::pow\.Tensor_Scalar_out\(float32.*, -?0\.5\).*": "a power at -0 and -inf, where torch takes a root",
        r"aten::div\.\w+\(int64.*'trunc'\).*": "int64 goes through double",
        r"aten::div\.out_mode\(bool\[40\], float32\[40\], 'floor'\).*": "1 / 0 rounded down is inf, torch's NaN",
        r"aten::bitwise_(left|right)_shift\.\w+\(.*": "distances out of range are left to the processor",
        r"aten::(maximum|minimum|lt|le|gt|ge)\.(Tensor_)?out\(int8\[6\], int64\[\]\).*": "the number is not converted "
        "to the type that is computed in",
        r"aten::sub\.out\(int64\[\], uint8\[6\], 1\).*": "the result does not wrap around in the type computed in",
        r"aten::(add|sub)\.out\(uint8.*, -1\).*": "no negative alpha for uint8",
        r"aten::add\.Scalar_out\((bool|u?int\d+)\[4, 5\], .*": "no number of a higher kind than the tensor",
        r"aten::clamp\.out\(uint8\[40\], -1, 2\).*": "no negative limits for uint8",
        r"aten::where\.self_out\(bool\[\], int8\[4\], int64\[\]\).*": "another rule of promotion for tensors of rank 0",
    },
    "move": {},
    "nn": {},
}
