"""The table of lowerings is whole."""

from __future__ import annotations

from pathlib import Path

from arm_lower import ops
from arm_lower.ops import walk


def test_every_file_of_lowerings_is_imported() -> None:
    """One that is not named in walk.py would leave its operators on the CPU without a word."""
    files = [f for f in Path(ops.__path__[0]).glob("*.py") if "\n@lowers(" in f.read_text(encoding="utf-8")]
    assert len(files) >= 10
    assert {f.stem for f in files} <= set(vars(walk))
