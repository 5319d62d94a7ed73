"""Balls in bins (LC311): whether every epoch puts each example into a uniformly drawn batch.

Statement: an epoch has b batches; each of N examples is in one of them, each with probability 1/b,
independently of all other examples and epochs. An epoch begins with the run, after an interruption,
and after b steps. Of a recording with gaps, the steps that are there are compared.

Sizes: given m batches of its epoch, which hold M examples, the next one is Binomial(N − M,
1/(b − m)), as the other examples are still uniform among the other batches. Compared: each size,
whose tails are exact, and Σ min(z², w), z being (size − mean)/deviation of that law. Threshold:
with M_t(λ) = E(e^(λ·min(z_t², w)) | the batches before), a finite sum, e^(λΣ)/ΠM_t(λ) has the
mean 1 for every λ, so that by Markov it is above x with at most the probability 1/x.

Members, all of these exactly: an example is in one batch of an epoch, and in one of a whole epoch.
By chance: that an example moves by s batches from one epoch to the next has the probability 1/b
for each s from 0 to b − 1, where the batch that it would move to was recorded; and the overlaps of
batches of different epochs (see `draws`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from lipcert.audit.checks.chance import ChanceTest, power_of_ten
from lipcert.audit.checks.draws import Members, binomial_law, log_two_sided, pair_test
from lipcert.core.program import FloatArray

_WIDEST: Final = 64.0
_SLOPES: Final = np.concatenate([-np.geomspace(0.02, 200.0, 24), np.geomspace(0.005, 0.45, 12)])


@final
@dataclass(frozen=True, slots=True)
class Epochs:
    """How steps are cut into epochs of `bins` batches.

    resumed: the first step after each interruption, where a new epoch begins.
    """

    bins: int
    resumed: Sequence[int] = ()

    def place(self, step: int) -> tuple[int, int]:
        """The first step of its epoch, and the number of the batch within it."""
        begun = max((first for first in self.resumed if first <= step), default=0)
        bin_ = (step - begun) % self.bins
        return step - bin_, bin_


def size_tests(epochs: Epochs, dataset: int, sizes: Mapping[int, int]) -> Iterator[ChanceTest]:
    """The rarest size, and how much sizes vary. sizes: by step."""
    steps, counts, rests, chances = [], [], [], []
    seen: dict[int, tuple[int, int]] = {}
    for step, size in sorted(sizes.items()):
        epoch, _ = epochs.place(step)
        batches, examples = seen.get(epoch, (0, 0))
        seen[epoch] = batches + 1, examples + size
        steps.append(step)
        counts.append(size)
        rests.append(max(dataset - examples, 0))
        chances.append(1.0 / (epochs.bins - batches))
    drawn = np.array(counts, dtype=np.int64)
    yield _rarest_size(steps, drawn, np.array(rests), np.array(chances))
    yield _spread(drawn, np.array(rests), np.array(chances))


def _rarest_size(
    steps: list[int],
    counts: npt.NDArray[np.int64],
    rests: npt.NDArray[np.int64],
    chances: FloatArray,
) -> ChanceTest:
    tails = log_two_sided(counts, rests, chances)
    worst = int(np.argmin(tails))
    log_chance = float(tails[worst]) + math.log(len(counts))
    mean = float(rests[worst] * chances[worst])
    whole = chances[worst] == 1.0
    why = (
        f"the last batch of an epoch, at step {steps[worst]}, holds {counts[worst]} examples, "
        f"where {rests[worst]} were in none of its batches before"
        if whole
        else f"a batch of {counts[worst]} examples, as at step {steps[worst]}, has the probability "
        f"{power_of_ten(float(tails[worst]))}, where {mean:.4g} are expected"
    )
    return ChanceTest(log_chance, why, f"step {steps[worst]}", (float(counts[worst]), mean))


def _spread(
    counts: npt.NDArray[np.int64], rests: npt.NDArray[np.int64], chances: FloatArray
) -> ChanceTest:
    variances = rests * chances * (1.0 - chances)
    drawn = variances > 0.0
    log_bounds, total, expected = np.zeros(len(_SLOPES)), 0.0, 0.0
    for size, rest, chance, variance in zip(
        counts[drawn], rests[drawn], chances[drawn], variances[drawn], strict=True
    ):
        places, log_each = binomial_law(rest, chance)
        terms = np.append(np.minimum((places - rest * chance) ** 2 / variance, _WIDEST), _WIDEST)
        log_bounds += logsumexp(log_each + _SLOPES[:, np.newaxis] * terms, axis=1)
        total += min((size - rest * chance) ** 2 / variance, _WIDEST)
        expected += 1.0
    least = float(np.min(log_bounds - _SLOPES * total))
    log_chance = min(0.0, least + math.log(len(_SLOPES)))
    little = total < expected
    why = ": batches of a shuffled and cut data set are of one size (LC402)" if little else ""
    return ChanceTest(
        log_chance,
        f"the sizes of {int(expected)} batches vary too {'little' if little else 'much'}: their "
        f"squared deviations are {total / max(expected, 1.0):.3g} of what balls in bins give, "
        f"which has at most the probability {power_of_ten(log_chance)}{why}",
        numbers=(total, expected),
    )


def repeated_or_missing(epochs: Epochs, dataset: int, members: Members) -> tuple[str, int] | None:
    """What contradicts one batch for each example in an epoch, and the step; None for nothing."""
    seen: dict[int, list[npt.NDArray[np.int64]]] = {}
    for step, index in members:
        epoch, _ = epochs.place(step)
        before = seen.setdefault(epoch, [])
        again = np.intersect1d(index, np.concatenate(before)) if before else index[:0]
        if again.size:
            return f"example {again[0]} at step {step} was already in a batch of its epoch", step
        before.append(index)
        if len(before) == epochs.bins and sum(map(len, before)) != dataset:
            missing = dataset - sum(map(len, before))
            return f"{missing} examples are in no batch of the epoch that ends at step {step}", step
    return None


def member_tests(epochs: Epochs, dataset: int, members: Members) -> Iterator[ChanceTest]:
    """Moves from an epoch to the next, and overlaps of batches of different epochs."""
    bins_of: dict[int, dict[int, npt.NDArray[np.int64]]] = {}
    for step, index in members:
        epoch, bin_ = epochs.place(step)
        bins_of.setdefault(epoch, {})[bin_] = index
    moved, trials = np.zeros(epochs.bins), np.zeros(epochs.bins)
    starts = sorted(bins_of)
    for first, second in itertools.pairwise(starts):
        place = np.full(dataset, -1)
        for bin_, index in bins_of[second].items():
            place[index] = bin_
        recorded = np.array(sorted(bins_of[second]))
        for bin_, index in bins_of[first].items():
            trials[(recorded - bin_) % epochs.bins] += len(index)
            there = place[index]
            np.add.at(moved, (there[there >= 0] - bin_) % epochs.bins, 1.0)
    if trials.any():
        yield _moves(epochs.bins, moved, trials)
    if len(starts) > 1:
        yield pair_test(dataset, members, [epochs.place(step)[0] for step, _ in members])


def _moves(bins: int, moved: FloatArray, trials: FloatArray) -> ChanceTest:
    tails = log_two_sided(moved.astype(np.int64), trials.astype(np.int64), 1.0 / bins)
    worst = int(np.argmin(tails))
    log_chance = min(0.0, float(tails[worst]) + math.log(bins))
    how = f"move by {worst} batches" if worst else "stay in the same batch"
    return ChanceTest(
        log_chance,
        f"{moved[worst]:.0f} examples {how} from one epoch to the next, where "
        f"{trials[worst] / bins:.4g} are expected, which has at most the probability "
        f"{power_of_ten(log_chance)}: batches are not drawn anew",
        numbers=(float(moved[worst]), float(trials[worst] / bins)),
    )
