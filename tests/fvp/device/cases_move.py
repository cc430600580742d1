"""Calls of the kernels that move, index and create: operators, data types, layouts, edges. `CASES` is the table.

`BAD` has calls that torch refuses, with the beginning of the device's message.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from one_op import OneOp
from torch import Tensor

from tosa_ref import kernels

B, U8, I8, I16, I32, I64, F16, F32, F64 = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64,
)  # fmt: skip
ALL = (B, U8, I8, I16, I32, I64, F16, F32, F64)
COMPUTED = (U8, I8, I16, I32, I64, F32)
SOME = (I8, F16, F32, I64)
"""One of each element size."""

ARGUMENTS = "an operator has arguments that its schema does not allow"
DTYPE = "a kernel does not take this data type"
SHAPE = "shapes do not fit the operator"
INDEX = "an index is out of range"
VALUE = "an argument has a value that the operator does not allow"


def bits(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """Any bits, so also NaN of any kind: what is moved must not change."""
    g = torch.Generator().manual_seed(seed + 31 * len(shape))
    if dtype == B:
        return torch.rand(shape, generator=g) < 0.5
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), generator=g).to(U8)
    return raw.view(dtype).reshape(shape)


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0, low: int = -9, high: int = 10) -> Tensor:
    """Small numbers, with repetitions."""
    g = torch.Generator().manual_seed(seed + 31 * len(shape))
    x = torch.randint(low, high, shape, generator=g)
    return x > 0 if dtype == B else (x / 4).to(dtype) if dtype.is_floating_point else x.to(dtype)


def layout(x: Tensor, *order: int) -> Tensor:
    """The same numbers; dimensions lie in memory in this order, the outermost first."""
    back = [order.index(d) for d in range(x.dim())]
    return x.permute(order).contiguous().permute(back)


def layouts(x: Tensor) -> list[Tensor]:
    """``x`` in a few layouts: contiguous, channels-last if it has 4 dimensions, reversed."""
    orders = {tuple(range(x.dim())), tuple(range(x.dim()))[::-1], *([(0, 2, 3, 1)] if x.dim() == 4 else [])}
    return [layout(x, *order) for order in sorted(orders)]


LISTS = ("split_copy.Tensor_out", "split_with_sizes_copy.out", "unbind_copy.int_out")
_OVERLOADS = {"out": ("Tensor", "default"), "values": ("default",)}


def functional(name: str, args: Sequence[Any]) -> list[Tensor]:
    """Results of the operator that the out-variant ``aten::name`` belongs to; contiguous."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base)
    candidates = _OVERLOADS.get(overload, (overload.removesuffix("_out"),))
    op = next(getattr(packet, o) for o in candidates if o in packet.overloads())
    schema = kernels.overload(f"aten::{name}")._schema.arguments
    names = {a.name for a in op._schema.arguments}
    pairs = [(s, a) for s, a in zip(schema, args) if s.name in names]
    result = op(*(a for s, a in pairs if not s.kwarg_only), **{s.name: a for s, a in pairs if s.kwarg_only})
    return [r.contiguous() for r in (result if isinstance(result, (tuple, list)) else (result,))]


def dense(value: Any) -> Any:
    """Tensors without gaps in memory, as a program has them."""
    if isinstance(value, list):
        return [dense(v) for v in value]
    return layout(value, *value.dim_order()) if isinstance(value, Tensor) and value.dim() else value


def case(name: str, *args: Any) -> OneOp:
    """A call with torch's result, into contiguous memory."""
    args = tuple(dense(a) for a in args)
    wanted = functional(name, args)
    is_list = name in LISTS
    return OneOp(f"aten::{name}", args, tuple(wanted), is_list, tuple(wanted), ulps=0)


def into(c: OneOp, *order: int) -> OneOp:
    """The same call with results of this layout."""
    results = tuple(layout(w, *order) for w in c.wanted or ())
    return OneOp(c.name, c.args, results, c.out_is_list, results, ulps=0)


def everywhere(name: str, x: Tensor, *args: Any) -> Iterator[OneOp]:
    """The call with layouts of argument 0 and of the results."""
    for y in layouts(x):
        c = case(name, y, *args)
        yield c
        rank = (c.wanted or (x,))[0].dim()
        if rank > 1:
            yield into(c, *range(rank)[::-1])
        if rank == 4:
            yield into(c, 0, 2, 3, 1)


# ------------------------------------------------------------ another shape or order


