"""Calibration: how much noise each group of parameters gets, from certified bounds.

Input: an imported model and the settings of a run. Output: for each group its members, the bound of
its per-example gradient, its sensitivity, and the standard deviation of the noise on the released
mean; a certificate that the checker has accepted, whose bounds exceed the derived ones by a margin
for rounding on other machines. Invariant: every number of a `Calibration` is the one that `lipcert
analyze` reports under the same settings or, where the run has a certificate, the one that it
states.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import final

from lipcert.analysis.bounded import Bounded, Progress, bounded, bounded_again
from lipcert.analysis.certificate import Issued, issued
from lipcert.analysis.findings import absence_of, findings
from lipcert.analysis.premises import constraints_of
from lipcert.analysis.release import Release, plan_of, planned_multiplier
from lipcert.core.certificate import Certificate
from lipcert.errors import CertificationError, NoVerdictError, UsageError
from lipcert.importer.model import ImportedModel
from lipcert.privacy.noise import Group
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.settings.values import literal


@final
@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The noise of every release of a run.

    noise_multiplier: the joint σ, whatever the allocation. bounds: what it all follows from.
    """

    settings: Settings
    plan: TrainingPlan
    bounds: Bounded
    noise_multiplier: float
    groups: tuple[Group, ...]

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Standard deviation of the noise on the released mean, by group."""
        return {group.name: group.noise_std for group in self.groups}


def calibrated(
    model: ImportedModel, settings: Settings, observe: Progress | None = None
) -> Calibration:
    """The noise of a run. Raises NoVerdictError where a gradient has no bound, with the reasons."""
    plan = plan_of(settings)
    if plan is None:
        raise UsageError("training: the settings describe no run")
    found = bounded(model, settings, observe)
    multiplier = planned_multiplier(plan, settings, found.groups)
    return _calibration(found, settings, plan, multiplier)


def recalibrated(before: Calibration, radii: Mapping[str, float]) -> Calibration:
    """The same run, noised for all weights whose norms are within these radii.

    radii: of every trained parameter, in the norm of its constraint, Euclidean where it has none.
    For weight clipping: at weights within the radii, a bound over all of them is one at the point.
    """
    held = constraints_of(before.bounds.graph, before.settings)
    constraints = tuple(
        (literal(name), ConstraintSpec(held[name].kind if name in held else "frobenius", radius))
        for name, radius in radii.items()
    )
    around = replace(
        before.settings,
        mechanism="clipless",
        scope="constraint-set",
        constraint=None,
        bias_norm=None,
        constraints=constraints,
    )
    found = bounded_again(before.bounds, around)
    return _calibration(found, before.settings, before.plan, before.noise_multiplier)


def recalculated(before: Calibration, grad_norms: Iterable[float]) -> Calibration:
    """The same run, noised for other bounds of its groups, in their order."""
    groups = tuple(
        replace(group, grad_norm=norm)
        for group, norm in zip(before.bounds.groups, grad_norms, strict=True)
    )
    found = replace(before.bounds, groups=groups)
    return _calibration(found, before.settings, before.plan, before.noise_multiplier)


def _calibration(
    found: Bounded, settings: Settings, plan: TrainingPlan, multiplier: float
) -> Calibration:
    released = Release.of(found.groups, settings, multiplier)
    if released.energy is None:
        raise _unbounded(found, settings)
    return Calibration(settings, plan, found, multiplier, released.groups)


def _unbounded(found: Bounded, settings: Settings) -> NoVerdictError:
    reasons = [
        f"{item.node + ': ' if item.node else ''}{item.message}; {item.remedy}"
        for item in findings(found, absence_of(found), settings)
        if item.code in {"LC101", "LC102"}
    ]
    return NoVerdictError(
        "training: the gradient of one example has no bound, so no noise can hide it:\n  "
        + "\n  ".join(reasons[:5])
    )


@final
class CertificateWarning(UserWarning):
    """A run that is bounded and has no certificate."""


def certified(model: ImportedModel, settings: Settings, found: Bounded) -> Issued | str:
    """A certificate of bounds that were derived; where there can be none, why, with a warning."""
    try:
        made = issued(model, settings, found)
    except (NoVerdictError, CertificationError) as error:
        reason = str(error)
    else:
        if made.certificate.groups or not found.groups:
            return made
        reason = "the file does not hold the trained parameters as tensors of their own"
    warn_uncertified(reason)
    return reason


def as_certified(planned: Calibration, certificate: Certificate) -> Calibration:
    """The same run, with the noise for the bounds that its certificate states."""
    stated = {claim.name: claim.grad_norm for claim in certificate.groups}
    return recalculated(planned, [stated[group.name] for group in planned.groups])


def warn_uncertified(reason: str) -> None:
    """Warn when a run begins, and again at its end, when the first warning has scrolled away."""
    warnings.warn(
        f"the run is bounded, but has no certificate: {reason}", CertificateWarning, stacklevel=4
    )
