"""What a compilation came to, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from arm_lower.edge.program import CpuOp
from arm_lower.errors import ArmLowerError

FORMAT = 1
"""Version of the JSON form; raised when a field changes its meaning or goes."""


@dataclass(frozen=True)
class Layer:
    """One operator as Vela runs it.

    Attributes:
        delegate: Name of its delegate.
        name: Tensor it writes.
        op: Vela's operator.
        module_path: PyTorch module it came from, ``""`` for the model itself.
        torch_op: PyTorch operator it came from, ``aten.conv2d.default``.
        npu_cycles: Cycles of computation (Vela's estimates, all of them).
        op_cycles: Cycles it takes, waiting for memory included.
        macs: Multiply-accumulates.
        layout: Why it only moves data: ``input NAME`` or ``output NAME`` of the delegate, or ``inside``; ``""``
            for an operator that computes.
    """

    delegate: str
    name: str
    op: str
    module_path: str
    torch_op: str
    npu_cycles: int
    op_cycles: int
    macs: int
    layout: str = ""


@dataclass(frozen=True)
class Border:
    """One tensor that crosses from the CPU to a delegate or back.

    Attributes:
        delegate: Name of the delegate.
        direction: ``input`` or ``output``.
        name: TOSA tensor.
        shape: As the delegate sees it; channels last when its last axis are the channels.
        dtype: TOSA data type.
        nbytes: Bytes that the runtime copies.
        layout_cycles: Cycles of bringing it from the order of the border to that of the NPU, or back.
    """

    delegate: str
    direction: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    layout_cycles: int


@dataclass(frozen=True)
class DelegateReport:
    """One command stream for the NPU.

    Attributes:
        name: Name of the delegate.
        npu_cycles, total_cycles: Vela's estimates, without and with waiting for memory.
        macs: Multiply-accumulates that the NPU does.
        sram_bytes: Peak of SRAM in use.
        scratch_bytes: Memory that the runtime must provide at each call: activations, inputs and outputs.
        fast_scratch_bytes: Dedicated SRAM of the NPU beside it; 0 without a dedicated-SRAM memory mode.
        weight_bytes: Encoded weights and other constants, read in place.
        command_bytes: Command stream.
        tosa_ops: Number of TOSA operators.
        memories: Memory name -> peak use in bytes, as Vela counts it.
        settings: The Vela settings that won.
        verified: What ``compile(..., verify=True)`` found on the NPU model; "" if it was not asked.
    """

    name: str
    npu_cycles: int
    total_cycles: int
    macs: int
    sram_bytes: int
    scratch_bytes: int
    fast_scratch_bytes: int
    weight_bytes: int
    command_bytes: int
    tosa_ops: int
    memories: Mapping[str, int]
    settings: str
    verified: str = ""


@dataclass(frozen=True)
class Arena:
    """Planned memory of one method: what the CPU needs, the NPU's scratch not included.

    Attributes:
        method: Name of the method.
        nbytes: Size of the arena.
        lower_bound: No plan can be smaller than this.
        order: How the plan was found.
    """

    method: str
    nbytes: int
    lower_bound: int
    order: str


@dataclass(frozen=True)
class Pool:
    """One block of memory that the firmware has to provide.

    Attributes:
        name: What it is.
        nbytes: How big it has to be.
        access: ``read`` (may be flash) or ``read, write``.
        purpose: Who asks for it, in the runtime's terms.
    """

    name: str
    nbytes: int
    access: str
    purpose: str


@dataclass(frozen=True)
class Report:
    """What a compilation came to.

    Attributes:
        target: Vela accelerator, ``""`` when nothing was compiled for an NPU.
        system_config, memory_mode: Sections of Vela's .ini; ``""`` like ``target``.
        delegates: What runs on the NPU.
        cpu_ops: What stayed on the CPU: (name, op, module_path, reason, hint) of each.
        kernel_calls: Registered name of each kernel that the runtime needs -> how often it is called.
        npu_cycles, total_cycles, macs: Sums over ``delegates``.
        sram_bytes: Largest ``sram_bytes`` of a delegate: they run one after the other.
        weight_bytes: Sum over ``delegates``.
        pte_bytes: Size of the file.
        constant_bytes: Constants of operators on the CPU, each once.
        layers: Every operator of every delegate in the order Vela runs them.
        borders: Every tensor that crosses between CPU and NPU.
        arenas: Planned memory of each method.
        seconds: Stage of the compilation -> seconds.
    """

    target: str
    system_config: str
    memory_mode: str
    delegates: tuple[DelegateReport, ...]
    cpu_ops: tuple[CpuOp, ...]
    npu_cycles: int
    total_cycles: int
    macs: int
    sram_bytes: int
    weight_bytes: int
    pte_bytes: int
    constant_bytes: int
    layers: tuple[Layer, ...]
    borders: tuple[Border, ...]
    arenas: tuple[Arena, ...]
    kernel_calls: Mapping[str, int]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Registered names of the kernels that the runtime needs, sorted."""
        return tuple(sorted(self.kernel_calls))

    @property
    def compute_kernel_calls(self) -> int:
        """Calls of kernels that do more than quantize or dequantize at a border."""
        return sum(n for name, n in self.kernel_calls.items() if not name.startswith("quantized_decomposed::"))

    @property
    def layout_cycles(self) -> int:
        """Cycles of NPU operators that only bring data into another order."""
        return sum(layer.op_cycles for layer in self.layers if layer.layout)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Memory that the firmware has to provide, biggest first within what can be written and what cannot."""
        arena = max((a.nbytes for a in self.arenas), default=0)
        scratch = max((d.scratch_bytes for d in self.delegates), default=0)
        fast = max((d.fast_scratch_bytes for d in self.delegates), default=0)
        pools = [
            Pool("method arena", arena, "read, write", "planned buffer of the method: inputs, outputs, CPU values"),
            Pool("NPU scratch", scratch, "read, write", "temporary allocator, at each call of a delegate"),
        ]
        if fast:
            pools.append(Pool("NPU fast scratch", fast, "read, write", "dedicated SRAM, given to the Ethos-U driver"))
        return (
            *pools,
            Pool(".pte file", self.pte_bytes, "read", "program, weights and command streams, used in place"),
        )

    def to_json(self) -> str:
        """All fields as JSON; `from_json` reads it back."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that `to_json` wrote.

        Raises:
            ArmLowerError: ``text`` is something else, or a report of another version.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            version = data.pop("format")
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ArmLowerError(f"not a report of arm-lower: {error!r}") from error
        if version != FORMAT:
            raise ArmLowerError(f"a report of format {version}; this version reads {FORMAT}", "compile the model again")
        rows = {"delegates": DelegateReport, "cpu_ops": CpuOp, "layers": Layer, "arenas": Arena, "borders": Border}
        try:
            for key, kind in rows.items():
                data[key] = tuple(kind(**row) for row in data[key])
            data["borders"] = tuple(Border(**{**asdict(b), "shape": tuple(b.shape)}) for b in data["borders"])
            return cls(**data)
        except (KeyError, TypeError) as error:
            raise ArmLowerError(f"not a report of arm-lower: {error}") from error

    def to_text(self, layers: int = 10) -> str:
        """Tables for people; ``layers`` is how many of the most expensive layers are listed."""
        from arm_lower.report.text import to_text

        return to_text(self, layers)

    def __str__(self) -> str:
        return self.to_text()