def shapes() -> Iterator[OneOp]:
    for dtype in ALL:
        x = bits(dtype, 2, 3, 4, 5)
        yield case("permute_copy.out", x, [0, 2, 3, 1])
        yield case("permute_copy.out", x, [3, -2, 0, 1])
        yield case("transpose_copy.int_out", x, 1, -1)
        yield case("view_copy.out", x, [6, -1])
        yield case("expand_copy.out", x[:, :1], [3, 2, 4, 4, 5], False)
        yield case("flip.out", x, [0, -1])
        yield case("repeat.out", x, [2, 1, 3, 1, 2])
        yield case("roll.out", x, [1, -2], [1, 3])
        yield case("roll.out", x, [7], [])
        yield case("as_strided_copy.out", x, [3, 4], [2, 5], 7)
        yield case("diagonal_copy.out", x, 1, 1, 3)
        yield case("unfold_copy.out", x, 2, 2, 1)
        yield case("pixel_shuffle.out", bits(dtype, 2, 8, 3, 2), 2)
        yield case("pixel_unshuffle.out", bits(dtype, 2, 3, 4, 6), 2)
    for dtype in SOME:
        x = bits(dtype, 2, 3, 4, 5)
        yield from everywhere("permute_copy.out", x, [1, 3, 0, 2])
        yield from everywhere("transpose_copy.int_out", x, -3, 0)
        yield from everywhere("view_copy.out", x, [2, 60])
        yield from everywhere("view_copy.out", x, [4, 2, 5, 3])
        yield from everywhere("flip.out", x, [1, 2])
        yield from everywhere("roll.out", x, [13], [])
        yield from everywhere("roll.out", x, [5, 1, -1, 4], [0, 1, 2, 3])
        yield from everywhere("repeat.out", x, [2, 3, 1, 2])
        yield from everywhere("unfold_copy.out", x, -1, 3, 2)
        yield from everywhere("pixel_shuffle.out", bits(dtype, 1, 18, 2, 3), 3)
        yield from everywhere("pixel_unshuffle.out", bits(dtype, 2, 2, 6, 3), 3)
        yield from everywhere("diagonal_copy.out", x, -1, 2, 0)
        yield from everywhere("expand_copy.out", x[:, :1, :, :1].contiguous(), [2, 7, -1, 3], False)
        yield from everywhere("unsqueeze_copy.out", x, 2)
        yield from everywhere("squeeze_copy.dim_out", x[:, :1].contiguous(), 1)
    x, y = bits(F32, 3, 4), bits(I16, 1, 3, 1, 1)
    for dims in ([0, 1], [1, 0], [-1, -2]):
        yield case("permute_copy.out", x, dims)
    for size in ([12], [2, 2, 3], [-1], [1, 12, 1], [3, 4], [4, -1]):
        yield case("view_copy.out", x, size)
    yield case("permute_copy.out", torch.tensor(5), [])
    yield case("view_copy.out", torch.tensor(5), [])
    yield case("view_copy.out", torch.tensor(5), [1, 1])
    yield case("view_copy.out", bits(F32, 1), [])
    yield case("view_copy.out", bits(F32, 0, 3), [3, -1])
    yield case("view_copy.out", bits(F32, 0, 3), [5, 0, 2])
    yield case("transpose_copy.int_out", torch.tensor(5), 0, -1)
    yield case("transpose_copy.int_out", bits(F32, 3, 0), 0, 1)
    for t in (torch.tensor(1.5), bits(F32, 7), x, layout(x, 1, 0), bits(U8, 64, 33)):
        yield case("t_copy.out", t)
    for dim in (0, 1, -1, -4):
        yield case("squeeze_copy.dim_out", y, dim)
    for dims in ([0], [0, 2, 3], [1], [], [-1, 0], [0, 1, 2, 3]):
        yield case("squeeze_copy.dims_out", y, dims)
    yield case("squeeze_copy.dim_out", torch.tensor(1.0), -1)
    yield case("squeeze_copy.dims_out", bits(F32, 1), [0])
    for dim in (0, 1, 2, -1, -3):
        yield case("unsqueeze_copy.out", x, dim)
    yield case("unsqueeze_copy.out", torch.tensor(True), 0)
    yield case("unsqueeze_copy.out", torch.tensor(True), -1)
    yield case("expand_copy.out", torch.tensor(2.5), [2, 3], False)
    yield case("expand_copy.out", torch.tensor(2.5), [], False)
    yield case("expand_copy.out", bits(I8, 3, 1), [3, 0], False)
    yield case("expand_copy.out", bits(I8, 3, 1), [2, -1, -1], True)
    yield case("expand_copy.out", bits(I8, 0, 1), [4, 0, 5], False)
    yield case("repeat.out", torch.tensor(2), [])
    yield case("repeat.out", torch.tensor(2), [2, 0])
    yield case("repeat.out", torch.tensor(2), [3, 2])
    yield case("repeat.out", bits(I8, 0, 2), [2, 2])
    yield case("repeat.out", bits(I8, 2), [1] * 15 + [5])
    yield case("flip.out", x, [])
    yield case("flip.out", torch.tensor(2), [0])
    yield case("flip.out", bits(F32, 0, 3), [0, 1])
    yield case("flip.out", bits(F64, 11), [-1])
    yield case("roll.out", x, [1, 1, -4], [0, 0, 1])
    yield case("roll.out", x, [2**62], [-1])
    yield case("roll.out", x, [-(2**61) - 1], [])
    yield case("roll.out", x, [0], [0])
    yield case("roll.out", torch.tensor(2), [3], [])
    yield case("roll.out", bits(F32, 0), [3], [0])
    yield case("roll.out", bits(F32, 2, 0), [3], [])
    for offset in (0, 1, 3, 4, 9, -1, -2, -3, 2**40, -(2**61)):
        yield case("diagonal_copy.out", x, offset, 0, 1)
        yield case("diagonal_copy.out", x, offset, -1, 0)
    yield case("diagonal_copy.out", bits(F32, 0, 3), 1, 0, 1)
    yield case("unfold_copy.out", torch.tensor(2), 0, 1, 3)
    yield case("unfold_copy.out", torch.tensor(2), 0, 0, 1)
    for size, step in ((1, 1), (4, 1), (2, 3), (0, 2), (3, 2**40)):
        yield case("unfold_copy.out", x, 1, size, step)
    for size, stride, offset in (
        ([2, 3], [1, 1], 1), ([], [], 5), ([], [], None), ([0, 3], [9, 99], 400), ([3, 3], [0, 4], 0), ([2], [11], 0),
        ([1], [2**40], 11), ([1, 1, 2], [7, 7, 7], None),
    ):  # fmt: skip
        yield case("as_strided_copy.out", x, size, stride, offset)
    yield case("pixel_shuffle.out", bits(F32, 1, 4, 0, 2), 2)
    yield case("pixel_shuffle.out", bits(I8, 5, 2, 2), 1)
    yield case("pixel_shuffle.out", bits(I8, 1, 2, 1, 1, 9, 2, 2), 3)
    yield case("pixel_unshuffle.out", bits(I8, 1, 2, 1, 1, 1, 4, 2), 2)
    yield case("permute_copy.out", bits(I8, *(1, 2) * 8), [*range(15, -1, -1)])


# ------------------------------------------------------------ parts


