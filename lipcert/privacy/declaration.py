"""Declaration: how a run really sets its noise and how its ε was claimed, where that may differ.

What enters: what the user says of an implementation or a paper. What leaves: the noise multiplier
that the run really has, and the ε that its own accounting would claim. Invariant: the default
declaration is that of a correct run: it changes nothing and claims nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import final

from lipcert.errors import UsageError
from lipcert.privacy.accounting import check_multiplier, epsilon
from lipcert.privacy.noise import Neighbouring, Reduction
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.upper import Lower, Upper


class Composition(Enum):
    """How the claim counts the groups that one step noises."""

    JOINT = "joint"
    """as one release with the joint multiplier (right)"""
    ONCE = "once"
    """as one release with the multiplier of a single group"""
    SEPARATE = "separate"
    """as steps of their own, each with its own sample"""


class Divisor(Enum):
    """What a mean divides by."""

    CONSTANT = "constant"
    BATCH_SIZE = "batch-size"
    """the size of the batch at hand"""


@final
@dataclass(frozen=True, slots=True)
class Declaration:
    """How the noise is set: s = σ·Δ on each of `groups` groups, by the sensitivity Δ of ….

    sensitivity_for: the neighbouring relation it was computed for (None: that of the plan).
    sensitivity_of, noise_on: whether it is that of the sum or of the mean over B, and which of the
        two receives the noise.
    claimed_sampling: what the accountant was told (None: the truth).
    """

    groups: int = 1
    composition: Composition = Composition.JOINT
    sensitivity_for: Neighbouring | None = None
    sensitivity_of: Reduction = Reduction.SUM
    noise_on: Reduction = Reduction.SUM
    divisor: Divisor = Divisor.CONSTANT
    claimed_sampling: Sampling | None = None

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise UsageError(f"noised-groups: {self.groups} is not a positive number of groups")

    def relation_factor(self, plan: TrainingPlan) -> float:
        """Δ that was used over Δ of the plan's relation: ½, 1 or 2."""
        used = self.sensitivity_for or plan.neighbours
        return _bounds_moved(used) / _bounds_moved(plan.neighbours)

    def reduction_factor(self, plan: TrainingPlan) -> Lower:
        """Δ that was used over Δ of what receives the noise: 1/B, 1 or B, rounded down."""
        batch = float(plan.batch)
        match self.sensitivity_of, self.noise_on:
            case Reduction.MEAN, Reduction.SUM:
                return Lower(1.0).over(Upper(batch))
            case Reduction.SUM, Reduction.MEAN:
                return Lower(batch)
            case _:
                return Lower(1.0)

    def divisor_tells(self, plan: TrainingPlan) -> bool:
        """Whether the mean divides by a size that depends on who is in the batch.

        Then the scale of the noise tells that size. Batches of shuffled data and of fixed size, and
        full ones where an example is only replaced, have the same sizes for both data sets.
        """
        if self.divisor is Divisor.CONSTANT:
            return False
        if plan.sampling is Sampling.FULL_BATCH:
            return plan.neighbours is Neighbouring.ADD_OR_REMOVE_ONE
        return plan.sampling is Sampling.POISSON

    def effective_multiplier(self, plan: TrainingPlan, noise_multiplier: float) -> Lower | None:
        """Returns a lower bound of the multiplier of the joint release; None: no noise hides it.

        Proof: K groups with s_k = σ'·Δ_k, σ' = σ times the two factors, have the joint multiplier
        (Σ Δ_k²/s_k²)^(−1/2) = σ'/√K.
        """
        check_multiplier(noise_multiplier)
        if self.divisor_tells(plan):
            return None
        factor = Lower(self.relation_factor(plan)) * self.reduction_factor(plan)
        return self._joint(Lower(noise_multiplier) * factor)

    def claimed_epsilon(self, plan: TrainingPlan, noise_multiplier: float) -> float | None:
        """The ε that the declared accounting claims; None where it claims nothing of its own."""
        if self == Declaration(groups=self.groups):
            return None
        claimed = Lower(noise_multiplier)
        if self.composition is Composition.JOINT:
            claimed = self._joint(claimed)
        try:
            return epsilon(self._claimed_plan(plan), claimed.value)
        except UsageError:  # a claim that no accountant would make
            return None

    def _joint(self, multiplier: Lower) -> Lower:
        return multiplier.over(Upper(float(self.groups)).sqrt())

    def _claimed_plan(self, plan: TrainingPlan) -> TrainingPlan:
        claim = replace(
            plan,
            sampling=self.claimed_sampling or plan.sampling,
            neighbours=self.sensitivity_for or plan.neighbours,
        )
        if self.composition is Composition.SEPARATE:
            claim = claim.with_steps(claim.releases * self.groups)
        return claim


def _bounds_moved(neighbours: Neighbouring) -> float:
    """Δ in units of the bound G of one gradient."""
    return 2.0 if neighbours is Neighbouring.REPLACE_ONE else 1.0
