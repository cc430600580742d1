"""Elementwise kernels against torch: integers and bool byte for byte, floats within 2 ULP of the operation's scale.

The tolerance of a float result is ``2 * 2**-23 * max(|wanted|, scale)``. The scale is 0 except for sums (their
largest term), gelu (|x|: a small result is a difference of numbers near 1) and logit (1: likewise). glu, a product
with a sigmoid, has 4 in place of 2: its errors add up.
"""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from cases_elementwise import CASES, F32, I8, I32, plain
from one_op import OneOp, difference, expected, ours, program

from arm_lower.errors import ArmLowerError
from arm_lower.pte import check, model
from arm_lower.pte.emit import emit
from fvp.native import DeviceError, Native

KERNELS = Path(__file__).resolve().parents[3] / "fvp" / "firmware" / "kernels"
SOURCES = "elementwise unary binary compare bitwise minmax activation select copy".split()


@pytest.fixture(scope="module")
def results() -> list[tuple[OneOp, list[torch.Tensor] | str, list[torch.Tensor] | str]]:
    return [(case, expected(case), found) for case, found in zip(CASES, ours(CASES))]


def test_results_are_those_of_torch(results) -> None:  # type: ignore[no-untyped-def]
    wrong = [
        f"{case}: {text}"
        for case, wanted, found in results
        if not isinstance(wanted, str) and (text := difference(case, wanted, found))
    ]
    assert not wrong, "\n".join(wrong[:20])
    assert sum(not isinstance(wanted, str) for _, wanted, _ in results) > 3000


def test_what_torch_refuses_is_refused_for_that_reason(results) -> None:  # type: ignore[no-untyped-def]
    """Data types, values, shapes and dims are told apart by the words of the runtime."""
    wrong = []
    for case, wanted, found in results:
        if not isinstance(wanted, str):
            continue
        reason = next((text for words, text in REASONS if re.search(words, wanted)), "no reason known")
        if not isinstance(found, str) or not found.startswith(reason):
            wrong.append(f"{case}: {str(found)[:100]}, wanted {reason}: {wanted}")
    assert not wrong, "\n".join(wrong[:20])


DTYPE = "a kernel does not take this data type"
VALUE = "an argument has a value that the operator does not allow"
ARGUMENTS = "an operator has arguments that its schema does not allow"
SHAPE = "shapes do not fit the operator"
REASONS = (  # torch's words, ours
    ("not implemented for|not supported|cast to the desired|dtype|only supports boolean|boolean tensor", DTYPE),
    ("Boolean alpha|without overflow|negative integer powers|ZeroDivision|rounding_mode|argument alpha", VALUE),
    ("At least one of|approximate argument|negative limits", VALUE),
    ("must match the size|broadcast shape|0-dimension", SHAPE),
    ("Dimension out of range", "an index is out of range"),
)


def test_every_kernel_has_cases() -> None:
    lines = [line for name in SOURCES for line in (KERNELS / f"{name}.c").read_text().splitlines()]
    names = {found[1] for line in lines if (found := re.match(r'AL_KERNEL\(\w+, "([^"]+)"\)', line))}
    assert names - {c.name for c in CASES} == {"dim_order_ops::_empty_dim_order.out"}
    assert len(names) > 100


# ------------------------------------------------------------ what torch cannot be asked


