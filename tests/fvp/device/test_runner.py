"""Programs on a Cortex-M55 in QEMU, the FVP's command lines, and every way in which a run can fail."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_programs import AS_QEMU, SHAPE, compiled, delegate_of, one_kernel, samples, stand_in
from pte_samples import SAMPLES, blob

from arm_lower.cli import main
from arm_lower.errors import ArmLowerError, PteError
from arm_lower.pte.emit import emit
from arm_lower.pte.ethosu_blob import unpack
from fvp import corstone, functions
from fvp.boards import load_board
from fvp.builder import Firmware, build, save
from fvp.compare import problems, ulps_apart
from fvp.cosim import CoSimulation, Job, execute
from fvp.ethosu.delegate import run_delegate
from fvp.ethosu.errors import NpuError
from fvp.requirements import value_table_bytes
from fvp.runner import RunError, RunResult, run, run_samples
from fvp.tensors import decode_outputs, encode_inputs
from tosa_ref.host import Host

ONES = np.ones(8, np.float32)
MIXED = np.array([-2, -1, -0.0, 0, 1, 2, np.inf, np.nan], np.float32)


def failure(*arguments: Any, **options: Any) -> RunError:
    with pytest.raises(RunError) as caught:
        run(*arguments, **options)
    return caught.value


# ---- results -------------------------------------------------------------------------------------------------------


def test_a_kernel() -> None:
    result = run(one_kernel(), [MIXED])
    assert result.outputs[0].tobytes() == Host(one_kernel()).run([MIXED])[0].tobytes()
    assert [(op.name, op.calls) for op in result.ops] == [("aten::relu.out", 1)]
    assert (result.npu, result.npu_id) == ("", 0)


@pytest.mark.parametrize("name", [n for n, make in SAMPLES.items() if make().calls])
def test_what_a_program_can_hold(name: str) -> None:
    """Every call of the samples; those of one method in one run, so that buffers keep their state."""
    sample = SAMPLES[name]()
    data = emit(sample.program)
    for method in dict.fromkeys(c.method for c in sample.calls):
        calls = [c for c in sample.calls if c.method == method]
        result = run_samples(data, [[x.numpy() for x in c.inputs] for c in calls], method=method)
        for call, found in zip(calls, result.samples, strict=True):
            assert problems(found, [np.asarray(e) for e in call.expected], ulps=2) == []
        assert result.pools["values"].needed == value_table_bytes(sample.program.method(method))


def test_a_delegate_on_the_model_of_the_host() -> None:
    inputs = [[x.numpy() for x in s] for s in samples(3)]
    result = run_samples(compiled().buffer, inputs)
    host = Host(compiled().buffer, delegate_runner=run_delegate)
    for given, found in zip(inputs, result.samples, strict=True):
        assert [f.tobytes() for f in found] == [w.tobytes() for w in host.run(given)]
    assert result.npu == "host" and result.npu_id == 0
    delegate = next(op for op in result.ops if op.name == "EthosUBackend")
    assert delegate.calls == 3 and 0 < delegate.instructions < sum(result.instructions)


def test_a_delegate_with_dedicated_sram() -> None:
    data = compiled("ethos-u65-256", "Dedicated_Sram_384KB").buffer
    inputs = [samples()[0][0].numpy()]
    result = run(data, inputs)
    assert problems(result.outputs, Host(data, delegate_runner=run_delegate).run(inputs), ulps=0) == []


def test_one_elf_for_both_boards_and_from_its_file(tmp_path: Path) -> None:
    """The file alone is enough: the model is read from it."""
    save(build(one_kernel()), tmp_path / "app.elf")
    for board in ("corstone-300", "mps3-an547"):
        assert run(tmp_path / "app.elf", [ONES], board=board).outputs[0].tolist() == [1] * 8


def test_a_model_beside_the_application() -> None:
    firmware = build(one_kernel(), embed=False)
    assert firmware.loaded is not None and firmware.loaded[1] % 16 == 0
    assert run(firmware, [-ONES]).outputs[0].tolist() == [0] * 8
    with pytest.raises(ArmLowerError, match="app.elf has no model in it"):
        run(firmware.elf, [ONES])


def test_kernels_in_another_memory(tmp_path: Path) -> None:
    text = 'extends = "corstone-300"\nname = "tight"\n[memories]\n' + (
        f'itcm = {{ address = 0x10000000, size = {build(one_kernel()).sizes.text - 64}, kind = "tcm", npu = false }}\n'
    )
    (tmp_path / "tight.toml").write_text(text)
    assert run(one_kernel(), [-ONES], board=tmp_path / "tight.toml").outputs[0].tolist() == [0] * 8


def test_other_consoles_and_cores(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "corstone-300"\nname = "own"\n[uart]\ntype = "semihosting"\n')
    # SYS_WRITEC goes to QEMU's standard error: not the console that the runner reads
    assert "its error output ended with" in failure(one_kernel(), [ONES], board=tmp_path / "own.toml").message
    (tmp_path / "m33.toml").write_text('extends = "corstone-300"\nname = "m33"\ncpu = "cortex-m33"\n')
    assert run(one_kernel(), [-ONES], board=tmp_path / "m33.toml").outputs[0].tolist() == [0] * 8


# ---- counts --------------------------------------------------------------------------------------------------------


def test_counts_are_exact_and_repeat() -> None:
    """What a kernel takes more for more elements is what the plugin counts in its functions."""
    few, many = (run(one_kernel(count=n), [np.ones(n, np.float32)], profile="functions") for n in (512, 1024))
    other = {"memcpy", "memset", "(other)", "__udivmoddi4"}
    more = {n: c - few.functions.get(n, 0) for n, c in many.functions.items() if n not in other}
    more = {n: c for n, c in more.items() if c and not n.startswith("al_put")}
    assert many.ops[0].instructions - few.ops[0].instructions == sum(more.values()) > 0
    again = run(one_kernel(count=512), [np.ones(512, np.float32)])
    assert (again.ops, again.instructions) == (few.ops, few.instructions)
    assert few.ops[0].instructions < few.instructions[0] < few.ops[0].instructions + 2000


def test_no_profile_gives_the_same_results() -> None:
    plain, counted = run(one_kernel(), [MIXED], profile="none"), run(one_kernel(), [MIXED])
    assert plain.outputs[0].tobytes() == counted.outputs[0].tobytes()
    assert plain.instructions == (0,) and plain.ops[0].instructions == 0 < counted.ops[0].instructions


def test_the_stack_is_measured_and_guarded() -> None:
    result = run(one_kernel(), [ONES], stack=8192)
    assert result.stack_size == 8192 and 300 < result.stack_used < 4096
    exact = run(one_kernel(), [ONES], stack=(result.stack_used + 15) // 16 * 16)
    assert exact.outputs[0].tolist() == [1] * 8
    error = failure(one_kernel(), [ONES], stack=result.stack_used // 2)
    assert error.message.startswith("the device stopped at a fault: CFSR=0x00100000 ")
    assert error.message.endswith("stack overflow") and error.hint == "more stack (stack=...)"


# ---- memory that is too small --------------------------------------------------------------------------------------

TOO_SMALL = [
    ("values", 20, "memory for the value table is too small"),
    ("arena", 21, "the arena is too small"),
    ("scratch", 22, "NPU scratch memory is too small"),
]


@pytest.mark.parametrize(("block", "status", "text"), TOO_SMALL)
def test_sixteen_bytes_less(block: str, status: int, text: str) -> None:
    data = compiled().buffer
    enough = build(data).sizes.blocks[block]
    error = failure(data, [samples()[0][0].numpy()], sizes={block: enough - 16})
    assert error.status == status and text in error.message
    needed, available = f"{enough}", f"{enough - 16}"
    assert needed in error.message and available in error.message


def test_unplanned_memory_that_is_too_small() -> None:
    data = one_kernel(planned=False)
    assert run(data, [ONES]).outputs[0].tolist() == [1] * 8
    assert failure(data, [ONES], sizes={"io": 48}).status == 21


# ---- inputs --------------------------------------------------------------------------------------------------------

WRONG_INPUTS = [
    ([np.ones(7, np.float32)], 32, "input has the wrong shape"),
    ([np.ones(9, np.float32)], 32, "input has the wrong shape"),
    ([np.ones((8, 1), np.float32)], 32, "input has the wrong shape"),
    ([np.ones(1 << 20, np.float32)], 32, "input has the wrong shape"),
    ([np.ones(8, np.int32)], 31, "input has the wrong data type"),
    ([np.ones(8, np.float64)], 31, "input has the wrong data type"),
    ([None], 31, "input has the wrong data type"),
    ([], 30, "no input or output of this number"),
    ([ONES, ONES], 30, "no input or output of this number"),
]


@pytest.mark.parametrize(("inputs", "status", "text"), WRONG_INPUTS)
def test_wrong_inputs(inputs: list[Any], status: int, text: str) -> None:
    error = failure(one_kernel(), inputs)
    assert error.status == status
    assert error.message.startswith(f"the device reports error {status}: {text}")


def test_inputs_that_no_device_takes() -> None:
    with pytest.raises(ArmLowerError) as caught:
        run(one_kernel(), [np.ones(8, np.complex64)])
    assert caught.value.message == (
        "input 0 is complex64 with 1 dimensions; the device takes up to 16 dimensions of uint8, int8, int16, int32, "
        "int64, float16, float32, float64, bool"
    )


def test_an_unknown_method() -> None:
    with pytest.raises(PteError, match="no method 'backward'"):
        run(one_kernel(), [ONES], method="backward")


# ---- files that the device itself has to refuse --------------------------------------------------------------------


def loaded(data: bytes, offset: int = 0, *, kernels: tuple[str, ...] = ()) -> Firmware:
    """An application for `one_kernel` that finds ``data`` at its model's address."""
    firmware = build(one_kernel(count=1000), embed=False, kernels=kernels)
    assert firmware.loaded is not None
    return dataclasses.replace(firmware, loaded=(data, firmware.loaded[1] + offset))


