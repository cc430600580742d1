"""Operators about memory, and about places that only the data tells, as operators about elements.

Both are written out while the values in the graph still have the strides that the model knew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from arm_lower.edge.meta import DEQUANTIZE_TARGETS, QUANTIZE_TARGETS, argument, describe, op_name
from arm_lower.errors import ArmLowerError

_aten = torch.ops.aten

_STRIDED = frozenset({"as_strided", "as_strided_copy"})
_MASKS = (torch.bool, torch.uint8)  # dtypes of an index that is a mask


def strides(graph: fx.Graph) -> None:
    """Makes ``as_strided`` a view of the flat tensor.

    Its strides are those of memory. Values are contiguous in an Edge program, so the memory that the model knew has
    to be, too.

    Raises:
        ArmLowerError: The tensor is not contiguous, or begins elsewhere than its memory.
    """
    for node in list(graph.nodes):
        if op_name(node.target) not in _STRIDED or not node.users:
            continue
        source, size, stride, offset = (argument(node, name) for name in ("self", "size", "stride", "storage_offset"))
        elements = _contiguous(node, source).numel()
        with graph.inserting_before(node):
            view = _call(graph, node, _aten.reshape.default, source, [-1])
            if offset:  # in a slice, because an offset counts from where memory begins, wherever that will be
                view = _call(graph, node, _aten.slice.Tensor, view, 0, offset, elements)
            view = _call(graph, node, _aten.as_strided.default, view, size, stride)
        _replace(node, view)


def _contiguous(node: fx.Node, source: fx.Node) -> torch.Tensor:
    """The value of ``source`` if it is contiguous and has its memory from the beginning."""
    value = _value(source)
    if value is not None and value.is_contiguous() and value.storage_offset() == 0:
        return value
    found = f"strides {list(value.stride())} and offset {value.storage_offset()}" if value is not None else "no strides"
    raise ArmLowerError(
        f"{describe(node)}: {source.name} has {found}; as_strided takes a contiguous tensor with offset 0",
        "write it with slices, unfold, permute or reshape, or of x.clone(memory_format=torch.contiguous_format)",
    )


def masks(graph: fx.Graph) -> None:
    """Makes ``x[mask] = value`` a ``where``.

    Raises:
        ArmLowerError: There is a value for each place of the mask, whose number is not known before it is run.
    """
    for node in list(graph.nodes):
        if op_name(node.target) == "index_put" and any(map(_is_mask, argument(node, "indices"))):
            _where(graph, node)


def _is_mask(index: object) -> bool:
    value = _value(index) if isinstance(index, fx.Node) else None
    return value is not None and value.dtype in _MASKS


def _where(graph: fx.Graph, node: fx.Node) -> None:
    x, indices, values = (argument(node, name) for name in ("self", "indices", "values"))
    given = [i for i in indices if i is not None]
    whole, value = _value(x), _value(values)
    if whole is None or value is None:
        raise ArmLowerError(f"{describe(node)} has operands of unknown shape", "export the model with torch.export")
    mask = _value(given[0])
    assert mask is not None  # only masks are counted as such
    behind = whole.dim() - indices.index(given[0]) - mask.dim()
    shape = _spread(tuple(value.shape), mask.dim(), behind)
    if len(given) > 1 or shape is None or argument(node, "accumulate"):
        raise ArmLowerError(
            f"{describe(node)}: the mask has the shape {list(mask.shape)}, the values have {list(value.shape)}; an "
            "assignment under a mask takes one mask alone and one value for all its places",
            "write torch.where(mask, values, x) with values of the shape of x",
        )
    with graph.inserting_before(node):
        condition = given[0]
        if mask.dtype != torch.bool:
            condition = _call(graph, node, _aten.ne.Scalar, condition, 0)
        if behind:
            condition = _call(graph, node, _aten.reshape.default, condition, [*mask.shape, *[1] * behind])
        if shape != tuple(value.shape):
            values = _call(graph, node, _aten.reshape.default, values, list(shape))
        if value.dtype != whole.dtype:
            values = _call(graph, node, _aten._to_copy.default, values, dtype=whole.dtype)
        result = _call(graph, node, _aten.where.self, condition, values, x)
    _replace(node, result)


def _spread(values: tuple[int, ...], mask: int, behind: int) -> tuple[int, ...] | None:
    """The shape of ``values`` with the dimensions of the mask in the place of the one for its places, if that is 1."""
    before = len(values) - behind - 1
    if before < 0:
        return values
    return (*values[:before], *[1] * mask, *values[before + 1 :]) if values[before] == 1 else None


def _value(node: fx.Node) -> torch.Tensor | None:
    """The value whose shape and strides that of a node has; the nodes that PT2E inserts have none yet."""
    while op_name(node.target) in QUANTIZE_TARGETS | DEQUANTIZE_TARGETS and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def _call(graph: fx.Graph, like: fx.Node, target: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
    """An operator that comes from where ``like`` does; what has no value is given one with all others."""
    node = graph.call_function(target, args, kwargs)
    node.meta = {k: v for k, v in like.meta.items() if k != "val"}
    return node


def _replace(node: fx.Node, result: fx.Node) -> None:
    result.meta["val"] = node.meta.get("val")
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
