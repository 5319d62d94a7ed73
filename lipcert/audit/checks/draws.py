"""Draws (LC311): whether batches are as likely as the stated sampling makes them.

Sizes of Poisson batches: whether they are independent and Binomial(N, q).

Compared: each size, the sum of all, whether all are equal, and their variance on either side.

Threshold: the tails of single sizes and of the sum, which is Binomial(TN, q), are exact and
doubled; P(all T sizes equal) = Σ_k P(k)^T. The variance is V = Σ min((n_t − Nq)², w²), w so large
that a size lies beyond it with 1e-15: its terms are bounded and independent, so that
P(V ≥ v) ≤ exp(−λv)·M(λ)^T for every λ > 0, and P(V ≤ v) for every λ < 0, M being the moment
generating function of one term: a finite sum, computed term by term. (Without w, sizes that never
occur would outweigh all others in M.)

Members of batches: whether every example is drawn as often, and with whom, as stated.

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
_SLOPES: Final = 200
Members = Sequence[tuple[int, npt.NDArray[np.int64]]]
"""step and different examples of its batch, from 0"""
_LAGS: Final = 64
_COMPARED: Final = 1 << 25
_PAIRED: Final = 512
_EXACTLY: Final = 8
"""pairs on either side whose tail is computed"""


def size_tests(dataset: int, rate: float, sizes: Mapping[int, int]) -> Iterator[ChanceTest]:
    """The rarest thing that each of the four tests saw. sizes: by step."""
    counts = np.array(list(sizes.values()), dtype=np.int64)
    yield _single(dataset, rate, list(sizes), counts)
    yield _total(dataset, rate, counts)
    yield _equal(dataset, rate, counts)
    yield _variance(dataset, rate, counts)


def _single(
    dataset: int, rate: float, steps: list[int], counts: npt.NDArray[np.int64]
) -> ChanceTest:
    tails = log_two_sided(counts, dataset, rate)
    worst = int(np.argmin(tails))
    return ChanceTest(
        float(tails[worst]) + math.log(len(counts)),
        f"a Poisson batch of {counts[worst]} examples, as at step {steps[worst]}, has the "
        f"probability {power_of_ten(float(tails[worst]))} at the rate {rate:.6g}",
        f"step {steps[worst]}",
        (float(counts[worst]), dataset * rate),
    )


def _total(dataset: int, rate: float, counts: npt.NDArray[np.int64]) -> ChanceTest:
    total, steps = int(counts.sum()), len(counts)
    tail = float(log_two_sided(np.array([total]), dataset * steps, rate)[0])
    return ChanceTest(
        tail,
        f"{total} examples in {steps} Poisson batches have the probability {power_of_ten(tail)} "
        f"at the rate {rate:.6g}",
        numbers=(float(total), dataset * rate * steps),
    )


def _equal(dataset: int, rate: float, counts: npt.NDArray[np.int64]) -> ChanceTest:
    if rate >= 1.0 or np.any(counts != counts[0]):
        return ChanceTest(0.0, "")
    each = binom.logpmf(np.arange(dataset + 1), dataset, rate)
    log_chance = min(0.0, float(logsumexp(len(counts) * each)))
    return ChanceTest(
        log_chance,
        f"all {len(counts)} Poisson batches hold {counts[0]} examples, which has the probability "
        f"{power_of_ten(log_chance)}: they are of a fixed size, and their ε is not that of Poisson "
        "sampling (LC402)",
    )


def _variance(dataset: int, rate: float, counts: npt.NDArray[np.int64]) -> ChanceTest:
    variance = dataset * rate * (1.0 - rate)
    if variance <= 0.0 or np.all(counts == counts[0]):
        return ChanceTest(0.0, "")  # equal sizes are a test of their own
    mean, steps = dataset * rate, len(counts)
    places, log_each = binomial_law(dataset, rate)
    widest = max(places[-1] - mean, mean - places[0]) ** 2
    terms = np.append(np.minimum((places - mean) ** 2, widest), widest)
    seen = float(np.sum(np.minimum((counts - mean) ** 2, widest)))
    slopes = np.geomspace(1e-3, 1e3, _SLOPES) / variance
    log_chance = math.log(2.0) + min(
        _least(log_each, terms, slopes, seen, steps), _least(log_each, terms, -slopes, seen, steps)
    )
    little = seen < steps * variance
    return ChanceTest(
        min(0.0, log_chance),
        f"the sizes of {steps} Poisson batches vary too {'little' if little else 'much'}: their "
        f"variance is {seen / steps:.4g}, where the rate {rate:.6g} gives {variance:.4g}, which "
        f"has at most the probability {power_of_ten(log_chance)}",
        numbers=(seen / steps, variance),
    )


def binomial_law(trials: int, rate: float) -> tuple[FloatArray, FloatArray]:
    """Where Binomial(trials, rate) lies but for 1e-15 at each end, and ln of the probability of
    each place; the last one is of all others together."""
    low, high = binom.ppf(_BEYOND, trials, rate), binom.isf(_BEYOND, trials, rate)
    places = np.arange(low, high + 1.0)
    outside = float(binom.sf(high, trials, rate) + binom.cdf(low - 1.0, trials, rate))
    log_each = np.append(binom.logpmf(places, trials, rate), math.log(max(outside, _BEYOND)))
    return places, log_each


def _least(
    log_each: FloatArray, terms: FloatArray, slopes: FloatArray, seen: float, steps: int
) -> float:
    """min over λ of T·ln M(λ) − λ·seen."""
    log_moments = logsumexp(log_each + slopes[:, np.newaxis] * terms, axis=1)
    return float(np.min(steps * log_moments - slopes * seen))


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


def _matrix(members: Members) -> csr_array:
    """1 where the example of the column is in the batch of the row."""
    columns = np.concatenate([index for _, index in members])
    ends = np.cumsum([0, *(len(index) for _, index in members)])
    examples, columns = np.unique(columns, return_inverse=True)
    ones = np.ones(len(columns), dtype=np.int64)
    return csr_array((ones, columns, ends), shape=(len(members), max(len(examples), 1)))
