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
from quant.graph import state_kept
from quant.nodes import is_constant
from quant.pt2e import convert_pt2e, prepare_pt2e
from quant.quantizer import EthosUQuantizer, module_stack

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
        QuantizationError: See `calibrate` and `prepare_pt2e`.
    """
    samples = iter(calibration)
    total = operator.length_hint(calibration)
    if example_inputs is None:
        if isinstance(model, ExportedProgram) and model.example_inputs is not None:
            example_inputs = model.example_inputs[0]
        else:
            first = next(samples, None)
            if first is None:
                raise QuantizationError("there is no calibration sample", "give at least a few dozen real inputs")
            example_inputs = first if isinstance(first, tuple) else tuple(first)
            samples = _chain(first, samples)
    exported = model if isinstance(model, ExportedProgram) else torch.export.export(model, example_inputs)
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
    names = [str(node.name) for node in prepared.graph.nodes if node.op == "placeholder"]
    expected = total or operator.length_hint(samples)
    kept: list[tuple[Any, ...]] = []
    done = 0
    with torch.no_grad(), state_kept(prepared):
        for sample in samples:
            example_inputs = example_inputs if example_inputs is not None else sample
            check_sample(sample, example_inputs, done, names)
            if done < NOISE_SAMPLES:
                kept.append(sample)
            prepared(*sample)
            done += 1
            if progress is not None:
                progress(done, max(done, expected))
    if not done:
        raise QuantizationError("there is no calibration sample", "give at least a few dozen real inputs")
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
    where = f"calibration sample {index}"
    if not isinstance(sample, (tuple, list)):
        raise QuantizationError(
            f"{where} is a {type(sample).__name__}, not a tuple of arguments", "write (x,) for one input"
        )
    found, wanted = pytree.tree_leaves(tuple(sample)), pytree.tree_leaves(tuple(example))
    if len(found) != len(wanted):
        raise QuantizationError(f"{where} has {len(found)} inputs, the model takes {len(wanted)}")
    for i, (x, y) in enumerate(zip(found, wanted)):
        name = f"{where}, input {i}" + (f" ({names[i]})" if names and i < len(names) else "")
        if not isinstance(y, torch.Tensor):
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
