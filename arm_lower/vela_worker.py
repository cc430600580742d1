"""Runs Vela's compiler core (ethosu.regor) on plain data: in this process, or as a child process.

``regor`` holds Python's global lock for the whole compile, so threads cannot run two compiles at once; children can.
A child runs this file as a script. It therefore imports nothing of arm-lower, which would cost more than most
compiles; the parent gives it the module search path. Everything that passes between the two is plain dicts,
tuples, strings, bytes and ints.
"""

from __future__ import annotations

import marshal
import os
import sys
from typing import Any, TypedDict


class Job(TypedDict):
    """Arguments of ``ethosu.regor.compile``."""

    arch: str
    tosa: bytes
    system: str
    options: str


class RawTensor(TypedDict):
    """A graph input or output: where in its region it lies, in bytes."""

    shape: tuple[int, ...]
    element_size: int
    address: int
    region: int
    size: int


class Table(TypedDict):
    """A table of Vela's debug database."""

    header: list[str]
    rows: list[list[str]]


class Raw(TypedDict):
    """A ``CompiledRawModel``, copied. ``scratch`` and ``scratch_fast`` are (bytes, region); ``queue`` is the table of
    commands, ``decode`` that of the cycles that U85's weight decoder needs for each operator."""

    command_stream: bytes
    read_only: bytes
    scratch: tuple[int, int]
    scratch_fast: tuple[int, int]
    inputs: list[RawTensor]
    outputs: list[RawTensor]
    variables: int
    npu_cycles: int
    total_cycles: int
    macs: int
    encoded_weights: int
    cpu_ops: int
    memories: dict[str, int]
    perf: Table
    source: Table
    queue: Table
    decode: Table


def compile_raw(job: Job) -> Raw | str:
    """One compile. What Vela refuses is a result, not an exception: Vela's own text."""
    from ethosu import regor

    try:
        model: Any = regor.compile(job["arch"], job["tosa"], "TOSA", job["system"], job["options"], False)
    except (RuntimeError, ValueError, LookupError, ArithmeticError, MemoryError) as error:
        return str(error) or f"{type(error).__name__} in Vela"
    report = model.perf_report
    tables = model.opt_database.tables
    return {
        "command_stream": bytes(model.command_stream),
        "read_only": bytes(model.read_only.data),
        "scratch": (int(model.scratch.size), int(model.scratch.region)),
        "scratch_fast": (int(model.scratch_fast.size), int(model.scratch_fast.region)),
        "inputs": [_tensor(t) for t in model.inputs],
        "outputs": [_tensor(t) for t in model.outputs],
        "variables": len(model.variables),
        "npu_cycles": int(report.npuCycles),
        "total_cycles": int(report.totalCycles),
        "macs": int(report.macCount),
        "encoded_weights": int(report.encodedWeights),
        "cpu_ops": int(report.cpuOps),
        "memories": {str(name): int(m.peakUsage) for name, m in report.memories.items()},
        "perf": _table(tables, "perf"),
        "source": _table(tables, "source"),
        "queue": _table(tables, "queue"),
        "decode": _table(tables, "perf_debug_wd"),
    }


def _tensor(t: Any) -> RawTensor:
    return {
        "shape": tuple(int(n) for n in t.shape),
        "element_size": int(t.element_size),
        "address": int(t.address),
        "region": int(t.region),
        "size": int(t.size),
    }


def _table(tables: Any, name: str) -> Table:
    if name not in tables:
        return {"header": [], "rows": []}
    return {"header": [str(c) for c in tables[name].header], "rows": [[str(c) for c in r] for r in tables[name].data]}


def serve() -> None:
    """Reads one marshalled job from standard input and writes its marshalled result to standard output."""
    out = os.dup(1)
    os.dup2(2, 1)  # whatever Vela prints must not get between the bytes of the result
    result: Any = compile_raw(marshal.loads(sys.stdin.buffer.read()))
    with os.fdopen(out, "wb") as stream:
        stream.write(marshal.dumps(result))


if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file: its modules must not hide top-level ones
    serve()
