"""Mutations: one semantic of the model is broken at a time and the comparison must notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from npu_cases import CASES
from npu_harness import G, compile_graph, difference, reference
from npu_networks import mobilenet

import fvp.ethosu.arith as arith
import fvp.ethosu.exec as ex
import fvp.ethosu.memory as memory
import fvp.ethosu.weights as weights
from fvp.ethosu import NpuError, Program
from fvp.ethosu.task import Task

_BY_NAME: dict[str, Callable[[], G]] = {c.name: c.build for c in CASES}
_BY_NAME["mobilenet"] = mobilenet


def _survives(cases: list[tuple[str, str]]) -> list[str]:
    """Cases that are still equal."""
    equal = []
    for name, target in cases:
        g = _BY_NAME[name]()
        inputs = g.feed()
        want = reference(g.graph, inputs)
        options = {"arena": 20000} if name == "mobilenet" else {}
        compiled = compile_graph(g.graph, target, **options)
        try:
            found = difference(want, compiled.run(inputs, Program(compiled.payload)))
        except (NpuError, ValueError) as error:
            found = str(error)
        if not found:
            equal.append(f"{name} on {target}")
    return equal


@pytest.fixture(autouse=True)
def _fresh_caches(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ex, "_WEIGHTS", ex._Cache(1 << 24))
    monkeypatch.setattr(ex, "_SCALES", ex._Cache(1 << 24))
    weights.positions.cache_clear()
    yield
    weights.positions.cache_clear()


def _field(**changes: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A mutation of what a task says."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = ex.Machine.execute

        def execute(self: ex.Machine, t: Task) -> Any:
            return original(self, dataclasses.replace(t, **{k: f(t) for k, f in changes.items()}))

        patch.setattr(ex.Machine, "execute", execute)

    return apply


def _order(**changes: Callable[[weights.Order], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A mutation of the weight order."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = ex.unpack

        def unpack(q: weights.Order, streams: list[bytes], fast: bool) -> Any:
            return original(dataclasses.replace(q, **{k: f(q) for k, f in changes.items()}), streams, fast)

        patch.setattr(ex, "unpack", unpack)

    return apply


def _round(change: Callable[[str], str]) -> Callable[[pytest.MonkeyPatch], None]:
    def apply(patch: pytest.MonkeyPatch) -> None:
        original = arith._shift_right
        patch.setattr(arith, "_shift_right", lambda p, sign, shift, mode: original(p, sign, shift, change(mode)))

    return apply


def _set(owner: Any, name: str, value: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Replace ``owner.name`` by ``value(original)``."""
    return lambda patch: patch.setattr(owner, name, value(getattr(owner, name)))


def _no_zp(role: str) -> Callable[[Any], Any]:
    return lambda t: t.__dict__[role] and dataclasses.replace(t.__dict__[role], zp=0)


def _half_dma(original: Any) -> Any:
    return lambda self, t: original(self, dataclasses.replace(t, dma={**t.dma, "len": max(1, t.dma["len"] - 16)}))


def _one_scale(original: Any) -> Any:
    def read(streams: list[bytes], channels: int, layout: str) -> Any:
        s = original(streams, channels, layout)
        return weights.Scales(s.bias, np.full_like(s.scale, s.scale[0]), np.full_like(s.shift, s.shift[0]))

    return read


def _no_bias(original: Any) -> Any:
    def read(streams: list[bytes], channels: int, layout: str) -> Any:
        s = original(streams, channels, layout)
        return weights.Scales(np.zeros_like(s.bias), s.scale, s.shift)

    return read


def _one_tile(original: Any) -> Any:
    return lambda self: iter([(0, 0, self.shape[0], self.shape[1], self.bases[0])])