def changed(at: int, value: bytes) -> bytes:
    data = bytearray(one_kernel())
    data[at : at + len(value)] = value
    return bytes(data)


REFUSED = [
    (delegate_of(blob(), "ethos-u55-128")[:900], 0, 1, "the file is shorter than its header says"),
    (b"GIF89a" * 20, 0, 2, "not an ExecuTorch program"),
    (changed(4, b"ET13"), 0, 2, "not an ExecuTorch program"),
    (one_kernel(), 8, 4, "the program is not at a 16-byte aligned address"),
    (changed(32, b"\xff" * 64), 0, 5, "the file is corrupt"),
    (one_kernel("aten::abs.out"), 0, 11, "an operator has no kernel in this build: aten::abs.out"),
    (delegate_of(blob(), "ethos-u55-128"), 0, 12, "a delegate has no backend in this build: EthosUBackend"),
]


@pytest.mark.parametrize(("data", "offset", "status", "text"), REFUSED, ids=[str(r[2]) + r[3][:12] for r in REFUSED])
def test_refused_files(data: bytes, offset: int, status: int, text: str) -> None:
    error = failure(loaded(data, offset), [ONES])
    assert (error.status, text in error.message) == (status, True), error.message


def test_another_program_in_the_same_application() -> None:
    assert run(loaded(one_kernel("aten::abs.out"), kernels=("aten::abs.out",)), [-ONES]).outputs[0].tolist() == [1] * 8


