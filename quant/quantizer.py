"""The quantizer for Ethos-U: which operators are quantized, and with which config."""

from __future__ import annotations

import difflib
from typing import Any

from torch import fx, nn
from torchao.quantization.pt2e.quantizer import Quantizer

from arm_lower.errors import QuantizationError
from arm_lower.spec import EthosUCompileSpec
from quant.annotate import Annotator
from quant.annotate.elementwise import reader_function, softmax_margin
from quant.config import QuantizationConfig, get_symmetric_quantization_config
from quant.graph import normalize
from quant.nodes import aten
from quant.observers import RangeObserver


class EthosUQuantizer(Quantizer):  # type: ignore[misc]
    """Annotates a graph for PT2E quantization. Without any setting, everything the NPU can take is int8.

    A module name wins over a module type, which wins over the global config. A config of None leaves the
    operators in float, which means on the CPU. Every setter returns the quantizer.

    Args:
        compile_spec: The `arm_lower.EthosUCompileSpec` or target name that the model will be compiled for.
            All Ethos-U take the same numbers, so it changes nothing today; ExecuTorch's signature has it.

    Raises:
        ArmLowerError: ``compile_spec`` is something else, or a target that there is not. The setters raise a
            QuantizationError for what is no config, name or class.
    """

    def __init__(self, compile_spec: Any = None) -> None:
        super().__init__()
        self.compile_spec = _checked_spec(compile_spec)
        self._global: QuantizationConfig | None = get_symmetric_quantization_config()
        self._is_default = True
        self._io: QuantizationConfig | None = None
        self._names: dict[str, QuantizationConfig | None] = {}
        self._types: dict[str, QuantizationConfig | None] = {}
        self._readers: dict[Any, list[tuple[fx.Node, fx.Node]]] = {}
        self._tensors: dict[Any, set[fx.Node]] = {}

    def set_global(self, config: QuantizationConfig | None) -> EthosUQuantizer:
        """Config of every operator that no filter names."""
        self._global = _checked_config("set_global", config)
        self._is_default = False
        return self

    def set_io(self, config: QuantizationConfig | None) -> EthosUQuantizer:
        """Config of the model's float inputs and outputs. None: they take the parameters of the operators beside
        them, and float values cross the boundary."""
        self._io = _checked_config("set_io", config)
        return self

    def set_module_name(self, name: str, config: QuantizationConfig | None) -> EthosUQuantizer:
        """Config of the module at path ``name`` (as in ``model.get_submodule``) and of all inside it.

        Of several names the longest wins. A name that the model has not is an error at prepare time.
        """
        if not isinstance(name, str):
            raise QuantizationError(f"set_module_name: the name is a {type(name).__name__}",
                                    "give a module's path, as in model.get_submodule: 'body.0'")
        self._names[name] = _checked_config("set_module_name", config)
        return self

    def set_module_type(self, kind: type[nn.Module] | str, config: QuantizationConfig | None) -> EthosUQuantizer:
        """Config of every module of class ``kind`` (or its qualified name) and of all inside it.

        A class that the model does not use is an error at prepare time.
        """
        if not isinstance(kind, (str, type)):
            instance = f"{type(kind).__name__} instance" if isinstance(kind, nn.Module) else type(kind).__name__
            raise QuantizationError(f"set_module_type: the type is a {instance}",
                                    f"give the class, {type(kind).__name__}, or set_module_name for one module")
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        self._types[name] = _checked_config("set_module_type", config)
        return self

    # ---- torchao's Quantizer -----------------------------------------------------------------------

    def transform_for_annotation(self, model: fx.GraphModule) -> fx.GraphModule:
        """Removes guards, makes in-place operators functional, folds constants and batch norms."""
        return normalize(model, self.is_qat)

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Writes the annotations.

        Raises:
            QuantizationError: A filter matches nothing; the message lists the candidates.
        """
        self._check_filters(model)
        configs = {node: self._config(node) for node in model.graph.nodes}
        annotator = Annotator(model, configs.get, self.is_qat, self._io)
        annotator.run()
        self._readers, self._tensors = annotator.readers, annotator.tensors
        return model

    def prepare_obs_or_fq_callback(self, model: fx.GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        """Tells the observer of a tensor that only functions of one variable read what these functions are, and that
        of a softmax's input how far away a mask is."""
        for place, readers in self._readers.items():
            observer = edge_or_node_to_obs_or_fq.get(place)
            if isinstance(observer, RangeObserver) and readers:
                functions = [reader_function(model, node, tensor) for node, tensor in readers]
                observer.functions = tuple(f for f in functions if f is not None) if all(functions) else ()
        self._expect_masks(edge_or_node_to_obs_or_fq)
        self._readers, self._tensors = {}, {}

    def _expect_masks(self, observers: dict[Any, Any]) -> None:
        """A mask before a softmax is a tensor of very low numbers, or an addition of one."""
        masked: dict[fx.Node, RangeObserver] = {}  # what only softmaxes read, at once or after additions
        waiting = {p: o for p in self._readers if isinstance(o := observers.get(p), RangeObserver)}
        more = True
        while more:
            more = False
            for place, observer in list(waiting.items()):
                readers = self._readers[place]
                margins = [softmax_margin(node, tensor) for node, tensor in readers]
                sums = [node in masked and node.target is aten.add.Tensor for node, _ in readers]
                if not readers or not all(m or s for m, s in zip(margins, sums)):
                    continue
                added = [
                    (masked[node], observers.get((x, node), observers.get(x)))
                    for (node, tensor), is_sum in zip(readers, sums)
                    for x in node.all_input_nodes
                    if is_sum and x is not tensor
                ]
                observer.margin = max(margins)
                observer.sums = tuple((total, o) for total, o in added if isinstance(o, RangeObserver))
                masked.update(dict.fromkeys(self._tensors[place], observer))
                del waiting[place]
                more = True

    def validate(self, model: fx.GraphModule) -> None:
        """Nothing to do: `annotate` only makes annotations that hold."""

    @property
    def is_qat(self) -> bool:
        """Whether the configs are for training; they must agree.

        Raises:
            QuantizationError: Some configs are for training and some are not.
        """
        configs = [c for c in (self._global, self._io, *self._names.values(), *self._types.values()) if c is not None]
        kinds = {c.is_qat for c in configs}
        if len(kinds) > 1:
            raise QuantizationError(
                "the quantizer mixes configs with is_qat=True and is_qat=False",
                "make all with get_symmetric_quantization_config(is_qat=...) of the same value; without "
                "set_global, the global config has is_qat=False",
            )
        return kinds == {True}

    def use_qat_default(self) -> None:
        """Makes the global config one for training, unless the user has set one."""
        if self._is_default:
            self._global = get_symmetric_quantization_config(is_qat=True)

    # ---- filters -----------------------------------------------------------------------------------

    def _config(self, node: fx.Node) -> QuantizationConfig | None:
        stack = module_stack(node)
        paths = [path for path, _ in stack]
        names = [name for name in self._names if any(path == name for path in paths)]
        if names:
            return self._names[max(names, key=len)]
        for _, kind in reversed(stack):
            if kind in self._types:
                return self._types[kind]
        return self._global

    def _check_filters(self, model: fx.GraphModule) -> None:
        stacks = [pair for node in model.graph.nodes if node.op == "call_function" for pair in module_stack(node)]
        _check("set_module_name", "module", self._names, {path for path, _ in stacks if path})
        _check("set_module_type", "module of type", self._types, {kind for _, kind in stacks})


