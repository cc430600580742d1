"""Programs of one operator, called directly with any arguments: expected results, our runtime, the stock runtime.

    case = OneOp("aten::add.out", (x, y, 1))
    wanted = expected(case)                 # list of tensors, or the text of torch's refusal
    (found,) = ours([case])                 # list of tensors, or the text of the runtime's error
    (other,) = stock(python, [case], folder)

`cases_*.py` in this folder hold tables of cases; `test_stock_runtime.py` runs them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from runtime_client import run_all
from torch import Tensor

from arm_lower.errors import ArmLowerError
from arm_lower.pte.emit import emit
from arm_lower.pte.model import MethodBuilder, Planned, ProgramBuilder, ScalarType
from fvp import native
from tosa_ref import kernels

EPS = 2.0**-23
"""Distance of 1.0 to the next float32."""


@dataclass(frozen=True, eq=False)
class OneOp:
    """One call of a kernel.

    Attributes:
        name: Registered name, ``aten::add.out``.
        args: Inputs in the order of the schema, keyword-only ones included; int literals for dtypes and formats.
        outs: Out tensors: a tensor gives type, sizes and layout (its content is the start content); a dtype gives
            the type only, sizes are torch's; None is one tensor of the type of the first tensor argument.
            () for operators in place, whose result is argument 0.
        out_is_list: The outs are one ``Tensor[]`` argument.
        wanted: Results where torch's out-variant does not say what its operator does; None: torch is asked.
        scale: Tolerance of floats is ``ulps * eps * max(|wanted|, scale)``; a number or a tensor like the result.
        ulps: See there.
    """

    name: str
    args: tuple[Any, ...]
    outs: tuple[Tensor | torch.dtype, ...] | None = None
    out_is_list: bool = False
    wanted: tuple[Tensor, ...] | None = None
    scale: float | Tensor = 0.0
    ulps: float = 2.0

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(describe, self.args))})"


def describe(value: Any) -> str:
    """``float32[2, 3]``, with ``order (1, 0)`` behind it if the dimensions lie otherwise in memory."""
    if isinstance(value, Tensor):
        order = "" if value.dim_order() == tuple(range(value.dim())) else f" order {value.dim_order()}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{order}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(describe, value))}]"
    return repr(value)


def out_templates(case: OneOp) -> list[Tensor]:
    """Fresh out tensors; of size 0 where torch shall find the size."""
    outs = case.outs
    if outs is None:
        outs = (next((a.dtype for a in case.args if isinstance(a, Tensor)), torch.float32),)
    return [o.clone() if isinstance(o, Tensor) else torch.empty(0, dtype=o) for o in outs]


def expected(case: OneOp) -> list[Tensor] | str:
    """What torch gives, or the text of its error."""
    if case.wanted is not None:
        return list(case.wanted)
    args = [a.clone() if isinstance(a, Tensor) else a for a in case.args]
    outs = out_templates(case)
    given = [outs] if case.out_is_list else outs
    try:
        kernels.call(case.name, [*args, *given, given[0] if len(given) == 1 else None])
    except ArmLowerError as error:
        return str(error)
    return outs or [args[0]]


@cache
def program(case: OneOp) -> bytes:
    """The file. Tensor arguments are the inputs, in order, lists flattened; the outs are the outputs."""
    wanted = expected(case)
    like = _refused_outs(case) if isinstance(wanted, str) else wanted
    builder = ProgramBuilder()
    m = builder.method("forward")
    place = _Place()
    kinds = _argument_types(case.name)
    args = [_argument(m, place, a, kinds[i] if i < len(kinds) else "") for i, a in enumerate(case.args)]
    outs = [args[0]] if case.outs == () else [_tensor(m, place, t) for t in like]
    for index in outs:
        m.add_output(index)
    result = outs[0] if len(outs) == 1 and not case.out_is_list else m.add_tensor_list(outs)
    given = [] if case.outs == () else [result] if case.out_is_list else outs
    name, _, overload = case.name.partition(".")
    m.kernel(name, overload, *args, *given, result)
    return emit(builder.build())


def inputs(case: OneOp) -> list[Tensor]:
    """Tensors for the program's inputs."""
    return [t for a in case.args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, Tensor)]


def ours(cases: Sequence[OneOp], kernels: Sequence[str] | None = None) -> list[list[Tensor] | str]:
    """Results of our runtime on the host.

    Args:
        kernels: Stems of the source files of kernels to build; all by default.
    """
    path = native.build_library(None if kernels is None else native.library_sources(kernels))
    with mock.patch.object(native, "build_library", return_value=path):  # looks at every source at each call
        return [_run(case) for case in cases]