# ---- co-simulation -------------------------------------------------------------------------------------------------


def test_an_error_of_the_model() -> None:
    def refuse(job: Job) -> None:
        raise NpuError("offset 0x20: NPU_OP_CONV: something is wrong")

    error = failure(compiled().buffer, [samples()[0][0].numpy()], executor=refuse)
    assert error.status == 70
    assert "the NPU model on the host reports an error" in error.message
    assert "offset 0x20: NPU_OP_CONV: something is wrong" in error.message


def test_a_host_that_dies_in_the_call() -> None:
    def die(job: Job) -> None:
        raise KeyError("a mistake in the model")

    error = failure(compiled().buffer, [samples()[0][0].numpy()], executor=die)
    assert error.message == "the NPU model on the host failed: KeyError: 'a mistake in the model'"
    assert "arm-lower: error 71: the host does not answer" in error.uart_log


def test_a_host_that_does_not_answer() -> None:
    started = time.perf_counter()
    error = failure(compiled().buffer, [samples()[0][0].numpy()], executor=lambda job: time.sleep(3), timeout=1.5)
    assert error.message.startswith("qemu-system-arm did not finish in 1.5 s\n  the console ended with:\n")
    assert "al pool name=scratch" in error.message and time.perf_counter() - started < 10


@pytest.mark.parametrize("value", [0x00, 0x7F, 0xA5])
def test_poisoned_scratch_changes_nothing(value: int) -> None:
    """What the NPU has not written and is no input must not reach a result."""
    (delegate,) = compiled().delegates
    tensors = unpack(delegate.processed).inputs

    def poison(job: Job) -> None:
        kept = bytes(job.scratch)
        job.scratch[:] = bytes([value]) * len(kept)
        for t in tensors:
            job.scratch[t.offset : t.offset + t.nbytes] = kept[t.offset : t.offset + t.nbytes]
        execute(job)

    inputs = [samples()[0][0].numpy()]
    wanted = Host(compiled().buffer, delegate_runner=run_delegate).run(inputs)[0]
    assert run(compiled().buffer, inputs, executor=poison).outputs[0].tobytes() == wanted.tobytes()


