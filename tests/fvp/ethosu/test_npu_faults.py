"""Vela 5.2's silent miscompiles: found on the raw pattern, absent from a safe form of nearly the same computation, and
absent from the raw pattern after `arm_lower.targets.faults.avoid`.

The first four were known before; the others were found by random graphs (`npu_random`, `npu_chains`). A test that fails
here after an update of Vela is good news: its row in `arm_lower.targets.faults` may go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from npu_chains import apply, following, network
from npu_harness import I8, I16, I32, G, compile_graph, difference, full, reference
from npu_networks import residuals

from arm_lower.errors import ArmLowerError, Unsupported
from arm_lower.targets import check
from arm_lower.targets.faults import FAULTS, Miscompiled, avoid
from arm_lower.tosa.ir import DType, Tensor
from arm_lower.tosa.rewrite import optimize
from fvp.ethosu import NpuError


def _run(g: G, target: str) -> str:
    inputs = g.feed()
    want = reference(g.graph, inputs)
    try:
        return difference(want, compile_graph(g.graph, target).run(inputs))
    except NpuError as error:
        return error.message


def rescale_into_concat(safe: bool) -> G:
    """An int32 RESCALE that Vela makes a MUL loses the slice of a CONCAT it writes to."""
    g, shape, parts = G(1), (1, 4, 8, 16), []
    for _ in range(2):
        acc = g.op("ADD", g.input(shape, I32), g.input(shape, I32))
        if safe:
            acc = g.op("RESHAPE", acc, shape=(1, 1, 32, 16))
        y = g.rescale(acc, I8, 1e-4, ozp=3)
        parts.append(g.op("RESHAPE", y, shape=shape) if safe else y)
    return g.out(g.op("CONCAT", *parts, axis=3))


def rescale_of_slice(safe: bool) -> G:
    """The same MUL runs over the map from its base instead of over the slice."""
    g = G(2)
    acc = g.conv(g.input((1, 8, 8, 16)), 24)
    box = {"start": (0, 2, 1, 0), "size": (1, 4, 5, 24)}
    if safe:
        return g.out(g.op("SLICE", g.rescale(acc, scale=2.0**-9), **box))
    return g.out(g.rescale(g.op("SLICE", acc, **box), scale=2.0**-9))


def add_of_unequal_integers(safe: bool) -> G:
    """Two integer input scales pass as 16-bit scaling and are emitted as 32-bit scaling of one operand."""
    g, shape = G(3), (1, 8, 8, 16)
    first, second = (25485.0, 32767.0) if not safe else (25485.0 * 16, 2.0**19)
    a, b = g.rescale(g.input(shape), I32, first), g.rescale(g.input(shape), I32, second)
    return g.out(g.rescale(g.op("ADD", a, b), I8, 0.5 / second))


def per_channel_after_matmul(safe: bool) -> G:
    """The multiplier of channel 0 is used for all channels."""
    g = G(4)
    acc = g.op("MATMUL", g.input((1, 16, 24)), g.input((1, 24, 16)), a_zp=0, b_zp=0)
    return g.out(g.rescale(acc, I8, 2.0**-9, per_channel=not safe))


def reduction_of_slice(safe: bool) -> G:
    """A reduction over C reads the whole tensor from its base instead of the slice."""
    g = G(5)
    x = g.op("SLICE", g.input((1, 8, 8, 16)), start=(0, 2, 2, 0), size=(1, 4, 4, 16))
    return g.out(g.op("REDUCE_MAX", g.op("RESHAPE", x, shape=(1, 1, 16, 16)) if safe else x, axis=3))


def reduction_into_pad(safe: bool) -> G:
    """A reduction over C writes the whole padded tensor."""
    g = G(6)
    x = g.op("REDUCE_MAX", g.input((1, 6, 8, 16)), axis=3)
    if safe:
        x = g.op("TABLE", x, g.const(range(-128, 128), I8))
    return g.out(g.op("PAD", x, padding=(0, 0, 0, 0, 1, 1, 0, 0), pad_const=3))


def reduce_min_reshaped(safe: bool) -> G:
    """REDUCE_MIN is max(~x) and a last ~, which broadcasts a wrong shape when a RESHAPE follows."""
    g = G(7)
    y = g.op("REDUCE_MIN", g.input((1, 3, 16, 3)), axis=1)
    if safe:
        y = g.op("TABLE", y, g.const(range(-128, 128), I8))
    return g.out(g.op("RESHAPE", y, shape=(1, 3, 1, 16)))


def rescale_between_partial_writes(safe: bool) -> G:
    """CONCAT, PAD or TILE, then a RESCALE, then CONCAT, PAD or TILE: the first offsets are lost."""
    g, shape = G(8), (1, 6, 8, 16)
    x = g.rescale(g.op("CONCAT", g.input(shape), g.input(shape), axis=3), scale=0.6)
    if safe:
        x = g.op("TABLE", x, g.const(range(-128, 128), I8))
    return g.out(g.op("CONCAT", x, g.input(shape), axis=3))


def absolute_sum_into_concat(safe: bool) -> G:
    """The ABS at the end of a chain is written without the strides of the tensor it is a part of."""
    g, shape = G(9), (1, 6, 8, 16)
    y = g.op("ADD", g.input(shape, I32), g.input(shape, I32))
    y = g.op("MAXIMUM", y, g.op("SUB", g.const([[[[0]]]], I32), y)) if safe else g.op("ABS", y)
    return g.out(g.op("CONCAT", y, g.input((1, 6, 2, 16), I32), axis=2))


def transpose_with_table(safe: bool) -> G:
    """The table of a transpose lies outside of the smallest parts' memory."""
    g = G(10)
    x = g.op("TRANSPOSE", g.input((4, 18)), perms=(1, 0))
    if safe:
        x = g.rescale(x, scale=0.999999)
    return g.out(g.op("TABLE", x, g.random((256,), I8, -128, 127)))


