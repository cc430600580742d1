"""The stages of a compilation as values: Edge programs, then an ExecuTorch program.

    to_edge(exported).transform(passes).to_backend(partitioner).to_executorch().save("model.pte")

Each step returns a new value and leaves the one it was called on as it was. The names are ExecuTorch's.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NoReturn, SupportsIndex

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from arm_lower.edge import build, cpu
from arm_lower.edge.meta import copy_program, describe
from arm_lower.edge.passes import PassManager, PassType
from arm_lower.edge.program import EdgeProgram, Partitioner
from arm_lower.edge.verifier import verify
from arm_lower.errors import ArmLowerError
from arm_lower.export import exporting
from arm_lower.files import write_file
from arm_lower.kernels.emit import emit
from arm_lower.kernels.registry import library_of
from arm_lower.memory import Plan
from arm_lower.pte import emit as pte_emit
from arm_lower.pte.model import Program, ProgramBuilder

Source = ExportedProgram | fx.GraphModule
Passes = Sequence[PassType] | Mapping[str, Sequence[PassType]]
Partitioners = Partitioner | Sequence[Partitioner] | Mapping[str, Partitioner | Sequence[Partitioner]]


def to_edge(
    programs: Source | Mapping[str, Source],
    example_inputs: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> EdgeProgramManager:
    """Edge programs of exported programs or quantized graph modules.

    Args:
        programs: One program, which becomes the method ``forward``, or a program for each method name. A
            ``torch.export.ExportedProgram``, or an ``fx.GraphModule`` as ``convert_pt2e`` returns it.
        example_inputs: For graph modules: positional arguments of a call (for several methods a dict of them).
            They are compared with the shapes in the graph.
        example_kwargs: For one graph module: keyword arguments of that call.

    Raises:
        ArmLowerError: Dynamic shapes, training mode, dtypes that an operator cannot have, example inputs that do
            not fit, no program at all.
    """
    named = dict(programs) if isinstance(programs, Mapping) else {"forward": programs}
    if not named:
        raise ArmLowerError("to_edge was given no program")
    examples = example_inputs if isinstance(example_inputs, Mapping) else dict.fromkeys(named, example_inputs)
    with exporting():  # what cannot be made functional is exported again
        built = {name: _build(name, source, examples.get(name), example_kwargs) for name, source in named.items()}
    for program in built.values():
        verify(program)
    return EdgeProgramManager(built)


VALUES_HINT = (
    "every size and number must be known at export: write what depends on values (.item(), nonzero, x[mask]) with "
    "tensors of fixed size, for example torch.where or a multiplication by a mask"
)


def _check_values(name: str, source: Source) -> None:
    """Raises for what is dynamic because of values and not of the inputs' sizes, where fixed sizes do not help."""
    for node in source.graph.nodes:
        if node.op == "call_function" and free_unbacked_symbols(_symbolic(node.meta.get("val"))):
            raise ArmLowerError(f"method {name}: the result of {describe(node)} has a size or number that depends on "
                                "values", VALUES_HINT)  # fmt: skip


def _symbolic(value: Any) -> list[Any]:
    """Numbers and sizes in a node's value that are not known."""
    parts = [v.shape if isinstance(v, torch.Tensor) else (v,) for v in pytree.tree_leaves(value)]
    return [s for part in parts for s in part if isinstance(s, (torch.SymInt, torch.SymFloat, torch.SymBool))]


