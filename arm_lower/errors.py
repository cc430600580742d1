"""Every error that arm-lower raises on purpose."""

from __future__ import annotations


class ArmLowerError(Exception):
    """Bad input or an impossible request, said so that the user can act on it.

    Args:
        message: What was found and what is allowed; names the node, file or option.
        hint: What to try next, or an empty string.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}\n  hint: {hint}" if hint else message)


class Unsupported(ArmLowerError):
    """An operator that the NPU cannot take. Never reaches the user as an exception: the partitioner
    puts the operator on the CPU and reports ``message`` as the reason and ``hint`` beside it."""


class TosaError(ArmLowerError):
    """A TOSA graph that breaks a rule of the TOSA 1.0 specification."""


class VelaError(ArmLowerError):
    """Vela refused a graph; ``message`` carries Vela's own words."""


class PteError(ArmLowerError):
    """A ``.pte`` file that is corrupt, truncated, foreign or inconsistent."""


class QuantizationError(ArmLowerError):
    """A quantizer setting or calibration data that cannot be used."""