def slices() -> Iterator[OneOp]:
    for dtype in ALL:
        x = bits(dtype, 2, 6, 3, 4)
        yield case("slice_copy.Tensor_out", x, 1, 1, 6, 2)
        yield case("select_copy.int_out", x, 1, -2)
        yield case("narrow_copy.out", x, -1, 1, 2)
        yield case("split_copy.Tensor_out", x, 4, 1)
        yield case("split_with_sizes_copy.out", x, [1, 0, 2, 3], 1)
        yield case("unbind_copy.int_out", x, 2)
        yield case("cat.out", [x, bits(dtype, 2, 1, 3, 4, seed=1), x], 1)
        yield case("stack.out", [x, bits(dtype, 2, 6, 3, 4, seed=1)], -1)
        yield case("select_scatter.out", x, bits(dtype, 2, 3, 4, seed=1), 1, 3)
        yield case("slice_scatter.out", x, bits(dtype, 2, 2, 3, 4, seed=1), 1, 1, None, 3)
        yield case("tril.out", x, 1)
    for dtype in SOME:
        x = bits(dtype, 2, 6, 3, 4)
        yield from everywhere("slice_copy.Tensor_out", x, 3, 0, -1, 2)
        yield from everywhere("select_copy.int_out", x, 2, 1)
        yield from everywhere("narrow_copy.out", x, 1, -4, 3)
        yield from everywhere("split_copy.Tensor_out", x, 2, -1)
        yield from everywhere("unbind_copy.int_out", x, 0)
        yield from everywhere("tril.out", x, -1)
        for y, z in itertools.product(layouts(x), layouts(bits(dtype, 2, 6, 3, 4, seed=1))):
            for dim in (0, 1, -1):
                yield into(case("cat.out", [y, z], dim), 0, 2, 3, 1)
            yield into(case("stack.out", [y, z], 2), 4, 2, 0, 1, 3)
            yield into(case("slice_scatter.out", y, z[:, :2], 1, 4, None, 1), 0, 2, 3, 1)
            yield case("select_scatter.out", y, z[..., 0], -1, -1)
    x = bits(F32, 5)
    ends = (None, 0, 1, 3, 5, 9, -1, -3, -9, 2**63 - 1, -(2**63))
    for start, end in itertools.product(ends, ends):
        yield case("slice_copy.Tensor_out", x, 0, start, end, 1)
    for step in (1, 2, 4, 5, 2**40):
        yield case("slice_copy.Tensor_out", x, -1, None, None, step)
        yield case("slice_scatter.out", x, x[0::step] if step < 9 else x[:1], 0, 0, None, step)
    for start, length in ((0, 5), (5, 0), (-5, 5), (4, 1), (2, 2), (-1, 0)):
        yield case("narrow_copy.out", x, 0, start, length)
    for size in (1, 2, 5, 9):
        yield case("split_copy.Tensor_out", x, size, 0)
    yield case("split_copy.Tensor_out", bits(F32, 0), 0, 0)
    yield case("split_copy.Tensor_out", bits(F32, 0, 3), 2, 0)
    yield case("split_with_sizes_copy.out", x, [5], 0)
    yield case("unbind_copy.int_out", x, 0)
    yield case("slice_copy.Tensor_out", bits(I64, 0, 4), 1, 1, 3, 1)
    yield case("cat.out", [x], 0)
    yield case("cat.out", [bits(F32, 0), bits(F32, 3, 4)], -2)
    yield case("cat.out", [bits(F32, 0), bits(F32, 0)], 0)
    yield case("cat.out", [bits(F32, 3, 0), bits(F32, 3, 4), bits(F32, 0)], 1)
    yield case("cat.out", [bits(F32, 0, 4), bits(F32, 0, 4)], 1)
    yield case("stack.out", [torch.tensor(1), torch.tensor(2)], -1)
    yield case("stack.out", [bits(F32, 0, 4), bits(F32, 0, 4)], 1)
    for a, b in itertools.product((B, U8, I8, I16, I32, I64, F32), repeat=2):
        yield case("cat.out", [numbers(a, 2, 3, low=0), numbers(b, 2, 2, low=0)], 1)
    yield case("cat.out", [bits(I64, 0), numbers(F32, 3)], 0)
    yield case("stack.out", [layout(numbers(I32, 2, 3), 1, 0), numbers(F32, 2, 3)], 1)
    yield OneOp("aten::cat.out", ([numbers(I64, 5, low=-999, high=999)], 0), (I8,), ulps=0)
    yield case("slice_scatter.out", numbers(F32, 3, 4), numbers(I32, 1, 4), 0, 1, 2, 1)
    yield case("slice_scatter.out", numbers(I8, 3, 4), numbers(F32, 3, 4) * 4.3, 1, 0, 9, 1)
    yield case("slice_scatter.out", numbers(B, 3, 4), numbers(F32, 3, 4) / 9, 1, 0, 9, 1)
    yield case("select_scatter.out", numbers(I64, 3, 4), numbers(F32, 3) * 4.3, 1, 2)
    for diagonal in (0, 1, 3, 9, -1, -2, -5, 2**61, -(2**61)):
        yield case("tril.out", bits(F32, 3, 4), diagonal)
        yield case("tril.out", bits(I16, 5, 2), diagonal)
    yield case("tril.out", bits(F32, 0, 4), 0)


# ------------------------------------------------------------ by index


def indices(*shape: int, size: int, dtype: torch.dtype = I64, negative: bool = False, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-size if negative else 0, size, shape, generator=g).to(dtype)


