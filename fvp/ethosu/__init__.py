"""A functional model of Arm Ethos-U55, U65 and U85 that executes the command stream Vela wrote, bit for bit.

    outputs = fvp.ethosu.run(payload, read_only, inputs, input_descs, output_descs, scratch_size)

It proves that Vela's encoding under this reading of it computes what the TOSA graph says; it is not Arm's FVP and
knows nothing of silicon. Everything Vela 5.2 emits for TOSA is modelled and equal to the TOSA reference model, with
four differences that no reading of the stream could remove (``tests/fvp/ethosu/test_npu_matrix.py``).

Read into the stream because only then the results are TOSA's, not found in a document: the shift by 19 (8-bit) or 14
bits of the operand that a 32-bit ADD/SUB does not scale; the divisor of padded averages; LSR on the width of its
input; a branch that sees the value written last. Refused with the place where it stands, because Vela emits it for
TFLite only or never: tanh and sigmoid, LRELU, IFM/OFM_SCALE.dbl_rnd, rounding DOUBLE_ASYMMETRIC, RESIZE REPLICATE,
storage TILE3X1, kernel decomposition D4X4, strided DMA reads and single-core mode of U65. What accumulators do when
they overflow is unknown; TOSA graphs must not.
"""

from fvp.ethosu.decode import Arch, Command, Stream, decode
from fvp.ethosu.disasm import listing
from fvp.ethosu.errors import AccessError, DecodeError, NpuError
from fvp.ethosu.hazard import Hazard, hazards
from fvp.ethosu.program import IO, Program, load, run
from fvp.ethosu.trace import Source, Step, command_sources, database_tables, first_difference, run_traced, sources

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
    "command_sources",
    "database_tables",
    "decode",
    "first_difference",
    "hazards",
    "listing",
    "load",
    "run",
    "run_traced",
    "sources",
]
