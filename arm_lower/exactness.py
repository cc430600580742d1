"""``compile(..., verify=True)``: every delegate's command stream on the NPU model, against its TOSA graph.

A stream that differs is repaired: first with another of the Vela settings that the effort level tries, then without
the operator at fault, which goes to the CPU. What cannot be repaired is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from arm_lower import vela
from arm_lower.edge.program import Delegate
from arm_lower.errors import ArmLowerError, VelaError
from arm_lower.partition import Reason, packed
from arm_lower.spec import EthosUCompileSpec
from fvp.ethosu.check import Finding, examine, random_inputs
from tosa_ref.host import Host
from tosa_ref.run import ReferenceModel

Array = npt.NDArray[Any]

_log = logging.getLogger(__name__)

SAMPLES, RANDOM = 4, 2
"""How many of the samples, and how many random inputs, each delegate is run on."""

MOVES = 3
"""How often operators are moved to the CPU before the compilation is given up."""


@dataclass(frozen=True)
class Outcome:
    """What a check of all delegates came to.

    Attributes:
        verified: By the key of each delegate that is exact now, what was found, in words.
        repaired: Delegates that replace those of the same key.
        moved: By name, nodes that must go to the CPU.
    """

    verified: Mapping[str, str]
    repaired: Mapping[str, Delegate] = field(default_factory=dict)
    moved: Mapping[str, Reason] = field(default_factory=dict)


def delegate_inputs(
    pte: bytes, delegates: Sequence[Delegate], samples: Iterable[Sequence[Any]]
) -> list[list[list[Array]]]:
    """The inputs of each delegate call, for each sample: the file is run with its delegates on the reference model.

    Args:
        pte: The file.
        delegates: In call order.
        samples: Arguments as the file takes them.
    """
    models = [ReferenceModel(d.tosa_bytes) for d in delegates]
    seen: list[list[list[Array]]] = [[] for _ in delegates]

    def run(call: int, blob: bytes, inputs: list[Array]) -> Sequence[Array]:
        wanted = models[call].signature.inputs
        arrays = [np.frombuffer(a.tobytes(), t.dtype.numpy).reshape(t.shape) for a, t in zip(inputs, wanted)]
        seen[call].append(list(arrays))
        return models[call].run(arrays)

    host = Host(pte, delegate_runner=run)
    for sample in samples:
        host.run(sample)
    return seen


def check(
    delegates: Mapping[str, Delegate],
    inputs: Sequence[Sequence[list[Array]]],
    spec: EthosUCompileSpec,
    moved: Mapping[str, Reason],
) -> Outcome:
    """Runs every delegate on its inputs and on random ones, and repairs those that are not exact.

    Args:
        delegates: In call order.
        inputs: From `delegate_inputs`.
        spec: What they were compiled for.
        moved: Nodes that earlier checks have moved to the CPU.

    Raises:
        ArmLowerError: A delegate is not exact and cannot be repaired. Names the delegate, the layer with its PyTorch
            module, the element and both values.
    """
    verified: dict[str, str] = {}
    repaired: dict[str, Delegate] = {}
    moves: dict[str, Reason] = {}
    for (key, delegate), given in zip(delegates.items(), inputs, strict=True):
        values = [*given, *(random_inputs(delegate.tosa, seed) for seed in range(RANDOM))]
        said = f"exact for {len(given)} sample(s) and {RANDOM} random input(s)"
        finding = _first(delegate, values, len(given), delegate.vela)
        if finding is None:
            verified[key] = said
            continue
        _log.warning("delegate %s is not what its TOSA graph says: %s", key, finding.message)
        try:
            result = vela.compile(delegate.tosa_bytes, spec, accept=partial(_is_exact, delegate, values, len(given)))
            repaired[key] = replace(delegate, processed=packed(result), vela=result)
            verified[key] = f"{said} with {result.settings}; with {delegate.vela.settings} it is not: {finding.message}"
            continue
        except VelaError:
            pass
        stem = finding.layer.name.split(".")[0] if finding.layer is not None else ""
        if not stem or stem in moved or len(moved) >= MOVES:
            raise ArmLowerError(
                f"delegate {key}: the command stream that Vela wrote is not what the TOSA graph says: "
                + finding.message,
                "try another effort, memory_mode or target, or leave the module out of the quantization, which keeps "
                "it on the CPU",
            )
        moves[stem] = Reason(f"Vela's command stream for it is wrong: {finding.message}",
                             "another effort or memory_mode may do")
    return Outcome(verified, repaired, moves)


def _is_exact(delegate: Delegate, values: Sequence[list[Array]], samples: int, result: vela.VelaResult) -> bool:
    return _first(delegate, values, samples, result) is None


def _first(delegate: Delegate, values: Sequence[list[Array]], samples: int, result: vela.VelaResult) -> Finding | None:
    """The first difference of a result for ``delegate``. Random values after the first ``samples`` may overflow, which
    TOSA does not allow: then they say nothing."""
    model = ReferenceModel(delegate.tosa_bytes)
    for number, arrays in enumerate(values):
        try:
            wanted = model.run(arrays)
        except ArmLowerError:
            if number < samples:
                raise
            continue
        finding = examine(delegate.tosa, result, arrays, wanted)
        if finding is not None:
            return finding
    return None
