"""Admissibility (LC304) of recorded batches that are not replayed for want of weights or labels.

Statement: every recorded input lies in the declared domain, of which alone the bounds speak.
Compared: entries exactly, norms up to one rounding of each stored entry (see `admissibility`).
False alarms: none. Batches that are replayed are checked there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lipcert.audit.admissibility import outside
from lipcert.audit.checks.subject import Checked, RecordedRun, shortened
from lipcert.audit.recorded import INPUT
from lipcert.audit.records import Check, CheckReport

_CHECK: Final = Check(
    "LC304",
    "admissibility",
    "clip or scale the inputs before the network, or declare the domain that they are in "
    "(--input-norm, --input-box)",
)


def admissible_batches(run: RecordedRun) -> Checked:
    """A report for each step with an inadmissible example."""
    inputs = [
        batch.tensors is not None and INPUT in batch.tensors.tensors()
        for step in run.steps
        for batch in step.batches
        if batch.examples != 0
    ]
    if not any(inputs) and not run.whole_batches:
        text = "admissibility: no step records its inputs; use detail=… of the recorder"
        if run.trace.manifest.examples_key is not None:
            text = "admissibility: no example of a step is at hand"
        return Checked(not_done=(text,) if run.steps else ())
    return Checked(shortened(tuple(_reports(run))))


def _reports(run: RecordedRun) -> Iterator[CheckReport]:
    for step in run.steps:
        if run.name(step) in run.whole_batches:
            continue
        start = 0
        for batch in step.batches:
            tensors = {} if batch.tensors is None else batch.tensors.tensors()
            inadmissible = outside(tensors[INPUT], run.settings) if INPUT in tensors else []
            if inadmissible:
                index, why = inadmissible[0]
                yield _CHECK.failed(
                    f"{len(inadmissible)} examples of {run.name(step)} lie outside the "
                    f"declared input domain; example {start + index} {why}",
                    run.name(step),
                )
            start += batch.examples or 0
