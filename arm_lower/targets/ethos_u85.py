"""What Ethos-U85 accepts: the section "Ethos-U85 TOSA Operator Support" of Vela 5.2's SUPPORTED_OPS.md, which is
nearly all of TOSA's integer profile. The other rows were found by trying: see `arm_lower.targets.ethos_u55`.
"""

from __future__ import annotations

from dataclasses import replace

from arm_lower.targets.ethos_u55 import PADDING, SPLITS
from arm_lower.targets.rules import Limits, Row

_AXIS = 1 << 16

_ROWS = (
    Row(("TRANSPOSE_CONV2D",), "constant weights", "TRANSPOSE_CONV2D with dynamic weights and/or bias", allowed=(True,),
        hint="CONV2D and MATMUL take computed weights"),
    Row(("CONV2D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D"), "input channels", "not in the document: Vela refuses more",
        high=_AXIS, hint="split the channels and add the parts"),
    Row(("AVG_POOL2D", "MAX_POOL2D", "RESIZE"), "input channels", "not in the document: Vela refuses more", high=_AXIS,
        hint="split the channels"),
    # Vela splits these without a look.
    Row(("MAX_POOL2D",), "padding", "not in the document: what pads a larger stride is taken for data", high=0,
        when="stride > 3", refused=False, hint="pad with an operator of its own, or use a stride of at most 3"),
    Row(("DEPTHWISE_CONV2D",), "stride", "not in the document: channels take the weights of others", high=3,
        refused=False, hint="a smaller stride followed by a slice"),
    Row(("AVG_POOL2D",), "batch", "not in the document: the later ones are written elsewhere", high=1,
        when="padded, with kernel > 8 or stride > 3", refused=False, hint="split the batch"),
)

# U55 takes no padded average pool that large.
_PADDING = tuple(replace(row, ops=(*row.ops, "AVG_POOL2D")) for row in PADDING)

LIMITS = Limits("Ethos-U85", {}, (*_PADDING, *SPLITS, *_ROWS))
