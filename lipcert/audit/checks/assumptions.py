"""Whether a run stays within what its bounds assume of inputs, weights and statistics.

Admissibility (LC304) of recorded batches that cannot be replayed, for lack of weights or labels.
Statement: every recorded input lies in the declared domain, to which alone the bounds apply.
Compared: entries exactly, norms up to one rounding of each stored entry (see
`gradient_stats.examples`). False alarms: none. Batches that are replayed are checked there.

Weight constraint (LC310). Statement: at every recorded set of weights each constrained parameter
has a norm of at most r: the Euclidean one, or the operator norm of every op that uses it (a largest
magnitude, if the op multiplies or adds entry by entry). Compared: a certified upper end and a
proved lower end of the norm with r·(1 + max(n·u, 2^-23)), u the unit roundoff of the type in which
weights are stored, n the larger side of the weight as a matrix. Threshold: a projection W ↦
W·min(1, r/‖W‖) computed in that type rounds each entry once and the factor by at most n − 1
roundings of a norm, so that it leaves ‖W‖ ≤ r·(1 + n·u) to first order; proving a norm takes a
share of about 4e-8 of it. Weights within the threshold are within rounding of a member, and pass
with the excess stated. A violation is reported only if the lower end is above it. False alarms:
none.

Batch independence (LC316) of a recorded run. Statement: the stored statistics of normalisation
layers do not change. Compared: bit for bit. False alarms: none: only a layer that normalises by its
batch changes its statistics.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.analysis.premises import constraints_of
from lipcert.audit.bounds import Claims, are_made_anew
from lipcert.audit.checks.functions import MIXING
from lipcert.audit.checks.run_check import FEW, Finding, run_check
from lipcert.audit.recorded import INPUT, RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.blobs import Blob
from lipcert.audit.weight_norms import MODEL, Excess, excesses, storage_unit
from lipcert.core.program import FloatArray
from lipcert.gradient_stats.examples import outside
from lipcert.graph.ir import is_shown
from lipcert.measure.precision import Precision
from lipcert.text.numbers import counted

_DOMAIN: Final = Check(
    "LC304",
    "admissibility",
    "clip or scale the inputs before the network, or declare the domain that they are in "
    "(--input-norm, --input-box)",
)
_CONSTRAINT: Final = Check("LC310", "weight-constraint")
_STATISTICS: Final = (".running_mean", ".running_var")
_JUDGED: Final = {
    Verdict.PASS: "the largest, up to rounding, of",
    Verdict.INCONCLUSIVE: "undecided at",
    Verdict.VIOLATION: "outside at",
}


@run_check(_DOMAIN, most=FEW)
def admissible_batches(run: RecordedRun) -> Iterator[Finding]:
    """Report each step with an inadmissible example."""
    inputs = [
        batch.tensors is not None and INPUT in batch.tensors.tensors()
        for step in run.steps
        for batch in step.filled
    ]
    if not any(inputs) and not run.whole_batches:
        if run.trace.manifest.examples_key is not None:
            yield "no example of a step is available"
        else:
            yield "no step records its inputs; use detail=… of the recorder"
        return
    for step in run.steps:
        if run.name(step) in run.whole_batches:
            continue
        start = 0
        for batch in step.batches:
            tensors = {} if batch.tensors is None else batch.tensors.tensors()
            inadmissible = outside(tensors[INPUT], run.settings) if INPUT in tensors else []
            if inadmissible:
                index, why = inadmissible[0]
                yield _DOMAIN.failed(
                    f"{len(inadmissible)} examples of {run.name(step)} lie outside the "
                    f"declared input domain; example {start + index} {why}",
                    run.name(step),
                )
            start += batch.examples or 0


def file_weights(claims: Claims, weights: Mapping[str, FloatArray]) -> Iterator[CheckReport]:
    """Check the weights of the file, if they are replayed: outside their constraints they are a
    mismatch."""
    if claims.settings.scope == "constraint-set":
        found = list(excesses(claims, weights, MODEL, storage_unit(weights)))
        yield from _reported(found, Verdict.MISMATCH)


@run_check(_CONSTRAINT)
def recorded_weights(run: RecordedRun) -> Iterator[Finding]:
    """Check every recorded set of weights."""
    names = run.checkpoints
    if run.settings.scope == "point" and not are_made_anew(run.settings):
        yield from _at_the_point(run, names)
    elif constraints_of(run.graph, run.settings) and not names:
        yield "no step records its weights; use every=… of the recorder"
    elif constraints_of(run.graph, run.settings):
        unit = stored_unit(run)
        found = [
            excess
            for name in names
            for excess in excesses(run.claims, run.weights(name), name, unit)
        ]
        yield from _reported(found, Verdict.VIOLATION)


def _at_the_point(run: RecordedRun, names: list[str]) -> Iterator[CheckReport]:
    """Report weights that differ from those of the file, if the bounds apply only to these."""
    for name in [] if run.settings.weights_are_free else names:
        for parameter, numbers in run.weights(name).items():
            if is_shown(run.graph, parameter, numbers):
                continue
            yield Check("LC319", _CONSTRAINT.name).failed(
                f"the bounds hold at the weights of the file alone, and {parameter!r} at {name} "
                "differs from them",
                name,
                verdict=Verdict.MISMATCH,
                remedy="declare the constraints that training enforces (--scope constraint-set), "
                "or audit an export of each step",
            )
            return


def _reported(found: list[Excess], outside: Verdict) -> Iterator[CheckReport]:
    """Yield a report for every tensor that is outside or undecided, else one for the largest
    norm."""
    bad = [excess for excess in found if excess.verdict is not Verdict.PASS]
    tensors = dict.fromkeys(excess.parameter for excess in bad)
    parts = [[excess for excess in bad if excess.parameter == name] for name in tensors]
    for mine in parts or [found] * bool(found):
        violated = [excess for excess in mine if excess.verdict is Verdict.VIOLATION]
        worst = max(violated or mine, key=lambda excess: excess.upper)
        verdict, radius = outside if violated else worst.verdict, worst.constraint.radius
        low, high = worst.lower * radius, worst.upper * radius
        places = counted(len({excess.weights for excess in mine}), "set")
        remedy = "project after every step of the optimizer, before the next forward pass"
        if verdict is Verdict.MISMATCH:
            remedy = "export weights that were projected, or bound the weights of the file"
        yield _CONSTRAINT.failed(
            f"the {worst.constraint.kind} norm of {worst.parameter!r} at {worst.weights} lies "
            f"between {low:.9g} and {high:.9g}, its constraint is {radius:.9g} "
            f"({_JUDGED[worst.verdict]} {places} of weights)",
            f"{worst.weights}: {worst.parameter}",
            (low if violated else high, radius),
            verdict=verdict,
            remedy="" if verdict is Verdict.PASS else remedy,
        )


def stored_unit(run: RecordedRun) -> float:
    """Return the unit roundoff of the type in which the run stores its weights."""
    used = [step.arithmetic.stored for step in run.steps if step.arithmetic is not None]
    return max(((item or Precision.FLOAT64).unit / 2.0 for item in used), default=2.0**-24)


@run_check(MIXING)
def moving_statistics(run: RecordedRun) -> Iterator[Finding]:
    """Report statistics of normalisation layers that differ between recorded places."""
    first: dict[str, tuple[str, npt.NDArray[Any]]] = {}
    for where, blob in _weights(run):
        for name, item in blob.tensors().items():
            if not name.endswith(_STATISTICS):
                continue
            known, value = first.setdefault(name, (where, item))
            if not np.array_equal(value, item, equal_nan=True):
                yield MIXING.failed(
                    f"{name!r} moved between {known} and {where}: the layer normalises by the "
                    "statistics of its batch, so that examples influence each other, and stores "
                    "them without noise",
                    where,
                    (float(np.linalg.norm(item.astype(np.float64) - value)), 0.0),
                )
                return


def _weights(run: RecordedRun) -> Iterator[tuple[str, Blob]]:
    for step in run.steps:
        if step.weights_before is not None:
            yield run.name(step), step.weights_before
        if step.weights_after is not None:
            yield f"after {run.name(step)}", step.weights_after
