"""One call from a PyTorch model to a verified ``.pte``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from arm_lower.edge.boundary import BoundaryTensor, describe_boundary, use_channels_last_outputs, use_int8
from arm_lower.edge.program import Delegate, EdgeProgram
from arm_lower.errors import ArmLowerError
from arm_lower.export import Arguments, export, exporting, in_order, program_arguments
from arm_lower.files import check_writable, resolved, write_file
from arm_lower.partition import EthosUPartitioner, Reason
from arm_lower.program import EdgeProgramManager, ExecutorchProgram, NotPickled, to_edge
from arm_lower.report import Report, build_report
from arm_lower.spec import EthosUCompileSpec

if TYPE_CHECKING:
    from arm_lower.exactness import Outcome
    from quant.config import QuantizationConfig
    from quant.quantizer import EthosUQuantizer

Array = npt.NDArray[np.generic]
Reals = npt.NDArray[np.float64]
Progress = Callable[[str, int, int], None]
Model = nn.Module | ExportedProgram | fx.GraphModule


@dataclass(frozen=True)
class OutputCheck:
    """One output of the ``.pte``, run on the host, against the quantized model run in torch.

    Attributes:
        name: Output name.
        max_difference: Largest absolute difference over all samples.
        step: Scale of the quantized output, None for one that is not quantized; ``max_difference / step`` is in LSB.
        sqnr_db: 10 log10(sum y^2 / sum (y - x)^2).
    """

    name: str
    max_difference: float
    step: float | None
    sqnr_db: float


@dataclass(frozen=True)
class DelegateCheck:
    """One delegate call: the command stream on the NPU model against its TOSA graph on the reference model.

    Attributes:
        call: Number of the call, in file order.
        compared: Output elements compared, over all samples.
        different: Elements that are not equal.
        where: The first layer that differs, its PyTorch module, the element and both values; "" if all are equal.
    """

    call: int
    compared: int
    different: int
    where: str = ""

    @property
    def exact(self) -> bool:
        return self.different == 0


@dataclass(frozen=True)
class Verification:
    """What `Compiled.verify` found.

    Attributes:
        outputs: For each output, the executed file against the quantized model; empty if there is none.
        delegates: For each delegate call, whether the command stream does what the TOSA graph says.
        results: Outputs of the executed file, for each sample.
    """

    outputs: tuple[OutputCheck, ...]
    delegates: tuple[DelegateCheck, ...]
    results: tuple[tuple[Array, ...], ...] = field(repr=False)

    @property
    def exact(self) -> bool:
        """Whether every delegate's command stream gave the bytes of the TOSA reference model."""
        return all(d.exact for d in self.delegates)

    def __str__(self) -> str:
        lines = [
            f"delegate call {d.call}: reference model {'==' if d.exact else '!='} NPU model, "
            + (f"{d.compared} elements" if d.exact else f"{d.different} of {d.compared} elements differ; {d.where}")
            for d in self.delegates
        ]
        lines += [
            f"{c.name}: at most {c.max_difference:g}"
            + (f" ({c.max_difference / c.step:.1f} LSB)" if c.step else "")
            + f" from the quantized model, SQNR {c.sqnr_db:.1f} dB"
            for c in self.outputs
        ]
        return "\n".join(lines) or "nothing to compare: no delegate, and no quantized model"


