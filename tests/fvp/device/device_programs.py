"""Small programs for the tests of builder and runner."""

from __future__ import annotations

from arm_lower.pte.emit import emit
from arm_lower.pte.model import AtRuntime, Planned, ProgramBuilder, ScalarType

F32, I8 = ScalarType.FLOAT32, ScalarType.INT8


def one_kernel(name: str = "aten::relu", overload: str = "out", count: int = 8, planned: bool = True) -> bytes:
    """``name(x) -> y`` on ``count`` float32 values."""
    b = ProgramBuilder()
    m = b.method("forward")
    size = -(-4 * count // 16) * 16
    x = m.add_tensor(F32, (count,), Planned(0) if planned else AtRuntime())
    y = m.add_tensor(F32, (count,), Planned(size) if planned else AtRuntime())
    m.add_input(x)
    m.kernel(name, overload, x, y, y)
    m.add_output(y)
    return emit(b.build())