def check_quantizer(quantizer: object) -> None:
    """Raises if it is no quantizer.

    Raises:
        QuantizationError: Says what it is, and what to do with a config.
    """
    if not isinstance(quantizer, Quantizer):
        given = "None" if quantizer is None else f"a {type(quantizer).__name__}"
        raise QuantizationError(f"the quantizer is {given}",
                                "give EthosUQuantizer(), with a config EthosUQuantizer().set_global(config)")


def _checked_config(setter: str, config: QuantizationConfig | None) -> QuantizationConfig | None:
    if config is not None and not isinstance(config, QuantizationConfig):
        raise QuantizationError(f"{setter}: the config is a {type(config).__name__} ({config!r})",
                                "give get_symmetric_quantization_config(), or None to leave the operators in float")
    return config


def _checked_spec(spec: object) -> EthosUCompileSpec | None:
    if isinstance(spec, str):
        return EthosUCompileSpec(spec)
    if spec is not None and not isinstance(spec, EthosUCompileSpec):
        raise QuantizationError(f"EthosUQuantizer: the compile_spec is a {type(spec).__name__}",
                                "give EthosUCompileSpec('ethos-u55-128') or leave it out; a config goes to set_global")
    return spec


def _check(setter: str, what: str, wanted: dict[str, Any], found: set[str]) -> None:
    for name in wanted:
        if name in found:
            continue
        close = difflib.get_close_matches(name, sorted(found), n=5, cutoff=0.5)
        listed = ", ".join(sorted(found)[:40]) + (f", ... ({len(found)} in all)" if len(found) > 40 else "")
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise QuantizationError(
            f"{setter}({name!r}, ...): the exported model has no operator in a {what} {name!r}",
            f"{hint}found: {listed or 'none'}",
        )


def module_stack(node: fx.Node) -> list[tuple[str, str]]:
    """(path, qualified class name) of the modules that ``node`` was traced in, outermost first. The paths are
    those of the user's model: the prefixes that exporters add are removed."""
    stack = node.meta.get("nn_module_stack") or {}
    return [
        (_clean(path), kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}")
        for path, kind in stack.values()
    ]


def _clean(path: str) -> str:
    for prefix in ("L['self'].", "L['self']", "L__self__.", "L__self__"):
        path = path.removeprefix(prefix)
    return path


__all__ = ["EthosUQuantizer", "check_quantizer", "module_stack"]
