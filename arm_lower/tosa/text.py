"""The text form of a TOSA graph: `to_text` prints it, `parse` gives the same graph back.

One statement a line::

    graph main {
      input x: int8[1,8,8,3]
      const w: int8[8,1,1,3] = @0
      const b: int32[1] = [0]
      y: int32[1,8,8,8] = CONV2D(x, w, b) {pad=[0,0,0,0], ...} "features.0:aten.conv2d"
      output y
    }
    data {
      @0 = <base64>
    }

Constants stand before their first reader. Those of more than `SHORT` elements, and attributes of more than that,
are written as base64 of their little-endian values (attributes as int64) in the data section. Names that are not
plain words, and locations, are JSON strings.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from arm_lower.errors import TosaError
from arm_lower.tosa.ir import Attr, DType, Graph, Op, Tensor, as_ints

SHORT = 16
"""Largest number of values written in line."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*\Z")
_TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|[@A-Za-z0-9_.+\-]+|[{}()\[\],:=])')
_KEYWORDS = frozenset({"input", "const", "output", "graph", "data"})


# -- printing ------------------------------------------------------------------------------------------------


def to_text(graph: Graph, *, data: bool = True) -> str:
    """The graph as text, which `parse` reads back exactly.

    Args:
        data: Write the data section. Without it the text is for people: `parse` refuses references to it.
    """
    return _Printer(graph).text(data)


class _Printer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.blobs: list[bytes] = []

    def text(self, data: bool) -> str:
        lines = [f"graph {_name(self.graph.name)} {{"]
        lines += [f"  input {_typed(t)}" for t in self.graph.inputs]
        seen: set[Tensor] = set()
        for op in self.graph.ops:
            lines += self.constants(op.inputs, seen)
            lines.append(f"  {self.operator(op)}")
        lines += self.constants(self.graph.outputs, seen)
        lines += [f"  output {_name(t.name)}" for t in self.graph.outputs]
        lines.append("}")
        if data and self.blobs:
            lines += ["data {", *(f"  @{i} = {base64.b64encode(b).decode()}" for i, b in enumerate(self.blobs)), "}"]
        return "\n".join(lines) + "\n"

    def constants(self, tensors: list[Tensor], seen: set[Tensor]) -> Iterator[str]:
        for t in tensors:
            if t.data is not None and t not in seen:
                seen.add(t)
                yield f"  const {_typed(t)} = {self.values(t)}"

    def values(self, t: Tensor) -> str:
        assert t.data is not None  # constants() has looked
        if t.data.size > SHORT or t.dtype is DType.FP32 and not np.isfinite(t.data).all():
            return self.blob(np.ascontiguousarray(t.data, t.dtype.numpy.newbyteorder("<")).tobytes())
        return json.dumps(t.data.ravel().tolist(), separators=(",", ":"))

    def blob(self, raw: bytes) -> str:
        self.blobs.append(raw)
        return f"@{len(self.blobs) - 1}"

    def operator(self, op: Op) -> str:
        text = f"{', '.join(map(_typed, op.outputs))} = {op.kind}({', '.join(_name(t.name) for t in op.inputs)})"
        if op.attrs:
            text += f" {{{', '.join(f'{k}={self.attribute(v)}' for k, v in op.attrs.items())}}}"
        return f"{text} {json.dumps(op.location)}" if op.location else text

    def attribute(self, value: Attr) -> str:
        if isinstance(value, tuple) and len(value) > SHORT:
            return self.blob(np.array(value, "<i8").tobytes())
        return json.dumps(value, separators=(",", ":"))


def _name(name: str) -> str:
    return name if _WORD.match(name) and name not in _KEYWORDS else json.dumps(name)


def _typed(t: Tensor) -> str:
    return f"{_name(t.name)}: {t.dtype}[{','.join(map(str, t.shape))}]"


def _fits(value: Any, dtype: DType) -> bool:
    """Whether a JSON value is a value of the type."""
    if dtype is DType.FP32:
        return isinstance(value, float)
    if dtype is DType.BOOL:
        return isinstance(value, bool)
    return type(value) is int and dtype.range[0] <= value <= dtype.range[1]


# -- parsing -------------------------------------------------------------------------------------------------