def test_other_npus_on_the_board_for_all() -> None:
    inputs = [samples()[0][0].numpy()]
    data = compiled("ethos-u85-256").buffer
    result = run(data, inputs, board="mps3-an547")
    assert problems(result.outputs, Host(data, delegate_runner=run_delegate).run(inputs), ulps=0) == []


def test_requests_that_are_none(tmp_path: Path) -> None:
    with CoSimulation(tmp_path) as host, open(tmp_path / host.request, "wb", buffering=0) as request:
        request.write(struct.pack("<6I", 0x1234, 1, 0, 0, 0, 0))
        host._thread.join(5)
        assert isinstance(host.failure, NpuError) and "is no request of version 1" in str(host.failure)


# ---- simulators that fail ------------------------------------------------------------------------------------------

START = r"print('al start version=1 board=x\nal run instructions=1 cycles=1', flush=True)"
BROKEN = [
    ("", r" ended with exit code 0 before the firmware started; the console is empty"),
    ("print('Segmentation fault', file=sys.stderr); sys.exit(139)",
     r" ended with exit code 139 before the firmware started\n  its error output ended with:\n    Segmentation fault"),
    ("os.kill(os.getpid(), 11)", r" ended with exit code -11 before the firmware started"),
    (r"sys.stdout.buffer.write(bytes(range(128, 256)) * 100 + b'\nal\nal done')",
     r" ended with exit code 0 before the firmware started\n  the console ended with"),
    (START, r" ended with exit code 0 before the firmware was done\n  the console ended with:\n    al start"),
    (START + r"; print('al donee')", r" ended with exit code 0 before the firmware was done"),
    (START + r"; print('al stack size=1 used=1\nal done')", r"^the device wrote 0 outputs, 1 execution\(s\) have 1$"),
    (START + "; import time; time.sleep(60)", r" did not finish in 2 s\n  the console ended with:\n    al start"),
    (START + r"; print('arm-lower: error 64: NPU bus error: EthosUBackend\nal done')",
     r"^the device reports error 64: NPU bus error: EthosUBackend$"),
]  # fmt: skip


@pytest.mark.parametrize("platform", ["qemu", "fvp"])
@pytest.mark.parametrize(("then", "message"), BROKEN)
def test_broken_simulators(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, then: str, message: str
) -> None:
    name = "qemu-system-arm" if platform == "qemu" else "FVP_Corstone_SSE-300_Ethos-U55"
    firmware = build(one_kernel())
    stand_in(tmp_path, name, then)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}")
    with pytest.raises(RunError, match=message):
        run(firmware, [ONES], platform=platform, timeout=2)


def test_a_simulator_that_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    firmware = build(one_kernel())
    (tmp_path / "qemu-system-arm").write_text("#!/does/not/exist\n")
    (tmp_path / "qemu-system-arm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArmLowerError, match="cannot run .*qemu-system-arm: No such file"):
        run(firmware, [ONES])
    (tmp_path / "qemu-system-arm").unlink()
    with pytest.raises(ArmLowerError) as caught:
        run(firmware, [ONES])
    assert caught.value.message == "qemu-system-arm is not on PATH"
    assert caught.value.hint == "apt-get install --no-install-recommends qemu-system-arm"


def test_qemu_that_says_no_has_an_exit_code_that_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    firmware = build(one_kernel())
    stand_in(tmp_path, "qemu-system-arm", START + r"; print('al stack size=1 used=1\nal done'); sys.exit(3)")
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}")
    assert failure(firmware, [ONES]).message.startswith("qemu-system-arm ended with exit code 3\n")


# ---- the FVPs ------------------------------------------------------------------------------------------------------


def arguments_of(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


def on_stand_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, firmware: Firmware, **options: Any
) -> RunResult:
    """A run on an FVP that is QEMU."""
    stand_in(folder, name, AS_QEMU.format(qemu=shutil.which("qemu-system-arm")))
    monkeypatch.setenv(corstone.HOME, str(folder.parent))
    return run(firmware, [-ONES], platform="fvp", **options)