def by_index() -> Iterator[OneOp]:
    for dtype, kind in itertools.product(ALL, (I64, I32)):
        x = bits(dtype, 4, 5, 3)
        i = indices(3, 7, 3, size=5, dtype=kind)
        yield case("gather.out", x, 1, i, False)
        once = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(k))[:4] for k in range(6)])
        once = once.view(2, 3, 4).transpose(1, 2).contiguous().to(kind)
        yield case("scatter.src_out", x, 1, once, bits(dtype, 3, 4, 3))
        yield case("scatter.value_out", numbers(dtype, 4, 5, 3), -2, once, 1)
        yield case("index_select.out", x, -2, indices(8, size=5, dtype=kind))
        yield case("embedding.out", bits(dtype, 7, 5), indices(2, 3, size=7, dtype=kind), -1, False, False)
        yield case("index.Tensor_out", x, [None, indices(6, size=5, dtype=kind, negative=True)])
        yield case("index_put.out", x, [None, torch.tensor([1, -1], dtype=kind)], bits(dtype, 4, 2, 3), False)
    for dtype in COMPUTED:
        x, src = numbers(dtype, 4, 5), numbers(dtype, 3, 9, seed=5)
        yield case("scatter_add.out", x, 1, indices(3, 9, size=5), src)
        yield case("index_put.out", x, [indices(9, size=4, negative=True)], numbers(dtype, 5), True)
        yield case("index_put.out", x, [indices(9, size=4), indices(2, 1, size=5)], numbers(dtype, 2, 9), True)
    yield case("scatter_add.out", bits(I8, 4), 0, indices(99, size=4), bits(I8, 99))
    yield case("scatter_add.out", bits(I64, 4), 0, indices(99, size=4), bits(I64, 99))
    yield case("scatter_add.out", bits(B, 4), 0, indices(5, size=4), bits(B, 5))
    for x in layouts(bits(I16, 3, 4, 5)):
        for i in layouts(indices(2, 3, 5, size=3)):
            yield into(case("gather.out", x, 0, i, False), 2, 0, 1)
        for i in layouts(torch.tensor([[[0, 1], [2, 0]]])):
            for src in layouts(bits(I16, 2, 2, 2)):
                yield into(case("scatter.src_out", x, 1, i[:, :, :1], src), 1, 2, 0)
        yield into(case("index_select.out", x, 1, indices(6, size=4)), 2, 1, 0)
        for i in layouts(indices(2, 3, size=3)):
            yield into(case("index.Tensor_out", x, [i]), 3, 1, 0, 2)
            yield into(case("index.Tensor_out", x, [i, None, i]), 1, 2, 0)
            yield case("index.Tensor_out", x, [None, i, i])
            for values in layouts(bits(I16, 2, 3, 5)):
                yield into(case("index_put.out", x, [i * 0 + torch.arange(3), i], values, False), 2, 0, 1)
        for mask in layouts(bits(B, 4, 5)):
            yield into(case("index.Tensor_out", x, [None, mask]), 1, 0)
            yield case("index_put.out", x, [None, mask], bits(I16, 1), False)
        for mask in layouts(bits(B, 3, 4, 5)):
            yield case("masked_select.out", x, mask)
            for source in layouts(bits(I16, 9, 7)):
                yield into(case("masked_scatter.out", x, mask, source), 2, 1, 0)
    for w in layouts(bits(F32, 6, 4)):
        for i in layouts(indices(3, 2, size=6)):
            yield into(case("embedding.out", w, i, -1, False, False), 2, 0, 1)
    x = bits(F32, 3, 4)
    one, zero_d = torch.tensor([0]), torch.tensor(0)
    yield case("gather.out", torch.tensor(5.0), 0, zero_d, False)
    yield case("gather.out", torch.tensor(5.0), -1, torch.tensor([0, 0]), False)
    yield case("gather.out", bits(F32, 2), 0, torch.tensor(1), False)
    yield case("gather.out", x, 1, torch.zeros(0, dtype=I64), False)
    yield case("gather.out", x, 1, torch.zeros(0, 4, dtype=I64), False)
    yield case("scatter.src_out", x, 1, torch.zeros(0, dtype=I64), x)
    yield case("scatter.src_out", torch.tensor(5.0), 0, zero_d, torch.tensor(7.0))
    yield case("scatter.value_out", torch.tensor(5.0), 0, torch.tensor([0, 0]), 2.5)
    yield case("scatter.value_out", bits(U8, 3), 0, one, -1)
    yield case("scatter.value_out", bits(B, 3), 0, one, 2.5)
    yield case("index_select.out", x, 0, torch.tensor(1))
    yield case("index_select.out", x, 1, torch.zeros(0, dtype=I32))
    yield case("index_select.out", torch.tensor(1.0), 0, one)
    yield case("index_select.out", torch.tensor(1.0), 0, zero_d)
    yield case("embedding.out", x, torch.tensor(1), -1, False, False)
    yield case("embedding.out", x, torch.tensor([2]), 99, False, False)
    yield case("embedding.out", bits(F32, 3, 0), torch.tensor([2]), -1, False, False)
    yield case("embedding.out", x, torch.zeros(2, 0, dtype=I64), -1, False, False)
    y, m = bits(F32, 2, 3, 4, 5), bits(B, 3, 4, seed=3)
    a, b = indices(6, size=3, seed=1, negative=True), indices(4, 1, size=4, seed=2)
    for listed in (
        [a * 0], [a * 0, a], [None, a], [None, a, b], [None, None, b, b], [a * 0, None, b], [a * 0, None, None, b],
        [None, m], [None, m, None], [None, m, zero_d], [m[0, :2]], [zero_d, m], [None, None, m[0]], [None, a[:0]],
        [torch.zeros(1, 6, dtype=I32), a.to(I32), b], [zero_d, zero_d, zero_d, zero_d],
        [None, m & False], [None, None, torch.zeros(4, 5, dtype=B)],
    ):  # fmt: skip
        got = case("index.Tensor_out", y, listed)
        yield got
        wanted = (got.wanted or ())[0]
        yield case("index_put.out", y, listed, torch.tensor(7.5), False)
        if wanted.dim():
            yield case("index_put.out", y.nan_to_num(), listed, bits(F32, wanted.shape[-1]).nan_to_num(1, 2, 3), False)
    yield case("index.Tensor_out", y, [None, m.to(U8)])
    yield case("index.Tensor_out", bits(F32, 3, 0), [torch.tensor([7])])
    yield case("index.Tensor_out", x, [torch.tensor([[7]]), torch.zeros(0, 1, dtype=I64)])
    yield case("index.Tensor_out", bits(F32, 0, 3), [torch.zeros(0, dtype=I64)])
    inplace = bits(I32, 4, 3)
    yield OneOp("aten::index_put_", (inplace, [torch.tensor([2, 0])], bits(I32, 2, 3, seed=8), False), (), ulps=0)
    yield OneOp("aten::index_put_", (inplace, [inplace > 0], torch.tensor([5], dtype=I32), False), (), ulps=0)
    yield OneOp("aten::index_put_", (inplace, [torch.tensor([1, 1, 1])], inplace[:1] + 1, True), (), ulps=0)


def by_mask() -> Iterator[OneOp]:
    for dtype in ALL:
        x = bits(dtype, 3, 4)
        yield case("masked_select.out", x, bits(B, 3, 4, seed=2))
        yield case("masked_select.out", x, bits(B, 2, 1, 4, seed=2))
        yield case("masked_scatter.out", x, bits(B, 3, 4, seed=2), bits(dtype, 12))
        yield case("masked_scatter.out", x, bits(B, 3, 1, seed=2), bits(dtype, 4, 5))
        yield case("nonzero.out", numbers(dtype, 3, 4, 2, low=-1, high=2))
        special = torch.tensor([0.0, -0.0, 1.0, math.nan, 1e-30]).to(dtype)
        yield case("nonzero.out", special)
        yield case("repeat_interleave.Tensor_out", indices(6, size=4).to(dtype if dtype in (I32, I64) else I64), None)
    yield case("masked_select.out", bits(F32, 4), torch.tensor(True))
    yield case("masked_select.out", torch.tensor(1.5), bits(B, 4))
    yield case("masked_select.out", torch.tensor(1.5), torch.tensor(False))
    yield case("masked_select.out", bits(F32, 0, 4), bits(B, 4))
    yield case("masked_scatter.out", bits(F32, 4), bits(B, 3, 4), bits(F32, 12))
    yield case("masked_scatter.out", torch.tensor(1.5), torch.tensor(True), torch.tensor(2.5))
    yield case("masked_scatter.out", bits(F32, 3), torch.zeros(3, dtype=B), bits(F32, 0))
    for x in layouts(numbers(I8, 3, 4, 5, low=-1, high=2)):
        yield into(case("nonzero.out", x), 1, 0)
    yield case("nonzero.out", torch.tensor(3.0))
    yield case("nonzero.out", torch.tensor(0))
    yield case("nonzero.out", torch.zeros(0, 3))
    yield case("repeat_interleave.Tensor_out", torch.tensor([2, 0, 3]), 5)
    yield case("repeat_interleave.Tensor_out", torch.zeros(0, dtype=I32), None)


