"""Usefulness of what was audited: its noise against its rival, and against gradients of examples.

What enters: a job made ready. What leaves: a `Usefulness` of the bounds that were audited, measured
at some examples of the audit and the weights of the file, or at random admissible ones for an
attack alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lipcert.analysis.observing import observed_at, observed_at_random
from lipcert.analysis.records import Usefulness
from lipcert.analysis.release import Release, planned_multiplier
from lipcert.analysis.usefulness import usefulness_of
from lipcert.audit.bounds import Claims
from lipcert.audit.job import Kind
from lipcert.audit.prepared_job import Ready
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.gradients import work
from lipcert.gradient_stats.measure import Observed
from lipcert.privacy.noise import Group
from lipcert.upper import INFINITE, Upper

_MOST: Final = 256
_WORK: Final = 1e9
"""floating-point operations that measuring a signal may take"""


def usefulness_at(ready: Ready) -> Usefulness | None:
    """Of one release of the claimed bounds; None where nothing is trained."""
    claims, settings = ready.claims, ready.claims.settings
    if not claims.groups:
        return None
    groups = _groups(claims)
    released = Release.of(groups, settings, planned_multiplier(None, settings, groups))
    return usefulness_of(released, settings, None, _observed(ready))


def _groups(claims: Claims) -> tuple[Group, ...]:
    """Those of the analysis, with the bounds that are claimed of them."""
    bounds = {claim.name: claim.grad_norm for claim in claims.groups}
    return tuple(
        replace(group, grad_norm=INFINITE if bound is None else Upper(bound))
        for group in claims.engine.groups
        for bound in (bounds.get(group.name, group.grad_norm.value),)
    )


def _observed(ready: Ready) -> Observed | None:
    """Gradients at the first examples that are replayed; None where that would take long."""
    engine, settings = ready.claims.engine, ready.claims.settings
    unit = next(iter(ready.units), None)
    if unit is None:
        return None
    if unit.kind is Kind.ATTACK:
        return observed_at_random(engine, settings)
    count = min(int(_WORK / work(engine.program)), _MOST)
    some = ready.examples(unit.examples).read(unit.start, unit.start + count)
    try:
        return observed_at(engine, settings, some)
    except NoVerdictError:  # of labels that the replay refuses, too
        return None
