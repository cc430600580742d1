"""The pytest plugin ``arm_lower_fvp``: smoke tests of a model on a Cortex-M.

    def test_keyword_spotting(arm_lower_fvp):
        compiled = arm_lower.compile(model, samples, "ethos-u55-128")
        arm_lower_fvp.check(compiled, samples[0])

Options: ``--arm-lower-platform`` (``qemu``), ``--arm-lower-board`` (``corstone-300``). On the platform ``fvp`` a test
is skipped, with the way to get it, if the FVP is not installed; anything else that is missing is a failure. Where the
environment variable ``CI`` is set, a missing FVP is a failure too: a pipeline that ran nothing must not be green.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from fvp.runner import RunResult

SQNR_DB = 20.0
"""Where a float result is quantized again, the device and torch must be this near: single steps apart. A wrong kernel
is far below."""


class HasBuffer(Protocol):
    """A compiled model, ours or ExecuTorch's: ``buffer`` holds the bytes of the `.pte`."""

    @property
    def buffer(self) -> bytes: ...


Source = str | Path | bytes | HasBuffer


@dataclass(frozen=True)
class Device:
    """What the fixture ``arm_lower_fvp`` is.

    Attributes:
        platform: ``qemu`` or ``fvp``.
        board: Name or board file.
    """

    platform: str
    board: str

    def run(self, source: Source, inputs: Sequence[Any], **options: Any) -> RunResult:
        """Builds and runs a compiled model or a `.pte`; see `fvp.runner.run`.

        Raises:
            RunError: The run failed.
            ArmLowerError: Something is missing or wrong.
        """
        from fvp.runner import run

        settings = {"platform": self.platform, "board": self.board} | options
        self._require_fvp(source, settings)
        return run(_pte(source), _arrays(inputs), **settings)

    def check(self, source: Source, inputs: Sequence[Any], *, ulps: float | None = None, **options: Any) -> RunResult:
        """Runs a compiled model on the device and on the host, and compares.

        With the runtime's build for the host: all bytes. With torch: all bytes of integers, and ``ulps`` units in the
        last place of the largest magnitude for floats, by default 2 for each call of a float kernel; if float results
        are quantized again, a SQNR of 20 dB at least.

        Raises:
            AssertionError: They differ.
            RunError, ArmLowerError: As `run`. The build for the host needs gcc.
        """
        from arm_lower.files import read_file
        from fvp.compare import ULPS, float_calls, problems, quantizes_floats
        from fvp.ethosu.delegate import run_delegate
        from fvp.native import Native, run_npu
        from fvp.requirements import requirements
        from fvp.runner import find_method
        from tosa_ref.host import Host

        result = self.run(source, inputs, **options)
        pte, arrays, name = _pte(source), _arrays(inputs), options.get("method")
        data = pte if isinstance(pte, bytes) else read_file(pte)
        needs = requirements(data)
        native = Native(data, npu=run_npu, fast_scratch=needs.fast_scratch).run(arrays, name)
        if found := problems(result.outputs, native, 0):
            raise AssertionError("the device differs from the runtime on the host: " + "; ".join(found))
        wanted = Host(data, delegate_runner=run_delegate).run(arrays, name)
        method = find_method(needs.program, name)
        found = problems(result.outputs, wanted, ULPS * float_calls(method) if ulps is None else ulps)
        if found and quantizes_floats(method):
            found = _far(result.outputs, wanted)
        if found:
            raise AssertionError("the device differs from torch: " + "; ".join(found))
        return result

    def _require_fvp(self, source: Source, settings: dict[str, Any]) -> None:
        if settings["platform"] != "fvp":
            return
        from arm_lower.errors import ArmLowerError
        from fvp import corstone
        from fvp.boards import load_board
        from fvp.requirements import requirements

        family = requirements(_pte(source)).family
        board = load_board(settings["board"])
        if board.fvp is None or (family and family not in board.fvp.binaries):
            return  # an error of the test, which the run reports
        try:
            corstone.require(board, family)
        except ArmLowerError as error:  # not installed: all other reasons were ruled out above
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))


def _far(found: Sequence[Any], wanted: Sequence[Any]) -> list[str]:
    """Outputs that are not within `SQNR_DB`."""
    from tosa_ref.compare import sqnr_db

    near = enumerate(sqnr_db(w, f) for f, w in zip(found, wanted, strict=True))
    return [f"output {i} has a SQNR of {db:.1f} dB, {SQNR_DB:g} are needed" for i, db in near if db < SQNR_DB]


def _pte(source: Source) -> str | Path | bytes:
    return source if isinstance(source, (str, Path, bytes)) else bytes(source.buffer)


def _arrays(inputs: Sequence[Any]) -> list[Any]:
    """Tensors of torch as arrays; anything else as it is."""
    return [x.detach().cpu().numpy() if hasattr(x, "detach") else x for x in inputs]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("arm_lower_fvp", "models on a Cortex-M")
    group.addoption("--arm-lower-platform", choices=("qemu", "fvp"), default="qemu", help="simulator (qemu)")
    group.addoption("--arm-lower-board", default="corstone-300", metavar="NAME|FILE.toml", help="board (corstone-300)")


@pytest.fixture(scope="session")
def arm_lower_fvp(request: pytest.FixtureRequest) -> Device:
    """Runs compiled models on a Cortex-M; see `Device`."""
    option = request.config.getoption
    return Device(option("--arm-lower-platform"), option("--arm-lower-board"))
