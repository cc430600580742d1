"""What can be wrong with a command stream, said with the place where it was seen."""

from __future__ import annotations

from arm_lower.errors import ArmLowerError


class NpuError(ArmLowerError):
    """Anything the NPU model refuses. ``message`` starts with the byte offset in the payload and the command."""


class DecodeError(NpuError):
    """A word, field or stream that has no meaning on this accelerator."""


class AccessError(NpuError):
    """An access outside a region, misaligned, or to bytes that nothing has written."""
