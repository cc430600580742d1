"""What an Edge program must be; every difference is reported with its node, module path and what is allowed."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from arm_lower.edge.dialect import constraint
from arm_lower.edge.meta import describe, fake_result, tensors
from arm_lower.edge.program import EdgeProgram, call_delegate
from arm_lower.errors import ArmLowerError

Snapshot = Mapping[fx.Node, tuple[Any, Any, Any, int]]


def verify(program: EdgeProgram) -> None:
    """Check structure and dtypes.

    Raises:
        ArmLowerError: The program is not an Edge program; lists every problem.
    """
    found = problems(program)
    if found:
        raise ArmLowerError(f"method {program.name} is not a valid Edge program:\n  " + "\n  ".join(found))


def problems(program: EdgeProgram, known: Snapshot | None = None) -> list[str]:
    """Every rule that a program breaks, in words.

    Args:
        program: What to check.
        known: State before a pass. The values (shape, dtype) of operators that are not in it are computed and
            compared with what the pass claims; None leaves values alone.
    """
    found = list(_structure(program))
    if found:
        return found
    for node in program.graph.nodes:
        if node.op == "call_function":
            found += _dtypes(node)
    if known is not None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fresh = snapshot(program)
        for node in program.graph.nodes:
            if isinstance(node.target, OpOverload) and known.get(node) != fresh[node]:
                found += _value(node, mode)
    return found


def snapshot(program: EdgeProgram) -> Snapshot:
    """What identifies each operator, for `problems`."""
    return {n: (n.target, n.args, dict(n.kwargs), id(n.meta.get("val"))) for n in program.graph.nodes}


def _structure(program: EdgeProgram) -> Iterator[str]:
    try:
        program.graph.lint()
    except RuntimeError as error:
        yield f"the graph is broken: {error}"
        return
    yield from _placeholders(program)
    for node in program.graph.nodes:
        if node.op == "call_function":
            yield from _call(program, node)
        elif node.op not in ("placeholder", "output", "get_attr"):
            yield f"{describe(node)}: {node.op} is not allowed in an Edge program"
    yield from _output(program)


def _placeholders(program: EdgeProgram) -> Iterator[str]:
    seen_constant = False
    names = set()
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        names.add(node.name)
        constant = program.constants.get(node.name)
        if constant is None:
            if seen_constant:
                yield f"input {node.name} stands after a constant; user inputs come first"
            if "val" not in node.meta:
                yield f"input {node.name} has no value"
            continue
        seen_constant = True
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (constant.shape, constant.dtype):
            yield f"constant {node.name} is {_text(constant)}, its node says {_text(value)}"
    for name in program.constants:
        if name not in names:
            yield f"constant {name} has no placeholder"


def _call(program: EdgeProgram, node: fx.Node) -> Iterator[str]:
    target = node.target
    if target is operator.getitem:
        pass
    elif target is call_delegate:
        if not node.args or node.args[0] not in program.delegates:
            yield f"{describe(node)} calls the delegate {node.args[0] if node.args else None}, which does not exist"
    elif not isinstance(target, OpOverload):
        if not isinstance(target, torch._ops.HigherOrderOperator):
            yield f"{describe(node)}: the target is no operator overload"
    elif target._schema.is_mutable:
        yield f"{describe(node)} changes its arguments; use the functional operator"
    if "val" not in node.meta:
        yield f"{describe(node)} has no value (meta['val'])"
        return
    for tensor in tensors(node.meta["val"]):
        for dim, size in enumerate(tensor.shape):
            if not isinstance(size, int):
                yield f"{describe(node)}: size of dimension {dim} is dynamic ({size})"


def _output(program: EdgeProgram) -> Iterator[str]:
    operands = program.graph.output_node().args[0]
    if not isinstance(operands, (tuple, list)):
        yield "the output is not a flat tuple"
        return
    for i, name in enumerate(program.mutated):
        constant, value = program.constants.get(name), operands[i] if i < len(operands) else None
        if constant is None:
            yield f"the updated buffer {name} is no constant of the program"
        elif not isinstance(value, fx.Node) or not _matches(value.meta.get("val"), constant):
            yield f"the new value of buffer {name} is {value}, its buffer is {_text(constant)}"


def _matches(value: Any, constant: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and (value.shape, value.dtype) == (constant.shape, constant.dtype)


def _dtypes(node: fx.Node) -> Iterator[str]:
    target = node.target
    rules = constraint(target) if isinstance(target, OpOverload) else None
    if rules is None or not isinstance(target, OpOverload):
        return
    found: dict[str, torch.dtype] = {}
    for i, argument in enumerate(target._schema.arguments):
        permitted = rules.dtypes.get(argument.name)
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        for dtype in _given_dtypes(given) if permitted is not None else ():
            found.setdefault(argument.name, dtype)
            if permitted is not None and dtype not in permitted:
                names = ", ".join(_name(d) for d in sorted(permitted, key=str))
                yield f"{describe(node)}: argument {argument.name} is {_name(dtype)}, allowed are {names}"
    tied = {name: found[name] for name in rules.same if name in found}
    if len(set(tied.values())) > 1:
        listed = ", ".join(f"{name} is {_name(dtype)}" for name, dtype in tied.items())
        yield f"{describe(node)}: arguments must have one dtype, but {listed}"


def _given_dtypes(given: Any) -> Iterator[torch.dtype]:
    for source in given if isinstance(given, (list, tuple)) else [given]:
        value = source.meta.get("val") if isinstance(source, fx.Node) else None
        if isinstance(value, torch.Tensor):
            yield value.dtype


def _value(node: fx.Node, mode: FakeTensorMode) -> Iterator[str]:
    target = node.target
    assert isinstance(target, OpOverload)
    try:
        right = fake_result(mode, target, node.args, dict(node.kwargs))
    except Exception as error:  # noqa: BLE001 - torch raises anything here
        yield f"{describe(node)} cannot run on its arguments: {error}"
        return
    says, is_really = _text(node.meta["val"]), _text(right)
    if says != is_really:
        yield f"{describe(node)} gives {is_really}, its meta['val'] says {says}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_name(value.dtype)}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_text(v) for v in value)})"
    return repr(value)
