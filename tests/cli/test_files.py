"""Whole files or none; arrays in and out."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import numpy as np
import pytest

from arm_lower import files
from arm_lower.errors import ArmLowerError


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    files.write_file(path, b"old")
    files.write_file(path, "new \u00e9")
    assert path.read_text(encoding="utf-8") == "new \u00e9"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.bin"
    files.write_file(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(ArmLowerError, match=r"a\.bin: No space left on device"):
        files.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("check", [files.check_writable, lambda p: files.write_file(p, b"x")])
@pytest.mark.parametrize("make", [lambda d: d / "missing" / "a.pte", lambda d: d, lambda d: d / "file" / "a.pte"])
def test_unwritable_paths_are_named(tmp_path: Path, make: object, check: object) -> None:
    (tmp_path / "file").write_text("")
    path = make(tmp_path)  # type: ignore[operator]
    with pytest.raises(ArmLowerError, match=f"cannot write {path}"):
        check(path)  # type: ignore[operator]
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_no_regular_file_is_refused_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to_folder").symlink_to("folder")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket"))
        before = {p.name: p.lstat().st_mode for p in tmp_path.iterdir()}
        for name, kind in (("pipe", "a pipe"), ("to_pipe", "a pipe"), ("folder", "a folder"), ("socket", "a socket"),
                           ("to_folder", "a folder"), ("loop", "a symbolic link that leads to itself")):
            for write in (files.check_writable, lambda p: files.write_file(p, b"x"),
                          lambda p: files.write_arrays(p, [np.zeros(1)])):
                with pytest.raises(ArmLowerError, match=f"cannot write {tmp_path / name}: it is {kind}"):
                    write(tmp_path / name)
    assert {p.name: p.lstat().st_mode for p in tmp_path.iterdir()} == before


def test_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No real device is named: a regular file is said to be one."""
    (tmp_path / "disk").write_bytes(b"old")
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "lstat", lambda _, kind=kind: os.stat_result((kind | 0o666, *[0] * 9)))
            for write in (files.check_writable, lambda p: files.write_file(p, b"x")):
                with pytest.raises(ArmLowerError, match="it is a device"):
                    write(tmp_path / "disk")
    assert (tmp_path / "disk").read_bytes() == b"old" and os.listdir(tmp_path) == ["disk"]


@pytest.mark.parametrize("old", [b"old", None], ids=["there", "dangling"])
def test_symbolic_links_are_followed(tmp_path: Path, old: bytes | None) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    end, link, first = tmp_path / "there/a.pte", tmp_path / "here/a.pte", tmp_path / "first.pte"
    if old is not None:
        end.write_bytes(old)
    link.symlink_to("../there/a.pte")
    first.symlink_to(link)
    files.check_writable(first)
    files.write_file(first, b"new")
    assert end.read_bytes() == b"new" and not end.is_symlink()
    assert os.readlink(link) == "../there/a.pte" and os.readlink(first) == str(link)
    assert os.listdir(tmp_path / "there") == os.listdir(tmp_path / "here") == ["a.pte"]


def test_a_link_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pte").symlink_to("missing/a.pte")
    for write in (files.check_writable, lambda p: files.write_file(p, b"x")):
        with pytest.raises(ArmLowerError, match="No such file or directory"):
            write(tmp_path / "a.pte")


def test_arrays_keep_their_order(tmp_path: Path) -> None:
    arrays = [np.arange(i + 1, dtype=np.float32) for i in range(12)]
    files.write_arrays(tmp_path / "a.npz", arrays)
    for wanted, found in zip(arrays, files.read_arrays(tmp_path / "a.npz"), strict=True):
        np.testing.assert_array_equal(wanted, found)


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", np.array([{}], dtype=object))
    np.savez(tmp_path / "cut.npz", np.zeros(1000))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:500])
    for name in ("text.npz", "one.npy", "objects.npz", "cut.npz"):
        with pytest.raises(ArmLowerError, match=name):
            files.read_arrays(tmp_path / name)
    with pytest.raises(ArmLowerError, match="cannot read"):
        files.read_arrays(tmp_path / "missing.npz")