# ------------------------------------------------------------ padding, creation, order


def pads() -> Iterator[OneOp]:
    for dtype in ALL:
        x = bits(dtype, 2, 3, 4, 5)
        yield case("constant_pad_nd.out", x, [1, 2, 0, 1, 3, 0, 0, 1], 0)
        yield case("constant_pad_nd.out", numbers(dtype, 3, 4), [-1, 2, 1, -1], 1.0 if dtype.is_floating_point else 1)
        if dtype != B:
            yield case("reflection_pad2d.out", x, [4, 1, 0, 3])
            yield case("replication_pad2d.out", x, [4, 7, 0, 3])
    for dtype in SOME:
        x = bits(dtype, 2, 3, 4, 5)
        yield from everywhere("constant_pad_nd.out", x, [2, 1, 1, 1, 1, 0], 0)
        yield from everywhere("constant_pad_nd.out", x, [-2, 1, 1, -1], 0)
        yield from everywhere("reflection_pad2d.out", x, [1, 2, 3, 0])
        yield from everywhere("replication_pad2d.out", x, [1, 2, 5, 0])
        yield from everywhere("reflection_pad3d.out", x, [1, 2, 3, 0, 1, 1])
        yield from everywhere("replication_pad3d.out", x, [1, 2, 5, 0, 1, 4])
    x = bits(F32, 3, 4)
    for pad in ([1, 1], [0, 0], [3, 3], [-1, 1], [-2, 3], [3, -2], [0, -3], [-1, -1]):
        yield case("reflection_pad1d.out", x, pad)
        yield case("replication_pad1d.out", x, pad)
        yield case("constant_pad_nd.out", x, pad, 2.5)
    for pad in ([-6, 5], [5, -6], [9, 9], [-3, 0]):
        yield case("replication_pad1d.out", x, pad)
    yield case("reflection_pad1d.out", bits(F32, 2, 3, 4), [2, 1])
    yield case("reflection_pad1d.out", bits(F32, 0, 2, 3), [1, 1])
    yield case("replication_pad1d.out", bits(F32, 0, 2, 3), [1, 1])
    yield case("replication_pad2d.out", bits(F32, 2, 3, 4), [2, -1, -1, 4])
    yield case("reflection_pad2d.out", bits(F32, 2, 3, 4), [2, -1, -1, 2])
    yield case("reflection_pad3d.out", bits(I16, 2, 3, 4, 5, 3), [2, 1, 0, 3, 2, 2])
    yield case("replication_pad3d.out", bits(I16, 2, 3, 4, 5, 3), [2, 1, 0, 3, 2, -2])
    yield case("constant_pad_nd.out", x, [], 0)
    yield case("constant_pad_nd.out", x, [-2, -2], 0)
    yield case("constant_pad_nd.out", bits(F32, 0, 2), [1, 1, 1, 1], 0.5)
    yield case("constant_pad_nd.out", torch.tensor(1.0), [], 0)
    yield case("constant_pad_nd.out", bits(I8, 3), [1, 0], 1.5)
    yield case("constant_pad_nd.out", bits(B, 3), [1, 0], 2)
    yield case("constant_pad_nd.out", x, [1, 0], -math.inf)
    yield case("constant_pad_nd.out", x, [1, 0], True)


def made(name: str, *args: Any, dtype: torch.dtype) -> OneOp:
    return OneOp(f"aten::{name}", args, (dtype,), ulps=0)


def created() -> Iterator[OneOp]:
    for dtype in ALL:
        for value in (0, 1, 2.75, True, 100):
            yield made("full.out", [2, 3], value, dtype=dtype)
        yield made("full_like.out", bits(I16, 3, 2), 7, None, dtype=dtype)
        yield made("zeros.out", [2, 5], dtype=dtype)
        yield made("ones.out", [2, 5], dtype=dtype)
        yield made("scalar_tensor.out", 2.25, dtype=dtype)
        yield made("scalar_tensor.out", 3, dtype=dtype)
        if dtype not in (B, F16):
            yield made("arange.out", 7, dtype=dtype)
            yield made("arange.start_out", 1, 20, 3, dtype=dtype)
    for value in (math.nan, math.inf, -math.inf, -0.0, 0.1, 65504.0, 1e-7, 6e-8, 5.9e-8, 3e-8, 2.98023224e-8,
                  0.33325195, 0.33337402, 2049.0, 2051, 1e-5):  # fmt: skip
        yield made("full.out", [1], value, dtype=F16)
        yield made("full.out", [1], value, dtype=F32)
        yield made("full.out", [1], value, dtype=F64)
    yield made("full.out", [1], 2**63 - 1, dtype=F32)
    yield made("full.out", [1], 2**24 + 1, dtype=F32)
    yield made("full.out", [1], -(2**63), dtype=I64)
    yield made("full.out", [3], -255, dtype=U8)
    yield made("full.out", [3], -128.0, dtype=I8)
    yield made("full.out", [], 5, dtype=I8)
    yield made("full.out", [2, 0], 5, dtype=I8)
    yield made("zeros.out", [], dtype=F32)
    yield OneOp("aten::full_like.out", (bits(F32, 1, 2, 3, 4), 2.5, None), (layout(bits(F32, 1, 2, 3, 4), 0, 2, 3, 1),),
                ulps=0)  # fmt: skip
    for start, end, step in ((0, 5, 1), (5, 0, -2), (0.5, 4.5, 1.9), (-3, 3, 1), (2, 2, 1), (0.0, 1.0, 0.25),
                             (1, -1.5, -0.5), (0.5, 0.2, -1.5), (0, 2**40, 2**38), (7, 3, -1), (0, 10, 4)):  # fmt: skip
        for dtype in (I32, I64, F32, F64):
            if (dtype, step) != (I32, 2**38) and not (dtype == I64 and abs(step) < 1):
                yield made("arange.start_out", start, end, step, dtype=dtype)
    yield made("arange.out", 4.5, dtype=I32)
    yield made("arange.out", 4.5, dtype=F32)
    yield made("arange.out", 200, dtype=I8)
    yield made("arange.out", 0, dtype=I64)