def _around_transpose(first: str, second: str) -> Callable[[bool], G]:
    """A moved lookup or clamp takes in a second one, and only one of them is used."""

    def pattern(safe: bool) -> G:
        g = G(11)

        def activation(kind: str, x: Tensor) -> Tensor:
            if kind == "TABLE":
                return g.op("TABLE", x, g.random((256,), I8, -128, 127))
            return g.op("CLAMP", x, min=-50, max=77)

        x = activation(first, g.input((1, 6, 8, 16)))
        if safe:
            return g.out(g.op("TRANSPOSE", activation(second, x), perms=(0, 2, 1, 3)))
        return g.out(activation(second, g.op("TRANSPOSE", x, perms=(0, 2, 1, 3))))

    pattern.__name__ = f"{first}_transpose_{second}"
    return pattern


def _steps(shape: tuple[int, ...], dtype: DType, *names: str) -> Callable[[bool], G]:
    """A chain out of `npu_chains.STEPS`; it has no safe form of its own."""

    def pattern(safe: bool) -> G:
        g = G(12)
        x = g.input(shape, dtype, (-1000, 1000) if dtype is I32 else None)
        for name in names:
            y = apply(g, x, dict(following(x.dtype))[name])
            assert y is not None, name
            x = y
        return g.out(x)

    pattern.__name__ = "-".join(names)
    return pattern


def sliced_matmul(safe: bool) -> G:
    """What `x.chunk` and `@` make; only the first operand is hit."""
    g = G(13)
    x = g.op("SLICE", g.input((1, 12, 10)), start=(0, 2, 1), size=(1, 6, 8))
    return g.out(g.rescale(g.op("MATMUL", x, g.input((1, 8, 6)), a_zp=0, b_zp=0), I8, 2.0**-9))


def clamped_transpose_into_concat(safe: bool) -> G:
    g = G(19)
    x = g.op("CLAMP", g.op("TRANSPOSE", g.input((1, 5, 8, 12)), perms=(0, 1, 3, 2)), min=-50, max=77)
    return g.out(g.op("CONCAT", g.input(x.shape), x, axis=3))


