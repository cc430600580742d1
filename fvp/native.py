"""The device runtime on the host: builds `fvp/firmware` with gcc and runs `.pte` files in it.

The kernels are found by their ``AL_KERNEL(symbol, "name")`` lines. Every source is compiled into an object of its own
in the cache, ``$ARM_LOWER_CACHE`` or ``~/.cache/arm-lower``, under the digest of all that it depends on.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arm_lower.errors import ArmLowerError
from arm_lower.pte.ethosu_blob import BACKEND_ID, unpack
from arm_lower.pte.model import DelegateCall
from arm_lower.pte.read import read
from fvp.ethosu.delegate import run_delegate
from fvp.ethosu.memory import Memory, Region
from fvp.ethosu.program import load
from fvp.sources import FIRMWARE, KernelSource, kernel_sources

Array = npt.NDArray[Any]
DelegateRunner = Callable[[int, bytes, list[Array]], Sequence[Array]]
"""As `tosa_ref.host.DelegateRunner`."""
NpuRunner = Callable[[bytes, Mapping[int, Array]], None]
"""``npu(commands, regions)`` executes a driver payload on the memory (uint8) of NPU regions, in place."""

WARNINGS = ("-Wall", "-Wextra", "-Werror")
_FLAGS = ("-std=gnu11", "-fPIC", "-ffp-contract=off")  # sums as on the device
SANITIZERS = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all",
              "-fno-omit-frame-pointer", "-g")

_NUMPY: Mapping[int, str] = {0: "u1", 1: "i1", 2: "i2", 3: "i4", 4: "i8", 5: "f2", 6: "f4", 7: "f8", 9: "c8", 11: "?"}
_NULL, _INT, _BOOL, _DOUBLE, _TENSOR, _STRING = range(1, 7)
_NO_SUCH_METHOD, _NPU_MODEL, _HOST_GONE = 10, 70, 71


def registry_source(kernels: Iterable[KernelSource]) -> str:
    """C source of ``al_kernels``, the table of these kernels."""
    table = list(kernels)
    return "\n".join([
        '#include "host.h"',
        *(f"al_status {k.function}(al_call *call);" for k in table),
        "const al_kernel al_kernels[] = {",
        *(f'  {{"{k.name}", {k.function}}},' for k in table),
        "  {0, 0},",
        "};",
        f"const uint32_t al_kernel_count = {len(table)};",
        "",
    ])


def cache_directory() -> Path:
    """Where built libraries are kept."""
    root = os.environ.get("ARM_LOWER_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "arm-lower") / "native"


def library_sources(kernels: Sequence[str] | None = None) -> list[Path]:
    """Sources of the host build, without ``main``.

    Args:
        kernels: Names of the files of ``fvp/firmware/kernels`` without ``.c``; all by default.
    """
    chosen = [f for f in sorted((FIRMWARE / "kernels").glob("*.c")) if kernels is None or f.stem in kernels]
    ethosu = [FIRMWARE / "ethosu" / name for name in ("backend.c", "payload.c")]
    return [*sorted((FIRMWARE / "core").glob("*.c")), *chosen, *ethosu, FIRMWARE / "host" / "host.c"]


def build_library(sources: Sequence[Path] | None = None) -> Path:
    """The shared library, built if it is not in the cache; in one process the sources are looked at once.

    Args:
        sources: All sources; `library_sources` by default.

    Raises:
        ArmLowerError: There is no gcc, or a source does not compile; has the compiler's words.
    """
    return _built(tuple(library_sources() if sources is None else sources))


@lru_cache(maxsize=16)
def _built(sources: tuple[Path, ...]) -> Path:
    return build(sources, ("-O2", "-g"), ("-shared",), "al_host.so")


def build_executable(*mains: str, sanitize: bool = True, compiler: str = "gcc", flags: Sequence[str] = ()) -> Path:
    """An executable of the runtime and these files of ``fvp/firmware/host`` (without ``.c``).

    Args:
        mains: Names of the files.
        sanitize: Under ASan and UBSan.
        compiler: gcc or clang.
        flags: More of them, for the compiler and the linker.

    Raises:
        ArmLowerError: As `build_library`.
    """
    sources = [*library_sources(), *(FIRMWARE / "host" / f"{main}.c" for main in mains)]
    options = ("-O1", *SANITIZERS, *flags) if sanitize else ("-O2", "-g", *flags)
    return build(sources, options, options, mains[-1], compiler)


FUZZ_FLAGS = ("-DAL_INSTRUCTION_LIMIT=2000",)
"""Endless loops end soon."""


def build_fuzzer() -> Path:
    """The coverage-guided fuzzer of ``fvp/firmware/host``, which needs no more than gcc."""
    return build_executable("fuzz_target", "fuzz_engine", flags=(*FUZZ_FLAGS, "-fsanitize-coverage=trace-pc"))


def build_libfuzzer() -> Path:
    """The same target under clang's libFuzzer."""
    return build_executable("fuzz_target", compiler="clang", flags=(*FUZZ_FLAGS, "-fsanitize=fuzzer", "-w"))


