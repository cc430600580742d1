"""Random TOSA graphs: every rewrite keeps every output byte on the reference model, and the graph stays legal."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from arm_lower.tosa.ir import Attr, DType, Graph, Op, Tensor
from arm_lower.tosa.rewrite import REWRITES, optimize
from arm_lower.tosa.rewrite.dead import remove_dead
from arm_lower.tosa.spec import infer
from arm_lower.tosa.text import to_text
from arm_lower.tosa.verify import verify
from tosa_ref.run import run

MAX_ELEMENTS = 400


def rescale_attrs(draw: st.DrawFn, out: DType) -> dict[str, Attr]:
    multiplier, shift = draw(st.sampled_from([(1 << 30, 30), (1 << 30, 31), (1518500250, 31), (1 << 30, 29)]))
    zp = st.sampled_from([0, 0, 3, -7])
    narrow = out is DType.INT8
    return dict(multiplier=(multiplier,), shift=(shift,), input_zp=draw(zp), output_zp=draw(zp) if narrow else 0, scale32=True, rounding="single",
                per_channel=False, input_unsigned=False, output_unsigned=False, out_dtype=str(out))


class Maker:
    """Grows a graph of int8 tensors (and of int32 accumulators that are rescaled at once)."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        self.graph = Graph("random")
        self.values: list[Tensor] = []
        self.constants = 0
        self.tables = [Tensor(f"table{i}", (256,), DType.INT8, self.rng.integers(-128, 128, 256).astype(np.int8)) for i in range(2)]

    def op(self, kind: str, inputs: list[Tensor], **attrs: Attr) -> Tensor:
        ((shape, dtype),) = infer(kind, inputs, attrs)
        out = Tensor(f"v{len(self.graph.ops)}", shape, dtype)
        self.graph.ops.append(Op(kind, inputs, [out], attrs))
        return out

    def const(self, shape: tuple[int, ...], dtype: DType = DType.INT8) -> Tensor:
        self.constants += 1
        return Tensor(f"c{self.constants}", shape, dtype, self.rng.integers(-9, 10, shape).astype(dtype.numpy))

    def pick(self, rank: int | None = None) -> Tensor:
        fitting = [v for v in self.values if rank is None or len(v.shape) == rank]
        return self.draw(st.sampled_from(fitting or self.values))

    def step(self) -> None:
        x, draw = self.pick(), self.draw
        rank = len(x.shape)
        kind = draw(st.sampled_from(["CLAMP", "CLAMP", "TABLE", "TABLE", "RESCALE", "RESCALE", "RESHAPE", "RESHAPE", "TRANSPOSE", "TRANSPOSE", "PAD", "conv", "pool",
                                     "CONCAT", "const", "SLICE", "again", "REVERSE", "add"]))
        if kind == "CLAMP":
            low, high = sorted(draw(st.lists(st.integers(-128, 127), min_size=2, max_size=2)))
            if draw(st.booleans()):
                low, high = draw(st.sampled_from([(-128, 127), (0, 127), (-128, 5)]))
            y = self.op(kind, [x], min=low, max=high)
        elif kind == "TABLE":
            y = self.op(kind, [x, draw(st.sampled_from(self.tables))])
        elif kind == "RESCALE":
            y = self.op(kind, [x], **rescale_attrs(draw, DType.INT8))
        elif kind == "RESHAPE":
            n = x.size
            split = draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
            y = self.op(kind, [x], shape=draw(st.sampled_from([(n,), (split, n // split), (1, split, n // split, 1), x.shape])))
        elif kind == "TRANSPOSE":
            y = self.op(kind, [x], perms=tuple(draw(st.permutations(range(rank)))))
        elif kind == "PAD":
            pads = draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank))
            if rank == 4 and draw(st.booleans()):
                pads[:2] = pads[6:] = [0, 0]
            y = self.op(kind, [x], padding=tuple(pads), pad_const=draw(st.sampled_from([0, 3, -128])))
        elif kind in ("conv", "pool"):
            y = self.window(kind)
        elif kind == "CONCAT":
            y = self.op(kind, [x, draw(st.sampled_from([v for v in self.values if v.shape == x.shape]))], axis=draw(st.integers(0, rank - 1)))
        elif kind == "const":
            k = self.const(x.shape)
            k = self.op("TRANSPOSE", [self.op("TRANSPOSE", [k], perms=tuple(range(rank))[::-1])], perms=tuple(range(rank))[::-1])
            y = self.op("CONCAT", [x, k], axis=0)
        elif kind == "SLICE":
            size = [draw(st.integers(1, n)) for n in x.shape]
            y = self.op(kind, [x], start=tuple(draw(st.integers(0, n - s)) for n, s in zip(x.shape, size)), size=tuple(size))
        elif kind == "again" and self.graph.ops:
            old = draw(st.sampled_from(self.graph.ops))
            y = self.op(old.kind, list(old.inputs), **old.attrs)
        elif kind == "add":
            wide = [self.op("RESCALE", [v], **rescale_attrs(draw, DType.INT32)) for v in (x, draw(st.sampled_from([v for v in self.values if v.shape == x.shape])))]
            y = self.op("RESCALE", [self.op("ADD", wide)], **{**rescale_attrs(draw, DType.INT8), "input_zp": 0})
        else:
            y = self.op("REVERSE", [x], axis=draw(st.integers(0, rank - 1)))
        if y.dtype is DType.INT8 and y.size <= MAX_ELEMENTS:
            self.values.append(y)

    def window(self, kind: str) -> Tensor:
        """A pad, often, and a convolution or pool behind it."""
        x, draw = self.pick(4), self.draw
        if len(x.shape) != 4:
            x = self.op("RESHAPE", [x], shape=(1, 1, x.size, 1))
        zp = draw(st.sampled_from([0, 3]))
        if draw(st.booleans()):
            t, left = draw(st.integers(0, 2)), draw(st.integers(0, 2))
            x = self.op("PAD", [x], padding=(0, 0, t, 1, left, 1, 0, 0), pad_const=-128 if kind == "pool" else draw(st.sampled_from([zp, 0])))
        k = [min(draw(st.integers(1, 3)), n) for n in x.shape[1:3]]
        pad = draw(st.sampled_from([(0, 0, 0, 0), tuple(n - 1 for n in (k[0], k[0], k[1], k[1]))]))
        if kind == "pool":
            return self.op("MAX_POOL2D", [x], kernel=tuple(k), stride=(1, 1), pad=pad)
        acc = self.op("CONV2D", [x, self.const((2, *k, x.shape[3])), self.const((2,), DType.INT32)], pad=pad, stride=(1, 1), dilation=(1, 1), acc_type="int32",
                      input_zp=zp, weight_zp=0)
        return self.op("RESCALE", [acc], **{**rescale_attrs(draw, DType.INT8), "input_zp": 0})


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    m = Maker(draw)
    shapes = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=2))
    for i, shape in enumerate(shapes):
        m.graph.inputs.append(Tensor(f"in{i}", tuple(shape), DType.INT8))
    m.values += m.graph.inputs
    for _ in range(draw(st.integers(1, 12))):
        m.step()
    made = [v for v in m.values if v not in m.graph.inputs]
    if not made:
        made = [m.op("IDENTITY", [m.values[0]])]
    m.graph.outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique_by=id))
    m.graph.outputs = list(dict.fromkeys([*m.graph.outputs, made[-1]]))
    return m.graph


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(0, 2**32))
def test_rewrites_keep_every_output_byte(graph: Graph, seed: int) -> None:
    verify(graph)
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(-128, 128, t.shape).astype(np.int8) for t in graph.inputs]
    wanted = run(graph, inputs)
    signature = [(t.name, t.shape, t.dtype) for t in (*graph.inputs, *graph.outputs)]
    for rewrite in (optimize, *REWRITES):
        changed = deepcopy(graph)
        text = to_text(changed)
        result = rewrite(changed)
        assert result or to_text(changed) == text, f"{rewrite.__name__} does not say that it changed the graph"
        remove_dead(changed)
        verify(changed)
        assert [(t.name, t.shape, t.dtype) for t in (*changed.inputs, *changed.outputs)] == signature
        if to_text(changed) == text:
            continue
        for want, found in zip(wanted, run(changed, inputs), strict=True):
            assert want.tobytes() == found.tobytes(), f"{getattr(rewrite, '__name__', 'rewrite')}\n{text}\n{to_text(changed)}"


@settings(max_examples=80, deadline=None)
@given(graphs())
def test_a_second_optimize_changes_nothing(graph: Graph) -> None:
    once = to_text(optimize(graph))
    assert to_text(optimize(graph)) == once
