"""Vela 5.2's silent miscompiles: found on the raw pattern, absent from the safe form of the same computation."""

from __future__ import annotations

import pytest
from npu_harness import I8, I32, G, compile_graph, difference, reference


def _run(g: G, target: str) -> str:
    inputs = g.feed()
    return difference(reference(g.graph, inputs), compile_graph(g.graph, target).run(inputs))


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


@pytest.mark.parametrize(
    ("pattern", "bad", "good"),
    [
        (rescale_into_concat, ("u55-128", "u65-512"), ("u85-256",)),
        (rescale_of_slice, ("u55-128", "u65-512"), ("u85-256",)),
        (add_of_unequal_integers, ("u55-128", "u65-512"), ("u85-256",)),
        (per_channel_after_matmul, ("u85-256",), ("u55-128", "u65-512")),
    ],
)
def test_vela_miscompiles(pattern, bad, good) -> None:  # type: ignore[no-untyped-def]
    for target in bad:
        assert _run(pattern(False), target), f"{target} is right now: the legaliser's workaround may go"
        assert not _run(pattern(True), target)
    for target in good:
        assert not _run(pattern(False), target)