class _Both:
    """Runs each delegate call on the NPU model and on the reference model, and counts where they differ."""

    def __init__(
        self, record: Callable[[int, bytes, list[Array]], Sequence[Array]], delegates: Sequence[Delegate]
    ) -> None:
        self.record = record
        self.delegates = delegates
        self.compared: dict[int, int] = {}
        self.different: dict[int, int] = {}
        self.where: dict[int, str] = {}

    def __call__(self, call: int, blob: bytes, inputs: list[Array]) -> Sequence[Array]:
        from fvp.ethosu.delegate import run_delegate

        reference = self.record(call, blob, inputs)
        executed = run_delegate(call, blob, inputs)
        for want, found in zip(reference, executed, strict=True):
            a, b = (
                np.frombuffer(want.tobytes(), np.uint8),
                np.frombuffer(np.ascontiguousarray(found).tobytes(), np.uint8),
            )
            self.compared[call] = self.compared.get(call, 0) + want.size
            self.different[call] = self.different.get(call, 0) + (
                want.size if a.size != b.size else int((a != b).sum())
            )
        if self.different.get(call) and call not in self.where:
            self.where[call] = self.first(call, inputs)
        return executed

    def first(self, call: int, inputs: list[Array]) -> str:
        """Where a call first differs."""
        from fvp.ethosu.check import examine

        delegate = self.delegates[call]
        arrays = [
            np.frombuffer(a.tobytes(), t.dtype.numpy).reshape(t.shape) for a, t in zip(inputs, delegate.tosa.inputs)
        ]
        finding = examine(delegate.tosa, delegate.vela, arrays)
        return finding.message if finding else ""

    def checks(self) -> tuple[DelegateCheck, ...]:
        return tuple(
            DelegateCheck(call, self.compared[call], self.different[call], self.where.get(call, ""))
            for call in sorted(self.compared)
        )


