"""Runs a `.pte` on a Cortex-M: in QEMU, or on Arm's FVP.

    result = run("model.pte", [x], board="corstone-300", platform="qemu")
    result.outputs[0], result.ops, result.stack_used

A run counts only if the firmware says at its end that all was done and its outputs are whole. Everything else, no
matter which exit code, is a `RunError`.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arm_lower.errors import ArmLowerError
from arm_lower.files import read_file
from arm_lower.pte import model as pte
from fvp import corstone, functions, qemu
from fvp.boards import Board, load_board
from fvp.builder import Firmware, build
from fvp.cosim import CoSimulation, Executor, execute
from fvp.elf import Elf
from fvp.requirements import Requirements, requirements
from fvp.tensors import decode_outputs, encode_inputs

Array = npt.NDArray[np.generic]
PLATFORMS = ("qemu", "fvp")
PROFILES = ("none", "ops", "functions")
NPU_EVENTS = ("mac_active_cycles", "port0_read_beats", "port0_write_beats", "port1_read_beats")
"""What the NPU's counters count: cycles in which it multiplies, and data beats at its memory ports. The first port is
that of the SRAM, the second that of flash or DRAM; which memory is behind which is said by Vela's memory mode."""
TIMEOUT = 300.0
_SHOWN = 15  # last lines of the console in an error
_EOT = "\x04"
_ERROR = re.compile(r"^arm-lower: error (\d+): (.*)$", re.MULTILINE)
_FAULT = re.compile(r"^arm-lower: fault (.*)$", re.MULTILINE)


