"""What a `.pte` asks of a firmware: bytes of each block of memory, kernels, and the NPU it was compiled for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arm_lower.errors import ArmLowerError
from arm_lower.files import read_file
from arm_lower.pte import model as pte
from arm_lower.pte.ethosu_blob import BACKEND_ID, unpack
from arm_lower.pte.read import read
from fvp.boards import ALIGNMENT, DEFAULT_MODE

# sizeof on a 32-bit Arm of the parts of a method's value table (core/method.c): its head, then one of each for every
# value, tensor, delegate, operator and dimension of a dynamic tensor
_HEAD, _VALUE, _TENSOR, _DELEGATE, _OPERATOR, _DIM = 64, 16, 24, 12, 4, 4
_TARGET = re.compile(r"--accelerator-config=ethos-(u\d\d)-(\d+)")
_MODE = re.compile(r"--memory-mode=(\S+)")


@dataclass(frozen=True)
class Requirements:
    """Of a whole file; sizes are those of the method that needs most.

    Attributes:
        model: Bytes of the file.
        values: Bytes of the value table.
        arenas: Bytes of arena 1, 2, ...
        scratch: NPU scratch memory.
        fast_scratch: Dedicated SRAM of the NPU.
        io: Bytes of inputs and outputs that are not planned.
        instructions: Number of instructions.
        kernels: Names of the kernels it calls.
        family: ``u55``, ``u65``, ``u85``, or "" without delegates.
        macs: MACs per cycle of the NPU that it was compiled for, or 0.
        memory_mode: Vela's memory mode; `DEFAULT_MODE` without delegates.
    """

    model: int
    values: int
    arenas: tuple[int, ...]
    scratch: int
    fast_scratch: int
    io: int
    instructions: int
    kernels: tuple[str, ...]
    family: str
    macs: int
    memory_mode: str
    program: pte.Program = field(repr=False, compare=False)

    @property
    def arena(self) -> int:
        """Bytes of all arenas, each aligned."""
        return sum(map(_aligned, self.arenas))

    @property
    def delegates(self) -> bool:
        return bool(self.family)

    def blocks(self) -> dict[str, int]:
        """Sizes by the block names of `fvp.boards`."""
        return {
            "model": self.model,
            "arena": self.arena,
            "scratch": self.scratch,
            "fast_scratch": self.fast_scratch,
            "values": self.values,
            "io": self.io,
        }


def requirements(source: str | Path | bytes, memory_mode: str | None = None) -> Requirements:
    """Reads a `.pte`, ours or ExecuTorch's.

    Args:
        source: The file or its bytes.
        memory_mode: Instead of the one that the delegates were compiled with.

    Raises:
        PteError: The file is corrupt.
        ArmLowerError: It has delegates that are not for Ethos-U, or for several different NPUs.
    """
    data = source if isinstance(source, bytes) else read_file(source)
    program = read(data)
    specs = list(_delegates(program))
    family, macs = _target(specs)
    mode = memory_mode or next((m[1] for s in specs if (m := _MODE.search(_flags(s)))), DEFAULT_MODE)
    methods = program.methods
    count = max(len(m.arena_sizes) for m in methods)
    arenas = tuple(max((*m.arena_sizes[i : i + 1], 0)[0] for m in methods) for i in range(count))
    return Requirements(
        model=len(data),
        values=max(map(value_table_bytes, methods)),
        arenas=arenas,
        scratch=max((unpack(s.data).scratch_size for s in specs), default=0),
        fast_scratch=max((_fast_scratch(s) for s in specs), default=0) if mode.startswith("Dedicated") else 0,
        io=max(map(_io_bytes, methods)),
        instructions=max(len(m.instructions) for m in methods),
        kernels=tuple(program.kernels()),
        family=family,
        macs=macs,
        memory_mode=mode,
        program=program,
    )


def value_table_bytes(method: pte.Method) -> int:
    """Bytes that ``al_method_needs`` asks for on a 32-bit core."""
    tensors = [v for v in method.values if isinstance(v, pte.TensorValue)]
    dims = sum(len(t.sizes) for t in tensors if t.dynamism is not pte.Dynamism.STATIC)
    return _aligned(
        _HEAD
        + _VALUE * len(method.values)
        + _TENSOR * len(tensors)
        + _DELEGATE * len(method.delegates)
        + _OPERATOR * len(method.operators)
        + _DIM * dims
    )


def _io_bytes(method: pte.Method) -> int:
    values = (method.values[i] for i in dict.fromkeys((*method.inputs, *method.outputs)))
    tensors = (v for v in values if isinstance(v, pte.TensorValue) and isinstance(v.storage, pte.AtRuntime))
    return sum(max(_aligned(t.nbytes), ALIGNMENT) for t in tensors)


def _delegates(program: pte.Program) -> Iterator[pte.DelegateSpec]:
    for method in program.methods:
        for number, spec in enumerate(method.delegates):
            if spec.id != BACKEND_ID:
                raise ArmLowerError(
                    f"delegate {number} of method {method.name!r} is for {spec.id!r}, the firmware runs {BACKEND_ID!r}"
                )
            yield spec


def _flags(spec: pte.DelegateSpec) -> str:
    return " ".join(value.decode(errors="replace") for key, value in spec.compile_specs if key == "compile_flags")


def _target(specs: list[pte.DelegateSpec]) -> tuple[str, int]:
    targets = {(m[1], int(m[2])) if (m := _TARGET.search(_flags(s))) else ("unknown", 0) for s in specs}
    if len(targets) > 1:
        names = ", ".join(f"ethos-{f}-{n}" for f, n in sorted(targets))
        raise ArmLowerError(f"the program has delegates for different NPUs: {names}", "compile it for one target")
    return next(iter(targets), ("", 0))


def _fast_scratch(spec: pte.DelegateSpec) -> int:
    from fvp.ethosu.program import load

    return load(unpack(spec.data).command_stream).fast_size


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