def minimum_beside_reshape(safe: bool) -> G:
    g = G(14)
    x = g.input((1, 7, 1, 16))
    return g.out(g.op("REDUCE_MIN", x, axis=3), g.op("RESHAPE", x, shape=(1, 1, 7, 16)))


def shared_rescale(safe: bool) -> G:
    g = G(15)
    x = g.op("RESHAPE", g.rescale(g.input((1, 5, 8, 12)), I32, 1.0), shape=(1, 8, 5, 12))
    return g.out(*(g.op("ADD", x, g.input(x.shape, I32)) for _ in range(2)))


def reshaped_channels(safe: bool) -> G:
    g = G(16)
    acc = g.op("RESHAPE", g.conv(g.input((1, 5, 8, 12)), 12), shape=(1, 1, 5, 96))
    return g.out(g.rescale(acc, I8, 2.0**-10, per_channel=True))


def one_channel_reduced(safe: bool) -> G:
    g = G(17)
    x = g.op("MAX_POOL2D", g.input((1, 4, 6, 1)), kernel=(2, 2), stride=(1, 1), pad=(0, 0, 0, 0))
    return g.out(g.op("REDUCE_MAX", g.op("RESHAPE", x, shape=(1, 1, 3, 5)), axis=3))


def summed_then_reduced(safe: bool) -> G:
    g = G(20)
    x = g.op("REDUCE_SUM", g.conv(g.input((1, 24, 1, 8)), 12, (1, 1), pad=(0, 0, 0, 0)), axis=2)
    return g.out(g.op("REDUCE_MAX", g.rescale(x, I8, 2.0**-9), axis=3))


def minimum_of_one_of_two_reshapes(safe: bool) -> G:
    g = G(21)
    x = g.input((1, 7, 1, 16))
    y = g.op("REDUCE_MIN", g.op("RESHAPE", x, shape=(1, 1, 1, 112)), axis=2)
    return g.out(g.op("RESHAPE", x, shape=(1, 1, 7, 16)), y)


def dilated_to_one_column(safe: bool) -> G:
    g = G(22)
    x = g.rescale(g.conv(g.input((1, 4, 7, 12)), 12, (1, 3), dilation=(1, 3), pad=(0, 0, 0, 0)))
    return g.out(g.op("TRANSPOSE", x, perms=(0, 3, 1, 2)))


def widened_and_reshaped_for_two(safe: bool) -> G:
    """The readers are RESCALEs here."""
    g = G(23)
    x = g.op("RESHAPE", g.rescale(g.input((1, 5, 8, 12)), I16, 600.0), shape=(1, 1, 40, 12))
    ys = [g.op("MUL", g.rescale(x, I32, 1.0), g.rescale(g.input(x.shape, I16), I32, 1.0), shift=0) for _ in range(2)]
    return g.out(*ys)


def _slices_of_a_rescale(name: str, starts: tuple[int, int], **rescale: Any) -> Callable[[bool], G]:
    """The sum of two slices of a RESCALE, or of one and its absolute values."""

    def pattern(safe: bool) -> G:
        g = G(24)
        x = g.rescale(g.input((1, 2, 3, 6)), **rescale)
        parts = {c: g.op("SLICE", x, start=(0, 0, 0, c), size=(1, 2, 3, 4)) for c in starts}
        a, b = (parts[c] if x.dtype is I32 else g.rescale(parts[c], I32, 1.0) for c in starts)
        return g.out(g.op("ADD", a if a is not b else g.op("ABS", a), b))

    pattern.__name__ = name
    return pattern


def transposed_convolution_for_two(safe: bool) -> G:
    """The RESCALE of a transposed convolution is no part of it."""
    g = G(25)
    x = g.rescale(g.transpose_conv(g.input((1, 5, 8, 12)), 8, (2, 2), (2, 2), (0, 0, 0, 0)), I8)
    parts = (g.op("SLICE", x, start=(0, 1, 0, 0), size=(1, 8, 16, 8)), x)
    return g.out(*(_sum(g, part) for part in parts))


