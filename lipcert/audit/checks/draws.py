"""Draws (LC311): whether batches are as likely as the stated sampling makes them.

**Poisson sizes**: whether they are independent and Binomial(N, q). Compared: each size, the sum of
all, and how much they vary, on either side.

Threshold: the tails of single sizes and of the sum, which is Binomial(TN, q), are exact and
doubled. How much they vary is V = Σ min(z², w), z being
(size − mean)/deviation: its terms are bounded and independent, so that
P(V ≥ v) ≤ exp(−λv)·M(λ)^T for every λ > 0, and P(V ≤ v) for every λ < 0, M being the moment
generating function of one term: a finite sum, computed term by term. (Without w, sizes that never
occur would outweigh all others in M.)

**Balls in bins**: whether every epoch puts each example into a uniformly drawn batch. Statement: an
epoch has b batches; each of N examples is in one of them, each with probability 1/b, independently
of all other examples and epochs. An epoch begins with the run, after an interruption, and after b
steps. Of a recording with gaps, the steps that are there are compared.

Sizes: given m batches of its epoch, which hold M examples, the next one is Binomial(N − M,
1/(b − m)), as the other examples are still uniform among the other batches. Compared: each size,
whose tails are exact, and V as above. Threshold: with M_t(λ) = E(e^(λ·min(z_t², w)) | the batches
before), a finite sum, e^(λV)/ΠM_t(λ) has the mean 1 for every λ, so that by Markov it is above x
with at most the probability 1/x; the λ that are tried are counted.

Members, all of these exactly: an example is in one batch of an epoch, and in one of a whole epoch.
By chance: that an example moves by s batches from one epoch to the next has the probability 1/b
for each s from 0 to b − 1, where the batch that it would move to was recorded; and the overlaps of
batches of different epochs (`pairs`, below).

**Members of batches**: whether every example is drawn as often, and with whom, as stated.

Statement: the batches of T steps are independent, and each example is in each batch with the
probability q; under Poisson sampling independently of the others, without replacement as one of a
uniform subset of B. Compared, K_k being the number of examples that are in k batches or more:

    counts     K_k for every k, on either side: examples that are drawn too often or too rarely;
               K_1 is how many examples were seen at all
    neighbours Σ_t |S_t ∩ S_{t+l}| for each of the lags l = 1 … 64, on either side; fewer where this
               would compare more than 2²⁵ members
    pairs      |S_s ∩ S_t| for every two of up to 512 steps, spread over the run, on either side
    together   how many pairs of examples are in the same batches, k or more, and in no others, for
               every k ≥ 1: of groups that come together, one shows whether another is there

Threshold. Counts: that an example is in k batches or more has the probability P(Binomial(T, q) ≥ k)
exactly. These indicators are independent under Poisson sampling. Without replacement the members of
a uniform subset are negatively associated, independent families of such are, and so are increasing
functions of disjoint parts of them (Joag-Dev and Proschan, 1983), so that Chernoff's bound for
independent indicators holds in both cases. (K_k small is its complement large, as rare.)
Neighbours: given the batches before it, S_{t+l} is a uniform subset of its size, so that the
overlaps of one lag are independent given the sizes, and each is hypergeometric; its moment
generating function is at most that of Binomial(|S_{t+l}|, |S_t|/N) (Hoeffding, 1963, theorem 4),
which Chernoff's bound takes. Pairs: the hypergeometric tails are exact; those that lie furthest
from their means are looked at, and all are counted. Together: both of two examples are in a batch
with at most the probability q², and neither is with at most (1 − q)². So of all pairs, at most
C(N, 2)·Σ_{j≥k} C(T, j)·q^2j·(1 − q)^2(T−j) are expected; Markov's inequality does the rest.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import logsumexp
from scipy.stats import binom

from lipcert.audit.checks.chance import (
    ChanceTest,
    log_binomial_at_least,
    log_chernoff,
    log_overlap_tails,
    power_of_ten,
)
from lipcert.core.program import FloatArray

_BEYOND: Final = 1e-15
_WIDEST: Final = 64.0
_EITHER: Final = np.geomspace(1e-3, 1e3, 200)
_SLOPES: Final = np.concatenate([-_EITHER, _EITHER])
_FEW_SLOPES: Final = np.concatenate([-np.geomspace(0.02, 200.0, 24), np.geomspace(0.005, 0.45, 12)])
_Numbers = npt.NDArray[np.int64]
Members = Sequence[tuple[int, _Numbers]]
"""step and different examples of its batch, from 0"""
_LAGS: Final = 64
_COMPARED: Final = 1 << 25
_PAIRED: Final = 512
_EXACTLY: Final = 8
"""pairs on either side whose tail is computed"""


@dataclass(frozen=True, slots=True, eq=False)
class _Sizes:
    """Sizes of batches, each Binomial(trials, rate) given those before."""

    steps: Sequence[int]
    counts: _Numbers
    trials: _Numbers
    rates: FloatArray

    def rarest(self, law: str) -> ChanceTest:
        """The rarest of them. law: the name of the sampling."""
        tails = log_two_sided(self.counts, self.trials, self.rates)
        worst = int(np.argmin(tails))
        step, count, rest = self.steps[worst], self.counts[worst], self.trials[worst]
        mean = float(rest * self.rates[worst])
        why = (
            f"the last batch of an epoch, at step {step}, holds {count} examples, where {rest} "
            "were in none of its batches before"
            if self.rates[worst] == 1.0 and not law
            else f"a {law}batch of {count} examples, as at step {step}, has the probability "
            f"{power_of_ten(float(tails[worst]))}, where {mean:.4g} are expected"
        )
        log_chance = float(tails[worst]) + math.log(len(self.counts))
        return ChanceTest(log_chance, why, f"step {step}", (float(count), mean))

    def spread(self, slopes: FloatArray, tried: int, law: str) -> ChanceTest:
        """How much they vary. tried: of how many bounds this is the least. law: what is right."""
        log_bounds, total, expected = np.zeros(len(slopes)), 0.0, 0.0
        laws = np.stack([self.trials, self.rates], axis=1)
        for trials, rate in np.unique(laws, axis=0):
            variance = trials * rate * (1.0 - rate)
            if variance <= 0.0:
                continue
            some = self.counts[np.all(laws == (trials, rate), axis=1)]
            places, log_each = binomial_law(int(trials), rate)
            terms, seen = (
                np.minimum((numbers - trials * rate) ** 2 / variance, _WIDEST)
                for numbers in (places, some)
            )
            terms = np.append(terms, _WIDEST)
            log_bounds += len(some) * logsumexp(log_each + slopes[:, np.newaxis] * terms, axis=1)
            total += float(np.sum(seen))
            expected += len(some)
        log_chance = min(0.0, float(np.min(log_bounds - slopes * total)) + math.log(tried))
        little = total < expected
        why = ": batches of a shuffled and cut data set are of one size (LC402)" if little else ""
        return ChanceTest(
            log_chance,
            f"the sizes of {int(expected)} batches vary too {'little' if little else 'much'}: "
            f"their squared deviations are {total / max(expected, 1.0):.3g} of what {law} gives, "
            f"which has at most the probability {power_of_ten(log_chance)}{why}",
            numbers=(total, expected),
        )


def size_tests(dataset: int, rate: float, sizes: Mapping[int, int]) -> Iterator[ChanceTest]:
    """The rarest thing that each of the three tests of Poisson batches saw. sizes: by step."""
    counts = np.array(list(sizes.values()), dtype=np.int64)
    law = _Sizes(list(sizes), counts, np.full(len(counts), dataset), np.full(len(counts), rate))
    yield law.rarest("Poisson ")
    yield _total(dataset, rate, counts)
    yield law.spread(_SLOPES, 2, f"the rate {rate:.6g}")


def _total(dataset: int, rate: float, counts: npt.NDArray[np.int64]) -> ChanceTest:
    total, steps = int(counts.sum()), len(counts)
    tail = float(log_two_sided(np.array([total]), dataset * steps, rate)[0])
    return ChanceTest(
        tail,
        f"{total} examples in {steps} Poisson batches have the probability {power_of_ten(tail)} "
        f"at the rate {rate:.6g}",
        numbers=(float(total), dataset * rate * steps),
    )


def binomial_law(trials: int, rate: float) -> tuple[FloatArray, FloatArray]:
    """Where Binomial(trials, rate) lies but for 1e-15 at each end, and ln of the probability of
    each place; the last one is of all others together."""
    low, high = binom.ppf(_BEYOND, trials, rate), binom.isf(_BEYOND, trials, rate)
    places = np.arange(low, high + 1.0)
    outside = float(binom.sf(high, trials, rate) + binom.cdf(low - 1.0, trials, rate))
    log_each = np.append(binom.logpmf(places, trials, rate), math.log(max(outside, _BEYOND)))
    return places, log_each


def log_two_sided(
    counts: npt.NDArray[np.int64],
    trials: int | npt.NDArray[np.int64],
    rate: float | npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """ln of twice the smaller tail of Binomial(trials, rate) at each count."""
    below = binom.logcdf(counts, trials, rate)
    above = binom.logsf(counts - 1, trials, rate)
    found = np.minimum(0.0, math.log(2.0) + np.minimum(below, above))
    return np.asarray(found, dtype=np.float64)


def member_tests(dataset: int, rate: float, members: Members) -> Iterator[ChanceTest]:
    """The rarest thing that each of the four tests saw."""
    if not members or not 0.0 < rate < 1.0:
        return
    yield _counts(dataset, rate, members)
    yield _together(dataset, rate, members)
    if len(members) > 1:
        yield _neighbours(dataset, members, _matrix(members))
        yield pair_test(dataset, members, range(len(members)))


def _counts(dataset: int, rate: float, members: Members) -> ChanceTest:
    steps = len(members)
    examples, seen = np.unique(np.concatenate([index for _, index in members]), return_counts=True)
    places = np.arange(int(seen.max(initial=0)) + 1)
    histogram = np.bincount(seen, minlength=len(places)).astype(np.float64)
    histogram[0] = max(dataset - len(examples), 0)
    at_most = np.cumsum(histogram)
    at_least = dataset - at_most + histogram
    often = log_binomial_at_least(at_least, dataset, binom.logsf(places - 1, steps, rate))
    rarely = log_binomial_at_least(at_most, dataset, binom.logcdf(places, steps, rate))
    many = math.log(2.0 * (steps + 1))
    k = int(np.argmin(np.minimum(often, rarely)))
    too_often = bool(often[k] < rarely[k])
    counted = int((at_least if too_often else at_most)[k])
    tail = float((binom.sf if too_often else binom.cdf)(k - too_often, steps, rate))
    log_chance = min(0.0, float(min(often[k], rarely[k])) + many)
    how = f"{k} or more" if too_often else f"at most {k}" if k else "none"
    batches = "batch" if steps == 1 else "batches"
    return ChanceTest(
        log_chance,
        f"{counted} of {dataset} examples are in {how} of {steps} {batches}, where "
        f"{dataset * tail:.3g} are expected at the rate {rate:.6g}, which has at most the "
        f"probability {power_of_ten(log_chance)}: they are not drawn with equal probability",
        numbers=(float(counted), dataset * tail),
    )


def _together(dataset: int, rate: float, members: Members) -> ChanceTest:
    steps, columns = len(members), csr_array(_matrix(members).T)
    alike = Counter(
        columns.indices[start:end].tobytes() for start, end in itertools.pairwise(columns.indptr)
    )
    pairs = np.zeros(steps + 1)
    for row, count in alike.items():
        pairs[len(row) // columns.indices.itemsize] += count * (count - 1) / 2
    seen = np.cumsum(pairs[::-1])[::-1]
    places = np.flatnonzero(seen[1:]) + 1
    if not len(places):
        return ChanceTest(0.0, "")
    both, neither = rate * rate, (1.0 - rate) ** 2
    log_tails = steps * math.log(both + neither) + binom.logsf(
        places - 1, steps, both / (both + neither)
    )
    log_expected = math.log(dataset * (dataset - 1) / 2) + log_tails
    chances = log_expected - np.log(seen[places]) + math.log(steps)
    least = int(np.argmin(chances))
    k, log_chance = int(places[least]), min(0.0, float(chances[least]))
    found, expected = float(seen[k]), math.exp(log_expected[least])
    return ChanceTest(
        log_chance,
        f"{found:.0f} pairs of examples are in the same {k} or more of {steps} batches and in no "
        f"others, where {expected:.2g} are expected, which has at most the probability "
        f"{power_of_ten(log_chance)}: they come together, so that one shows whether another is "
        "there",
        numbers=(found, expected),
    )


def _neighbours(dataset: int, members: Members, batches: csr_array) -> ChanceTest:
    """Overlaps of batches l steps apart, for each l."""
    sizes = np.array([len(index) for _, index in members], dtype=np.float64)
    lags = min(_LAGS, len(members) - 1, max(1, _COMPARED // max(1, batches.nnz)))
    found = [_at_lag(dataset, sizes, batches, lag) for lag in range(1, lags + 1)]
    log_chance, lag, shared, expected = min(found)
    log_chance = min(0.0, log_chance + math.log(2.0 * lags))
    apart = "consecutive batches" if lag == 1 else f"batches {lag} steps apart"
    how = (
        f"{apart} never share an example"
        if shared == 0.0
        else f"{apart} share {shared:.0f} examples in all"
    )
    why = ": the data set was shuffled and cut (LC402)" if shared == 0.0 else ""
    return ChanceTest(
        log_chance,
        f"{how}, where {expected:.4g} are expected, which has at most the probability "
        f"{power_of_ten(log_chance)}{why}",
        numbers=(shared, expected),
    )


def _at_lag(
    dataset: int, sizes: FloatArray, batches: csr_array, lag: int
) -> tuple[float, int, float, float]:
    """ln of the rarer tail, the lag, the sum of the overlaps and its mean."""
    trials, rates = sizes[lag:], np.minimum(sizes[:-lag] / dataset, 1.0)
    shared = float(batches[lag:].multiply(batches[:-lag]).sum())
    expected = float(trials @ rates)

    def log_moment(slope: float) -> float:
        with np.errstate(divide="ignore"):
            each = np.log1p(rates * math.expm1(slope))
        return float(np.sum(np.where(trials > 0.0, trials * each, 0.0)))

    tail = log_chernoff(log_moment, shared, upper=shared > expected)
    return tail, lag, shared, expected


def pair_test(dataset: int, members: Members, epochs: Sequence[int]) -> ChanceTest:
    """The two batches of different epochs whose overlap is the rarest.

    epochs: that of each batch; within one, batches depend on one another.
    """
    chosen = np.unique(np.linspace(0, len(members) - 1, min(len(members), _PAIRED)).astype(int))
    some = _matrix([members[place] for place in chosen])
    shared = (some @ some.T).toarray()
    sizes = np.diff(some.indptr).astype(np.float64)
    epoch = np.asarray(epochs)[chosen]
    first, second = np.nonzero(np.triu(epoch[:, np.newaxis] != epoch, 1))
    if not len(first):
        return ChanceTest(0.0, "")
    seen = shared[first, second].astype(np.float64)
    rates = np.minimum(sizes[first] / dataset, 1.0)
    mean = sizes[second] * rates
    spread = np.sqrt(np.maximum(mean * (1.0 - rates), 1e-12))
    order = np.argsort((seen - mean) / spread)
    looked_at = np.unique(np.concatenate([order[:_EXACTLY], order[-_EXACTLY:]]))
    found = [
        (
            min(
                log_overlap_tails(
                    dataset, int(sizes[first[i]]), int(sizes[second[i]]), int(seen[i])
                )
            ),
            int(i),
        )
        for i in looked_at
    ]
    log_chance, i = min(found)
    log_chance = min(0.0, log_chance + math.log(2.0 * len(first)))
    one, other = (members[int(chosen[place[i]])][0] for place in (first, second))
    return ChanceTest(
        log_chance,
        f"the batches of steps {one} and {other} share {int(seen[i])} of their "
        f"{int(sizes[first[i]])} and {int(sizes[second[i]])} examples, where {mean[i]:.3g} are "
        f"expected, which has at most the probability {power_of_ten(log_chance)}",
        f"step {other}",
        (float(seen[i]), float(mean[i])),
    )


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


def bin_size_tests(epochs: Epochs, dataset: int, sizes: Mapping[int, int]) -> Iterator[ChanceTest]:
    """The rarest size of balls in bins, and how much sizes vary. sizes: by step."""
    rests, chances = [], []
    seen: dict[int, tuple[int, int]] = {}
    for step, size in sorted(sizes.items()):
        epoch, _ = epochs.place(step)
        batches, examples = seen.get(epoch, (0, 0))
        seen[epoch] = batches + 1, examples + size
        rests.append(max(dataset - examples, 0))
        chances.append(1.0 / (epochs.bins - batches))
    counts = np.array([sizes[step] for step in sorted(sizes)], dtype=np.int64)
    law = _Sizes(sorted(sizes), counts, np.array(rests), np.array(chances))
    yield law.rarest("")
    yield law.spread(_FEW_SLOPES, len(_FEW_SLOPES), "balls in bins")


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


def bin_member_tests(epochs: Epochs, dataset: int, members: Members) -> Iterator[ChanceTest]:
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


def _matrix(members: Members) -> csr_array:
    """1 where the example of the column is in the batch of the row."""
    columns = np.concatenate([index for _, index in members])
    ends = np.cumsum([0, *(len(index) for _, index in members)])
    examples, columns = np.unique(columns, return_inverse=True)
    ones = np.ones(len(columns), dtype=np.int64)
    return csr_array((ones, columns, ends), shape=(len(members), max(len(examples), 1)))