def ordered() -> Iterator[OneOp]:
    """No equal elements: their order is not defined."""
    for dtype in COMPUTED:
        x = torch.stack([torch.randperm(40, generator=torch.Generator().manual_seed(k)) for k in range(6)])
        x = (x - 20 if dtype != U8 else x).view(2, 3, 40).to(dtype)
        for k, largest in itertools.product((0, 1, 5, 39, 40), (True, False)):
            yield case("topk.values", x, k, -1, largest, True)
        for y in layouts(x.transpose(1, 2)[:, :9].contiguous()):
            c = case("topk.values", y, 3, 1, True, True)
            yield c
            yield into(c, 1, 2, 0)
    yield case("topk.values", torch.tensor([1.0, math.nan, 3.0, -math.inf, math.inf]), 3, 0, True, True)
    yield case("topk.values", torch.tensor([1.0, math.nan, 3.0, -math.inf, math.inf]), 4, 0, False, True)
    yield case("topk.values", torch.tensor(5), 1, 0, True, True)
    yield case("topk.values", torch.tensor(5), 0, -1, True, True)
    yield case("topk.values", bits(I32, 0, 4), 2, 1, True, True)


# ------------------------------------------------------------ quantized embeddings


def unpacked(weight: Tensor, width: int) -> Tensor:
    """Weights of packed bytes: four bits from the high half on, two bits from the lowest quarter on."""
    if width == 8:
        return weight
    raw = weight.view(U8).to(I16)
    shifts = (4, 0) if width == 4 else (0, 2, 4, 6)
    parts = [(raw >> s & (15 if width == 4 else 3)) - (8 if width == 4 else 2) for s in shifts]
    return torch.stack(parts, -1).reshape(weight.shape[0], -1)


def table(width: int, weight: Tensor, scales: Tensor, zeros: Tensor | None, rows: Tensor, out: torch.dtype) -> OneOp:
    values = unpacked(weight, width)
    groups = scales.shape[1] if scales.dim() == 2 else 1
    grouped = values.reshape(values.shape[0], groups, -1)
    shifted = grouped if zeros is None else grouped.sub(zeros.reshape(-1, groups, 1))
    dequantized = shifted.mul(scales.reshape(-1, groups, 1)).reshape(values.shape).to(out)
    name = {8: "embedding_byte", 4: "embedding_4bit", 2: "embedding_2bit"}[width]
    low = -(2 ** (width - 1))
    args = (weight, scales, zeros, low, -low - 1, rows)
    wanted = (dequantized[rows.long()],)
    if out == scales.dtype:
        return OneOp(f"quantized_decomposed::{name}.out", args, wanted, wanted=wanted, ulps=0)
    number = {F16: 5, F32: 6}[out]
    return OneOp(f"quantized_decomposed::{name}.dtype_out", (*args, number), wanted, wanted=wanted, ulps=0)


def quantized() -> Iterator[OneOp]:
    for width, kind, groups, zero in itertools.product((8, 4, 2), (F32, F16), (0, 1, 2), (False, True)):
        weight = bits(I8 if width == 8 else U8, 6, 8)
        shape = (6, groups) if groups else (6,)
        scales = (numbers(F32, *shape, low=1) / 7).to(kind)
        zeros = numbers(F32, *shape, seed=4).to(kind) if zero else None
        for out in (F32, F16):
            yield table(width, weight, scales, zeros, indices(2, 3, size=6, dtype=I64 if groups else I32), out)
    scales = torch.rand(6)
    yield table(8, bits(U8, 6, 8), scales, None, torch.tensor(3), F32)
    yield table(8, bits(U8, 6, 8), scales, scales * 9, torch.tensor([5]), F32)


CASES: list[OneOp] = [
    *shapes(), *slices(), *by_index(), *by_mask(), *pads(), *created(), *ordered(), *quantized(),
]  # fmt: skip


# ------------------------------------------------------------ what must be refused


Out = Tensor | torch.dtype | tuple[Any, ...] | None


def bad(text: str, name: str, *args: Any, out: Out = None) -> tuple[OneOp, str]:
    outs = None if out is None else out if isinstance(out, tuple) else (out,)
    listed = name in LISTS
    return OneOp(f"aten::{name}", args, outs, listed, ulps=0), text


