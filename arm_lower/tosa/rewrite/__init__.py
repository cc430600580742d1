"""Local rewrites of a TOSA graph, run until none of them changes anything.

Each rewrite is a function from a graph, changed in place, to whether it changed. Its docstring lists the
cases it handles and those it must not touch. All of them keep every output byte, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from arm_lower.tosa.ir import Graph
from arm_lower.tosa.rewrite.clamp import merge_clamps
from arm_lower.tosa.rewrite.common import share_common
from arm_lower.tosa.rewrite.constants import fold_constants
from arm_lower.tosa.rewrite.dead import remove_dead
from arm_lower.tosa.rewrite.pad import fold_pads
from arm_lower.tosa.rewrite.rescale import fuse_rescales
from arm_lower.tosa.rewrite.reshape import merge_reshapes
from arm_lower.tosa.rewrite.slice import fold_crops, merge_slices
from arm_lower.tosa.rewrite.table import compose_tables
from arm_lower.tosa.rewrite.transpose import cancel_transposes

Rewrite = Callable[[Graph], bool]

REWRITES: tuple[Rewrite, ...] = (
    fold_constants,
    merge_reshapes,
    cancel_transposes,
    compose_tables,
    fuse_rescales,
    merge_clamps,
    fold_pads,
    merge_slices,
    fold_crops,
    share_common,
    remove_dead,
)


def optimize(graph: Graph) -> Graph:
    """``graph`` itself, after all rewrites."""
    while any([rewrite(graph) for rewrite in REWRITES]):
        pass
    return graph
