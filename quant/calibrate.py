"""Calibration: representative inputs through the observers, with checks of the inputs and of what was observed."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e import FixedQParamsObserver, ObserverBase

from arm_lower.errors import QuantizationError
from arm_lower.export import describe, export, exporting, first_line, program_arguments
from quant.graph import state_kept
from quant.nodes import is_constant
from quant.pt2e import convert_pt2e, prepare_pt2e
from quant.quantizer import EthosUQuantizer, check_quantizer, module_stack

Progress = Callable[[int, int], None]

NOISE_SAMPLES = 8
NOISE_ELEMENTS = 256


class CalibrationWarning(UserWarning):
    """The calibration data may give a model that is less accurate than it could be."""


def quantize(
    model: nn.Module | ExportedProgram,
    example_inputs: tuple[Any, ...] | None,
    calibration: Iterable[tuple[Any, ...]],
    quantizer: EthosUQuantizer | None = None,
    *,
    progress: Progress | None = None,
) -> fx.GraphModule:
    """Exports, prepares, calibrates and converts ``model``, which is not changed.

    Args:
        model: Module in evaluation mode, or its exported program.
        example_inputs: Positional arguments; None takes those of the exported program, or the first sample.
        calibration: Argument tuples like ``example_inputs`` with representative values.
        quantizer: Settings; by default everything is int8.
        progress: Called with (samples done, samples in all) after every sample; an iterable without a length
            counts as long as it has got.

    Raises:
        QuantizationError: See `calibrate` and `prepare_pt2e`; keyword inputs.
        ArmLowerError: The model cannot be exported with these arguments.
    """
    if not isinstance(model, (nn.Module, ExportedProgram)):
        raise QuantizationError(f"the model is a {type(model).__name__}",
                                "give a torch.nn.Module or torch.export.export(model, inputs)")
    if isinstance(model, fx.GraphModule) and any(isinstance(m, ObserverBase) for m in model.modules()):
        raise QuantizationError("the model is prepared already",
                                "call calibrate(model, samples), then convert_pt2e(model)")
    if quantizer is not None:
        check_quantizer(quantizer)
    samples = _iterator(calibration)
    total = operator.length_hint(calibration)
    origin = "the example inputs"
    if isinstance(model, ExportedProgram):
        own = _positional_arguments(model)
        if example_inputs is not None:
            check_arguments("example_inputs", example_inputs, own)
        example_inputs = own
    elif example_inputs is None:
        first = next(samples, None)
        if first is None:
            raise _no_sample()
        check_is_tuple("calibration sample 0", first)
        example_inputs, origin = tuple(first), "calibration sample 0"
        samples = _chain(first, samples)
    else:
        check_is_tuple("example_inputs", example_inputs)
    with exporting():
        exported = model if isinstance(model, ExportedProgram) else export(model, example_inputs, origin)
        prepared = prepare_pt2e(exported, quantizer or EthosUQuantizer())
        calibrate(prepared, samples, example_inputs, progress=progress, total=total)
        return convert_pt2e(prepared)


def calibrate(
    prepared: fx.GraphModule,
    samples: Iterable[tuple[Any, ...]],
    example_inputs: tuple[Any, ...] | None = None,
    *,
    progress: Progress | None = None,
    total: int | None = None,
) -> int:
    """Runs ``samples`` through a prepared model and checks what its observers saw.

    Args:
        prepared: What `prepare_pt2e` returned.
        samples: Tuples of positional arguments.
        example_inputs: What every sample must look like: number of arguments, shapes and dtypes. None: as the first.
        progress: See `quantize`.
        total: Number of samples, if known.

    Returns:
        The number of samples.

    Raises:
        QuantizationError: No sample, or one of the wrong kind, or with NaN or infinity in it.

    Warns:
        CalibrationWarning: One sample only; noise instead of data; a tensor that was not observed or had one
            value only.
    """
    if not isinstance(prepared, fx.GraphModule):
        raise QuantizationError(f"calibrate was given a {type(prepared).__name__}, not a prepared GraphModule",
                                "call prepare_pt2e first, or quantize(model, inputs, samples), which does it all")
    names = [str(node.name) for node in prepared.graph.nodes if node.op == "placeholder"]
    expected = total or operator.length_hint(samples)
    kept: list[tuple[Any, ...]] = []
    done = 0
    with torch.no_grad(), state_kept(prepared):
        for sample in _iterator(samples):
            example_inputs = example_inputs if example_inputs is not None else sample
            check_sample(sample, example_inputs, done, names)
            if done < NOISE_SAMPLES:
                kept.append(sample)
            try:
                prepared(*sample)
            except Exception as error:  # the operators raise what they like
                raise QuantizationError(
                    f"the prepared model fails on calibration sample {done}, {describe(sample)}: {first_line(error)}",
                    "give samples like the inputs that it was exported with; if they are, the model uses something "
                    "that PT2E cannot run",
                ) from error
            done += 1
            if progress is not None:
                progress(done, max(done, expected))
    if not done:
        raise _no_sample()
    if done == 1:
        _warn("calibration with a single sample: ranges will be guesses; give a few dozen real inputs")
    for position in noise_arguments(kept):
        _warn(
            f"calibration input {names[position] if position < len(names) else position} looks like random noise: "
            "its neighbours are uncorrelated and its values normally or uniformly distributed; ranges of real "
            "inputs will differ"
        )
    for message in observer_findings(prepared):
        _warn(message)
    return done


def check_sample(sample: object, example: tuple[Any, ...], index: int, names: list[str] | None = None) -> None:
    """Raises if ``sample`` is not a tuple of arguments like ``example`` or holds NaN or infinity.

    Raises:
        QuantizationError: Names the sample, the argument, what was found and what is expected.
    """
    check_arguments(f"calibration sample {index}", sample, example, names)


def check_arguments(
    where: str, arguments: object, example: tuple[Any, ...], names: list[str] | None = None
) -> None:
    """`check_sample` for what ``where`` names."""
    check_is_tuple(where, arguments)
    assert isinstance(arguments, (tuple, list))
    wanted, structure = pytree.tree_flatten(tuple(example))
    if len(arguments) != len(example):
        raise QuantizationError(f"{where} has {len(arguments)} inputs, the model takes {len(example)}")
    try:
        found = structure.flatten_up_to(tuple(arguments))  # dicts may have their keys in another order
    except ValueError as error:
        raise QuantizationError(f"{where} is not nested like the arguments of the model: {first_line(error)}",
                                f"the model takes {structure}") from error
    for i, (x, y) in enumerate(zip(found, wanted)):
        name = f"{where}, input {i}" + (f" ({names[i]})" if names and i < len(names) else "")
        if not isinstance(y, torch.Tensor):
            if isinstance(x, torch.Tensor) or x != y:
                given = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)
                raise QuantizationError(
                    f"{name} is {given}, the model was exported with {y!r}, which is a constant of it",
                    "give the same everywhere, or export with a tensor there: torch.tensor(...)",
                )
            continue
        if not isinstance(x, torch.Tensor):
            raise QuantizationError(
                f"{name} is a {type(x).__name__}, not a torch.Tensor", "convert with torch.from_numpy"
            )
        if x.shape != y.shape:
            raise QuantizationError(f"{name} has the shape {tuple(x.shape)}, the model takes {tuple(y.shape)}")
        if x.dtype != y.dtype:
            raise QuantizationError(
                f"{name} has the dtype {x.dtype}, the model takes {y.dtype}", f"convert with .to({y.dtype})"
            )
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            bad = "NaN" if bool(torch.isnan(x).any()) else "infinity"
            raise QuantizationError(f"{name} contains {bad}", "leave the sample out or repair its preprocessing")


def check_is_tuple(where: str, arguments: object) -> None:
    """Raises if ``arguments`` is no tuple or list.

    Raises:
        QuantizationError: Says what it is.
    """
    if not isinstance(arguments, (tuple, list)):
        raise QuantizationError(
            f"{where} is a {type(arguments).__name__}, not a tuple of arguments", "write (x,) for one input"
        )


def _positional_arguments(program: ExportedProgram) -> tuple[Any, ...]:
    args, kwargs = program_arguments(program)
    if kwargs:
        raise QuantizationError(
            f"the exported program takes keyword inputs ({', '.join(kwargs)}), calibration samples are positional "
            "arguments",
            "export it with positional arguments, torch.export.export(model, (x, y)), and give samples like (x, y)",
        )
    return args


def _iterator(samples: object) -> Iterator[tuple[Any, ...]]:
    if isinstance(samples, (torch.Tensor, str, dict, nn.Module)) or not isinstance(samples, Iterable):
        raise QuantizationError(f"the calibration samples are a {type(samples).__name__}",
                                "give a list of argument tuples: [(x0,), (x1,), ...]")
    return iter(samples)


def _no_sample() -> QuantizationError:
    return QuantizationError("there is no calibration sample", "give at least a few dozen real inputs")


# ---- warnings --------------------------------------------------------------------------------------------


def noise_arguments(samples: list[tuple[Any, ...]]) -> list[int]:
    """Positions of float arguments that look like independent normal or uniform noise in all ``samples``.

    Two signs together: no correlation between neighbours along any axis of length 8 or more, and the kurtosis
    of a normal (3) or a uniform (1.8) distribution. Data with fewer than `NOISE_ELEMENTS` values is not judged.
    """
    if not samples:
        return []
    columns = zip(*(pytree.tree_leaves(sample) for sample in samples))
    return [i for i, column in enumerate(columns) if _is_noise(list(column))]


def _is_noise(tensors: list[Any]) -> bool:
    if not all(isinstance(t, torch.Tensor) and t.is_floating_point() for t in tensors):
        return False
    count = sum(t.numel() for t in tensors)
    axes = [axis for axis in range(tensors[0].dim()) if tensors[0].shape[axis] >= 8]
    if count < NOISE_ELEMENTS or not axes:
        return False
    x = torch.stack([t.detach().double() for t in tensors])
    x = x - x.mean()
    variance = float((x**2).mean())
    if variance == 0:
        return False
    kurtosis = float((x**4).mean()) / variance**2
    tolerance = max(0.1, 5 * math.sqrt(24 / count))
    if min(abs(kurtosis - 3.0), abs(kurtosis - 1.8)) > tolerance:
        return False
    limit = 5 / math.sqrt(count)
    for axis in axes:
        n = x.shape[axis + 1]
        pairs = x.narrow(axis + 1, 0, n - 1) * x.narrow(axis + 1, 1, n - 1)
        if abs(float(pairs.mean())) / variance > limit:
            return False
    return True


def observer_findings(prepared: fx.GraphModule) -> list[str]:
    """What is wrong with the observed ranges: a sentence for each tensor that was not seen, had one value only, or
    contained NaN or infinity."""
    modules = dict(prepared.named_modules(remove_duplicate=False))
    seen: set[int] = set()
    findings = []
    for node in prepared.graph.nodes:
        observer = modules.get(str(node.target)) if node.op == "call_module" else None
        source = node.args[0] if node.args else None
        if not isinstance(observer, ObserverBase) or isinstance(observer, FixedQParamsObserver) or id(observer) in seen:
            continue
        if is_constant(source) or not hasattr(observer, "min_val") or not isinstance(source, fx.Node):
            continue
        seen.add(id(observer))
        where = _describe(source)
        low, high = (torch.as_tensor(getattr(observer, bound)) for bound in ("min_val", "max_val"))
        if getattr(observer, "non_finite", False):
            findings.append(f"{where} took the values NaN or infinity during calibration; they are ignored")
        if not low.numel() or bool((low > high).any()):
            findings.append(f"{where} was never observed: no calibration sample reached it")
        elif bool((low == high).all()):
            findings.append(
                f"{where} was {float(low.flatten()[0]):g} in every calibration sample; its scale means nothing"
            )
    return findings


def _describe(node: fx.Node) -> str:
    stack = module_stack(node)
    path = stack[-1][0] if stack else ""
    return f"{node.name} ({node.target}{', in module ' + path if path else ''})"


def _warn(message: str) -> None:
    """Warns at the line of the user's code that called into this file."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CalibrationWarning, stacklevel=level)


def _chain(first: tuple[Any, ...], rest: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    yield first
    yield from rest
