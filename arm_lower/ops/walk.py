"""The walk: the nodes of a graph, in order, through their lowerings into one TOSA graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from arm_lower.edge.meta import is_channels_last, module_path, op_name, target_name
from arm_lower.errors import Unsupported
from arm_lower.ops import (  # noqa: F401  (each registers its lowerings)
    conv,
    elementwise,
    normalization,
    pointwise,
    pool,
    quantize,
    reduce,
    resize,
    shape,
    softmax,
)
from arm_lower.ops.registry import lowering
from arm_lower.ops.value import Constant, Lowered, Real, channels_last, contiguous
from arm_lower.tosa.builder import Builder
from arm_lower.tosa.ir import DType

DTYPES = {
    torch.bool: DType.BOOL,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
}

NOT_QUANTIZED = Unsupported(
    "its input is float", "quantize the model: see EthosUQuantizer.set_global and set_module_name"
)


def is_quantize(node: fx.Node) -> bool:
    return op_name(node.target) == "quantize_per_tensor"


def is_dequantize(node: fx.Node) -> bool:
    return op_name(node.target) in ("dequantize_per_tensor", "dequantize_per_channel")


class Walk:
    """Lowers nodes one after the other; what lies outside becomes an input or a constant of the TOSA graph.

    Attributes:
        builder: The TOSA graph so far.
        inputs: Nodes that became graph inputs, in the order of the graph's inputs.
        pending: For each node whose result is real, the nodes whose operators wait for its quantize node.
    """

    def __init__(self, name: str, family: str, constants: Mapping[str, torch.Tensor]) -> None:
        self.builder = Builder(name, family)
        self.inputs: list[fx.Node] = []
        self.pending: dict[fx.Node, set[fx.Node]] = {}
        self._constants = constants
        self._values: dict[fx.Node, Any] = {}

    def lower(self, node: fx.Node) -> Any:
        """Lowers one node; on `Unsupported` the TOSA graph is left as it was."""
        b = self.builder
        marks = len(b.graph.ops), len(b.graph.inputs), len(self.inputs)
        known = set(self._values)
        # operators that quantize brings about belong to the node that made the real number
        origin = node.args[0] if is_quantize(node) and isinstance(node.args[0], fx.Node) else node
        path = module_path(origin) or module_path(node)
        b.location = f"{path}:{target_name(origin)}" if path else target_name(origin)
        b.stem = origin.name
        try:
            value = self._call(node)
        except Unsupported:
            del b.graph.ops[marks[0] :], b.graph.inputs[marks[1] :], self.inputs[marks[2] :]
            for new in set(self._values) - known:
                del self._values[new]
            raise
        self._values[node] = value
        if isinstance(value, Real):
            self.pending[node] = {node}.union(*(self.pending.get(n, set()) for n in node.all_input_nodes))
        return value

    def blamed(self, node: fx.Node) -> set[fx.Node]:
        """The nodes at fault when ``node`` cannot be lowered: for a quantize node those whose operators wait for it."""
        if not is_quantize(node):
            return {node}
        return set().union(*(self.pending.get(n, set()) for n in node.all_input_nodes)) or {node}

    def value(self, node: fx.Node) -> Any:
        """What a node is here: its lowering's result, a constant, or a new graph input."""
        if node not in self._values:
            self._values[node] = self._outside(node)
        return self._values[node]

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source, index = node.args
            item = self.value(source)[index]  # type: ignore[arg-type]
            if item is None:
                raise Unsupported("this result of the operator has no NPU form")
            return item
        fn = lowering(node.target)
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        args = [
            node.args[i]
            if i < len(node.args)
            else node.kwargs.get(a.name, a.default_value if a.has_default_value() else None)
            for i, a in enumerate(schema)
        ]
        return fn(self.builder, *(self._argument(a) for a in args))

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return self.value(arg)
        if isinstance(arg, (list, tuple)):
            return [self._argument(a) for a in arg]
        return arg

    def _outside(self, node: fx.Node) -> Lowered:
        tensor = self._constants.get(node.name)
        if tensor is not None and node.op == "placeholder":
            return self._constant(node, tensor)
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            raise Unsupported("its input is not a tensor")
        if val.dtype not in DTYPES:
            raise NOT_QUANTIZED if val.dtype.is_floating_point else Unsupported(f"its input has dtype {val.dtype}")
        if any(not isinstance(n, int) for n in val.shape):
            raise Unsupported("its input has a dynamic shape")
        if val.numel() == 0:
            raise Unsupported("its input has no elements")
        sizes, dtype = tuple(val.shape), DTYPES[val.dtype]
        self.inputs.append(node)
        if is_channels_last(val):
            n, c, h, w = sizes
            return channels_last(self.builder.input(node.name, (n, h, w, c), dtype))
        return contiguous(self.builder.input(node.name, sizes, dtype))

    def _constant(self, node: fx.Node, tensor: torch.Tensor) -> Lowered:
        array = tensor.detach().cpu()
        if array.dtype.is_floating_point:
            return Constant(array.to(torch.float64).numpy())
        dtype = DTYPES.get(array.dtype)
        data = array.numpy()
        if dtype is None:
            if array.dtype is not torch.int64 or (data.size and np.abs(data).max() > 2**31 - 1):
                raise Unsupported(f"a constant of dtype {array.dtype}")
            dtype = DType.INT32
        return contiguous(self.builder.const(data, dtype, node.name))
