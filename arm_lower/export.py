"""torch.export, and what the arguments of an exported program look like."""

from __future__ import annotations

import copy
import io
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from arm_lower.edge.build import STATIC_HINT
from arm_lower.errors import ArmLowerError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""

_LOCK = threading.RLock()
"""torch.export replaces functions and methods of torch while it traces, for all threads: neither a second export nor
a call of a module may happen meanwhile."""

_DOCUMENTATION = "see the torch.export documentation for what a model may do"


def export(model: nn.Module, arguments: Sequence[Any], origin: str = "the example inputs") -> ExportedProgram:
    """``torch.export.export``.

    Args:
        model: A module in evaluation mode.
        arguments: Positional arguments.
        origin: What the arguments are, for messages.

    Raises:
        ArmLowerError: torch cannot export it, or the model cannot take the arguments.
    """
    try:
        with exporting(), _without_graph():
            return torch.export.export(model, tuple(arguments))
    except Exception as error:
        # torch has no error of its own for this; the model itself knows best what is wrong with its arguments
        with exporting():
            own = _own_error(model, arguments)
        name = type(model).__name__
        if own is not None:
            raise ArmLowerError(
                f"torch.export cannot export {name}: it cannot be called with {origin}, {describe(arguments)}: "
                f"{first_line(own)}",
                "give arguments as the model takes them, with the batch dimension; in an .npz file a new first axis "
                "counts the samples: [samples, *shape of the argument]",
            ) from error
        depends = "data-dependent" in str(error) or "DataDependent" in type(error).__name__
        raise ArmLowerError(
            f"torch.export cannot export {name}: {first_line(error)}",
            "what is computed, or its shape, depends on values (.item(), an if on a tensor, nonzero): write it with "
            "torch.where and fixed shapes; " + _DOCUMENTATION
            if depends
            else _DOCUMENTATION,
        ) from error


@contextmanager
def exporting() -> Iterator[None]:
    """For an export, a trace, or a call of a module: no other thread does any of them meanwhile.

    torch's log keeps silent: it writes pages of traceback about what torch then raises, and we say. A log that was
    asked for (TORCH_LOGS) is written.
    """
    log = logging.getLogger("torch")
    with _LOCK:
        level = log.level
        if level == logging.WARNING:
            log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)


def program_arguments(program: ExportedProgram) -> Arguments:
    """The example inputs of an exported program; zeros of the same kind if it was saved without them.

    Raises:
        ArmLowerError: It has none, and a size is dynamic.
    """
    if program.example_inputs is not None:
        args, kwargs = program.example_inputs
        return tuple(args), dict(kwargs)
    held = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    inputs = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    args, kwargs = pytree.tree_unflatten([_like(held[n], n) for n in inputs], program.call_spec.in_spec)
    return tuple(args), dict(kwargs)


def in_order(arguments: Arguments, structure: pytree.TreeSpec | None) -> list[Any]:
    """All tensors and numbers in ``arguments``, in the order of the program's inputs.

    Args:
        arguments: Of a call; keyword arguments may also be given as the last positional ones. Those of a nested
            call may be given flat, as the program's inputs are.
        structure: How a call's arguments are nested, as exported. None: in the order in which they come.

    Raises:
        ArmLowerError: They are nested otherwise.
    """
    if structure is None:
        return list(pytree.tree_leaves(arguments))
    try:
        leaves: list[Any] = structure.flatten_up_to(as_called(arguments[0], arguments[1], structure))
    except ValueError as error:
        if not arguments[1] and all(pytree.tree_structure(x).is_leaf() for x in arguments[0]):
            return list(arguments[0])
        raise ArmLowerError(f"the arguments {describe(arguments[0])} are not nested like those that the model was "
                            f"exported with: {first_line(error)}") from error  # fmt: skip
    return leaves


def as_called(args: Sequence[Any], kwargs: dict[str, Any], structure: pytree.TreeSpec | None) -> Arguments:
    """The arguments with those behind the positional ones of ``structure`` under their names."""
    if structure is None or kwargs:
        return tuple(args), kwargs
    positional, named = structure.children()
    count = positional.num_children
    if not named.num_children or len(args) != count + named.num_children:
        return tuple(args), kwargs
    return tuple(args[:count]), dict(zip(named.context, args[count:]))


def describe(arguments: Sequence[Any]) -> str:
    """``float32[1, 3, 8, 8], 2.0``"""
    return ", ".join(_text(x) for x in pytree.tree_leaves(tuple(arguments))) or "no argument"


def first_line(error: Exception) -> str:
    """What an exception says, without its pages."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def _text(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    return repr(x) if isinstance(x, (int, float, str, type(None))) else type(x).__name__


def _like(value: Any, name: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not all(isinstance(size, int) for size in value.shape):
        raise ArmLowerError(f"input {name}: a size is dynamic ({list(value.shape)})", STATIC_HINT)
    return torch.zeros(value.shape, dtype=value.dtype)


@contextmanager
def _without_graph() -> Iterator[None]:
    """What is written to standard error, but for the graph that torch prints when it fails in the middle."""
    written, graph = io.StringIO(), ""
    try:
        with redirect_stderr(written):
            yield
    except Exception as error:
        graph = f"{error.partial_fx_graph}\n" if hasattr(error, "partial_fx_graph") else ""
        raise
    finally:
        text = written.getvalue()
        sys.stderr.write(text.replace(graph, "") if graph else text)


def _own_error(model: nn.Module, arguments: Sequence[Any]) -> Exception | None:
    """What a copy of the model raises when it is called."""
    try:
        with torch.no_grad():
            copy.deepcopy(model)(*arguments)
    except Exception as error:  # noqa: BLE001 - it is the user's code
        return error
    return None
