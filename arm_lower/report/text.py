"""The report as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from arm_lower.report.model import Layer, Report

Row = Sequence[object]


def to_text(report: Report, layers: int = 10) -> str:
    """Summary, delegates, CPU operators with reasons, borders, memory, and the ``layers`` most expensive layers."""
    parts = [
        _summary(report),
        _delegates(report),
        _cpu_ops(report),
        _kernels(report),
        _borders(report),
        _memory(report),
        _layers(report, layers),
        _seconds(report),
    ]
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def table(header: Row, rows: Iterable[Row]) -> Iterator[str]:
    """Lines of a table; columns whose values are all numbers are aligned to the right."""
    body = [list(row) for row in rows]
    numeric = [bool(body) and all(isinstance(row[i], (int, float)) for row in body) for i in range(len(header))]
    cells = [[str(h) for h in header], *([_cell(v) for v in row] for row in body)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        padded = (c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True))
        yield "  " + "  ".join(padded).rstrip()


def number(value: int) -> str:
    """``1 234 567``"""
    return f"{value:,}".replace(",", " ")


def _cell(value: object) -> str:
    if isinstance(value, int):
        return number(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _summary(r: Report) -> Iterator[str]:
    yield f"target   {r.target} ({r.system_config}, {r.memory_mode})" if r.target else "target   CPU only"
    yield f"NPU      {len(r.delegates)} delegate(s), {number(r.macs)} MACs"
    if r.delegates:
        yield (
            f"cycles   {number(r.total_cycles)} in all (Vela's estimate), {number(r.npu_cycles)} of computation; "
            f"{number(r.layout_cycles)} only change the layout"
        )
    yield f"CPU      {len(r.cpu_ops)} operator(s) that the NPU did not take"
    yield f"kernels  {sum(r.kernel_calls.values())} call(s) of {len(r.kernel_calls)} kernel(s)"
    yield f"file     {number(r.pte_bytes)} bytes, of them {number(r.weight_bytes)} NPU weights"


def _delegates(r: Report) -> Iterator[str]:
    if not r.delegates:
        return
    yield "Delegates"
    yield from table(
        ("name", "total cycles", "NPU cycles", "MACs", "SRAM", "scratch", "weights", "commands", "Vela setting"),
        (
            (d.name, d.total_cycles, d.npu_cycles, d.macs, d.sram_bytes, d.scratch_bytes, d.weight_bytes,
             d.command_bytes, d.settings)
            for d in r.delegates
        ),
    )  # fmt: skip
    yield from (f"  {d.name} on the NPU model: {d.verified}" for d in r.delegates if d.verified)


def _cpu_ops(r: Report) -> Iterator[str]:
    if not r.cpu_ops:
        return
    yield "On the CPU, and why"
    order = sorted(r.cpu_ops, key=lambda op: (op.reason, op.hint))
    for (reason, hint), group in groupby(order, key=lambda op: (op.reason, op.hint)):
        ops = list(group)
        yield f"  {reason}" + (f"  (try: {hint})" if hint else "")
        for op in ops[:8]:
            yield f"    {op.name}: {op.op}" + (f" in {op.module_path}" if op.module_path else "")
        if len(ops) > 8:
            yield f"    ... and {len(ops) - 8} more"


def _kernels(r: Report) -> Iterator[str]:
    if not r.kernel_calls:
        return
    yield "Kernels that the runtime needs"
    yield from table(("kernel", "calls"), r.kernel_calls.items())


def _borders(r: Report) -> Iterator[str]:
    if not r.borders:
        return
    yield "Borders of the delegates: bytes that the runtime copies, cycles for the layout"
    yield from table(
        ("delegate", "", "tensor", "type", "shape", "bytes", "layout cycles"),
        (
            (b.delegate, b.direction, b.name, b.dtype, "x".join(map(str, b.shape)), b.nbytes, b.layout_cycles)
            for b in r.borders
        ),
    )
    inside = sum(layer.op_cycles for layer in r.layers if layer.layout == "inside")
    if inside:
        yield f"  layout changes inside the delegates: {number(inside)} cycles"


def _memory(r: Report) -> Iterator[str]:
    yield "Memory to provide"
    yield from table(("pool", "bytes", "access", "purpose"), ((p.name, p.nbytes, p.access, p.purpose) for p in r.pools))
    for a in r.arenas:
        gap = f"{a.nbytes / a.lower_bound - 1:.1%} above it" if a.lower_bound else "empty"
        yield f"  arena of {a.method}: lower bound {number(a.lower_bound)}, {gap}"


def _layers(r: Report, count: int) -> Iterator[str]:
    if not r.layers or count < 1:
        return
    top = sorted(r.layers, key=lambda layer: -layer.op_cycles)[:count]
    yield f"Most expensive layers ({len(top)} of {len(r.layers)})"
    yield from table(("cycles", "%", "MACs", "operator", "module", "from"), (_layer(r, layer) for layer in top))


def _layer(r: Report, layer: Layer) -> Row:
    share = 100.0 * layer.op_cycles / r.total_cycles if r.total_cycles else 0.0
    origin = layer.torch_op + (f" (layout, {layer.layout})" if layer.layout else "")
    return layer.op_cycles, share, layer.macs, layer.op, layer.module_path or "(model)", origin


def _seconds(r: Report) -> Iterator[str]:
    if not r.seconds:
        return
    yield "Seconds"
    yield from table(("stage", "s"), [*r.seconds.items(), ("total", float(sum(r.seconds.values())))])