def parse(text: str) -> Graph:
    """The graph that `to_text` printed.

    Raises:
        TosaError: With the line number and what was expected.
    """
    return _Parser(text).graph()


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.number = 0
        self.tokens: list[str] = []
        self.at = 0
        self.tensors: dict[str, Tensor] = {}
        self.blobs: dict[str, bytes] = {}

    def error(self, message: str) -> TosaError:
        return TosaError(f"line {self.number}: {message}")

    # statements

    def graph(self) -> Graph:
        self.data_section()
        lines = self.statements(0)
        self.expect("graph", next(lines, False))
        graph = Graph(self.name())
        self.expect("{")
        self.end()
        for _ in lines:
            if self.take("}"):
                self.end()
                return graph
            if self.take("input"):
                graph.inputs.append(self.declared())
            elif self.take("const"):
                tensor = self.declared()
                self.expect("=")
                self.constant(tensor)
            elif self.take("output"):
                graph.outputs.append(self.used())
            else:
                graph.ops.append(self.operator())
            self.end()
        raise self.error("'}' is missing at the end of the graph")

    def statements(self, start: int) -> Iterator[bool]:
        for number, line in enumerate(self.lines[start:], start + 1):
            self.number = number
            if line.strip():
                self.tokens, self.at = self.split(line), 0
                yield True

    def split(self, line: str) -> list[str]:
        tokens, at = [], 0
        while at < len(line.rstrip()):
            match = _TOKEN.match(line, at)
            if match is None:
                raise self.error(f"unexpected {line[at:].strip()[:20]!r}")
            tokens.append(match[1])
            at = match.end()
        return tokens

    def data_section(self) -> None:
        start = next((i for i, line in enumerate(self.lines) if line.strip() == "data {"), len(self.lines))
        for number, line in enumerate(self.lines[start + 1:], start + 2):
            self.number = number
            if line.strip() == "}":
                break
            key, _, value = line.strip().partition(" = ")
            try:
                self.blobs[key] = base64.b64decode(value, validate=True)
            except binascii.Error as error:
                raise self.error(f"{key} is not base64") from error
        self.lines = self.lines[:start]
        self.number = 0

    def operator(self) -> Op:
        outputs = [self.declared()]
        while self.take(","):
            outputs.append(self.declared())
        self.expect("=")
        op = Op(self.next("an operator"), [], outputs)
        self.expect("(")
        while not self.take(")"):
            if op.inputs:
                self.expect(",")
            op.inputs.append(self.used())
        if self.take("{"):
            for i in count():
                if self.take("}"):
                    break
                if i:
                    self.expect(",")
                key = self.next("an attribute")
                self.expect("=")
                op.attrs[key] = self.attribute()
        if self.at < len(self.tokens):
            op.location = self.string()
        return op

    def constant(self, tensor: Tensor) -> None:
        size, dtype = tensor.size, tensor.dtype.numpy
        if self.peek().startswith("@"):
            raw = self.blob()
            if len(raw) != size * dtype.itemsize:
                raise self.error(f"{tensor.name} has {len(raw)} bytes of data, {size * dtype.itemsize} are needed")
            tensor.data = np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(tensor.shape)
            return
        values = self.json_list()
        if len(values) != size:
            raise self.error(f"{tensor.name} has {len(values)} values, {size} are needed")
        for value in values:
            if not _fits(value, tensor.dtype):
                raise self.error(f"{tensor.name} has the value {json.dumps(value)}, which is no {tensor.dtype}")
        tensor.data = np.array(values, dtype).reshape(tensor.shape)

    def attribute(self) -> Attr:
        if self.peek().startswith("@"):
            raw = self.blob()
            if len(raw) % 8:
                raise self.error(f"an attribute has {len(raw)} bytes of data, a multiple of 8 is needed")
            return as_ints(np.frombuffer(raw, "<i8").tolist())
        if self.peek() == "[":
            return self.int_list()
        token = self.next("a value")
        try:
            value: Attr = json.loads(token)
        except ValueError as error:
            raise self.error(f"{token!r} is no value") from error
        return value

    # parts

    def declared(self) -> Tensor:
        name = self.name()
        self.expect(":")
        dtype = self.next("a data type")
        if dtype not in [d.value for d in DType]:
            raise self.error(f"{dtype!r} is no data type, allowed are {', '.join(DType)}")
        if name in self.tensors:
            raise self.error(f"tensor {name!r} is there twice")
        self.tensors[name] = Tensor(name, self.int_list(), DType(dtype))
        return self.tensors[name]

    def used(self) -> Tensor:
        name = self.name()
        if name not in self.tensors:
            raise self.error(f"tensor {name!r} is used but not declared before")
        return self.tensors[name]

    def blob(self) -> bytes:
        key = self.next("data")
        if key not in self.blobs:
            raise self.error(f"{key} is not in the data section")
        return self.blobs[key]

    def json_list(self) -> list[Any]:
        self.expect("[")
        start = self.at
        while not self.take("]"):
            self.next("a value or ']'")
        try:
            values: list[Any] = json.loads("".join(["[", *self.tokens[start:self.at]]))
        except ValueError as error:
            raise self.error(f"bad list: [{''.join(self.tokens[start:self.at])}") from error
        return values

    def int_list(self) -> tuple[int, ...]:
        values = self.json_list()
        if not all(type(v) is int for v in values):
            raise self.error(f"a list of integers is expected, found {json.dumps(values)}")
        return as_ints(values)

    def name(self) -> str:
        return self.string() if self.peek().startswith('"') else self.next("a name")

    def string(self) -> str:
        token = self.next("a string")
        if not token.startswith('"'):
            raise self.error(f"a string is expected, found {token!r}")
        try:
            value: str = json.loads(token)
        except ValueError as error:
            raise self.error(f"bad string: {error}") from error
        return value

    # tokens

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self, what: str) -> str:
        token = self.peek()
        if not token:
            raise self.error(f"{what} is expected, found the end of the line")
        self.at += 1
        return token

    def take(self, token: str) -> bool:
        found = self.peek() == token
        self.at += found
        return found

    def expect(self, token: str, there: bool = True) -> None:
        if not there or not self.take(token):
            raise self.error(f"{token!r} is expected, found {self.peek() or 'the end of the line'!r}")

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.error(f"unexpected {self.peek()!r} at the end of the statement")
