"""Step numbers: all ranks of a trace count alike, also after they were killed in the midst of a
step.

What enters: the folder of a trace that is gone on with. What leaves: the same trace, in which this
rank has as many steps as any other. Invariant: a step that a rank made and did not come to record
is there as one of which nothing was recorded; audits say then what they could not check.
"""

from __future__ import annotations

import time
from pathlib import Path

from lipcert.audit.trace.files import MANIFEST
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.records import Step
from lipcert.audit.trace.writing import TraceWriter
from lipcert.training.world import World


def level(folder: Path, world: World) -> None:
    """Add the steps that other ranks recorded and this one did not; all ranks must call it."""
    if world.ranks == 1:
        return
    trace = read_trace(folder) if (folder / MANIFEST).exists() else None
    is_ours = trace is not None and world.rank in trace.ranks
    own = sum(1 for _ in trace.steps(world.rank)) if trace is not None and is_ours else 0
    most = world.most(own)
    if trace is None or own == most:
        return
    writer = TraceWriter(folder, trace.manifest, world.rank)
    for number in range(own, most):
        writer.append(Step(world.rank, number, time.time()))
    writer.abandon()