@dataclass(frozen=True)
class Compiled(NotPickled):
    """A compiled model.

    Attributes:
        program: The finished program.
        report: Costs, and what stayed on the CPU and why.
        boundary: ``inputs`` and ``outputs`` as the caller sees them, with their quantization.
        quantized: The quantized model in torch that the file implements, None if the model was given without one.
    """

    program: ExecutorchProgram
    report: Report
    boundary: dict[str, list[BoundaryTensor]]
    quantized: fx.GraphModule | None = field(default=None, repr=False)
    pickle_instead: ClassVar[str] = (
        "save(path) writes the file and its record; the bytes (.buffer, .record), .report and .boundary can be pickled"
    )

    @property
    def buffer(self) -> bytes:
        """The bytes of the ``.pte``."""
        return self.program.buffer

    @property
    def delegates(self) -> list[Delegate]:
        """Delegates in call order."""
        return [d for method in self.program.methods.values() for d in method.delegates.values()]

    @cached_property
    def record(self) -> dict[str, bytes]:
        """File name -> content of the record: each delegate's TOSA under the name that Model Explorer's adapter looks
        for (the highest tag is the first call), the report, the quantization of inputs and outputs, and the layer of
        each command of the NPU (`fvp.ethosu.record`)."""
        files = {}
        count = len(self.delegates)
        for i, delegate in enumerate(self.delegates):
            spec = dict(delegate.compile_specs).get("tosa_spec", b"TOSA-1.0+INT").decode()
            files[f"output_tag{count - 1 - i}_{spec}.tosa"] = delegate.tosa_bytes
        files["report.json"] = self.report.to_json().encode()
        io = {side: [asdict(t) for t in tensors] for side, tensors in self.boundary.items()}
        files["io.json"] = (json.dumps(io, indent=2) + "\n").encode()
        files["commands.json"] = (json.dumps({_digest(d): _commands(d) for d in self.delegates}) + "\n").encode()
        return files

    def save(self, path: str | os.PathLike[str], record: bool = True) -> None:
        """Writes the ``.pte``, and beside it the folder ``<path>.record`` unless told not to. A record of an earlier
        compilation there is replaced, or removed.

        Raises:
            ArmLowerError: It cannot be written; then nothing is left half-written.
        """
        target = Path(path)
        folder = target.with_suffix(".record")
        if folder == target:
            raise ArmLowerError(f"cannot write {target}: a record folder has this name", "choose a name ending in .pte")
        check_writable(target)
        with _swapped(resolved(folder), self.record if record else None):
            write_file(target, self.buffer)

    def verify(self, inputs: Iterable[Sequence[Any]]) -> Verification:
        """Runs the file on the host and says whether it does what it should.

        The ``.pte`` is executed from its own bytes: delegates' command streams on the NPU model, CPU operators in
        torch. Every delegate call is compared byte for byte with its TOSA graph on the reference model, and the
        outputs with the quantized model in torch.

        Args:
            inputs: Samples: argument tuples like the example inputs, of tensors or arrays. Where the file takes int8,
                the integers are taken as well.

        Raises:
            ArmLowerError: The inputs do not fit, or there are none.
        """
        from quant.graph import state_kept
        from tosa_ref.compare import sqnr_db
        from tosa_ref.host import Host, Record

        samples = [self._leaves(s) for s in _samples(inputs, "inputs", arrays=True)]
        if not samples:
            raise ArmLowerError("verify was given no sample", "give at least one tuple of arguments")
        with tempfile.TemporaryDirectory() as folder:
            for name, data in self.record.items():
                (Path(folder) / name).write_bytes(data)
            both = _Both(Record(Path(folder), len(self.delegates)), self.delegates)
            host = Host(self.buffer, delegate_runner=both)
            results = [tuple(host.run(self._given(s))) for s in samples]
        checks = []
        if self.quantized is not None:
            with torch.no_grad(), state_kept(self.quantized), exporting():
                wanted = [_leaves(self.quantized(*args, **kwargs)) for args, kwargs in map(self._taken, samples)]
            # what is no tensor (None, a number) is an output of the file too, but not of the boundary
            places = [i for i, value in enumerate(wanted[0]) if isinstance(value, torch.Tensor)]
            for i, tensor in zip(places, self.boundary["outputs"], strict=True):
                found = np.stack([self._real(r[i], tensor) for r in results]).astype(np.float64)
                expected = np.stack([w[i].numpy() for w in wanted]).astype(np.float64)
                found, expected = _without_equal(found, expected)
                difference = float(np.abs(found - expected).max()) if found.size else 0.0
                checks.append(OutputCheck(tensor.name, difference, tensor.scale, sqnr_db(expected, found)))
        return Verification(tuple(checks), both.checks(), tuple(results))

    @property
    def _structure(self) -> pytree.TreeSpec | None:
        """How the arguments of a call are nested."""
        method: EdgeProgram = next(iter(self.program.methods.values()))
        found: pytree.TreeSpec | None = method.graph_module.meta.get("in_spec")
        return found

    def _leaves(self, sample: Sequence[Any]) -> list[Any]:
        """The tensors, arrays and numbers of a sample in the order of the file's inputs."""
        return in_order((tuple(sample), {}), self._structure)

    def _given(self, leaves: Sequence[Any]) -> list[Any]:
        """Arguments as the file wants them: an int8 input is quantized here."""
        tensors = iter(self.boundary["inputs"])
        return [self._input(a, next(tensors, None)) if _is_array(a) else a for a in leaves]

    @staticmethod
    def _input(argument: Any, tensor: BoundaryTensor | None) -> Any:
        if isinstance(argument, torch.Tensor) and argument.dtype == torch.bfloat16:
            raise ArmLowerError(
                "an input is bfloat16, which numpy does not have, so that the file cannot be run on the host",
                "verify a model with float32 inputs: a conversion is its first operator then",
            )
        array = argument.detach().numpy() if isinstance(argument, torch.Tensor) else argument
        if tensor is None or tensor.dtype != "int8" or tensor.scale is None or array.dtype == np.int8:
            return array
        # in float32, as quantized_decomposed.quantize_per_tensor rounds
        scaled = np.rint(array.astype(np.float32) * np.float32(1.0 / tensor.scale))
        return np.clip(scaled + (tensor.zero_point or 0), -128, 127).astype(np.int8)

    def _taken(self, leaves: Sequence[Any]) -> Arguments:
        """Arguments as the quantized model wants them: tensors of reals, nested as it was exported."""
        tensors = iter(self.boundary["inputs"])
        values = [self._reals(a, next(tensors, None)) if _is_array(a) else a for a in leaves]
        if self._structure is None:
            return tuple(values), {}
        args, kwargs = pytree.tree_unflatten(values, self._structure)
        return args, kwargs

    def _reals(self, argument: Any, tensor: BoundaryTensor | None) -> torch.Tensor:
        found = argument if isinstance(argument, torch.Tensor) else torch.from_numpy(np.asarray(argument))
        if found.dtype != torch.int8 or tensor is None:
            return found
        return torch.from_numpy(self._real(found.numpy(), tensor))

    @staticmethod
    def _real(array: Array, tensor: BoundaryTensor) -> Array:
        if tensor.dtype == "int8" and tensor.scale is not None:
            return (array.astype(np.float32) - (tensor.zero_point or 0)) * np.float32(tensor.scale)
        return array