def _build(name: str, source: Source, examples: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> EdgeProgram:
    if not isinstance(source, (ExportedProgram, fx.GraphModule)):
        raise ArmLowerError(f"method {name} is a {type(source).__name__}", "give torch.export.export(model, inputs)")
    _check_values(name, source)
    if isinstance(source, ExportedProgram):
        return build.from_exported(source, name)
    if any(hasattr(m, "calculate_qparams") for m in source.modules()):
        raise ArmLowerError(f"method {name}: the graph module has observers: it was prepared, but not converted",
                            "call convert_pt2e(prepared) after the calibration")  # fmt: skip
    if examples is None:
        raise ArmLowerError(f"method {name}: a graph module needs example inputs", "to_edge(module, example_inputs)")
    return build.from_module(source, examples, kwargs, name)


def _check_partitioner(given: object) -> None:
    if not isinstance(given, type) and hasattr(given, "lower") and not isinstance(given, str):
        return
    what = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    raise ArmLowerError(f"to_backend was given no partitioner: {what}",
                        "give EthosUPartitioner(EthosUCompileSpec('ethos-u55-128'))")  # fmt: skip


def to_edge_transform_and_lower(
    programs: Source | Mapping[str, Source],
    transform_passes: Passes | None = None,
    partitioner: Partitioners | None = None,
    example_inputs: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
) -> EdgeProgramManager:
    """`to_edge`, then `EdgeProgramManager.transform`, then `EdgeProgramManager.to_backend`."""
    manager = to_edge(programs, example_inputs)
    if transform_passes:
        manager = manager.transform(transform_passes)
    return manager if partitioner is None else manager.to_backend(partitioner)


class NotPickled:
    """A value that can be copied, but not pickled: the pickle of an ``fx.Graph`` is code that is traced again when it
    is read, without shapes, and delegates cannot be traced. Said where it is written, not where it is read.

    Attributes:
        pickle_instead: What to hand to another process.
    """

    pickle_instead: ClassVar[str] = ""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ArmLowerError(f"a {type(self).__name__} cannot be pickled: its graphs have delegates and shapes, "
                            "which a pickled graph has not", self.pickle_instead)  # fmt: skip

    def __copy__(self) -> NotPickled:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> NotPickled:
        new = object.__new__(type(self))
        memo[id(self)] = new
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new


class EdgeProgramManager(NotPickled):
    """The methods of a program in the Edge dialect."""

    pickle_instead: ClassVar[str] = "torch.export.save writes the exported program that it was made of"

    def __init__(self, programs: Mapping[str, EdgeProgram]) -> None:
        self._programs = dict(programs)

    @property
    def methods(self) -> tuple[str, ...]:
        """Method names."""
        return tuple(self._programs)

    def program(self, name: str = "forward") -> EdgeProgram:
        """One method.

        Raises:
            ArmLowerError: There is no method of this name; lists those there are.
        """
        found = self._programs.get(name)
        if found is None:
            raise ArmLowerError(f"there is no method {name!r}", f"the methods are {', '.join(self._programs)}")
        return found

    def transform(self, passes: Passes) -> EdgeProgramManager:
        """Run graph passes on every method, or on the methods that a dict names.

        The program is verified after each pass.

        Raises:
            ArmLowerError: A pass failed or broke the program; names the pass and what it broke.
        """
        by_method = passes if isinstance(passes, Mapping) else dict.fromkeys(self._programs, passes)
        new = dict(self._programs)
        for name, sequence in by_method.items():
            new[name] = PassManager(list(sequence))(copy_program(self.program(name)))
        return EdgeProgramManager(new)

    def to_backend(self, partitioner: Partitioners) -> EdgeProgramManager:
        """Move what each partitioner takes to its backend; a dict gives partitioners for single methods.

        Raises:
            ArmLowerError: What is given is no partitioner, or there is no method of a name.
        """
        by_method = partitioner if isinstance(partitioner, Mapping) else dict.fromkeys(self._programs, partitioner)
        new = dict(self._programs)
        for name, chosen in by_method.items():
            program = copy_program(self.program(name))
            for one in chosen if isinstance(chosen, Sequence) else [chosen]:
                _check_partitioner(one)
                program = one.lower(program)
                verify(program)
            new[name] = program
        return EdgeProgramManager(new)

    def to_executorch(self, *, alloc_graph_input: bool = True, alloc_graph_output: bool = True) -> ExecutorchProgram:
        """The program for the ExecuTorch runtime.

        Args:
            alloc_graph_input: Plan inputs in the arena (ExecuTorch's default). The runtime copies the caller's
                tensors there, firmware writes its data there at once, and the arena uses the place again after
                the last read. Without it a method reads the caller's memory.
            alloc_graph_output: Likewise for outputs.

        Raises:
            ArmLowerError: An operator that no portable kernel can run.
        """
        builder = ProgramBuilder()
        lowered: dict[str, EdgeProgram] = {}
        plans: dict[str, Plan] = {}
        for name, program in self._programs.items():
            lowered[name] = copy_program(program)
            with exporting():  # decompositions are traced
                cpu.prepare(lowered[name])
            plans[name] = emit(lowered[name], builder, plan_inputs=alloc_graph_input, plan_outputs=alloc_graph_output)
        return ExecutorchProgram(builder.build(), lowered, plans)

    def __str__(self) -> str:
        return "\n\n".join(str(p) for p in self._programs.values())


@dataclass(frozen=True)
class ExecutorchProgram(NotPickled):
    """A finished program.

    Attributes:
        program: Values and instructions of the file.
        methods: The Edge programs as they were written: expanded, folded, with delegates.
        plans: Memory plan of each method's arena.
    """

    program: Program
    methods: Mapping[str, EdgeProgram] = field(repr=False)
    plans: Mapping[str, Plan]
    pickle_instead: ClassVar[str] = "save(path) writes the file; its bytes (.buffer) can be pickled"

    @cached_property
    def buffer(self) -> bytes:
        """The bytes of the ``.pte``."""
        return pte_emit.emit(self.program)

    @property
    def kernels(self) -> list[str]:
        """Registered names of the kernels that the runtime needs, sorted."""
        return self.program.kernels()

    @property
    def libraries(self) -> dict[str, str]:
        """Kernel name -> the kernel library list that has it (``portable.txt``, ``quantized.txt``)."""
        return {name: library_of(name) or "" for name in self.kernels}

    @property
    def plan(self) -> Plan:
        """Memory plan of the only (else the first) method."""
        return next(iter(self.plans.values()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all.

        Raises:
            ArmLowerError: The file cannot be written.
        """
        write_file(path, self.buffer)
