"""Calibration: set the noise of each parameter group from certified gradient bounds.

Given an imported model and the settings of a run, this module computes, for each group, its
members, the bound of its per-example gradient, its sensitivity, and the standard deviation of the
noise on the released mean. It can also issue a certificate that the checker has accepted, whose
bounds exceed the derived ones by a margin for rounding on other machines, and raise a
`NoiseWarning` before the first release if the noise drowns the gradients.

Invariants: every number of a `Calibration` is the one that `lipcert analyze` reports under the same
settings or, if the run has a certificate, the one that the certificate states. Private examples are
never read, so the warning costs no privacy. The measurement behind the warning decides nothing, and
no run fails because of it.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lipcert.analysis.bounded import Bounded, Progress, bounded, bounded_again
from lipcert.analysis.certificate import Issued, issued
from lipcert.analysis.findings import absence_of, applied_twice, findings
from lipcert.analysis.observing import observed_at, observed_at_random
from lipcert.analysis.premises import constraints_of
from lipcert.analysis.records import Usefulness
from lipcert.analysis.release import Release, measured_groups, plan_of, planned_multiplier
from lipcert.analysis.usefulness import DROWNED, usefulness_of
from lipcert.core.certificate import Certificate
from lipcert.errors import CertificationError, LipCertError, NoVerdictError, UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.labels import checked_labels
from lipcert.importer.model import ImportedModel
from lipcert.privacy.noise import Allocation, Group, allocate
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.settings.values import literal
from lipcert.text.numbers import times
from lipcert.training.intake import KnownExamples, examples_of

_ROUNDED: Final = 2.0**-20
"""Least noise of a group, as a share of the largest: what rounding leaves of a sum in float32 may
exceed a bound in real arithmetic that is nearly 0, and noise for that bound would not hide it."""
_NEAR: Final = 2.0
"""The factor by which a bound may change before a new proof is searched for."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The noise of every release of a run.

    noise_multiplier: the joint σ, independent of the allocation. bounds: the bounds from which the
    noise follows. searched: the last bounds with a proof of their own; `bounds` reuses that proof,
    and only radii differ.
    """

    settings: Settings
    plan: TrainingPlan
    bounds: Bounded
    noise_multiplier: float
    groups: tuple[Group, ...]
    searched: Bounded | None = None

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Standard deviation of the noise on the released mean, by group."""
        return {group.name: group.noise_std for group in self.groups}


def calibrated(
    model: ImportedModel, settings: Settings, observe: Progress | None = None
) -> Calibration:
    """Return the noise of a run.

    Raises:
        NoVerdictError: if a gradient has no bound, with the reasons.
    """
    plan = plan_of(settings)
    if plan is None:
        raise UsageError("training: the settings describe no run")
    found = bounded(model, settings, observe, every_step=False)
    for item in applied_twice(found):
        warnings.warn(f"training: {item.message}; return what it takes, as logits", stacklevel=3)
    multiplier = planned_multiplier(plan, settings, found.groups)
    return _calibration(found, settings, plan, multiplier)


