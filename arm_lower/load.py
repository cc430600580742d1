"""Models and calibration data from the files that the command line names."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.export import ExportedProgram

from arm_lower.errors import ArmLowerError
from arm_lower.export import exporting
from arm_lower.files import read_arrays, read_file

Sample = tuple[Any, ...]
Model = nn.Module | ExportedProgram


def load_model(source: str) -> tuple[Model, Sample | None]:
    """The model that ``FILE.pt2`` or ``FILE.py:NAME`` names, and its example inputs where they are known.

    ``NAME`` is a module, an exported program, a pair of one of them with a tuple of example inputs, or a function
    without arguments that returns any of these.

    Raises:
        ArmLowerError: The file cannot be read, has no such name, fails, or the object is something else.
    """
    if source.endswith(".pt2"):
        read_file(source)
        try:
            with exporting():
                program = torch.export.load(source)
        except Exception as error:
            # torch has no error of its own for what is not an exported program: whatever it trips over first
            raise ArmLowerError(
                f"{source} is not an exported program: {type(error).__name__}: {error}",
                "write it with torch.export.save(torch.export.export(model, inputs), path)",
            ) from error
        return program, program.example_inputs[0] if program.example_inputs else None
    value = _named(source)
    example: Sample | None = None
    if isinstance(value, tuple) and len(value) == 2:
        value, example = value[0], _as_sample(value[1])
    if not isinstance(value, (nn.Module, ExportedProgram)):
        raise ArmLowerError(
            f"{source} is a {type(value).__name__}, not a model",
            "name a torch.nn.Module, an ExportedProgram, a (model, example_inputs) pair, or a function returning one",
        )
    return value, example


def load_samples(source: str) -> list[Sample]:
    """Calibration samples, each a tuple of the model's positional arguments.

    Args:
        source: ``FILE.npz`` with one array for each argument of the model, in argument order, in which a new first
            axis counts the samples; or ``FILE.py:NAME``, an iterable of argument tuples (or of tensors, for a model
            with one argument) or a function without arguments that returns one.

    Raises:
        ArmLowerError: The file cannot be read or is something else, it holds no sample, or the arrays differ in
            their number of samples.
    """
    samples = _from_arrays(source) if source.endswith(".npz") else _from_iterable(source, _named(source))
    if not samples:
        raise ArmLowerError(f"{source} holds no calibration sample")
    return samples


def _from_arrays(source: str) -> list[Sample]:
    arrays = read_arrays(source)
    counts = {len(a) if a.ndim else 0 for a in arrays}
    if len(counts) != 1:
        shapes = ", ".join(str(list(a.shape)) for a in arrays) or "none"
        raise ArmLowerError(
            f"{source}: the arrays do not agree on the number of samples: {shapes}",
            "stack the samples of each argument along a new first axis: [samples, *shape of the argument]",
        )
    tensors = [_tensor(source, i, a) for i, a in enumerate(arrays)]
    return [tuple(t[i] for t in tensors) for i in range(counts.pop())]


def _tensor(source: str, number: int, array: npt.NDArray[np.generic]) -> torch.Tensor:
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ArmLowerError(
            f"{source}: array {number} has the dtype {array.dtype}, which torch does not have",
            "allowed are bool, integers of 8 to 64 bits, float16, float32 and float64; convert with .astype",
        ) from error


def _from_iterable(source: str, value: Any) -> list[Sample]:
    # a str, a dict or a module can be iterated too, but not over samples
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, dict, nn.Module)):
        raise ArmLowerError(f"{source} is a {type(value).__name__}, not a list of calibration samples",
                            "name a list of argument tuples, [(x0,), (x1,), ...], or a function that returns one")
    return [_as_sample(item) for item in value]


def _as_sample(value: Any) -> Sample:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _named(source: str) -> Any:
    """The object ``NAME`` of ``FILE.py``, or what it returns if it is a plain function or class."""
    file, colon, name = source.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ArmLowerError(f"{source!r} names no file of a known kind", "give FILE.py:NAME, FILE.pt2 or FILE.npz")
    module = _import(Path(file))
    if not hasattr(module, name):
        names = sorted(n for n in vars(module) if not n.startswith("_"))
        raise ArmLowerError(f"{file} has no {name!r}", "it has " + ", ".join(names[:40]))
    value = getattr(module, name)
    if not callable(value) or isinstance(value, (nn.Module, ExportedProgram)):
        return value
    try:
        return value()
    except Exception as error:
        raise _user_error(f"{source}()", error) from error


def _import(file: Path) -> Any:
    read_file(file)
    name = file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ArmLowerError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # the file may import its neighbours
    previous = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name)
        if previous is not None:
            sys.modules[name] = previous
        raise _user_error(str(file), error) from error
    return module


def _user_error(what: str, error: Exception) -> ArmLowerError:
    """The user's own exception with the line it came from, without a page of traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    where = f" at {Path(last.filename).name}, line {last.lineno}" if last else ""
    return ArmLowerError(f"{what} failed with {type(error).__name__}{where}: {error}")
