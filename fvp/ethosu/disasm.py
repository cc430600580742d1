"""A readable listing of a command stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fvp.ethosu.decode import Stream
from fvp.ethosu.memory import region_name
from fvp.ethosu.task import Task, Tensor, build
from fvp.ethosu.trace import Source


def _tensor(role: str, x: Tensor) -> str:
    h, w, c = x.fm.shape
    kind = f"{'s' if x.fm.signed else 'u'}{x.fm.bits}"
    zp = f" zp {x.zp}" if x.zp else ""
    if x.where == "scalar":
        return f"{role} {kind} scalar {x.value}{zp}"
    if x.where != "memory":
        place = f"chain buffer {x.value}" if x.where == "chain" else "accumulator"
        return f"{role} {kind} {h}x{w}x{c} in {place}{zp}"
    lo, hi = min(s[0] for s in x.fm.spans()), max(s[1] for s in x.fm.spans())
    tiles = f" in {len(list(x.fm.parts()))} tiles" if len(list(x.fm.parts())) > 1 else ""
    layout = "NHCWB16" if x.fm.brick else "NHWC"
    return f"{role} {kind} {h}x{w}x{c} {layout} at {region_name(x.fm.region)}+{lo:#x} ({hi - lo} bytes){tiles}{zp}"


def _details(t: Task) -> Iterator[str]:
    for role, x in (("IFM", t.ifm), ("IFM2", t.ifm2), ("OFM", t.ofm)):
        if x is not None:
            yield _tensor(role, x)
    w = t.window
    if w is not None:
        pad = f" pad {w.pad[0]},{w.pad[1]},{w.pad[2]},{w.pad[3]}" if any(w.pad) else ""
        dilation = f" dilation {w.dilation[0]}x{w.dilation[1]}" if w.dilation != (1, 1) else ""
        up = f" upscale {t.upscale}" if t.upscale != "NONE" else ""
        yield f"kernel {w.size[0]}x{w.size[1]} stride {w.stride[0]}x{w.stride[1]}{dilation}{pad}{up}"
    if t.weights is not None:
        for k, (at, n) in enumerate(t.weights.streams):
            kind = "FWD" if t.weights.fast else "SWD"
            yield f"weights {k} {kind} at {region_name(t.weights.region)}+{at:#x} ({n} bytes)"
        for k, (at, n) in enumerate(t.weights.scale_streams):
            yield f"scales {k} at {region_name(t.weights.scale_region)}+{at:#x} ({n} bytes)"
    if t.dma:
        d = t.dma
        ends = ("LUT" if d[f"{x}_internal"] else region_name(d[f"{x}_region"]) for x in ("src", "dst"))
        source, target = ends
        times = f" x {d['n0']} x {d['n1']}" if d["n0"] * d["n1"] > 1 else ""
        index = ("", " gathered", " scattered")[d["index"]]
        yield f"{source}+{d['src']:#x} -> {target}+{d['dst']:#x} ({d['len']} bytes{times}{index})"
        return
    if not t.per_channel and (t.scaling.scale, t.scaling.shift) != (1, 0):
        yield f"scale {t.scaling.scale} >> {t.scaling.shift} {t.scaling.mode}"
    a = t.activation
    if a.lo is not None:
        yield f"clamp {a.lo}..{a.hi}"
    if a.table:
        yield f"table {a.table} at LUT+{a.at:#x}"
    if t.transpose != "HWC":
        yield f"stored as {t.transpose}"
    if t.reverse != "NONE":
        yield f"reversed in {t.reverse}"


def listing(stream: Stream, layers: Mapping[int, Source] | None = None, registers: bool = False) -> str:
    """The stream as text: driver actions, then each operation with its operands, addresses and sizes.

    Args:
        stream: The decoded payload.
        layers: Names and PyTorch locations, from `fvp.ethosu.trace.sources`.
        registers: Also every register write.
    """
    lines = [f"{stream.arch.name}"]
    lines += [f"{at:#08x} {text}" for at, text in stream.actions]
    tasks = {t.offset: t for t in build(stream) if isinstance(t, Task)}
    known = layers or {}
    for cmd in stream.commands:
        if not cmd.is_op:
            if registers:
                lines.append(f"{cmd.offset:#08x}   {cmd}")
            continue
        source = known.get(cmd.offset)
        who = f"  ; {source.name} {source.location}".rstrip() if source else ""
        lines.append(f"{cmd.offset:#08x} {cmd}{who}")
        if cmd.offset in tasks:
            lines += [f"           {text}" for text in _details(tasks[cmd.offset])]
    return "\n".join(lines) + "\n"
