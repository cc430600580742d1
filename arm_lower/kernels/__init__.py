"""The CPU remainder: the portable kernels that run what the NPU does not."""

from arm_lower.kernels.limits import unusable, usable
from arm_lower.kernels.registry import Argument, Kernel, kernel_for, library_of, names

__all__ = ["Argument", "Kernel", "kernel_for", "library_of", "names", "unusable", "usable"]
