"""In-place operators of an exported graph, made functional.

An exported graph changes a tensor wherever the model did, also through views: ``y[:, :4] = 0`` is a slice and a fill_
of the slice. PT2E and a memory plan cannot live with that: every reader of a quantized tensor gets a copy of its own,
and no planned tensor is another one. Here each change makes a new value of the whole storage, and a view that is read
after a change is taken again from the newest value. Which nodes share storage is seen from their values: the fake
tensors of torch.export share it as the real ones do.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from arm_lower.edge.meta import op_name

_aten = torch.ops.aten

# Views by what puts a new value of the view into the tensor that it is taken from.
_SAME = frozenset({"alias", "detach", "contiguous", "to", "positive", "lift", "lift_fresh"})
_RESHAPES = frozenset({"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view", "view_as",
                       "reshape_as"})  # fmt: skip
_PERMUTATIONS = frozenset({"permute", "transpose", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "numpy_T", "mT"})
_SLICES = frozenset({"slice", "narrow", "select"})
_PARTS = frozenset({"split", "split_with_sizes", "chunk", "tensor_split"})
_MAY_COPY = _SAME | _RESHAPES  # though their schemas say that the result is an alias

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


class NotFunctional(Exception):
    """A change that this module cannot express; torch's own functionalization may, which traces the program again."""