def _run(case: OneOp) -> list[Tensor] | str:
    try:
        found = native.Native(program(case)).run([t.numpy() for t in inputs(case)])
    except native.DeviceError as error:
        return str(error)
    return [torch.from_numpy(np.array(a)) for a in found]


def stock(python: Path, cases: Sequence[OneOp], folder: Path) -> list[list[Tensor] | str]:
    """Results of the stock ExecuTorch runtime."""
    found = run_all(python, [(program(c), "forward", [inputs(c)]) for c in cases], folder)
    return [f if isinstance(f, str) else f[0] for f in found]


def difference(case: OneOp, wanted: list[Tensor], found: list[Tensor] | str) -> str:
    """What differs, or an empty string: integers and bool exactly, floats within the case's tolerance."""
    if isinstance(found, str):
        return found
    if len(wanted) != len(found):
        return f"{len(found)} results, {len(wanted)} wanted"
    for a, b in zip(wanted, found):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{b.dtype}{list(b.shape)}, wanted {a.dtype}{list(a.shape)}"
        if not a.is_floating_point() or a.dtype != torch.float32:
            if a.contiguous().numpy().tobytes() != b.contiguous().numpy().tobytes():  # NaN too
                return f"{b.flatten().tolist()[:40]}, wanted {a.flatten().tolist()[:40]}"
            continue
        x, y = a.double(), b.double()
        scale = torch.as_tensor(case.scale, dtype=torch.float64).abs()
        allowed = case.ulps * EPS * torch.maximum(x.abs(), scale.nan_to_num(0, 0, 0)) + 1.5e-45
        same = (x == y) | (x.isnan() & y.isnan())
        wrong = ~(same | ((x - y).abs() <= allowed))
        if wrong.any():
            return f"{y[wrong].tolist()[:5]}, wanted {x[wrong].tolist()[:5]} (positions {wrong.nonzero().tolist()[:5]})"
    return ""


class _Place:
    """Hands out arena memory."""

    def __init__(self) -> None:
        self.offset = 0

    def take(self, nbytes: int) -> Planned:
        found = Planned(self.offset)
        self.offset += -(-nbytes // 16) * 16
        return found


def _tensor(m: MethodBuilder, place: _Place, t: Tensor) -> int:
    storage = place.take(t.numel() * t.element_size())
    return m.add_tensor(_scalar_type(t.dtype), tuple(t.shape), storage, t.dim_order())


def _refused_outs(case: OneOp) -> list[Tensor]:
    """Out tensors for a call that torch refuses: of the size of the first tensor, so that only the reason is wrong."""
    shape = next((a.shape for a in case.args if isinstance(a, Tensor)), torch.Size())
    return [o if o.numel() else torch.zeros(shape, dtype=o.dtype) for o in out_templates(case)]


def _argument_types(name: str) -> list[str]:
    """``List[Optional[Tensor]]`` and the like, for the kind of a list; empty if torch does not know the operator."""
    try:
        return [str(a.real_type) for a in kernels.overload(name)._schema.arguments]
    except (ArmLowerError, AttributeError):
        return []


def _argument(m: MethodBuilder, place: _Place, value: Any, kind: str = "") -> int:
    match value:
        case None:
            return m.add_null()
        case bool():
            return m.add_bool(value)
        case int():
            return m.add_int(value)
        case float():
            return m.add_double(value)
        case str():
            return m.add_string(value)
        case Tensor():
            index = _tensor(m, place, value)
            m.add_input(index)
            return index
        case list() | tuple():
            return _list(m, place, value, kind)
    raise TypeError(f"no value of a program: {value!r}")


def _list(m: MethodBuilder, place: _Place, items: Sequence[Any], kind: str) -> int:
    if "Tensor" in kind or any(isinstance(i, Tensor) for i in items):
        indices = [None if i is None else _argument(m, place, i) for i in items]
        if "Optional[Tensor]" in kind or None in indices:
            return m.add_optional_tensor_list(indices)
        return m.add_tensor_list([i for i in indices if i is not None])
    if "bool" in kind or any(isinstance(i, bool) for i in items):
        return m.add_bool_list(items)
    if "float" in kind or any(isinstance(i, float) for i in items):
        return m.add_double_list(items)
    return m.add_int_list(items)


_NUMBERS = {dtype: number for number, dtype in kernels._SCALAR_TYPES.items()}


def _scalar_type(dtype: torch.dtype) -> ScalarType:
    return ScalarType(_NUMBERS[dtype])
