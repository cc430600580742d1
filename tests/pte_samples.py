"""Programs written by hand that together use everything a `.pte` can hold, with inputs and expected results.

The unit tests round-trip them; tests/interop runs them in the real runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from arm_lower.pte import ethosu_blob
from arm_lower.pte.model import (
    AtRuntime,
    DelegateSpec,
    Dynamism,
    IntValue,
    MethodBuilder,
    Planned,
    Program,
    ProgramBuilder,
    ScalarType,
    Storage,
)

F32, I8, I64 = ScalarType.FLOAT32, ScalarType.INT8, ScalarType.INT64
GIVEN = AtRuntime()


@dataclass
class Call:
    """One execution: inputs and the outputs it must give (tensors, or a number)."""

    inputs: Sequence[torch.Tensor]
    expected: Sequence[torch.Tensor | int]
    method: str = "forward"


@dataclass
class Sample:
    program: Program
    calls: list[Call] = field(default_factory=list)


def _rand(*sizes: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(sum(sizes)).standard_normal(sizes, dtype=np.float32))


def _raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().numpy().tobytes())


class Plan:
    """Gives every planned tensor memory of its own."""

    def __init__(self, m: MethodBuilder) -> None:
        self.m = m
        self.end = 0

    def tensor(
        self, sizes: Sequence[int], scalar_type: ScalarType = F32, dim_order: Sequence[int] | None = None
    ) -> int:
        storage = Planned(self.end)
        index = self.m.add_tensor(scalar_type, sizes, storage, dim_order)
        self.end += -(-int(np.prod(sizes, dtype=np.int64)) * scalar_type.itemsize // 16) * 16
        return index


def _io(m: MethodBuilder, sizes: Sequence[int], scalar_type: ScalarType = F32, storage: Storage = GIVEN) -> int:
    index = m.add_tensor(scalar_type, sizes, storage)
    m.add_input(index)
    return index


def _out(m: MethodBuilder, sizes: Sequence[int], scalar_type: ScalarType = F32) -> int:
    index = m.add_tensor(scalar_type, sizes, GIVEN)
    m.add_output(index)
    return index


def network() -> Sample:
    """A small classifier: constants, lists, a kernel with two outs."""
    weight, bias = _rand(4, 3, 3, 3), _rand(4)
    matrix, vector = _rand(64, 5), _rand(5)
    b = ProgramBuilder()
    m = b.method("forward")
    plan = Plan(m)
    x = _io(m, (1, 3, 8, 8))
    conv, relu, pool = plan.tensor((1, 4, 8, 8)), plan.tensor((1, 4, 8, 8)), plan.tensor((1, 4, 4, 4))
    indices = plan.tensor((1, 4, 4, 4), I64)
    flat, dense = plan.tensor((1, 64)), plan.tensor((1, 5))
    y = _out(m, (1, 5))
    m.add_output(indices)
    w, bw = m.add_constant(F32, (4, 3, 3, 3), _raw(weight)), m.add_constant(F32, (4,), _raw(bias))
    mw, mb = m.add_constant(F32, (64, 5), _raw(matrix)), m.add_constant(F32, (5,), _raw(vector))
    one, two, no = m.add_int_list((1, 1)), m.add_int_list((2, 2)), m.add_bool(False)
    zero = m.add_int_list((0, 0))
    m.kernel("aten::convolution", "out", x, w, bw, one, one, one, no, zero, m.add_int(1), conv, conv)
    m.kernel("aten::relu", "out", conv, relu, relu)
    both = m.add_tensor_list((pool, indices))
    m.kernel("aten::max_pool2d_with_indices", "out", relu, two, two, zero, one, no, pool, indices, both)
    m.kernel("aten::view_copy", "out", pool, m.add_int_list((1, 64)), flat, flat)
    m.kernel("aten::addmm", "out", mb, flat, mw, m.add_double(1.0), m.add_double(1.0), dense, dense)
    m.kernel("aten::_softmax", "out", dense, m.add_int(-1), no, y, y)
    example = _rand(1, 3, 8, 8)
    pooled, where = torch.nn.functional.max_pool2d(
        torch.relu(torch.conv2d(example, weight, bias, padding=1)), 2, return_indices=True
    )
    result = torch.softmax(torch.addmm(vector, pooled.reshape(1, 64), matrix), -1)
    return Sample(b.build(), [Call([example], [result, where])])


def quantized() -> Sample:
    """quantize and dequantize around nothing."""
    b = ProgramBuilder()
    m = b.method("forward")
    plan = Plan(m)
    x = _io(m, (2, 3))
    q = plan.tensor((2, 3), I8)
    y = _out(m, (2, 3))
    literals = [m.add_double(0.1), m.add_int(3), m.add_int(-128), m.add_int(127), m.add_int(int(I8))]
    m.kernel("quantized_decomposed::quantize_per_tensor", "out", x, *literals, q, q)
    m.kernel("quantized_decomposed::dequantize_per_tensor", "out", q, *literals, m.add_null(), y, y)
    m.add_output(q)
    example = _rand(2, 3)
    ints = torch.clamp(torch.round(example / 0.1) + 3, -128, 127).to(torch.int8)
    return Sample(b.build(), [Call([example], [(ints.float() - 3) * 0.1, ints])])


def counter() -> Sample:
    """A mutable buffer that begins at 3 and grows by the input on each execution."""
    b = ProgramBuilder()
    m = b.method("forward")
    x = _io(m, (2,))
    start = torch.tensor([3.0, 4.0])
    state = m.add_tensor(F32, (2,), Planned(0, initial=b.initial_state(_raw(start))), fqn="counter.state")
    total = m.add_tensor(F32, (2,), Planned(16))
    y = _out(m, (2,))
    m.kernel("aten::add", "out", x, state, m.add_int(1), total, total)
    m.kernel("aten::copy_", "", state, total, m.add_bool(False), state)
    m.kernel("aten::mul", "Scalar_out", total, m.add_int(2), y, y)
    ones = torch.ones(2)
    return Sample(b.build(), [Call([ones], [(start + 1) * 2]), Call([ones], [(start + 2) * 2])])


def branches() -> Sample:
    """if any(x > 0): y = x + 1, else: y = x * 2; both sides write the same output, one jumps to the end."""
    b = ProgramBuilder()
    m = b.method("forward")
    plan = Plan(m)
    x = _io(m, (3,))
    positive, condition = plan.tensor((3,), ScalarType.BOOL), plan.tensor((), ScalarType.BOOL)
    y = _out(m, (3,))
    m.kernel("aten::gt", "Scalar_out", x, m.add_int(0), positive, positive)
    m.kernel("aten::any", "all_out", positive, condition, condition)
    jump = m.jump_false(condition)
    m.kernel("aten::add", "Scalar_out", x, m.add_int(1), m.add_int(1), y, y)
    leave = m.jump_false(m.add_bool(False))
    m.set_destination(jump)
    m.kernel("aten::mul", "Scalar_out", x, m.add_int(2), y, y)
    m.set_destination(leave)
    up, down = torch.tensor([-1.0, 2.0, 0.5]), torch.tensor([-1.0, -2.0, -0.5])
    return Sample(b.build(), [Call([up], [up + 1]), Call([down], [down * 2])])


def loop() -> Sample:
    """Adds x to a sum three times with a backward jump; the sum is copied back in place, the counter moved."""
    b = ProgramBuilder()
    m = b.method("forward")
    x = _io(m, (2,))
    y = _out(m, (2,))
    total, new = m.add_tensor(F32, (2,), Planned(0)), m.add_tensor(F32, (2,), Planned(16))
    i, after, done = m.new_int(0), m.new_int(), m.new_bool()
    m.kernel("aten::full", "out", m.add_int_list((2,)), m.add_double(-0.0), total, total)
    m.move(m.add_int(0), i)
    top = len(m.instructions)
    m.kernel("aten::add", "out", total, x, m.add_int(1), new, new)
    m.kernel("aten::copy_", "", total, new, m.add_bool(False), total)
    m.kernel("executorch_prim::add", "Scalar", i, m.add_int(1), after)
    m.move(after, i)
    m.kernel("executorch_prim::ge", "Scalar", i, m.add_int(3), done)
    m.jump_false(done, top)
    m.kernel("aten::clone", "out", total, m.add_null(), y, y)
    example = _rand(2)
    return Sample(b.build(), [Call([example], [example * 3])] * 2)


def methods() -> Sample:
    """Two methods that share a constant, and one without instructions that returns a number."""
    weight = _rand(3, 3)
    b = ProgramBuilder()
    for name, kernel in (("plus", "add"), ("minus", "sub")):
        m = b.method(name)
        x, y = _io(m, (3, 3)), _out(m, (3, 3))
        m.kernel(f"aten::{kernel}", "out", x, m.add_constant(F32, (3, 3), _raw(weight)), m.add_int(1), y, y)
    m = b.method("get_answer")
    m.add_output(m.add_int(42))
    x = _rand(3, 3) + 1
    return Sample(
        b.build(),
        [Call([x], [x + weight], "plus"), Call([x], [x - weight], "minus"), Call([], [42], "get_answer")],
    )


def dynamic() -> Sample:
    """A batch of at most 4, viewed through a size read at run time."""
    b = ProgramBuilder()
    m = b.method("forward")
    x = m.add_tensor(F32, (4, 6), GIVEN, dynamism=Dynamism.BOUND)
    m.add_input(x)
    double = m.add_tensor(F32, (4, 6), Planned(0), dynamism=Dynamism.BOUND)
    y = m.add_tensor(F32, (4, 2, 3), Planned(96), dynamism=Dynamism.BOUND)
    batch = m.new_int()
    m.kernel("aten::sym_size", "int", x, m.add_int(0), batch)
    m.kernel("aten::mul", "Scalar_out", x, m.add_int(2), double, double)
    m.kernel("aten::view_copy", "out", double, m.add_int_list_of((batch, m.add_int(2), m.add_int(3))), y, y)
    m.add_output(y)
    calls = [Call([_rand(n, 6)], [_rand(n, 6).reshape(n, 2, 3) * 2]) for n in (4, 2)]
    return Sample(b.build(), calls)


def lists() -> Sample:
    """Tensor lists as input and as output, optional tensors, a string, a list of doubles, a view that aliases."""
    b = ProgramBuilder()
    m = b.method("forward")
    plan = Plan(m)
    x = _io(m, (1, 2, 2, 4))
    low, high = plan.tensor((1, 2, 2, 2)), plan.tensor((1, 2, 2, 2))
    halves = m.add_tensor_list((low, high))
    cat, up, rounded, picked = (
        plan.tensor((1, 4, 2, 2)),
        plan.tensor((1, 4, 4, 4)),
        plan.tensor((1, 4, 4, 4)),
        plan.tensor((1, 2, 4, 4)),
    )
    y = _out(m, (2, 16))
    m.kernel("aten::split_copy", "Tensor_out", x, m.add_int(2), m.add_int(-1), halves, halves)
    m.kernel("aten::cat", "out", m.add_tensor_list((high, low)), m.add_int(1), cat, cat)
    m.kernel(
        "aten::upsample_bilinear2d",
        "vec_out",
        cat,
        m.add_null(),
        m.add_bool(False),
        m.add_double_list((2.0, 2.0)),
        up,
        up,
    )
    half = m.add_constant(F32, (), _raw(torch.tensor(0.5)))
    m.kernel("aten::div", "out_mode", up, half, m.add_string("floor"), rounded, rounded)
    rows = m.add_constant(I64, (2,), _raw(torch.tensor([3, 1])))
    m.kernel("aten::index", "Tensor_out", rounded, m.add_optional_tensor_list((None, rows)), picked, picked)
    where = m.values[picked].storage
    view = m.add_tensor(F32, (2, 16), where)
    m.kernel("executorch_prim::et_view", "default", picked, m.add_int_list((2, 16)), view)
    m.kernel("aten::neg", "out", view, y, y)
    example = _rand(1, 2, 2, 4)
    both = torch.cat([example[..., 2:], example[..., :2]], 1)
    big = torch.nn.functional.interpolate(both, scale_factor=2, mode="bilinear", align_corners=False)
    result = -torch.div(big, 0.5, rounding_mode="floor")[:, [3, 1]].reshape(2, 16)
    return Sample(b.build(), [Call([example], [result])])


def odd_tensors() -> Sample:
    """Rank 0, no elements, NaN and infinities as literals, channels-last, two arenas, an input planned in the arena."""
    b = ProgramBuilder()
    m = b.method("forward")
    x = _io(m, (1, 2, 3, 4), storage=Planned(0))
    last = m.add_tensor(F32, (1, 2, 3, 4), Planned(0, memory_id=2), (0, 2, 3, 1))
    negative = m.add_tensor(F32, (1, 2, 3, 4), Planned(96, memory_id=2), (0, 2, 3, 1))
    y = _out(m, (1, 2, 3, 4))
    order = m.add_int_list((0, 2, 3, 1))
    m.kernel("dim_order_ops::_to_dim_order_copy", "out", x, m.add_bool(False), order, last, last)
    m.kernel("aten::neg", "out", last, negative, negative)
    plain = m.add_int_list((0, 1, 2, 3))
    m.kernel("dim_order_ops::_to_dim_order_copy", "out", negative, m.add_bool(False), plain, y, y)
    for value in (float("nan"), float("-inf"), -0.0):
        filled = _out(m, ())
        m.kernel("aten::full", "out", m.add_int_list(()), m.add_double(value), filled, filled)
    nothing = m.add_constant(F32, (0, 2), b"")
    empty = _out(m, (0, 2))
    m.kernel("aten::relu", "out", nothing, empty, empty)
    example = _rand(1, 2, 3, 4)
    literals = [torch.tensor(v) for v in (float("nan"), float("-inf"), -0.0)]
    return Sample(b.build(), [Call([example], [-example, *literals, torch.zeros(0, 2)])])


def blob(weights: int = 100) -> bytes:
    """An Ethos-U stream with one input int8[1, 3, 8, 8] and one output int8[1, 4]; its commands are no real ones."""
    tensor = ethosu_blob.BlobTensor
    return ethosu_blob.pack(
        b"COP1" + bytes(60),
        bytes(i % 251 for i in range(weights)),
        1024,
        [tensor((1, 1, 1, 3, 8, 8), 1, 0, 1)],
        [tensor((1, 1, 1, 1, 1, 4), 1, 512, 1)],
    )


def delegated(inline: bool = False, data: bytes | None = None) -> Sample:
    """quantize, Ethos-U, dequantize: loads up to the missing backend."""
    b = ProgramBuilder()
    m = b.method("forward")
    plan = Plan(m)
    x = _io(m, (1, 3, 8, 8))
    q, r = plan.tensor((1, 3, 8, 8), I8), plan.tensor((1, 4), I8)
    y = _out(m, (1, 4))
    literals = [m.add_double(0.1), m.add_int(0), m.add_int(-128), m.add_int(127), m.add_int(int(I8))]
    m.kernel("quantized_decomposed::quantize_per_tensor", "out", x, *literals, q, q)
    specs = (("tosa_spec", b"TOSA-1.0+INT+int16+int4+u55"), ("target", b"ethos-u55-128"), ("raw", b"\x00\xff"))
    m.delegate_call(m.add_delegate(DelegateSpec("EthosUBackend", data or blob(), specs, inline)), q, r)
    m.kernel("quantized_decomposed::dequantize_per_tensor", "out", r, *literals, m.add_null(), y, y)
    return Sample(b.build())


def named() -> Sample:
    """Named data, a container string, unusual characters."""
    b = ProgramBuilder()
    b.named_data("größe", b"\x01\x02\x03")
    b.named_data("other", bytes(200))
    m = b.method("forward")
    m.container = ("[1, *]", "*")
    m.add_output(m.add(IntValue(-(1 << 63))))
    m.add_output(m.add_string("naïve\x1b[31m"))
    m.add_output(m.add_bool_list((True, False)))
    return Sample(b.build())


SAMPLES: dict[str, Callable[[], Sample]] = {
    f.__name__: f
    for f in (network, quantized, counter, branches, loop, methods, dynamic, lists, odd_tensors, delegated, named)
}