def test_command_line_of_corstone_300(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    firmware = build(one_kernel())
    name = "FVP_Corstone_SSE-300_Ethos-U55"
    folder = tmp_path / "models" / "Linux64"
    assert on_stand_in(folder, monkeypatch, name, firmware, timeout=20).outputs[0].tolist() == [0] * 8
    arguments = arguments_of(folder, name)["arguments"]
    cwd = next(a for a in arguments if "semihosting-cwd" in a).partition("=")[2]
    options = [
        "mps3_board.visualisation.disable-visualisation=1",
        "mps3_board.telnetterminal0.start_telnet=0",
        "mps3_board.uart0.out_file=-",
        "mps3_board.uart0.shutdown_on_eot=1",
        "cpu0.semihosting-enable=1",
        "cpu0.semihosting-stack_base=0",
        "cpu0.semihosting-heap_limit=0",
        f"cpu0.semihosting-cwd={cwd}",
        "cpu0.semihosting-cmd_line=app -n 1 -i in -o out",
    ]
    assert arguments == [
        *(word for option in options for word in ("-C", option)), "-a", str(firmware.elf), "--timelimit", "21",
    ]  # fmt: skip


def test_command_line_with_npu_and_a_model_beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    firmware = build(compiled().buffer, embed=False)
    assert firmware.loaded is not None
    name = "FVP_Corstone_SSE-300_Ethos-U55"
    stand_in(tmp_path, name)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}")
    with pytest.raises(RunError, match="before the firmware started"):
        run(firmware, [np.zeros(SHAPE, np.float32)], platform="fvp", fast=True)
    arguments = arguments_of(tmp_path, name)["arguments"]
    assert arguments[:4] == ["-C", "ethosu.num_macs=128", "-C", "ethosu.extra_args=--fast"]
    data = arguments[arguments.index("--data") + 1]
    assert data.endswith(f"/model.pte@{firmware.loaded[1]:#x}")
    size = len(compiled().buffer)
    assert f"cpu0.semihosting-cmd_line=app -n 1 -i in -o out -m {firmware.loaded[1]:#x},{size}" in arguments


