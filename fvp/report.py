"""The result of a run as text for people."""

from __future__ import annotations

from fvp.runner import NPU_EVENTS, OpCount, RunResult

_FUNCTIONS = 20


def to_text(result: RunResult) -> str:
    """Placement, counts of each kernel and delegate, memory and stack in use."""
    lines = []
    if result.firmware is not None:
        lines += [str(result.firmware), ""]
    lines += [*_ops(result), *_functions(result), ""]
    runs = max(1, len(result.samples))
    if result.npu:
        how = {"registers": f"the NPU (ID {result.npu_id:#010x})", "host": "the NPU model on the host"}
        lines.append(f"delegates ran on {how.get(result.npu, result.npu)}")
    lines += _counters(result)
    lines.append(f"stack: {result.stack_used:,} of {result.stack_size:,} bytes used")
    lines.append(f"{runs} execution(s) in {result.wall_seconds:.2f} s of wall time")
    return "\n".join(lines) + "\n"


def _ops(result: RunResult) -> list[str]:
    """By kernel name, most expensive first: instructions in QEMU, cycles on an FVP."""
    cycles = any(op.cycles for op in result.ops)
    unit = "cycles" if cycles else "instructions"
    total: dict[str, list[int]] = {}
    for op in result.ops:
        row = total.setdefault(op.name, [0, 0, 0])
        row[0] += op.calls
        row[1] += _cost(op, cycles)
        row[2] += op.npu_cycles
    npu = any(row[2] for row in total.values())
    lines = [f"{unit:>14} {'calls':>6}  " + (f"{'NPU cycles':>12}  " if npu else "") + "kernel"]
    for name, (calls, cost, on_npu) in sorted(total.items(), key=lambda item: (-item[1][1], item[0])):
        lines.append(f"{cost:14,} {calls:6,}  " + (f"{on_npu:12,}  " if npu else "") + name)
    whole = sum(result.cycles if cycles else result.instructions)
    return [*lines, f"{whole:14,}         in all, with the loader's work between kernels"]


def _counters(result: RunResult) -> list[str]:
    """Of the NPU, where there is one."""
    counted = {name.replace("_", " "): result.pmu[name] for name in NPU_EVENTS if result.pmu[name]}
    return ["NPU: " + ", ".join(f"{count:,} {name}" for name, count in counted.items())] if counted else []


def _cost(op: OpCount, cycles: bool) -> int:
    return op.cycles if cycles else op.instructions


def _functions(result: RunResult) -> list[str]:
    if not result.functions:
        return []
    lines = ["", f"{'instructions':>14}  function (whole program, start-up and console included)"]
    rows = list(result.functions.items())
    lines += [f"{count:14,}  {name}" for name, count in rows[:_FUNCTIONS]]
    rest = sum(count for _, count in rows[_FUNCTIONS:])
    return lines + ([f"{rest:14,}  {len(rows) - _FUNCTIONS} others"] if rest else [])