def _digest(delegate: Delegate) -> str:
    return hashlib.sha256(delegate.processed).hexdigest()


def _commands(delegate: Delegate) -> dict[str, list[Any]]:
    layers = [[layer.name, layer.location, layer.npu_cycles] for layer in delegate.vela.layers]
    return {"layers": layers, "commands": [list(pair) for pair in delegate.vela.commands]}


def compile(
    model: Model,
    calibration: Iterable[Any] | None,
    target: str,
    *,
    system_config: str | None = None,
    memory_mode: str | None = None,
    quantization: EthosUQuantizer | QuantizationConfig | None = None,
    sram_limit: int | None = None,
    io_layout: Literal["contiguous", "channels_last"] = "contiguous",
    io_dtype: Literal["float", "int8"] = "float",
    example_inputs: Sequence[Any] | None = None,
    effort: str = "normal",
    config_ini: str | os.PathLike[str] | None = None,
    verify: bool = False,
    progress: Progress | None = None,
) -> Compiled:
    """Quantizes and compiles a model for an Ethos-U NPU.

    Args:
        model: A module in evaluation mode, an exported program, or a graph module that is quantized already.
        calibration: Representative samples (argument tuples, or tensors for models of one input); None compiles the
            model as it is: all on the CPU unless it is quantized already.
        target: ``ethos-u55-128``, ``ethos-u85-256`` ... (`EthosUCompileSpec`).
        system_config: Section of Vela's .ini; the target's usual one by default.
        memory_mode: Likewise.
        quantization: An `EthosUQuantizer`, or a config for the whole model; int8 by default.
        sram_limit: Bytes of SRAM for the NPU's scratch; more is an error that says how much is needed.
        io_layout: ``channels_last``: 4-D inputs and outputs lie NHWC in memory, so that no transpose is left.
        io_dtype: ``int8``: inputs and outputs are the quantized integers; `Compiled.boundary` has their scales.
        example_inputs: Arguments to export with; the first calibration sample by default.
        effort: ``fast``, ``normal`` or ``max``: how many Vela settings are tried.
        config_ini: A vela.ini of your own.
        verify: Run each delegate's command stream on the NPU model, on calibration samples and random values, and
            compare it byte for byte with its TOSA graph on the reference model. One that differs is compiled with
            another Vela setting, else the operator at fault goes to the CPU; the report says so.
        progress: Called with (stage, done, total).

    Raises:
        ArmLowerError: What is wrong with the target, the model or the data, and what to try. With ``verify``: a
            delegate is not exact and cannot be repaired.
    """
    spec = EthosUCompileSpec(
        target,
        system_config=system_config,
        memory_mode=memory_mode,
        sram_limit=sram_limit,
        effort=effort,
        config_ini=config_ini,
    )
    _check_choice("io_layout", io_layout, ("contiguous", "channels_last"))
    _check_choice("io_dtype", io_dtype, ("float", "int8"))
    if not isinstance(model, (nn.Module, ExportedProgram)):
        raise ArmLowerError(
            f"the model is a {type(model).__name__}",
            "give a torch.nn.Module, an ExportedProgram or a quantized GraphModule",
        )
    samples = None if calibration is None else _samples(calibration)
    examples, origin = _examples(model, samples, example_inputs)
    if io_layout == "channels_last":
        examples = tuple(_channels_last(x) for x in examples)
    seconds: dict[str, float] = {}
    source: ExportedProgram | fx.GraphModule = _exported(model, examples, origin, seconds, progress)
    if samples is not None:
        source = _quantized(source, samples, quantization, seconds, progress)
    with _stage("edge", seconds, progress):
        manager = to_edge(source, examples)
        program = manager.program()
        if io_layout == "channels_last":
            use_channels_last_outputs(program)
        if io_dtype == "int8":
            use_int8(program)
        boundary = describe_boundary(program)
    reference = source if isinstance(source, fx.GraphModule) else None
    given = samples or [examples]
    moved: dict[str, Reason] = {}
    while True:
        with _stage("npu", seconds, progress):
            lowered = EdgeProgramManager({program.name: program}).to_backend(EthosUPartitioner(spec, moved))
        compiled = _written(lowered, boundary, reference, seconds, spec, progress, {})
        if not verify:
            return compiled
        with _stage("verify", seconds, progress):
            outcome = _checked(compiled, given, spec, moved)
        if not outcome.moved:
            lowered.program(program.name).delegates.update(outcome.repaired)
            return _written(lowered, boundary, reference, seconds, spec, progress, outcome.verified)
        moved.update(outcome.moved)


