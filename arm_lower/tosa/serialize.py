"""The TOSA flatbuffer: our graph to bytes, and bytes of any TOSA 1.0 integer graph to ours.

Format: ``tosa.fbs`` of tosa-tools (file id ``TOSA``). What the IR keeps as an attribute but the schema wants as an
operand (zero points, shapes, pads, shifts, multipliers) is written as CONST or CONST_SHAPE before the first
operator that needs it, one for each distinct value, and folded back into attributes when read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tosa_serializer as ts
from tosa import OpLocation, TosaBasicBlock, TosaOperator, TosaRegion, TosaTensor, Version  # noqa: F401  (lazy there)
from tosa import TosaGraph as fb_graph

from arm_lower.errors import TosaError
from arm_lower.tosa.ir import Attr, DType, Graph, Op, Tensor, as_ints
from arm_lower.tosa.spec import OPS, with_defaults

VERSION = (1, 0, 0)
"""TOSA version written into files."""

Array = npt.NDArray[np.generic]

_DTYPES = {d: getattr(ts.DType, d.name) for d in DType}
_DTYPE_OF_NUMBER = {int(v): d for d, v in _DTYPES.items()}
_SHAPE = "shape"

# Attributes that the schema wants as operands after the data inputs, and the type of the constant: that of input
# 0 or 1, of the output, `multiplier` (int32 or int16 by scale32), int8, or a shape.
_OPERANDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(("CONV2D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D"), (("input_zp", "in0"), ("weight_zp", "in1"))),
    "AVG_POOL2D": (("input_zp", "in0"), ("output_zp", "out")),
    "MATMUL": (("a_zp", "in0"), ("b_zp", "in1")),
    "NEGATE": (("input1_zp", "in0"), ("output_zp", "out")),
    "MUL": (("shift", "int8"),),
    "PAD": (("padding", _SHAPE), ("pad_const", "in0")),
    "RESHAPE": (("shape", _SHAPE),),
    "SLICE": (("start", _SHAPE), ("size", _SHAPE)),
    "TILE": (("multiples", _SHAPE),),
    "RESIZE": (("scale", _SHAPE), ("offset", _SHAPE), ("border", _SHAPE)),
    "RESCALE": (("multiplier", "multiplier"), ("shift", "int8"), ("input_zp", "in0"), ("output_zp", "out")),
}

_ROUNDING = {"single": ts.RoundingMode.SINGLE_ROUND, "inexact": ts.RoundingMode.INEXACT_ROUND,
             "double": ts.RoundingMode.DOUBLE_ROUND}
_MODES = {"nearest": ts.ResizeMode.NEAREST, "bilinear": ts.ResizeMode.BILINEAR}


@dataclass(frozen=True)
class _Field:
    """One field of a flatbuffer attribute table: the attribute it holds ('' for a fixed value) and how."""

    name: str
    codec: str
    attr: str = ""


def _fields(*fields: tuple[str, str, str]) -> tuple[_Field, ...]:
    return tuple(_Field(*f) for f in fields)


_NAN = ("NanMode", "nan", "")
_BOUND = ("LocalBound", "false", "")
_ACC = ("AccType", "dtype", "acc_type")
_AXIS = _fields(("Axis", "int", "axis"))
_AXIS_NAN = _fields(("Axis", "int", "axis"), _NAN)
_CONV = _fields(("Pad", "ints", "pad"), ("Stride", "ints", "stride"), ("Dilation", "ints", "dilation"), _BOUND, _ACC)
_POOL = (("Kernel", "ints", "kernel"), ("Stride", "ints", "stride"), ("Pad", "ints", "pad"))

_FIELDS: Mapping[str, tuple[_Field, ...]] = {
    "ARGMAX": _AXIS_NAN,
    "AVG_POOL2D": _fields(*_POOL, _ACC),
    "MAX_POOL2D": _fields(*_POOL, _NAN),
    "CONV2D": _CONV,
    "DEPTHWISE_CONV2D": _CONV,
    "TRANSPOSE_CONV2D": _fields(("OutPad", "ints", "out_pad"), ("Stride", "ints", "stride"), _BOUND, _ACC),
    "CLAMP": _fields(("MinVal", "value", "min"), ("MaxVal", "value", "max"), _NAN),
    "ARITHMETIC_RIGHT_SHIFT": _fields(("Round", "bool", "round")),
    "MAXIMUM": _fields(_NAN),
    "MINIMUM": _fields(_NAN),
    "REDUCE_ALL": _AXIS,
    "REDUCE_ANY": _AXIS,
    "REDUCE_MAX": _AXIS_NAN,
    "REDUCE_MIN": _AXIS_NAN,
    "REDUCE_SUM": _AXIS,
    "CONCAT": _AXIS,
    "REVERSE": _AXIS,
    "TRANSPOSE": _fields(("Perms", "ints", "perms")),
    "RESIZE": _fields(("Mode", "mode", "mode")),
    "RESCALE": _fields(("Scale32", "bool", "scale32"), ("RoundingMode", "rounding", "rounding"),
                       ("PerChannel", "bool", "per_channel"), ("InputUnsigned", "bool", "input_unsigned"),
                       ("OutputUnsigned", "bool", "output_unsigned")),
}

# Names of the attribute tables that are not the operator's words with capitals.
_TABLES = {"ARGMAX": "ArgMax", "AVG_POOL2D": "AvgPool2d", "MAX_POOL2D": "MaxPool2d", "CONV2D": "Conv2d",
           "DEPTHWISE_CONV2D": "DepthwiseConv2d", "TRANSPOSE_CONV2D": "TransposeConv2d", "MATMUL": "MatMul",
           "INTDIV": "IntDiv"}


def _table(kind: str) -> str:
    return f"{_TABLES.get(kind) or ''.join(word.capitalize() for word in kind.split('_'))}Attribute"


# -- writing -------------------------------------------------------------------------------------------------


def to_flatbuffer(graph: Graph) -> bytes:
    """The graph as a TOSA 1.0 flatbuffer; the same graph gives the same bytes.

    Raises:
        TosaError: Names are not unique, or a graph output is no operator's result. Rules of the operators are not
            checked here; see `arm_lower.tosa.verify`.
    """
    return _Writer(graph).write()


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.out = ts.TosaSerializer("", ts.ConstMode.EMBED, *VERSION, False)
        self.names: dict[str, Tensor] = {}
        self.taken: set[str] = set()
        self.shared: dict[tuple[str, bytes], str] = {}

    def write(self) -> bytes:
        results = {t for op in self.graph.ops for t in op.outputs}
        for t in (*self.graph.inputs, *results, *self.graph.constants()):
            if self.names.setdefault(t.name, t) is not t:
                raise TosaError(f"two tensors are named {t.name!r}")
        self.taken.update(self.names)
        for t in self.graph.inputs:
            self.out.addInputTensor(ts.TosaSerializerTensor(t.name, list(t.shape), _DTYPES[t.dtype]))
        written: set[Tensor] = set()
        for op in self.graph.ops:
            self.operator(op, written)
        for t in self.graph.outputs:
            if t not in results:
                raise TosaError(f"graph output {t.name!r} is not the result of an operator",
                                "Vela finds only results of operators: insert an IDENTITY")
            self.out.addOutputTensor(ts.TosaSerializerTensor(t.name, list(t.shape), _DTYPES[t.dtype]))
        data = self.out.serialize()
        return bytes(data)

    def operator(self, op: Op, written: set[Tensor]) -> None:
        attrs = with_defaults(op.kind, op.attrs)
        names = [t.name for t in op.inputs]
        for t in op.inputs:
            if t.data is not None and t not in written:
                written.add(t)
                self.out.addConst(list(t.shape), _DTYPES[t.dtype], t.data, t.name)
        names += [self.operand(op, attr, attrs, kind) for attr, kind in _OPERANDS.get(op.kind, ())]
        block = self.out.currRegion.currBasicBlock
        for t in op.outputs:
            block.addTensor(t.name, list(t.shape), _DTYPES[t.dtype])
        attribute = ts.TosaSerializerAttribute()
        values = [_encode(field, attrs, op) for field in _FIELDS.get(op.kind, ())]
        getattr(attribute, _table(op.kind))(*values)
        self.out.addOperator(getattr(ts.Op, op.kind), names, [t.name for t in op.outputs], attribute,
                             ts.TosaOpLocation(op.location))

    def operand(self, op: Op, attr: str, attrs: Mapping[str, Attr], kind: str) -> str:
        """Name of the constant that holds an attribute; written at its first use."""
        value = attrs[attr]
        values = list(value) if isinstance(value, tuple) else [value]
        dtype = None if kind == _SHAPE else _operand_dtype(op, kind, bool(attrs.get("scale32")))
        array = np.array(values, np.int64)
        if dtype is not None:
            # Zero points of unsigned tensors are written in the signed type of the same width.
            array = array.astype(dtype.numpy)
        key = (str(dtype), array.tobytes())
        if key not in self.shared:
            self.shared[key] = self.free_name(f"{op.outputs[0].name}.{attr}")
            written = ts.DType.SHAPE if dtype is None else _DTYPES[dtype]
            self.out.addConst([len(values)], written, array, self.shared[key])
        return self.shared[key]

    def free_name(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _operand_dtype(op: Op, kind: str, scale32: bool) -> DType:
    if kind == "multiplier":
        return DType.INT32 if scale32 else DType.INT16
    return {"in0": op.inputs[0].dtype, "in1": op.inputs[-1 if len(op.inputs) == 1 else 1].dtype,
            "out": op.outputs[0].dtype, "int8": DType.INT8}[kind]


def _encode(field: _Field, attrs: Mapping[str, Attr], op: Op) -> Any:
    if field.codec == "nan":
        return ts.NanPropagationMode.PROPAGATE
    if field.codec == "false":
        return False
    value = attrs[field.attr]
    if field.codec == "value":
        assert isinstance(value, int)  # CLAMP's bounds; arm_lower.tosa.spec checks it
        return list(value.to_bytes(op.inputs[0].dtype.bits // 8, "little", signed=True))
    encoders: dict[str, Callable[[Any], Any]] = {
        "int": int, "bool": bool, "ints": list, "dtype": lambda v: _DTYPES[DType(v)],
        "rounding": _ROUNDING.__getitem__, "mode": _MODES.__getitem__}
    return encoders[field.codec](value)


# -- reading -------------------------------------------------------------------------------------------------


def from_flatbuffer(data: bytes) -> Graph:
    """The graph in a TOSA 1.0 flatbuffer with one region of one block, ours or another compiler's.

    Constants that no operator reads as data are dropped. `from_flatbuffer(to_flatbuffer(g))` gives ``g`` again, with
    default attributes filled in and called ``main``: the serializer gives every block that name.

    Raises:
        TosaError: No TOSA flatbuffer, another major version, control flow, an operator outside the integer profile,
            or a compile-time operand that is not constant.
    """
    with _corrupt():
        return _Reader(_block(data)).read()


def operator_locations(data: bytes) -> list[str]:
    """Location of each operator of the file, CONST and CONST_SHAPE counted: Vela's ``ext_key`` is an index into it."""
    found = []
    with _corrupt():
        block = _block(data)
        for i in range(block.OperatorsLength()):
            location = block.Operators(i).Location()
            found.append(_text(location.Text()) if location is not None else "")
    return found


