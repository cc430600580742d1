"""The Edge dialect: ATen operators that are functional, static and dtype-checked, under ``edge.aten``.

    from arm_lower.edge.dialect import edge
    edge.aten.add.Tensor        # the operator overload itself, torch.ops.aten.add.Tensor
    constraint(edge.aten.add.Tensor).dtypes["self"]

The dialect adds no operators of its own; it says which dtypes an operator may have (``constraints.yaml``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from arm_lower.errors import ArmLowerError
from arm_lower.tables import load_table

CONSTRAINTS = "constraints.yaml"


class _Packet:
    """``edge.aten.add``: its attributes are overloads."""

    def __init__(self, packet: Any) -> None:
        self._packet = packet

    def __getattr__(self, overload: str) -> OpOverload:
        found = getattr(self._packet, overload, None) if overload in self._packet.overloads() else None
        if found is None:
            raise AttributeError(
                f"{self._packet} has no overload {overload}; it has {', '.join(self._packet.overloads())}"
            )
        if found._schema.is_mutable:
            raise AttributeError(f"{found} changes its arguments; the Edge dialect is functional")
        return found  # type: ignore[no-any-return]

    def __dir__(self) -> list[str]:
        return list(self._packet.overloads())


class _Namespace:
    """``edge.aten``: its attributes are operators."""

    def __init__(self, namespace: str) -> None:
        self._name = namespace
        self._ops = getattr(torch.ops, namespace)

    def __getattr__(self, name: str) -> _Packet:
        packet = getattr(self._ops, name, None)
        if packet is None:
            near = get_close_matches(name, {key.split(".")[1] for key in _table() if key.startswith(self._name)})
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise AttributeError(f"there is no operator {self._name}.{name}{hint}")
        return _Packet(packet)


class _Edge:
    """The dialect's namespaces by name."""

    def __getattr__(self, namespace: str) -> _Namespace:
        if namespace.startswith("_"):
            raise AttributeError(namespace)
        return _Namespace(namespace)


edge = _Edge()


@dataclass(frozen=True)
class Constraint:
    """Dtypes of an operator's tensor arguments.

    Attributes:
        dtypes: Allowed dtypes by argument name; for a list of tensors those of every item.
        same: Arguments that must have one and the same dtype.
    """

    dtypes: Mapping[str, frozenset[torch.dtype]]
    same: tuple[str, ...] = ()


def constraint(target: OpOverload) -> Constraint | None:
    """The rules for an operator, or None if it has no entry."""
    return _table().get(f"{target._schema.name.replace('::', '.')}.{target._overloadname}")


@cache
def _table() -> Mapping[str, Constraint]:
    document = load_table("arm_lower.edge", CONSTRAINTS)
    sets = {name: frozenset(_dtypes(members)) for name, members in document["sets"].items()}
    table: dict[str, Constraint] = {}
    for name, arguments in document["operators"].items():
        same = tuple(arguments.pop("same", ()))
        table[name] = Constraint({a: _resolve(name, value, sets) for a, value in arguments.items()}, same)
    return table


def _resolve(operator: str, value: object, sets: Mapping[str, frozenset[torch.dtype]]) -> frozenset[torch.dtype]:
    if isinstance(value, str):
        if value not in sets:
            raise ArmLowerError(f"{CONSTRAINTS}: {operator} uses the unknown set {value}", f"sets: {', '.join(sets)}")
        return sets[value]
    return frozenset(_dtypes(value))


def _dtypes(names: object) -> Iterator[torch.dtype]:
    for name in names if isinstance(names, list) else []:
        yield getattr(torch, str(name))
