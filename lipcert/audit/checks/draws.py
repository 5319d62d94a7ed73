"""Draws (LC311): whether batches could plausibly come from the stated sampling.

**Poisson batches**: each of N examples is in each of T batches with the probability q, each
independently. So sizes of batches are independent and Binomial(N, q), and the numbers of batches
that an example is in are independent and Binomial(T, q). Compared, for both:

    levels     how many are k or more, and k or less, for every k that occurs
    spread     V = Σ min(z², w), z being (number − mean)/deviation; two-sided
    total      the sum of all, which is Binomial(TN, q)
    cut        sizes only: whether they are cut at the largest

Threshold: the number of those that are k or more is Binomial; of the j largest, and of the j
smallest, each j is a test with the probability of Chernoff's bound, as is the total. V: its
terms are bounded and independent, so that P(V ≥ v) ≤ exp(−λv)·M(λ)^T for every λ > 0, and
P(V ≤ v) for every λ < 0, M being the moment generating function of one term: a finite sum, computed
term by term. (Without w, numbers that never occur would outweigh all others in M.) Cut: the
ratio of the likelihoods of sizes that are cut at m, and of correct ones, is 0 if one is above m,
and (P(S ≥ m)/P(S = m))^(how many are m) otherwise. It has the mean 1; Markov's inequality for every
m completes the argument.

**Balls in bins**: whether every epoch puts each example into a uniformly drawn batch. Statement: an
epoch has b batches; each of N examples is in one of them, each with probability 1/b, independently
of all other examples and epochs. An epoch begins with the run, after an interruption, and after b
steps. In a recording with gaps, the recorded steps are compared.

Sizes: given m batches of its epoch, which hold M examples, the next one is Binomial(N − M,
1/(b − m)), as the other examples are still uniform among the other batches. Compared: each size
and V as above. Threshold: of sizes, Chernoff's bound; with M_t(λ) = E(e^(λ·min(z_t², w)) | those
before), a finite sum, e^(λV)/ΠM_t(λ) has the mean 1 for every λ, so that by Markov it is above x
with at most the probability 1/x; the λ that are tried are counted.

Members, compared exactly: an example is in at most one batch of an epoch, and in exactly one of a
complete epoch. By chance: an example moves by s batches from one epoch to the next with the
probability 1/b for each s from 0 to b − 1, if the batch that it would move to was recorded; and the
overlaps of batches of different epochs (`pairs`, below).

**Members of batches**: whether every example is drawn as often as stated, with others as stated.

Statement: the batches of T steps are independent, and each example is in each batch with the
probability q; under Poisson sampling independently of the others, without replacement as one of a
uniform subset of B. Compared:

    levels, spread  of the numbers of batches that examples are in, as above
    labels     V of the numbers of draws of each label, in each batch and in all
    sets       how often examples of a set are drawn, two-sided: 2, 4, … 64 parts of the data,
               every m-th example, m = 2 … 16, from each place on, and those of each label; in all
               steps, in their first half and in their second
    neighbours Σ_t |S_t ∩ S_{t+l}| for each of the lags l = 1 … 64, two-sided, for all t, even t,
               and odd t; fewer lags if this would compare more than 2²⁵ members
    pairs      |S_s ∩ S_t| for every two of up to 512 steps, spread over the run, two-sided
    together   how many examples are in the same k or more batches as an earlier one, and in no
               others, for every k ≥ 1: if examples come in groups, one reveals whether another is
               present
    apart      how often examples i and i + d are in one batch, two-sided, for every d
    scores     Σ of a(i) over the members i of each batch, and of all, two-sided; a(i) is the rank
               of a number of example i among those of all examples, from −√3 to √3; the number,
               its norm, that of its gradient, or its loss, is known before the batch is drawn

Threshold. Levels, sets: the indicators are independent under Poisson sampling. Without replacement
the members of a uniform subset are negatively associated, independent families of such are, and so
are increasing, or decreasing, functions of disjoint parts of them (Joag-Dev and Proschan, 1983), so
that Chernoff's bound for independent indicators holds in both cases.
Scores: given its size and all before it, a batch is a uniform subset, so that the moment generating
function of its sum is at most that of as many draws with replacement (Hoeffding, as below), and
that of one draw at most that of the uniform law on [−√3, √3], which moves each rank by a number of
mean 0 (Jensen). Batch by batch, so is that of the sum of all.
Neighbours: given the batches before it, S_{t+l} is a uniform subset of its size, so that the
overlaps of one lag are independent given the sizes, and each is hypergeometric; its moment
generating function is at most that of Binomial(|S_{t+l}|, |S_t|/N) (Hoeffding, 1963, theorem 4),
and that of their sum at most that of as many trials of their mean rate, since ln(1 + r(e^λ − 1)) is
concave in r. Chernoff's bound takes these.
Together, Poisson: how many examples, n, have one pattern of j batches is Binomial(N, p), p =
q^j·(1 − q)^(T−j): n with the probability (Np)^n/n! at most, more than w with that of w + 1 times
e^(Np). Those of all patterns are negatively associated, so that the moment generating function of
Σ min(n − 1, w), over patterns of k batches or more, is at most the product of single ones, which
Chernoff's bound takes.
Spread and together, without replacement: batches of size B are Poisson ones, given that all are of
this size, so that no event is likelier than under Poisson sampling by more than P(S = B)^−T.
Apart: of those i for which ⌊i/d⌋ is even no two are in one pair, nor are they of those for which it
is odd. So each half is a sum of indicators, independent or negatively associated as above, each of
the probability of two members of one batch: q², or q(B − 1)/(N − 1) without replacement.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.sparse import csr_array
from scipy.special import gammaln
from scipy.stats import binom

from lipcert.audit.checks.chance import (
    ChanceTest,
    log_binomial_at_least,
    log_chernoff,
    stated,
)
from lipcert.core.program import FloatArray
from lipcert.privacy.plan import Sampling

_BEYOND: Final = 1e-15
_WIDEST: Final = 64.0
_WIDEST_LAW: Final = 2.0**28
"""Largest variance of a distribution that is evaluated place by place."""
_SLOPES: Final = np.concatenate([-np.geomspace(0.02, 200.0, 24), np.geomspace(0.005, 0.45, 12)])
_Numbers = npt.NDArray[np.int64]
Members = Sequence[tuple[int, _Numbers]]
"""Step, and the different examples of its batch, numbered from 0."""
_LAGS: Final = 64
_COMPARED: Final = 1 << 25
_PAIRED: Final = 512
_EXACTLY: Final = 8
"""Number of pairs, on either side, whose tail is computed."""
_AGAIN: Final = 64
"""Number of examples beyond the first of a pattern that count."""
_LARGEST: Final = 600.0
"""ln of nearly the largest float64."""
_SPECTRA: Final = 1 << 24
"""Examples times steps whose distances are compared."""


def _rarest_count(  # noqa: PLR0917
    counts: npt.NDArray[Any],
    trials: int | npt.NDArray[Any],
    rates: float | FloatArray,
    what: Sequence[str],
    why: str = "",
    many: int = 0,
) -> ChanceTest:
    """Return the rarest of some counts, each Binomial(trials, rate) given those before.

    what: describes each count. many: how many are counted, or all, if that is more.
    """
    tails = log_two_sided(counts, trials, rates)
    k = int(np.argmin(tails))
    seen, mean = float(counts[k]), float(np.broadcast_to(trials * rates, tails.shape)[k])
    text = f"{seen:.0f} {what[k]}, where {mean:.4g} are expected"
    return stated(float(tails[k]), text, (seen, mean), max(many, len(tails)), why)


def _spread(
    parts: Iterable[tuple[int, float, _Numbers, _Numbers]], of: str, more: float = 0.0
) -> ChanceTest:
    """Test how much numbers vary.

    parts: trials and rate of their distribution, numbers, and how many there are of each. more:
    added to the logarithm of the probability.
    """
    log_bounds, total, expected = np.zeros(len(_SLOPES)), 0.0, 0
    for trials, rate, numbers, seen in parts:
        variance = trials * rate * (1.0 - rate)
        if 0.0 < variance < _WIDEST_LAW:
            places, log_each = binomial_law(trials, rate)
            terms, own = (
                np.minimum((some - trials * rate) ** 2 / variance, _WIDEST)
                for some in (places, numbers)
            )
            terms = np.append(terms, _WIDEST)
            moment = np.logaddexp.reduce(log_each + _SLOPES[:, np.newaxis] * terms, axis=1)
            log_bounds += int(seen.sum()) * moment
            total += float(own @ seen)
            expected += int(seen.sum())
    log_chance = more + float(np.min(log_bounds - _SLOPES * total))
    how = "little" if total < expected else "much"
    why = ": batches of a shuffled and cut data set are of one size (LC402)" * (how == "little")
    what = f"{of.format(expected)} vary too {how}: their squared deviations are "
    what += f"{total / max(expected, 1):.3g} of what was accounted for"
    return stated(log_chance, what, (total, float(expected)), len(_SLOPES), why)


def size_tests(dataset: int, rate: float, sizes: Mapping[int, int]) -> Iterator[ChanceTest]:
    """Yield the rarest observation of each of the four tests of Poisson batches.

    sizes: by step.
    """
    counts = np.array(list(sizes.values()), dtype=np.int64)
    found = np.unique(counts, return_counts=True)
    yield _levels(*found, dataset, rate, ("batches hold", "examples"))
    yield _spread([(dataset, rate, *found)], "the sizes of {} batches")
    of = f"examples are in {len(counts)} Poisson batches, at the rate {rate:.6g}"
    yield _rarest_count(counts.sum(keepdims=True), dataset * len(counts), rate, [of])
    yield _cut(*found, dataset, rate)


def _levels(
    places: _Numbers, seen: _Numbers, trials: int, rate: float, words: tuple[str, str]
) -> ChanceTest:
    """Return the rarest count of numbers that are as large, or as small, as one of them.

    seen: how many there are of each. words: what the numbers are, and of what.
    """
    count, at_most = int(seen.sum()), np.cumsum(seen)
    counts = np.stack([count - at_most + seen, at_most], axis=1).ravel()
    tails = binom.sf(places - 1, trials, rate), binom.cdf(places, trials, rate)
    many, rates = 2 * min(count, trials + 1), np.stack(tails, axis=1).ravel()
    how = [text for k in places for text in (f"{k} or more", f"at most {k}")]
    what = [f"of {count} {words[0]} {each} of {trials} {words[1]}" for each in how]
    why = f": they are not drawn independently, each at the rate {rate:.6g}"
    return _rarest_count(counts, count, rates, what, why, many)


def _cut(places: _Numbers, seen: _Numbers, dataset: int, rate: float) -> ChanceTest:
    """Test whether sizes are cut at the largest.

    seen: how many batches have each size.
    """
    law, largest = binom(dataset, rate), int(places[-1])
    gain = float(seen[-1] * (law.logsf(largest - 1) - law.logpmf(largest)))
    what = f"{seen[-1]} of {seen.sum()} batches hold {largest} examples, and none more"
    many = float(law.isf(_BEYOND) - law.ppf(_BEYOND)) + 1.0
    return stated(-gain, what, (float(seen[-1]), 0.0), many, ": batches are cut")


def binomial_law(trials: int, rate: float) -> tuple[FloatArray, FloatArray]:
    """Return the places of Binomial(trials, rate) except for 1e-15 at each end, and their
    log-probability.

    The last log-probability is that of all other places together.
    """
    low, high = binom.ppf(_BEYOND, trials, rate), binom.isf(_BEYOND, trials, rate)
    places = np.arange(low, high + 1.0)
    outside = float(binom.sf(high, trials, rate) + binom.cdf(low - 1.0, trials, rate))
    log_each = np.append(binom.logpmf(places, trials, rate), math.log(max(outside, _BEYOND)))
    return places, log_each


def log_two_sided(
    counts: npt.NDArray[Any], trials: int | npt.NDArray[Any], rate: float | FloatArray
) -> FloatArray:
    """Return ln of a bound of twice the smaller tail of Binomial(trials, rate) at each count."""
    some = np.maximum(trials, 1)
    with np.errstate(divide="ignore"):
        often = log_binomial_at_least(counts, some, np.log(rate))
        rarely = log_binomial_at_least(trials - counts, some, np.log1p(-np.asarray(rate)))
    found = np.minimum(0.0, math.log(2.0) + np.minimum(often, rarely))
    return np.where(np.asarray(trials) > 0, found, 0.0)


def member_tests(
    dataset: int,
    rate: float,
    members: Members,
    way: Sampling = Sampling.POISSON,
    *,
    is_ordered: bool = True,
    labels: _Numbers | None = None,
) -> Iterator[ChanceTest]:
    """Yield the rarest observation of each of the eleven tests.

    is_ordered: whether examples are numbered as in the data set. labels: of all of them, if known.
    """
    if not members or not 0.0 < rate < 1.0:
        return
    is_poisson = way is Sampling.POISSON
    steps, drawn = len(members), np.concatenate([index for _, index in members])
    examples, seen = np.unique(drawn, return_counts=True)
    places, counts = np.unique(np.append(seen, 0), return_counts=True)
    counts[0] = max(dataset - len(examples), 0)
    yield _levels(places, counts, steps, rate, ("examples are in", "batches"))
    more = 0.0 if is_poisson else -steps * float(binom.logpmf(len(members[0][1]), dataset, rate))
    of = "the numbers of batches that {} examples are in"
    yield _spread([(steps, rate, places, counts)], of, more)
    yield _together(dataset, rate, members, more)
    if is_ordered:
        for some in (members, members[: steps // 2], members[steps // 2 :]):
            yield _sets(dataset, rate, some, labels)
        other = rate if is_poisson else max(0.0, (rate * dataset - 1.0) / (dataset - 1))
        yield _apart(dataset, rate * other, members)
    if labels is not None:
        _, label, held = np.unique(labels, return_inverse=True, return_counts=True)
        of_each = np.stack([np.bincount(label[i], minlength=len(held)) for _, i in members])
        for counts in (of_each, of_each.sum(axis=0, keepdims=True)):
            laws = zip(steps // len(counts) * held, counts.T, strict=True)
            laws_of = [(n, rate, k, np.ones_like(k)) for n, k in laws]
            yield _spread(laws_of, "the {} numbers of draws of one label", more)
    if len(members) > 1:
        yield _neighbours(dataset, members)
        yield pair_test(dataset, members, range(len(members)))


def _together(dataset: int, rate: float, members: Members, more: float) -> ChanceTest:
    """Test whether examples come in the same batches.

    more: added to the logarithm of the probability.
    """
    steps, columns = len(members), csr_array(_matrix(members).T)
    alike = Counter(
        columns.indices[start:end].tobytes() for start, end in itertools.pairwise(columns.indptr)
    )
    again = np.zeros(steps + 1)
    for row, count in alike.items():
        again[len(row) // columns.indices.itemsize] += min(count - 1, _AGAIN)
    seen = np.cumsum(again[::-1])[::-1]
    places = np.flatnonzero(seen[1:]) + 1
    if not len(places):
        return ChanceTest(0.0, "")
    places = places[np.unique(np.linspace(0, len(places) - 1, _EXACTLY).astype(int))]
    batches, more_of = np.arange(steps + 1), np.arange(2, _AGAIN + 2)[:, np.newaxis]
    log_patterns = gammaln(steps + 1) - gammaln(batches + 1) - gammaln(steps - batches + 1)
    log_mean = math.log(dataset) + batches * math.log(rate) + (steps - batches) * math.log1p(-rate)
    law = more_of * log_mean - gammaln(more_of + 1)
    law[-1] += np.exp(log_mean)

    def log_moment(slope: float, least: int) -> float:
        rise = slope * (more_of - 1)
        gains = rise + np.log(-np.expm1(-np.maximum(rise, _BEYOND)))
        each = np.minimum(log_patterns + np.logaddexp.reduce(law + gains), _LARGEST)
        return float(np.exp(each)[least:].sum())

    chances = [log_chernoff(partial(log_moment, least=k), seen[k], upper=True) for k in places]
    least = int(np.argmin(chances))
    k = int(places[least])
    found = float(seen[k])
    what = f"{found:.0f} examples are in the same batches as another example, and in no others "
    what += f"({k} or more of {steps} batches)"
    why = ": they come together, so that one reveals whether another is present"
    return stated(chances[least] + more, what, (found, 0.0), steps, why)


def _sets(dataset: int, rate: float, members: Members, labels: _Numbers | None) -> ChanceTest:
    """Return the rarest number of draws from a part of the data, every m-th example, or a label."""
    drawn = np.concatenate([np.zeros(0, dtype=np.int64), *(index for _, index in members)])
    cuts = [(n, drawn * n // dataset, np.diff(-(-dataset * np.arange(n + 1) // n)))
            for n in (2, 4, 8, 16, 32, 64)]  # fmt: skip
    cuts += [(m, drawn % m, (dataset - np.arange(m) + m - 1) // m) for m in range(2, 17)]
    what = [f"draws are from part {k} of {n} of the data" for n, *_ in cuts[:6] for k in range(n)]
    what += [
        f"draws are of every {m}th example, from {k} on" for m, *_ in cuts[6:] for k in range(m)
    ]
    if labels is not None:
        names, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        cuts.append((len(names), label[drawn], sizes))
        what += [f"draws are of the examples of label {name}" for name in names]
    counts = np.concatenate([np.bincount(at, minlength=n) for n, at, _ in cuts])
    trials = len(members) * np.concatenate([sizes for _, _, sizes in cuts])
    why = ": examples are not drawn with equal probability"
    return _rarest_count(counts, trials, rate, what, why)


def _apart(dataset: int, rate: float, members: Members) -> ChanceTest:
    """Test how often examples at one distance are in one batch.

    rate: the probability that both are.
    """
    if not 1 < dataset <= _SPECTRA:
        return ChanceTest(0.0, "")
    size, some = next_fast_len(2 * dataset, real=True), members[: _SPECTRA // dataset]
    rows = (np.abs(rfft(np.bincount(index, minlength=size))) ** 2 for _, index in some)
    power = sum(rows, start=np.zeros(size // 2 + 1))
    seen = np.rint(irfft(power, size)[1:dataset])
    mean = rate * len(some) * (dataset - np.arange(1, dataset))
    order = np.argsort((seen - mean) / np.sqrt(mean + 1.0))
    drawn = np.concatenate([2 * t * dataset + index for t, (_, index) in enumerate(some)])
    furthest = np.unique(np.concatenate([order[:_EXACTLY], order[-_EXACTLY:]])) + 1
    counts, trials = [], []
    for d in furthest:
        both = drawn[np.isin(drawn + d, drawn)] % (2 * dataset)
        counts += np.bincount(both // d % 2, minlength=2).tolist()
        trials += (len(some) * np.bincount(np.arange(dataset - d) // d % 2, minlength=2)).tolist()
    what = [
        f"times examples whose numbers differ by {d} are together" for d in furthest for _ in "12"
    ]
    why, many = ": they are not drawn independently", 2 * (dataset - 1)
    return _rarest_count(np.array(counts), np.array(trials), rate, what, why, many)


def _neighbours(dataset: int, members: Members) -> ChanceTest:
    """Test the overlaps of batches l steps apart, for each l."""
    batches = _matrix(members)
    sizes = np.array([len(index) for _, index in members], dtype=np.float64)
    lags = min(_LAGS, len(members) - 1, max(1, _COMPARED // max(1, batches.nnz)))
    parts = []
    for lag in range(1, lags + 1):
        overlaps = batches[lag:].multiply(batches[:-lag]).sum(axis=1)
        means = sizes[lag:] * np.minimum(sizes[:-lag] / dataset, 1.0)
        rows = np.stack([overlaps, sizes[lag:], means])
        some = slice(None), slice(0, None, 2), slice(1, None, 2)
        parts += [rows[:, each].sum(axis=1) for each in some]
    shared, trials, means = np.array(parts).T
    rates = means / np.maximum(trials, 1.0)
    what = [f"examples are shared by batches {k // 3 + 1} steps apart" for k in range(3 * lags)]
    why = ": they share none where the data set was shuffled and cut (LC402)"
    return _rarest_count(shared, trials, rates, what, why)


def pair_test(dataset: int, members: Members, epochs: Sequence[int]) -> ChanceTest:
    """Return the two batches of different epochs whose overlap is the rarest.

    epochs: that of each batch; batches of one epoch depend on one another.
    """
    chosen = np.unique(np.linspace(0, len(members) - 1, min(len(members), _PAIRED)).astype(int))
    some = _matrix([members[place] for place in chosen])
    shared = (some @ some.T).toarray()
    sizes = np.diff(some.indptr).astype(np.float64)
    epoch = np.asarray(epochs)[chosen]
    first, second = np.nonzero(np.triu(epoch[:, np.newaxis] != epoch, 1))
    if not len(first):
        return ChanceTest(0.0, "")
    seen, rates = shared[first, second], np.minimum(sizes[first] / dataset, 1.0)
    steps = [members[place][0] for place in chosen]
    both = zip(first, second, strict=True)
    what = [f"examples are shared by batches {steps[a]} and {steps[b]}" for a, b in both]
    return _rarest_count(seen, sizes[second], rates, what)


def score_test(members: Members, scores: Mapping[str, Mapping[int, FloatArray]]) -> ChanceTest:
    """Return the rarest sum of ranks.

    scores: for some steps a number of every example, known before the batch was drawn, by its name.
    """
    tests = [(0.0, 0.0, "")]
    for name, of_steps in scores.items():
        parts: dict[str, FloatArray] = {"in all": np.zeros(2)}
        for step, index in members:
            if step in of_steps:
                ranks = np.argsort(np.argsort(of_steps[step], kind="stable"), kind="stable")
                total = np.sum((2.0 * ranks[index] + 1.0) / len(ranks) - 1.0)
                parts[f"at step {step}"] = part = np.array([total, len(index)])
                parts["in all"] += part
        for where, (total, drawn) in parts.items():
            root = math.sqrt(3.0 / max(drawn, 1.0))
            moment = partial(_log_uniform, root)
            chance = log_chernoff(moment, total * root, upper=total > 0.0)
            tests.append((chance, total * root, f"by their {name}, the examples drawn {where}"))
    chance, value, what = min(tests)
    what += f" have a mean rank that is {value:.3g} deviations off"
    return stated(chance, what, (value, 0.0), 2.0 * len(tests))


def _log_uniform(root: float, slope: float) -> float:
    """Return ln E exp(λV), V = Σu·root over the 3/root² draws, u uniform from −1 to 1."""
    wide = abs(slope * root)
    return 3.0 / root**2 * math.log(math.sinh(wide) / wide) if wide else 0.0


@dataclass(frozen=True, slots=True)
class Epochs:
    """The division of steps into epochs of `bins` batches.

    resumed: the first step after each interruption, where a new epoch begins.
    """

    bins: int
    resumed: Sequence[int] = ()

    def place(self, step: int) -> tuple[int, int]:
        """Return the first step of its epoch, and the number of the batch within it."""
        begun = max((first for first in self.resumed if first <= step), default=0)
        bin_ = (step - begun) % self.bins
        return step - bin_, bin_


def bin_size_tests(epochs: Epochs, dataset: int, sizes: Mapping[int, int]) -> Iterator[ChanceTest]:
    """Yield the rarest size of balls in bins, and how much sizes vary.

    sizes: by step.
    """
    rests, chances = [], []
    seen: dict[int, tuple[int, int]] = {}
    for step, size in sorted(sizes.items()):
        epoch, _ = epochs.place(step)
        batches, examples = seen.get(epoch, (0, 0))
        seen[epoch] = batches + 1, examples + size
        rests.append(max(dataset - examples, 0))
        chances.append(1.0 / (epochs.bins - batches))
    counts = np.array([sizes[step] for step in sorted(sizes)], dtype=np.int64)
    trials, rates = np.array(rests), np.array(chances)
    what = [f"examples are in the batch of step {step}" for step in sorted(sizes)]
    yield _rarest_count(counts, trials, rates, what)
    laws, which = np.unique(np.stack([trials, rates], axis=1), axis=0, return_inverse=True)
    parts = [
        (int(rest), float(chance), *np.unique(counts[which == k], return_counts=True))
        for k, (rest, chance) in enumerate(laws)
    ]
    yield _spread(parts, "the sizes of {} batches")


def repeated_or_missing(epochs: Epochs, dataset: int, members: Members) -> tuple[str, int] | None:
    """Return what contradicts one batch for each example in an epoch, and the step; None if nothing
    does."""
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
    """Test moves from one epoch to the next, and overlaps of batches of different epochs."""
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
            found = place[index]
            np.add.at(moved, (found[found >= 0] - bin_) % epochs.bins, 1.0)
    if trials.any():
        moves = ["stay in the same batch", *(f"move by {k} batches" for k in range(1, len(moved)))]
        what = [f"examples {move} from one epoch to the next" for move in moves]
        why = ": batches are not drawn anew"
        yield _rarest_count(moved, trials, 1.0 / epochs.bins, what, why)
    if len(starts) > 1:
        yield pair_test(dataset, members, [epochs.place(step)[0] for step, _ in members])


def _matrix(members: Members) -> csr_array:
    """Return a matrix with 1 where the example of the column is in the batch of the row."""
    columns = np.concatenate([index for _, index in members])
    ends = np.cumsum([0, *(len(index) for _, index in members)])
    examples, columns = np.unique(columns, return_inverse=True)
    ones = np.ones(len(columns), dtype=np.int64)
    return csr_array((ones, columns, ends), shape=(len(members), max(len(examples), 1)))
