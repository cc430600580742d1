"""Vela, called in memory: a TOSA flatbuffer in, the NPU's command stream, weights and figures out.

Vela's scheduler is steered by a few settings, and which one is best depends on the graph. `compile` therefore
tries the ones that were seen to win on real networks and keeps the best; the choice depends on the graph and the
spec alone, never on time or on how many cores there are.
"""

from __future__ import annotations

import logging
import marshal
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ethosu import regor  # noqa: F401  (the worker's first compile would import it)
from tosa import TosaGraph as fb_graph

from arm_lower import vela_worker
from arm_lower.errors import ArmLowerError, VelaError
from arm_lower.spec import EthosUCompileSpec
from arm_lower.tosa.serialize import operator_locations
from arm_lower.vela_worker import Job, Raw, RawTensor, Table

log = logging.getLogger(__name__)

SCRATCH_REGION = 1
"""Region of all inputs and outputs; the runtime copies them to and from the scratch buffer without looking."""

CYCLE_TOLERANCE = 0.005
"""A setting that is at most this much slower than the fastest one wins if it needs less SRAM."""

FILE_TOLERANCE, FILE_ALLOWANCE = 0.01, 1024
"""By how much of the smallest file, and by how many bytes, a setting that needs less SRAM may make the file larger."""

_ALONE_BYTES = 1 << 20  # compiles of smaller graphs are faster one after the other than a child process starts
_SEARCH_BYTES = 6 << 20  # compiles of larger graphs take seconds: no search for a smaller arena at effort "normal"


@dataclass(frozen=True)
class VelaTensor:
    """An input or output of the delegate.

    Attributes:
        name: Name of the tensor in the TOSA graph.
        shape: Six sizes, leading ones are 1, as the Ethos-U blob wants them.
        element_size: Bytes per element.
        offset: Byte offset in the scratch buffer.
        region: Always 1, the scratch buffer.
        size: Bytes.
    """

    name: str
    shape: tuple[int, ...]
    element_size: int
    offset: int
    region: int
    size: int


@dataclass(frozen=True)
class Layer:
    """One operation of the command stream.

    Attributes:
        name: Vela's name, that of the tensor it writes.
        op: Vela's operator.
        location: Location of the TOSA operator it came from: PyTorch module path and operator.
        npu_cycles: Cycles of computation.
        op_cycles: Cycles it takes, waiting for memory included; these add up to the total.
        macs: Multiply-accumulates.
        memory_cycles: Access cycles of each memory.
    """

    name: str
    op: str
    location: str
    npu_cycles: int
    op_cycles: int
    macs: int
    memory_cycles: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """One way to run Vela's scheduler.

    Attributes:
        optimise: ``Performance`` or ``Size``.
        arena: ``arena_size_limit`` in bytes.
        disabled: Scheduler features that are off.
    """

    optimise: str
    arena: int
    disabled: tuple[str, ...] = ()

    def __str__(self) -> str:
        off = "".join(f", no {d}" for d in self.disabled)
        return f"{self.optimise}, arena {self.arena}{off}"


