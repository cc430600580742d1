"""From exported programs and graph modules to Edge programs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from arm_lower.edge.build import from_exported, from_module
from arm_lower.edge.meta import is_channels_last, module_path
from arm_lower.edge.program import EdgeProgram
from arm_lower.edge.verifier import verify
from arm_lower.errors import ArmLowerError
from arm_lower.program import to_edge
from tosa_ref.host import run_pte


def export(module: nn.Module, *args: Any, **kwargs: Any) -> torch.export.ExportedProgram:
    return torch.export.export(module.eval(), args, kwargs)


def run(program: EdgeProgram, *inputs: Any) -> list[Any]:
    """All outputs (updated buffers first) of a program, in torch."""
    with torch.no_grad():
        return list(program.graph_module(*inputs, *program.constants.values()))


def targets(program: EdgeProgram) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Everything(nn.Module):
    """Parameters, a buffer that changes, a constant tensor, a no_grad block, in-place operators, keyword inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.full((3,), 2.0))
        self.conv = nn.Conv2d(3, 3, 1)
        self.table = torch.ones(2)

    def forward(self, x: Tensor, *, y: int = 1) -> dict[str, Any]:
        self.count.add_(1)
        with torch.no_grad():
            z = self.conv(x) + self.table[0]
        z.relu_()
        return {"z": F.dropout(z, training=False), "rest": (self.count * y, y, None)}


@pytest.mark.parametrize("source", ["exported", "module", "functional"])
def test_everything_is_lifted_and_functional(source: str) -> None:
    module, x = Everything(), torch.randn(1, 3, 4, 4)
    exported = export(module, x, y=3)
    if source == "exported":
        program = from_exported(exported)
    elif source == "functional":
        program = from_exported(exported.run_decompositions({}))
    else:
        program = from_module(exported.module(), (x,), {"y": 3})
    verify(program)
    assert not any("_." in t or "dropout" in t or "wrap_with" in t for t in targets(program))
    assert [n.name for n in program.user_inputs()] == ["x", "y"]
    assert len(program.mutated) == 1
    update, *outputs = run(program, x, 3)
    assert torch.equal(update, torch.full((3,), 3.0))
    wanted = pytree.tree_leaves(module(x, y=3))
    assert torch.equal(outputs[0], wanted[0])
    assert torch.equal(outputs[1], torch.full((3,), 9.0))
    assert outputs[2:] == [3, None]
    assert program.graph_module.meta["out_spec"].num_leaves == 4


def test_source_is_left_alone() -> None:
    exported = export(Everything(), torch.randn(1, 3, 4, 4), y=3)
    before, state = str(exported.graph), {k: v.clone() for k, v in exported.state_dict.items()}
    from_exported(exported)
    assert str(exported.graph) == before
    assert all(torch.equal(v, exported.state_dict[k]) for k, v in state.items())


def test_every_node_has_a_contiguous_value() -> None:
    program = from_exported(
        export(Fn(lambda x: x.permute(0, 2, 3, 1).contiguous().view(2, -1)), torch.randn(2, 3, 4, 5))
    )
    for node in program.graph.nodes:
        if node.op != "output":
            assert isinstance(node.meta["val"], FakeTensor)
            assert node.meta["val"].is_contiguous()
    assert targets(program) == ["aten.permute.default", "aten.reshape.default"]
    x = torch.randn(2, 3, 4, 5)
    assert torch.equal(run(program, x)[0], x.permute(0, 2, 3, 1).reshape(2, -1))


@pytest.mark.parametrize("how", ["as it is", "deepcopy", "pickle"])
def test_graph_module_is_an_ordinary_one(how: str) -> None:
    """Its code is made when it is first needed; whoever copies, stores or prints it must not notice."""
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    x = torch.randn(4, 3)
    program = from_exported(export(module, x))
    copies: dict[str, Callable[[Any], Any]] = {"deepcopy": deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m))}
    graph_module = copies.get(how, lambda m: m)(program.graph_module)
    assert "torch.ops.aten.relu.default" in graph_module.code
    (found,) = graph_module(x, *program.constants.values())
    torch.testing.assert_close(found, module(x), rtol=0, atol=0)


def test_channels_last_input_keeps_its_layout() -> None:
    x = torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last)
    program = from_exported(export(nn.Conv2d(3, 4, 1), x))
    (node,) = program.user_inputs()
    assert is_channels_last(node.meta["val"])
    conv = next(n for n in program.graph.nodes if n.op == "call_function")
    assert conv.meta["val"].is_contiguous()


