"""The listing, against golden text. ``ARM_LOWER_UPDATE_GOLDEN=1`` rewrites the files; look at the difference then."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pte_samples
import pytest

from arm_lower.errors import PteError
from arm_lower.pte import model
from arm_lower.pte.emit import emit
from arm_lower.pte.model import ProgramBuilder, ScalarType
from arm_lower.pte.text import describe, describe_file

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("name", list(pte_samples.SAMPLES))
def test_golden(name: str) -> None:
    text = describe_file(emit(pte_samples.SAMPLES[name]().program))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ARM_LOWER_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_without_a_file_the_segments_are_missing() -> None:
    program = pte_samples.delegated().program
    lines = describe_file(emit(program)).splitlines(keepends=True)
    assert describe(program) == "".join(line for line in lines if not line.startswith(("file: ", "  segment ")))


def test_names_cannot_steer_the_terminal() -> None:
    program = pte_samples.delegated(data=pte_samples.blob()).program
    method = program.methods[0]
    evil = "\x1b[2J\u202e\n"
    spec = replace(method.delegates[0], id=evil, compile_specs=((evil, evil.encode()),), data=b"x")
    operators = (model.Operator(evil, evil), *method.operators[1:])
    values = (*method.values, model.StringValue(evil), replace(method.values[0], fqn=evil))
    outputs = (*method.outputs, len(method.values), len(method.values) + 1)
    changed = replace(method, name=evil, delegates=(spec,), operators=operators, values=values, outputs=outputs)
    text = describe(replace(program, methods=(changed,), named_data=((evil, b""),)))
    assert all(line.isprintable() for line in text.splitlines())
    assert text.count("\\x1b[2J") >= 8


def test_long_values_are_cut() -> None:
    method = pte_samples.delegated().program.methods[0]
    spec = replace(method.delegates[0], compile_specs=(("long", b"x" * 500), ("empty", b"")))
    text = describe(replace(pte_samples.delegated().program, methods=(replace(method, delegates=(spec,)),)))
    assert f"    long = {'x' * 200}... (500 bytes)\n    empty = \n" in text


def test_unreadable_stream_is_said() -> None:
    method = pte_samples.delegated().program.methods[0]
    spec = replace(method.delegates[0], data=bytes(16))
    text = describe(replace(pte_samples.delegated().program, methods=(replace(method, delegates=(spec,)),)))
    assert "    unreadable: offset 0: expected a block header of 32 bytes" in text


def test_rare_kinds() -> None:
    b = ProgramBuilder()
    m = b.method("forward")
    m.add_output(m.add_tensor(ScalarType.BFLOAT16, (2,), model.External(), fqn="weights"))
    planned = model.External(model.Planned(0))
    m.add_output(m.add_tensor(ScalarType.INT8, (2, 2), planned, (1, 0), model.Dynamism.UNBOUND, fqn="state"))
    m.reserve(4)
    m.instructions.append(model.FreeCall(0))
    m.kernel("custom::op", "", m.add_tensor(ScalarType.INT8, (1,), model.AtRuntime()))
    text = describe(b.build())
    for line in (
        '    0: %0 bfloat16[2] from a .ptd file "weights"',
        '    1: %1 int8[2, 2] unbounded dim order [1, 0] from a .ptd file in arena 1 at 0..4 "state"',
        "    0: free %0",
        "    1: custom::op(%2)",
    ):
        assert line in text.splitlines()


def test_corrupt_file() -> None:
    with pytest.raises(PteError):
        describe_file(b"nonsense")
