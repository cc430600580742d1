"""Every rule once: the right program passes, the wrong variant is named."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pte_samples
import pytest

from arm_lower.errors import PteError
from arm_lower.pte import model
from arm_lower.pte.check import check, check_file, check_program, problems
from arm_lower.pte.emit import emit
from arm_lower.pte.model import AtRuntime, Method, Planned, Program, ScalarType, TensorValue
from arm_lower.pte.read import read_layout

F32 = ScalarType.FLOAT32


def _edit(sample: Callable[[], pte_samples.Sample], **fields: Any) -> Program:
    """The sample with fields of its first method replaced; a function gets the old value."""
    program = sample().program
    method = program.methods[0]
    new = {k: v(getattr(method, k)) if callable(v) else v for k, v in fields.items()}
    return replace(program, methods=(replace(method, **new), *program.methods[1:]))


def _value(index: int, **fields: Any) -> Callable[[tuple[model.Value, ...]], tuple[model.Value, ...]]:
    """Replaces fields of one value."""
    return lambda values: (*values[:index], replace(values[index], **fields), *values[index + 1 :])


def _call(index: int, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Callable[[Any], Any]:
    """Changes the arguments of one instruction."""
    return lambda code: (*code[:index], replace(code[index], args=change(code[index].args)), *code[index + 1 :])


def _tensor(method: Method, nth: int = 0) -> int:
    """Index of the n-th planned tensor."""
    found = [i for i, v in enumerate(method.values) if isinstance(v, TensorValue) and isinstance(v.storage, Planned)]
    return found[nth]


@pytest.mark.parametrize("name", list(pte_samples.SAMPLES))
def test_samples_are_right(name: str) -> None:
    assert problems(pte_samples.SAMPLES[name]().program) == []


NETWORK = pte_samples.network().program.methods[0]
CONV = _tensor(NETWORK)
X = NETWORK.inputs[0]
LIST = next(i for i, v in enumerate(NETWORK.values) if isinstance(v, model.TensorListValue))
INTS = next(i for i, v in enumerate(NETWORK.values) if isinstance(v, model.IntListValue))
INT = next(i for i, v in enumerate(NETWORK.values) if isinstance(v, model.IntValue))
WEIGHT = next(
    i for i, v in enumerate(NETWORK.values) if isinstance(v, TensorValue) and isinstance(v.storage, model.Constant)
)
NET = pte_samples.network
COUNT = len(NETWORK.values)

WRONG: dict[str, tuple[Callable[[], Program], str]] = {
    "version": (lambda: replace(NET().program, version=1), "schema version is 1"),
    "no method": (lambda: replace(NET().program, methods=()), "there is no method"),
    "same name": (
        lambda: replace(NET().program, methods=NET().program.methods * 2),
        "2 methods are called 'forward'",
    ),
    "no name": (lambda: _edit(NET, name=""), "a method has no name"),
    "same key": (lambda: replace(NET().program, named_data=(("k", b""),) * 2), "2 named data have the key 'k'"),
    "input index": (lambda: _edit(NET, inputs=(COUNT,)), f"input 0 is value {COUNT}, there are {COUNT} values"),
    "output index": (lambda: _edit(NET, outputs=(-1,)), "output 0 is value -1"),
    "argument": (
        lambda: _edit(NET, instructions=_call(0, lambda a: (999, *a[1:]))),
        "instruction 0 has the argument 999",
    ),
    "operator": (
        lambda: _edit(NET, instructions=lambda c: (replace(c[0], operator=9), *c[1:])),
        "instruction 0 calls operator 9, there are 6",
    ),
    "list member": (
        lambda: _edit(NET, values=_value(INTS, items=(X,))),
        f"names value {X} (TensorValue), expected IntValue",
    ),
    "list before member": (
        lambda: _edit(
            NET,
            values=lambda v: (
                *v[:LIST],
                replace(v[LIST], items=(LIST + 1, LIST + 2)),
                v[CONV],
                v[CONV + 1],
                *v[LIST + 3 :],
            ),
        ),
        "which must come before the list",
    ),
    "rank": (lambda: _edit(NET, values=_value(X, sizes=(1,) * 17, dim_order=tuple(range(17)))), "has rank 17"),
    "negative size": (lambda: _edit(NET, values=_value(X, sizes=(1, 3, -8, 8))), "has a negative size"),
    "dim order": (
        lambda: _edit(NET, values=_value(X, dim_order=(0, 1, 1, 3))),
        "has the dim order [0, 1, 1, 3], expected a permutation of 0..3",
    ),
    "unbounded": (lambda: _edit(NET, values=_value(X, dynamism=model.Dynamism.UNBOUND)), "is dynamic without a bound"),
    "external": (lambda: _edit(NET, values=_value(X, storage=model.External())), "no fully qualified name"),
    "arena 0": (lambda: _edit(NET, values=_value(CONV, storage=Planned(0, 0))), "is in arena 0, expected 1 to 1"),
    "no such arena": (lambda: _edit(NET, values=_value(CONV, storage=Planned(0, 2))), "is in arena 2, expected 1 to 1"),
    "arena too small": (
        lambda: _edit(NET, arena_sizes=lambda sizes: (sizes[0] - 1,)),
        f"does not fit its arena of {NETWORK.arena_sizes[0] - 1} bytes",
    ),
    "negative arena": (lambda: _edit(NET, arena_sizes=(*NETWORK.arena_sizes, -1)), "arena 2 has the size -1"),
    "alignment": (lambda: _edit(NET, values=_value(CONV, storage=Planned(8))), "is not aligned to 16 bytes"),
    "constant input": (lambda: _edit(NET, inputs=lambda i: (*i, WEIGHT)), "which is a constant"),
    "list input": (
        lambda: _edit(NET, inputs=lambda i: (*i, INTS)),
        f"input 1 is value {INTS} (IntList), expected a tensor",
    ),
    "input twice": (lambda: _edit(NET, inputs=lambda i: i * 2), "is 2 inputs at once"),
    "constant size": (
        lambda: _edit(NET, values=_value(WEIGHT, sizes=(4, 3, 3, 4))),
        "constant 0 has 432 bytes, the tensor that uses it has 576",
    ),
    "constant index": (lambda: replace(NET().program, constants=()), "constant 0 is used, there are 0"),
    "initial state": (lambda: replace(pte_samples.counter().program, initial_states=()), "initial state 0 is used"),
    "operator name": (
        lambda: _edit(NET, operators=lambda o: (model.Operator("aten::" + "x" * 90, "long"), *o[1:])),
        "has more than 99 characters",
    ),
    "empty operator name": (
        lambda: _edit(NET, operators=lambda o: (model.Operator("", "out"), *o[1:])),
        "an operator has no name (overload 'out')",
    ),
    "out once": (
        lambda: _edit(NET, instructions=_call(1, lambda a: a[:-1])),
        "instruction 1: aten::relu.out: the out tensors must be given twice",
    ),
    "outs without list": (
        lambda: _edit(NET, instructions=_call(2, lambda a: a[:-1])),
        "aten::max_pool2d_with_indices.out: the out tensors must be given twice",
    ),
    "no result": (
        lambda: _edit(NET, instructions=_call(1, lambda a: (*a[:-1], INTS))),
        "aten::relu.out: the last argument must be what the kernel returns",
    ),
    "no argument": (lambda: _edit(NET, instructions=_call(1, lambda a: ())), "the last argument must be what"),
    "jump condition": (
        lambda: _edit(NET, instructions=lambda c: (*c, model.JumpFalseCall(INT, 0))),
        f"instruction 6: jumps on value {INT} (Int), expected a Bool or a bool tensor",
    ),
    "jump too far": (
        lambda: _edit(NET, instructions=lambda c: (*c, model.JumpFalseCall(INT, 8))),
        "instruction 6 jumps to 8, there are 7 instructions",
    ),
    "free": (lambda: _edit(NET, instructions=lambda c: (*c, model.FreeCall(CONV))), "instruction 6: frees value"),
    "write to constant": (
        lambda: _edit(NET, instructions=_call(1, lambda a: (a[0], WEIGHT, WEIGHT))),
        f"instruction 1 writes value {WEIGHT} (float32[4, 3, 3, 3]), which is a constant",
    ),
    "no memory": (
        lambda: _edit(NET, values=_value(CONV, storage=AtRuntime())),
        "has no memory: neither planned nor an input or output",
    ),
    "never written": (lambda: _edit(NET, instructions=lambda c: c[1:]), "is read, but nothing writes it before"),
    "delegate index": (
        lambda: _edit(pte_samples.delegated, delegates=()),
        "instruction 1 calls delegate 0, there are 0",
    ),
    "delegate arguments": (
        lambda: _edit(pte_samples.delegated, instructions=_call(1, lambda a: a[:1])),
        "EthosUBackend: has 1 arguments, the stream has 1 inputs and 1 outputs",
    ),
    "delegate argument kind": (
        lambda: _edit(pte_samples.delegated, instructions=_call(1, lambda a: (4, a[1]))),
        "argument 0, value 4 (Double): expected a tensor",
    ),
    "delegate type": (
        lambda: _edit(pte_samples.delegated, values=_value(1, scalar_type=F32, sizes=(48,), dim_order=(0,))),
        "the stream has elements of 1 bytes there; allowed are int32 (4), int8 (1)",
    ),
    "delegate size": (
        lambda: _edit(pte_samples.delegated, values=_value(1, sizes=(1, 3, 8, 7))),
        "the stream has the shape [1, 1, 1, 3, 8, 8] there",
    ),
    "delegate output size": (
        lambda: _edit(pte_samples.delegated, values=_value(2, sizes=(1, 5))),
        "the stream has the shape [1, 1, 1, 1, 1, 4] there",
    ),
    "delegate data": (
        lambda: _edit(pte_samples.delegated, delegates=lambda d: (replace(d[0], data=b"rubbish" * 16),)),
        "EthosUBackend: ",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_variant_is_named(name: str) -> None:
    make, message = WRONG[name]
    program = make()
    found = problems(program)
    assert any(message in text for text in found), found
    with pytest.raises(PteError) as caught:
        check_program(program)
    assert message in caught.value.message or len(found) > 20
    with pytest.raises(PteError):
        emit(program)


def test_list_argument_of_a_delegate_is_refused() -> None:
    program = _edit(
        pte_samples.delegated,
        values=lambda v: (*v, model.TensorListValue((1,))),
        instructions=_call(1, lambda a: (len(pte_samples.delegated().program.methods[0].values), a[1])),
    )
    assert any("expected single tensors" in text for text in problems(program))


def test_padded_rows_of_an_output_are_allowed() -> None:
    """Vela may pad the last dimension; the runtime strips it."""
    program = _edit(pte_samples.delegated, values=_value(2, sizes=(1, 3)))
    assert [t for t in problems(program) if "stream" in t] == []


def test_other_backends_are_not_looked_into() -> None:
    program = _edit(pte_samples.delegated, delegates=lambda d: (replace(d[0], id="XnnpackBackend", data=b"anything"),))
    assert problems(program) == []


def test_long_lists_of_problems_are_cut() -> None:
    program = _edit(NET, arena_sizes=(0,), operators=lambda o: tuple(model.Operator("x" * 100) for _ in o * 5))
    with pytest.raises(PteError, match=r"and \d+ more"):
        check_program(program)


def _patched(offset: int, fmt: str, value: int, data: bytes) -> bytes:
    copy = bytearray(data)
    struct.pack_into("<" + fmt, copy, offset, value)
    return bytes(copy)


def test_file_layout() -> None:
    data = emit(pte_samples.delegated().program)
    check_file(data)
    layout = read_layout(data)
    with pytest.raises(PteError, match="16 bytes at the end of the file belong to nothing"):
        check_file(_patched(32, "Q", 512 + 16, data + bytes(16)))
    with pytest.raises(PteError, match=f"bytes {layout.program_size} to 1280 of the file belong to nothing"):
        check_file(_patched(layout.program_size + 8, "B", 1, data))
    moved = data[: layout.segment_base] + bytes(16) + data[layout.segment_base :]
    with pytest.raises(PteError, match="segments begin at 1296, expected a multiple of 128"):
        check_file(_patched(24, "Q", 1296, moved))


def test_check_reads_and_checks() -> None:
    program = pte_samples.network().program
    assert check(emit(program)) == program