def _sum(g: G, x: Tensor) -> Tensor:
    both = g.op("ADD", g.rescale(x, I32, 2.0**19), g.rescale(g.input(x.shape), I32, 2.0**18))
    return g.rescale(both, I8, 0.7 * 2.0**-19)


OLD = ("u55-128", "u65-512")
NEW = ("u85-256",)
MAP = (1, 5, 8, 12)

PATTERNS = [
    (rescale_into_concat, OLD, NEW),
    (rescale_of_slice, OLD, NEW),
    (add_of_unequal_integers, OLD, NEW),
    (per_channel_after_matmul, NEW, OLD),
    (reduction_of_slice, OLD + NEW, ()),
    (reduction_into_pad, OLD + NEW, ()),
    (reduce_min_reshaped, OLD, NEW),
    (rescale_between_partial_writes, OLD + NEW, ()),
    (absolute_sum_into_concat, NEW, OLD),
    (_around_transpose("TABLE", "TABLE"), NEW, OLD),
    (_around_transpose("TABLE", "CLAMP"), NEW, OLD),
    (_around_transpose("CLAMP", "TABLE"), NEW, OLD),
    (transpose_with_table, ("u55-32", "u55-64"), OLD + NEW),
]
RAW = [
    *PATTERNS,
    (_steps(MAP, I8, "clamp", "transpose (0, 2, 1, 3)", "other clamp"), NEW, OLD),
    (_steps(MAP, I8, "concat C 1", "rescale channels"), OLD + NEW, ()),
    (_steps(MAP, I8, "concat W 1", "widen"), OLD, NEW),
    (_steps(MAP, I8, "slice W", "widen"), OLD, NEW),
    (_steps(MAP, I8, "slice W", "transposed conv"), OLD + NEW, ()),
    (_steps(MAP, I8, "transposed conv", "concat W 0"), OLD, NEW),
    (_steps((2, 5, 8, 12), I8, "slice W", "conv"), OLD + NEW, ()),
    (_steps(MAP, I8, "slice W", "REDUCE_MAX H"), OLD, NEW),
    (_steps(MAP, I8, "REDUCE_MAX H", "concat W 0"), OLD, NEW),
    (_steps(MAP, I8, "max pool", "slice H", "REDUCE_MIN W"), ("u55-128",), NEW),
    (_steps(MAP, I16, "REDUCE_MIN W", "slice H", "REDUCE_MAX W"), ("u55-128",), NEW),
    (_steps((1, 4, 6, 1), I16, "slice W", "transpose (0, 3, 1, 2)", "clamp", "REDUCE_MAX C"), OLD + NEW, ()),
    (_steps(MAP, I32, "slice W", "REDUCE_SUM C"), OLD + NEW, ()),
    (_steps(MAP, I8, "max pool", "widen far"), NEW, OLD),
    (_steps((1, 7, 1, 16), I8, "REDUCE_MIN C", "widen to 16 far"), OLD, NEW),
    (_steps((2, 5, 8, 12), I8, "slice W", "max pool wide"), OLD + NEW, ()),
    (_steps((2, 5, 8, 12), I8, "slice W", "average pool padded"), OLD + NEW, ()),
    (_steps(MAP, I8, "slice W", "conv dilated"), OLD + NEW, ()),
    (_steps(MAP, I8, "slice C", "depthwise dilated"), OLD + NEW, ()),
    (_steps((1, 9, 12, 12), I8, "slice W", "conv strided"), NEW, ()),
    (_steps(MAP, I8, "slice H", "average pool wide"), NEW, ()),
    (_steps(MAP, I8, "average pool wide", "concat C 0"), NEW, ()),
    (dilated_to_one_column, NEW, OLD),
    (minimum_of_one_of_two_reshapes, OLD, NEW),
    (widened_and_reshaped_for_two, OLD + NEW, ()),
    (_slices_of_a_rescale("a_wide_rescale_sliced_for_two", (1, 1), out=I32, scale=1.0), OLD, NEW),
    (_slices_of_a_rescale("a_rescale_of_channels_sliced_twice", (0, 2), scale=0.7, per_channel=True), OLD + NEW, ()),
    (transposed_convolution_for_two, OLD, NEW),
    (_steps((1, 2, 3, 8), I8, "slice W", "widen far", "slice C", "ABS"), NEW, OLD),
    (clamped_transpose_into_concat, OLD, NEW),
    (sliced_matmul, OLD, NEW),
    (minimum_beside_reshape, OLD, NEW),
    (shared_rescale, OLD + NEW, ()),
    (reshaped_channels, OLD + NEW, ()),
    (one_channel_reduced, OLD + NEW, ()),
    (summed_then_reduced, NEW, OLD),
]  # fmt: skip


