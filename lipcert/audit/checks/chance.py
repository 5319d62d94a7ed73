"""Chance: what a correct run may show by chance, and how rarely an audit may reject it for that.

A test states the logarithm of an upper bound of the probability that a correct run shows its
statistic, or something rarer. Invariant: all tests by chance of a run together raise a false alarm
with a probability of at most `FALSE_ALARM`: batches, the noise of single steps, that of all steps
together, the reuse of noise, and ε from below each have a `SHARE`, which is split over their tests
(union bound).

A bound B(v) ≥ P(V ≥ v) may replace the probability itself: it falls in v, so that {B(V) ≤ α} lies
within {P(V ≥ v)|_{v = V} ≤ α}, which has at most the probability α.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.core.program import FloatArray

FALSE_ALARM: Final = 1e-6
SHARE: Final = FALSE_ALARM / 5.0
STEEPEST: Final = 60.0
_Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ChanceTest:
    """The result of a statistical test, and how rarely a correct run gives this or a rarer one.

    log_chance: ln of the probability by chance, or of a bound of it; for several tests, of their
    union bound. numbers: the observed and the expected value. kind: the kind of the statistic.
    """

    log_chance: float
    message: str
    where: str = ""
    numbers: tuple[float, float] | None = None
    verdict: Verdict = Verdict.VIOLATION
    kind: str = ""

    def is_too_rare(self, share: float) -> bool:
        """Whether it is rarer than a correct run may show."""
        return self.log_chance < math.log(share)

    def failed(self, check: Check) -> CheckReport:
        """Return the report of a failed check."""
        return check.failed(self.message, self.where, self.numbers, verdict=self.verdict)


def too_rare(tests: Iterable[ChanceTest], share: float) -> ChanceTest | None:
    """Return the rarest of some tests, if it is rarer than a correct run may show."""
    found = min(tests, key=lambda test: test.log_chance, default=None)
    return found if found is not None and found.is_too_rare(share) else None


def log_binomial_at_least(
    count: _Numbers, trials: float | _Numbers, log_p: float | _Numbers
) -> FloatArray:
    """Return ln of a bound of P(K ≥ count), K a sum of `trials` indicators of probability p =
    exp(log_p).

    The indicators are independent, or negatively associated, under which products of increasing
    functions of single ones have no larger mean than under independence. The bound is Chernoff's,
    exp(−n·KL(count/n ‖ p)) above the mean, and 1 below it.
    """
    share = np.clip(np.asarray(count, dtype=np.float64) / trials, 0.0, 1.0)
    log_p = np.asarray(log_p, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = np.log(-np.expm1(np.minimum(log_p, 0.0)))
        first = np.where(share > 0.0, share * (np.log(share) - log_p), 0.0)
        second = np.where(share < 1.0, (1.0 - share) * (np.log1p(-share) - log_q), 0.0)
        divergence = np.where(log_p < np.log(share), first + second, 0.0)
    found: FloatArray = -trials * np.maximum(divergence, 0.0)
    return found


def log_hits(hits: float, trials: float, expected: float) -> float:
    """Return ln of a bound of P(K ≥ hits), K a sum of independent indicators of this mean.

    By concavity of the logarithm their moments are at most those of indicators of one probability,
    so that Chernoff's bound for the binomial also holds for them.
    """
    if hits <= expected:
        return 0.0
    log_p = np.log(np.array(expected / trials))
    return float(log_binomial_at_least(np.array(hits), trials, log_p))


def log_chernoff(log_moment: Callable[[float], float], value: float, *, upper: bool) -> float:
    """Return ln of a bound of P(V ≥ value), or of P(V ≤ value): inf_λ ln E exp(λV) − λ·value.

    log_moment: λ ↦ ln E exp(λV), or anything above it. Every λ of the right sign gives a bound, so
    that validity does not depend on whether the best one is found.
    """
    ends = (0.0, STEEPEST) if upper else (-STEEPEST, 0.0)
    found = minimize_scalar(
        lambda slope: log_moment(slope) - slope * value, bounds=ends, method="bounded"
    )
    return min(0.0, float(found.fun))


def power_of_ten(log_chance: float) -> str:
    """Return a probability as a power of ten; it may be far below the smallest float."""
    return f"1e{log_chance / math.log(10.0):.0f}" if math.isfinite(log_chance) else "0"


def stated(
    log_chance: float,
    what: str,
    numbers: tuple[float, float] | None = None,
    tests: float = 1.0,
    why: str = "",
) -> ChanceTest:
    """Return the rarest of this many tests: what it saw, how rare that is, and what it means."""
    log_chance = min(0.0, log_chance + math.log(tests))
    text = f"{what}, which has at most the probability {power_of_ten(log_chance)}{why}"
    return ChanceTest(log_chance, text, numbers=numbers)
