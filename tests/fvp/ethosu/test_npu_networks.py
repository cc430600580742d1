"""Whole small networks under settings that make cascades, rolling buffers and weight buffers."""

from __future__ import annotations

from typing import Any

import pytest
from npu_harness import QUICK, TARGETS, compile_graph, difference, full, reference
from npu_networks import NETWORKS

from fvp.ethosu.hazard import hazards
from fvp.ethosu.task import Task

SETTINGS: tuple[dict[str, Any], ...] = ({}, {"optimize": "Size"}, {"arena": 40000}, {"arena": 20000})


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    g = NETWORKS[name]()
    feeds = [g.feed(seed) for seed in range(2)]
    wanted = [reference(g.graph, inputs) for inputs in feeds]
    assert all(len({v for w in want for v in w.ravel().tolist()}) > 10 for want in wanted), "the values say too little"
    for target in TARGETS if full() else QUICK:
        for options in SETTINGS:
            compiled = compile_graph(g.graph, target, **options)
            for inputs, want in zip(feeds, wanted):
                assert not difference(want, compiled.run(inputs)), (target, options)
            assert not hazards(compiled.program), (target, options)


def test_the_settings_do_what_they_are_for() -> None:
    """Rolling buffers (two tiles), buffered weights and bricks occur in the streams above."""
    tiles = copies = bricks = 0
    for options in SETTINGS:
        tasks = compile_graph(NETWORKS["mobilenet"]().graph, "u55-128", **options).program.tasks
        for t in tasks:
            if isinstance(t, Task):
                maps = [x.fm for x in (t.ifm, t.ifm2, t.ofm) if x is not None and x.where == "memory"]
                tiles += any(len(list(m.parts())) > 1 for m in maps)
                bricks += any(m.brick for m in maps)
                copies += bool(t.dma)
    assert tiles and copies and bricks


@pytest.mark.parametrize(
    ("target", "system", "memory"),
    [
        ("u55-128", "Ethos_U55_High_End_Embedded", "Sram_Only"),
        ("u55-128", "Ethos_U55_Deep_Embedded", "Shared_Sram"),
        ("u65-512", "Ethos_U65_High_End", "Dedicated_Sram"),
        ("u65-256", "Ethos_U65_Embedded", "Shared_Sram"),
        ("u65-512", "Ethos_U65_Embedded", "Sram_Only"),
        ("u85-256", "Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
        ("u85-256", "Ethos_U85_SYS_DRAM_Mid", "Shared_Sram"),
        ("u85-1024", "Ethos_U85_SYS_DRAM_High", "Dedicated_Sram_512KB"),
    ],
)
def test_memory_modes(target: str, system: str, memory: str) -> None:
    g = NETWORKS["inverted_residuals"]()
    inputs = g.feed()
    want = reference(g.graph, inputs)
    for options in ({}, {"arena": 30000}):
        compiled = compile_graph(g.graph, target, system=system, memory=memory, **options)
        assert not difference(want, compiled.run(inputs)), options