def _name(value: object) -> str:
    return getattr(value, "__name__", "") or "+".join(value)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(("pattern", "bad", "good"), PATTERNS, ids=_name)
def test_vela_miscompiles(pattern, bad, good) -> None:  # type: ignore[no-untyped-def]
    for target in bad:
        assert not _run(pattern(True), target)
    for target in good:
        assert not _run(pattern(False), target)


@pytest.mark.parametrize(("pattern", "bad", "good"), RAW, ids=_name)
def test_the_compiler_avoids_it(pattern, bad, good) -> None:  # type: ignore[no-untyped-def]
    for target in bad:
        assert _run(pattern(False), target), f"Vela no longer has this fault on {target}: remove it from targets/faults"
    for target in bad + good:
        g = pattern(False)
        before = len(g.graph.ops)
        done = avoid(g.graph, target)
        assert bool(done) == (len(g.graph.ops) > before) and (done or target not in bad)
        assert not _run(g, target), target


def test_every_fault_has_a_pattern() -> None:
    seen = {f for pattern, bad, _ in RAW for target in bad for f in avoid(pattern(False).graph, target)}
    assert seen == {f.name for f in FAULTS if f.remedy != "none"}


def cascaded_slice(source: str = "RESCALE") -> G:
    g = G(18)
    x = g.rescale(g.input(MAP), I32, 700.0) if source == "RESCALE" else g.op("ABS", g.input(MAP, I32))
    return g.out(g.op("ABS", g.op("SLICE", x, start=(0, 1, 0, 0), size=(1, 3, 8, 12))))


def test_a_fault_without_remedy_is_refused() -> None:
    assert _run(cascaded_slice(), "u55-128"), "Vela no longer has this fault: remove it from targets/faults"
    g = cascaded_slice()
    with pytest.raises(Miscompiled) as caught:
        avoid(g.graph, "u55-128")
    assert caught.value.op is g.graph.ops[-1]
    assert caught.value.message == (
        "Vela 5.2 would miscompile ABS: in a cascade of int32 operators rows in front of a slice are counted wrongly"
    )
    with pytest.raises(Miscompiled):
        avoid(cascaded_slice("ABS").graph, "u55-128")
    assert not avoid(cascaded_slice().graph, "u85-256") and not _run(cascaded_slice(), "u85-256")


def test_graphs_without_a_fault_stay_as_they_are() -> None:
    for target in (*OLD, *NEW):
        g = residuals()
        ops = [(op, list(op.inputs)) for op in g.graph.ops]
        assert avoid(g.graph, target) == [] and [(op, op.inputs) for op in g.graph.ops] == ops


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=2000 if full() else 200, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
def test_random_networks_of_such_operators(seed: int) -> None:
    """Half of the networks that Vela takes have one of the patterns, or one that is not known yet."""
    g, target = network(seed)
    if not g.graph.ops:
        return
    inputs = g.feed(seed % 1000)
    try:
        want = reference(g.graph, inputs)
    except ArmLowerError:  # an overflow of int32
        return
    optimize(g.graph)
    try:
        avoid(g.graph, target)
        for op in g.graph.ops:
            check(op, target.partition("-")[0])
        compiled = compile_graph(g.graph, target)
    except Unsupported:
        return
    except RuntimeError as error:
        assert "could not run on NPU" in str(error) or "Unsupported" in str(error), error
        return
    assert not difference(want, compiled.run(inputs)), (seed, target)
