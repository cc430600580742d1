"""The table of annotation rules: one rule per operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import fx

if TYPE_CHECKING:
    from quant.annotate.context import Annotator

Rule = Callable[["Annotator", fx.Node], None]

RULES: dict[Any, Rule] = {}
"""ATen overload -> its rule. An operator without a rule stays in float, which means on the CPU."""


Pattern = Callable[["Annotator", fx.Node], bool]

PATTERNS: list[Pattern] = []
"""Tried on every node before any rule runs."""


def annotates_pattern(pattern: Pattern) -> Pattern:
    """Registers the decorated function for groups of nodes that are taken whole.

    It gets the last node of the group and returns whether it matched; if so it has annotated the group and
    claimed its nodes.
    """
    PATTERNS.append(pattern)
    return pattern


def annotates(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers the decorated rule for ``targets`` (ATen overloads in their functional form).

    A rule says through the `Annotator` which operands and results of the node are quantized and which
    tensors must have the same parameters; it changes nothing else.

    Raises:
        ValueError: A target already has a rule.
    """

    def register(rule: Rule) -> Rule:
        for target in targets:
            if target in RULES:
                raise ValueError(f"{target} already has the annotation rule {RULES[target].__name__}")
            RULES[target] = rule
        return rule

    return register
