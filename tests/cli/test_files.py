"""Whole files or none; arrays in and out."""

from __future__ import annotations

import os
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
