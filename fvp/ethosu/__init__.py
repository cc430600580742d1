"""A functional model of Arm Ethos-U55, U65 and U85 that executes the command stream Vela wrote, bit for bit.

    outputs = fvp.ethosu.run(payload, read_only, inputs, input_descs, output_descs, scratch_size)

It proves that Vela's encoding under this reading of it computes what the TOSA graph says; it is not Arm's FVP and
knows nothing of silicon.
"""

from fvp.ethosu.decode import Arch, Command, Stream, decode
from fvp.ethosu.disasm import listing
from fvp.ethosu.errors import AccessError, DecodeError, NpuError
from fvp.ethosu.hazard import Hazard, hazards
from fvp.ethosu.program import IO, Program, load, run
from fvp.ethosu.trace import Source, Step, first_difference, run_traced, sources

__all__ = [
    "IO",
    "AccessError",
    "Arch",
    "Command",
    "DecodeError",
    "Hazard",
    "NpuError",
    "Program",
    "Source",
    "Step",
    "Stream",
    "decode",
    "first_difference",
    "hazards",
    "listing",
    "load",
    "run",
    "run_traced",
    "sources",
]
