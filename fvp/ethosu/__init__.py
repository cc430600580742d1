"""A functional model of Arm Ethos-U55, U65 and U85 that executes the command stream Vela wrote, bit for bit.

    outputs = fvp.ethosu.run(payload, read_only, inputs, input_descs, output_descs, scratch_size)

It proves that Vela's encoding under this reading of it computes what the TOSA graph says; it is not Arm's FVP and
knows nothing of silicon.
"""

from fvp.ethosu.decode import Arch, Command, Stream, decode
from fvp.ethosu.errors import DecodeError, HazardError, MemoryError_, NpuError
from fvp.ethosu.program import IO, Program, load, run

__all__ = [
    *("Arch", "Command", "DecodeError", "HazardError", "IO", "MemoryError_", "NpuError", "Program", "Stream"),
    *("decode", "load", "run"),
]