def refused() -> Iterator[tuple[OneOp, str]]:
    x, y = bits(F32, 3, 4), bits(I8, 2, 3, 4)
    row = torch.tensor([0])
    yield bad(VALUE, "permute_copy.out", x, [0, 0])
    yield bad(SHAPE, "permute_copy.out", x, [0])
    yield bad(INDEX, "permute_copy.out", x, [0, 2])
    yield bad(INDEX, "transpose_copy.int_out", x, 0, 2)
    yield bad(SHAPE, "t_copy.out", y)
    for size in ([5], [-1, 5], [-1, -1], [0, -1], [-2, 6], [2**40], [2**32, 2**32], [3, 4, 2]):
        yield bad(SHAPE, "view_copy.out", x, size)
    yield bad(INDEX, "squeeze_copy.dim_out", x, 2)
    yield bad(VALUE, "squeeze_copy.dims_out", y[:1], [0, -3])
    yield bad(INDEX, "unsqueeze_copy.out", x, 3)
    for size in ([-1, 3, 4], [4], [3, 5], [3, -2], [2, 4]):
        yield bad(SHAPE, "expand_copy.out", x, size, False)
    yield bad(SHAPE, "repeat.out", x, [2])
    yield bad(SHAPE, "repeat.out", x, [2, -1])
    yield bad(SHAPE, "repeat.out", x, [2**31, 2**31])
    yield bad(VALUE, "flip.out", x, [0, -2])
    yield bad(INDEX, "flip.out", x, [2])
    yield bad(VALUE, "roll.out", x, [1, 1], [0])
    yield bad(VALUE, "roll.out", x, [], [])
    yield bad(INDEX, "roll.out", x, [1], [2])
    yield bad(INDEX, "roll.out", torch.tensor(1.0), [1], [0])
    yield bad(VALUE, "diagonal_copy.out", x, 0, 1, -1)
    yield bad(INDEX, "diagonal_copy.out", bits(F32, 3), 0, 0, 1)
    yield bad(VALUE, "unfold_copy.out", x, 0, 4, 1)
    yield bad(VALUE, "unfold_copy.out", x, 0, -1, 1)
    yield bad(VALUE, "unfold_copy.out", x, 0, 1, 0)
    yield bad(VALUE, "as_strided_copy.out", x, [2], [-1], 4)
    yield bad(VALUE, "as_strided_copy.out", x, [1], [1], -1)
    yield bad(INDEX, "as_strided_copy.out", x, [2], [12], 0)
    yield bad(INDEX, "as_strided_copy.out", x, [1], [1], 12)
    yield bad(INDEX, "as_strided_copy.out", x, [3, 3], [2**31, 2**31], 0)
    yield bad(INDEX, "as_strided_copy.out", x, [2, 2], [2**62, 2**62], 0)
    yield bad(SHAPE, "as_strided_copy.out", x, [2, 3], [1], 0)
    yield bad(SHAPE, "as_strided_copy.out", x, [-2], [1], 0)
    yield bad(SHAPE, "pixel_shuffle.out", bits(I8, 3, 1, 1), 2)
    yield bad(SHAPE, "pixel_shuffle.out", bits(I8, 3, 1), 1)
    yield bad(VALUE, "pixel_shuffle.out", bits(I8, 4, 1, 1), 0)
    yield bad(SHAPE, "pixel_shuffle.out", bits(I8, 4, 1, 1), 2**32)
    yield bad(SHAPE, "pixel_unshuffle.out", bits(I8, 1, 3, 2), 2)
    yield bad(VALUE, "slice_copy.Tensor_out", x, 0, 0, 2, 0)
    yield bad(INDEX, "slice_copy.Tensor_out", x, 2, 0, 2, 1)
    yield bad(SHAPE, "slice_copy.Tensor_out", torch.tensor(1.0), 0, 0, 1, 1)
    for i in (3, -4, 2**62, -(2**63)):
        yield bad(INDEX, "select_copy.int_out", x, 0, i)
    yield bad(SHAPE, "select_copy.int_out", torch.tensor(1.0), 0, 0)
    yield bad(INDEX, "narrow_copy.out", x, 0, 2, 2)
    yield bad(INDEX, "narrow_copy.out", x, 0, 4, 0)
    yield bad(INDEX, "narrow_copy.out", x, 0, 1, 2**63 - 1)
    yield bad(VALUE, "narrow_copy.out", x, 0, 1, -1)
    yield bad(VALUE, "split_copy.Tensor_out", x, 0, 0, out=(x,))
    yield bad(VALUE, "split_copy.Tensor_out", x, -1, 0, out=(x,))
    yield bad(ARGUMENTS, "split_copy.Tensor_out", x, 2, 0, out=(x,))
    yield bad(SHAPE, "split_copy.Tensor_out", torch.tensor(1.0), 2, 0, out=(x,))
    yield bad(VALUE, "split_with_sizes_copy.out", x, [2, 2], 0, out=(x, x))
    yield bad(VALUE, "split_with_sizes_copy.out", x, [2], 0, out=(x,))
    yield bad(VALUE, "split_with_sizes_copy.out", x, [4, -1], 0, out=(x, x))
    yield bad(SHAPE, "unbind_copy.int_out", torch.tensor(1.0), 0, out=(x,))
    yield bad(ARGUMENTS, "unbind_copy.int_out", x, 0, out=(x, x))
    yield bad(ARGUMENTS, "cat.out", [], 0, out=x)
    yield bad(SHAPE, "cat.out", [torch.tensor(1.0)], 0, out=x)
    yield bad(SHAPE, "cat.out", [x, bits(F32, 2, 3)], 0, out=x)
    yield bad(SHAPE, "cat.out", [x, bits(F32, 3)], 0, out=x)
    yield bad(INDEX, "cat.out", [x, x], 2, out=x)
    yield bad(DTYPE, "cat.out", [x], 0, out=I32)
    yield bad(DTYPE, "cat.out", [bits(I32, 3)], 0, out=B)
    yield bad(SHAPE, "stack.out", [x, bits(F32, 3, 5)], 0, out=bits(F32, 2, 3, 4))
    yield bad(INDEX, "stack.out", [x, x], 3, out=bits(F32, 2, 3, 4))
    yield bad(SHAPE, "select_scatter.out", x, bits(F32, 1), 0, 0, out=x)
    yield bad(INDEX, "select_scatter.out", x, bits(F32, 4), 0, 3, out=x)
    yield bad(SHAPE, "slice_scatter.out", x, bits(F32, 4), 0, 0, 1, 1, out=x)
    yield bad(SHAPE, "tril.out", bits(F32, 3), 0)
    yield bad(DTYPE, "gather.out", x, 1, torch.zeros(1, 1, dtype=I16), False)
    yield bad(SHAPE, "gather.out", x, 1, row, False, out=bits(F32, 1))
    yield bad(SHAPE, "gather.out", x, 1, torch.zeros(4, 1, dtype=I64), False, out=bits(F32, 4, 1))
    for i in (-1, 4, 2**40):
        yield bad(INDEX, "gather.out", x, 1, torch.tensor([[i]]), False, out=bits(F32, 1, 1))
        yield bad(INDEX, "scatter.value_out", x, 1, torch.tensor([[i]]), 1.0, out=x)
        yield bad(INDEX, "scatter.src_out", x, 1, torch.tensor([[i]]), x, out=x)
        yield bad(INDEX, "scatter_add.out", x, 1, torch.tensor([[i]]), x, out=x)
        yield bad(INDEX, "index_select.out", x, 1, torch.tensor([i]), out=bits(F32, 3, 1))
        yield bad(INDEX, "embedding.out", x, torch.tensor([i]), -1, False, False, out=bits(F32, 1, 4))
    for i in (-4, 3, 2**40, -(2**40)):
        yield bad(INDEX, "index.Tensor_out", x, [torch.tensor([i])], out=bits(F32, 1, 4))
        yield bad(INDEX, "index_put.out", x, [torch.tensor([i])], x[:1], False, out=x)
    yield bad(SHAPE, "scatter.src_out", x, 1, torch.zeros(2, 4, dtype=I64), bits(F32, 1, 4), out=x)
    yield bad(SHAPE, "scatter.src_out", x, 1, torch.zeros(1, 1, dtype=I64), bits(F32, 4), out=x)
    yield bad(DTYPE, "scatter.src_out", x, 1, torch.zeros(1, 1, dtype=I64), bits(F64, 1, 1), out=x)
    yield bad(VALUE, "scatter.value_out", bits(U8, 3), 0, row, 300)
    yield bad(VALUE, "scatter.value_out", bits(I8, 3), 0, row, 1e9)
    yield bad(SHAPE, "index_select.out", x, 0, torch.tensor([[0]]))
    yield bad(SHAPE, "index_select.out", torch.tensor(1.0), 0, torch.tensor([0, 0]))
    yield bad(DTYPE, "index_select.out", x, 0, torch.tensor([0.0]))
    yield bad(SHAPE, "embedding.out", bits(F32, 3), row, -1, False, False)
    yield bad(DTYPE, "embedding.out", x, torch.tensor([0], dtype=I16), -1, False, False)
    yield bad(VALUE, "index.Tensor_out", x, [])
    yield bad(VALUE, "index.Tensor_out", x, [None, None])
    yield bad(DTYPE, "index.Tensor_out", x, [torch.tensor([0], dtype=I16)])
    yield bad(DTYPE, "index.Tensor_out", x, [torch.tensor([0.0])])
    yield bad(SHAPE, "index.Tensor_out", x, [torch.tensor([True, False])])
    yield bad(SHAPE, "index.Tensor_out", x, [torch.tensor(True)])
    yield bad(SHAPE, "index.Tensor_out", x, [row, row, row])
    yield bad(SHAPE, "index.Tensor_out", x, [torch.tensor([0, 1]), torch.tensor([0, 1, 2])])
    yield bad(SHAPE, "index.Tensor_out", torch.tensor(1.0), [row])
    yield bad(INDEX, "index.Tensor_out", bits(F32, 0, 3), [row])
    yield bad(INDEX, "index.Tensor_out", bits(F32, 0, 0), [row])
    yield bad(DTYPE, "index_put.out", x, [row], torch.tensor([1]), False)
    yield bad(SHAPE, "index_put.out", x, [row], bits(F32, 2, 4), False)
    yield bad(SHAPE, "index_put.out", x, [row], bits(F32, 1, 1, 1, 4), False)
    yield bad(DTYPE, "masked_select.out", x, torch.ones(3, 4, dtype=U8))
    yield bad(SHAPE, "masked_select.out", x, torch.ones(3, dtype=B))
    yield bad(DTYPE, "masked_scatter.out", x, torch.ones(3, 4, dtype=U8), x)
    yield bad(DTYPE, "masked_scatter.out", x, torch.ones(3, 4, dtype=B), x.double())
    yield bad(SHAPE, "masked_scatter.out", x, torch.ones(3, 4, dtype=B), bits(F32, 11))
    yield bad(SHAPE, "repeat_interleave.Tensor_out", torch.tensor(2), None)
    yield bad(VALUE, "repeat_interleave.Tensor_out", torch.tensor([2, -1]), None)
    yield bad(DTYPE, "repeat_interleave.Tensor_out", torch.tensor([2.0]), None)
    yield bad(SHAPE, "repeat_interleave.Tensor_out", torch.tensor([2]), 3)
    yield bad(SHAPE, "repeat_interleave.Tensor_out", torch.tensor([2**62, 2**62]), None)
    yield bad(SHAPE, "constant_pad_nd.out", x, [1, 2, 3], 0)
    yield bad(SHAPE, "constant_pad_nd.out", x, [1] * 6, 0)
    yield bad(SHAPE, "constant_pad_nd.out", x, [-3, -3], 0)
    yield bad(SHAPE, "constant_pad_nd.out", x, [-6, 5], 0)
    yield bad(SHAPE, "constant_pad_nd.out", x, [2**62, 2**62], 0)
    yield bad(VALUE, "constant_pad_nd.out", y, [1, 0], 300)
    yield bad(VALUE, "constant_pad_nd.out", x.half(), [1, 0], 1e6)
    for name in ("reflection", "replication"):
        yield bad(SHAPE, f"{name}_pad1d.out", bits(F32, 4), [1, 1])
        yield bad(SHAPE, f"{name}_pad1d.out", bits(F32, 2, 0), [1, 1])
        yield bad(SHAPE, f"{name}_pad1d.out", x, [1, 1, 1])
        yield bad(SHAPE, f"{name}_pad1d.out", x, [-2, -2])
        yield bad(SHAPE, f"{name}_pad2d.out", x, [1, 1, 1, 1])
        yield bad(SHAPE, f"{name}_pad1d.out", x, [2**40, 1])
    yield bad(SHAPE, "reflection_pad1d.out", x, [4, 1])
    yield bad(SHAPE, "reflection_pad1d.out", x, [1, 4])
    for value, dtype in (
        (256, U8), (-256, U8), (-1.5, U8), (200, I8), (127.5, I8), (-129, I8), (1e30, I64), (math.nan, I32),
        (math.inf, I16), (2**31, I32), (1e300, F32), (1e5, F16), (65519.0, F16),
    ):  # fmt: skip
        yield bad(VALUE, "full.out", [2], value, out=torch.zeros(2, dtype=dtype))
    yield bad(SHAPE, "full.out", [-2], 1, out=torch.zeros(2))
    yield bad(VALUE, "scalar_tensor.out", 300, out=torch.zeros((), dtype=I8))
    yield bad(VALUE, "arange.start_out", 0, 4, 0, out=I32)
    for start, end, step in ((math.nan, 4, 1), (0, math.nan, 1), (0, 4, math.nan), (0, math.inf, 1), (-math.inf, 0, 1)):
        yield bad(VALUE, "arange.start_out", start, end, step, out=F32)
    yield bad(VALUE, "arange.start_out", 0, 4, 0.5, out=I64)
    yield bad(VALUE, "arange.start_out", 0.9, 0.1, 1, out=I64)
    yield bad(VALUE, "arange.start_out", 0, 4, -1, out=I32)
    yield bad(VALUE, "arange.start_out", 0, math.nan, 1, out=F32)
    yield bad(VALUE, "arange.start_out", 0, math.inf, 1, out=F32)
    yield bad(VALUE, "arange.start_out", 0, 1e30, 1, out=I32)
    yield bad(DTYPE, "arange.out", 2, out=B)
    yield bad(INDEX, "topk.values", x, 5, -1, True, True, out=(x, torch.zeros(3, 4, dtype=I64)))
    yield bad(INDEX, "topk.values", x, -1, -1, True, True, out=(x, torch.zeros(3, 4, dtype=I64)))
    yield bad(DTYPE, "topk.values", x > 0, 1, -1, True, True, out=(x > 0, torch.zeros(3, 4, dtype=I64)))
    yield bad(DTYPE, "topk.values", x, 4, -1, True, True, out=(x, torch.zeros(3, 4, dtype=I32)))


BAD: list[tuple[OneOp, str]] = list(refused())
