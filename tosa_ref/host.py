"""A whole `.pte` on the host, from the file alone.

CPU kernels run in torch, Ethos-U delegates as the TOSA they were compiled from: the folder
``<name>.record`` beside the file holds one ``output_tag<N>_<spec>.tosa`` for each delegate call, N counting down in
call order (over all methods in file order), so the highest number is the first call. A ``delegate_runner`` replaces
the reference model, for example by a model of the NPU that executes the delegate's own bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arm_lower.errors import ArmLowerError
from arm_lower.pte import model as pte
from arm_lower.pte.ethosu_blob import BACKEND_ID, unpack
from arm_lower.pte.read import read
from tosa_ref import kernels
from tosa_ref.run import ReferenceModel

Array = npt.NDArray[np.generic]
DelegateRunner = Callable[[int, bytes, list[Array]], Sequence[Array]]
"""``runner(call, blob, inputs) -> outputs``: number of the call in the record's order, the delegate's bytes, and the
arguments as they lie in memory (dimensions in the tensor's ``dim_order``). The outputs' bytes are taken as they are."""

INSTRUCTION_LIMIT = 10_000_000
"""As in the runtime."""

_TAG = re.compile(r"output_tag(\d+)_.*\.tosa\Z")
_SCALARS = (pte.IntValue, pte.BoolValue, pte.DoubleValue, pte.StringValue)


def run_pte(source: str | Path | bytes, inputs: Sequence[Any], record: Path | None = None,
            delegate_runner: DelegateRunner | None = None, *, method: str | None = None) -> list[Array]:
    """Runs one method of a `.pte` once, from its initial state.

    Args:
        source: The file, or its bytes.
        inputs: One array for each method input, with logical (NCHW) dimensions, of the file's size and type. A
            scalar input takes the number that the file has.
        record: Folder of the delegates' TOSA; ``<file>.record`` by default.
        delegate_runner: Runs the delegates instead of the TOSA reference model; then no record is needed.
        method: ``forward``, or the only method, by default.

    Returns:
        The outputs, with logical dimensions, contiguous.

    Raises:
        PteError: The file is corrupt.
        ArmLowerError: Inputs do not fit, the record is missing or of another file, or a kernel fails.
    """
    return Host(source, record, delegate_runner).run(inputs, method)


class Host:
    """A loaded program: mutable buffers keep their state from one `run` to the next, as in the runtime.

    Args:
        source, record, delegate_runner: As for `run_pte`.
    """

    def __init__(self, source: str | Path | bytes, record: Path | None = None,
                 delegate_runner: DelegateRunner | None = None) -> None:
        if isinstance(source, bytes):
            data, beside = source, None
        else:
            path = Path(source)
            if not path.is_file():
                raise ArmLowerError(f"no file {path}")
            data, beside = path.read_bytes(), path.with_suffix(".record")
        self.program = read(data)
        calls = sum(isinstance(i, pte.DelegateCall) for m in self.program.methods for i in m.instructions)
        self._delegates = delegate_runner or Record(record or beside, calls)
        self._loaded: dict[str, _Method] = {}

    def run(self, inputs: Sequence[Any], method: str | None = None) -> list[Array]:
        """Runs a method; see `run_pte`."""
        name = method if method is not None else self._default()
        if name not in self._loaded:
            self._loaded[name] = _Method(self.program, self.program.method(name), self._delegates)
        with torch.no_grad():
            return self._loaded[name].run(inputs)

    def _default(self) -> str:
        names = [m.name for m in self.program.methods]
        if "forward" in names or len(names) != 1:
            return "forward"
        return names[0]


class Record:
    """The default runner: the reference model on the TOSA of each call."""

    def __init__(self, folder: Path | None, calls: int) -> None:
        self.folder = folder
        self.calls = calls
        self.models: dict[int, ReferenceModel] = {}

    def __call__(self, call: int, blob: bytes, inputs: list[Array]) -> list[Array]:
        if self.folder is None:
            raise ArmLowerError("the program has delegates and was given as bytes, without a record folder",
                                "give record=..., or the path of the file beside its .record folder")
        if call not in self.models:
            self.models[call] = ReferenceModel(self.find(call).read_bytes())
        model = self.models[call]
        wanted = model.signature.inputs
        sizes, given = [t.size * t.dtype.numpy.itemsize for t in wanted], [a.nbytes for a in inputs]
        if given != sizes:
            raise ArmLowerError(f"{self.find(call)} is of another program: its inputs have {sizes} bytes, "
                                f"those of delegate call {call} have {given}")
        return model.run([np.frombuffer(a.tobytes(), t.dtype.numpy).reshape(t.shape) for a, t in zip(inputs, wanted)])

    def find(self, call: int) -> Path:
        """The file of a call: the one whose number is the ``call``-th largest."""
        assert self.folder is not None  # __call__ has looked
        wanted = f"output_tag{self.calls - 1 - call}_*.tosa"
        found = sorted(((int(m[1]), p) for p in self.folder.glob("*.tosa") if (m := _TAG.match(p.name))), reverse=True)
        if len(found) != self.calls:
            raise ArmLowerError(f"looked for {self.folder / wanted}, the TOSA of delegate call {call}: the folder has "
                                f"{len(found)} such files, the program makes {self.calls} delegate calls",
                                "keep the .record folder that was written with the file beside it, or give record=...")
        return found[call][1]


class _Method:
    """One method with its memory. ``values`` holds torch tensors, Python scalars, None and lists of indices."""

    def __init__(self, program: pte.Program, method: pte.Method, delegates: DelegateRunner) -> None:
        self.method = method
        self.delegates = delegates
        before = program.methods[:program.methods.index(method)]
        self.first_call = sum(isinstance(i, pte.DelegateCall) for m in before for i in m.instructions)
        self.call_numbers = {pc: n for n, pc in enumerate(
            (pc for pc, i in enumerate(method.instructions) if isinstance(i, pte.DelegateCall)), self.first_call)}
        self.arenas = [torch.zeros(size, dtype=torch.uint8) for size in method.arena_sizes]
        self.values: list[Any] = [self.load(program, v) for v in method.values]

    # memory

    def load(self, program: pte.Program, value: pte.Value) -> Any:
        if isinstance(value, pte.TensorValue):
            return self.tensor(program, value)
        if isinstance(value, pte.NullValue):
            return None
        return value.value if isinstance(value, _SCALARS) else value

    def tensor(self, program: pte.Program, t: pte.TensorValue) -> torch.Tensor:
        storage = t.storage
        if isinstance(storage, pte.External):
            raise ArmLowerError(f"tensor {t.fqn!r} is in a .ptd file, which the host does not read")
        if isinstance(storage, pte.Constant):
            return shaped(raw(program.constants[storage.index]), t)
        if isinstance(storage, pte.AtRuntime):
            return shaped(torch.zeros(t.nbytes, dtype=torch.uint8), t)
        memory = self.arenas[storage.memory_id - 1][storage.offset:storage.offset + t.nbytes]
        if storage.initial is not None:
            memory.copy_(raw(program.initial_states[storage.initial]))
        return shaped(memory, t)

    def sized(self, index: int, sizes: Sequence[int]) -> torch.Tensor:
        """The memory of a tensor of bounded size under the sizes it has in this run."""
        t = self.method.values[index]
        assert isinstance(t, pte.TensorValue)  # called for tensors only
        full: torch.Tensor = self.values[index]
        if len(sizes) != len(t.sizes) or any(s > bound for s, bound in zip(sizes, t.sizes)):
            raise ArmLowerError(f"tensor {index} has sizes {list(sizes)}, its bound is {list(t.sizes)}")
        return full.as_strided(tuple(sizes), strides(sizes, t.dim_order), full.storage_offset())

    # running

    def run(self, inputs: Sequence[Any]) -> list[Array]:
        self.set_inputs(inputs)
        pc = steps = 0
        while pc < len(self.method.instructions):
            steps += 1
            if steps > INSTRUCTION_LIMIT:
                raise ArmLowerError(f"method {self.method.name!r} runs more than {INSTRUCTION_LIMIT} instructions")
            try:
                pc = self.step(pc)
            except ArmLowerError as error:
                where = f"method {self.method.name!r}, instruction {pc}"
                raise type(error)(f"{where}: {error.message}", error.hint) from error
        return [self.output(i) for i in self.method.outputs]

    def set_inputs(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self.method.inputs):
            raise ArmLowerError(f"method {self.method.name!r} takes {len(self.method.inputs)} inputs, "
                                f"{len(inputs)} are given")
        for number, (index, given) in enumerate(zip(self.method.inputs, inputs)):
            value = self.method.values[index]
            if isinstance(value, pte.TensorValue):
                self.set_tensor(number, index, value, given)
            elif given != (expected := None if isinstance(value, pte.NullValue) else self.values[index]):
                raise ArmLowerError(f"input {number} is {given!r}, the file was made for {expected!r}")

    def set_tensor(self, number: int, index: int, t: pte.TensorValue, given: Any) -> None:
        array = np.asarray(given)
        dtype = np_dtype(t.scalar_type)
        dynamic = t.dynamism is not pte.Dynamism.STATIC
        fits = array.ndim == len(t.sizes) and all(a <= b if dynamic else a == b for a, b in zip(array.shape, t.sizes))
        if array.dtype != dtype or not fits:
            raise ArmLowerError(f"input {number} is {array.dtype} {list(array.shape)}, the file wants {dtype} "
                                f"{'up to ' if dynamic else ''}{list(t.sizes)}")
        if dynamic:
            self.values[index] = self.sized(index, array.shape)
        self.values[index].copy_(torch.from_numpy(np.require(array, requirements=["C", "W"])))

    def output(self, index: int) -> Array:
        value = self.value(index)
        if isinstance(value, torch.Tensor):
            if value.dtype is torch.bfloat16:
                raise ArmLowerError(f"output value {index} is bfloat16, which numpy does not have")
            return value.contiguous().numpy().copy()
        return np.asarray(value)

    def step(self, pc: int) -> int:
        """Runs one instruction and gives the next one's number."""
        instruction = self.method.instructions[pc]
        if isinstance(instruction, pte.KernelCall):
            self.kernel(instruction)
        elif isinstance(instruction, pte.DelegateCall):
            self.delegate(pc, instruction)
        elif isinstance(instruction, pte.MoveCall):
            self.values[instruction.target] = self.values[instruction.source]
        elif isinstance(instruction, pte.FreeCall):
            self.values[instruction.value] = _FREED
        elif not self.holds(instruction.condition):
            return instruction.destination
        return pc + 1

    def holds(self, index: int) -> bool:
        value = self.value(index)
        return bool(value.all()) if isinstance(value, torch.Tensor) else bool(value)

    def value(self, index: int) -> Any:
        """The value as a kernel gets it: lists hold tensors and numbers."""
        value = self.values[index]
        if value is _FREED:
            raise ArmLowerError(f"value {index} is used after it was freed")
        if isinstance(value, (pte.DoubleListValue, pte.BoolListValue)):
            return list(value.items)
        if isinstance(value, (pte.IntListValue, pte.TensorListValue, pte.OptionalTensorListValue)):
            return [None if i < 0 else self.value(i) for i in value.items]
        return value

    def kernel(self, instruction: pte.KernelCall) -> None:
        name = str(self.method.operators[instruction.operator])
        outs = self.resizable(name, instruction.args)
        args = [self.value(i) for i in instruction.args]
        args = [outs.get(i, a) for i, a in zip(instruction.args, args)]
        before = {i: a.shape for i, a in zip(instruction.args, args) if isinstance(a, torch.Tensor) and i not in outs}
        for position, value in kernels.call(name, args).items():
            self.values[instruction.args[position]] = value
            before.pop(instruction.args[position], None)
            outs.pop(instruction.args[position], None)
        for i, a in zip(instruction.args, args):
            if i in before and a.shape != before[i]:
                raise ArmLowerError(f"kernel {name} makes {list(a.shape)}, "
                                    f"the file says {list(before[i])} for value {i}")
        for i, out in outs.items():
            self.values[i] = self.sized(i, out.shape)
            self.values[i].copy_(out)

    def resizable(self, name: str, args: Sequence[int]) -> dict[int, torch.Tensor]:
        """Fresh tensors for outs of bounded size: torch gives them the size of the result.

        The last argument, what the kernel returns, is its out again, or the list of its outs. In-place kernels
        return their first argument.
        """
        if name.startswith("executorch_prim::") or not args:
            return {}
        outs = {}
        last = self.method.values[args[-1]]
        for i in last.items if isinstance(last, pte.TensorListValue) else args[-1:]:
            t = self.method.values[i]
            if not isinstance(t, pte.TensorValue) or t.dynamism is pte.Dynamism.STATIC:
                continue
            if i in args[1:-1] and i != args[0]:
                outs[i] = torch.empty(0, dtype=kernels.torch_dtype(t.scalar_type))
        return outs

    def delegate(self, pc: int, instruction: pte.DelegateCall) -> None:
        spec = self.method.delegates[instruction.delegate]
        if spec.id != BACKEND_ID:
            raise ArmLowerError(f"delegate {instruction.delegate} is for {spec.id!r}, the host runs {BACKEND_ID!r}")
        blob = unpack(spec.data)
        tensors = [self.value(i) for i in instruction.args]
        if len(tensors) != len(blob.inputs) + len(blob.outputs):
            raise ArmLowerError(f"the delegate call has {len(tensors)} arguments, "
                                f"its blob has {len(blob.inputs)} inputs and {len(blob.outputs)} outputs")
        split = len(blob.inputs)
        call = self.call_numbers[pc]
        results = self.delegates(call, spec.data, [self.in_memory(i) for i in instruction.args[:split]])
        targets = instruction.args[split:]
        if len(results) != len(targets):
            raise ArmLowerError(f"delegate call {call} gave {len(results)} outputs, {len(targets)} are wanted")
        for i, result in zip(targets, results):
            self.write(call, i, result)

    def in_memory(self, index: int) -> Array:
        """A tensor with its dimensions in the order of memory."""
        return self.physical(index).contiguous().numpy().copy()

    def physical(self, index: int) -> torch.Tensor:
        t = self.method.values[index]
        if not isinstance(t, pte.TensorValue):
            raise ArmLowerError(f"delegate argument {index} is no tensor")
        tensor: torch.Tensor = self.values[index]
        return tensor.permute(t.dim_order)

    def write(self, call: int, index: int, result: Array) -> None:
        target = self.physical(index)
        data, wanted = np.asarray(result), target.numel() * target.itemsize
        if data.nbytes != wanted:
            raise ArmLowerError(f"delegate call {call} gave {data.nbytes} bytes, value {index} has {wanted}")
        target.copy_(raw(data.tobytes()).view(target.dtype).reshape(target.shape))


_FREED = object()


def raw(data: bytes) -> torch.Tensor:
    """Bytes as a torch tensor of their own memory."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def shaped(memory: torch.Tensor, t: pte.TensorValue) -> torch.Tensor:
    """A tensor over bytes.

    Raises:
        ArmLowerError: There are too few bytes, or they are not aligned to the element.
    """
    dtype = kernels.torch_dtype(t.scalar_type)
    if memory.numel() < t.nbytes or memory.storage_offset() % dtype.itemsize:
        raise ArmLowerError(f"a tensor of {t.nbytes} bytes lies at byte {memory.storage_offset()} of its arena, "
                            f"where {memory.numel()} bytes are left")
    typed = memory[:t.nbytes].view(dtype)
    return typed.as_strided(t.sizes, strides(t.sizes, t.dim_order), typed.storage_offset())


def strides(sizes: Sequence[int], dim_order: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of dense sizes whose dimensions lie in memory in this order, outermost first."""
    steps, step = [0] * len(sizes), 1
    for dim in reversed(dim_order):
        steps[dim] = step
        step *= sizes[dim]
    return tuple(steps)


def np_dtype(scalar_type: pte.ScalarType) -> np.dtype[np.generic]:
    """numpy's type of a scalar type.

    Raises:
        ArmLowerError: numpy has none.
    """
    dtype = kernels.torch_dtype(scalar_type)
    if dtype is torch.bfloat16:
        raise ArmLowerError("bfloat16 inputs and outputs cannot be given as numpy arrays")
    return np.dtype(torch.empty(0, dtype=dtype).numpy().dtype)
