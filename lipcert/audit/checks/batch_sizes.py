"""Sizes of Poisson batches (LC311): whether they are independent and Binomial(N, q).

Compared: each size, the sum of all, whether all are equal, and their variance on either side.

Threshold: the tails of single sizes and of the sum, which is Binomial(TN, q), are exact and
doubled; P(all T sizes equal) = Σ_k P(k)^T. The variance is V = Σ min((n_t − Nq)², w²), w so large
that a size lies beyond it with 1e-15: its terms are bounded and independent, so that
P(V ≥ v) ≤ exp(−λv)·M(λ)^T for every λ > 0, and P(V ≤ v) for every λ < 0, M being the moment
generating function of one term: a finite sum, computed term by term. (Without w, sizes that never
occur would outweigh all others in M.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp
from scipy.stats import binom

from lipcert.audit.checks.chance import Surprise, power_of_ten
from lipcert.upper import FloatArray

_BEYOND: Final = 1e-15
_SLOPES: Final = 200


def size_surprises(dataset: int, rate: float, sizes: Mapping[int, int]) -> Iterator[Surprise]:
    """The rarest thing that each of the four tests saw. sizes: by step."""
    counts = np.array(list(sizes.values()), dtype=np.int64)
    yield _single(dataset, rate, list(sizes), counts)
    yield _total(dataset, rate, counts)
    yield _equal(dataset, rate, counts)
    yield _variance(dataset, rate, counts)


def _single(dataset: int, rate: float, steps: list[int], counts: npt.NDArray[np.int64]) -> Surprise:
    tails = _log_two_sided(counts, dataset, rate)
    worst = int(np.argmin(tails))
    return Surprise(
        float(tails[worst]) + math.log(len(counts)),
        f"a Poisson batch of {counts[worst]} examples, as at step {steps[worst]}, has the "
        f"probability {power_of_ten(float(tails[worst]))} at the rate {rate:.6g}",
        f"step {steps[worst]}",
        (float(counts[worst]), dataset * rate),
    )


def _total(dataset: int, rate: float, counts: npt.NDArray[np.int64]) -> Surprise:
    total, steps = int(counts.sum()), len(counts)
    tail = float(_log_two_sided(np.array([total]), dataset * steps, rate)[0])
    return Surprise(
        tail,
        f"{total} examples in {steps} Poisson batches have the probability {power_of_ten(tail)} "
        f"at the rate {rate:.6g}",
        numbers=(float(total), dataset * rate * steps),
    )


def _equal(dataset: int, rate: float, counts: npt.NDArray[np.int64]) -> Surprise:
    if rate >= 1.0 or np.any(counts != counts[0]):
        return Surprise(0.0, "")
    each = binom.logpmf(np.arange(dataset + 1), dataset, rate)
    log_chance = min(0.0, float(logsumexp(len(counts) * each)))
    return Surprise(
        log_chance,
        f"all {len(counts)} Poisson batches hold {counts[0]} examples, which has the probability "
        f"{power_of_ten(log_chance)}: they are of a fixed size, and their ε is not that of Poisson "
        "sampling (LC402)",
    )


def _variance(dataset: int, rate: float, counts: npt.NDArray[np.int64]) -> Surprise:
    variance = dataset * rate * (1.0 - rate)
    if variance <= 0.0 or np.all(counts == counts[0]):
        return Surprise(0.0, "")  # equal sizes are a test of their own
    mean, steps = dataset * rate, len(counts)
    lowest, highest = binom.ppf(_BEYOND, dataset, rate), binom.isf(_BEYOND, dataset, rate)
    widest = max(highest - mean, mean - lowest) ** 2
    places = np.arange(lowest, highest + 1.0)
    terms = np.append(np.minimum((places - mean) ** 2, widest), widest)
    outside = float(binom.sf(highest, dataset, rate) + binom.cdf(lowest - 1.0, dataset, rate))
    log_each = np.append(binom.logpmf(places, dataset, rate), math.log(max(outside, _BEYOND)))
    seen = float(np.sum(np.minimum((counts - mean) ** 2, widest)))
    slopes = np.geomspace(1e-3, 1e3, _SLOPES) / variance
    log_chance = math.log(2.0) + min(
        _least(log_each, terms, slopes, seen, steps), _least(log_each, terms, -slopes, seen, steps)
    )
    little = seen < steps * variance
    return Surprise(
        min(0.0, log_chance),
        f"the sizes of {steps} Poisson batches vary too {'little' if little else 'much'}: their "
        f"variance is {seen / steps:.4g}, where the rate {rate:.6g} gives {variance:.4g}, which "
        f"has at most the probability {power_of_ten(log_chance)}",
        numbers=(seen / steps, variance),
    )


def _least(
    log_each: FloatArray, terms: FloatArray, slopes: FloatArray, seen: float, steps: int
) -> float:
    """min over λ of T·ln M(λ) − λ·seen."""
    log_moments = logsumexp(log_each + slopes[:, np.newaxis] * terms, axis=1)
    return float(np.min(steps * log_moments - slopes * seen))


def _log_two_sided(
    counts: npt.NDArray[np.int64], trials: int, rate: float
) -> npt.NDArray[np.float64]:
    below = binom.logcdf(counts, trials, rate)
    above = binom.logsf(counts - 1, trials, rate)
    found = np.minimum(0.0, math.log(2.0) + np.minimum(below, above))
    return np.asarray(found, dtype=np.float64)
