"""Weight constraint (LC310): whether weights obey their constraints.

Statement: at every recorded set of weights each constrained parameter has a norm of at most r: the
Euclidean one, or the operator norm of every op that uses it (a largest magnitude, if the op
multiplies or adds entry by entry). Compared: a certified upper end and a proved lower end of the
norm with r·(1 + max(n·u, 2^-23)), u the unit roundoff of the type in which weights are stored, n
the larger side of the weight as a matrix. Threshold: a projection W ↦ W·min(1, r/‖W‖) computed in
that type rounds each entry once and the factor by at most n − 1 roundings of a norm, so that it
leaves ‖W‖ ≤ r·(1 + n·u) to first order; proving a norm takes a share of about 4e-8 of it. Weights
within the threshold are within rounding of a member, and pass with the excess stated. A violation
is reported only if the lower end is above it. False alarms: none.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from lipcert.analysis.premises import constraints_of
from lipcert.audit.bounds import Claims, are_made_anew
from lipcert.audit.checks.run_check import Finding, run_check
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.weight_norms import MODEL, Excess, excesses, storage_unit
from lipcert.core.program import FloatArray
from lipcert.measure.precision import Precision
from lipcert.text.numbers import counted

_CONSTRAINT: Final = Check("LC310", "weight-constraint")
_JUDGED: Final = {
    Verdict.PASS: "the largest, up to rounding, of",
    Verdict.INCONCLUSIVE: "undecided at",
    Verdict.VIOLATION: "outside at",
}


def file_weights(claims: Claims, weights: Mapping[str, FloatArray]) -> Iterator[CheckReport]:
    """Check the weights of the file, if they are replayed: outside their constraints they are a
    mismatch."""
    if claims.settings.scope == "constraint-set":
        found = list(excesses(claims, weights, MODEL, storage_unit(weights)))
        yield from _reported(found, Verdict.MISMATCH)


@run_check(_CONSTRAINT)
def recorded_weights(run: RecordedRun) -> Iterator[Finding]:
    """Check every recorded set of weights."""
    names, settings = run.checkpoints, run.settings
    is_held = settings.scope != "point" or are_made_anew(settings)
    if not (is_held and constraints_of(run.graph, settings)):
        return
    unit = stored_unit(run)
    found = [e for name in names for e in excesses(run.claims, run.weights(name), name, unit)]
    yield from _reported(found, Verdict.VIOLATION)
    if not names:
        yield "no step records its weights; use every=… of the recorder"


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
