"""Vela in memory: results, candidates, limits, refusals, determinism."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from npu_graphs import Maker, small_net

from arm_lower import vela
from arm_lower.errors import ArmLowerError, VelaError
from arm_lower.spec import EthosUCompileSpec
from arm_lower.vela import Setting
from arm_lower.vela_worker import Job, Raw

TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u65-512", "ethos-u85-256")
U55 = EthosUCompileSpec("ethos-u55-128")


@pytest.mark.parametrize("target", TARGETS)
def test_a_result_is_whole(target: str) -> None:
    result = vela.compile(small_net(), EthosUCompileSpec(target))
    assert result.command_stream[:4] == b"COP1"
    assert [t.shape for t in result.inputs] == [(1, 1, 1, 16, 16, 3)]
    assert [t.shape for t in result.outputs] == [(1, 1, 1, 8, 8, 32)]
    for t in (*result.inputs, *result.outputs):
        assert t.region == 1 and t.name
        assert 0 <= t.offset and t.offset + t.size <= result.scratch_size
    assert result.weight_bytes == len(result.read_only) > 0
    assert 0 < result.npu_cycles <= result.total_cycles
    assert result.settings in result.tried
    assert sum(layer.op_cycles for layer in result.layers) == result.total_cycles
    assert sum(layer.macs for layer in result.layers) == result.macs


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_layers_name_their_operators(target: str) -> None:
    convolutions = [n for n in vela.compile(small_net(), EthosUCompileSpec(target)).layers if n.op == "Conv2D"]
    assert [n.location for n in convolutions][0] == "layer0:aten.conv2d.default"
    assert all(n.location.endswith("aten.conv2d.default") for n in convolutions) and len(convolutions) == 5


def test_locations_can_be_given() -> None:
    data = small_net()
    count = len(vela.operator_locations(data))
    result = vela.compile(data, U55, [f"op{i}" for i in range(count)])
    assert all(layer.location.startswith("op") for layer in result.layers)


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_input_gives_the_same_result(target: str) -> None:
    spec = EthosUCompileSpec(target)
    assert vela.compile(small_net(), spec) == vela.compile(small_net(), spec, runner=vela.run_isolated)


def test_large_graphs_run_side_by_side_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = vela.compile(small_net(), U55)
    monkeypatch.setattr(vela, "_ALONE_BYTES", 0)
    monkeypatch.setattr(vela, "_cpus", lambda: 3)
    monkeypatch.setitem(vela._ARENA_PARTS, "u55", vela._ARENA_PARTS["small"])
    assert vela.compile(small_net(), U55) == alone


def test_small_graphs_compile_fast() -> None:
    data = small_net()
    vela.compile(data, U55)
    start = time.process_time()
    vela.compile(data, U55)
    assert time.process_time() - start < 0.3


# -- which setting wins ----------------------------------------------------------------------------------------


def raw(total: int, scratch: int, decode: int = 0) -> Raw:
    result = real_raw()
    result.update(total_cycles=total, scratch=(scratch, 1))
    for t in (*result["inputs"], *result["outputs"]):
        t.update(address=0, size=0)
    result["perf"] = {"header": ["id", "source_id", "name", "operator", "npu_cycles", "op_cycles", "mac_count"],
                      "rows": [["1", "1", "t", "Conv2D", "10", "10", "0"]]}
    result["decode"] = {"header": ["id", "wd_cycles"], "rows": [["1", str(10 + decode)]]}
    return result


def real_raw() -> Raw:
    (result,) = vela.run_jobs([vela._job(small_net(), U55, Setting("Performance", 1 << 22))])
    assert not isinstance(result, str)
    return result


class Scripted:
    """Stands in for Vela: answers by setting, and keeps what it was asked."""

    def __init__(self, **answers: Raw | str) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, jobs: Sequence[Job]) -> list[Raw | str]:
        found = []
        for job in jobs:
            options = dict(line.split("=", 1) for line in job["options"].splitlines() if "=" in line)
            size = int(options["arena_size_limit"])
            name = options["optimize"] if size == 1 << 22 else f"arena{size}"
            self.asked.append(name + options["disable_feature"])
            found.append(self.answers.get(name, self.answers["Performance"]))
        return found


def test_fewest_cycles_win() -> None:
    result = vela.compile(small_net(), U55, runner=Scripted(Performance=raw(1000, 4000), Size=raw(1100, 4000)))
    assert (result.total_cycles, result.settings) == (1000, "Performance, arena 4194304")


def test_half_a_percent_buys_sram() -> None:
    answers = Scripted(Performance=raw(1000, 4000), Size=raw(1005, 3000))
    assert vela.compile(small_net(), U55, runner=answers).sram_bytes == 3000
    answers = Scripted(Performance=raw(1000, 4000), Size=raw(1006, 3000))
    assert vela.compile(small_net(), U55, runner=answers).sram_bytes == 4000


def test_arenas_between_size_and_performance_are_tried() -> None:
    answers = Scripted(Performance=raw(1000, 6000), Size=raw(2000, 0), arena600=raw(1001, 500))
    result = vela.compile(small_net(), U55, runner=answers)
    assert answers.asked == ["Performance", "Size", "arena0", *(f"arena{n}00" for n in (6, 12, 20, 30, 45))]
    assert (result.settings, result.sram_bytes) == ("Performance, arena 600", 500)


def test_cycles_of_the_weight_decoder_count() -> None:
    answers = Scripted(Performance=raw(1000, 4000), Size=raw(1000, 3000, decode=900))
    result = vela.compile(small_net(), U55, runner=answers)
    assert result.sram_bytes == 4000 and result.decode_cycles == 0
    assert result.tried["Size, arena 4194304"] == (1900, 3000)


@pytest.mark.parametrize(("spec", "asked"), [
    (replace(U55, effort="fast"), ["Performance"]),
    (replace(U55, effort="fast", extra_flags=("--optimise=Size",)), ["Size"]),
    (replace(U55, extra_flags=("--disable-cascading", "--optimise=Performance")), ["PerformanceCascading"]),
    (replace(U55, effort="max"), ["Performance", "Size", "PerformanceCascading", "SizeCascading"]),
])
def test_effort_and_flags_choose_the_candidates(spec: EthosUCompileSpec, asked: list[str]) -> None:
    answers = Scripted(Performance=raw(1000, 4000), Size=raw(1000, 4000))
    vela.compile(small_net(), spec, runner=answers)
    assert answers.asked == asked


def test_a_candidate_that_vela_refuses_is_left_out() -> None:
    answers = Scripted(Performance="Failed", Size=raw(1000, 4000))
    assert vela.compile(small_net(), U55, runner=answers).settings == "Size, arena 4194304"


# -- limits and refusals -----------------------------------------------------------------------------------------


def test_a_limit_changes_the_plan() -> None:
    free = vela.compile(small_net(), U55)
    smallest = min(sram for _, sram in free.tried.values())
    for effort in ("fast", "normal", "max"):
        assert vela.compile(small_net(), replace(U55, sram_limit=smallest, effort=effort)).sram_bytes <= smallest


def test_a_limit_that_cannot_hold() -> None:
    needed = vela.compile(small_net(), replace(U55, extra_flags=("--optimise=Size",))).sram_bytes
    with pytest.raises(ArmLowerError) as caught:
        vela.compile(small_net(), replace(U55, sram_limit=1000))
    assert not isinstance(caught.value, VelaError)
    assert caught.value.message == (
        f"sram_limit does not fit: {needed} bytes of SRAM needed, 1000 available, {needed - 1000} too many")
    assert caught.value.hint == ("raise sram_limit, use a smaller input or narrower layers before the largest feature "
                                 "maps, or try effort='max'")


def test_a_limit_on_a_dedicated_sram_counts_the_fast_scratch() -> None:
    spec = EthosUCompileSpec("ethos-u65-256")
    result = vela.compile(small_net(), spec)
    assert result.sram_bytes == result.scratch_fast_size <= spec.arena_limit
    limited = vela.compile(small_net(), replace(spec, sram_limit=8192))
    assert limited.scratch_fast_size <= 8192 < limited.scratch_size


def bad_input_count() -> bytes:
    m = Maker()
    m.input((1, 4, 4, 8))
    return m.finish(m.op("CLAMP", m.input((1, 4, 4, 8)), min=0, max=5))


def unsupported() -> bytes:
    m = Maker()
    return m.finish(m.op("BITWISE_NOT", m.input((1, 4, 4, 8), "int32")))


@pytest.mark.parametrize(("data", "message"), [
    (b"no flatbuffer", "Vela refused the graph for ethos-u55-128: TOSA FB Reader error; Failed to load TOSA model. "
                       "Buffer contents inconsistent with generated schema"),
    (b"", None),
    (unsupported(), "Vela refused the graph for ethos-u55-128: Non-passthrough operation (Not) could not run on NPU"),
    (bad_input_count(), "Vela's result for ethos-u55-128 cannot be used: it has 1 inputs, the graph has 2; Vela drops "
                        "what nothing reads"),
])
def test_refusals_in_velas_words(data: bytes, message: str | None) -> None:
    with pytest.raises(VelaError) as caught:
        vela.compile(data, U55)
    assert message is None or caught.value.message == message


def test_a_crash_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vela, "_start", crashing_start)
    with pytest.raises(VelaError, match="Vela crashed \\(signal 11\\)"):
        vela.compile(small_net(), U55, runner=vela.run_isolated)


def crashing_start(job: Job) -> object:
    import subprocess
    import sys

    return subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
