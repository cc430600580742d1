"""Random operators and random small networks on random accelerators are all equal.

``NPU_FULL=1`` runs 500 operators and 100 networks; the default is a tenth of that.
"""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from npu_harness import compile_graph, difference, full, reference
from npu_random import network, operator, shuffle

from arm_lower.targets.faults import Miscompiled, avoid
from arm_lower.tosa.rewrite import optimize
from fvp.ethosu.hazard import Hazard, hazards
from fvp.ethosu.program import Program
from fvp.ethosu.task import Task

_SEEDS = st.integers(0, 2**32 - 1)


def _settings(count: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=count if full() else count // 10, deadline=None, derandomize=True, suppress_health_check=slow
    )


def vela_misjudges(program: Program, hazard: Hazard) -> bool:
    """Vela steps over its input by the size of a block's input; with a kernel smaller than its stride that is less
    than the block really advances, and BLOCKDEP comes out too large. Whether silicon minds is unknown."""
    (reader,) = [t for t in program.tasks if isinstance(t, Task) and t.offset == hazard.second]
    w = reader.window
    return w is not None and any(w.span(a) < w.stride[a] for a in (0, 1))


@given(_SEEDS)
@_settings(500)
def test_random_operator(seed: int) -> None:
    g, target = operator(seed)
    inputs = g.feed(seed % 1000)
    want = reference(g.graph, inputs)
    compiled = compile_graph(g.graph, target)
    assert not difference(want, compiled.run(inputs)), (seed, target)
    assert not hazards(compiled.program), (seed, target)


@given(_SEEDS)
@_settings(100)
def test_random_network(seed: int) -> None:
    g, target, options = network(seed)
    inputs = g.feed(seed % 1000)
    want = reference(g.graph, inputs)
    compiled = compile_graph(g.graph, target, **options)
    assert not difference(want, compiled.run(inputs)), (seed, target, options)
    found = hazards(compiled.program)
    assert all(vela_misjudges(compiled.program, h) for h in found), (seed, target, options, found)


@given(_SEEDS)
@_settings(1000)
def test_random_data_movement(seed: int) -> None:
    """Vela has faults among these (test_npu_faults), which the compiler avoids. What Vela refuses is left out."""
    g, target = shuffle(seed)
    if not g.graph.ops or any(t in g.graph.inputs for t in g.graph.outputs):
        return
    inputs = g.feed(seed % 1000)
    want = reference(g.graph, inputs)
    try:
        avoid(optimize(g.graph), target)
        compiled = compile_graph(g.graph, target)
    except Miscompiled:
        return
    except RuntimeError as error:
        assert "could not run on NPU" in str(error) or "Unsupported" in str(error), error
        return
    assert not difference(want, compiled.run(inputs)), (seed, target)


def test_a_blockdep_that_vela_misjudges() -> None:
    """The smallest seed at which it happens, so that the finding stays reproducible."""
    g, target, options = network(124)
    compiled = compile_graph(g.graph, target, **options)
    found = hazards(compiled.program)
    assert found and all(vela_misjudges(compiled.program, h) for h in found)
    inputs = g.feed(124)
    assert not difference(reference(g.graph, inputs), compiled.run(inputs)), "in program order the stream is right"
    assert isinstance(np.asarray(inputs[0]), np.ndarray)
