"""Operators on numbers (executorch_prim) and from tensors to numbers, against Python's and torch's results."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from arm_lower.pte.emit import emit
from arm_lower.pte.model import MethodBuilder, Planned, ProgramBuilder, ScalarType
from fvp.native import DeviceError, Native
from tosa_ref.kernels import _SYMBOLIC

INTS = [0, 1, -1, 2, 7, -7, 3, -3, (1 << 62) + 1, -(1 << 63), (1 << 63) - 1]
REALS = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 7.0, -3.0, 1e300, math.inf, -math.inf, math.nan]
BOOLS = [False, True]
TWO = ["add", "sub", "mul", "floordiv", "truediv", "mod", "eq", "gt", "ge", "lt", "le", "sym_max", "sym_min"]
ONE = ["neg", "ceil", "round", "trunc", "sym_float", "sym_int", "sym_not"]
VALUE = "an argument has a value that the operator does not allow"


def literal(m: MethodBuilder, value: Any) -> int:
    if isinstance(value, bool):
        return m.add_bool(value)
    return m.add_int(value) if isinstance(value, int) else m.add_double(value)


def calls(name: str, many: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Results of one program with many calls; the text of the error if one of them fails."""
    b = ProgramBuilder()
    m = b.method("forward")
    operator, _, overload = name.partition(".")
    for args in many:
        m.kernel(f"executorch_prim::{operator}", overload, *(literal(m, a) for a in args), result := m.new_int())
        m.add_output(result)
    try:
        return [a.item() for a in Native(emit(b.build())).run([])]
    except DeviceError as error:
        return [str(error)] * len(many)


def call(name: str, args: tuple[Any, ...]) -> Any:
    return calls(name, [args])[0]


def wanted(name: str, args: tuple[Any, ...]) -> Any:
    """Python's result as the runtime has it; the exception of one that it cannot have."""
    if name in ("sym_max.Scalar", "sym_min.Scalar") and float in map(type, args):
        args = tuple(map(float, args))  # Python keeps the kind of the one it chooses, the file has one kind
    if name in ("sym_max.Scalar", "sym_min.Scalar", "add.Scalar", "mul.Scalar") and float not in map(type, args):
        args = tuple(map(int, args))
    if name == "truediv.Scalar" and 0.0 not in args[1:]:
        args = tuple(map(float, args))  # Python divides ints exactly
    try:
        result = _SYMBOLIC[name](*args)
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        return error
    if isinstance(result, bool) or not isinstance(result, int):
        return result
    if isinstance(args[0], float) and not -(1 << 63) <= result < 1 << 63:
        return OverflowError()
    return (result + (1 << 63)) % (1 << 64) - (1 << 63)  # wraps around


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


def compare(name: str, many: Sequence[tuple[Any, ...]]) -> list[str]:
    """What is wrong."""
    fine = [args for args in many if not isinstance(wanted(name, args), Exception)]
    wrong = [f"{name}{args} is {found!r} instead of {wanted(name, args)!r}"
             for args, found in zip(fine, calls(name, fine), strict=True) if not same(found, wanted(name, args))]
    text = rf"{VALUE}: executorch_prim::{re.escape(name)}, instruction 0, argument [01]"
    for args in many:
        if args not in fine and not re.fullmatch(text, str(found := call(name, args))):
            wrong.append(f"{name}{args} is {found!r}, not an error")
    return wrong


@pytest.mark.parametrize("name", TWO)
def test_two_numbers(name: str) -> None:
    pairs = [*product(INTS, INTS), *product(REALS, REALS), *product(INTS[:6], REALS), *product(REALS, INTS[:6]),
             *product(BOOLS, INTS[:4]), *product(BOOLS, BOOLS)]
    wrong = compare(f"{name}.Scalar", pairs)
    assert not wrong, wrong[:20]


@pytest.mark.parametrize("name", ONE)
def test_one_number(name: str) -> None:
    wrong = compare(f"{name}.Scalar", [(v,) for v in (*INTS, *REALS, *BOOLS, 9.2e18, -9.2e18, 9.3e18)])
    assert not wrong, wrong[:20]