def test_command_line_of_corstone_320(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    firmware = build(compiled("ethos-u85-256").buffer, "corstone-320")
    name = "FVP_Corstone_SSE-320"
    folder = tmp_path / "models" / "Linux64_GCC-9.3"
    (tmp_path / "python" / "lib").mkdir(parents=True)
    stand_in(folder, name)
    monkeypatch.setenv(corstone.HOME, str(tmp_path))
    with pytest.raises(RunError, match="before the firmware started"):
        run(firmware, [np.zeros(SHAPE, np.float32)], platform="fvp")
    found = arguments_of(folder, name)
    assert found["library_path"].split(":")[0] == str(tmp_path / "python" / "lib")
    options = [a for flag, a in zip(found["arguments"], found["arguments"][1:], strict=False) if flag == "-C"]
    assert options[0] == "mps4_board.subsystem.ethosu.num_macs=256"
    assert "mps4_board.uart0.unbuffered_output=1" in options
    assert "mps4_board.subsystem.cpu0.semihosting-enable=1" in options


def test_a_line_that_an_fvp_would_cut(tmp_path: Path) -> None:
    board = load_board("corstone-300")
    with pytest.raises(ArmLowerError, match=r"has 304 characters, the FVP takes 255: app aaaa"):
        corstone.command(board, tmp_path / "fvp", tmp_path / "app.elf", ["a" * 300], tmp_path)


def test_no_fvp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(corstone.HOME, str(tmp_path))
    with pytest.raises(ArmLowerError) as caught:
        run(one_kernel(), [ONES], platform="fvp")
    assert caught.value.message == (
        "FVP_Corstone_SSE-300_Ethos-U55 is neither on PATH nor below ARM_LOWER_FVP_HOME"
    )
    assert "licence agreement" in caught.value.hint and "--i-agree-to-the-contained-eula" in caught.value.hint


def test_platforms_that_a_board_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(ArmLowerError) as caught:
        run(one_kernel(), [ONES], board="corstone-320")
    assert caught.value.message == "QEMU has no machine for board corstone-320"
    assert caught.value.hint == "boards with one: corstone-300, mps3-an547"


def test_options_that_are_wrong() -> None:
    with pytest.raises(ArmLowerError, match="platform is 'renode'; allowed: qemu, fvp"):
        run(one_kernel(), [ONES], platform="renode")
    with pytest.raises(ArmLowerError, match="profile is 'all'; allowed: none, ops, functions"):
        run(one_kernel(), [ONES], profile="all")
    with pytest.raises(ArmLowerError, match="functions are counted in QEMU only"):
        run(one_kernel(), [ONES], profile="functions", platform="fvp")
    with pytest.raises(ArmLowerError, match="an application is built already, stack cannot be changed"):
        run(build(one_kernel()), [ONES], stack=1024)


def test_a_plugin_that_counts_nothing(tmp_path: Path) -> None:
    with pytest.raises(ArmLowerError, match="QEMU's plugin has counted nothing"):
        functions.counts(tmp_path / "functions.txt")


# ---- files of tensors ----------------------------------------------------------------------------------------------


def test_outputs_that_are_broken() -> None:
    head = struct.pack("<4sIIi", b"ALT1", 6, 1, 3) + b"\0"
    assert decode_outputs(head + bytes(12))[0].tolist() == [0, 0, 0]
    for data, message in (
        (b"ALT2" + bytes(20), "does not begin with b'ALT1'"),
        (head[:9], "is truncated"),
        (head + bytes(11), "is truncated: 29 bytes are expected, 28 there"),
        (struct.pack("<4sII", b"ALT1", 15, 0) + bytes(2), "has dtype 15, which numpy does not have"),
    ):
        with pytest.raises(ArmLowerError, match=f"the device's output 0 {message}"):
            decode_outputs(data)


def test_order_in_memory() -> None:
    method = SAMPLES["network"]().program.methods[0]
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    data = struct.pack("<4sII2i", b"ALT1", 2, 2, 2, 3) + bytes([1, 0]) + x.T.tobytes()
    assert decode_outputs(data * 2)[1].tolist() == x.tolist()
    assert encode_inputs(method, [None]) == struct.pack("<4sII", b"ALT1", 255, 0)
    assert encode_inputs(method, [True])[4:8] == bytes([11, 0, 0, 0])


def test_units_in_the_last_place() -> None:
    one = np.array([1, 1e-30, np.nan], np.float32)
    assert ulps_apart(one, one) == 0
    assert ulps_apart(np.array([1, 2e-7, np.nan], np.float32), one) == pytest.approx(1.68, abs=0.01)
    assert ulps_apart(np.array([1, np.nan, np.nan], np.float32), one) == np.inf
    assert ulps_apart(np.array([1, 0, 0], np.float32), one) == np.inf
    assert problems([ONES], [], 1) == ["1 outputs, 0 are expected"]
    assert problems([ONES], [ONES[:7]], 1) == ["output 0 is float32 [8], expected float32 [7]"]
    assert problems([ONES.astype(int)], [2 * ONES.astype(int)], 1) == ["output 0: 8 of 8 elements differ"]


# ---- the command ---------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "relu.pte").write_bytes(one_kernel())
    np.savez(tmp_path / "in.npz", MIXED)
    common = ["run", str(tmp_path / "relu.pte"), "--inputs", str(tmp_path / "in.npz"), "--out", str(tmp_path / "o.npz")]
    assert main([*common, "--platform", "qemu", "--profile", "functions", "--uart-log", str(tmp_path / "log")]) == 0
    text = capsys.readouterr().out
    assert "aten::relu.out" in text and "stack: " in text and "function (whole program" in text
    assert np.load(tmp_path / "o.npz")["output0"].tobytes() == Host(one_kernel()).run([MIXED])[0].tobytes()
    assert (tmp_path / "log").read_text().endswith("al done\n")

    np.savez(tmp_path / "in.npz", MIXED[:5])
    assert main([*common, "--platform", "qemu", "--uart-log", str(tmp_path / "log")]) == 2
    assert "error 32: input has the wrong shape" in capsys.readouterr().err
    assert "arm-lower: error 32" in (tmp_path / "log").read_text()
    assert main([*common, "--platform", "ref", "--board", "corstone-300"]) == 2
    assert "--platform ref runs on this machine, without --board" in capsys.readouterr().err


def test_doctor_names_what_is_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(corstone.HOME, raising=False)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "Arm C library" in text and "newlib-nano" in text
    for name in ("Arm GCC", "QEMU"):
        assert any(line.startswith("ok") and name in line for line in text.splitlines())
    if "-       FVP" in text:
        assert text.count("licence agreement") == 1
