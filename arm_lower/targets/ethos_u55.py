"""What Ethos-U55 and Ethos-U65 accept: the sections "Ethos-U55 and Ethos-U65 TOSA" of Vela 5.2's SUPPORTED_OPS.md.

Where Vela does something else than its document says, the row follows Vela and its ``source`` says so.
"""

from __future__ import annotations

from dataclasses import replace

from arm_lower.targets.rules import Limits, Row

_U85 = "Ethos-U85 has it"
_ABSENT = (
    "BITWISE_AND",
    "BITWISE_OR",
    "BITWISE_XOR",
    "BITWISE_NOT",
    "INTDIV",
    "LOGICAL_AND",
    "LOGICAL_RIGHT_SHIFT",
    "LOGICAL_OR",
    "LOGICAL_XOR",
    "LOGICAL_NOT",
    "SELECT",
    "EQUAL",
    "GREATER",
    "GREATER_EQUAL",
    "REDUCE_ALL",
    "REDUCE_ANY",
    "GATHER",
    "SCATTER",
)

_ROWS = (
    Row(("ARITHMETIC_RIGHT_SHIFT",), "data types", "DataTypes: int32 only", allowed=("int32 -> int32",)),
    Row(("ARITHMETIC_RIGHT_SHIFT",), "rounding", "Round: true only", allowed=(True,)),
    Row(("LOGICAL_LEFT_SHIFT",), "data types", "DataTypes: int32 only", allowed=("int32 -> int32",)),
    Row(("MATMUL",), "data types", "(i8_t, i8_t, i32_t)", allowed=("int8 -> int32",), hint=_U85),
)

LIMITS = Limits("Ethos-U55", {op: _U85 for op in _ABSENT}, _ROWS)
LIMITS_U65 = replace(LIMITS, name="Ethos-U65")
