"""Decoder, weight codecs, arithmetic, memory checks, hazards, trace, listing and control flow, each by itself."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest
import tosa_serializer as ts
from ethosu import mlw_codec
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_cases import CASES
from npu_harness import TARGETS, Compiled, G, compile_graph, compile_raw, difference, reference
from npu_networks import mobilenet, residuals

import tosa_ref.run
from arm_lower.tosa.ir import DType, Graph
from arm_lower.tosa.serialize import operator_locations, to_flatbuffer
from fvp.ethosu import AccessError, DecodeError, NpuError, Program, decode
from fvp.ethosu.arith import DOUBLE, NATURAL, SYMMETRIC, TO_LOWER, TO_ZERO, rescale
from fvp.ethosu.decode import Command, decode_words
from fvp.ethosu.disasm import listing
from fvp.ethosu.hazard import hazards
from fvp.ethosu.memory import FeatureMap, Memory, Region
from fvp.ethosu.task import Task
from fvp.ethosu.trace import database_tables, first_difference, run_traced, sources
from fvp.ethosu.weights import decode_swd

_BUILD = {c.name: c.build for c in CASES}


def _compiled(name: str, target: str) -> Compiled:
    return compile_graph(_BUILD[name]().graph, target)


# -- decoder -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_the_config_word_names_the_accelerator(target: str) -> None:
    stream = decode(_compiled("add_same", target).payload)
    assert stream.arch.name == f"ethos-{target}"
    assert stream.commands[-1].name == "OP_STOP"
    assert stream.commands[0].offset == stream.start


def test_both_driver_formats_hold_the_same_commands() -> None:
    g = _BUILD["conv_relu"]()
    one = compile_graph(g.graph, "u55-128")
    stream = decode(one.payload)
    words = [w for c in stream.commands for w in c.words]
    head = np.array([1, 4 * len(words) + 48, 0], "<u4")
    config = int(stream.actions[0][1].split("config=")[1].split()[0], 16)
    entry = np.array([1, 4 * len(words) + 40, 36, 0x4D554556, 1, 20, config, 0, 1, 0, 0, 0xFFFFFFFF], "<u4")
    payload = b"COP2" + np.concatenate([head, entry, np.array(words, "<u4")]).tobytes()
    assert [(c.name, c.fields) for c in decode(payload).commands] == [(c.name, c.fields) for c in stream.commands]
    inputs = g.feed()
    assert not difference(one.run(inputs), one.run(inputs, Program(payload)))


@pytest.mark.parametrize(
    ("words", "product", "message"),
    [
        ([0x00000004], "u55", "offset 0x20: word 0x00000004 (control 0, opcode 0x004) is no command of u55"),
        ([0x00000007], "u55", "opcode 0x007) is no command of u55"),
        ([0x0000010D], "u85", "is no command of u85"),
        ([0x00030005], "u55", "OP_POOL (opcode 0x005): field mode has the unknown value 3"),
        ([0x00100002], "u55", "OP_CONV (opcode 0x002, bits 0x10) sets a reserved bit"),
        ([0x00000400], "u55", "is no command"),
        ([0x00004000], "u55", "IFM_BASE0 is cut off"),
        ([0x00000002], "u55", "the command stream ends without OP_STOP"),
        ([0x01FF0125], "u85", "sets a reserved bit"),
        ([0x00020125], "u85", "field function has the unknown value 2"),
    ],
)
def test_unknown_words(words: list[int], product: str, message: str) -> None:
    with pytest.raises(DecodeError) as e:
        decode_words(words, product, 0x20)
    assert message in e.value.message


def test_signed_and_wide_fields() -> None:
    stop = [0xFFFF0000]
    cmds = decode_words([0x00FF4015, 0xFFFFFFF0, 0x0FFF012C, 0x00014030, 0x00000002, *stop], "u85")
    assert [c.fields for c in cmds[:3]] == [{"addr": -16}, {"n": -1}, {"addr": 0x100000002}]


def test_a_register_that_was_never_written() -> None:
    payload = bytearray(_compiled("conv_relu", "u55-128").payload)
    stream = decode(bytes(payload))
    cmd = next(c for c in stream.commands if c.name == "IFM_ZERO_POINT")
    payload[cmd.offset : cmd.offset + 4] = (0x012F).to_bytes(4, "little")  # BLOCKDEP in its place
    with pytest.raises(DecodeError, match="register IFM_ZERO_POINT is used and was never written"):
        Program(bytes(payload))


# -- weights -----------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_weight_decoder_agrees_with_velas(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spread = int(rng.choice([0, 1, 2, 7, 15, 60, 127, 255]))
    values = rng.integers(-spread, spread, int(rng.integers(1, 6000)), endpoint=True)
    values[rng.random(values.size) < rng.choice([0.0, 0.3, 0.9, 0.99])] = 0
    if rng.random() < 0.3:
        values[len(values) // 2 :] = rng.integers(-3, 4)
    data = mlw_codec.encode([int(v) for v in values], 0)
    got = decode_swd(bytes(data), 1 << 20)
    assert got[: len(values)].tolist() == values.tolist()
    assert got.tolist() == mlw_codec.decode(bytearray(data))


def test_weight_stream_without_end_is_bounded() -> None:
    data = bytes(mlw_codec.encode([0] * 5000, 0))
    with pytest.raises(DecodeError, match="more than the 100 weights"):
        decode_swd(data, 100)


# -- arithmetic --------------------------------------------------------------------------------------------


def _exact(acc: int, scale: int, shift: int, mode: str) -> int:
    value = Fraction(acc * scale, 1 << shift)
    if shift == 0 or mode == TO_LOWER:
        return floor(value)
    if mode == TO_ZERO:
        return int(value)
    if mode == SYMMETRIC:
        return floor(value + Fraction(1, 2)) if value >= 0 else -floor(-value + Fraction(1, 2))
    extra = Fraction((1 if acc >= 0 else -1) << 30, 1 << shift) if mode == DOUBLE and shift > 31 else 0
    return floor(value + Fraction(1, 2) + extra)


@given(
    st.lists(st.integers(-(1 << 47), 1 << 47), min_size=1, max_size=8),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 63),
    st.sampled_from([NATURAL, DOUBLE, TO_ZERO, TO_LOWER, SYMMETRIC]),
    st.booleans(),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_scaling_is_exact_at_any_width(acc: list[int], scale: int, shift: int, mode: str, per_channel: bool) -> None:
    want = [_exact(a, scale, shift, mode) for a in acc]
    if max(abs(w) for w in want) >= 1 << 62:
        return
    many: Any = np.full(len(acc), scale, np.int64), np.full(len(acc), shift, np.int64)
    args = many if per_channel else (scale, shift)
    bound = max(abs(a) for a in acc)
    assert rescale(np.array(acc, np.int64), *args, mode, bound).tolist() == want


# -- memory ------------------------------------------------------------------------------------------------


def _map(**changes: Any) -> FeatureMap:
    base = FeatureMap("IFM", 1, (0, 0, 0, 0), 4, 4, 4, (64, 16, 0), False, (4, 4, 16), 8, True)
    return dataclasses.replace(base, **changes)


def _memory() -> Memory:
    return Memory({1: Region("scratch", np.arange(256).astype(np.uint8), np.ones(256, np.bool_))})


def test_tiles_and_bricks() -> None:
    memory = _memory()
    whole = _map().load(memory, "t")
    split = _map(h0=2, h1=3, w0=1, bases=(0, 16, 128, 208)).load(memory, "t")
    assert (whole == split).all()
    brick = _map(brick=True, strides=(64, 0, 64), shape=(4, 4, 5))
    assert (brick.load(memory, "t") == whole[:, :, :5]).all()
    memory.regions[1].data[:] = 0
    brick.store(memory, whole[:, :, :5], "t")
    assert (brick.load(memory, "t") == whole[:, :, :5]).all() and not memory.regions[1].data.reshape(-1, 16)[
        :, 5:
    ].any()


@pytest.mark.parametrize(
    ("fm", "message"),
    [
        (_map(bases=(1, 0, 0, 0)), "takes bytes 0x1..0x101 of region 1 (scratch), which has 0x100"),
        (_map(strides=(-64, 16, 0)), "takes bytes -0xc0..0x40"),
        (_map(region=5), "IFM is in region 5, this program has 1 (scratch)"),
        (_map(bits=16, shape=(4, 4, 8), bases=(1, 0, 0, 0), strides=(62, 16, 0)), "not aligned to 2 bytes"),
        (_map(brick=True, bases=(8, 0, 0, 0), strides=(16, 0, 64), shape=(1, 1, 16)), "not aligned to 16 bytes"),
    ],
)
def test_bad_addresses(fm: FeatureMap, message: str) -> None:
    with pytest.raises(AccessError) as e:
        fm.load(_memory(), "offset 0x10: OP_CONV")
    assert message in e.value.message and "offset 0x10: OP_CONV" in e.value.message


def test_bytes_that_nothing_wrote() -> None:
    g = _BUILD["chain_i32"]()
    c = compile_graph(g.graph, "u55-128")
    program = Program(c.payload)
    first = next(i for i, t in enumerate(program.tasks) if isinstance(t, Task))
    del program.tasks[first]
    with pytest.raises(AccessError, match="holds bytes that nothing has written"):
        program.run(c.read_only, g.feed(), c.inputs, c.outputs, c.scratch, c.fast)


def test_a_table_that_was_not_loaded() -> None:
    g = _BUILD["table_i8"]()
    c = compile_graph(g.graph, "u55-128")
    program = Program(c.payload)
    program.tasks = [t for t in program.tasks if not (isinstance(t, Task) and t.dma)]
    with pytest.raises(AccessError, match="was not loaded"):
        program.run(c.read_only, g.feed(), c.inputs, c.outputs, c.scratch, c.fast)


@pytest.mark.parametrize(("target", "loads"), [("u55-32", 2), ("u55-64", 2), ("u55-128", 1)])
def test_accumulators_overwrite_tables_on_the_smallest_parts(target: str, loads: int) -> None:
    """u55-32 and u55-64 have no memory reserved for tables, so Vela loads the table of the second lookup again."""
    g = G(1)
    table = g.random((256,), DType.INT8, -128, 127)
    pool = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0, 0, 0)}
    x = g.op("MAX_POOL2D", g.op("TABLE", g.input((1, 8, 8, 16)), table), **pool)
    g.out(g.op("TABLE", g.op("MAX_POOL2D", x, **pool), table))
    c = compile_graph(g.graph, target)
    program = Program(c.payload)
    transfers = [t for t in program.tasks if isinstance(t, Task) and t.dma]
    assert len(transfers) == loads
    assert not difference(reference(g.graph, g.feed()), c.run(g.feed(), program))
    if loads == 2:
        program = Program(c.payload)
        program.tasks.remove(transfers[1])
        with pytest.raises(AccessError, match="or was overwritten since"):
            c.run(g.feed(), program)


def test_inputs_that_do_not_fit() -> None:
    g = _BUILD["add_same"]()
    c = compile_graph(g.graph, "u55-128")
    with pytest.raises(NpuError, match="1 inputs given, the program has 2"):
        c.run(g.feed()[:1])
    with pytest.raises(NpuError, match=r"input 1 has 3 bytes, the program takes 798"):
        c.run([g.feed()[0], b"abc"])


def test_the_same_inputs_give_the_same_bytes() -> None:
    g = mobilenet()
    c = compile_graph(g.graph, "u55-128")
    a, b, other = c.run(g.feed(1)), c.run(g.feed(1)), c.run(g.feed(2))
    assert not difference(a, b) and difference(a, other)


# -- hazards -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["u55-128", "u65-512", "u85-256"])
def test_every_wait_is_needed_or_harmless(target: str) -> None:
    c = compile_graph(residuals().graph, target, optimize="Size", arena=20000)
    program = Program(c.payload)
    assert not hazards(program)
    tasks = list(program.tasks)
    found = 0
    for i, t in enumerate(tasks):
        if isinstance(t, Command) and t.name in ("OP_DMA_WAIT", "OP_KERNEL_WAIT"):
            program.tasks = tasks[:i] + tasks[i + 1 :]
            found += bool(hazards(program))
    assert found >= 2
    deepest = 7 if target.startswith("u85") else 3
    program.tasks = [dataclasses.replace(t, blockdep=deepest) if isinstance(t, Task) else t for t in tasks]
    worst = hazards(program)
    assert worst and "BLOCKDEP" in str(worst[-1]) and worst[0].kind == "read after write"


# -- trace and listing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["u55-128", "u65-512", "u85-256"])
def test_the_first_wrong_layer_is_found(target: str) -> None:
    g = residuals()
    for i, op in enumerate(g.graph.ops):
        op.location = f"net.block{i}:{op.kind.lower()}"
    tosa = to_flatbuffer(g.graph)
    raw = compile_raw(tosa, target)
    c = compile_graph(g.graph, target)
    inputs = g.feed()
    places = operator_locations(tosa)
    layers = sources(database_tables(raw.opt_database), c.program.stream.start, places)
    want = reference(g.graph, inputs)
    out, steps = run_traced(c.program, c.read_only, inputs, c.inputs, c.outputs, c.scratch, c.fast, layers, keep=True)
    assert not difference(want, out)
    assert all(s.source is not None and s.source.location.startswith("net.block") for s in steps)
    assert any(s.source is not None and s.source.cycles for s in steps) and all(len(s.digest) == 16 for s in steps)
    inner = [op.output for op in g.graph.ops if op.output.dtype is DType.INT8]
    values = tosa_ref.run.run(Graph("all", g.graph.inputs, inner, g.graph.ops), inputs)
    wanted = {t.name: np.asarray(v) for t, v in zip(inner, values)}
    assert first_difference(steps, wanted) is None
    names = [n for n in dict.fromkeys(s.source.name for s in steps if s.source) if n in wanted]
    assert len(names) > 8
    for name in (names[2], names[5]):
        wrong = wanted[name].copy()
        wrong.flat[7] += 1
        d = first_difference(steps, {**wanted, name: wrong})
        assert d is not None and d.layer.name == name and d.count == 1
        assert d.index == tuple(int(v) for v in np.unravel_index(7, wrong.shape)) and d.wanted == d.found + 1
        assert "net.block" in str(d)


def test_listing() -> None:
    c = _compiled("conv_table", "u55-128")
    text = listing(decode(c.payload))
    for part in (
        "ethos-u55-128",
        "OP_CONV",
        "OP_DMA_START",
        "read-only+",
        "-> LUT+",
        "IFM s8 8x8x16 NHWC at scratch+",
        "table S8",
    ):
        assert part in text, text
    assert "IFM_ZERO_POINT zp=3" in listing(decode(c.payload), registers=True)
    assert "chain buffer" in listing(decode(_compiled("chain_conv_mul_add", "u85-256").payload))


@pytest.mark.parametrize("target", TARGETS)
def test_listing_of_everything(target: str) -> None:
    for name in (
        "conv_int16_8x8x16_24_k33_s11_d11",
        "softmax_like",
        "dynamic_weights",
        "gather_i8",
        "transpose_conv_int8_k33_s22_p-10",
    ):
        try:
            c = _compiled(name, target)
        except RuntimeError:
            continue
        assert listing(decode(c.payload), registers=True).count("\n") > 15


# -- control flow ------------------------------------------------------------------------------------------


def _attribute(name: str, *values: str) -> Any:
    a = ts.TosaSerializerAttribute()
    getattr(a, f"{name}Attribute")(*values)
    return a


def _tensor(name: str, shape: list[int], dtype: Any) -> Any:
    return ts.TosaSerializerTensor(name, shape, dtype)


_SHAPE = [1, 4, 4, 8]


def _condition() -> bytes:
    s = ts.TosaSerializer("", ts.ConstMode.EMBED, 1, 0, 0, False)
    s.addInputTensor(_tensor("c", [1], ts.DType.BOOL))
    for name in "ab":
        s.addInputTensor(_tensor(name, _SHAPE, ts.DType.INT32))
    out = s.addIntermediate(_SHAPE, ts.DType.INT32).name
    s.addOperator(ts.Op.COND_IF, ["c", "a", "b"], [out], _attribute("CondIf", "then", "else"))
    s.addOutputTensor(_tensor(out, _SHAPE, ts.DType.INT32))
    for region, op, kind in (("then", ts.Op.ADD, "Add"), ("else", ts.Op.SUB, "Sub")):
        s.startRegion(region)
        s.addBasicBlock(region)
        names = [f"{region}_{n}" for n in "ab"]
        for name in names:
            s.addInputTensor(_tensor(name, _SHAPE, ts.DType.INT32))
        out = s.addIntermediate(_SHAPE, ts.DType.INT32).name
        s.addOperator(op, names, [out], _attribute(kind))
        s.addOutputTensor(_tensor(out, _SHAPE, ts.DType.INT32))
    return bytes(s.serialize())


def _loop() -> bytes:
    """Doubles x, i times."""
    s = ts.TosaSerializer("", ts.ConstMode.EMBED, 1, 0, 0, False)
    s.addInputTensor(_tensor("i", [1], ts.DType.INT32))
    s.addInputTensor(_tensor("x", _SHAPE, ts.DType.INT32))
    outs = [s.addIntermediate(shape, ts.DType.INT32).name for shape in ([1], _SHAPE)]
    s.addOperator(ts.Op.WHILE_LOOP, ["i", "x"], outs, _attribute("WhileLoop", "cond", "body"))
    for name, shape in zip(outs, ([1], _SHAPE)):
        s.addOutputTensor(_tensor(name, shape, ts.DType.INT32))
    for region in ("cond", "body"):
        s.startRegion(region)
        s.addBasicBlock(region)
        i, x = f"{region}_i", f"{region}_x"
        s.addInputTensor(_tensor(i, [1], ts.DType.INT32))
        s.addInputTensor(_tensor(x, _SHAPE, ts.DType.INT32))
        s.addConst([1], ts.DType.INT32, np.array([region == "body"], np.int32), f"{region}_k")
        if region == "cond":
            more = s.addIntermediate([1], ts.DType.BOOL).name
            s.addOperator(ts.Op.GREATER, [i, "cond_k"], [more], _attribute("Greater"))
            s.addOutputTensor(_tensor(more, [1], ts.DType.BOOL))
            continue
        less, twice = s.addIntermediate([1], ts.DType.INT32).name, s.addIntermediate(_SHAPE, ts.DType.INT32).name
        s.addOperator(ts.Op.SUB, [i, "body_k"], [less], _attribute("Sub"))
        s.addOperator(ts.Op.ADD, [x, x], [twice], _attribute("Add"))
        s.addOutputTensor(_tensor(less, [1], ts.DType.INT32))
        s.addOutputTensor(_tensor(twice, _SHAPE, ts.DType.INT32))
    return bytes(s.serialize())


def _from_bytes(tosa: bytes, target: str) -> Compiled:
    from fvp.ethosu import IO

    m = compile_raw(tosa, target)
    inputs, outputs = (tuple(IO.of(t) for t in side) for side in (m.inputs, m.outputs))
    fast = m.scratch_fast.size if m.scratch_fast else 0
    return Compiled(m.command_stream, bytes(m.read_only.data), inputs, outputs, m.scratch.size, fast)


@pytest.mark.parametrize("target", ["u85-128", "u85-256", "u85-2048"])
def test_branches(target: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-100, 100, _SHAPE).astype(np.int32) for _ in range(2))
    branch, loop = _from_bytes(_condition(), target), _from_bytes(_loop(), target)
    assert (branch.run([np.array([True]), a, b])[0].reshape(a.shape) == a + b).all()
    assert (branch.run([np.array([False]), a, b])[0].reshape(a.shape) == a - b).all()
    for n in (0, 1, 5):
        count, x = loop.run([np.array([n], np.int32), a])
        assert count.ravel().tolist() == [0] and (x.reshape(a.shape) == a << n).all()
    assert not hazards(branch.program) and not hazards(loop.program)


def test_a_loop_without_end() -> None:
    loop = _from_bytes(_loop(), "u85-256")
    program = Program(loop.payload)
    conditional = next(
        i for i, t in enumerate(program.tasks) if isinstance(t, Command) and t.fields.get("cond") == "RF_TRUE"
    )
    back = [t for t in program.tasks if isinstance(t, Command) and t.name == "OP_BRANCH"][-1]
    program.tasks = [program.tasks[conditional], back, *program.tasks]
    program.tasks[0] = dataclasses.replace(back, fields={"cond": "ALWAYS", "target": -1})
    program._entry[-1] = 0
    with pytest.raises(NpuError, match="does not end"):
        program.run(
            loop.read_only,
            [np.array([1], np.int32), np.zeros(_SHAPE, np.int32)],
            loop.inputs,
            loop.outputs,
            loop.scratch,
            loop.fast,
        )
