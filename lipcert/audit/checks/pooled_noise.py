"""Noise of a whole run (LC314): whether all of it together is what is stated.

What enters: noises on tensors, step after step; they are counted and not kept, so that time grows
with the entries and memory with the tensors. What leaves: a report of each tensor, or of the run,
whose noise is another, or one that says what would have been seen.

Statement: z = (noised − clean)/s, s the stated deviation of that tensor at that step, has
independent entries N(0, 1), independent of the clean gradient. Over all n entries of all steps, of
each tensor and of the run:

    size        Σz² is χ²_n, exactly, on either side
    mean        (1 + Σz/(√n‖z‖))/2 is Beta((n − 1)/2, (n − 1)/2), exactly, whatever the size
    leak        Σ_t ⟨z_t, c_t⟩/‖c_t‖ over T steps with clean gradients c_t is N(0, T), exactly:
                c_t may depend on earlier noise, and each term is N(0, 1) whatever went before
    shape       D, the distance of Kolmogorov and Smirnov from N(0, 1), has P(D ≥ d) ≤ 2exp(−2nd²)
                for every n (Massart, Ann. Probab. 18, 1990). It is looked at in cells of equal
                probability only, which makes it smaller
    tails       the number of |z| > t is binomial, exactly, on either side, for each t of `_TAILS`
    regularity  ‖z_t‖² of each tensor and step, q, is χ² of its entries, so that w = 2|F(q) − ½| is
                uniform and Σ −2 ln w of J of them χ²_2J, exactly (Fisher): noise that is scaled to
                its deviation has too small w, and noise whose size changes between the steps too
                large ones (Σ −2 ln(1 − w)). The same of all tensors of a step together

Rounding to the stored type may have moved z by e, entry by entry; of what that allows every test
takes what speaks for the run. For the size that is Σ max(|z| − e, 0)² and Σ (|z| + e)²; for the
shape that Φ moves by at most e/√(2π).

Threshold: a test rejects below one `SHARE` divided by the number of tests. Its power is stated for
a chance of 1 in 100 to miss: σ(1 − x) is seen if the quantile 0.99 of (1 − x)²·χ²_n lies where the
test rejects; a distance Δ if Δ − √(ln 100/2n) does; a clamp at t if no entry beyond it is too rare.

Too much noise is inconclusive, as in `noise`, and so is then what its shape shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr
from scipy.stats import beta, binom, chi2, norm

from lipcert.audit.checks.added_noise import CHECK, AddedNoise
from lipcert.audit.checks.chance import SHARE, power_of_ten
from lipcert.audit.checks.subject import shortened
from lipcert.audit.records import CheckReport, Verdict
from lipcert.upper import FloatArray

_ALL: Final = "all tensors"
_CELLS: Final = 1 << 12
_TAILS: Final[FloatArray] = np.array([1.6, 2.1, 2.6, 3.1, 3.6, 4.1, 4.6])
_BEYOND: Final[FloatArray] = 2.0 * norm.sf(_TAILS)
_DENSITY: Final = float(norm.pdf(0.0))
_MISSED: Final = 0.01
_SHAPES: Final = (("uniform", 0.0572), ("Laplace", 0.0620))
"""distance from N(0, 1) of other laws of the same variance"""
_LEAST: Final = 1e-300
_Counts = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class PooledTest:
    """One comparison. log_chance: ln of the probability by chance, or of a bound of it."""

    kind: str
    log_chance: float
    verdict: Verdict
    message: str
    measured: float
    expected: float


@final
@dataclass(slots=True, eq=False)
class PooledNoise:
    """What is counted of the noise on one tensor, or on all of them, in units of its deviation.

    squares: at least, at most. within: entries below the end of each cell, at least, at most.
    beyond: entries beyond each of `_TAILS`, likewise. leaks: of how many steps. sizes: least and
    largest ‖z‖² with the number of entries, of each step.
    """

    entries: int = 0
    square: float = 0.0
    squares: FloatArray = field(default_factory=lambda: np.zeros(2))
    total: float = 0.0
    total_slack: float = 0.0
    leak: float = 0.0
    leak_slack: float = 0.0
    leaks: int = 0
    within: _Counts = field(default_factory=lambda: np.zeros((2, _CELLS), dtype=np.int64))
    beyond: _Counts = field(default_factory=lambda: np.zeros((2, len(_TAILS)), dtype=np.int64))
    sizes: list[tuple[float, float, int]] = field(default_factory=list)

    def take(self, z: FloatArray, e: FloatArray, clean: FloatArray) -> None:
        """Count the noise of one step. e: what rounding moved; clean: in any unit."""
        size = np.abs(z)
        least, most = np.maximum(size - e, 0.0), size + e
        squares = np.array([least @ least, most @ most])
        self.entries += len(z)
        self.square += float(z @ z)
        self.squares += squares
        self.sizes.append((float(squares[0]), float(squares[1]), len(z)))
        self.total += float(np.sum(z))
        self.total_slack += float(np.sum(e))
        length = float(np.linalg.norm(clean))
        if 0.0 < length < math.inf:
            self.leaks += 1
            self.leak += float(z @ clean) / length
            self.leak_slack += float(e @ np.abs(clean)) / length
        below = ndtr(z)
        for place, edge in enumerate((below + _DENSITY * e, below - _DENSITY * e)):
            self.within[place] += _cells(edge)
        for place, edge in enumerate((least, most)):
            self.beyond[place] += [np.count_nonzero(edge > t) for t in _TAILS]

    def tests(self) -> Iterator[PooledTest]:
        """All of them; as many for every tensor."""
        yield from self._size()
        yield from self._mean_and_leak()
        yield self._shape()
        yield from self._tails()
        yield from regularity(self.sizes)

    def _size(self) -> Iterator[PooledTest]:
        least, most = map(float, self.squares)
        n, measured = self.entries, math.sqrt(self.square / self.entries)
        what = f"the noise has {measured:.6g} times the stated standard deviation"
        small, large = chi2.logcdf(most, n), chi2.logsf(least, n)
        yield PooledTest("size", _either(small), Verdict.VIOLATION, what, measured, 1.0)
        yield PooledTest("size", _either(large), Verdict.INCONCLUSIVE, what, measured, 1.0)

    def _mean_and_leak(self) -> Iterator[PooledTest]:
        n = self.entries
        reach = math.sqrt(n * float(self.squares[1]))
        cosine = min(1.0, _less(self.total, self.total_slack) / reach) if reach > 0.0 else 0.0
        chance = beta.logcdf((1.0 - cosine) / 2.0, (n - 1) / 2.0, (n - 1) / 2.0) if n > 1 else 0.0
        text = f"the noise has the mean {self.total / n:.3g} standard deviations, not 0"
        yield PooledTest("mean", _either(chance), Verdict.VIOLATION, text, self.total / n, 0.0)
        root = math.sqrt(max(self.leaks, 1))
        leak = _less(self.leak, self.leak_slack) / root
        text = (
            "the noise is correlated with the gradients that it hides: along them it has the mean "
            f"{self.leak / max(self.leaks, 1):.3g} standard deviations"
        )
        yield PooledTest("leak", _either(norm.logsf(leak)), Verdict.VIOLATION, text, leak, 0.0)

    def _shape(self) -> PooledTest:
        ends = np.arange(1, _CELLS + 1) / _CELLS
        least, most = (np.cumsum(counts) / self.entries for counts in self.within)
        distance = float(max(np.max(least - ends), np.max(ends - most), 0.0))
        chance = min(0.0, math.log(2.0) - 2.0 * self.entries * distance**2)
        text = f"the noise is not Gaussian: its distribution is {distance:.3g} away"
        return PooledTest("shape", chance, Verdict.VIOLATION, text, distance, 0.0)

    def _tails(self) -> Iterator[PooledTest]:
        for t, p, least, most in zip(_TAILS, _BEYOND, *self.beyond, strict=True):
            expected = self.entries * p
            few, many = binom.logcdf(most, self.entries, p), binom.logsf(least - 1, self.entries, p)
            for chance, seen in ((few, int(most)), (many, int(least))):
                text = (
                    f"{seen} of its entries lie beyond {t:g} standard deviations, where "
                    f"{expected:.3g} are to be expected of Gaussian noise"
                )
                yield PooledTest(
                    "tails", _either(chance), Verdict.VIOLATION, text, float(seen), expected
                )


def regularity(sizes: Sequence[tuple[float, float, int]]) -> Iterator[PooledTest]:
    """Of independent noises of such sizes: whether they are too much the same, or too little."""
    least, most, entries = np.array(sizes).T
    lower, upper, above = chi2.cdf(least, entries), chi2.cdf(most, entries), chi2.sf(least, entries)
    widest = 2.0 * np.maximum(np.abs(lower - 0.5), np.abs(upper - 0.5))
    tail = np.where(upper < 0.5, 2.0 * upper, np.where(lower > 0.5, 2.0 * above, 1.0))
    text = (
        f"its size is too much the same in {len(sizes)} places: noise that is scaled to its "
        "deviation is not Gaussian, and does not hide as much"
    )
    yield _fisher(widest, text)
    yield _fisher(tail, f"its size changes more between {len(sizes)} places than by chance")


def _fisher(uniform: FloatArray, text: str) -> PooledTest:
    """Of independent uniform numbers, whether they are too small altogether."""
    value = -2.0 * float(np.sum(np.log(np.maximum(uniform, _LEAST))))
    degrees = 2 * len(uniform)
    chance = float(chi2.logsf(value, degrees))
    return PooledTest("regularity", chance, Verdict.VIOLATION, text, value, float(degrees))


@final
@dataclass(slots=True, eq=False)
class Pool:
    """The noise of a run, tensor by tensor."""

    whole: PooledNoise = field(default_factory=PooledNoise)
    tensors: dict[str, PooledNoise] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)

    def take(self, items: Sequence[AddedNoise]) -> None:
        """The noises of one rank at one step; one rank speaks for all, which release one thing."""
        loud = [item for item in items if item.std and np.all(np.isfinite(item.noise))]
        if not loud or loud[0].number in self.steps:
            return
        self.steps.add(loud[0].number)
        scaled = [
            tuple(part / (item.std or 1.0) for part in (item.noise, item.moved, item.clean))
            for item in loud
        ]
        for item, parts in zip(loud, scaled, strict=True):
            self.tensors.setdefault(item.tensor, PooledNoise()).take(*parts)
        z, e, clean = (np.concatenate(parts) for parts in zip(*scaled, strict=True))
        self.whole.take(z, e, clean)

    def reports(self) -> tuple[CheckReport, ...]:
        """Of each tensor that fails and of the run, the worst first; or one pass."""
        if not self.steps:
            return ()
        every = [size for item in self.tensors.values() for size in item.sizes]
        found = {_ALL: [*self.whole.tests(), *regularity(every)]}
        if len(self.tensors) > 1:
            found |= {name: list(item.tests()) for name, item in self.tensors.items()}
        tests = sum(map(len, found.values()))
        limit = math.log(SHARE / tests)
        worst = {name: _worst(some, limit) for name, some in found.items()}
        failed = [
            self._failed(name, test)
            for name, test in sorted(worst.items(), key=lambda item: item[1].log_chance)
            if test.log_chance < limit
        ]
        failed.sort(key=lambda report: report.verdict is not Verdict.VIOLATION)
        return shortened(failed) or (self._passed(worst, tests, limit),)

    def _failed(self, name: str, test: PooledTest) -> CheckReport:
        noise = self.whole if name == _ALL else self.tensors[name]
        where = f"all {len(noise.sizes)} steps, {name}"
        message = (
            f"{where}: {test.message} ({noise.entries} entries), which chance gives with at most "
            f"{power_of_ten(max(test.log_chance, math.log(_LEAST)))}"
        )
        return CHECK.failed(message, where, (test.measured, test.expected), verdict=test.verdict)

    def _passed(self, worst: dict[str, PooledTest], tests: int, limit: float) -> CheckReport:
        name, rarest = min(worst.items(), key=lambda item: item[1].log_chance)
        whole = self.whole
        seen = [f"noise {_too_small(whole.entries, limit)} too small"]
        if len(self.tensors) > 1:
            least = min(item.entries for item in self.tensors.values())
            seen[0] += f" ({_too_small(least, limit)} on one tensor of {least} entries)"
        return CHECK.passed(
            f"{tests} tests of all recorded noise together (steps: {len(self.steps)}, tensors: "
            f"{len(self.tensors)}, entries: {whole.entries}) agree with Gaussian noise of the "
            f"stated standard deviations; the rarest ({rarest.kind}, {name}) has the probability "
            f"{math.exp(rarest.log_chance):.2g}. {_powers(whole, seen, limit)}",
            f"all {len(self.steps)} steps",
            (math.sqrt(whole.square / whole.entries), 1.0),
        )


def _worst(tests: Sequence[PooledTest], limit: float) -> PooledTest:
    """The rarest, a size that fails before all others, since it explains them, but for a mean."""
    failed = [test for test in tests if test.log_chance < limit]
    sizes = [test for test in failed if test.kind == "size"]
    if any(test.verdict is Verdict.INCONCLUSIVE for test in sizes):
        sizes = [test for test in failed if test.kind == "mean"] or sizes
    return min(sizes or tests, key=lambda test: test.log_chance)


def _powers(noise: PooledNoise, seen: list[str], limit: float) -> str:
    """What the tests of the run would have seen, and what not."""
    unseen: list[str] = []
    root = math.sqrt(2.0 * noise.entries)
    distance = (math.sqrt(math.log(2.0) - limit) + math.sqrt(-math.log(_MISSED))) / root
    for name, own in _SHAPES:
        found = seen if own > distance + 1.0 / _CELLS else unseen
        found.append(f"{name} noise of the same variance")
    clamps = [t for t, p in zip(_TAILS, _BEYOND, strict=True)
              if math.log(2.0) + noise.entries * math.log1p(-p) < limit]  # fmt: skip
    if clamps:
        seen.append(f"noise clamped at {max(clamps):.3g} standard deviations")
    else:
        unseen.append("clamped noise")
    scaled, _ = regularity([(float(n), float(n), n) for _, _, n in noise.sizes])
    (seen if scaled.log_chance < limit else unseen).append("noise scaled to its deviation")
    text = f"Would have been seen: {', '.join(seen)}"
    return f"{text}; not: {', '.join(unseen)}" if unseen else text


def _too_small(entries: int, limit: float) -> str:
    """By how much noise has to be too small for its size to be noticed."""
    rejected = float(chi2.ppf(math.exp(limit) / 2.0, entries))
    share = 1.0 - math.sqrt(rejected / float(chi2.ppf(1.0 - _MISSED, entries)))
    return f"{100.0 * share:.2g} %"


def _cells(edges: FloatArray) -> _Counts:
    places = np.clip(edges * _CELLS, 0.0, _CELLS - 1.0).astype(np.int64)
    return np.bincount(places, minlength=_CELLS)


def _either(log_chance: float) -> float:
    """Of two tails."""
    return min(0.0, math.log(2.0) + float(log_chance))


def _less(value: float, slack: float) -> float:
    return max(abs(value) - slack, 0.0)
