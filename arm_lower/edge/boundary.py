"""What a program's caller sees: layout, dtype and quantization of its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from arm_lower.edge.meta import fake, is_channels_last, op_name, val
from arm_lower.edge.program import EdgeProgram


@dataclass(frozen=True)
class BoundaryTensor:
    """One input or output of a method.

    Attributes:
        name: Node name.
        shape: Logical sizes.
        dtype: torch dtype without its prefix, what the caller passes or gets: ``float32``, ``int8`` ...
        layout: ``contiguous`` or ``channels_last``.
        scale, zero_point: real = scale * (integer - zero_point) of the quantized tensor behind it, None if there is none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    scale: float | None
    zero_point: int | None


def use_channels_last_outputs(program: EdgeProgram) -> None:
    """4-D outputs, and the quantized tensors behind inputs and outputs, in channels-last order."""
    for node in program.user_inputs():
        if isinstance(node.meta["val"], torch.Tensor) and is_channels_last(val(node)):
            for user in node.users:
                if op_name(user.target) == "quantize_per_tensor":
                    _set_channels_last(user)
    for node in _user_outputs(program):
        quantized = _behind(node)
        for n in (node, quantized):
            if n is not None and n.op == "call_function" and val(n).dim() == 4:
                _set_channels_last(n)


def use_int8(program: EdgeProgram) -> None:
    """Inputs and outputs as the quantized integers themselves, where the model quantizes or dequantizes them at once."""
    graph = program.graph
    for node in program.user_inputs():
        readers = list(node.users)
        if not readers or any(op_name(u.target) != "quantize_per_tensor" or u.args != readers[0].args for u in readers):
            continue
        node.meta["quantized_as"] = readers[0].args[1:3]
        node.meta["val"] = readers[0].meta["val"]
        for user in readers:
            user.replace_all_uses_with(node)
            graph.erase_node(user)
    output = graph.output_node()
    swapped = []
    for value in program.outputs():
        quantized = _behind(value) if isinstance(value, fx.Node) else None
        if quantized is not None and value in _user_outputs(program):
            quantized.meta["quantized_as"] = value.args[1:3]
        swapped.append(value if quantized is None else quantized)
    mutated = len(program.mutated)
    output.args = (tuple([*program.outputs()[:mutated], *swapped[mutated:]]),)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def describe_boundary(program: EdgeProgram) -> dict[str, list[BoundaryTensor]]:
    """``inputs`` and ``outputs`` of a method, with the quantization that lies behind each."""
    inputs = [
        _tensor(n, _input_quantization(n)) for n in program.user_inputs() if isinstance(n.meta["val"], torch.Tensor)
    ]
    outputs = [_tensor(n, _output_quantization(n)) for n in _user_outputs(program)]
    return {"inputs": inputs, "outputs": outputs}


def _user_outputs(program: EdgeProgram) -> list[fx.Node]:
    return [
        n
        for n in program.outputs()[len(program.mutated) :]
        if isinstance(n, fx.Node) and isinstance(n.meta.get("val"), torch.Tensor)
    ]


def _behind(node: fx.Node) -> fx.Node | None:
    """The quantized tensor that an output is dequantized from."""
    if op_name(node.target) != "dequantize_per_tensor" or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0]


def _input_quantization(node: fx.Node) -> tuple[Any, ...] | None:
    if "quantized_as" in node.meta:
        return tuple(node.meta["quantized_as"])
    readers = [u for u in node.users if op_name(u.target) == "quantize_per_tensor"]
    return tuple(readers[0].args[1:3]) if readers else None


def _output_quantization(node: fx.Node) -> tuple[Any, ...] | None:
    if "quantized_as" in node.meta:
        return tuple(node.meta["quantized_as"])
    return tuple(node.args[1:3]) if _behind(node) is not None else None


def _tensor(node: fx.Node, quantization: tuple[Any, ...] | None) -> BoundaryTensor:
    value = val(node)
    scale, zero_point = quantization or (None, None)
    return BoundaryTensor(
        node.name,
        tuple(value.shape),
        str(value.dtype).removeprefix("torch."),
        "channels_last" if is_channels_last(value) else "contiguous",
        None if scale is None else float(scale),
        None if zero_point is None else int(zero_point),
    )


def _set_channels_last(node: fx.Node) -> None:
    value = val(node)
    node.meta["val"] = fake(
        getattr(value, "fake_mode", None) or FakeTensorMode(), value.shape, value.dtype, channels_last=True
    )