def _written(
    lowered: EdgeProgramManager,
    boundary: dict[str, list[BoundaryTensor]],
    reference: fx.GraphModule | None,
    seconds: dict[str, float],
    spec: EthosUCompileSpec,
    progress: Progress | None,
    verified: Mapping[str, str],
) -> Compiled:
    """The file and the report."""
    with _stage("pte", seconds, progress):
        finished = lowered.to_executorch()
        _ = finished.buffer
    methods: list[EdgeProgram] = [lowered.program(name) for name in lowered.methods]
    return Compiled(finished, build_report(methods, finished, seconds, spec, verified), boundary, reference)


def _checked(
    compiled: Compiled, samples: Sequence[Sequence[Any]], spec: EthosUCompileSpec, moved: Mapping[str, Reason]
) -> Outcome:
    from arm_lower.exactness import SAMPLES, Outcome, check, delegate_inputs

    delegates = {key: d for method in compiled.program.methods.values() for key, d in method.delegates.items()}
    if not delegates:
        return Outcome({})
    arguments = [compiled._given(compiled._leaves(s)) for s in samples[:SAMPLES]]
    return check(delegates, delegate_inputs(compiled.buffer, compiled.delegates, arguments), spec, moved)


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ArmLowerError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")


def _arguments(sample: Any) -> tuple[Any, ...]:
    return tuple(sample) if isinstance(sample, (list, tuple)) else (sample,)


def _samples(given: Iterable[Any], name: str = "calibration", *, arrays: bool = False) -> list[tuple[Any, ...]]:
    if isinstance(given, (torch.Tensor, np.ndarray, str, dict, nn.Module)) or not isinstance(given, Iterable):
        raise ArmLowerError(f"{name} is a {type(given).__name__}",
                            "give a list of argument tuples: [(x0,), (x1,), ...]")
    samples = [_arguments(s) for s in given]
    for i, sample in enumerate(samples):
        for j, x in enumerate(sample):
            if isinstance(x, np.ndarray) and not arrays:
                raise ArmLowerError(f"calibration sample {i}, input {j} is a numpy array, not a torch.Tensor",
                                    "convert with torch.from_numpy")
    return samples


def _leaves(result: Any) -> list[Any]:
    return list(pytree.tree_leaves(result))


def _is_array(x: Any) -> bool:
    """Whether it stands for a tensor; numpy's float64 is a Python float too."""
    return isinstance(x, (torch.Tensor, np.ndarray)) or isinstance(x, np.generic) and not isinstance(x, float)


def _without_equal(found: Reals, expected: Reals) -> tuple[Reals, Reals]:
    """Both with 0 where they are the same infinity or both NaN, whose difference would be NaN."""
    same = ~np.isfinite(expected) & ((found == expected) | (np.isnan(found) & np.isnan(expected)))
    return np.where(same, 0.0, found), np.where(same, 0.0, expected)


def _examples(
    model: Model, samples: list[tuple[Any, ...]] | None, given: Sequence[Any] | None
) -> tuple[tuple[Any, ...], str]:
    """Arguments of one call, and what they are. Those of an exported program are its own, whatever the samples are."""
    if given is not None and not isinstance(given, (list, tuple)):
        raise ArmLowerError(f"example_inputs is a {type(given).__name__}, not a tuple of arguments",
                            "write (x,) for one input")
    if isinstance(model, ExportedProgram):
        args, kwargs = program_arguments(model)
        if given is not None:
            from quant.calibrate import check_arguments

            check_arguments("example_inputs", given, args)
            args = tuple(given)
        return (*args, *kwargs.values()), "its example inputs"
    if given is not None:
        return tuple(given), "example_inputs"
    if samples:
        return samples[0], "calibration sample 0"
    raise ArmLowerError(
        "no calibration data and no example inputs",
        "give calibration, or example_inputs=(...) to compile without it",
    )


