"""What Ethos-U85 accepts: the section "Ethos-U85 TOSA Operator Support" of Vela 5.2's SUPPORTED_OPS.md.

Where Vela does something else than its document says, the row follows Vela and its ``source`` says so.
"""

from __future__ import annotations

from arm_lower.targets.rules import Limits, Row

_ROWS: tuple[Row, ...] = ()

LIMITS = Limits("Ethos-U85", {}, _ROWS)