@dataclass(frozen=True)
class Signature:
    """What a TOSA file takes and gives, and the names of its operators in order, CONST and CONST_SHAPE counted."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[str, ...]


def signature(data: bytes) -> Signature:
    """Inputs, outputs and operator names of any TOSA 1.x file, also with operators that the IR does not have.

    Raises:
        TosaError: As `from_flatbuffer`, but for the operators.
    """
    with _corrupt():
        block = _block(data)
        reader = _Reader(block)
        wanted = ([_text(block.Inputs(i)) for i in range(block.InputsLength())],
                  [_text(block.Outputs(i)) for i in range(block.OutputsLength())])
        for i in range(block.TensorsLength()):
            if _text(block.Tensors(i).Name()) in (*wanted[0], *wanted[1]):
                reader.tensor(block.Tensors(i))
        inputs, outputs = (tuple(reader.named(n) for n in names) for names in wanted)
        operators = tuple(_op_name(block.Operators(i).Op()) for i in range(block.OperatorsLength()))
        return Signature(inputs, outputs, operators)


def _op_name(number: int) -> str:
    return str(ts.Op(number).name)


def _block(data: bytes) -> Any:
    if len(data) < 8 or data[4:8] != b"TOSA":
        raise TosaError(f"not a TOSA flatbuffer: {len(data)} bytes, file id {data[4:8]!r}, allowed is b'TOSA'")
    root = fb_graph.TosaGraph.GetRootAs(data, 0)
    version = root.Version()
    if version is None or version._Major() != VERSION[0]:
        found = f"{version._Major()}.{version._Minor()}" if version is not None else "missing"
        raise TosaError(f"TOSA version is {found}, allowed is {VERSION[0]}.x")
    if root.RegionsLength() != 1 or root.Regions(0).BlocksLength() != 1:
        raise TosaError("control flow: the file has more or less than one region of one block, allowed is one")
    return root.Regions(0).Blocks(0)


@contextmanager
def _corrupt() -> Iterator[None]:
    """What flatbuffers and numpy raise when an offset, a length or a number makes no sense, as one error."""
    try:
        yield
    except (struct.error, ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise TosaError(f"corrupt TOSA flatbuffer: {error}") from error


class _Reader:
    def __init__(self, block: Any) -> None:
        self.block = block
        self.tensors: dict[str, Tensor] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.kinds = {int(getattr(ts.Op, kind)): kind for kind in OPS}

    def read(self) -> Graph:
        block = self.block
        for i in range(block.TensorsLength()):
            self.tensor(block.Tensors(i))
        for i in range(block.ShapesLength()):
            shape = block.Shapes(i)
            values = np.frombuffer(_bytes(shape.DataAsNumpy()), "<i8")
            self.shapes[_text(shape.Name())] = as_ints(values.tolist())
        graph = Graph(_text(block.Name()), [self.named(_text(block.Inputs(i))) for i in range(block.InputsLength())])
        constants = (int(ts.Op.CONST), int(ts.Op.CONST_SHAPE))
        graph.ops = [self.operator(block.Operators(i)) for i in range(block.OperatorsLength())
                     if block.Operators(i).Op() not in constants]
        graph.outputs = [self.named(_text(block.Outputs(i))) for i in range(block.OutputsLength())]
        return graph

    def tensor(self, t: Any) -> None:
        name = _text(t.Name())
        dtype = _DTYPE_OF_NUMBER.get(t.Type())
        if dtype is None:
            raise TosaError(f"tensor {name!r} has data type number {t.Type()}, allowed are {', '.join(DType)}")
        shape = as_ints(np.asarray(t.ShapeAsNumpy()).ravel().tolist()) if t.ShapeLength() else ()
        raw = _bytes(t.DataAsNumpy()) if t.DataLength() else b""
        self.tensors[name] = Tensor(name, shape, dtype, unpack(raw, shape, dtype, name) if raw else None)

    def named(self, name: str) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise TosaError(f"tensor {name!r} is used but not in the file")
        return tensor

    def operator(self, fb: Any) -> Op:
        kind = self.kinds.get(fb.Op())
        outputs = [self.named(_text(fb.Outputs(i))) for i in range(fb.OutputsLength())]
        if kind is None:
            made = outputs[0].name if outputs else "nothing"
            raise TosaError(f"{_op_name(fb.Op())} that makes {made!r} is not in the TOSA 1.0 integer profile")
        names = [_text(fb.Inputs(i)) for i in range(fb.InputsLength())]
        operands = _OPERANDS.get(kind, ())
        if len(names) < len(operands):
            raise TosaError(f"{kind} has {len(names)} operands, at least {len(operands)} are needed")
        split = len(names) - len(operands)
        location = fb.Location()
        op = Op(kind, [self.named(n) for n in names[:split]], outputs, {}, _text(location.Text()) if location else "")
        attrs: dict[str, Attr] = self.attributes(fb, op)
        for (attr, operand), name in zip(operands, names[split:]):
            attrs[attr] = self.value(op, attr, operand, name, attrs)
        if "out_dtype" in OPS[kind].attrs:
            attrs["out_dtype"] = outputs[0].dtype.value
        op.attrs = with_defaults(kind, attrs)
        return op

    def attributes(self, fb: Any, op: Op) -> dict[str, Attr]:
        module = __import__(f"tosa.{_table(op.kind)}", fromlist=[""])
        table = getattr(module, _table(op.kind))()
        union = fb.Attribute()
        if union is None:
            raise TosaError(f"{op.kind} that makes {op.outputs[0].name!r} has no attribute table")
        table.Init(union.Bytes, union.Pos)
        return {f.attr: _decode(f, table, op) for f in _FIELDS.get(op.kind, ()) if f.attr}

    def value(self, op: Op, attr: str, operand: str, name: str, attrs: Mapping[str, Attr]) -> Attr:
        if operand == _SHAPE:
            if name not in self.shapes:
                raise TosaError(f"{op.kind}: {attr} is {name!r}, allowed is a constant shape")
            return self.shapes[name]
        data = self.named(name).data
        if data is None:
            raise TosaError(f"{op.kind}: {attr} is {name!r}, allowed is a constant")
        values = as_ints(data.ravel().tolist())
        if OPS[op.kind].attrs[attr].kind == "ints":
            return values
        value = values[0]
        unsigned = attrs.get({"input_zp": "input_unsigned", "output_zp": "output_unsigned"}.get(attr, ""))
        return value % (1 << self.named(name).dtype.bits) if unsigned else value


def _decode(field: _Field, table: Any, op: Op) -> Attr:
    getter = getattr(table, field.name)
    if field.codec == "ints":
        return as_ints([getter(i) for i in range(getattr(table, f"{field.name}Length")())])
    if field.codec == "value":
        return int.from_bytes(_bytes(getattr(table, f"{field.name}AsNumpy")()), "little", signed=True)
    value = getter()
    if field.codec == "dtype":
        return _DTYPE_OF_NUMBER[value].value
    if field.codec in ("rounding", "mode"):
        names = _ROUNDING if field.codec == "rounding" else _MODES
        for name, number in names.items():
            if int(number) == value:
                return name
        raise TosaError(f"{op.kind}: {field.attr} is number {value}, allowed are {', '.join(names)}")
    return bool(value) if field.codec == "bool" else int(value)


def _text(raw: bytes | None) -> str:
    return raw.decode() if raw else ""


def _bytes(array: Any) -> bytes:
    return array.tobytes() if isinstance(array, np.ndarray) else b""


def unpack(raw: bytes, shape: tuple[int, ...], dtype: DType, name: str) -> Array:
    """Values of a serialized constant: little endian, int48 in 6 bytes, two int4 in a byte (low half first).

    Some writers pad the bytes to a multiple of 8.

    Raises:
        TosaError: The number of bytes does not fit the shape.
    """
    count = int(np.prod(shape, dtype=np.int64))
    wanted = (count + 1) // 2 if dtype is DType.INT4 else count * (dtype.bits // 8)
    if not wanted <= len(raw) <= -(-wanted // 8) * 8:
        raise TosaError(f"constant {name!r} of {dtype} {list(shape)} has {len(raw)} bytes, allowed is {wanted}")
    raw = raw[:wanted]
    if dtype is DType.INT4:
        pairs = np.frombuffer(raw, np.uint8)
        halves = np.stack([pairs & 15, pairs >> 4], axis=-1).ravel()[:count].astype(np.int8)
        return np.asarray((halves ^ 8) - 8, np.int8).reshape(shape)
    if dtype is DType.INT48:
        wide = np.zeros((count, 8), np.uint8)
        wide[:, 2:] = np.frombuffer(raw, np.uint8).reshape(count, 6)
        return np.asarray(wide.view("<i8").ravel() >> 16, np.int64).reshape(shape)
    return np.frombuffer(raw, dtype.numpy.newbyteorder("<")).astype(dtype.numpy).reshape(shape)