def _channels_last(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def _exported(
    model: Model, examples: tuple[Any, ...], origin: str, seconds: dict[str, float], progress: Progress | None
) -> ExportedProgram | fx.GraphModule:
    if isinstance(model, (ExportedProgram, fx.GraphModule)):
        return model
    if model.training:
        raise ArmLowerError(f"{type(model).__name__} is in training mode", "call model.eval() first")
    with _stage("export", seconds, progress):
        return export(model, examples, origin)


def _quantized(
    source: ExportedProgram | fx.GraphModule,
    samples: list[tuple[Any, ...]],
    quantization: EthosUQuantizer | QuantizationConfig | None,
    seconds: dict[str, float],
    progress: Progress | None,
) -> fx.GraphModule:
    from quant import EthosUQuantizer, quantize
    from quant.config import QuantizationConfig

    if not isinstance(quantization, (EthosUQuantizer, QuantizationConfig, type(None))):
        raise ArmLowerError(f"quantization is a {type(quantization).__name__}",
                            "give an EthosUQuantizer or a QuantizationConfig")
    quantizer = quantization if isinstance(quantization, EthosUQuantizer) else EthosUQuantizer()
    if isinstance(quantization, QuantizationConfig):
        quantizer.set_global(quantization)
    if isinstance(source, fx.GraphModule):
        raise ArmLowerError(
            "calibration was given for a graph module",
            "give the original module, or calibration=None for one that is quantized",
        )
    with _stage("quantize", seconds):
        return quantize(
            source,
            None,  # its own
            samples,
            quantizer,
            progress=None if progress is None else lambda i, n: progress("calibration", i, n),
        )


@contextmanager
def _stage(name: str, seconds: dict[str, float], progress: Progress | None = None) -> Iterator[None]:
    start = time.perf_counter()
    if progress is not None:
        progress(name, 0, 1)
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
    if progress is not None:
        progress(name, 1, 1)


@contextmanager
def _swapped(folder: Path, files: dict[str, bytes] | None) -> Iterator[None]:
    """A folder with exactly these files (None: no folder) in place of a record that is there. If this or the block
    fails, all is as it was.

    Raises:
        ArmLowerError: It cannot be written, or something is there that is no record.
    """
    moved: list[tuple[Path, Path]] = []  # what was renamed, from and to
    spare: list[Path] = []  # folders to remove in the end
    ours = folder.is_dir() and ((folder / "report.json").is_file() or not any(folder.iterdir()))
    if files is not None and folder.exists() and not ours:
        raise ArmLowerError(f"cannot write {folder}: it is there and is no record of a compilation",
                            "move it away, or choose another name")
    try:
        try:
            new = None if files is None else _filled_folder(folder, files, spare)
            aside = _empty_folder(folder, spare) if ours else None
            for source, destination in ((folder, aside), (new, folder)):
                if source is not None and destination is not None:
                    os.replace(source, destination)
                    moved.append((source, destination))
        except OSError as error:
            why = error.strerror or error
            raise ArmLowerError(f"cannot write {folder}: {why}", "choose a writable path") from error
        yield
    except BaseException:
        for source, destination in reversed(moved):
            os.replace(destination, source)
        raise
    finally:
        for path in spare:
            shutil.rmtree(path, ignore_errors=True)


def _empty_folder(beside: Path, spare: list[Path]) -> Path:
    spare.append(Path(tempfile.mkdtemp(prefix=f".{beside.name}.", dir=beside.parent)))
    return spare[-1]


def _filled_folder(beside: Path, files: dict[str, bytes], spare: list[Path]) -> Path:
    folder = _empty_folder(beside, spare)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    os.chmod(folder, 0o755)
    return folder
