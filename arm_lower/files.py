"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from arm_lower.errors import ArmLowerError

PathLike = str | os.PathLike[str]


def write_file(path: PathLike, data: bytes | str) -> None:
    """Writes ``data`` (text as UTF-8) to a temporary file beside ``path`` and moves it there.

    Symbolic links stay; the file they lead to is replaced.

    Raises:
        ArmLowerError: The folder is missing or not writable, ``path`` is there and is no regular file (a folder, a
            pipe, a device), or the disk is full.
    """
    temporary: str | None = None
    try:
        target = _place(path)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise _unwritable(path, error) from error


def check_writable(path: PathLike) -> None:
    """Finds out before long work whether `write_file` to ``path`` can succeed.

    Raises:
        ArmLowerError: As `write_file`.
    """
    try:
        with tempfile.TemporaryFile(dir=_place(path).parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def resolved(path: PathLike) -> Path:
    """``path`` without symbolic links: a rename onto a link would replace the link and leave what it leads to."""
    return Path(os.path.realpath(path))


def _place(path: PathLike) -> Path:
    """Where a file written to ``path`` goes. A rename would replace whatever is there, a device node as well."""
    target = resolved(path)
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return target
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no regular file")
        raise OSError(errno.EEXIST, f"it is {kind}")
    return target


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a symbolic link that leads to itself"),
)


def _unwritable(path: PathLike, error: OSError) -> ArmLowerError:
    return ArmLowerError(f"cannot write {path}: {error.strerror or error}", "choose a writable path")


def read_file(path: PathLike) -> bytes:
    """All bytes of a file.

    Raises:
        ArmLowerError: It is missing or cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ArmLowerError(f"cannot read {path}: {error.strerror or error}") from error


def read_arrays(path: PathLike) -> list[npt.NDArray[np.generic]]:
    """The arrays of an ``.npz`` file, in file order and this machine's byte order; names do not matter.

    Raises:
        ArmLowerError: The file cannot be read, is no ``.npz``, or holds Python objects.
    """
    data = read_file(path)
    try:
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        arrays = [loaded[name] for name in loaded.files]
        return [a.astype(a.dtype.newbyteorder("="), copy=False) for a in arrays]
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ArmLowerError(
            f"{path} is not an .npz file of plain arrays: {error}",
            "write it with numpy.savez(path, input0, input1, ...)",
        ) from error


def write_arrays(path: PathLike, arrays: Sequence[npt.NDArray[np.generic]], stem: str = "output") -> None:
    """Writes an ``.npz`` file with the arrays ``<stem>0``, ``<stem>1``, ... in this order.

    Raises:
        ArmLowerError: As `write_file`.
    """
    buffer = io.BytesIO()
    np.savez(buffer, **{f"{stem}{i}": a for i, a in enumerate(arrays)})
    write_file(path, buffer.getvalue())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
