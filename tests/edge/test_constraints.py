"""The dtype rules say what the installed torch does."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import torch
import yaml

from arm_lower.edge.dialect import constraint


def derivation() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "derive_constraints", Path(__file__).with_name("derive_constraints.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_constraints_are_what_torch_accepts() -> None:
    derive = derivation()
    document = yaml.safe_load((files("arm_lower.edge") / "constraints.yaml").read_text(encoding="utf-8"))
    found = derive.torch_table(derive.example_calls())
    assert {k: v for k, v in found.items() if document["operators"].get(k) != v} == {}
    assert set(document["operators"]) == set(found)


def test_every_rule_names_an_operator_and_its_arguments() -> None:
    document = yaml.safe_load((files("arm_lower.edge") / "constraints.yaml").read_text(encoding="utf-8"))
    for name, rules in document["operators"].items():
        namespace, packet, overload = name.split(".")
        target = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        known = {a.name for a in target._schema.arguments}
        assert set(rules) - {"same"} <= known
        assert constraint(target) is not None
