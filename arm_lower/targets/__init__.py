"""What each NPU accepts, as data.

`check` answers for one TOSA operator. What only Vela can tell (whether a chain fuses, how memory turns out) is not
here: the partitioner asks Vela itself for that.
"""

from __future__ import annotations

from collections.abc import Mapping

from arm_lower.errors import ArmLowerError
from arm_lower.targets import ethos_u55, ethos_u85
from arm_lower.targets.rules import Limits, Row
from arm_lower.tosa.ir import Op

__all__ = ["FAMILIES", "Limits", "Row", "check"]

FAMILIES: Mapping[str, Limits] = {
    "u55": ethos_u55.LIMITS,
    "u65": ethos_u55.LIMITS_U65,
    "u85": ethos_u85.LIMITS,
}


def check(op: Op, family: str) -> None:
    """Raises when Vela would refuse this operator for this family of NPUs.

    Args:
        op: A TOSA operator with its operands and results.
        family: ``u55``, ``u65`` or ``u85``.

    Raises:
        Unsupported: The NPU does not take the operator; the message says which limit it breaks.
        ArmLowerError: No such family.
    """
    if family not in FAMILIES:
        raise ArmLowerError(f"unknown NPU family '{family}'", f"valid names: {', '.join(FAMILIES)}")
    FAMILIES[family].check(op)
