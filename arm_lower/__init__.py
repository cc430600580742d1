"""arm-lower: PyTorch models to verified ExecuTorch programs for Arm Ethos-U.

The names below are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from arm_lower.errors import (
    ArmLowerError,
    PteError,
    QuantizationError,
    TosaError,
    Unsupported,
    VelaError,
)

if TYPE_CHECKING:
    from arm_lower.compile import Compiled, compile
    from arm_lower.edge.passes import ExportPass, PassManager
    from arm_lower.partition import EthosUPartitioner
    from arm_lower.program import EdgeProgramManager, ExecutorchProgram, to_edge, to_edge_transform_and_lower
    from arm_lower.report import Report
    from arm_lower.spec import EthosUCompileSpec

__version__ = "0.1.0"

__all__ = [
    "ArmLowerError",
    "Compiled",
    "EdgeProgramManager",
    "EthosUCompileSpec",
    "EthosUPartitioner",
    "ExecutorchProgram",
    "ExportPass",
    "PassManager",
    "PteError",
    "QuantizationError",
    "Report",
    "TosaError",
    "Unsupported",
    "VelaError",
    "compile",
    "to_edge",
    "to_edge_transform_and_lower",
]

_HOME = {
    "Compiled": "arm_lower.compile",
    "compile": "arm_lower.compile",
    "ExportPass": "arm_lower.edge.passes",
    "PassManager": "arm_lower.edge.passes",
    "EthosUPartitioner": "arm_lower.partition",
    "EdgeProgramManager": "arm_lower.program",
    "ExecutorchProgram": "arm_lower.program",
    "to_edge": "arm_lower.program",
    "to_edge_transform_and_lower": "arm_lower.program",
    "Report": "arm_lower.report",
    "EthosUCompileSpec": "arm_lower.spec",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'arm_lower' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``arm_lower.compile`` the function: importing the submodule of that name would hide it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "compile" and isinstance(value, ModuleType):
            value = value.__dict__[name]
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