def functionalize(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Makes ``graph`` functional, in place.

    Args:
        graph: ATen graph with the fake value of every tensor in ``meta["val"]``, as torch.export makes them.

    Returns:
        Each placeholder and ``get_attr`` node that was changed, and its final value.

    Raises:
        NotFunctional: There is a change through a view of a kind that is not known, or by an operator without a
            functional form. The graph is no longer usable.
    """
    work = _Functional(graph)
    work.run()
    return {root: work.read(root) for root in work.version if root.op in ("placeholder", "get_attr")}


def needed(graph: fx.Graph) -> bool:
    """Whether there is an in-place operator."""
    return any(map(writes, graph.nodes))


def writes(node: fx.Node) -> bool:
    """Whether ``node`` changes one of its arguments."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


class _Functional:
    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.roots: dict[int, fx.Node] = {}  # by storage, while its fake tensors live in the graph's metadata
        self.source: dict[fx.Node, fx.Node] = {}  # node -> its first argument in the graph as it was
        self.parent: dict[fx.Node, fx.Node] = {}  # view -> what it is taken from
        self.version: dict[fx.Node, int] = {}  # of a root: how often its storage was changed
        self.newest: dict[fx.Node, tuple[int, fx.Node]] = {}
        self.strangers: dict[fx.Node, str] = {}  # root -> why its storage cannot be changed

    def run(self) -> None:
        attributes: dict[str, fx.Node] = {}
        changes = []
        for node in list(self.graph.nodes):
            if node.op == "get_attr" and attributes.setdefault(str(node.target), node) is not node:
                node.replace_all_uses_with(attributes[str(node.target)])
                self.graph.erase_node(node)
                continue
            with self.graph.inserting_before(node):
                if writes(node):
                    self.write(node)
                    changes.append(node)
                    continue
                self.note(node)
                node.args, node.kwargs = fx.map_arg(node.args, self.read), fx.map_arg(node.kwargs, self.read)
        for node in reversed(changes):
            self.graph.erase_node(node)

    # ---- who shares storage ----------------------------------------------------------------------------------

    def note(self, node: fx.Node) -> None:
        """Finds out what a node that writes nothing is a view of."""
        if node.args and isinstance(node.args[0], fx.Node):
            self.source[node] = node.args[0]
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return
        root = self.roots.setdefault(_storage(value), node)
        source = self.source.get(node)
        if node.target is operator.getitem and source is not None and _aliases(source):
            source = self.source.get(source)
        if root is node:
            if _aliases(node) and op_name(node.target) not in _MAY_COPY and source is not None:
                reason = f"{node.name} is a view of {source.name}, but their values do not share storage"
                self.estrange(reason, root, self.root(source))
        elif source is None or self.root(source) is not root:
            self.estrange(f"{node.name} shares storage with {root.name}", root)
        else:
            self.parent[node] = source
            self.newest[node] = (self.version.get(root, 0), node)

    def estrange(self, reason: str, *roots: fx.Node | None) -> None:
        for root in roots:
            if root is not None:
                self.strangers[root] = reason
                self.check(root)

    def check(self, root: fx.Node) -> None:
        if root in self.strangers and root in self.version:
            raise NotFunctional(self.strangers[root])

    def root(self, node: fx.Node) -> fx.Node | None:
        value = node.meta.get("val")
        return self.roots.get(_storage(value)) if isinstance(value, torch.Tensor) else None

    def read(self, node: fx.Node) -> fx.Node:
        """The newest value of ``node``, taken again if its storage was changed since."""
        root = self.root(node)
        version = self.version.get(root, 0) if root is not None else 0
        if version == 0:
            return node
        known, value = self.newest.get(node, (0, node))
        if known == version:
            return value
        source = self.read(self.parent[node])
        if writes(node):  # returns what it has changed
            return source
        if node.target is operator.getitem:
            pieces = _node(node.args[0])
            again = self.graph.create_node("call_function", pieces.target, (source, *pieces.args[1:]), pieces.kwargs)
            again.meta = dict(pieces.meta)
            value = self.graph.call_function(operator.getitem, (again, node.args[1]))
        else:
            value = self.graph.create_node("call_function", node.target, (source, *node.args[1:]), node.kwargs)
        value.meta = dict(node.meta)
        self.newest[node] = (version, value)
        return value

    # ---- changes ---------------------------------------------------------------------------------------------

    def write(self, node: fx.Node) -> None:
        arguments = _overload(node)._schema.arguments
        written = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        place = node.args[0] if node.args else None
        if written != [0] or not isinstance(place, fx.Node) or self.root(place) is None:
            raise NotFunctional(f"{node.name} changes more than its first argument")
        value = self.value(node, place)
        news = [(place, value)]
        self.parent[node] = place
        while place in self.parent:
            value = self.put(place, self.read(self.parent[place]), value)
            place = self.parent[place]
            news.append((place, value))
        version = self.version[place] = self.version.get(place, 0) + 1
        self.check(place)
        self.newest.update({n: (version, v) for n, v in news})

    def value(self, node: fx.Node, place: fx.Node) -> fx.Node:
        """What an in-place operator writes: a tensor of the shape and dtype of ``place``."""
        name, like = op_name(node.target), place.meta["val"]
        args: Any = fx.map_arg(node.args, self.read)
        kwargs: Any = fx.map_arg(node.kwargs, self.read)
        if name in ("fill_", "zero_") and not isinstance(_argument(node, 1, 0), fx.Node):
            return self.call(_aten.full.default, (list(like.shape), _argument(node, 1, 0)), node, dtype=like.dtype)
        if name in ("copy_", "fill_"):
            result = _node(args[1])
        else:
            overload = _overload(node)
            packet = getattr(getattr(torch.ops, overload.namespace), name[:-1], None) if name.endswith("_") else None
            target = getattr(packet, overload._overloadname, None)
            if not isinstance(target, OpOverload) or target._schema.is_mutable:
                raise NotFunctional(f"{node.name} ({node.target}) has no functional form")
            result = self.call(target, args, node, **kwargs)
        if result.meta["val"].dtype != like.dtype:
            result = self.call(_aten._to_copy.default, (result,), node, dtype=like.dtype)
        if result.meta["val"].shape != like.shape:
            result = self.call(_aten.expand.default, (result, list(like.shape)), node)
        return result

    def put(self, view: fx.Node, base: fx.Node, value: fx.Node) -> fx.Node:
        """``base`` with ``value`` in the place of ``view``, which is taken from it."""
        shape, rank = base.meta["val"].shape, base.meta["val"].dim()
        if view.target is operator.getitem:
            return self.put_part(view, base, value)
        name = op_name(view.target)
        if writes(view) or name in _SAME:
            return value
        if name in _RESHAPES:
            return self.call(_aten.reshape.default, (value, list(shape)), view)
        if name in _PERMUTATIONS and rank <= len(_PRIMES):
            # sizes that differ tell where each dimension goes
            moved = _overload(view)(torch.empty(_PRIMES[:rank], device="meta"), *view.args[1:], **view.kwargs)
            return self.call(_aten.permute.default, (value, [moved.shape.index(p) for p in _PRIMES[:rank]]), view)
        if name not in _SLICES:
            raise NotFunctional(f"a change through {view.name} ({view.target})")
        dim = int(_argument(view, 1, 0)) % rank
        if name == "select":
            value = self.call(_aten.unsqueeze.default, (value, dim), view)
            return self.overwrite(base, value, dim, int(_argument(view, 2)) % shape[dim], 1, view)
        if name == "narrow":
            return self.overwrite(base, value, dim, int(_argument(view, 2)) % shape[dim], _argument(view, 3), view)
        start, stop, step = slice(*(_argument(view, i) for i in (2, 3, 4))).indices(shape[dim])
        if step != 1:
            return self.call(_aten.slice_scatter.default, (base, value, dim, start, stop, step), view)
        return self.overwrite(base, value, dim, start, view.meta["val"].shape[dim], view)

    def put_part(self, view: fx.Node, base: fx.Node, value: fx.Node) -> fx.Node:
        """As `put`, for one of the results of an operator that takes a tensor apart."""
        pieces, index = _node(view.args[0]), int(str(view.args[1]))
        name, parts = op_name(pieces.target), pieces.meta["val"]
        dim = int(_named(pieces, "dim", 0)) % base.meta["val"].dim()
        if name == "unbind":
            value = self.call(_aten.unsqueeze.default, (value, dim), view)
            return self.overwrite(base, value, dim, index % len(parts), 1, view)
        if name not in _PARTS:
            raise NotFunctional(f"a change through {view.name} ({pieces.target})")
        start = sum(p.shape[dim] for p in parts[: index % len(parts)])
        return self.overwrite(base, value, dim, start, parts[index].shape[dim], view)

    def overwrite(self, base: fx.Node, value: fx.Node, dim: int, start: int, count: int, like: fx.Node) -> fx.Node:
        """``base`` with ``value`` at ``start`` of a dimension: a concatenation, which the NPU can take."""
        size = base.meta["val"].shape[dim]
        ends = ((0, start), (start + count, size))
        before, after = ([self.call(_aten.slice.Tensor, (base, dim, a, b), like)] if a < b else [] for a, b in ends)
        parts = [*before, *([value] if count else []), *after]
        return parts[0] if len(parts) == 1 else self.call(_aten.cat.default, (parts, dim), like)

    def call(self, target: OpOverload, args: tuple[Any, ...], like: fx.Node, **kwargs: Any) -> fx.Node:
        """A new node, with the metadata of ``like`` but a value of its own."""
        known = like.meta.get("val")
        if not isinstance(known, FakeTensor):
            raise NotFunctional(f"{like.name} has no fake value")
        name = like.name.rstrip("_") if writes(like) else None
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        values: Any = fx.map_arg(args, lambda n: n.meta["val"])
        named: Any = fx.map_arg(kwargs, lambda n: n.meta["val"])
        with known.fake_mode:
            node.meta = {**like.meta, "val": target(*values, **named)}
        return node


def _aliases(node: fx.Node) -> bool:
    """Whether the schema says that a result is, or may be, an alias."""
    return isinstance(node.target, OpOverload) and any(r.alias_info is not None for r in node.target._schema.returns)


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _overload(node: fx.Node) -> OpOverload:
    assert isinstance(node.target, OpOverload)  # callers asked
    return node.target


def _node(arg: object) -> fx.Node:
    assert isinstance(arg, fx.Node)  # callers asked
    return arg


def _argument(node: fx.Node, position: int, default: Any = None) -> Any:
    """By position or by the name in the schema."""
    if position < len(node.args):
        return node.args[position]
    arguments = _overload(node)._schema.arguments
    return node.kwargs.get(arguments[position].name, default) if position < len(arguments) else default


def _named(node: fx.Node, name: str, default: Any) -> Any:
    arguments = _overload(node)._schema.arguments
    position = next((i for i, a in enumerate(arguments) if a.name == name), None)
    return default if position is None else _argument(node, position, default)
