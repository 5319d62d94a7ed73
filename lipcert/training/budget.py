"""Budget: what the first k releases of a planned run cost, and how many of them there may be.

What enters: the plan, the noise multiplier, the target ε if there is one. What leaves: ε and
numbers of releases, evaluated when they are asked for. Invariant: with a target, no number of
releases is allowed whose ε was not evaluated and found at most the target.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import final

from lipcert.privacy.accounting import Accountant, check_multiplier, epsilon
from lipcert.privacy.calibration import steps_for_epsilon
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.training.sampling import batches_per_epoch


@final
class PrivacyBudget:
    """ε by number of releases; evaluating one takes up to a second, so that the last is kept."""

    def __init__(
        self,
        plan: TrainingPlan,
        noise_multiplier: float,
        target: float | None,
        accountant: Accountant | None,
    ) -> None:
        check_multiplier(noise_multiplier)
        self._plan, self._sigma = plan, noise_multiplier
        self._target, self._accountant = target, accountant
        self._known = (0, 0.0)

    def epsilon(self, releases: int) -> float:
        """Returns ε such that the first `releases` of the run are (ε, δ)-DP; 0 for none.

        Hypothesis: that it is these many was not decided by what the others showed. A run that is
        ended early because of how it went has the ε of the whole plan.
        """
        if releases == 0:
            return 0.0
        if self._known[0] != releases:
            found = epsilon(_first(self._plan, releases), self._sigma, self._accountant)
            self._known = (releases, found)
        return self._known[1]

    @cached_property
    def whole(self) -> float:
        """ε of the whole plan."""
        return self.epsilon(self._plan.releases)

    @cached_property
    def planned(self) -> int:
        """How many releases the run makes: those of its plan, fewer if the target allows fewer."""
        if self._target is None or self.whole <= self._target:
            return self._plan.releases
        return self._affordable

    @cached_property
    def most(self) -> int:
        """How many releases there may be at all: without a target, those of the plan."""
        return self.planned if self._target is None else max(self.planned, self._affordable)

    @cached_property
    def _affordable(self) -> int:
        target = self._target or 0.0
        return steps_for_epsilon(self._plan, self._sigma, target, self._accountant).steps


def _first(plan: TrainingPlan, releases: int) -> TrainingPlan:
    """The run that consists of the first releases alone.

    Of shuffled data, k of them begin ⌈k/⌈N/B⌉⌉ epochs, in each of which an example is at most once:
    `Sampler` keeps the short batch at the end, and begins no epoch before one is through.
    """
    if plan.sampling is Sampling.SHUFFLE:
        begun = -(-releases // batches_per_epoch(plan))
        return replace(plan, steps=None, epochs=float(begun))
    return plan.with_steps(releases)
