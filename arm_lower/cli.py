"""The command ``arm-lower``, the same as ``python -m arm_lower``.

An `ArmLowerError` becomes a message on standard error and exit code 2; what was asked for goes to standard output.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arm_lower import __version__
from arm_lower.errors import ArmLowerError

USAGE_ERROR = 2
"""Exit code for bad input; argparse uses the same."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line ``arguments`` (by default those of the process) and returns the exit code."""
    options = _parser().parse_args(arguments)
    _set_up_logging(options.verbose)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except ArmLowerError as error:
        print(f"arm-lower: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:
        # the reader of our output has gone, for example `| head`; keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("arm-lower: interrupted", file=sys.stderr)
        return 130


def _set_up_logging(verbose: bool) -> None:
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    for package in ("arm_lower", "quant", "tosa_ref", "fvp"):
        logging.getLogger(package).setLevel(logging.INFO if verbose else logging.WARNING)
    # on every import these two warn of kernels for GPUs and of a deprecated call of their own
    for package in ("torchao", "torch.utils._pytree"):
        logging.getLogger(package).setLevel(logging.ERROR)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="arm-lower", description="Compile PyTorch models to verified ExecuTorch programs for Arm Ethos-U NPUs."
    )
    parser.add_argument("--version", action="version", version=f"arm-lower {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="say more on standard error")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_compile(commands)
    _add_run(commands)
    _add_firmware(commands)
    _add_report(commands)
    _add_inspect(commands)
    _add_doctor(commands)
    return parser


def _add_compile(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser("compile", help="quantize and compile a model to a .pte", description=_compile.__doc__)
    p.add_argument("model", metavar="FILE.py:NAME|FILE.pt2", help="a module, function or exported program")
    p.add_argument("--target", required=True, help="ethos-u55-128, ethos-u85-256, ...")
    p.add_argument("-o", "--output", required=True, type=Path, metavar="OUT.pte")
    p.add_argument(
        "--calibration",
        metavar="FILE.npz|FILE.py:NAME",
        help="representative inputs; .npz: one array [samples, *shape] for each argument, in argument order. "
        "Without it the model is compiled as it is",
    )
    p.add_argument("--system-config", metavar="NAME", help="System_Config section of Vela's .ini")
    p.add_argument("--memory-mode", metavar="NAME", help="Memory_Mode section of Vela's .ini")
    p.add_argument("--sram-limit", type=_size, metavar="BYTES", help="bytes of SRAM for the NPU; 512K and 2M work too")
    p.add_argument("--io-layout", choices=("contiguous", "channels_last"), default="contiguous")
    p.add_argument("--io-dtype", choices=("float", "int8"), default="float")
    p.add_argument(
        "--effort", choices=("fast", "normal", "max"), default="normal", help="how many Vela settings to try"
    )
    p.add_argument(
        "--verify", action="store_true", help="run each delegate on the NPU model; repair or refuse one that is wrong"
    )
    p.add_argument("--no-record", action="store_true", help="do not write the OUT.record folder (TOSA, report)")
    p.add_argument("--report", choices=("text", "json"), help="print the report")
    p.set_defaults(run=_compile)


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser("run", help="run a .pte", description=_run.__doc__)
    p.add_argument("model", type=Path, metavar="MODEL.pte|APP.elf")
    p.add_argument(
        "--platform",
        choices=("ref", "npu", "qemu", "fvp"),
        required=True,
        help="ref, npu: on this machine, delegates on the TOSA reference model or their command streams on the NPU "
        "model, the CPU part in torch. qemu, fvp: as firmware on a board, in QEMU (with the NPU model) or on Arm's FVP",
    )
    p.add_argument("--inputs", type=Path, required=True, metavar="IN.npz", help="arrays in argument order")
    p.add_argument("--out", type=Path, required=True, metavar="OUT.npz")
    p.add_argument("--record", type=Path, metavar="DIR", help="ref: record folder, MODEL.record by default")
    _add_board(p)
    p.add_argument("--timeout", type=float, metavar="SECONDS", help="qemu, fvp: of wall time (300)")
    p.add_argument(
        "--profile",
        choices=("none", "ops", "functions"),
        help="qemu, fvp: count instructions of each kernel and delegate (ops, the default), or of each C function too",
    )
    p.add_argument("--fast", action="store_true", help="fvp: quick functional NPU, without cycles")
    p.add_argument("--uart-log", type=Path, metavar="FILE", help="qemu, fvp: write the console there")
    p.set_defaults(run=_run)


def _add_firmware(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser("firmware", help="build an application of a .pte", description=_firmware.__doc__)
    p.add_argument("model", type=Path, metavar="MODEL.pte")
    p.add_argument("-o", "--output", required=True, type=Path, metavar="APP.elf", help="APP.h is written beside it")
    p.add_argument("--sources", type=Path, metavar="DIR", help="copy the C files there, for a project of your own")
    _add_board(p)
    p.set_defaults(run=_firmware)


def _add_board(p: argparse.ArgumentParser) -> None:
    """Options of building for a board; None where the default of `fvp.builder` holds."""
    p.add_argument("--board", metavar="NAME|FILE.toml", help="corstone-300 (default), corstone-320, mps3-an547, or own")
    p.add_argument("--memory-mode", metavar="NAME", help="where things go, if not as compiled: Vela's memory modes")
    p.add_argument("--stack", type=_size, metavar="BYTES", help="bytes of stack (4096); 8K works too")
    p.add_argument("--temp", type=_size, metavar="BYTES", help="bytes of temporary memory for kernels")


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser("report", help="print the report of a compiled model", description=_report.__doc__)
    p.add_argument("model", type=Path, metavar="MODEL.pte|report.json")
    p.add_argument("--layers", type=int, default=10, metavar="N", help="how many of the most expensive layers")
    p.set_defaults(run=_report)


def _add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser("inspect", help="print what a .pte holds", description=_inspect.__doc__)
    p.add_argument("file", type=Path, metavar="FILE.pte")
    p.add_argument(
        "--npu",
        action="store_true",
        help="list the command stream of each Ethos-U delegate, with the PyTorch modules if FILE.record is there",
    )
    p.set_defaults(run=_inspect)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser("doctor", help="what is installed and what is missing", description=_doctor.__doc__)
    p.set_defaults(run=_doctor)


def _compile(options: argparse.Namespace) -> int:
    """Quantizes a model with calibration data, compiles it for an Ethos-U and writes a .pte."""
    from arm_lower.files import check_writable
    from arm_lower.spec import EthosUCompileSpec

    # what is quickly found wrong is found before torch is imported
    EthosUCompileSpec(
        options.target,
        system_config=options.system_config,
        memory_mode=options.memory_mode,
        sram_limit=options.sram_limit,
        effort=options.effort,
    )
    check_writable(options.output)

    import arm_lower
    from arm_lower.load import load_model, load_samples
    from arm_lower.progress import ProgressBars

    model, example = load_model(options.model)
    calibration = load_samples(options.calibration) if options.calibration else None
    with ProgressBars() as progress:
        compiled = arm_lower.compile(
            model,
            calibration,
            options.target,
            example_inputs=example,
            system_config=options.system_config,
            memory_mode=options.memory_mode,
            sram_limit=options.sram_limit,
            io_layout=options.io_layout,
            io_dtype=options.io_dtype,
            effort=options.effort,
            verify=options.verify,
            progress=progress,
        )
    compiled.save(options.output, record=not options.no_record)
    if options.report == "json":
        print(compiled.report.to_json(), end="")
    elif options.report == "text":
        print(compiled.report.to_text(), end="")
    else:
        r = compiled.report
        print(
            f"{options.output}: {r.pte_bytes} bytes, {len(r.delegates)} delegate(s), {len(r.cpu_ops)} CPU operator(s)"
        )
    return 0


def _run(options: argparse.Namespace) -> int:
    """Runs a .pte: on the host, or as firmware on a Cortex-M in QEMU or on Arm's FVP.

    On the host its CPU operators run in torch. A run as firmware prints what each kernel took.
    """
    from arm_lower.files import check_writable, read_arrays, write_arrays

    check_writable(options.out)
    inputs = read_arrays(options.inputs)
    if options.platform in ("qemu", "fvp"):
        return _run_on_device(options, inputs)
    given = [n for n in (*_DEVICE_OPTIONS, *_RUN_OPTIONS, "fast", "uart_log") if getattr(options, n)]
    if given:
        names = ", ".join("--" + n.replace("_", "-") for n in given)
        raise ArmLowerError(f"--platform {options.platform} runs on this machine, without {names}")
    from tosa_ref.host import DelegateRunner, run_pte

    runner: DelegateRunner | None = None
    if options.platform == "npu":
        from fvp.ethosu.delegate import run_delegate

        runner = run_delegate
    write_arrays(options.out, run_pte(options.model, inputs, options.record, runner))
    return 0


_DEVICE_OPTIONS = ("board", "memory_mode", "stack", "temp")
_RUN_OPTIONS = ("timeout", "profile")


def _board_options(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments for `fvp.builder.build`."""
    found = {n: getattr(options, n) for n in ("board", "memory_mode", "stack") if getattr(options, n) is not None}
    return found | ({"sizes": {"temp": options.temp}} if options.temp else {})


def _run_on_device(options: argparse.Namespace, inputs: list[Any]) -> int:
    from arm_lower.files import check_writable, write_arrays, write_file
    from fvp.report import to_text
    from fvp.runner import RunError, run

    if options.uart_log:
        check_writable(options.uart_log)
    settings = {n: getattr(options, n) for n in _RUN_OPTIONS if getattr(options, n) is not None}
    settings |= _board_options(options) | {"platform": options.platform, "fast": options.fast}
    try:
        result = run(options.model, inputs, **settings)
    except RunError as error:
        if options.uart_log:
            write_file(options.uart_log, error.uart_log)
        raise
    write_arrays(options.out, result.outputs)
    if options.uart_log:
        write_file(options.uart_log, result.uart_log)
    print(to_text(result), end="")
    return 0


def _firmware(options: argparse.Namespace) -> int:
    """Builds an application: the runtime, the kernels that a .pte calls, its memory on a board, and the .pte itself.

    Prints where everything goes; a C header with all sizes is written beside the application.
    """
    from arm_lower.files import check_writable
    from fvp.builder import build, header_path, save
    from fvp.export import export, new_folder

    check_writable(options.output)
    check_writable(header_path(options.output))
    if options.sources:
        new_folder(options.sources)
    firmware = build(options.model, **_board_options(options))
    header = save(firmware, options.output)
    print(f"{firmware}\n{options.output}, {header}")
    if options.sources:
        print(f"{len(export(firmware, options.sources))} files in {options.sources}")
    return 0


def _report(options: argparse.Namespace) -> int:
    """Prints the report that `arm-lower compile` left in the record folder beside a .pte."""
    from arm_lower.files import read_file
    from arm_lower.report.model import Report

    path = options.model
    if path.suffix == ".pte":
        path = path.with_suffix(".record") / "report.json"
    print(Report.from_json(read_file(path).decode(errors="replace")).to_text(options.layers), end="")
    return 0


def _inspect(options: argparse.Namespace) -> int:
    """Prints interface, memory plan, instructions, delegates and needed kernels of a .pte, ours or ExecuTorch's."""
    from arm_lower.files import read_file
    from arm_lower.pte.text import describe_file

    data = read_file(options.file)
    if not options.npu:
        print(describe_file(data), end="")
        return 0
    from arm_lower.pte.ethosu_blob import BACKEND_ID
    from arm_lower.pte.read import read
    from fvp.ethosu.delegate import describe
    from fvp.ethosu.record import recorded_sources

    folder = options.file.with_suffix(".record")
    found = False
    for method in read(data).methods:
        for i, delegate in enumerate(d for d in method.delegates if d.id == BACKEND_ID):
            found = True
            layers = recorded_sources(folder, delegate.data)
            note = "" if layers is not None else f"; no record of it in {folder}, so layers and modules are not known"
            print(f"method {method.name}, delegate {i}{note}\n{describe(delegate.data, layers=layers)}")
    if not found:
        print(f"{options.file} has no Ethos-U delegate")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    """Lists the versions found, what is missing and how to get it; exit code 1 if something needed is missing."""
    from arm_lower.doctor import examine, to_text
    from fvp.doctor import examine as examine_device

    findings = [*examine(), *examine_device()]
    print(to_text(findings), end="")
    return 0 if all(f.ok or not f.needed for f in findings) else 1


def _size(text: str) -> int:
    """``384K``, ``2M`` or a number of bytes."""
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdigit() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size above 0; write bytes, or 512K, or 2M")
    return int(digits) * unit


if __name__ == "__main__":
    sys.exit(main())