def test_module_path_and_source() -> None:
    program = from_exported(
        export(nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())), torch.randn(1, 3, 4, 4))
    )
    relu = next(n for n in program.graph.nodes if "relu" in str(n.target))
    assert module_path(relu) == "0.1"


IN_PLACE = {
    "relu_": lambda x: torch.relu_(x * 1) + 1,
    "chain": lambda x: (x + 1).relu_().mul_(2).clamp_(max=3),
    "later readers": lambda x: _then(x + 1, lambda t: t.add_(1), lambda t: t * t),
    "flattened": lambda x: _then((x + 1).flatten(1), lambda t: t.relu_(), lambda t: t.sum(1)),
    "view of the value": lambda x: _then(x + 1, lambda t: t.add_(1), lambda t: t.view(-1)),
    "copy_": lambda x: _then(torch.zeros(2, 3), lambda t: t.copy_(x), lambda t: t + 1),
    "copy_ of another dtype": lambda x: _then(
        torch.zeros(2, 3, dtype=torch.int32), lambda t: t.copy_(x), lambda t: t + 1
    ),
    "add_ of another dtype": lambda x: (x + 1).add_(torch.arange(3)).add_(torch.ones(3, dtype=torch.float64)),
    "fill_": lambda x: _then(x * 1, lambda t: t.fill_(2.5), lambda t: t + x),
    "masked_fill_": lambda x: (x * 1).masked_fill_(x > 0, 7.0),
    "index_put_": lambda x: _then(x * 1, lambda t: t.index_put_((torch.tensor([1]),), torch.ones(3)), lambda t: t * 2),
    "view is written": lambda x: _then(x * 1, lambda t: t[:, 0].mul_(3), lambda t: t + 0),
    "view read after a write": lambda x: _view_after(x * 1),
    "slice assignment": lambda x: _assign(x * 1),
    "zero_": lambda x: _then(x * 1, lambda t: t.zero_(), lambda t: t + x),
}


def _then(value: Tensor, change: Any, read: Any) -> Tensor:
    change(value)
    result: Tensor = read(value)
    return result


def _view_after(value: Tensor) -> Tensor:
    row = value[0]
    value.add_(1)
    return row * 2


def _assign(value: Tensor) -> Tensor:
    value[:, 1:] = 4.0
    return value * 2


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("kind", ["exported", "module"])
def test_in_place_operators(name: str, kind: str) -> None:
    module, x = Fn(IN_PLACE[name]), torch.randn(2, 3)
    exported = export(module, x)
    program = from_exported(exported) if kind == "exported" else from_module(exported.module(), (x,))
    verify(program)
    (found,) = run(program, x)
    wanted = module(x.clone())
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)


def test_input_changed_in_place_is_not_written_back() -> None:
    program = from_exported(export(Fn(lambda x: x.relu_() + 1), torch.randn(2, 3)))
    assert program.mutated == ()
    x = torch.randn(2, 3)
    assert torch.equal(run(program, x)[0], torch.relu(x) + 1)


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.cache[1:2] = x
        return self.cache.sum(0)


def test_write_into_part_of_a_buffer() -> None:
    program = from_exported(export(Cache(), torch.ones(1, 3)))
    assert len(program.mutated) == 1
    update, total = run(program, torch.full((1, 3), 2.0))
    assert torch.equal(update[1], torch.full((3,), 2.0))
    assert torch.equal(total, torch.full((3,), 2.0))


def test_unused_constants_go() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    program = from_exported(export(module, torch.randn(1, 3, 4, 4)))
    assert not any("num_batches_tracked" in name for name in program.constants)


def _under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.t()
    return y.float() + 1


