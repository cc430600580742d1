"""Models and samples from user files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from arm_lower.errors import ArmLowerError
from arm_lower.load import load_model, load_samples

SOURCE = """
import torch
import neighbour

net = torch.nn.ReLU()
pair = (torch.nn.ReLU(), (torch.ones(2),))
text = "no model"
tensors = [torch.ones(2), torch.zeros(2)]
nothing = []

def make():
    return torch.nn.Linear(2, neighbour.WIDTH)

def make_pair():
    return make(), torch.ones(1, 2)

def broken():
    raise KeyError("weights.bin")

def samples():
    for i in range(3):
        yield torch.full((2,), float(i)), torch.zeros(1)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 4\n")
    (tmp_path / "net.py").write_text(SOURCE)
    return tmp_path / "net.py"


def test_models(source: Path) -> None:
    assert isinstance(load_model(f"{source}:net")[0], torch.nn.ReLU)
    assert load_model(f"{source}:make")[0].out_features == 4  # type: ignore[union-attr]
    model, example = load_model(f"{source}:pair")
    assert isinstance(model, torch.nn.ReLU) and example is not None and example[0].shape == (2,)
    assert load_model(f"{source}:make_pair")[1][0].shape == (1, 2)  # type: ignore[index]


def test_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(3),)), path)
    program, example = load_model(str(path))
    assert isinstance(program, torch.export.ExportedProgram)
    assert example is not None and example[0].shape == (3,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "has no 'missing'"),
        ("text", "is a str, not a model"),
        ("broken", r"failed with KeyError at net\.py, line \d+"),
        ("", "names no file of a known kind"),
    ],
)
def test_wrong_models(source: Path, name: str, message: str) -> None:
    with pytest.raises(ArmLowerError, match=message):
        load_model(f"{source}:{name}")


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "bad.pt2").write_bytes(b"PK nonsense")
    (tmp_path / "bad.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(ArmLowerError, match="is not an exported program"):
        load_model(str(tmp_path / "bad.pt2"))
    with pytest.raises(ArmLowerError, match="failed with ModuleNotFoundError at bad.py, line 1"):
        load_model(f"{tmp_path / 'bad.py'}:net")
    for name in ("none.pt2", "none.py:net"):
        with pytest.raises(ArmLowerError, match="cannot read"):
            load_model(str(tmp_path / name))
    with pytest.raises(ArmLowerError, match="known kind"):
        load_model("model.onnx")


def test_samples(source: Path, tmp_path: Path) -> None:
    assert [len(s) for s in load_samples(f"{source}:samples")] == [2, 2, 2]
    assert [tuple(s[0].shape) for s in load_samples(f"{source}:tensors")] == [(2,), (2,)]
    np.savez(tmp_path / "c.npz", np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((3, 1), np.int64))
    loaded = load_samples(str(tmp_path / "c.npz"))
    assert len(loaded) == 3
    assert torch.equal(loaded[2][0], torch.tensor([4.0, 5.0])) and loaded[2][1].dtype == torch.int64


def test_wrong_samples(source: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", np.zeros((3, 2)), np.zeros((2, 2)))
    with pytest.raises(ArmLowerError, match="do not agree on the number of samples"):
        load_samples(str(tmp_path / "c.npz"))
    with pytest.raises(ArmLowerError, match="holds no calibration sample"):
        load_samples(f"{source}:nothing")
    with pytest.raises(ArmLowerError, match="not a list of calibration samples"):
        load_samples(f"{source}:net")


ARRAYS = {
    "bool": np.zeros((3, 2), bool),
    "float16": np.ones((3, 2), np.float16),
    "big-endian float32": np.array([[1, 2], [3, 4]], ">f4"),
    "big-endian int64": np.array([[1, -2]], ">i8"),
    "little-endian uint16": np.array([[1, 2]], "<u2"),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(3, 2)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_torch_has_are_taken_in_any_byte_order(tmp_path: Path, name: str) -> None:
    array = ARRAYS[name]
    np.savez(tmp_path / "c.npz", array)
    loaded = np.stack([s[0].numpy() for s in load_samples(str(tmp_path / "c.npz"))])
    np.testing.assert_array_equal(loaded, array)
    assert loaded.dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([["a", "b"]]), "<U1"),
        (np.array([[b"a"]]), r"\|S1"),
        (np.array([["2020-01-01"]], "M8[D]"), r"datetime64\[D\]"),
        (np.array([[1]], "m8[s]"), r"timedelta64\[s\]"),
        (np.zeros((2, 2), [("x", "<f4"), ("y", "<i2")]), r"\[\('x', '<f4'\), \('y', '<i2'\)\]"),
        (np.zeros((2, 2), np.longdouble), "float128"),
        (np.zeros((2, 2), np.clongdouble), "complex256"),
        (np.zeros((2, 2), "V4"), r"\|V4"),
    ],
)
def test_arrays_that_torch_does_not_have_are_named(tmp_path: Path, array: np.ndarray, dtype: str) -> None:
    np.savez(tmp_path / "c.npz", np.zeros((len(array), 1)), array)
    with pytest.raises(ArmLowerError, match=rf"c\.npz: array 1 has the dtype {dtype}, which torch does not have") as e:
        load_samples(str(tmp_path / "c.npz"))
    assert "float32" in e.value.hint


def test_exported_programs_by_name(tmp_path: Path) -> None:
    """An exported program can be called, but says that it must not be."""
    (tmp_path / "ep.py").write_text(
        "import torch\n"
        "program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))\n"
        "pair = (program, (torch.zeros(3),))\n"
        "def make():\n    return program\n"
    )
    for name, given in (("program", False), ("pair", True), ("make", False)):
        model, example = load_model(f"{tmp_path}/ep.py:{name}")
        assert isinstance(model, torch.export.ExportedProgram) and (example is not None) is given


@pytest.mark.parametrize("name", ["net", "text", "mapping"])
def test_what_can_be_iterated_but_holds_no_samples(source: Path, name: str) -> None:
    source.write_text(SOURCE + "\nmapping = {'x': torch.ones(2)}\nnet = torch.nn.Sequential(net)\n")
    with pytest.raises(ArmLowerError, match="not a list of calibration samples") as e:
        load_samples(f"{source}:{name}")
    assert "argument tuples" in e.value.hint
