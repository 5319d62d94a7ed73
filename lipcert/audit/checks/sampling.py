"""What batches show of their sampler (LC311): sizes and members against the stated sampling.

Statement: under Poisson sampling sizes are Binomial(N, q) and batches of two steps share examples
as independent uniform subsets of their sizes do; other samplings have sizes and repetitions that
the account relies on. Compared, exactly: sizes of batches, members within a batch, the data set,
and epochs. Compared by chance: the size of each Poisson batch and the sum of all, equal sizes
throughout, and consecutive batches that never share an example.

Threshold: a test by chance rejects where a run as stated shows this, or something rarer, with a
probability of at most 1e-9 divided by the number of tests; by the union bound all of them together
raise a false alarm with at most 1e-9. Tails are doubled, for either side. They are exact:
P(all T sizes equal) = Σ_k P(k)^T, and disjointness of S and S' of sizes n, n' has the probability
C(N−n, n')/C(N, n'), independently for consecutive pairs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp
from scipy.stats import binom

from lipcert.audit.checks.subject import RecordedRun
from lipcert.audit.records import CheckReport, Verdict
from lipcert.privacy.plan import Sampling

__all__ = ["FALSE_ALARM", "sampling_faults"]

FALSE_ALARM: Final = 1e-9
_Index = npt.NDArray[np.int64]


def sampling_faults(
    run: RecordedRun, compared: list[str], not_done: list[str]
) -> Iterator[CheckReport]:
    """Everything that contradicts the sampling of the account."""
    way = (
        Sampling(run.settings.sampling)
        if run.settings.sampling is not None
        else run.declared.sampling
    )
    dataset = run.settings.dataset_size or run.declared.dataset_size
    expected = run.settings.batch_size or run.declared.batch_size
    if way is Sampling.FULL_BATCH and expected is None:
        expected = dataset
    sizes = _sizes(run)
    if way is None or dataset is None or expected is None or sizes is None:
        not_done.append(
            "schedule: the sizes of batches cannot be held against their sampling; it needs the "
            "sampling, the size of the data set and of the batch (declared, or in the settings)"
        )
        return
    present = dataset if run.declared.examples is None else run.declared.examples
    rate = expected / dataset
    yield from _size_faults(way, present, rate, expected, sizes, fills=present >= dataset)
    compared.append("batch sizes")
    members = _members(run)
    if members is None:
        not_done.append("schedule: the members of batches are not recorded; use batch(index=…)")
        return
    yield from _member_faults(way, present, dataset // expected, members)
    compared.append("members of batches")


def _size_faults(
    way: Sampling, present: int, rate: float, expected: int, sizes: dict[int, int], *, fills: bool
) -> Iterator[CheckReport]:
    """fills: there are as many examples as were accounted for; otherwise some places are empty."""
    if way is Sampling.POISSON:
        yield from _poisson_sizes(present, rate, sizes)
        return
    if way is Sampling.FULL_BATCH:
        expected, fills = present, True
    for number, size in sizes.items():
        is_short = size < expected and (not fills or (way is Sampling.SHUFFLE and size > 0))
        if size != expected and not is_short:
            yield _fault(
                f"the batch of step {number} holds {size} examples, and {way.value} sampling with "
                f"{expected} was accounted for",
                f"step {number}",
                (size, expected),
            )
            return


def _poisson_sizes(dataset: int, rate: float, sizes: dict[int, int]) -> Iterator[CheckReport]:
    steps = len(sizes)
    counts = np.array(list(sizes.values()))
    threshold = FALSE_ALARM / (steps + 2)
    tails = _two_sided(counts, dataset, rate)
    worst = int(np.argmin(tails))
    if tails[worst] < threshold:
        number = list(sizes)[worst]
        yield _fault(
            f"a Poisson batch of {counts[worst]} examples, as at step {number}, has the "
            f"probability {tails[worst]:.1e} at the rate {rate:.6g}",
            f"step {number}",
            (counts[worst], dataset * rate),
        )
        return
    total = int(counts.sum())
    tail = float(_two_sided(np.array([total]), dataset * steps, rate)[0])
    if tail < threshold:
        yield _fault(
            f"{total} examples in {steps} Poisson batches have the probability {tail:.1e} at the "
            f"rate {rate:.6g}",
            "",
            (total, dataset * rate * steps),
        )
        return
    if len(set(sizes.values())) == 1 and rate < 1.0:
        each = binom.logpmf(np.arange(dataset + 1), dataset, rate)
        log_chance = float(logsumexp(steps * each))
        if log_chance < math.log(threshold):
            yield _fault(
                f"all {steps} Poisson batches hold {counts[0]} examples, which has the "
                f"probability {_power(log_chance)}: they are of a fixed size, and their ε is not "
                "that of Poisson sampling (LC402)",
                "",
                None,
            )


def _member_faults(
    way: Sampling, dataset: int, epoch: int, members: Sequence[tuple[int, _Index]]
) -> Iterator[CheckReport]:
    for number, index in members:
        if len(index) and int(index.max()) >= dataset:
            yield _fault(
                f"example {int(index.max())} at step {number} is none of the {dataset} that were "
                "accounted for",
                f"step {number}",
                None,
            )
            return
        if len(np.unique(index)) < len(index):
            twice, count = Counter(index.tolist()).most_common(1)[0]
            yield _fault(
                f"example {twice} stands {count} times in the batch of step {number}: it moves "
                "the gradient as much as so many examples",
                f"step {number}",
                (count, 1),
            )
            return
    if way is Sampling.SHUFFLE:
        yield from _epoch_faults(epoch, members)
    elif way in {Sampling.POISSON, Sampling.WITHOUT_REPLACEMENT}:
        yield from _disjoint(way, dataset, members)


def _epoch_faults(epoch: int, members: Sequence[tuple[int, _Index]]) -> Iterator[CheckReport]:
    """An epoch that repeats an example before it has `epoch` = ⌊N/B⌋ batches."""
    seen: set[int] = set()
    length = 0
    for number, index in members:
        again = seen.intersection(index.tolist())
        if again:
            if length < epoch:
                yield _fault(
                    f"example {min(again)} at step {number} was already in one of the {length} "
                    "batches before it, so that the batches of an epoch are not disjoint",
                    f"step {number}",
                    None,
                )
                return
            seen, length = set(), 0
        seen.update(index.tolist())
        length += 1


def _disjoint(
    way: Sampling, dataset: int, members: Sequence[tuple[int, _Index]]
) -> Iterator[CheckReport]:
    """Consecutive batches that never share an example, as those of a shuffled epoch."""
    log_chance = 0.0
    for (_, first), (_, second) in pairwise(members):
        if np.intersect1d(first, second).size:
            return
        log_chance += _log_disjoint(dataset, len(first), len(second))
    if log_chance < math.log(FALSE_ALARM):
        yield _fault(
            f"no two consecutive batches share an example, which has the probability "
            f"{_power(log_chance)} under {way.value} sampling: the data set was shuffled and cut "
            "(LC402)",
            "",
            None,
        )


def _log_disjoint(total: int, first: int, second: int) -> float:
    """ln of C(N−n, n')/C(N, n')."""
    if first + second > total:
        return -math.inf

    def log_choose(n: int, k: int) -> float:
        return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))

    return log_choose(total - first, second) - log_choose(total, second)


def _two_sided(counts: npt.NDArray[np.int64], trials: int, rate: float) -> npt.NDArray[np.float64]:
    below = binom.cdf(counts, trials, rate)
    above = binom.sf(counts - 1, trials, rate)
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(below, above)), dtype=np.float64)


def _sizes(run: RecordedRun) -> dict[int, int] | None:
    """Examples by step, over all micro-batches and ranks; None where some are not recorded."""
    sizes: Counter[int] = Counter()
    for step in run.steps:
        if not step.batches or any(batch.examples is None for batch in step.batches):
            return None
        sizes[step.number] += sum(batch.examples or 0 for batch in step.batches)
    return dict(sorted(sizes.items()))


def _members(run: RecordedRun) -> list[tuple[int, _Index]] | None:
    """Members by step, over all micro-batches and ranks."""
    found: dict[int, list[_Index]] = {}
    for step in run.steps:
        for batch in step.batches:
            if batch.index is None and batch.examples:
                return None
            if batch.index is not None:
                found.setdefault(step.number, []).append(batch.index)
    return [(number, np.concatenate(parts)) for number, parts in sorted(found.items())]


def _power(log_chance: float) -> str:
    """A probability that may be far below the smallest float."""
    return f"1e{log_chance / math.log(10.0):.0f}" if math.isfinite(log_chance) else "0"


def _fault(message: str, where: str, numbers: tuple[float, float] | None) -> CheckReport:
    measured, expected = (None, None) if numbers is None else numbers
    return CheckReport(
        "LC311",
        "schedule",
        Verdict.VIOLATION,
        message,
        where,
        None if measured is None else float(measured),
        None if expected is None else float(expected),
        "draw batches as they were accounted for, or account for the way they were drawn",
    )
