"""Annotation rules, one file for each family of operators.

What is quantized how (all activations int8, per tensor):

=========================================  ================================================================
convolution, transposed, linear            input, weight per output channel, bias int32 (scale = input scale
                                           * weight scale), one output behind batch norm and clamp
matmul                                     both inputs and the output, each with its own parameters
add sub mul div (scalars stay scalars)     each input, one output behind a clamp
functions of one variable, log_softmax     input and output
chains of those and of scalar arithmetic   the tensor and the result; the nodes between stay in float
on one tensor, as x * relu6(x + 3) / 6     (`quant.annotate.regions`)
prelu                                      input (16 bits from a convolution or linear layer, where that costs no
                                           memory), slopes (one scale each), output
sigmoid hardsigmoid softmax                input; output fixed at 1/256, zero point -128
tanh                                       input; output fixed at 1/128, zero point 0
mean sum                                   input and output
max/avg/adaptive pool, amax amin,          input(s) and output share parameters
minimum maximum
data movement, cat, stack, split, pad,     the same, if a neighbour is quantized for its own sake
upsample
local response norm                        input and result; the nodes between stay in float
all others, integers and masks             not at all
=========================================  ================================================================
"""

from quant.annotate import conv, elementwise, movement, norm, pool
from quant.annotate.context import Annotator
from quant.annotate.registry import PATTERNS, RULES, annotates, annotates_pattern

__all__ = [
    "PATTERNS",
    "RULES",
    "Annotator",
    "annotates",
    "annotates_pattern",
    "conv",
    "elementwise",
    "movement",
    "norm",
    "pool",
]