@dataclass(frozen=True)
class VelaResult:
    """What Vela made of one graph.

    Attributes:
        command_stream: Driver payload, starts with ``COP1`` or ``COP2``.
        read_only: Encoded weights, scales and constants.
        inputs: In the order of the graph's inputs.
        outputs: In the order of the graph's outputs.
        scratch_size: Bytes of the scratch buffer: activations, inputs and outputs.
        scratch_fast_size: Bytes of the fast scratch buffer of a dedicated-SRAM memory mode, else 0.
        sram_bytes: Bytes of SRAM for activations: the part of the two scratch buffers that is in SRAM.
        npu_cycles: Vela's estimate of the cycles of computation.
        total_cycles: Vela's estimate with memory accesses.
        macs: Multiply-accumulates.
        weight_bytes: Size of ``read_only``.
        memories: Peak bytes used of each memory.
        layers: In execution order.
        settings: The setting that won, as text.
        tried: Every setting tried with (cycles as `cost` counts them, SRAM bytes); a refused one is left out.
        decode_cycles: Cycles that Vela's total leaves out: layers of U85 that wait for the weight decoder.
        commands: Of each operation in the command stream its byte offset from the first command, and the index in
            ``layers`` of the layer it belongs to.
    """

    command_stream: bytes
    read_only: bytes
    inputs: list[VelaTensor]
    outputs: list[VelaTensor]
    scratch_size: int
    scratch_fast_size: int
    sram_bytes: int
    npu_cycles: int
    total_cycles: int
    macs: int
    weight_bytes: int
    memories: dict[str, int]
    layers: list[Layer]
    settings: str
    tried: dict[str, tuple[int, int]]
    decode_cycles: int = 0
    commands: tuple[tuple[int, int], ...] = ()


Runner = Callable[[Sequence[Job]], "list[Raw | str]"]
"""Runs compiles side by side or one by one; a string is the text of a refusal."""


def compile(
    tosa: bytes,
    spec: EthosUCompileSpec,
    locations: Sequence[str] | None = None,
    *,
    runner: Runner | None = None,
    accept: Callable[[VelaResult], bool] | None = None,
) -> VelaResult:
    """Compiles a TOSA flatbuffer to one NPU operation.

    Args:
        tosa: The flatbuffer.
        spec: Target, memories, limits and effort.
        locations: Location of each operator of the flatbuffer, constants counted; by default read from ``tosa``.
        runner: Runs the compiles of one round; by default in this process, with child processes for large graphs.
        accept: Whether a result may be used; asked of the best one first, then of the next.

    Raises:
        VelaError: Vela refused the graph, crashed on it, its result cannot be run by ExecuTorch's runtime, or no
            result is accepted.
        ArmLowerError: No setting fits `EthosUCompileSpec.sram_limit`.
    """
    run = runner or run_jobs
    results: dict[Setting, Raw] = {}
    refusals: dict[Setting, str] = {}
    for plan in (_first_round, _smaller_arena):
        wanted = [s for s in plan(spec, len(tosa), results) if s not in results and s not in refusals]
        for setting, outcome in zip(wanted, run([_job(tosa, spec, s) for s in wanted])):
            if isinstance(outcome, str):
                refusals[setting] = outcome
            else:
                results[setting] = outcome
    if not results:
        raise _refused(spec, next(iter(refusals.values())))
    graph, left = _graph(tosa, locations), dict(results)
    while left:
        best = _choose(spec, left)
        result = _result(left.pop(best), spec, best, results, graph)
        if accept is None or accept(result):
            log.debug("vela: %s of %d settings", best, len(results))
            return result
    raise VelaError(f"no setting of Vela gives a result that is accepted; tried: {'; '.join(map(str, results))}")


# -- settings ------------------------------------------------------------------------------------------------


def _first_round(spec: EthosUCompileSpec, size: int, done: dict[Setting, Raw]) -> list[Setting]:
    limit, off = spec.arena_limit, spec.options.disabled
    if spec.options.optimise:
        return [Setting(spec.options.optimise, limit, off)]
    fastest, smallest = Setting("Performance", limit, off), Setting("Size", limit, off)
    if spec.effort == "max":
        uncascaded = [Setting(s.optimise, limit, (*off, "Cascading")) for s in (fastest, smallest)]
        return [fastest, smallest, *(s for s in uncascaded if "Cascading" not in off)]
    if spec.sram_limit is not None:
        return [fastest, smallest]
    # Size never won on a large graph of U55: unbuffered weights cost far more there than on U85.
    if spec.effort == "fast" or (size > _SEARCH_BYTES and spec.family != "u85"):
        return [fastest]
    return [fastest, smallest]