def build(sources: Sequence[Path], flags: Sequence[str], link_flags: Sequence[str], name: str,
          compiler: str = "gcc") -> Path:
    """Compiles and links; the result is in the cache under the digest of everything it depends on."""
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    include = [f"-I{FIRMWARE / part}" for part in ("include", "core", "kernels", "ethosu", "host")]
    warnings = () if "-w" in flags else WARNINGS
    command = [compiler, *_FLAGS, *warnings, *flags, *include]
    registry = registry_source(k for k in kernel_sources().values() if k.file in sources)
    headers = (p.read_bytes() for p in sorted(FIRMWARE.rglob("*.h")))
    common = _digest(_version(compiler), *_FLAGS, *flags, *WARNINGS, *headers)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        generated = Path(scratch) / "registry.c"
        generated.write_text(registry)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda s: _object(s, command, common, cache, Path(scratch)),
                                    [*sources, generated]))
        target = cache / f"{_digest(*(o.name for o in objects), *link_flags)[:32]}-{name}"
        if not target.exists():
            made = Path(scratch) / name
            _compile([compiler, *link_flags, "-o", str(made), *map(str, objects), "-lm"], name)
            made.replace(target)
    return target


def _object(source: Path, command: Sequence[str], common: str, cache: Path, scratch: Path) -> Path:
    target = cache / f"{_digest(common, source.name, source.read_bytes())[:32]}-{source.stem}.o"
    if not target.exists():
        made = scratch / target.name
        _compile([*command, "-c", str(source), "-o", str(made)], source.name)
        made.replace(target)
    return target


def _compile(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise ArmLowerError(f"{command[0]} is needed to build the runtime for the host, and is not installed",
                            f"install it, for example with apt-get install {command[0]}") from None
    if done.returncode:
        raise ArmLowerError(f"{what} does not compile:\n{done.stderr.strip()}")


@lru_cache(maxsize=8)
def _version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        return ""  # The compilation says it better.


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


class _Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("sizes", c.POINTER(c.c_int32)), ("bounds", c.POINTER(c.c_int32)),
                ("dim_order", c.POINTER(c.c_uint8)), ("capacity", c.c_uint32), ("dtype", c.c_uint8),
                ("rank", c.c_uint8), ("dynamic", c.c_bool), ("constant", c.c_uint8, 1), ("view", c.c_uint8, 1),
                ("lent", c.c_uint8, 1)]


class _List(c.Structure):
    _fields_ = [("items", c.c_void_p), ("count", c.c_uint32)]


class _Content(c.Union):
    _fields_ = [("i", c.c_int64), ("d", c.c_double), ("b", c.c_bool), ("t", c.POINTER(_Tensor)), ("list", _List)]


class _Value(c.Structure):
    _anonymous_ = ("content",)
    _fields_ = [("content", _Content), ("type", c.c_uint8)]


class _Error(c.Structure):
    _fields_ = [("status", c.c_int), ("instruction", c.c_int32), ("argument", c.c_int32), ("name", c.c_void_p),
                ("name_size", c.c_uint32), ("overload_size", c.c_uint32), ("overload", c.c_void_p),
                ("needed", c.c_uint32), ("available", c.c_uint32)]


class _Needs(c.Structure):
    _fields_ = [("values", c.c_uint32), ("arenas", c.c_uint32 * 4), ("scratch", c.c_uint32),
                ("input_count", c.c_uint32), ("output_count", c.c_uint32)]