class RunError(ArmLowerError):
    """A run that failed.

    Attributes:
        status: The device's error number (``al_status``), or 0 if the device reported none.
        uart_log: Everything on the console.
    """

    def __init__(self, message: str, hint: str = "", status: int = 0, uart_log: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.uart_log = uart_log


@dataclass(frozen=True)
class OpCount:
    """What one instruction of the method took, over all its calls.

    Attributes:
        index: Number of the instruction.
        name: Kernel, or ``EthosUBackend`` for a delegate.
        calls: How often.
        instructions: Of the core; exact in QEMU, 0 on an FVP and without profile. Those of a delegate are the
            driver's and the copies'.
        cycles: Of the core, on an FVP; 0 in QEMU.
        npu_cycles: Of the NPU, on an FVP.
        npu_events: By the names in `NPU_EVENTS`, on an FVP.
    """

    index: int
    name: str
    calls: int
    instructions: int
    cycles: int
    npu_cycles: int
    npu_events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PoolUse:
    """A block of memory: its size, and what the runtime says it needs (0 if it cannot know)."""

    size: int
    needed: int
    address: int


@dataclass(frozen=True)
class RunResult:
    """What came out of a run.

    Attributes:
        samples: Outputs of each execution, with logical dimensions, contiguous.
        uart_log: The console.
        ops: Counts of each instruction of the method, over all executions.
        instructions: Of the core, for each execution; exact in QEMU, 0 on an FVP and without profile.
        cycles: Of the core, for each execution; 0 in QEMU.
        npu: Who executed the delegates: ``registers`` (a real NPU), ``host`` (the NPU model), or "" without delegates.
        npu_id: The NPU's ID register.
        pools: Block -> size and need.
        stack_size, stack_used: Bytes; the most that was in use.
        wall_seconds: Of the simulator.
        functions: Function -> executed instructions, with ``profile="functions"``.
        firmware: What ran.
    """

    samples: tuple[list[Array], ...]
    uart_log: str
    ops: tuple[OpCount, ...]
    instructions: tuple[int, ...]
    cycles: tuple[int, ...]
    npu: str
    npu_id: int
    pools: Mapping[str, PoolUse]
    stack_size: int
    stack_used: int
    wall_seconds: float
    functions: Mapping[str, int] = field(default_factory=dict)
    firmware: Firmware | None = None

    @property
    def outputs(self) -> list[Array]:
        """Of the first execution."""
        return self.samples[0]

    @property
    def pmu(self) -> Mapping[str, int]:
        """Counters of an FVP, over all executions: ``cpu_cycles``, ``npu_cycles`` and `NPU_EVENTS`."""
        events = {name: sum(op.npu_events.get(name, 0) for op in self.ops) for name in NPU_EVENTS}
        return {"cpu_cycles": sum(self.cycles), "npu_cycles": sum(op.npu_cycles for op in self.ops), **events}


def run(source: str | Path | bytes | Firmware, inputs: Sequence[Any], **options: Any) -> RunResult:
    """Runs a program once; see `run_samples` for everything else.

    Args:
        source: A `.pte` or its bytes, which is built first, or an application of `fvp.builder` or its ``.elf`` file.
        inputs: One for each input of the method, as for `tosa_ref.host.Host.run`: arrays with logical (NCHW)
            dimensions; for a number the number that the file has.
    """
    return run_samples(source, [inputs], **options)


def run_samples(
    source: str | Path | bytes | Firmware,
    samples: Sequence[Sequence[Any]],
    *,
    board: str | Path | Board = "corstone-300",
    platform: str = "qemu",
    timeout: float = TIMEOUT,
    method: str | None = None,
    profile: str = "ops",
    fast: bool = False,
    executor: Executor = execute,
    **build_options: Any,
) -> RunResult:
    """Runs a program once for each sample, in one simulation: mutable buffers keep their state.

    Args:
        source: As for `run`.
        samples: Inputs of each execution.
        board: Name, board file, or board; that of ``source`` if it is an application.
        platform: ``qemu`` or ``fvp``.
        timeout: Seconds of wall time for the simulation.
        method: ``forward``, or else the first one, by default.
        profile: ``ops`` counts instructions of kernels and delegates, ``functions`` those of C functions too (QEMU
            only), ``none`` is faster.
        fast: Quick functional NPU on an FVP, without cycles.
        executor: Executes delegates where the simulation has no NPU.
        build_options: For `fvp.builder.build`.

    Raises:
        RunError: The simulation did not start or not finish, or the device reports an error.
        ArmLowerError: Something to build or run it with is missing, or an option is wrong.
    """
    _check("platform", platform, PLATFORMS)
    _check("profile", profile, PROFILES)
    if profile == "functions" and platform != "qemu":
        raise ArmLowerError("functions are counted in QEMU only", "platform='qemu', or profile='ops'")
    app = _application(source, board, build_options)
    chosen = find_method(app.needs.program, method)
    with tempfile.TemporaryDirectory(prefix="arm-lower-") as name:
        folder = Path(name)
        (folder / "in").write_bytes(b"".join(encode_inputs(chosen, sample) for sample in samples))
        arguments = ["-n", str(len(samples)), "-i", "in", "-o", "out"]
        arguments += ["-f", chosen.name] if chosen is not app.needs.program.methods[0] else []
        simulate = _in_qemu if platform == "qemu" else _on_fvp
        process = simulate(app, folder, arguments, timeout, profile, fast, executor)
        _judge(process)
        outputs = _outputs(folder / "out", process, len(samples), len(chosen.outputs))
        counts = functions.counts(folder / "functions.txt") if profile == "functions" else {}
    counted = platform == "qemu" and profile != "none"  # elsewhere the board's counter is a clock like any other
    return _result(process, outputs, counts, app.firmware, counted)


def _check(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ArmLowerError(f"{what} is {value!r}; allowed: {', '.join(allowed)}")


@dataclass(frozen=True)
class _Application:
    elf: Path
    board: Board
    needs: Requirements
    model: tuple[bytes, int] | None = None  # and its address, if it is not in the ELF file
    firmware: Firmware | None = None


def _application(
    source: str | Path | bytes | Firmware, board: str | Path | Board, options: Mapping[str, Any]
) -> _Application:
    if isinstance(source, Firmware):
        if options:
            raise ArmLowerError(f"an application is built already, {', '.join(options)} cannot be changed")
        return _built(source)
    if isinstance(source, (str, Path)) and Path(source).suffix == ".elf":
        if options:
            raise ArmLowerError(f"an application is built already, {', '.join(options)} cannot be changed")
        model = Elf(source).section(".al.model")
        if model is None or not model.loaded:
            raise ArmLowerError(f"{source} has no model in it (no section .al.model)", "run the .pte instead")
        return _Application(Path(source).resolve(), load_board(board), requirements(model.data))
    return _built(build(source, board, **options))


def _built(firmware: Firmware) -> _Application:
    return _Application(firmware.elf, firmware.board, firmware.needs, firmware.loaded, firmware)


def find_method(program: pte.Program, name: str | None) -> pte.Method:
    """The method of this name; without a name ``forward``, or else the first one."""
    if name is not None:
        return program.method(name)
    return next((m for m in program.methods if m.name == "forward"), program.methods[0])


@dataclass(frozen=True)
class _Process:
    """A simulation that has ended: ``code`` None if it was stopped."""

    name: str
    code: int | None
    uart: str
    stderr: str
    seconds: float
    timeout: float


def _in_qemu(
    app: _Application,
    folder: Path,
    arguments: Sequence[str],
    timeout: float,
    profile: str,
    fast: bool,
    executor: Executor,
) -> _Process:
    plugin = functions.prepare(app.elf, folder) if profile == "functions" else None
    words, model = _load_model(app, folder, arguments)
    if not app.needs.delegates:
        return _simulate(_qemu(app, words, profile, model, plugin), folder, timeout)
    with CoSimulation(folder, executor) as host:
        words += ["-q", host.request, "-r", host.reply]
        process = _simulate(_qemu(app, words, profile, model, plugin), folder, timeout)
    if host.failure is not None:
        raise RunError(
            f"the NPU model on the host failed: {type(host.failure).__name__}: {host.failure}", uart_log=process.uart
        ) from host.failure
    return process


def _qemu(
    app: _Application,
    arguments: Sequence[str],
    profile: str,
    model: tuple[Path, int] | None,
    plugin: tuple[Path, Path] | None,
) -> list[str]:
    return qemu.command(app.board, app.elf, arguments, count=profile != "none", model=model, plugin=plugin)


def _on_fvp(
    app: _Application,
    folder: Path,
    arguments: Sequence[str],
    timeout: float,
    profile: str,
    fast: bool,
    executor: Executor,
) -> _Process:
    binary = corstone.require(app.board, app.needs.family)
    words, model = _load_model(app, folder, arguments)
    command = corstone.command(
        app.board, binary, app.elf, words, folder, macs=app.needs.macs, fast=fast, seconds=int(timeout) + 1, model=model
    )
    return _simulate(command, folder, timeout, corstone.environment(app.board, binary))


def _load_model(
    app: _Application, folder: Path, arguments: Sequence[str]
) -> tuple[list[str], tuple[Path, int] | None]:
    if app.model is None:
        return list(arguments), None
    data, address = app.model
    path = folder / "model.pte"
    path.write_bytes(data)
    return [*arguments, "-m", f"{address:#x},{len(data)}"], (path, address)


def _simulate(
    command: Sequence[str], folder: Path, timeout: float, environment: Mapping[str, str] | None = None
) -> _Process:
    """Runs a simulator to its end or to the time-out; its files and output are below ``folder``."""
    name = Path(command[0]).name
    started = time.perf_counter()
    with open(folder / "uart.log", "wb") as out, open(folder / "stderr.log", "wb") as err:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, env=environment
            )
        except OSError as error:
            raise ArmLowerError(f"cannot run {command[0]}: {error.strerror or error}") from error
        code: int | None = None
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    seconds = time.perf_counter() - started
    text = [(folder / n).read_bytes().decode(errors="replace").replace("\r", "") for n in ("uart.log", "stderr.log")]
    return _Process(name, code, text[0].replace(_EOT, ""), text[1], seconds, timeout)


def _judge(p: _Process) -> None:
    """Raises the reason of a run that did not go well."""
    found = _ERROR.search(p.uart)
    if found:
        raise RunError(f"the device reports error {found[1]}: {found[2]}", "", int(found[1]), p.uart)
    fault = _FAULT.search(p.uart)
    if fault:
        hint = "more stack (stack=...)" if "stack overflow" in fault[1] else ""
        raise RunError(f"the device stopped at a fault: {fault[1]}", hint, 0, p.uart)
    problem, hint = "", ""
    if p.code is None:
        problem, hint = f"did not finish in {p.timeout:g} s", "a longer timeout"
    elif not re.search(r"^al start version=1\b", p.uart, re.MULTILINE):
        problem = f"ended with exit code {p.code} before the firmware started"
    elif not re.search(r"^al done$", p.uart, re.MULTILINE):
        problem = f"ended with exit code {p.code} before the firmware was done"
    elif p.code != 0 and p.name == qemu.BINARY:
        problem = f"ended with exit code {p.code}"
    if problem:
        raise RunError(f"{p.name} {problem}{_console(p)}", hint, 0, p.uart)


def _console(p: _Process) -> str:
    parts = []
    for label, text in (("the console", p.uart), ("its error output", p.stderr)):
        lines = text.strip().splitlines()[-_SHOWN:]
        if lines:
            parts.append(f"\n  {label} ended with:\n" + "\n".join(f"    {line[:200]}" for line in lines))
    return "".join(parts) or "; the console is empty"


def _outputs(path: Path, p: _Process, samples: int, each: int) -> tuple[list[Array], ...]:
    arrays = decode_outputs(read_file(path)) if path.is_file() else []
    if len(arrays) != samples * each:
        raise RunError(
            f"the device wrote {len(arrays)} outputs, {samples} execution(s) have {samples * each}", "", 0, p.uart
        )
    return tuple(arrays[i * each : (i + 1) * each] for i in range(samples))


def _result(
    p: _Process,
    samples: tuple[list[Array], ...],
    counts: Mapping[str, int],
    firmware: Firmware | None,
    counted: bool,
) -> RunResult:
    lines = [line.split(" ", 2) for line in p.uart.splitlines() if line.startswith("al ")]
    rows: dict[str, list[dict[str, str]]] = {}
    for _, kind, *rest in lines:
        rows.setdefault(kind, []).append(dict(re.findall(r"(\w+)=(\S*)", rest[0] if rest else "")))
    for row in (*rows.get("op", []), *rows.get("run", [])):
        row["instructions"] = row["instructions"] if counted else "0"
    ops = tuple(
        OpCount(
            int(r["index"]),
            r["name"],
            int(r["calls"]),
            int(r["instructions"]),
            int(r["cycles"]),
            int(r["npu_cycles"]),
            dict(zip(NPU_EVENTS, map(int, r["npu_events"].split(",")))),
        )
        for r in rows.get("op", [])
    )
    pools = {r["name"]: PoolUse(int(r["size"]), int(r["needed"]), int(r["address"], 16)) for r in rows.get("pool", [])}
    runs, stack, npu = rows.get("run", []), rows["stack"][0], rows.get("npu", [{}])[0]
    return RunResult(
        samples,
        p.uart,
        ops,
        tuple(int(r["instructions"]) for r in runs),
        tuple(int(r["cycles"]) for r in runs),
        npu.get("by", ""),
        int(npu.get("id", "0"), 16),
        pools,
        int(stack["size"]),
        int(stack["used"]),
        p.seconds,
        counts,
        firmware,
    )