def _autocast_off(x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return x @ x.t()


def _both(x: Tensor) -> tuple[Tensor, Tensor]:
    return _under_autocast(x), _autocast_off(x)


WRITTEN_OUT: dict[str, Callable[[Tensor], Any]] = {
    "autocast": _under_autocast,
    "autocast disabled": _autocast_off,
    "autocast of a part": _both,
    "vmap": lambda x: torch.vmap(torch.dot)(x, x + 1),
    "vmap of another dimension": lambda x: torch.vmap(torch.dot, in_dims=1)(x, x + 1),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("kind", ["exported", "module"])
def test_what_torch_does_around_operators_is_written_out(name: str, kind: str) -> None:
    module, x = Fn(WRITTEN_OUT[name]), torch.randn(3, 4)
    exported = export(module, x)
    program = from_exported(exported) if kind == "exported" else from_module(exported.module(), (x,))
    verify(program)
    assert not any("wrap_with" in t or "batch_dim" in t for t in targets(program))
    assert ("torch.bfloat16" in str(program.graph)) == (name in ("autocast", "autocast of a part"))
    for found, wanted in zip(run(program, x), pytree.tree_leaves(module(x)), strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "offset": lambda x: (x + 1).as_strided((2, 4), (8, 1), 8),
    "no offset": lambda x: (x + 1).as_strided((2, 4), (1, 2)),
    "overlap": lambda x: (x + 1).as_strided((5, 3), (1, 1), 2),
    "of an input": lambda x: x.as_strided((5, 3), (1, 1), 2) * 1,
    "rank 0": lambda x: (x + 1).as_strided((), (), 5),
    "stride 0": lambda x: (x + 1).as_strided((3, 2), (0, 1), 1),
    "reshaped": lambda x: (x + 1).reshape(2, -1).as_strided((2, 3), (3, 2), 1),
    "copy of a part": lambda x: x[1:].clone().as_strided((2, 4), (8, 1), 3),
    "made contiguous": lambda x: x.t().contiguous().as_strided((3, 8), (4, 1), 8),
}
STRIDED_REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: (x + 1).t().as_strided((3, 8), (8, 1), 8),
    "part": lambda x: (x + 1)[1:].as_strided((2, 4), (8, 1)),
    "step": lambda x: (x + 1)[:, ::2].as_strided((2, 4), (8, 1)),
    "expanded": lambda x: x[:1].expand(4, 8).as_strided((2, 4), (1, 1)),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("kind", ["exported", "module"])
def test_as_strided_is_of_the_flat_tensor(name: str, kind: str) -> None:
    module, x = Fn(STRIDED[name]), torch.randn(4, 8)
    exported = export(module, x)
    program = from_exported(exported) if kind == "exported" else from_module(exported.module(), (x,))
    verify(program)
    assert torch.equal(run(program, x)[0], module(x))
    # Also of memory that begins elsewhere, and in the file, on the host.
    assert torch.equal(run(program, torch.cat([x, x])[4:])[0], module(x))
    (found,) = run_pte(to_edge(exported).to_executorch().buffer, [x.numpy()])
    assert torch.equal(torch.from_numpy(found), module(x))


def _quantized(x: Tensor) -> Tensor:
    ops, q = torch.ops.quantized_decomposed, (0.05, 3, -128, 127, torch.int8)
    return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *q), *q)  # type: ignore[no-any-return]


def _without_quantized_values(function: Callable[[Tensor], Tensor], x: Tensor) -> torch.fx.GraphModule:
    """A graph as PT2E leaves it: the nodes that it inserts have no values."""
    module = export(Fn(function), x).module()
    for node in module.graph.nodes:
        if "quantize" in str(node.target):
            del node.meta["val"]
    return module  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: _quantized(x + 1).as_strided((2, 4), (8, 1), 8) * 1,
        lambda x: _put(_quantized(x), _quantized(x) < 0, _quantized(x.sum())),
    ],
)
def test_strides_and_masks_of_quantized_values(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 8)
    program = from_module(_without_quantized_values(function, x), (x,))
    verify(program)
    torch.testing.assert_close(run(program, x)[0], function(x))
    with pytest.raises(ArmLowerError, match="as_strided takes a contiguous tensor"):
        from_module(_without_quantized_values(lambda x: _quantized((x + 1).t()).as_strided((3,), (8,)), x), (x,))


@pytest.mark.parametrize("name", STRIDED_REFUSED)
def test_as_strided_of_other_memory_is_refused(name: str) -> None:
    with pytest.raises(ArmLowerError, match="as_strided takes a contiguous tensor with offset 0") as caught:
        from_exported(export(Fn(STRIDED_REFUSED[name]), torch.randn(4, 8)))
    assert "strides" in caught.value.message
    assert "clone" in caught.value.hint


def _put(x: Tensor, indices: Any, values: Any) -> Tensor:
    y = x * 1
    y[indices] = values
    return y


def _put_mask_of_bytes(x: Tensor) -> Tensor:
    mask = (x[:, 0, 0] > 0).to(torch.uint8)
    return torch.ops.aten.index_put.default(x, [mask], x[:1] * 2)  # type: ignore[no-any-return]


MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "number": lambda x: _put(x, x < 0, 0),
    "fraction": lambda x: _put(x, x < 0, 0.5),
    "value of rank 0": lambda x: _put(x, x < 0, x.sum()),
    "value of one element": lambda x: _put(x, x < 0, x[0, 0, :1]),
    "leading dimensions": lambda x: _put(x, x[:, :, 0] < 0, 7.0),
    "rows": lambda x: _put(x, x[:, :, 0] < 0, x[0, 0]),
    "first dimension": lambda x: _put(x, x[:, 0, 0] < 0, x[1] * 2),
    "first dimension, one value": lambda x: _put(x, x[:, 0, 0] < 0, x[1:, :1] * 2),
    "later dimension": lambda x: _put(x, (slice(None), x[0, :, 0] < 0), 3),
    "last dimension": lambda x: _put(x, (slice(None), slice(None), x[0, 0] < 0), x[:, :, :1]),
    "part of the tensor": lambda x: _put(x, (0, x[0] < 0), -1),
    "integers": lambda x: _put((x * 9).int(), x < 0, 4),
    "number of another dtype": lambda x: _put(x > 1, x < 0, True),
    "bytes": _put_mask_of_bytes,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kind", ["exported", "module"])
def test_assignment_under_a_mask_is_a_where(name: str, kind: str) -> None:
    module, x = Fn(MASKS[name]), torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3))
    exported = export(module, x)
    program = from_exported(exported) if kind == "exported" else from_module(exported.module(), (x,))
    verify(program)
    assert "aten.where.self" in targets(program)
    assert "aten.index_put.default" not in targets(program)
    (found,) = run(program, x)
    assert found.dtype == module(x).dtype
    assert torch.equal(found, module(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: _put(x, x > -9, torch.arange(24.0)),
        lambda x: _put(x, x[:, :, 0] > -9, torch.ones(6, 4)),
        lambda x: torch.ops.aten.index_put.default(x, [x > 0], torch.tensor(1.0), True),
        lambda x: torch.ops.aten.index_put.default(x, [x[:, 0, 0] > -9, torch.tensor([0, 1])], torch.tensor(1.0)),
    ],
)
def test_other_assignments_under_a_mask_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ArmLowerError, match="one mask alone and one value") as caught:
        from_exported(export(Fn(function), torch.randn(2, 3, 4)))
    assert "torch.where" in caught.value.hint


class Constant(nn.Module):
    """No inputs."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)

    def forward(self) -> Tensor:
        return torch.sparse.mm(self.value, torch.ones(3, 2)) if self.value.is_sparse else self.value + 1


@pytest.mark.parametrize("kind", ["exported", "module"])
def test_program_without_inputs(kind: str) -> None:
    exported = export(Constant(torch.ones(3)))
    program = from_exported(exported) if kind == "exported" else from_module(exported.module(), ())
    verify(program)
    assert run(program)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("kind", ["exported", "module"])
def test_sparse_constant_is_refused(kind: str) -> None:
    exported = export(Constant(torch.eye(3).to_sparse()))
    with pytest.raises(ArmLowerError, match="value.*layout sparse_coo") as caught:
        from_exported(exported) if kind == "exported" else from_module(exported.module(), ())
    assert "to_dense" in caught.value.hint


def test_dynamic_shape_is_refused() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    exported = torch.export.export(nn.ReLU(), (torch.randn(4, 3),), dynamic_shapes=({0: batch},))
    with pytest.raises(ArmLowerError, match="dimension 0 is dynamic") as caught:
        from_exported(exported)
    assert "input input" in caught.value.message
    assert "dict of programs" in caught.value.hint


def test_data_dependent_shape_is_refused() -> None:
    exported = torch.export.export(Fn(lambda x: x.nonzero() + 1), (torch.ones(3),))
    with pytest.raises(ArmLowerError, match="nonzero.*dynamic"):
        from_exported(exported)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(3)])
def test_training_mode_is_refused(layer: nn.Module) -> None:
    exported = torch.export.export(nn.Sequential(layer).train(), (torch.randn(2, 3),))
    with pytest.raises(ArmLowerError, match="training mode") as caught:
        from_exported(exported)
    assert "eval()" in caught.value.hint
    assert "module 0" in caught.value.message


def test_wrong_examples_are_refused() -> None:
    module = export(nn.ReLU(), torch.randn(2, 3)).module()
    with pytest.raises(ArmLowerError, match=r"float32\[2, 4\].*float32\[2, 3\]"):
        from_module(module, (torch.randn(2, 4),))
    with pytest.raises(ArmLowerError, match="2 example inputs given"):
        from_module(module, (torch.randn(2, 3), 1))


class Aten(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten.relu.default(x)


def test_module_without_shapes_takes_them_from_the_examples() -> None:
    program = from_module(torch.fx.symbolic_trace(Aten()), (torch.randn(2, 3),))
    verify(program)


def test_modules_that_are_no_aten_graph_are_refused() -> None:
    with pytest.raises(ArmLowerError, match="relu.*no ATen operator"):
        from_module(torch.fx.symbolic_trace(nn.ReLU()), (torch.randn(2, 3),))
