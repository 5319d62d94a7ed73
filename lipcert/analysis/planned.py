"""The planned run: its plan, its noise multiplier, and what it costs in privacy.

What enters: the settings. What leaves: a `TrainingPlan` or None where no run is described, the
noise multiplier (given, or solved for a target ε), and the `Account` of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lipcert.privacy.account import Account, account_for
from lipcert.privacy.accounting import accountant_named, noise_for_epsilon
from lipcert.privacy.declaration import POINT_ONLY
from lipcert.privacy.noise import NoiseGroup, joint_multiplier
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.lacking import missing
from lipcert.settings.settings import Settings

_DEFAULT_MULTIPLIER: Final = 1.0


def check_complete(settings: Settings) -> None:
    """UsageError that lists what an analysis lacks, or says what contradicts a run."""
    if settings.asks:
        raise missing(settings.asks)
    plan_of(settings)


def plan_of(settings: Settings) -> TrainingPlan | None:
    """The run that the settings describe. UsageError where something is missing or contradicts."""
    if not settings.describes_a_run:
        return None
    return TrainingPlan.described(
        dataset_size=settings.dataset_size,
        sampling=settings.sampling,
        delta=settings.delta,
        batch_size=settings.batch_size,
        steps=settings.steps,
        epochs=settings.epochs,
        neighbours=settings.neighbours,
        dataset_size_from=settings.dataset_size_from,
        sampling_rate=settings.sampling_rate,
    )


def known_plan(settings: Settings) -> TrainingPlan | None:
    """The run that the settings describe; None where something of it is missing."""
    return None if settings.asks else plan_of(settings)


def planned_multiplier(
    plan: TrainingPlan | None, settings: Settings, groups: Sequence[NoiseGroup]
) -> float:
    """σ as given, as solved for the target ε, as the groups' own multipliers make it, or 1."""
    if plan is not None and settings.target_epsilon is not None:
        return noise_for_epsilon(
            plan, settings.target_epsilon, accountant_named(settings.accountant)
        ).noise_multiplier
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    joint = joint_multiplier(groups) if settings.noise_multipliers else None
    return _DEFAULT_MULTIPLIER if joint is None else joint.value


def account_of(plan: TrainingPlan, multiplier: float, settings: Settings) -> Account:
    """What the run costs if every release has the stated sensitivities and noise."""
    account = account_for(plan, multiplier, accountant_named(settings.accountant))
    if settings.scope == "point" and not settings.is_stepwise:
        account = replace(account, diagnostics=(*account.diagnostics, POINT_ONLY))
    return account
