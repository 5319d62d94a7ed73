"""Noise (LC314): whether what was added is Gaussian noise of the stated standard deviation.

Statement: noised − clean has independent entries N(0, s²), independent of the clean gradient. What
several ranks hold of one release is one noise. Compared, for each tensor and each step as a whole,
d being the difference of p entries:

    size       ‖d‖²/s² with χ²_p, on either side
    mean       Σd/(s√p) with N(0, 1)
    leak       ⟨d, clean⟩/(s‖clean‖) with N(0, 1): noise that knows the gradient hides less of it
    shape      the distance of Kolmogorov and Smirnov from N(0, 1), for p ≥ 1000

and all steps together, see `pooled_noise`.

Threshold: a test rejects where chance gives this, or more, with at most one `SHARE` divided by the
number of tests, so that all of them together raise a false alarm with at most that (union bound;
each statistic has the stated distribution exactly, for any p). What rounding to the stored type may
have added to d counts in favour of the run. A tensor whose difference is 0 everywhere, while s > 0,
has no noise; no chance is involved.

Too little noise, a mean, a leak or another shape are violations: the account does not hold. Too
much noise is inconclusive: it costs accuracy and no privacy if it is noise, but the record does not
tell it from a gradient that is not the recorded one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, final

import numpy as np
from scipy.stats import chi2, kstwo, norm

from lipcert.audit.checks.added_noise import CHECK, NAME, AddedNoise, added_noises
from lipcert.audit.checks.chance import SHARE
from lipcert.audit.checks.pooled_noise import Pool
from lipcert.audit.checks.subject import Checked, RecordedRun, shortened
from lipcert.audit.records import CheckReport, Verdict
from lipcert.upper import FloatArray

_SHAPE_FROM: Final = 1000
_SHAPE_UP_TO: Final = 1_000_000


@final
@dataclass(frozen=True, slots=True)
class _Test:
    """One comparison: its probability by chance, and what it means if that is too small."""

    where: str
    chance: float
    verdict: Verdict
    message: str
    measured: float
    expected: float


def noise(run: RecordedRun) -> Checked:
    """A report for each tensor or step that fails, or a pass, and those of all steps together."""
    tests: list[_Test] = []
    silent: dict[str, None] = {}
    pool, tensors = Pool(), 0
    for _, group in groupby(added_noises(run), key=lambda item: item.step):
        items = list(group)
        tensors += len(items)
        silent |= dict.fromkeys(item.tensor for item in items if item.std is None)
        known = [item for item in items if item.std is not None]
        for item in known:
            tests += _tests(f"{item.step}, {item.tensor}", [item])
        if len(known) > 1:
            tests += _tests(f"{known[0].step}, all tensors", known)
        pool.take(known)
    if not tensors:
        text = (
            f"{NAME}: no step records clean and noised gradients; use recorder.gradients(clean=…, "
            "noised=…) at detailed steps"
        )
        return Checked(not_done=(text,) if run.steps else ())
    not_done = tuple(
        f"{NAME}: the standard deviation for {name!r} is not stated" for name in sorted(silent)
    )
    pooled = pool.reports()
    reports = _of_steps(tests, tensors)
    if any(report.verdict is Verdict.VIOLATION for report in pooled):
        return Checked((*pooled, *reports), not_done)
    return Checked((*reports, *pooled), not_done)


def _of_steps(tests: list[_Test], tensors: int) -> tuple[CheckReport, ...]:
    """A report of each place that fails at a single step, or one pass."""
    failed = [test for test in tests if test.chance < SHARE / len(tests)]
    failed.sort(key=lambda test: (test.verdict is Verdict.VIOLATION, -test.chance))
    named = {test.where: test for test in failed}
    worst_first = sorted(named.values(), key=lambda test: test.verdict is not Verdict.VIOLATION)
    reports = shortened([_report(test) for test in worst_first])
    if not reports and tests:
        worst = min((test for test in tests if test.expected), key=lambda test: test.chance)
        message = (
            f"{len(tests)} tests of the noise on {tensors} tensors agree with the stated "
            f"standard deviations; the rarest has the probability {worst.chance:.2g}"
        )
        reports = (CHECK.passed(message, worst.where),)
    return reports


def _tests(where: str, items: list[AddedNoise]) -> Iterator[_Test]:
    """All tests of some tensors of one step together, in units of their stated deviations."""
    silent = [item for item in items if item.std == 0.0]
    for item in silent:
        if len(items) == 1 and np.any(np.abs(item.noise) > item.moved):
            yield _Test(where, 0.0, Verdict.INCONCLUSIVE, "no noise is stated, and some was added",
                        1.0, 0.0)  # fmt: skip
    loud = [item for item in items if item.std is not None and item.std > 0.0]
    if not loud:
        return
    d = np.concatenate([item.noise / _std(item) for item in loud])
    moved = np.concatenate([item.moved / _std(item) for item in loud])
    if not np.all(np.isfinite(d)):
        yield _Test(where, 0.0, Verdict.VIOLATION, "the gradients hold NaN or infinity",
                    math.nan, 1.0)  # fmt: skip
        return
    if not np.any(d):
        yield _Test(where, 0.0, Verdict.VIOLATION, "no noise was added at all", 0.0, 1.0)
        return
    clean = np.concatenate([item.clean / _std(item) for item in loud])
    yield from _size(where, d, moved)
    yield from _mean_and_leak(where, d, moved, clean)
    yield from _shape(where, d, moved)


def _size(where: str, d: FloatArray, moved: FloatArray) -> Iterator[_Test]:
    length, slack = float(np.linalg.norm(d)), float(np.linalg.norm(moved))
    least, most = max(length - slack, 0.0) ** 2, (length + slack) ** 2
    measured = length / math.sqrt(len(d))
    what = f"the noise has {measured:.6g} times the stated standard deviation ({len(d)} entries)"
    small, large = float(chi2.cdf(most, len(d))), float(chi2.sf(least, len(d)))
    yield _Test(where, min(1.0, 2.0 * small), Verdict.VIOLATION, what, measured, 1.0)
    yield _Test(where, min(1.0, 2.0 * large), Verdict.INCONCLUSIVE, what, measured, 1.0)


def _mean_and_leak(
    where: str, d: FloatArray, moved: FloatArray, clean: FloatArray
) -> Iterator[_Test]:
    root = math.sqrt(len(d))
    mean = _towards_zero(float(np.sum(d)), float(np.sum(moved))) / root
    text = f"the noise has the mean {float(np.mean(d)):.3g} standard deviations, not 0"
    yield _Test(where, _both_tails(mean), Verdict.VIOLATION, text, abs(mean), 1.0)
    length = float(np.linalg.norm(clean))
    if length > 0.0:
        product = float(d @ clean)
        leak = _towards_zero(product, float(moved @ np.abs(clean))) / length
        text = (
            f"the noise is correlated with the gradient that it hides: it holds "
            f"{product / length**2:.3g} times it"
        )
        yield _Test(where, _both_tails(leak), Verdict.VIOLATION, text, abs(leak), 1.0)


def _shape(where: str, d: FloatArray, moved: FloatArray) -> Iterator[_Test]:
    """The empirical distribution; moving entries by δ moves it by at most δ times the density."""
    count = min(len(d), _SHAPE_UP_TO)
    if count < _SHAPE_FROM:
        return
    below = norm.cdf(np.sort(d[:count]))
    steps = np.arange(count + 1) / count
    distance = float(max(np.max(steps[1:] - below), np.max(below - steps[:-1])))
    distance -= float(np.max(moved[:count])) * float(norm.pdf(0.0))
    chance = float(kstwo.sf(max(distance, 0.0), count))
    text = f"the noise is not Gaussian: its distribution is {distance:.3g} away"
    yield _Test(where, chance, Verdict.VIOLATION, text, distance, math.sqrt(1.0 / count))


def _both_tails(z: float) -> float:
    return float(2.0 * norm.sf(abs(z)))


def _towards_zero(value: float, slack: float) -> float:
    return math.copysign(max(abs(value) - slack, 0.0), value)


def _std(item: AddedNoise) -> float:
    return item.std or 0.0


def _report(test: _Test) -> CheckReport:
    chance = f", which chance gives with at most {test.chance:.1e}" if test.chance > 0.0 else ""
    message = f"{test.where}: {test.message}{chance}"
    numbers = (test.measured, test.expected)
    return CHECK.failed(message, test.where, numbers, verdict=test.verdict)
