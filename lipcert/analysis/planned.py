"""The planned run: its plan, its noise multiplier, and what it costs in privacy.

What enters: the settings. What leaves: a `TrainingPlan` or None where no run is described, the
noise multiplier (given, or solved for a target ε), and the `Account` of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import UsageError
from lipcert.privacy.account import Account, account_for
from lipcert.privacy.accounting import Accountant
from lipcert.privacy.calibration import noise_for_epsilon
from lipcert.privacy.noise import Neighbouring, NoiseGroup, joint_multiplier
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.settings import Settings

__all__ = ["account_of", "plan_of", "planned_multiplier"]

_DEFAULT_MULTIPLIER: Final = 1.0


def plan_of(settings: Settings) -> TrainingPlan | None:
    """The run that the settings describe. UsageError where something is missing or contradicts."""
    if not settings.describes_a_run:
        return None
    if settings.dataset_size is None or settings.sampling is None or settings.delta is None:
        missing = next(
            key for key in ("dataset_size", "sampling", "delta") if getattr(settings, key) is None
        ).replace("_", "-")
        raise UsageError(f"{missing}: there is no account of a run without it; give --{missing}")
    return TrainingPlan(
        dataset_size=settings.dataset_size,
        sampling=Sampling(settings.sampling),
        delta=settings.delta,
        batch_size=settings.batch_size,
        steps=settings.steps,
        epochs=settings.epochs,
        neighbours=Neighbouring(settings.neighbours),
    )


def planned_multiplier(
    plan: TrainingPlan | None, settings: Settings, groups: Sequence[NoiseGroup]
) -> float:
    """σ as given, as solved for the target ε, as the groups' own multipliers make it, or 1."""
    if plan is not None and settings.target_epsilon is not None:
        return noise_for_epsilon(
            plan, settings.target_epsilon, _accountant(settings)
        ).noise_multiplier
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    joint = joint_multiplier(groups) if settings.noise_multipliers else None
    return _DEFAULT_MULTIPLIER if joint is None else joint.value


def account_of(plan: TrainingPlan, multiplier: float, settings: Settings) -> Account:
    """What the run costs if every release has the stated sensitivities and noise."""
    account = account_for(plan, multiplier, _accountant(settings))
    if settings.scope == "point" and settings.mechanism != "weight-clipping":
        account = replace(account, diagnostics=(*account.diagnostics, _POINT_ONLY))
    return account


def _accountant(settings: Settings) -> Accountant | None:
    if settings.accountant in {None, "auto"}:
        return None
    return Accountant(settings.accountant)


_POINT_ONLY: Final = Diagnostic(
    "LC408",
    Level.WARNING,
    "",
    "the sensitivity holds at the weights of the file, which the first step leaves",
    "compute it again before every step, or declare the constraints that training enforces",
)
