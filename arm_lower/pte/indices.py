"""Whether the indices inside a method lead to what they must, in bounded number; all further walks rely on it."""

from __future__ import annotations

from collections.abc import Iterator

from arm_lower.pte import model

MAX_ARGUMENTS = 10_000_000
"""Arguments of all instructions together, members of lists counted: a small hostile file could ask for billions."""


def index_problems(method: model.Method) -> Iterator[str]:
    """Every index that is out of range and every member of a list that is not of the list's kind, in words."""
    count = len(method.values)
    for what, indices in (("input", method.inputs), ("output", method.outputs)):
        for i, index in enumerate(indices):
            if not 0 <= index < count:
                yield f"{what} {i} is value {index}, there are {count} values"
    for i, value in enumerate(method.values):
        if isinstance(value, model.IntListValue | model.TensorListValue | model.OptionalTensorListValue):
            low = -1 if isinstance(value, model.OptionalTensorListValue) else 0
            kind = model.IntValue if isinstance(value, model.IntListValue) else model.TensorValue
            for item in value.items:
                if not low <= item < count:
                    yield f"value {i} (list) names value {item}, there are {count} values"
                elif item >= 0 and not isinstance(method.values[item], kind):
                    found, wanted = type(method.values[item]).__name__, kind.__name__
                    yield f"value {i} (list) names value {item} ({found}), expected {wanted}"
    lists = {i: len(v.items) for i, v in enumerate(method.values) if isinstance(v, _LISTS)}
    total = 0
    for i, instruction in enumerate(method.instructions):
        match instruction:
            case model.KernelCall(operator, args):
                if not 0 <= operator < len(method.operators):
                    yield f"instruction {i} calls operator {operator}, there are {len(method.operators)}"
            case model.DelegateCall(delegate, args):
                if not 0 <= delegate < len(method.delegates):
                    yield f"instruction {i} calls delegate {delegate}, there are {len(method.delegates)}"
            case model.MoveCall(source, target):
                args = (source, target)
            case model.JumpFalseCall(condition, destination):
                args = (condition,)
                if not 0 <= destination <= len(method.instructions):
                    yield f"instruction {i} jumps to {destination}, there are {len(method.instructions)} instructions"
            case model.FreeCall(freed):
                args = (freed,)
        for arg in args:
            if not 0 <= arg < count:
                yield f"instruction {i} has the argument {arg}, there are {count} values"
        total += sum(1 + lists.get(arg, 0) for arg in args)
    if total > MAX_ARGUMENTS:
        yield f"the instructions have {total} arguments with the members of lists, at most {MAX_ARGUMENTS} make sense"


_LISTS = (
    model.IntListValue,
    model.DoubleListValue,
    model.BoolListValue,
    model.TensorListValue,
    model.OptionalTensorListValue,
)