CONV, CONV2, DW = (
    "conv_int8_17x17x4_20_k53_s22_d11",
    "conv_int8_5x5x130_40_k33_s11_d11",
    "depthwise_int8_12x12x20_k55_s21_d11",
)
POOL = "avg_pool_int8_12x12x20_k33_s11_p11"
MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], list[tuple[str, str]]]] = {
    "natural rounding truncates": (
        _round(lambda m: "TO_LOWER" if m == "NATURAL" else m),
        [(CONV, "u55-128"), (CONV, "u85-256"), ("add_same", "u55-128")],
    ),
    "double rounding is natural": (
        _round(lambda m: "NATURAL" if m == "DOUBLE" else m),
        [("rescale_ties_i8_double", "u55-128"), ("rescale_ties_i32_double", "u85-256")],
    ),
    "floor rounds": (_round(lambda m: "NATURAL" if m == "TO_LOWER" else m), [("shr_i32_floor", "u85-256")]),
    "input zero point": (
        _field(ifm=_no_zp("ifm")),
        [(CONV, "u55-128"), (DW, "u65-512"), (CONV2, "u85-256"), ("mul_same", "u55-128")],
    ),
    "second input zero point": (_field(ifm2=_no_zp("ifm2")), [("mul_same", "u55-128"), ("matmul_1x5x8x6", "u85-256")]),
    "output zero point": (_field(ofm=_no_zp("ofm")), [(CONV, "u55-128"), ("mul_same", "u85-256")]),
    "weight traversal": (_order(part_kernel=lambda q: not q.part_kernel), [(CONV, "u55-128"), (CONV, "u85-256")]),
    "weight block depth": (
        _order(block=lambda q: q.block + 8 if q.block < 64 else q.block - 8),
        [
            ("conv_int8_5x5x130_200_k11_s11_d11_valid", "u55-128"),
            ("conv_int8_5x5x130_200_k11_s11_d11_valid", "u65-512"),
        ],
    ),
    "weight micro-block": (_order(ublock=lambda q: q.ublock * 2), [(CONV2, "u55-128"), (CONV2, "u85-256")]),
    "weights of 16-bit inputs": (_order(ifm_bits=lambda q: 8), [("conv_int16_5x5x130_40_k33_s11_d11", "u55-128")]),
    "depthwise padding of elements": (_order(macs=lambda q: 2048), [(DW, "u85-512")]),
    "cores take turns in blocks": (_order(cores=lambda q: 1), [(CONV2, "u65-512")]),
    "kernel dilation": (
        _field(window=lambda t: t.window and dataclasses.replace(t.window, dilation=(1, 1))),
        [("conv_int8_14x14x16_16_k33_s11_d22", "u55-128"), ("depthwise_int8_16x16x16_k33_s11_d22", "u85-256")],
    ),
    "top padding": (
        _field(
            window=lambda t: (
                t.window
                and dataclasses.replace(
                    t.window, pad=(t.window.pad[2], t.window.pad[1], t.window.pad[0], t.window.pad[3])
                )
            )
        ),
        [("conv_int8_16x16x3_8_k33_s22_d11", "u55-128")],
    ),
    "padding is zero": (
        _set(ex.Machine, "_padded", lambda f: lambda self, x, w, up, fill, dtype: f(self, x, w, up, 0, dtype)),
        [(CONV, "u55-128"), (DW, "u85-256"), ("max_pool_int8_13x13x8_k33_s22_p11", "u55-128"), (POOL, "u55-128")],
    ),
    "average over all pixels": (
        _set(ex, "_counts", lambda f: lambda size, before, k, stride, dilation, n: np.full(n, k)),
        [(POOL, "u55-128"), (POOL, "u85-256")],
    ),
    "table index": (
        _set(ex.Machine, "_lookup", lambda f: lambda self, t, v: f(self, t, np.maximum(v - 1, -128))),
        [("table_i8", "u55-128"), ("table_i8", "u85-256")],
    ),
    "16-bit table fraction": (
        _set(ex.Machine, "_lookup", lambda f: lambda self, t, v: f(self, t, v & ~1)),
        [("table_i16_steep", "u85-256")],
    ),
    "length of a transfer": (
        _set(ex.Machine, "_dma", _half_dma),
        [("table_i8", "u55-128"), ("mobilenet", "u55-128"), ("gather_i8", "u85-256")],
    ),
    "one scale for all channels": (
        _set(ex, "read_scales", _one_scale),
        [(CONV, "u55-128"), ("rescale_per_channel", "u85-256")],
    ),
    "no bias": (_set(ex, "read_scales", _no_bias), [("conv_big_bias", "u55-128"), ("conv_big_bias", "u85-256")]),
    "no clamp": (
        _field(activation=lambda t: dataclasses.replace(t.activation, lo=None, hi=None)),
        [("conv_relu", "u55-128"), ("add_relu", "u85-256")],
    ),
    "rolling buffers": (_set(memory.FeatureMap, "parts", _one_tile), [("mobilenet", "u55-128")]),
    "operands are not swapped": (_field(swapped=lambda t: False), [("const_scalar_minus", "u55-128")]),
    "fixed shift of the other operand": (
        _field(shift_other=lambda t: {"A": "B", "B": "A"}.get(t.shift_other, "")),
        [("add_first_smaller", "u55-128"), ("add_same", "u55-128")],
    ),
    "stored order": (_field(transpose=lambda t: "HWC"), [("transpose_int8_021", "u85-256")]),
    "reverse": (_field(reverse=lambda t: "NONE"), [("reverse_int8_3", "u85-256")]),
    "upscaling": (
        _field(upscale=lambda t: {"ZEROS": "NEAREST", "NEAREST": "ZEROS"}.get(t.upscale, "NONE")),
        [("transpose_conv_int8_k33_s22_p-10", "u55-128"), ("resize_nearest_int8_1", "u55-128")],
    ),
    "broken serpentine": (
        _set(weights, "_taps85", lambda f: lambda q, sh, sw, r, pad: np.sort(f(q, sh, sw, r, pad), axis=0)),
        [(CONV, "u85-256")],
    ),
    "index of the maximum": (
        _set(ex.Machine, "_argmax", lambda f: lambda self, t, x: f(self, t, ~x)),
        [("argmax_int8_3", "u85-256")],
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_model_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, cases = MUTATIONS[name]
    mutate(monkeypatch)
    assert not _survives(cases), name


def test_there_are_enough_mutations() -> None:
    assert len(MUTATIONS) >= 12