def recalibrated(before: Calibration, radii: Mapping[str, float]) -> Calibration:
    """Return the same run with noise for all weights whose norms are within these radii.

    For weight clipping: a bound that holds for all weights within the radii holds at the current
    weights. The proof that was found last is reused until a bound has doubled or halved.

    Args:
        radii: one for each trained parameter, in the norm of its constraint; Euclidean if it has
            none.
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
    searched = before.searched
    found = searched and bounded_again(searched, around, by_its_lines=True)
    if searched is None or found is None or not _are_near(searched, found):
        found = bounded_again(before.bounds, around)
        lines = found.derived.needed(found.scope.trained, lipschitz=False)
        searched = replace(found, derived=lines)
    made = _calibration(found, before.settings, before.plan, before.noise_multiplier)
    return replace(made, searched=searched)


def _are_near(one: Bounded, other: Bounded) -> bool:
    """Whether the two bounds of every group differ by at most a factor of 2."""
    pairs = ((a.grad_norm, b.grad_norm) for a, b in zip(one.groups, other.groups, strict=True))
    return all(max(pair) <= _NEAR * min(pair) for pair in pairs)


def recalculated(before: Calibration, grad_norms: Iterable[float]) -> Calibration:
    """Return the same run with noise for other gradient bounds, given in the order of the
    groups."""
    groups = tuple(
        replace(group, grad_norm=norm)
        for group, norm in zip(before.bounds.groups, grad_norms, strict=True)
    )
    found = replace(before.bounds, groups=groups)
    return _calibration(found, before.settings, before.plan, before.noise_multiplier)


def _calibration(
    found: Bounded, settings: Settings, plan: TrainingPlan, multiplier: float
) -> Calibration:
    measured = measured_groups(found.groups, settings)
    noise = allocate(measured, multiplier, Allocation(settings.allocation))
    if noise is None:
        raise _unbounded(found, settings)
    least = _ROUNDED * max((group.noise_std for group in noise.groups), default=0.0)
    stds = (max(group.noise_std, least * (group.noise_std > 0.0)) for group in noise.groups)
    groups = (replace(group, noise_std=s) for group, s in zip(noise.groups, stds, strict=True))
    return Calibration(settings, plan, found, multiplier, tuple(groups))


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


class CertificateWarning(UserWarning):
    """The run is bounded but has no certificate."""


def certified(model: ImportedModel, settings: Settings, found: Bounded) -> Issued | str:
    """Return a certificate of derived bounds, or, after a warning, the reason why there is none."""
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
    """Return the same run with noise for the bounds that its certificate states."""
    stated = {claim.name: claim.grad_norm for claim in certificate.groups}
    return recalculated(planned, [stated[group.name] for group in planned.groups])


def warn_uncertified(reason: str) -> None:
    """Warn that the run has no certificate: when it begins, and again at its end."""
    warnings.warn(
        f"the run is bounded, but has no certificate: {reason}", CertificateWarning, stacklevel=4
    )


_MAIN: Final = 0.5
"""Share of the energy of the noise from which its group is named."""


class NoiseWarning(UserWarning):
    """The noise is so much larger than the gradients that the run will hardly learn."""


def _public(given: KnownExamples, bounds: Bounded) -> Examples:
    """Return these examples, checked; raise UsageError unless network and loss accept them."""
    found = examples_of("public examples", given, bounds.graph, is_private=False)
    try:
        checked_labels(bounds.loss, found.y, bounds.graph.output_shape)
    except NoVerdictError as error:
        raise UsageError(f"training: public examples: {error}") from error
    return found


def usefulness(calibration: Calibration, public: Examples | None) -> Usefulness | None:
    """Return how the gradients of a run compare with its noise, at public examples or at random
    ones.

    None if the gradients cannot be measured, or if random examples would take too long.
    """
    found, settings = calibration.bounds, calibration.settings
    if public is None:
        observed = observed_at_random(found, settings)
    else:
        observed = observed_at(found, settings, public)
    if observed is None:
        return None
    released = Release.of(found.groups, settings, calibration.noise_multiplier)
    return usefulness_of(released, settings, calibration.plan, observed)


def warn_of_noise(calibration: Calibration, public: KnownExamples | None) -> None:
    """Give a NoiseWarning if the noise of all steps together drowns the gradient.

    Raises:
        UsageError: if the public examples do not fit the network or the loss.
    """
    examples = None if public is None else _public(public, calibration.bounds)
    try:
        found = usefulness(calibration, examples)
    except (LipCertError, ArithmeticError, MemoryError):  # nothing depends on it
        return
    share = None if found is None else found.noise_to_signal_of_run
    if found is None or share is None or share <= DROWNED:
        return
    warnings.warn(_message(found, share, calibration.plan.releases), NoiseWarning, stacklevel=3)


def _message(found: Usefulness, share: float, releases: int) -> str:
    observed = found.observed
    where = "" if observed is None else f" ({observed.examples} {observed.source})"
    sentences = [
        f"training: the noise of all {releases} releases together is {times(share)} times "
        f"{found.against}{where}: this run will hardly learn, and spends its ε all the same"
    ]
    largest = max(found.groups, key=lambda group: group.noise or 0.0)
    if found.noise and largest.noise and len(found.groups) > 1:
        part = (largest.noise / found.noise) ** 2
        if part >= _MAIN:
            sentences.append(
                f"{part:.0%} of the energy of the noise comes from the group {largest.name!r}"
            )
    rival = found.clipping_noise_to_signal_of_run
    if rival is not None and rival <= min(share / 2.0, DROWNED):
        sentences.append(
            f"GradientClipping(clip_norm=1.0) would have {times(rival)} times {found.against}"
        )
    elif rival is not None:
        sentences.append(
            f"gradient clipping at C = 1 would have {times(rival)} times: ask for more examples or "
            "epochs, a larger batch, or a larger ε"
        )
    sentences.append(
        "lipcert.suggest(model, x) lists other settings and mechanisms with what each gains, and "
        "changes of the network to be written by hand"
    )
    if observed is not None and observed.of_norms:
        sentences.append("public=(x, y) measures at examples that are more like yours")
    return "; ".join(sentences)
