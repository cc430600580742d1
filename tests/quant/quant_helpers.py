"""Shared by the tests of quant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from quant import EthosUQuantizer, prepare_pt2e
from quant.annotate.text import describe


class Function(nn.Module):
    """A function as a module; the inputs are called as in the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        names = list(inspect.signature(function).parameters)
        arguments = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        self.forward = _with_signature(lambda *args: self.function(*args), arguments)


def _with_signature(function: Callable[..., Any], arguments: list[inspect.Parameter]) -> Callable[..., Any]:
    function.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    return function


def prepared(module: nn.Module, inputs: tuple[Any, ...], quantizer: EthosUQuantizer | None = None) -> fx.GraphModule:
    return prepare_pt2e(torch.export.export(module.eval(), inputs), quantizer or EthosUQuantizer())


def annotations(module: nn.Module, inputs: tuple[Any, ...], quantizer: EthosUQuantizer | None = None) -> str:
    """Annotations before observers are inserted."""
    quantizer = quantizer or EthosUQuantizer()
    gm = torch.export.export(module.eval(), inputs).module()
    assert isinstance(gm, fx.GraphModule)
    return describe(quantizer.annotate(quantizer.transform_for_annotation(gm)))


def targets(gm: fx.GraphModule) -> list[str]:
    """Operators in order, without quantize and dequantize."""
    names = [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]
    return [n for n in names if not n.startswith("quantized_decomposed")]
