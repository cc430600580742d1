"""What TOSA 1.0 allows: operands, attributes, data types, shapes.

`OPS` is the data, `infer` applies it. The rules are the ERROR_IF statements and the tables of supported data
types of the TOSA 1.0.0 specification, integer profile (PRO-INT) with the extensions EXT-INT16 and EXT-INT4.
Limits of level 8K are kept apart in `level_error`: a graph that exceeds them is legal TOSA for level NONE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from arm_lower.errors import TosaError
from arm_lower.tosa.ir import Attr, DType, Tensor

Shape = tuple[int, ...]
Result = tuple[Shape, DType]

MAX_RANK = 6
MAX_KERNEL = 8192
MAX_STRIDE = 8192
MAX_SCALE = 256
MAX_LOG2_SIZE = 31
MAX_TENSOR_LIST_SIZE = 64
MAX_RESIZE_DIMENSION = 16384

B, I4, I8, I16, I32, I48 = DType.BOOL, DType.INT4, DType.INT8, DType.INT16, DType.INT32, DType.INT48


@dataclass(frozen=True)
class Param:
    """An attribute: its kind, and the value meant when it is not given (None: it must be given).

    Attributes:
        kind: ``int``, ``bool``, ``ints`` or ``enum``.
        count: Number of values of ``ints``; 0 for any.
        choices: Allowed values of ``enum``.
        default: Value of an attribute that may be left out.
    """

    kind: str
    count: int = 0
    choices: tuple[str, ...] = ()
    default: Attr | None = None


@dataclass(frozen=True)
class OpSpec:
    """One operator.

    Attributes:
        inputs: Names of the data operands; a last name with ``*`` stands for one or more.
        dtypes: Allowed combinations: one data type for each input, then the output's. Where ``same`` is set a
            row holds one type for all inputs and the output's.
        infer: Checks shapes and attributes; gives the output shape.
        attrs: Attributes and compile-time operands.
        same: All inputs have the same type.
    """

    inputs: tuple[str, ...]
    dtypes: tuple[tuple[DType, ...], ...]
    infer: Callable[[Call], Shape]
    attrs: Mapping[str, Param] = field(default_factory=dict)
    same: bool = False


class Call:
    """The operands of one operator, with the questions that the rules ask."""

    def __init__(self, kind: str, inputs: Sequence[Tensor], attrs: Mapping[str, Attr]) -> None:
        self.kind = kind
        self.inputs = inputs
        self.attrs = attrs
        self.shapes = [t.shape for t in inputs]
        self.dtypes = [t.dtype for t in inputs]
        self.out = DType.INT32

    def error(self, message: str, hint: str = "") -> TosaError:
        return TosaError(f"{self.kind}: {message}", hint)

    def require(self, ok: bool, message: str) -> None:
        if not ok:
            raise self.error(message)

    def number(self, name: str) -> int:
        value = self.attrs[name]
        assert isinstance(value, (int, bool)), name  # infer() has checked the attribute's kind
        return int(value)

    def ints(self, name: str) -> tuple[int, ...]:
        value = self.attrs[name]
        assert isinstance(value, tuple), name  # infer() has checked the attribute's kind
        return value

    def text(self, name: str) -> str:
        return str(self.attrs[name])

    def rank(self, index: int, *allowed: int) -> None:
        """Input ``index`` has one of these ranks; without ``allowed``, rank one or more."""
        found = len(self.shapes[index])
        if allowed and found not in allowed or not allowed and found < 1:
            name = self.name(index)
            ranks = " or ".join(str(a) for a in allowed) if allowed else "1 or more"
            raise self.error(f"{name} has rank {found}, allowed is {ranks} (shape {list(self.shapes[index])})")

    def name(self, index: int) -> str:
        names = OPS[self.kind].inputs
        if names[-1].endswith("*"):
            return f"{names[-1][:-1]}[{index}]"
        return names[index]

    def axis(self) -> int:
        self.rank(0)
        axis, rank = self.number("axis"), len(self.shapes[0])
        self.require(0 <= axis < rank, f"axis is {axis}, allowed is 0..{rank - 1} for shape {list(self.shapes[0])}")
        return axis

    def zero_point(self, name: str, dtype: DType, unsigned: bool = False) -> None:
        """Only int8 has a zero point (and uint16 0 or 32768); it must be a value of the type."""
        value = self.number(name)
        if unsigned and dtype is I16:
            self.require(value in (0, 32768), f"{name} is {value}, allowed for uint16 is 0 or 32768")
        elif dtype is I8:
            low, high = (0, 255) if unsigned else dtype.range
            self.require(low <= value <= high, f"{name} is {value}, allowed is {low}..{high}")
        else:
            self.require(value == 0, f"{name} is {value}, allowed for {dtype} is 0")

    def at_least(self, name: str, low: int) -> tuple[int, ...]:
        values = self.ints(name)
        self.require(all(v >= low for v in values), f"{name} is {list(values)}, every value must be at least {low}")
        return values


def infer(kind: str, inputs: Sequence[Tensor], attrs: Mapping[str, Attr]) -> list[Result]:
    """Shapes and data types of the results of an operator.

    Args:
        kind: TOSA operator name, a key of `OPS`.
        inputs: Data operands in order.
        attrs: Attributes as `OPS` lists them; those with a default may be missing.

    Raises:
        TosaError: The operator does not exist, or its operands or attributes break a rule of TOSA 1.0.
    """
    spec = OPS.get(kind)
    if spec is None:
        raise TosaError(f"{kind}: not an operator of the TOSA 1.0 integer profile", f"operators: {', '.join(OPS)}")
    call = Call(kind, inputs, with_defaults(kind, attrs))
    _check_arity(call, spec)
    _check_attrs(call, spec)
    call.out = _check_dtypes(call, spec)
    for index, shape in enumerate(call.shapes):
        if any(d < 1 for d in shape):
            raise call.error(f"{call.name(index)} has shape {list(shape)}, every size must be at least 1")
    return [(spec.infer(call), call.out)]


def with_defaults(kind: str, attrs: Mapping[str, Attr]) -> dict[str, Attr]:
    """``attrs`` with the attributes that were left out, in the order of `OPS`; unknown ones stay at the end."""
    complete: dict[str, Attr] = {}
    for name, param in OPS[kind].attrs.items():
        value = attrs.get(name, param.default)
        if value is not None:
            complete[name] = value
    for name in attrs:
        complete.setdefault(name, attrs[name])
    return complete


def _check_arity(call: Call, spec: OpSpec) -> None:
    many = spec.inputs[-1].endswith("*")
    found, wanted = len(call.inputs), len(spec.inputs)
    if found < wanted or found > wanted and not many:
        names = ", ".join(spec.inputs)
        raise call.error(f"{found} inputs, allowed is {wanted}{' or more' if many else ''} ({names})")


def _check_attrs(call: Call, spec: OpSpec) -> None:
    for name in call.attrs:
        if name not in spec.attrs:
            raise call.error(f"unknown attribute {name!r}, allowed are {_names(spec.attrs)}")
    for name, param in spec.attrs.items():
        if name not in call.attrs:
            raise call.error(f"attribute {name!r} is missing, needed are {_names(spec.attrs)}")
        problem = _attr_problem(param, call.attrs[name])
        if problem:
            raise call.error(f"{name} is {call.attrs[name]!r}, {problem}")


def _attr_problem(param: Param, value: Attr) -> str:
    if param.kind == "int":
        return "" if isinstance(value, int) and not isinstance(value, bool) else "an int is needed"
    if param.kind == "bool":
        return "" if isinstance(value, bool) else "a bool is needed"
    if param.kind == "enum":
        return "" if value in param.choices else f"allowed are {', '.join(param.choices)}"
    if not isinstance(value, tuple) or not set(map(type, value)) <= {int}:
        return "a tuple of int is needed"
    return f"{param.count} values are needed" if param.count and len(value) != param.count else ""


def _names(attrs: Mapping[str, Param]) -> str:
    return ", ".join(attrs) or "none"


def _check_dtypes(call: Call, spec: OpSpec) -> DType:
    found = tuple(call.dtypes)
    if spec.same:
        for index, dtype in enumerate(found):
            if dtype is not found[0]:
                raise call.error(f"{call.name(index)} is {dtype}, it must be {found[0]} as {call.name(0)} is")
        found = found[:1]
    wanted = call.attrs.get("out_dtype")
    for row in spec.dtypes:
        if row[:-1] == found and (wanted is None or row[-1].value == wanted):
            return row[-1]
    rows = ", ".join(_row(row, spec, wanted is not None) for row in spec.dtypes)
    end = f" -> {wanted}" if wanted is not None else ""
    raise call.error(f"data types {' x '.join(map(str, found))}{end}, allowed are {rows}")


def _row(row: tuple[DType, ...], spec: OpSpec, with_output: bool) -> str:
    text = " x ".join(map(str, row[:-1]))
    return f"{text} -> {row[-1]}" if with_output else text


# -- rules of shapes and values ------------------------------------------------------------------------------


def _out_size(call: Call, axis: str, numerator: int, stride: int) -> int:
    """idiv_check of the specification, plus one: the strided window must cover the padded input exactly."""
    call.require(numerator >= 0, f"the window is larger than the padded input along {axis} by {-numerator}")
    call.require(numerator % stride == 0,
                 f"{axis}: padded input minus window is {numerator}, which stride {stride} does not divide; "
                 "the padding must be trimmed until it does")
    return numerator // stride + 1


def _window(call: Call, kernel: tuple[int, int], dilation: tuple[int, int]) -> tuple[int, int]:
    """Output height and width of a convolution or a pool on input 0, which is NHWC."""
    top, bottom, left, right = call.at_least("pad", 0)
    stride = call.at_least("stride", 1)
    _, h, w, _ = call.shapes[0]
    return (_out_size(call, "height", h + top + bottom - 1 - (kernel[0] - 1) * dilation[0], stride[0]),
            _out_size(call, "width", w + left + right - 1 - (kernel[1] - 1) * dilation[1], stride[1]))


def _conv_operands(call: Call, channels: int) -> None:
    call.zero_point("input_zp", call.dtypes[0])
    call.zero_point("weight_zp", call.dtypes[1])
    acc = "int48" if call.dtypes[0] is I16 else "int32"
    call.require(call.text("acc_type") == acc,
                 f"acc_type is {call.text('acc_type')}, allowed for an {call.dtypes[0]} input is {acc}")
    call.rank(2, 1)
    bias = call.shapes[2][0]
    call.require(bias in (1, channels), f"bias has {bias} values, allowed is 1 or the {channels} output channels")


def _conv2d(call: Call) -> Shape:
    call.rank(0, 4)
    call.rank(1, 4)
    oc, kh, kw, ic = call.shapes[1]
    n, _, _, c = call.shapes[0]
    call.require(ic == c, f"weight has {ic} input channels, the input has {c}")
    _conv_operands(call, oc)
    dilation = call.at_least("dilation", 1)
    return (n, *_window(call, (kh, kw), (dilation[0], dilation[1])), oc)


def _depthwise(call: Call) -> Shape:
    call.rank(0, 4)
    call.rank(1, 4)
    kh, kw, wc, m = call.shapes[1]
    n, _, _, c = call.shapes[0]
    call.require(wc == c, f"weight has {wc} channels, the input has {c}")
    _conv_operands(call, c * m)
    dilation = call.at_least("dilation", 1)
    return (n, *_window(call, (kh, kw), (dilation[0], dilation[1])), c * m)


def _transpose_conv(call: Call) -> Shape:
    call.rank(0, 4)
    call.rank(1, 4)
    oc, kh, kw, ic = call.shapes[1]
    n, h, w, c = call.shapes[0]
    call.require(ic == c, f"weight has {ic} input channels, the input has {c}")
    _conv_operands(call, oc)
    top, bottom, left, right = call.ints("out_pad")
    call.require(min(top, bottom) > -kh and min(left, right) > -kw,
                 f"out_pad is {[top, bottom, left, right]}, every pad must be more than minus the kernel {[kh, kw]}")
    stride = call.at_least("stride", 1)
    oh, ow = (h - 1) * stride[0] + top + bottom + kh, (w - 1) * stride[1] + left + right + kw
    call.require(oh >= 1 and ow >= 1, f"the output would be {oh} x {ow}")
    return n, oh, ow, oc


def _pool(call: Call) -> Shape:
    call.rank(0, 4)
    n, _, _, c = call.shapes[0]
    kh, kw = call.at_least("kernel", 1)
    top, bottom, left, right = call.ints("pad")
    call.require(max(top, bottom) < kh and max(left, right) < kw,
                 f"pad is {[top, bottom, left, right]}, every pad must be smaller than the kernel {[kh, kw]}")
    return (n, *_window(call, (kh, kw), (1, 1)), c)


def _avg_pool(call: Call) -> Shape:
    call.require(call.text("acc_type") == "int32", f"acc_type is {call.text('acc_type')}, allowed is int32")
    call.zero_point("input_zp", call.dtypes[0])
    call.zero_point("output_zp", call.out)
    return _pool(call)


def _matmul(call: Call) -> Shape:
    call.rank(0, 3)
    call.rank(1, 3)
    (n, h, c), (m, k, w) = call.shapes
    call.require(n == m, f"a has {n} batches, b has {m}")
    call.require(c == k, f"a has {c} columns, b has {k} rows")
    call.zero_point("a_zp", call.dtypes[0])
    call.zero_point("b_zp", call.dtypes[1])
    return n, h, w


def _broadcast(call: Call) -> Shape:
    first = call.shapes[0]
    out = list(first)
    for index, shape in enumerate(call.shapes[1:], 1):
        call.require(len(shape) == len(first),
                     f"{call.name(0)} has rank {len(first)} and {call.name(index)} has rank {len(shape)}, "
                     "TOSA broadcasts only between equal ranks")
        for axis, (a, b) in enumerate(zip(out, shape)):
            shapes = " and ".join(str(list(s)) for s in call.shapes)
            call.require(a == b or 1 in (a, b), f"shapes {shapes} do not broadcast at axis {axis}")
            out[axis] = max(a, b)
    return tuple(out)


def _same_shape(call: Call) -> Shape:
    return call.shapes[0]


def _mul(call: Call) -> Shape:
    shift = call.number("shift")
    high = 63 if call.dtypes[0] is I32 else 0
    call.require(0 <= shift <= high, f"shift is {shift}, allowed for {call.dtypes[0]} is 0..{high}" if high else
                 f"shift is {shift}, allowed for {call.dtypes[0]} is 0")
    return _broadcast(call)


def _clamp(call: Call) -> Shape:
    low, high = call.number("min"), call.number("max")
    tmin, tmax = call.dtypes[0].range
    call.require(low <= high, f"min {low} is more than max {high}")
    call.require(tmin <= low and high <= tmax,
                 f"min..max is {low}..{high}, allowed for {call.dtypes[0]} is {tmin}..{tmax}")
    return call.shapes[0]


def _table(call: Call) -> Shape:
    size = 256 if call.dtypes[0] is I8 else 513
    call.require(call.shapes[1] == (size,),
                 f"table has shape {list(call.shapes[1])}, allowed for {call.dtypes[0]} is [{size}]")
    return call.shapes[0]


def _negate(call: Call) -> Shape:
    call.zero_point("input1_zp", call.dtypes[0])
    call.zero_point("output_zp", call.dtypes[0])
    return call.shapes[0]


def _reduce(call: Call) -> Shape:
    axis = call.axis()
    return tuple(1 if i == axis else d for i, d in enumerate(call.shapes[0]))


def _argmax(call: Call) -> Shape:
    axis = call.axis()
    return call.shapes[0][:axis] + call.shapes[0][axis + 1:]


def _reverse(call: Call) -> Shape:
    call.axis()
    return call.shapes[0]


def _concat(call: Call) -> Shape:
    axis = call.axis()
    first = call.shapes[0]
    for index, shape in enumerate(call.shapes[1:], 1):
        same = len(shape) == len(first) and all(a == b for i, (a, b) in enumerate(zip(shape, first)) if i != axis)
        call.require(same, f"{call.name(index)} has shape {list(shape)}, it must be {list(first)} but for axis {axis}")
    return (*first[:axis], sum(s[axis] for s in call.shapes), *first[axis + 1:])


def _pad(call: Call) -> Shape:
    call.rank(0)
    shape, padding = call.shapes[0], call.at_least("padding", 0)
    call.require(len(padding) == 2 * len(shape),
                 f"padding has {len(padding)} values, allowed is {2 * len(shape)} for rank {len(shape)}")
    low, high = (0, 1) if call.dtypes[0] is B else call.dtypes[0].range
    value = call.number("pad_const")
    call.require(low <= value <= high, f"pad_const is {value}, allowed for {call.dtypes[0]} is {low}..{high}")
    return tuple(d + padding[2 * i] + padding[2 * i + 1] for i, d in enumerate(shape))


def _reshape(call: Call) -> Shape:
    shape, found = call.at_least("shape", 1), call.shapes[0]
    call.require(prod(shape) == prod(found),
                 f"shape {list(shape)} has {prod(shape)} elements, the input {list(found)} has {prod(found)}")
    return shape


def _slice(call: Call) -> Shape:
    call.rank(0)
    shape, start, size = call.shapes[0], call.at_least("start", 0), call.at_least("size", 1)
    rank = len(shape)
    call.require(len(start) == rank and len(size) == rank,
                 f"start has {len(start)} and size has {len(size)} values, allowed is {rank} for rank {rank}")
    for axis, (a, n, d) in enumerate(zip(start, size, shape)):
        call.require(a + n <= d, f"start {a} plus size {n} is more than the {d} elements of axis {axis}")
    return size


def _tile(call: Call) -> Shape:
    call.rank(0)
    shape, multiples = call.shapes[0], call.at_least("multiples", 1)
    call.require(len(multiples) == len(shape),
                 f"multiples has {len(multiples)} values, allowed is {len(shape)} for rank {len(shape)}")
    return tuple(d * m for d, m in zip(shape, multiples))


def _transpose(call: Call) -> Shape:
    call.rank(0)
    shape, perms = call.shapes[0], call.ints("perms")
    call.require(sorted(perms) == list(range(len(shape))),
                 f"perms is {list(perms)}, allowed is a permutation of 0..{len(shape) - 1}")
    return tuple(shape[p] for p in perms)


def _gather(call: Call) -> Shape:
    call.rank(0, 3)
    call.rank(1, 2)
    (n, _, c), (m, w) = call.shapes
    call.require(n == m, f"values has {n} batches, indices has {m}")
    return n, w, c


def _scatter(call: Call) -> Shape:
    call.rank(0, 3)
    call.rank(1, 2)
    call.rank(2, 3)
    (n, k, c), (m, w), data = call.shapes
    call.require(n == m, f"values_in has {n} batches, indices has {m}")
    call.require(data == (n, w, c), f"input has shape {list(data)}, allowed is {[n, w, c]}")
    call.require(w <= k, f"indices has {w} rows to write, values_in has only {k}")
    return n, k, c


def _resize(call: Call) -> Shape:
    call.rank(0, 4)
    nearest = call.text("mode") == "nearest"
    wanted = {I8: I8 if nearest else I32, I16: I16 if nearest else I48}[call.dtypes[0]]
    call.out = wanted
    n, h, w, c = call.shapes[0]
    yn, yd, xn, xd = call.at_least("scale", 1)
    sizes = []
    for axis, size, num, den, offset, border in (("height", h, yn, yd, call.ints("offset")[0], call.ints("border")[0]),
                                                 ("width", w, xn, xd, call.ints("offset")[1], call.ints("border")[1])):
        call.require(num <= 1 << 11, f"{axis}: scale numerator is {num}, allowed is at most 2048")
        call.require(den < 16 * num, f"{axis}: scale denominator is {den}, allowed is less than 16 * {num}")
        call.require(-num <= offset < 16 * num, f"{axis}: offset is {offset}, allowed is {-num}..{16 * num - 1}")
        call.require(-16 * num <= border < num, f"{axis}: border is {border}, allowed is {-16 * num}..{num - 1}")
        span = (size - 1) * num - offset + border
        call.require(span >= 0 and span % den == 0,
                     f"{axis}: (size - 1) * {num} - offset + border is {span}, allowed is a multiple of {den}")
        out = span // den + 1
        call.require(max(size, out) < MAX_RESIZE_DIMENSION,
                     f"{axis} goes from {size} to {out}, allowed is less than {MAX_RESIZE_DIMENSION}")
        sizes.append(out)
    return n, sizes[0], sizes[1], c


def _rescale(call: Call) -> Shape:
    x, out = call.dtypes[0], call.out
    in_unsigned, out_unsigned = bool(call.attrs["input_unsigned"]), bool(call.attrs["output_unsigned"])
    scale32 = bool(call.attrs["scale32"])
    call.require(not (in_unsigned and out_unsigned), "input_unsigned and output_unsigned are both set, allowed is one")
    for flag, on in (("input_unsigned", in_unsigned), ("output_unsigned", out_unsigned)):
        wide = [d for d in (x, out) if d in (I32, I48)]
        call.require(not (on and wide), f"{flag} is set with {wide[0] if wide else ''}, allowed is int8 and int16 only")
    call.zero_point("input_zp", x, in_unsigned)
    call.zero_point("output_zp", out, out_unsigned)
    call.require(not (scale32 and x is I48), "scale32 is set for an int48 input, which needs 16-bit multipliers")
    call.require(scale32 or call.text("rounding") != "double", "rounding is double without scale32")
    multiplier, shift = call.ints("multiplier"), call.ints("shift")
    per_channel = bool(call.attrs["per_channel"])
    if per_channel:
        call.rank(0)
    count = call.shapes[0][-1] if per_channel else 1
    call.require(len(multiplier) == count and len(shift) == count,
                 f"{len(multiplier)} multipliers and {len(shift)} shifts, allowed is {count}"
                 f"{' for the last axis' if per_channel else ' without per_channel'}")
    top = (1 << 31) - 1 if scale32 else (1 << 15) - 1
    call.require(0 <= min(multiplier) and max(multiplier) <= top,
                 f"multiplier has values {min(multiplier)}..{max(multiplier)}, allowed is 0..{top}")
    call.require(2 <= min(shift) and max(shift) <= 62, f"shift has values {min(shift)}..{max(shift)}, allowed is 2..62")
    return call.shapes[0]


# -- the table -----------------------------------------------------------------------------------------------


def _rows(*dtypes: DType, out: DType | None = None) -> tuple[tuple[DType, ...], ...]:
    return tuple((d, out or d) for d in dtypes)


def _conv_spec(infer_shape: Callable[[Call], Shape], **attrs: Param) -> OpSpec:
    rows = ((I8, I8, I32, I32), (I8, I4, I32, I32), (I16, I8, I48, I48))
    return OpSpec(("input", "weight", "bias"), rows, infer_shape, {
        **attrs, "stride": Param("ints", 2), **({} if "out_pad" in attrs else {"dilation": Param("ints", 2)}),
        "acc_type": Param("enum", choices=("int32", "int48"), default="int32"), "input_zp": _INT, "weight_zp": _INT})


_INT, _BOOL, _INTS = Param("int"), Param("bool"), Param("ints")
_ALL = (B, I8, I16, I32)
_BINARY = ("a", "b")
_AXIS = {"axis": _INT}
_WINDOW = {"kernel": Param("ints", 2), "stride": Param("ints", 2), "pad": Param("ints", 4)}


def _binary(*dtypes: DType, out: DType | None = None, attrs: Mapping[str, Param] | None = None) -> OpSpec:
    return OpSpec(_BINARY, _rows(*dtypes, out=out), _broadcast, attrs or {}, same=True)


def _unary(*dtypes: DType) -> OpSpec:
    return OpSpec(("input",), _rows(*dtypes), _same_shape)


OPS: dict[str, OpSpec] = {
    # tensor operators
    "ARGMAX": OpSpec(("input",), _rows(I8, I16, out=I32), _argmax, _AXIS),
    "AVG_POOL2D": OpSpec(("input",), _rows(I8, I16), _avg_pool, {
        **_WINDOW, "acc_type": Param("enum", choices=("int32",), default="int32"),
        "input_zp": _INT, "output_zp": _INT}),
    "CONV2D": _conv_spec(_conv2d, pad=Param("ints", 4)),
    "DEPTHWISE_CONV2D": _conv_spec(_depthwise, pad=Param("ints", 4)),
    "TRANSPOSE_CONV2D": _conv_spec(_transpose_conv, out_pad=Param("ints", 4)),
    "MATMUL": OpSpec(_BINARY, ((I8, I8, I32), (I16, I16, I48)), _matmul, {"a_zp": _INT, "b_zp": _INT}),
    "MAX_POOL2D": OpSpec(("input",), _rows(I8, I16), _pool, _WINDOW),
    # activation functions
    "CLAMP": OpSpec(("input",), _rows(I8, I16), _clamp, {"min": _INT, "max": _INT}),
    # elementwise, two operands
    "ADD": _binary(I32),
    "ARITHMETIC_RIGHT_SHIFT": _binary(I8, I16, I32, attrs={"round": _BOOL}),
    "BITWISE_AND": _binary(I8, I16, I32),
    "BITWISE_OR": _binary(I8, I16, I32),
    "BITWISE_XOR": _binary(I8, I16, I32),
    "INTDIV": _binary(I32),
    "LOGICAL_AND": _binary(B),
    "LOGICAL_LEFT_SHIFT": _binary(I8, I16, I32),
    "LOGICAL_RIGHT_SHIFT": _binary(I8, I16, I32),
    "LOGICAL_OR": _binary(B),
    "LOGICAL_XOR": _binary(B),
    "MAXIMUM": _binary(I32),
    "MINIMUM": _binary(I32),
    "MUL": OpSpec(_BINARY, _rows(I8, I16, I32, out=I32), _mul, {"shift": _INT}, same=True),
    "SUB": _binary(I32),
    "TABLE": OpSpec(("input", "table"), ((I8, I8, I8), (I16, I16, I32)), _table),
    # elementwise, one operand
    "ABS": _unary(I32),
    "BITWISE_NOT": _unary(I8, I16, I32),
    "CLZ": _unary(I32),
    "LOGICAL_NOT": _unary(B),
    "NEGATE": OpSpec(("input",), _rows(I8, I16, I32), _negate, {"input1_zp": _INT, "output_zp": _INT}),
    # elementwise, three operands
    "SELECT": OpSpec(("condition", "a", "b"), tuple((B, d, d, d) for d in _ALL), _broadcast),
    # comparison
    "EQUAL": _binary(I32, out=B),
    "GREATER": _binary(I32, out=B),
    "GREATER_EQUAL": _binary(I32, out=B),
    # reduction
    "REDUCE_ALL": OpSpec(("input",), _rows(B), _reduce, _AXIS),
    "REDUCE_ANY": OpSpec(("input",), _rows(B), _reduce, _AXIS),
    "REDUCE_MAX": OpSpec(("input",), _rows(I8, I16, I32), _reduce, _AXIS),
    "REDUCE_MIN": OpSpec(("input",), _rows(I8, I16, I32), _reduce, _AXIS),
    "REDUCE_SUM": OpSpec(("input",), _rows(I32), _reduce, _AXIS),
    # data layout
    "CONCAT": OpSpec(("input*",), _rows(*_ALL), _concat, _AXIS, same=True),
    "PAD": OpSpec(("input",), _rows(*_ALL), _pad, {"padding": _INTS, "pad_const": _INT}),
    "RESHAPE": OpSpec(("input",), _rows(*_ALL), _reshape, {"shape": _INTS}),
    "REVERSE": OpSpec(("input",), _rows(*_ALL), _reverse, _AXIS),
    "SLICE": OpSpec(("input",), _rows(*_ALL), _slice, {"start": _INTS, "size": _INTS}),
    "TILE": OpSpec(("input",), _rows(*_ALL), _tile, {"multiples": _INTS}),
    "TRANSPOSE": OpSpec(("input",), _rows(*_ALL), _transpose, {"perms": _INTS}),
    # scatter and gather
    "GATHER": OpSpec(("values", "indices"), tuple((d, I32, d) for d in (I8, I16, I32)), _gather),
    "SCATTER": OpSpec(("values_in", "indices", "input"), tuple((d, I32, d, d) for d in (I8, I16, I32)), _scatter),
    # image
    "RESIZE": OpSpec(("input",), _rows(I8, I16), _resize, {
        "scale": Param("ints", 4), "offset": Param("ints", 2), "border": Param("ints", 2),
        "mode": Param("enum", choices=("nearest", "bilinear"))}),
    # type conversion
    "CAST": OpSpec(("input",), tuple((a, b) for a in _ALL for b in _ALL if a is not b), _same_shape, {
        "out_dtype": Param("enum", choices=("bool", "int8", "int16", "int32"))}),
    "RESCALE": OpSpec(("input",), tuple((a, b) for a in (I8, I16, I32, I48) for b in (I8, I16, I32)), _rescale, {
        "multiplier": _INTS, "shift": _INTS, "input_zp": _INT, "output_zp": _INT, "scale32": _BOOL,
        "rounding": Param("enum", choices=("single", "double", "inexact")), "per_channel": _BOOL,
        "input_unsigned": _BOOL, "output_unsigned": _BOOL,
        "out_dtype": Param("enum", choices=("int8", "int16", "int32"))}),
    # data nodes
    "IDENTITY": OpSpec(("input",), _rows(B, I4, I8, I16, I32, I48), _same_shape),
}
"""Every operator of the IR, by its TOSA name."""


def level_error(kind: str, inputs: Sequence[Tensor], attrs: Mapping[str, Attr], outputs: Sequence[Tensor]) -> str:
    """What exceeds level 8K of TOSA 1.0 (section "Levels"), or an empty string. Call it after `infer` has accepted."""
    call = Call(kind, inputs, with_defaults(kind, attrs))
    for t in (*inputs, *outputs):
        if len(t.shape) > MAX_RANK:
            return f"{t.name} has rank {len(t.shape)}, level 8K allows {MAX_RANK}"
        if t.size * ((t.dtype.bits + 7) // 8) >= 1 << MAX_LOG2_SIZE:
            return f"{t.name} is larger than the 2^{MAX_LOG2_SIZE} - 1 bytes of level 8K"
    if kind == "CONCAT" and len(inputs) > MAX_TENSOR_LIST_SIZE:
        return f"{len(inputs)} inputs, level 8K allows {MAX_TENSOR_LIST_SIZE}"
    if "stride" in call.attrs and max(call.ints("stride")) > MAX_STRIDE:
        return f"stride is {list(call.ints('stride'))}, level 8K allows {MAX_STRIDE}"
    for name in ("pad", "out_pad"):
        if name in call.attrs and max(call.ints(name)) > MAX_KERNEL:
            return f"{name} is {list(call.ints(name))}, level 8K allows {MAX_KERNEL}"
    kernel = _kernel(call)
    if max(kernel) > MAX_KERNEL:
        return f"the kernel covers {list(kernel)}, level 8K allows {MAX_KERNEL}"
    if kind == "RESIZE":
        yn, yd, xn, xd = call.ints("scale")
        if yn > MAX_SCALE * yd or xn > MAX_SCALE * xd:
            return f"scale is {[yn, yd, xn, xd]}, level 8K allows a factor of {MAX_SCALE}"
    return ""


def _kernel(call: Call) -> tuple[int, int]:
    """Height and width that one window covers, dilation counted; (1, 1) for operators without a window."""
    if "kernel" in call.attrs:
        kh, kw = call.ints("kernel")
        return kh, kw
    if call.kind == "TRANSPOSE_CONV2D":
        return call.shapes[1][1], call.shapes[1][2]
    if "dilation" in call.attrs:
        axis = 0 if call.kind == "DEPTHWISE_CONV2D" else 1
        dy, dx = call.ints("dilation")
        return call.shapes[1][axis] * dy, call.shapes[1][axis + 1] * dx
    return 1, 1
