"""Kernels that move, index and create, against torch: the same bytes, the same refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from unittest import mock

import cases_move
import numpy as np
import pytest
import torch
from cases_move import ARGUMENTS, BAD, CASES, DTYPE, INDEX, SHAPE, VALUE
from one_op import OneOp, expected, ours
from torch import Tensor

from arm_lower.pte.emit import emit
from arm_lower.pte.model import Dynamism, MethodBuilder, Planned, ProgramBuilder
from fvp import native
from fvp.sources import kernel_sources

FILES = ("move", "shape", "slice", "index", "pad", "create", "sort", "embed")
RESIZE = "a result does not have the size that the file says"
CONSTANT = "an operator would write to a constant"
U8, I16, I64, F32, C64, BF16, BOOL = 0, 2, 4, 6, 9, 15, 11

_BY_NAME: dict[str, list[OneOp]] = defaultdict(list)
for _case in CASES:
    _BY_NAME[_case.name].append(_case)


def raw(x: Tensor) -> bytes:
    return x.contiguous().numpy().tobytes()


def differences(cases: Sequence[OneOp]) -> list[str]:
    found = []
    for c, results in zip(cases, ours(cases)):
        wanted = expected(c)
        assert not isinstance(wanted, str), f"torch refuses {c}: {wanted}"
        if isinstance(results, str):
            found.append(f"{c}: {results}")
        elif [(r.dtype, r.shape, raw(r)) for r in results] != [(w.dtype, w.shape, raw(w)) for w in wanted]:
            found.append(f"{c}: {[r.flatten().tolist()[:20] for r in results]}, wanted "
                         f"{[w.flatten().tolist()[:20] for w in wanted]}")
    return found


@pytest.mark.parametrize("name", sorted(_BY_NAME))
def test_bytes_are_torchs(name: str) -> None:
    assert differences(_BY_NAME[name]) == []


def test_a_wrong_byte_is_seen() -> None:
    x = torch.tensor([1.0, 2.0])
    wrong = OneOp("aten::flip.out", (x, [0]), (x,), wanted=(torch.tensor([2.0, 1.0 + 2.0**-23]),))
    assert len(differences([wrong])) == 1


def test_every_kernel_has_cases() -> None:
    elsewhere = {"aten::empty.out", "aten::view_as_real_copy.out"}
    kernels = {k.name for k in kernel_sources().values() if k.file.stem in FILES}
    assert kernels - elsewhere == set(_BY_NAME)
    assert len(kernels) == 63


@pytest.mark.parametrize("case, text", BAD, ids=[str(c)[:90] for c, _ in BAD])
def test_refusals_are_torchs(case: OneOp, text: str) -> None:
    assert isinstance(expected(case), str), "torch takes this"
    (found,) = ours([case])
    assert isinstance(found, str) and found.startswith(f"{text}: {case.name}, instruction 0"), found


# ------------------------------------------------------------ programs that a table cannot say


class Program:
    """A method under construction; tensors are placed by hand in one arena."""

    def __init__(self) -> None:
        self.builder = ProgramBuilder()
        self.m: MethodBuilder = self.builder.method("forward")

    def tensor(self, dtype: int, sizes: Sequence[int], offset: int, *, dynamic: bool = False, given: bool = False,
               result: bool = False, order: Sequence[int] | None = None) -> int:  # fmt: skip
        dynamism = Dynamism.BOUND if dynamic else Dynamism.STATIC
        index = self.m.add_tensor(dtype, sizes, Planned(offset), order, dynamism)
        if given:
            self.m.add_input(index)
        if result:
            self.m.add_output(index)
        return index

    def call(self, name: str, *args: int) -> None:
        base, _, overload = name.partition(".")
        self.m.kernel(base, overload, *args)

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        with mock.patch("arm_lower.pte.check.check_program"):  # it refuses tensors that overlap
            file = emit(self.builder.build())
        return native.Native(file).run(inputs)

    def error(self, *inputs: np.ndarray) -> str:
        with pytest.raises(native.DeviceError) as caught:
            self.run(*inputs)
        return str(caught.value)


X = np.arange(12, dtype=np.float32).reshape(3, 4)
MASK = X % 5 < 2
DYNAMIC = {
    "aten::nonzero.out": ([], (12, 2), I64, torch.nonzero(torch.from_numpy(MASK))),
    "aten::masked_select.out": (["mask"], (12,), F32, torch.from_numpy(X[MASK])),
    "aten::index.Tensor_out": (["[mask]"], (12,), F32, torch.from_numpy(X[MASK])),
    "aten::slice_copy.Tensor_out": ([0, 1, "count", 1], (3, 4), F32, torch.from_numpy(X[1:2])),
}


def _dynamic(name: str, bound: Sequence[int]) -> Program:
    args, _, dtype, _ = DYNAMIC[name]
    p = Program()
    x = p.tensor(BOOL if "nonzero" in name else F32, (3, 4), 0, given=True)
    values = [x]
    for a in args:
        if a in ("mask", "[mask]"):
            mask = p.tensor(BOOL, (3, 4), 64, given=True)
            values.append(p.m.add_optional_tensor_list([mask]) if a == "[mask]" else mask)
        elif a == "count":  # a number that is known at run time only
            small = p.tensor(U8, (2,), 96, given=True)
            count = p.m.new_int(-1)
            p.m.kernel("aten::sym_size", "int", small, p.m.add_int(0), count)
            values.append(count)
        else:
            values.append(p.m.add_int(a))
    out = p.tensor(dtype, bound, 128, dynamic=True, result=True)
    p.call(name, *values, out, out)
    return p


def _dynamic_inputs(name: str) -> list[np.ndarray]:
    if "nonzero" in name:
        return [MASK]
    return [X, np.zeros(2, np.uint8) if "slice" in name else MASK]


@pytest.mark.parametrize("name", DYNAMIC)
def test_results_of_a_size_known_at_run_time(name: str) -> None:
    _, bound, _, wanted = DYNAMIC[name]
    (found,) = _dynamic(name, bound).run(*_dynamic_inputs(name))
    assert found.shape == tuple(wanted.shape) and found.tobytes() == raw(wanted)


@pytest.mark.parametrize("name", DYNAMIC)
def test_results_beyond_the_bound(name: str) -> None:
    _, bound, _, wanted = DYNAMIC[name]
    small = (wanted.shape[0] - 1, *bound[1:])
    assert _dynamic(name, small).error(*_dynamic_inputs(name)).startswith(f"{RESIZE}: {name}, instruction ")


OVERLAPS = (0, 4, 16, 44)


@pytest.mark.parametrize("offset", OVERLAPS)
@pytest.mark.parametrize("name, args", [
    ("aten::permute_copy.out", ([1, 0],)), ("aten::flip.out", ([0],)), ("aten::roll.out", ([1], [])),
    ("aten::slice_copy.Tensor_out", (0, None, None, 1)), ("aten::repeat.out", ([1, 1],)),
    ("aten::constant_pad_nd.out", ([1, -1], 0)), ("aten::replication_pad1d.out", ([1, -1],)),
    ("aten::expand_copy.out", ([3, 4], False)), ("aten::as_strided_copy.out", ([3, 4], [1, 3], 0)),
])  # fmt: skip
def test_results_on_top_of_the_operand(name: str, args: Sequence[object], offset: int) -> None:
    p = Program()
    sizes = (4, 3) if "permute" in name else (3, 4)
    x = p.tensor(F32, (3, 4), 0, given=True)
    out = p.tensor(F32, sizes, offset, result=True)
    p.call(name, x, *(_literal(p.m, a) for a in args), out, out)
    assert p.error(X) == f"{ARGUMENTS}: {name}, instruction 0, argument 0"


def _literal(m: MethodBuilder, a: object) -> int:
    if a is None:
        return m.add_null()
    if isinstance(a, list):
        return m.add_int_list(a)
    return m.add_bool(a) if isinstance(a, bool) else m.add_int(int(str(a)))


@pytest.mark.parametrize("offset", OVERLAPS)
def test_a_view_may_lie_on_top_of_the_operand(offset: int) -> None:
    p = Program()
    x = p.tensor(F32, (3, 4), 0, given=True)
    out = p.tensor(F32, (2, 6), offset, result=True)
    p.call("aten::view_copy.out", x, p.m.add_int_list([2, 6]), out, out)
    assert p.run(X)[0].tobytes() == X.tobytes()


@pytest.mark.parametrize("which", ["index", "values", "self shifted"])
def test_index_put_on_top_of_its_operands(which: str) -> None:
    p = Program()
    x = p.tensor(F32, (3, 4), 0, given=True)
    index = p.tensor(I64, (1,), 112 if which == "index" else 0x100, given=True)
    values = p.tensor(F32, (4,), 108 if which == "values" else 0x200, given=True)
    out = p.tensor(F32, (3, 4), 16 if which == "self shifted" else 96, result=True)
    p.call("aten::index_put.out", x, p.m.add_optional_tensor_list([index]), values, p.m.add_bool(False), out, out)
    number = {"index": 1, "values": 2, "self shifted": 0}[which]
    found = p.error(X, np.array([1]), X[0])
    assert found == f"{ARGUMENTS}: aten::index_put.out, instruction 0, argument {number}"


@pytest.mark.parametrize("name", ["aten::scatter.value_out", "aten::select_scatter.out"])
def test_results_in_the_place_of_self(name: str) -> None:
    """The same memory for self and result is in place, as in torch."""
    p = Program()
    x = p.tensor(F32, (3, 4), 0, given=True)
    out = p.tensor(F32, (3, 4), 0, result=True)
    if "value" in name:
        index = p.tensor(I64, (1, 1), 64, given=True)
        p.call(name, x, p.m.add_int(1), index, p.m.add_int(9), out, out)
        found, wanted = p.run(X, np.array([[2]])), X.copy()
        wanted[0, 2] = 9
    else:
        src = p.tensor(F32, (4,), 64, given=True)
        p.call(name, x, src, p.m.add_int(0), p.m.add_int(1), out, out)
        found, wanted = p.run(X, X[2]), X.copy()
        wanted[1] = X[2]
    assert found[0].tobytes() == wanted.tobytes()


def test_results_that_overlap_one_another() -> None:
    p = Program()
    x = p.tensor(F32, (3, 4), 0, given=True)
    values, indices = p.tensor(F32, (3, 2), 64, result=True), p.tensor(I64, (3, 2), 80, result=True)
    settings = [p.m.add_int(2), p.m.add_int(-1), p.m.add_bool(True), p.m.add_bool(True)]
    p.call("aten::topk.values", x, *settings, values, indices, p.m.add_tensor_list([values, indices]))
    assert p.error(X) == f"{ARGUMENTS}: aten::topk.values, instruction 0, argument 5"


@pytest.mark.parametrize("args, number", [(("x",), 1), (("x", "x"), 1), (("x", 1), 1), ((1, [0, 1]), 0)])
def test_arguments_of_the_wrong_kind(args: Sequence[object], number: int) -> None:
    p = Program()
    x = p.tensor(F32, (3, 4), 0, given=True)
    out = p.tensor(F32, (3, 4), 64, result=True)
    p.call("aten::flip.out", *(x if a == "x" else _literal(p.m, a) for a in args), out, out)
    assert p.error(X).startswith(f"{ARGUMENTS}: aten::flip.out, instruction 0, argument {number}")


def test_results_in_a_constant() -> None:
    p = Program()
    x = p.tensor(F32, (3, 4), 0, given=True)
    out = p.m.add_constant(F32, (3, 4), X.tobytes())
    p.m.add_output(out)
    p.call("aten::flip.out", x, p.m.add_int_list([0]), out, out)
    assert p.error(X) == f"{CONSTANT}: aten::flip.out, instruction 0, argument 2"


def test_results_of_another_type_or_size() -> None:
    for dtype, sizes, text in ((I64, (4, 3), DTYPE), (F32, (3, 4), RESIZE), (F32, (4, 3, 1), RESIZE)):
        p = Program()
        x = p.tensor(F32, (3, 4), 0, given=True)
        out = p.tensor(dtype, sizes, 64, result=True)
        p.call("aten::t_copy.out", x, out, out)
        assert p.error(X).startswith(f"{text}: aten::t_copy.out")


def test_ranks_beyond_the_limit() -> None:
    p = Program()
    x = p.tensor(U8, [1] * 16, 0, given=True)
    out = p.tensor(U8, [1] * 16, 64, result=True)
    p.call("aten::unsqueeze_copy.out", x, p.m.add_int(0), out, out)
    assert p.error(np.zeros([1] * 16, np.uint8)) == f"{SHAPE}: aten::unsqueeze_copy.out, instruction 0, argument 0"


def test_empty_leaves_memory_as_it_is() -> None:
    p = Program()
    p.tensor(F32, (3, 4), 0, given=True)
    out = p.tensor(F32, (3, 4), 0, result=True)
    p.call("aten::empty.out", p.m.add_int_list([3, 4]), p.m.add_null(), out, out)
    assert p.run(X)[0].tobytes() == X.tobytes()


def test_complex_numbers_are_moved() -> None:
    p = Program()
    z = torch.complex(torch.randn(2, 3), torch.randn(2, 3))
    x = p.tensor(C64, (2, 3), 0, given=True)
    turned, out = p.tensor(C64, (3, 2), 64), p.tensor(F32, (3, 2, 2), 128, result=True, order=(2, 0, 1))
    p.call("aten::t_copy.out", x, turned, turned)
    p.call("aten::view_as_real_copy.out", turned, out, out)
    assert p.run(z.numpy())[0].tobytes() == raw(torch.view_as_real(z.t()))


def test_numbers_are_no_complex_ones() -> None:
    p = Program()
    out = p.tensor(C64, (2,), 0, result=True)
    p.call("aten::full.out", p.m.add_int_list([2]), p.m.add_int(1), out, out)
    assert p.error().startswith(f"{DTYPE}: aten::full.out")


@pytest.mark.parametrize("value", [1.0, 0.1, -3.1415926, 1e-40, float("nan"), float("-inf"), 257.0, 3.0e38])
def test_bfloat16(value: float) -> None:
    """Read as int16 from the same place: numpy has no bfloat16."""
    p = Program()
    full, ones = p.tensor(BF16, (2,), 0), p.tensor(BF16, (2,), 16)
    p.tensor(I16, (2,), 0, result=True)
    p.tensor(I16, (2,), 16, result=True)
    p.call("aten::full.out", p.m.add_int_list([2]), p.m.add_double(value), full, full)
    p.call("aten::ones.out", p.m.add_int_list([2]), ones, ones)
    wanted = [torch.full((2,), value, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)]
    assert [f.tobytes() for f in p.run()] == [raw(w.view(torch.int16)) for w in wanted]


def test_bfloat16_embedding() -> None:
    weight = cases_move.bits(torch.int8, 5, 8)
    scales = (torch.rand(5, 2) + 0.1).bfloat16()
    zeros = torch.randn(5, 2).bfloat16()
    rows = torch.tensor([4, 0, 3])
    wanted = weight.view(5, 2, 4).sub(zeros[..., None]).mul(scales[..., None]).reshape(5, 8)[rows]
    p = Program()
    w = p.tensor(1, (5, 8), 0, given=True)
    p.tensor(I16, (5, 2), 64, given=True)
    p.tensor(I16, (5, 2), 96, given=True)
    s, z = p.tensor(BF16, (5, 2), 64), p.tensor(BF16, (5, 2), 96)
    r = p.tensor(I64, (3,), 128, given=True)
    out = p.tensor(BF16, (3, 8), 160)
    p.tensor(I16, (3, 8), 160, result=True)
    p.call("quantized_decomposed::embedding_byte.out", w, s, z, p.m.add_int(-128), p.m.add_int(127), r, out, out)
    given = [weight, scales.view(torch.int16), zeros.view(torch.int16), rows]
    assert p.run(*(g.numpy() for g in given))[0].tobytes() == raw(wanted.view(torch.int16))


EMBEDDING: dict[str, tuple[str, dict[str, Any], int]] = {
    "index": (INDEX, {"rows": [5]}, 5),
    "negative index": (INDEX, {"rows": [-1]}, 5),
    "range": (VALUE, {"low": -7}, 3),
    "groups": (SHAPE, {"scales": (5, 3)}, 1),
    "no group": (SHAPE, {"scales": (5, 0)}, 1),
    "rows of scales": (SHAPE, {"scales": (4,)}, 1),
    "type of scales": (DTYPE, {"kind": I64}, 1),
}


@pytest.mark.parametrize("what", EMBEDDING)
def test_embeddings_that_do_not_fit(what: str) -> None:
    text, change, argument = EMBEDDING[what]
    p = Program()
    w = p.tensor(U8, (5, 4), 0, given=True)
    s = p.tensor(change.get("kind", F32), change.get("scales", (5,)), 64)
    r = p.tensor(I64, (1,), 256, given=True)
    out = p.tensor(F32, (1, 8), 512, result=True)
    limits = p.m.add_int(change.get("low", -8)), p.m.add_int(7)
    p.call("quantized_decomposed::embedding_4bit.out", w, s, p.m.add_null(), *limits, r, out, out)
    found = p.error(np.zeros((5, 4), np.uint8), np.array(change.get("rows", [0])))
    assert found == f"{text}: quantized_decomposed::embedding_4bit.out, instruction 0, argument {argument}"


# ------------------------------------------------------------ sanitizers


def test_under_sanitizers() -> None:
    """A part of the table and all refusals, in a child process with the library under ASan and UBSan."""
    libraries = [subprocess.run(["gcc", f"-print-file-name={n}"], capture_output=True, text=True, check=True).stdout
                 for n in ("libasan.so", "libubsan.so")]  # fmt: skip
    environment = {
        **os.environ, "LD_PRELOAD": " ".join(p.strip() for p in libraries), "PYTHONPATH": os.pathsep.join(sys.path),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # torch tries to allocate what it is asked for
    }  # fmt: skip
    child = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300, check=False,
                           env=environment)  # fmt: skip
    assert child.returncode == 0, child.stderr[-4000:]
    assert child.stdout.split()[-1] == "clean"


def _run_under_sanitizers() -> None:
    flags = ("-O1", *native.SANITIZERS)
    library = native.build(native.library_sources(), flags, ("-shared", *native.SANITIZERS), "al_host_asan.so")
    native.build_library = lambda sources=None: library  # type: ignore[assignment]
    assert differences(CASES[::9]) == []
    assert all(isinstance(found, str) for found in ours([case for case, _ in BAD]))
    sys.stdout.write("clean\n")


if __name__ == "__main__":
    _run_under_sanitizers()