def test_other_names() -> None:
    assert call("floordiv.int", (-7, 2)) == -4 and call("mod.int", (-7, 2)) == 1
    for c, a, b in product((True, False, 1, 0), (3, 0.5, True), (4, 1.5, False)):
        assert same(call("sym_ite.Scalar", (c, a, b)), a if c else b)


def test_arguments() -> None:
    b = ProgramBuilder()
    m = b.method("forward")
    m.kernel("executorch_prim::add", "Scalar", m.add_int(1), m.add_string("1"), m.new_int())
    text = r"schema does not allow: executorch_prim::add\.Scalar, instruction 0, argument 1$"
    with pytest.raises(DeviceError, match=text):
        Native(emit(b.build())).run([])


def of_tensor(name: str, overload: str, array: np.ndarray[Any, Any], *args: int) -> Any:
    b = ProgramBuilder()
    m = b.method("forward")
    dtype = {"float32": ScalarType.FLOAT32, "float64": ScalarType.FLOAT64, "float16": ScalarType.FLOAT16,
             "bool": ScalarType.BOOL, "int64": ScalarType.INT64, "uint8": ScalarType.UINT8,
             "int16": ScalarType.INT16}[array.dtype.name]
    x = m.add_tensor(dtype, array.shape, Planned(0))
    m.add_input(x)
    result = m.new_int()
    m.kernel(name, overload, x, *(m.add_int(a) for a in args), result)
    m.add_output(result)
    try:
        return Native(emit(b.build())).run([array])[0].item()
    except DeviceError as error:
        return str(error)


def test_sizes() -> None:
    x = np.zeros((2, 0, 5), np.float32)
    assert [of_tensor("aten::sym_size", "int", x, d) for d in (0, 1, 2, -1, -3)] == [2, 0, 5, 5, 2]
    for dim in (3, -4):
        text = "an index is out of range: aten::sym_size.int, instruction 0, argument 1"
        assert of_tensor("aten::sym_size", "int", x, dim) == text
    assert of_tensor("aten::sym_size", "int", np.zeros((), np.float32), 0).startswith("an index is out of range")
    assert of_tensor("aten::sym_numel", "", x) == 0
    assert of_tensor("aten::sym_numel", "", np.zeros((), np.float32)) == 1
    assert of_tensor("aten::sym_numel", "", np.zeros((3, 4), np.float32)) == 12


def test_item() -> None:
    name = "aten::_local_scalar_dense"
    for value in (np.float32(0.1), np.float64(0.1), np.int64(-(1 << 63)), np.uint8(255), np.int16(-3), np.bool_(True)):
        assert same(of_tensor(name, "", np.array([value])), value.item())
    assert same(of_tensor(name, "", np.array(2.5, np.float32)), 2.5)
    text = f"shapes do not fit the operator: {name}, instruction 0, argument 0"
    assert of_tensor(name, "", np.zeros(2, np.float32)) == of_tensor(name, "", np.zeros(0, np.float32)) == text
    assert of_tensor(name, "", np.zeros(1, np.float16)).startswith("a kernel does not take this data type")


@pytest.mark.parametrize("index", [0, 2])
def test_copy_index(index: int) -> None:
    b = ProgramBuilder()
    m = b.method("forward")
    target = m.add_tensor(ScalarType.FLOAT32, (3, 2), Planned(0, initial=b.initial_state(bytes(24))))
    source = m.add_tensor(ScalarType.FLOAT32, (2,), Planned(32))
    m.add_input(source)
    m.kernel("executorch_prim::et_copy_index", "tensor", target, source, m.add_int(index))
    m.add_output(target)
    x = np.array([1.0, 2.0], np.float32)
    wanted = np.zeros((3, 2), np.float32)
    wanted[index] = x
    np.testing.assert_array_equal(Native(emit(b.build())).run([x])[0], wanted)