def run(case: OneOp) -> torch.Tensor | str:
    (found,) = ours([case])
    return found if isinstance(found, str) else found[0]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_smallest_integer_by_minus_one(dtype: torch.dtype) -> None:
    """torch ends with a signal here; the quotient wraps around, the remainder is 0."""
    low = torch.tensor([torch.iinfo(dtype).min, 7], dtype=dtype)
    minus = torch.tensor([-1, -1], dtype=dtype)
    names = {"div.out_mode": "trunc", "floor_divide.out": None, "fmod.Tensor_out": None, "remainder.Tensor_out": None}
    for name, mode in names.items():
        args = (low, minus) if mode is None else (low, minus, mode)
        quotient = torch.tensor([low[0], -7], dtype=dtype)
        wanted = torch.zeros_like(low) if "m" in name.split(".")[0] else quotient
        assert torch.equal(run(OneOp(f"aten::{name}", args, wanted=(wanted,))), wanted), name


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bool])
def test_conversion_of_floats_that_no_integer_holds(dtype: torch.dtype) -> None:
    """C leaves it open; here they saturate at 64 bits, then wrap around, and NaN is 0."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -2.9])
    numbers = [0, 2**63 - 1, -(2**63), 2**63 - 1, -2]
    bits = torch.iinfo(dtype).bits if dtype != torch.bool else 0
    wrapped = [(n + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for n in numbers] if bits else [1, 1, 1, 1, 1]
    wanted = torch.tensor(wrapped, dtype=dtype)
    found = run(OneOp("aten::_to_copy.out", (x, False, None), wanted=(wanted,)))
    assert torch.equal(found, wanted)


def test_dropout_in_training_is_refused() -> None:
    case = OneOp("aten::native_dropout.out", (plain(F32, 4), 0.5, True), (F32, torch.bool))
    assert str(run(case)) == f"{VALUE}: aten::native_dropout.out, instruction 0, argument 2"


def test_empty_dim_order() -> None:
    out = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    name = "dim_order_ops::_empty_dim_order.out"
    good = OneOp(name, ([2, 3, 4, 5], [0, 2, 3, 1]), wanted=(out,))
    assert run(good).shape == out.shape  # type: ignore[union-attr]
    wrong = OneOp(name, ([2, 3, 4, 5], [0, 1, 2, 3]), wanted=(out,))
    assert str(run(wrong)) == f"{ARGUMENTS}: {name}, instruction 0, argument 1"
    other = OneOp(name, ([2, 3, 4, 6], None), wanted=(out,))
    assert "a result does not have the size that the file says" in str(run(other))


def test_dim_order_must_be_that_of_the_result() -> None:
    out = torch.zeros(2, 3, 4, 5)
    for name in ("_to_dim_order_copy", "_clone_dim_order"):
        case = OneOp(f"dim_order_ops::{name}.out", (out, False, [0, 2, 3, 1]), wanted=(out,))
        assert "arguments that its schema does not allow" in str(run(case))


@pytest.mark.parametrize("args, text", [
    ((plain(F32, 3), None, 1), ARGUMENTS),
    ((plain(F32, 3), 2, plain(F32, 3)), ARGUMENTS),
    ((plain(F32, 3), 2, 1, 1), ARGUMENTS),
    ((1, 2, 1), "a result does not have the size"),
    ((plain(F32, 3), plain(F32, 3)), ARGUMENTS),
    ((plain(F32, 3), "x", 1), ARGUMENTS),
    ((plain(F32, 3), torch.zeros(3, dtype=torch.float64), 1), DTYPE),
    ((torch.zeros(3, dtype=torch.float16), plain(F32, 3), 1), DTYPE),
])  # fmt: skip
def test_bad_arguments(args: tuple[object, ...], text: str) -> None:
    assert str(run(OneOp("aten::add.out", args, wanted=(torch.zeros(3),)))).startswith(text)


def overlapping(offset: int, sizes: tuple[int, ...] = (4,), order: tuple[int, ...] | None = None) -> bytes:
    """relu from bytes 0.. of the arena to bytes `offset`.. of it."""
    builder = model.ProgramBuilder()
    m = builder.method("forward")
    x = m.add_tensor(model.ScalarType.FLOAT32, sizes, model.Planned(0))
    y = m.add_tensor(model.ScalarType.FLOAT32, sizes, model.Planned(offset), order)
    m.add_input(x)
    m.add_output(y)
    m.kernel("aten::relu", "out", x, y, y)
    with mock.patch.object(check, "check_program"):  # which refuses such programs
        return emit(builder.build())


def test_result_over_an_operand() -> None:
    """In place is fine, a partial overlap would change operands before they are read."""
    x = plain(F32, 4)
    (found,) = Native(overlapping(0)).run([x.numpy()])
    assert torch.equal(torch.from_numpy(found), x.relu())
    with pytest.raises(ArmLowerError, match="arguments that its schema does not allow: aten::relu.out, .* argument 0"):
        Native(overlapping(0, (2, 2), (1, 0))).run([x.reshape(2, 2).numpy()])


def test_dynamic_sizes() -> None:
    """The result takes the size that broadcasting gives, up to its bound."""
    builder = model.ProgramBuilder()
    m = builder.method("forward")
    bound = model.Dynamism.BOUND
    x = m.add_tensor(model.ScalarType.INT32, (8, 3), model.Planned(0), dynamism=bound)
    y = m.add_tensor(model.ScalarType.INT32, (1, 3), model.Planned(96))
    z = m.add_tensor(model.ScalarType.INT32, (6, 3), model.Planned(112), dynamism=bound)
    m.add_input(x)
    m.add_input(y)
    m.add_output(z)
    m.kernel("aten::mul", "out", x, y, z, z)
    runtime = Native(emit(builder.build()))
    for rows in (6, 2, 0, 1):
        a, b = plain(I32, rows, 3), plain(I32, 1, 3)
        assert torch.equal(torch.from_numpy(runtime.run([a.numpy(), b.numpy()])[0]), a * b)
    with pytest.raises(DeviceError, match="a result does not have the size that the file says"):
        runtime.run([plain(I32, 7, 3).numpy(), plain(I32, 1, 3).numpy()])


def test_rank_limit() -> None:
    x = plain(I8, *[1, 2] * 8)
    case = OneOp("aten::add.out", (x.transpose(1, 15).contiguous().transpose(1, 15), x, 1))
    assert difference(case, expected(case), run_list(case)) == ""  # type: ignore[arg-type]


def run_list(case: OneOp) -> list[torch.Tensor] | str:
    assert program(case)
    return ours([case])[0]
