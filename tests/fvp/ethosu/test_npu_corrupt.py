"""Corrupt payloads and weights end in a result or an `NpuError`, never in a hang, a crash or a stray access.

``NPU_FULL=1`` flips 10,000 times; the default is a tenth of that.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter

import numpy as np
import pytest
from npu_cases import CASES
from npu_harness import compile_graph, full
from npu_random import network

from fvp.ethosu import AccessError, DecodeError, NpuError, Program

_PROGRAMS = {
    "conv_int8_8x8x16_24_k33_s11_d11": "u55-128",
    "depthwise_int8_9x9x40_k33_s11_d11": "u55-128",
    "add_same": "u55-128",
    "table_i8": "u55-128",
    "conv_int16_8x8x16_24_k33_s11_d11": "u65-512",
    "concat_int8_3": "u65-512",
    "chain_conv_mul_add": "u85-256",
    "matmul_2x1x64x33": "u85-256",
    "conv_sparse_3x3": "u85-256",
    "resize_bilinear_int8_1": "u85-256",
    "gather_batches": "u85-256",
    "dynamic_weights": "u85-512",
    "table_i16": "u85-256",
    "argmax_int8_3": "u85-256",
}


def test_random_flips() -> None:
    rng = np.random.default_rng(5)
    by_name = {c.name: c.build for c in CASES}
    programs = []
    for name, target in _PROGRAMS.items():
        g = by_name[name]()
        programs.append((name, compile_graph(g.graph, target), g.feed()))
    for seed in (3, 5, 8):
        g, target, options = network(seed)
        programs.append((f"network {seed}", compile_graph(g.graph, target, **options), g.feed()))
    seen: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(10_000 if full() else 1000):
            name, compiled, inputs = programs[i % len(programs)]
            parts = [bytearray(compiled.payload), bytearray(compiled.read_only)]
            for _ in range(int(rng.integers(1, 4))):
                part = parts[int(rng.random() < 0.4 and len(parts[1]) > 0)]
                flip = 1 << int(rng.integers(8)) if rng.random() < 0.7 else int(rng.integers(256))
                part[int(rng.integers(len(part)))] ^= flip
            start = time.monotonic()
            try:
                compiled_as = compiled.inputs, compiled.outputs, compiled.scratch, compiled.fast
                Program(bytes(parts[0])).run(bytes(parts[1]), inputs, *compiled_as)
                seen["result"] += 1
            except NpuError as error:
                assert error.message
                seen[type(error).__name__] += 1
            assert time.monotonic() - start < 10, name
    assert {"result", "DecodeError", "AccessError"} <= set(seen), seen


@pytest.mark.parametrize("length", [0, 3, 4, 8, 20, 31, 32, 36, 40])
def test_truncated_payload(length: int) -> None:
    g = {c.name: c.build for c in CASES}["add_same"]()
    payload = compile_graph(g.graph, "u55-128").payload
    with pytest.raises(DecodeError):
        Program(payload[:length])


def test_weights_that_end_early() -> None:
    g = {c.name: c.build for c in CASES}["conv_int8_8x8x16_24_k33_s11_d11"]()
    c = compile_graph(g.graph, "u55-128")
    with pytest.raises(AccessError, match="read-only"):
        Program(c.payload).run(c.read_only[:-32], g.feed(), c.inputs, c.outputs, c.scratch, c.fast)