class _Job(c.Structure):
    _fields_ = [("commands", c.c_void_p), ("command_bytes", c.c_uint32), ("weights", c.c_void_p),
                ("weight_bytes", c.c_uint32), ("scratch", c.c_void_p), ("scratch_bytes", c.c_uint32),
                ("fast_scratch", c.c_void_p), ("fast_scratch_bytes", c.c_uint32)]


_DELEGATE = c.CFUNCTYPE(c.c_int32, c.c_uint32, c.c_int32, c.c_void_p, c.c_uint32, c.POINTER(c.POINTER(_Tensor)),
                        c.c_uint32)
_NPU = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(_Job), c.c_void_p, c.c_size_t)


class _Options(c.Structure):
    _fields_ = [("fast_scratch", c.c_uint32), ("less_values", c.c_uint32),
                ("less_arena", c.c_uint32), ("less_scratch", c.c_uint32), ("most_memory", c.c_uint32),
                ("delegate_count", c.c_uint32),
                ("delegate_ids", c.POINTER(c.c_char_p)), ("delegate", _DELEGATE), ("npu", _NPU)]


@lru_cache(maxsize=4)
def _library(path: Path) -> c.CDLL:
    library = c.CDLL(str(path))
    error, host = c.POINTER(_Error), c.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "al_host_open": (host, [c.c_char_p, c.c_size_t, c.c_char_p, c.POINTER(_Options), error]),
        "al_host_close": (None, [host]),
        "al_host_method": (c.c_void_p, [host]),
        "al_host_needs": (c.POINTER(_Needs), [host]),
        "al_host_bind": (c.c_int, [host, error]),
        "al_input": (c.POINTER(_Value), [c.c_void_p, c.c_uint32]),
        "al_output": (c.POINTER(_Value), [c.c_void_p, c.c_uint32]),
        "al_set_input": (c.c_int, [c.c_void_p, c.c_uint32, c.c_int, c.c_uint32, c.POINTER(c.c_int32), c.c_void_p,
                                   c.c_size_t, error]),
        "al_execute": (c.c_int, [c.c_void_p, error]),
        "al_error_text": (c.c_size_t, [error, c.c_char_p, c.c_size_t]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if (library.al_host_value_size(), library.al_host_tensor_size()) != (c.sizeof(_Value), c.sizeof(_Tensor)):
        raise ArmLowerError("fvp/native.py and arm_lower.h differ in al_value or al_tensor")
    return library


class DeviceError(ArmLowerError):
    """A failure that the device runtime reports.

    Attributes:
        status: Its number (``al_status``).
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Native:
    """A program in the device runtime, on the host. Mutable buffers keep their state from run to run.

    Args:
        pte: The file.
        backends: Delegate id -> what executes its delegates; the model of the NPU for Ethos-U by default.
        npu: If given, Ethos-U delegates are handled by the backend in C of the device, with this as its NPU.
        sources: Sources of the build; all by default.
        fast_scratch: Bytes of dedicated SRAM of the NPU.
        less: ``values``, ``arena`` or ``scratch`` -> bytes of memory fewer than needed, for tests.

    Raises:
        DeviceError: What the runtime says of the file, with the runtime's own text. Raised when a method is first
            used, except that the file is checked at once.
        ArmLowerError: The runtime does not compile.
    """

    def __init__(self, pte: bytes, backends: Mapping[str, DelegateRunner] | None = None, *,
                 npu: NpuRunner | None = None, fast_scratch: int = 0, sources: Sequence[Path] | None = None,
                 less: Mapping[str, int] | None = None) -> None:
        if backends is None:
            backends = {} if npu else {BACKEND_ID: run_delegate}
        less = less or {}
        self._settings = _Settings(dict(backends), npu, fast_scratch, *(less.get(k, 0) for k in _LESS))
        self._pte = bytes(pte)
        self._library = _library(build_library(sources))
        self._methods: dict[str | None, _Method] = {}

    def run(self, inputs: Sequence[Any], method: str | None = None) -> list[Array]:
        """Runs a method.

        Args:
            inputs: One for each input of the method: arrays with logical (NCHW) dimensions; the numbers that the
                file has for inputs that are numbers.
            method: ``forward``, or else the first one, by default.

        Returns:
            The outputs with logical dimensions, contiguous.

        Raises:
            DeviceError: What the runtime says.
        """
        return self.method(method).run(inputs)

    def needs(self, method: str | None = None) -> dict[str, int]:
        """Bytes of memory that a method needs: ``values``, ``arena`` (the first one), ``scratch``."""
        needs = self._library.al_host_needs(self.method(method).host).contents
        return {"values": needs.values, "arena": needs.arenas[0], "scratch": needs.scratch}

    def method(self, name: str | None = None) -> _Method:
        """The method, built at the first use."""
        if name not in self._methods:
            try:
                self._methods[name] = _Method(self._library, self._pte, name or "forward", self._settings)
            except DeviceError as error:
                if name is not None or error.status != _NO_SUCH_METHOD:
                    raise
                self._methods[name] = _Method(self._library, self._pte, None, self._settings)
        return self._methods[name]


_LESS = ("values", "arena", "scratch")


@dataclass(frozen=True)
class _Settings:
    backends: Mapping[str, DelegateRunner]
    npu: NpuRunner | None
    fast_scratch: int
    less_values: int
    less_arena: int
    less_scratch: int


def run_npu(commands: bytes, regions: Mapping[int, Array]) -> None:
    """The model of the NPU as `NpuRunner`."""
    load(commands).execute(Memory({n: Region(f"region {n}", data, writable=n > 0) for n, data in regions.items()},
                                  check=False))


class _Method:
    def __init__(self, library: c.CDLL, pte: bytes, name: str | None, settings: _Settings) -> None:
        self.library = library
        self.runners = list(settings.backends.values())
        self.npu = settings.npu
        self.pte, self.name = pte, name
        self.failure: BaseException | None = None
        ids = (c.c_char_p * len(self.runners))(*(key.encode() for key in settings.backends))
        self.callbacks = _DELEGATE(self.delegate), _NPU(self.run_npu) if self.npu else _NPU()
        options = _Options(settings.fast_scratch, settings.less_values, settings.less_arena,
                           settings.less_scratch, 0, len(ids), ids, *self.callbacks)
        self.error = _Error()
        self.host = library.al_host_open(pte, len(pte), name.encode() if name else None, options, self.error)
        self.pointer = library.al_host_method(self.host)
        if not self.pointer:
            raise self.device_error()
        self.check(library.al_host_bind(self.host, self.error))

    @cached_property
    def calls(self) -> dict[int, int]:
        """Instruction -> number of its delegate call."""
        return _call_numbers(self.pte, self.name)

    def __del__(self) -> None:
        if getattr(self, "host", None):
            self.library.al_host_close(self.host)

    def check(self, status: int) -> None:
        if self.failure:
            failure, self.failure = self.failure, None
            raise failure
        if status:
            raise self.device_error()

    def device_error(self) -> DeviceError:
        text = c.create_string_buffer(512)
        self.library.al_error_text(self.error, text, len(text))
        return DeviceError(text.value.decode(errors="replace"), self.error.status)

    def run(self, inputs: Sequence[Any]) -> list[Array]:
        count = self.library.al_host_needs(self.host).contents.input_count
        if len(inputs) != count:
            raise ArmLowerError(f"the method takes {count} inputs, {len(inputs)} are given")
        kept = [self.set_input(number, given) for number, given in enumerate(inputs)]
        self.check(self.library.al_execute(self.pointer, self.error))
        del kept
        outputs = self.library.al_host_needs(self.host).contents.output_count
        return [self.output(number) for number in range(outputs)]

    def set_input(self, number: int, given: Any) -> Array:
        """Returns the array that must live until the execution has ended."""
        value = self.library.al_input(self.pointer, number).contents
        if given is None:
            array = np.zeros(0, np.uint8)
        elif isinstance(given, str):
            array = np.frombuffer(given.encode(), np.uint8)
        else:
            array = np.asarray(given)
        sizes = array.shape
        if value.type == _TENSOR and value.t.contents.rank == array.ndim:
            array = array.transpose(value.t.contents.dim_order[:array.ndim])
        array = np.ascontiguousarray(array).reshape(array.shape)
        dtypes = {np.dtype(text): number for number, text in _NUMPY.items()}
        if array.dtype not in dtypes:
            raise ArmLowerError(f"input {number} is {array.dtype}, which the runtime does not have",
                                f"it has {', '.join(str(d) for d in dtypes)}")
        shape = (c.c_int32 * len(sizes))(*sizes)
        data = None if given is None else array.ctypes.data
        self.check(self.library.al_set_input(self.pointer, number, dtypes[array.dtype], len(sizes), shape, data,
                                             array.nbytes, self.error))
        return array

    def output(self, number: int) -> Array:
        value = self.library.al_output(self.pointer, number).contents
        match value.type:
            case 2:
                return np.asarray(value.i)
            case 3:
                return np.asarray(value.b)
            case 4:
                return np.asarray(value.d)
            case 5:
                tensor = value.t.contents
                order = tensor.dim_order[:tensor.rank]
                # a copy: the memory is the next run's
                return np.array(_array(tensor).transpose(np.argsort(order)), order="C").reshape(
                    tensor.sizes[:tensor.rank])
            case 6:
                return np.asarray(c.string_at(value.list.items, value.list.count).decode(errors="replace"))
            case 1:
                return np.asarray(None)
            case 8:
                return np.frombuffer(c.string_at(value.list.items, 8 * value.list.count), np.float64)
            case 9:
                return np.frombuffer(c.string_at(value.list.items, value.list.count), np.bool_)
            case _:
                raise ArmLowerError(f"output {number} is a list of tensors or ints, which the host does not return")

    def delegate(self, which: int, instruction: int, data: int, size: int, tensors: Any, count: int) -> int:
        try:
            blob = c.string_at(data, size)
            split = len(unpack(blob).inputs)
            arrays = [_array(tensors[i].contents) for i in range(count)]
            call = self.calls.get(instruction, instruction)
            results = self.runners[which](call, blob, [a.copy() for a in arrays[:split]])
            if [np.asarray(r).nbytes for r in results] != [a.nbytes for a in arrays[split:]]:
                raise ArmLowerError(f"delegate call {call} gave {[np.asarray(r).nbytes for r in results]} bytes, "
                                    f"the file wants {[a.nbytes for a in arrays[split:]]}")
            for target, result in zip(arrays[split:], results):
                c.memmove(target.ctypes.data, np.ascontiguousarray(result).tobytes(), target.nbytes)
        except BaseException as error:  # An exception cannot pass through C: check() raises it.
            self.failure = error
            return _HOST_GONE
        return 0


    def run_npu(self, state: int, job: Any, text: int, text_size: int) -> int:
        j = job.contents
        blocks = [(j.weights, j.weight_bytes), (j.scratch, j.scratch_bytes), (j.fast_scratch, j.fast_scratch_bytes)]
        try:
            regions = {n: np.ctypeslib.as_array((c.c_uint8 * size).from_address(data))
                       for n, (data, size) in enumerate(blocks) if data and size}
            assert self.npu is not None  # the callback is only given with it
            self.npu(c.string_at(j.commands, j.command_bytes), regions)
        except ArmLowerError as error:
            message = error.message.encode()[:text_size - 1] + b"\0"
            c.memmove(text, message, len(message))
            return _NPU_MODEL
        except BaseException as error:
            self.failure = error
            return _HOST_GONE
        return 0


def _array(tensor: _Tensor) -> Array:
    """The tensor's memory, dimensions in the order of memory."""
    sizes = [tensor.sizes[d] for d in tensor.dim_order[:tensor.rank]]
    if tensor.dtype not in _NUMPY:
        raise ArmLowerError(f"a tensor of type number {tensor.dtype} cannot be given as a numpy array")
    dtype = np.dtype(_NUMPY[tensor.dtype])
    count = int(np.prod(sizes, dtype=np.int64))
    if not count:
        return np.zeros(sizes, dtype)
    memory = (c.c_uint8 * (count * dtype.itemsize)).from_address(tensor.data)
    array: Array = np.ctypeslib.as_array(memory).view(dtype).reshape(sizes)
    return array


def _call_numbers(pte: bytes, method: str | None) -> dict[int, int]:
    """Instruction -> number of its delegate call in the record's order (`tosa_ref.host`); the first method if None."""
    number = 0
    for m in read(pte).methods:
        calls = [pc for pc, i in enumerate(m.instructions) if isinstance(i, DelegateCall)]
        if m.name == method or method is None:
            return {pc: number + n for n, pc in enumerate(calls)}
        number += len(calls)
    return {}