def _smaller_arena(spec: EthosUCompileSpec, size: int, done: dict[Setting, Raw]) -> list[Setting]:
    """Performance within arenas between what Size and what Performance took: often as fast in far less SRAM."""
    limit, off = spec.arena_limit, spec.options.disabled
    fast, small = done.get(Setting("Performance", limit, off)), done.get(Setting("Size", limit, off))
    if spec.memory.dedicated or spec.effort == "fast" or not fast or not small:
        return []
    low, high = small["scratch"][0], fast["scratch"][0]
    if low >= high or (size > _SEARCH_BYTES and spec.effort != "max"):
        return []
    parts = _ARENA_PARTS["max" if spec.effort == "max" else "small" if size <= _ALONE_BYTES else spec.family]
    return [Setting("Performance", low + (high - low) * part // 60, off) for part in parts]


# In sixtieths of the way from the smallest arena to the one Vela takes when it is free.
_ARENA_PARTS = {
    "small": (0, 6, 12, 20, 30, 45),
    "u55": (12, 30),
    "u65": (12, 30),
    "u85": (0, 30),
    "max": tuple(range(0, 60, 4)),
}


def cost(raw: Raw) -> int:
    """Cycles to compare settings by: Vela's total, and for each layer what its weight decoder takes longer.

    Vela picks U85's fast (larger) weight format by the decoder's speed, but leaves the decoder out of its total. The
    Size strategy takes the smaller format, which then looks free though a batch-1 linear layer may take twice as long.
    """
    return raw["total_cycles"] + _decode_cycles(raw)


def _decode_cycles(raw: Raw) -> int:
    decode = {row["id"]: int(row["wd_cycles"] or 0) for row in _rows(raw["decode"])}
    return sum(max(0, decode.get(row["id"], 0) - int(row["op_cycles"])) for row in _rows(raw["perf"]))


def _choose(spec: EthosUCompileSpec, results: dict[Setting, Raw]) -> Setting:
    """Lowest cost; among those within the tolerance the least SRAM, then the lowest cost, then the first tried.

    SRAM is not bought with a much larger file: a small arena may double a command stream.
    """
    fitting = {s: r for s, r in results.items() if spec.sram_limit is None or _sram(spec, r) <= spec.sram_limit}
    if not fitting:
        raise _too_big(spec, min(_sram(spec, r) for r in results.values()))
    costs = {s: cost(r) for s, r in fitting.items()}
    lowest = min(costs.values())
    close = [s for s in fitting if costs[s] - lowest <= round(lowest * CYCLE_TOLERANCE)]
    size = {s: len(fitting[s]["command_stream"]) + len(fitting[s]["read_only"]) for s in close}
    allowed = min(size.values()) * (1 + FILE_TOLERANCE) + FILE_ALLOWANCE
    return min((s for s in close if size[s] <= allowed), key=lambda s: (_sram(spec, fitting[s]), costs[s]))


def _sram(spec: EthosUCompileSpec, raw: Raw) -> int:
    memory = spec.memory
    return (raw["scratch"][0] if memory.arena == "Sram" else 0) + (raw["scratch_fast"][0] if memory.dedicated else 0)


def _job(tosa: bytes, spec: EthosUCompileSpec, setting: Setting) -> Job:
    options = spec.options
    return {
        "arch": f"Ethos{spec.family.upper()}",
        "tosa": tosa,
        "system": f"[architecture]\nmacs={spec.macs // spec.cores}\ncores={spec.cores}\n[vela]\n"
        f"system_config_name={spec.system_config}\nmemory_mode_name={spec.memory_mode}\n{spec.ini.text}\n",
        "options": f"[compiler]\nenable_db=true\noutput_format=Raw\ncop_format={options.cop_format}\n[scheduler]\n"
        f"optimize={setting.optimise}\narena_size_limit={setting.arena}\n"
        f"disable_feature={'|'.join(setting.disabled)}\ncpu_tensor_alignment={options.alignment}\n"
        f"tensor_allocator={options.allocator}\n[graph]\n",
    }


# -- running -------------------------------------------------------------------------------------------------


def run_jobs(jobs: Sequence[Job]) -> list[Raw | str]:
    """Runs the jobs, those of large graphs side by side."""
    children = min(len(jobs), _cpus()) if jobs and len(jobs[0]["tosa"]) > _ALONE_BYTES else 1
    if children == 1:
        return [vela_worker.compile_raw(job) for job in jobs]
    found: list[Raw | str] = []
    for start in range(0, len(jobs), children):
        mine, *others = jobs[start : start + children]
        started = [_start(job) for job in others]
        found.append(vela_worker.compile_raw(mine))
        found.extend(_finish(process) for process in started)
    return found


def run_isolated(jobs: Sequence[Job]) -> list[Raw | str]:
    """Runs each job in a child process, so that a crash of Vela is an error like any other."""
    return [_finish(_start(job)) for job in jobs]


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(job: Job) -> subprocess.Popen[bytes]:
    plain: Any = job
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [sys.executable, "-S", str(Path(vela_worker.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    assert process.stdin is not None  # PIPE was asked for
    try:
        process.stdin.write(marshal.dumps(plain))
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died at once; `_finish` tells
    return process


def _finish(process: subprocess.Popen[bytes]) -> Raw | str:
    assert process.stdout is not None  # PIPE was asked for
    with process.stdout:
        data = process.stdout.read()
    code = process.wait()
    if code:
        return f"Vela crashed ({'signal ' + str(-code) if code < 0 else 'exit code ' + str(code)})"
    outcome: Raw | str = marshal.loads(data)
    return outcome


# -- results -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Graph:
    """What the result is checked against and named after."""

    inputs: list[str]
    outputs: list[str]
    locations: Sequence[str]


def _graph(tosa: bytes, locations: Sequence[str] | None) -> _Graph:
    block = fb_graph.TosaGraph.GetRootAs(tosa, 0).Regions(0).Blocks(0)
    inputs = [block.Inputs(i).decode() for i in range(block.InputsLength())]
    outputs = [block.Outputs(i).decode() for i in range(block.OutputsLength())]
    return _Graph(inputs, outputs, operator_locations(tosa) if locations is None else locations)


def _result(
    raw: Raw, spec: EthosUCompileSpec, setting: Setting, results: dict[Setting, Raw], graph: _Graph
) -> VelaResult:
    problem = _problem(raw, graph)
    if problem:
        raise VelaError(f"Vela's result for {spec.target} cannot be used: {problem}")
    return VelaResult(
        command_stream=raw["command_stream"],
        read_only=raw["read_only"],
        inputs=[_tensor(name, t) for name, t in zip(graph.inputs, raw["inputs"])],
        outputs=[_tensor(name, t) for name, t in zip(graph.outputs, raw["outputs"])],
        scratch_size=raw["scratch"][0],
        scratch_fast_size=raw["scratch_fast"][0],
        sram_bytes=_sram(spec, raw),
        npu_cycles=raw["npu_cycles"],
        total_cycles=raw["total_cycles"],
        macs=raw["macs"],
        weight_bytes=len(raw["read_only"]),
        memories=raw["memories"],
        layers=_layers(raw["perf"], raw["source"], graph.locations),
        settings=str(setting),
        tried={str(s): (cost(r), _sram(spec, r)) for s, r in results.items()},
        decode_cycles=_decode_cycles(raw),
        commands=_commands(raw),
    )


def _problem(raw: Raw, graph: _Graph) -> str:
    """What in a result the runtime would trip over, or ""."""
    if raw["command_stream"][:4] not in (b"COP1", b"COP2"):
        return f"the command stream starts with {raw['command_stream'][:4]!r}, not COP1 or COP2"
    if raw["cpu_ops"]:
        return f"{raw['cpu_ops']} operators are left for the CPU"
    if raw["variables"]:
        return f"it has {raw['variables']} variables, which the runtime does not know"
    for kind, tensors, names in (("input", raw["inputs"], graph.inputs), ("output", raw["outputs"], graph.outputs)):
        if len(tensors) != len(names):
            return f"it has {len(tensors)} {kind}s, the graph has {len(names)}; Vela drops what nothing reads"
        for i, t in enumerate(tensors):
            if t["region"] != SCRATCH_REGION:
                return f"{kind} {i} is in region {t['region']}, not in the scratch buffer"
            if t["address"] < 0 or t["address"] + t["size"] > raw["scratch"][0]:
                return f"{kind} {i} at {t['address']}, {t['size']} bytes, is outside the scratch of {raw['scratch'][0]}"
    return ""


def _tensor(name: str, t: RawTensor) -> VelaTensor:
    return VelaTensor(name, t["shape"], t["element_size"], t["address"], t["region"], t["size"])


def _layers(perf: Table, source: Table, locations: Sequence[str]) -> list[Layer]:
    """Vela's per-operator table. A source row's ``ext_key`` is the operator's index in the flatbuffer."""
    index_of = {row["id"]: int(row["ext_key"]) for row in _rows(source) if row.get("ext_key", "").isdigit()}
    found = []
    for row in _rows(perf):
        index = index_of.get(row["source_id"], -1)
        found.append(
            Layer(
                name=row["name"],
                op=row["operator"],
                location=locations[index] if 0 <= index < len(locations) else "",
                npu_cycles=int(row["npu_cycles"]),
                op_cycles=int(row["op_cycles"]),
                macs=int(row["mac_count"]),
                memory_cycles={k.removesuffix("_ac"): int(v) for k, v in row.items() if k.endswith("_ac")},
            )
        )
    return found


def _commands(raw: Raw) -> tuple[tuple[int, int], ...]:
    """Offset and layer of each operation: row ``scheduled_id`` of the queue is row ``id`` of the layers."""
    index_of = {row["id"]: i for i, row in enumerate(_rows(raw["perf"]))}
    found = [(int(row["offset"]), index_of.get(row["scheduled_id"], -1)) for row in _rows(raw["queue"])]
    return tuple((offset, index) for offset, index in found if index >= 0)


def _rows(table: Table) -> Iterable[dict[str, str]]:
    return (dict(zip(table["header"], row)) for row in table["rows"])


# -- errors --------------------------------------------------------------------------------------------------


def _refused(spec: EthosUCompileSpec, text: str) -> ArmLowerError:
    used = re.search(r"Failed to allocate tensors\. Memory used (\d+), limit (\d+)", text)
    if used and spec.sram_limit is not None:
        return _too_big(spec, int(used[1]))
    if used:
        return VelaError(
            f"Vela could not place the tensors: {used[1]} bytes of {spec.memory.cache} needed, "
            f"{used[2]} allowed by memory mode {spec.memory_mode}",
            "choose a memory mode with a larger arena_cache_size, or pass --arena-cache-size in extra_flags",
        )
    return VelaError(f"Vela refused the graph for {spec.target}: {clean(text)}")


def clean(text: str) -> str:
    """Vela's message on one line, without its own prefixes."""
    lines = [line.strip(" -\t") for line in text.replace("Compilation failed:", "").splitlines()]
    return "; ".join(line.rstrip(".:") for line in lines if line)


def _too_big(spec: EthosUCompileSpec, needed: int) -> ArmLowerError:
    limit = spec.sram_limit or 0
    return ArmLowerError(
        f"sram_limit does not fit: {needed} bytes of SRAM needed, {limit} available, {needed - limit} too many",
        "raise sram_limit, use a smaller input or narrower layers before the largest feature maps"
        + ("" if spec.effort == "max" else ", or try effort='max'"),
    )
