"""What Vela 5.2 compiles without complaint to a command stream that computes something else, and how to avoid it.

`avoid` runs after every other rewrite. Each `Fault` finds its pattern in a graph and says between which two operators
something has to stand that Vela neither removes nor looks through: a CLAMP to the whole range of the type (Vela fuses
it, so it is nearly always free), or an average pool of 1 x 1, and in int32 the sum with 0 or the maximum of the tensor
and itself. All keep every bit. A graph without such a pattern stays as it is.

All but a few faults have one cause: Vela replaces SLICE, CONCAT, PAD and TILE by an offset of the operator beside
them, and that operator is later replaced by others without the offset. ``tests/fvp/ethosu/test_npu_faults.py`` holds
each raw pattern against the NPU model: a fault that Vela has mended fails there, so that its row can go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from arm_lower.errors import Unsupported
from arm_lower.targets.rules import is_wide_average
from arm_lower.tosa.ir import Attr, DType, Graph, Op, Tensor
from arm_lower.tosa.spec import infer

OLD, NEW = ("u55", "u65"), ("u85",)
ALL = OLD + NEW

_TURNS = frozenset({"TRANSPOSE", "REVERSE"})
_JOINS = frozenset({"CONCAT", "PAD"})
_WRITTEN_IN_PARTS = _JOINS | {"TILE"}
_PIECES = _WRITTEN_IN_PARTS | {"SLICE"}
_ACTIVATIONS = frozenset({"TABLE", "CLAMP"})
_CONVOLUTIONS = frozenset({"CONV2D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D"})
_WINDOWS = _CONVOLUTIONS | {"AVG_POOL2D", "MAX_POOL2D"}
_SUMS = _CONVOLUTIONS | {"MATMUL", "REDUCE_SUM"}
_EXTREMA = frozenset({"REDUCE_MAX", "REDUCE_MIN"})
_POINTWISE = _ACTIVATIONS | {"RESCALE"}
_FUSING = frozenset({"ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM"})
_ELEMENTWISE = _FUSING | {
    *("ABS", "CLZ", "SELECT", "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT", "INTDIV"),
    *("BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "BITWISE_NOT", "EQUAL", "GREATER", "GREATER_EQUAL"),
    *("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "LOGICAL_NOT"),
}


def is_view(op: Op) -> bool:
    """An operator that keeps every byte in place; a TRANSPOSE that moves only axes of size 1 is one."""
    if op.kind != "TRANSPOSE":
        return op.kind in ("RESHAPE", "IDENTITY")
    moved = [a for a in op.integers("perms") if op.inputs[0].shape[a] != 1]
    return moved == sorted(moved)


@dataclass(frozen=True, eq=False)
class Edge:
    """A tensor on its way to one of its readers."""

    tensor: Tensor
    reader: Op


class View:
    """A graph with makers and readers at hand.

    Attributes:
        kept: The operators that `avoid` has put in.
    """

    def __init__(self, graph: Graph, kept: Collection[Op] = ()) -> None:
        self.graph = graph
        self.kept = kept
        self.makers = graph.producers()
        self.readers = graph.consumers()

    def maker(self, t: Tensor, through: frozenset[str] = frozenset()) -> Op | None:
        """The operator that makes ``t``, seen through views and operators of the kinds ``through``."""
        op = self.makers.get(t)
        while op is not None and (is_view(op) or op.kind in through):
            op = self.makers.get(op.inputs[0])
        return op

    def only_reader(self, t: Tensor) -> Op | None:
        """The one operator that reads ``t``; None if there are more, or ``t`` is an output of the graph."""
        readers = self.readers.get(t, [])
        return readers[0] if len(readers) == 1 and t not in self.graph.outputs else None

    def next(self, t: Tensor) -> Op | None:
        """The only reader of ``t``, seen through views."""
        op = self.only_reader(t)
        while op is not None and is_view(op):
            op = self.only_reader(op.output)
        return op

    def edge(self, t: Tensor, op: Op) -> Edge:
        """The first edge after the operator, not a view, that makes ``t``, which ``op`` reads."""
        maker = self.makers.get(t)
        while maker is not None and is_view(maker):
            op, t = maker, maker.inputs[0]
            maker = self.makers.get(t)
        return Edge(t, op)


Match = Callable[[View, Op], Iterator[Edge]]


@dataclass(frozen=True)
class Fault:
    """One way in which Vela 5.2 goes wrong.

    Attributes:
        name: What happens, for messages and tests.
        where: Families, or accelerators like ``u55-32``.
        find: Yields, for an operator of the graph, the edges on which something must stand.
        remedy: What must stand there: ``clamp``, ``pool``, or ``none`` if nothing helps.
    """

    name: str
    where: tuple[str, ...]
    find: Match
    remedy: Literal["clamp", "pool", "none"] = "clamp"


class Miscompiled(Unsupported):
    """A fault that cannot be avoided.

    Attributes:
        op: The operator that Vela would compile wrongly.
    """

    def __init__(self, fault: Fault, op: Op) -> None:
        super().__init__(f"Vela 5.2 would miscompile {op.kind}: {fault.name}", "compute it on the CPU")
        self.op = op


def avoid(graph: Graph, accelerator: str) -> list[str]:
    """Puts into ``graph``, which is changed, what keeps Vela from miscompiling it.

    Args:
        graph: In its final form.
        accelerator: ``u55-128``.

    Returns:
        The names of the faults that were avoided, one for each change.

    Raises:
        Miscompiled: A fault that cannot be avoided.
    """
    family = accelerator.partition("-")[0]
    faults = [f for f in FAULTS if family in f.where or accelerator in f.where]
    done: list[str] = []
    kept: set[Op] = set()
    limit = 4 * len(graph.ops) + 16  # what is inserted may make another pattern, but not for ever
    while True:
        view = View(graph, kept)
        found = next(((f, e) for op in graph.ops for f in faults for e in f.find(view, op)), None)
        if found is None:
            return done
        fault, edge = found
        if fault.remedy == "none" or len(done) > limit:
            raise Miscompiled(fault, edge.reader)
        kept.update(_insert(graph, edge, fault, view, len(done)))
        done.append(fault.name)


def _insert(graph: Graph, edge: Edge, fault: Fault, view: View, number: int) -> list[Op]:
    """New operators on ``edge`` that give its input back."""
    x = edge.tensor
    maker = view.makers.get(x)
    location = edge.reader.location if maker is None else maker.location
    added: list[Op] = []

    def op(kind: str, *inputs: Tensor, **attrs: Attr) -> Tensor:
        ((shape, dtype),) = infer(kind, list(inputs), attrs)
        out = Tensor(f"{x.name}.kept{number}" + (f".{len(added)}" if added else ""), shape, dtype)
        added.append(Op(kind, list(inputs), [out], attrs, location))
        return out

    if x.dtype is DType.INT32 and maker is not None and maker.kind in _PIECES:
        zero = np.zeros((1,) * len(x.shape), np.int32)
        y = op("ADD", x, Tensor(f"{x.name}.zero{number}", zero.shape, x.dtype, zero))
    elif x.dtype is DType.INT32:
        y = op("MAXIMUM", x, x)
    elif x.dtype not in (DType.INT8, DType.INT16):
        raise Miscompiled(fault, edge.reader)
    elif fault.remedy == "clamp":
        y = op("CLAMP", x, min=x.dtype.range[0], max=x.dtype.range[1])
    else:
        flat = len(x.shape) != 4
        channels = x.shape[-1] if x.shape else 1
        y = op("RESHAPE", x, shape=(1, 1, x.size // channels, channels)) if flat else x
        y = op("AVG_POOL2D", y, kernel=(1, 1), stride=(1, 1), pad=(0, 0, 0, 0), acc_type="int32", input_zp=0,
               output_zp=0)
        y = op("RESHAPE", y, shape=x.shape) if flat else y
    at = graph.ops.index(edge.reader)
    graph.ops[at:at] = added
    edge.reader.inputs = [y if t is x else t for t in edge.reader.inputs]
    return added


# -- what is known of an operator ------------------------------------------------------------------------------


def _factor(rescale: Op) -> float:
    """The largest factor of a RESCALE."""
    return max(m * 2.0**-s for m, s in zip(rescale.integers("multiplier"), rescale.integers("shift")))


def _wide(op: Op) -> bool:
    """A RESCALE from or to int32."""
    return op.kind == "RESCALE" and DType.INT32 in (op.inputs[0].dtype, op.output.dtype)


def _narrowing_from(view: View, op: Op) -> list[Op] | None:
    """The RESCALEs of narrow tensors, all of one type, that are the inputs of a binary operator and nothing else's;
    None if any input is something else."""
    found = []
    for t in op.inputs:
        maker = view.makers.get(t)
        if maker is None or maker.kind != "RESCALE" or view.only_reader(t) is not op or maker.attrs["per_channel"]:
            return None
        found.append(maker)
    types = {r.inputs[0].dtype for r in found}
    return found if len(types) == 1 and types <= {DType.INT8, DType.INT16} else None


def _takes_inputs(view: View, op: Op) -> bool:
    """Whether an operator of Ethos-U55 or U65 absorbs the RESCALEs to int32 in front of it."""
    if op.kind not in _FUSING:
        return False
    rescales = _narrowing_from(view, op)
    if rescales is None:
        return False
    factors = [_factor(r) for r in rescales]
    if op.kind not in ("ADD", "SUB") or factors == [1.0, 1.0]:
        return factors == [1.0] * len(factors)
    after = view.next(op.output)
    if after is None or after.kind != "RESCALE" or after.output.dtype is DType.INT32:
        return False
    top = 2.0**19 if rescales[0].inputs[0].dtype is DType.INT8 else 2.0**14
    whole = all(f == int(f) and f < 1 << 15 for f in factors)
    return whole or (max(factors) == top and factors[0] != factors[1])


def _joins_reader(view: View, rescale: Op) -> bool:
    """Whether Ethos-U55 or U65 does this RESCALE within the operator that reads it."""
    reader = view.only_reader(rescale.output)
    if reader is None:
        return False
    return _takes_inputs(view, reader) or (reader.kind == "REDUCE_SUM" and _factor(rescale) == 1.0)


def _joins_maker(view: View, rescale: Op) -> bool:
    """Whether Ethos-U55 or U65 does this RESCALE within the operator that makes its input."""
    maker = view.maker(rescale.inputs[0])
    if maker is None or view.next(maker.output) is not rescale:
        return False
    if maker.kind in _CONVOLUTIONS:
        return True
    if rescale.attrs["per_channel"]:
        return False
    if maker.kind in _SUMS:
        return True
    return _takes_inputs(view, maker) and (maker.kind not in ("MAXIMUM", "MINIMUM") or _factor(rescale) == 1.0)


def _is_multiplication(view: View, op: Op) -> bool:
    """A RESCALE that Ethos-U55 and U65 do as an elementwise multiplication."""
    return _wide(op) and not _joins_reader(view, op) and not _joins_maker(view, op)


def _batched(op: Op) -> bool:
    """Whether there are axes before the last three that are not 1."""
    return op.inputs[0].size != int(np.prod(op.inputs[0].shape[-3:]))


def _along_width(op: Op) -> bool:
    return op.integer("axis") == len(op.inputs[0].shape) - 2


def _along_channels(op: Op) -> bool:
    return op.integer("axis") == len(op.inputs[0].shape) - 1


def _source(view: View, t: Tensor, reader: Op) -> tuple[Op | None, Edge]:
    """The maker of ``t``, seen through views and RESCALEs by 1, and the edge behind it."""
    edge = view.edge(t, reader)
    maker = view.makers.get(edge.tensor)
    while maker is not None and maker.kind == "RESCALE" and _factor(maker) == 1.0:
        edge = view.edge(maker.inputs[0], maker)
        maker = view.makers.get(edge.tensor)
    return maker, edge


# -- the patterns ----------------------------------------------------------------------------------------------


def _of_slice(view: View, op: Op, operands: int = 1) -> Iterator[Edge]:
    """The edge behind each SLICE that ``op`` reads."""
    for t in op.inputs[:operands]:
        maker, edge = _source(view, t, op)
        if maker is not None and maker.kind == "SLICE":
            yield edge


def _into_part(view: View, op: Op) -> Iterator[Edge]:
    """The edge behind ``op``, and behind a RESCALE that follows it, on the way to a CONCAT or PAD."""
    reader = view.next(op.output)
    if reader is not None and reader.kind == "RESCALE":
        op, reader = reader, view.next(reader.output)
    if reader is not None and reader.kind in _JOINS:
        first = view.only_reader(op.output)
        if first is not None:
            yield Edge(op.output, first)


def _behind_rescales(view: View, op: Op) -> tuple[Op | None, Edge]:
    """What makes the input of ``op``, seen through RESCALEs, which Vela may join, and the edge behind it."""
    edge = view.edge(op.inputs[0], op)
    while (maker := view.makers.get(edge.tensor)) is not None and maker.kind == "RESCALE":
        edge = view.edge(maker.inputs[0], maker)
    return maker, edge


def _multiplied_piece(view: View, op: Op) -> Iterator[Edge]:
    if _is_multiplication(view, op):
        maker, edge = _behind_rescales(view, op)
        if maker is not None and maker.kind in _PIECES:
            yield edge


def _multiplied_part(view: View, op: Op) -> Iterator[Edge]:
    if _is_multiplication(view, op):
        reader, first = view.next(op.output), view.only_reader(op.output)
        if reader is not None and first is not None and reader.kind in _JOINS:
            yield Edge(op.output, first)


def _between_parts(view: View, op: Op) -> Iterator[Edge]:
    if op.kind != "RESCALE":
        return
    (maker, edge), reader = _behind_rescales(view, op), view.next(op.output)
    if maker is not None and maker.kind in _WRITTEN_IN_PARTS and reader is not None:
        if reader.kind in _WRITTEN_IN_PARTS:
            yield edge


def _channels_in_parts(view: View, op: Op) -> Iterator[Edge]:
    if op.kind != "RESCALE" or not op.attrs["per_channel"]:
        return
    maker, edge = _behind_rescales(view, op)
    if maker is None or maker.kind not in _WRITTEN_IN_PARTS:
        return
    sizes = {t.shape[-1] for t in maker.inputs if t.shape} | {op.output.shape[-1]}
    if len(sizes) > 1 or edge.reader is not op:
        yield edge


def _sliced_old(view: View, op: Op) -> Iterator[Edge]:
    summed = op.kind == "REDUCE_SUM" and _along_channels(op)
    batched = op.kind in (_WINDOWS | {"REDUCE_SUM"}) and _batched(op)
    if op.kind in _EXTREMA or summed or batched or op.kind in ("MATMUL", "TRANSPOSE_CONV2D"):
        yield from _of_slice(view, op)


def _sliced_new(view: View, op: Op) -> Iterator[Edge]:
    reduced = op.kind in (_EXTREMA | {"REDUCE_SUM"}) and _along_channels(op)
    batched = op.kind in (_WINDOWS | _EXTREMA | {"REDUCE_SUM"}) and _batched(op)
    if reduced or batched or op.kind == "TRANSPOSE_CONV2D":
        yield from _of_slice(view, op)


def _part_old(view: View, op: Op) -> Iterator[Edge]:
    if op.kind in ("MATMUL", "TRANSPOSE_CONV2D") or (op.kind == "REDUCE_MAX" and not _along_width(op)):
        yield from _into_part(view, op)


def _part_new(view: View, op: Op) -> Iterator[Edge]:
    if op.kind in _EXTREMA and _along_channels(op):
        yield from _into_part(view, op)


def _is_split(op: Op) -> bool:
    """Whether Vela makes several operators, each with a slice of its own, of a convolution or average pool."""
    if op.kind == "AVG_POOL2D":
        return is_wide_average(op)
    if op.kind not in ("CONV2D", "DEPTHWISE_CONV2D"):
        return False
    return max(op.integers("dilation")) > 2 or (max(op.integers("stride")) > 3 and any(op.integers("pad")))


def _split_slice(view: View, op: Op) -> Iterator[Edge]:
    if _is_split(op):
        yield from _of_slice(view, op)


def _split_part(view: View, op: Op) -> Iterator[Edge]:
    if op.kind == "AVG_POOL2D" and _is_split(op):
        yield from _into_part(view, op)


def _split_turned(view: View, op: Op) -> Iterator[Edge]:
    if op.kind != "TRANSPOSE" or view.makers.get(op.inputs[0]) in view.kept:
        return
    maker = view.maker(op.inputs[0], _POINTWISE)
    if maker is not None and _is_split(maker) and maker.output.shape[2] == 1:
        yield Edge(op.inputs[0], op)


def _chained_part(view: View, op: Op) -> Iterator[Edge]:
    if op.kind not in _ELEMENTWISE or op in view.kept:
        return
    makers = [view.maker(t) for t in op.inputs]
    if any(m is not None and _starts_chain(view, m, op) for m in makers):
        yield from _into_part(view, op)


def _starts_chain(view: View, maker: Op, reader: Op) -> bool:
    """A RESCALE of several readers becomes one for each of them."""
    return maker.kind == "RESCALE" or (maker.kind not in _PIECES | _TURNS and view.next(maker.output) is reader)


def _minimum_reshaped(view: View, op: Op) -> Iterator[Edge]:
    if op.kind == "REDUCE_MIN":
        yield from (Edge(op.output, r) for r in view.readers.get(op.output, []) if r.kind in ("RESHAPE", "TRANSPOSE"))


def _minimum_beside_reshape(view: View, op: Op) -> Iterator[Edge]:
    t, through = op.inputs[0], op
    while op.kind == "REDUCE_MIN":
        if any(is_view(r) and r is not through for r in view.readers.get(t, [])):
            yield Edge(op.inputs[0], op)
            return
        maker = view.makers.get(t)
        if maker is None or not is_view(maker):
            return
        t, through = maker.inputs[0], maker


def _unequal_integers(view: View, op: Op) -> Iterator[Edge]:
    rescales = _narrowing_from(view, op) if op.kind in ("ADD", "SUB") else None
    if rescales is None:
        return
    factors = [_factor(r) for r in rescales]
    if factors[0] != factors[1] and all(f == int(f) and f < 1 << 15 for f in factors):
        yield Edge(op.inputs[1], op)


def _matmul_channels(view: View, op: Op) -> Iterator[Edge]:
    if op.kind != "RESCALE" or not op.attrs["per_channel"]:
        return
    maker = view.maker(op.inputs[0], _TURNS | {"RESCALE"})
    if maker is not None and maker.kind == "MATMUL":
        yield Edge(op.inputs[0], op)


def _reshaped_channels(view: View, op: Op) -> Iterator[Edge]:
    if op.kind != "RESCALE" or not op.attrs["per_channel"]:
        return
    maker = view.maker(op.inputs[0])
    if maker is not None and maker.kind in _CONVOLUTIONS and maker.output.shape[-1] != op.output.shape[-1]:
        yield Edge(op.inputs[0], op)


def _turned_part(view: View, op: Op) -> Iterator[Edge]:
    if op.kind in _ACTIVATIONS:
        maker = view.maker(op.inputs[0])
        if maker is not None and maker.kind == "TRANSPOSE":
            yield from _into_part(view, op)


def _reshaped_reduction(view: View, op: Op) -> Iterator[Edge]:
    if op.kind in _EXTREMA | {"ARGMAX"} and _along_channels(op):
        maker = view.maker(op.inputs[0])
        if maker is not None and maker.output is not op.inputs[0] and maker.output.shape[-1:] == (1,):
            yield Edge(op.inputs[0], op)
            return
        maker = view.maker(op.inputs[0], frozenset({"RESCALE"}))
        if maker is not None and maker.kind == "REDUCE_SUM" and not _along_channels(maker):
            yield Edge(op.inputs[0], op)  # Vela turns such a sum into one over channels
            return
        maker = view.makers.get(op.inputs[0])
        while maker is not None and (is_view(maker) or maker.kind in _TURNS | _POINTWISE):
            if maker.kind not in _POINTWISE and maker.inputs[0].shape[-1:] == (1,):
                yield Edge(op.inputs[0], op)
                return
            maker = view.makers.get(maker.inputs[0])


def _two_activations(view: View, op: Op) -> Iterator[Edge]:
    """Only the edge right behind the last TRANSPOSE or REVERSE."""
    if op.kind not in _ACTIVATIONS:
        return
    t, reader, place = op.inputs[0], op, None
    while (maker := view.makers.get(t)) is not None and (is_view(maker) or maker.kind in _TURNS):
        if not is_view(maker) and place is None:
            place = Edge(t, reader)
        t, reader = maker.inputs[0], maker
    if maker is not None and maker.kind == "RESCALE":
        maker = view.maker(maker.inputs[0])  # of a TABLE of int16
    if place is not None and maker is not None and maker.kind in _ACTIVATIONS:
        yield place


def _shared_behind_reshape(view: View, op: Op) -> Iterator[Edge]:
    if op.kind != "RESCALE":
        return
    t, first = op.output, view.only_reader(op.output)
    while (reader := view.only_reader(t)) is not None and is_view(reader):
        t = reader.output
    readers = view.readers.get(t, [])
    kinds = _ELEMENTWISE | _EXTREMA | {"RESCALE"}
    if first is not None and t is not op.output and len(readers) > 1 and all(r.kind in kinds for r in readers):
        yield Edge(op.output, first)


def _shared_behind_slice(view: View, op: Op) -> Iterator[Edge]:
    if op.kind != "RESCALE":
        return
    maker = view.maker(op.inputs[0])
    transposed = maker is not None and maker.kind == "TRANSPOSE_CONV2D"
    if _joins_maker(view, op) and not transposed:
        return
    if op.inputs[0].dtype is op.output.dtype and not op.attrs["per_channel"]:
        return
    first = view.readers.get(op.output, [])
    slices, found, ends = 0, list(first), 0
    while found:
        reader = found.pop()
        slices += reader.kind == "SLICE"
        if reader.kind == "SLICE" or is_view(reader):
            found += view.readers.get(reader.output, [])
        else:
            ends += 1
    if slices and ends > 1:
        yield from (Edge(op.output, r) for r in first if r not in view.kept)


def _chain_of_slices(view: View, op: Op) -> Iterator[Edge]:
    if op.kind not in ("ABS", "CLZ"):
        return
    edge = view.edge(op.inputs[0], op)
    maker = view.makers.get(edge.tensor)
    source = view.maker(maker.inputs[0]) if maker is not None and maker.kind == "SLICE" else None
    first = view.maker(source.inputs[0]) if source is not None and source.kind == "RESCALE" else None
    if first is not None and first.kind == "SLICE":
        yield edge


def _cascaded_slice(view: View, op: Op) -> Iterator[Edge]:
    if op.kind not in _ELEMENTWISE or op.output.dtype is not DType.INT32:
        return
    for t in op.inputs:
        edge = view.edge(t, op)
        maker = view.makers.get(edge.tensor)
        if maker is None or maker.kind != "SLICE" or not any(maker.integers("start")[:-2]):
            continue
        source = view.maker(maker.inputs[0])
        if source is not None and (
            source.kind in _ELEMENTWISE or (source.kind == "RESCALE" and not _joins_maker(view, source))
        ):
            yield edge


def _table_of_transpose(view: View, op: Op) -> Iterator[Edge]:
    if op.kind == "TABLE":
        edge = view.edge(op.inputs[0], op)
        maker = view.makers.get(edge.tensor)
        if maker is not None and maker.kind == "TRANSPOSE":
            yield edge


def _widened(view: View, op: Op) -> Iterator[Edge]:
    if op.kind != "RESCALE" or op.output.dtype.bits <= op.inputs[0].dtype.bits or _factor(op) <= 1.0:
        return
    reader = view.only_reader(op.output)
    if reader is not None and reader.kind in ("ADD", "SUB") and _narrowing_from(view, reader) is not None:
        return  # it is done within the addition
    makers = [view.maker(op.inputs[0])]
    while makers:
        maker = makers.pop()
        if maker is not None and maker.kind in _WRITTEN_IN_PARTS:  # the RESCALE is done for each part
            makers += [view.maker(t) for t in maker.inputs]
        elif maker is not None and (
            maker.kind in _EXTREMA | {"MAX_POOL2D"} or (maker.kind == "RESCALE" and _factor(maker) == 1.0)
        ):
            yield view.edge(op.inputs[0], op)
            return


FAULTS = (
    Fault("an int32 RESCALE becomes a multiplication of the whole tensor instead of the piece", OLD, _multiplied_piece),
    Fault("an int32 RESCALE becomes a multiplication that writes beside its part", OLD, _multiplied_part),
    Fault("a RESCALE between two tensors written in parts loses an offset", ALL, _between_parts),
    Fault("each part of a tensor takes the RESCALE multipliers of the first channels", ALL, _channels_in_parts),
    Fault("the operator reads the whole tensor instead of its slice", OLD, _sliced_old),
    Fault("the operator reads the whole tensor instead of its slice", NEW, _sliced_new),
    Fault("the operator writes the whole tensor instead of its part", OLD, _part_old),
    Fault("the operator writes the whole tensor instead of its part", NEW, _part_new),
    Fault("the parts of a large convolution or pool read the whole tensor instead of its slice", ALL, _split_slice),
    Fault("the parts of a large average pool write beside the part they belong to", NEW, _split_part),
    Fault("the parts of a large convolution of one column are written without the TRANSPOSE behind it", NEW,
          _split_turned, remedy="pool"),
    Fault("the end of a chain is written without the strides of the tensor it is a part of", NEW, _chained_part),
    Fault("the last step of a REDUCE_MIN broadcasts a reshaped tensor", OLD, _minimum_reshaped),
    Fault("the first step of a REDUCE_MIN broadcasts a tensor that is reshaped elsewhere", OLD,
          _minimum_beside_reshape),
    Fault("ADD of unequal integer factors is computed with another scaling", OLD, _unequal_integers),
    Fault("all channels of a MATMUL take the RESCALE multiplier of the first", NEW, _matmul_channels),
    Fault("channels of a convolution are counted before the RESHAPE behind it", ALL, _reshaped_channels),
    Fault("a RESCALE of several readers is repeated for each without the RESHAPE behind it", ALL,
          _shared_behind_reshape),
    Fault("a RESCALE of several readers is repeated for each without the SLICE behind it", ALL, _shared_behind_slice),
    Fault("of two slices around a RESCALE one is lost", NEW, _chain_of_slices),
    Fault("a table or clamp within a TRANSPOSE writes beside its part", OLD, _turned_part),
    Fault("a tensor of one channel is stored in blocks that its reduction does not know", ALL, _reshaped_reduction,
          remedy="pool"),
    Fault("of two tables or clamps around a TRANSPOSE or REVERSE one is lost", NEW, _two_activations, remedy="pool"),
    Fault("the table of a TRANSPOSE lies outside of the memory", ("u55-32", "u55-64"), _table_of_transpose,
          remedy="pool"),
    Fault("in a cascade of int32 operators rows in front of a slice are counted wrongly", OLD, _cascaded_slice,
          remedy="none"),
    Fault("a RESCALE to a wider type is clamped to the narrow one", ALL, _widened),
)
