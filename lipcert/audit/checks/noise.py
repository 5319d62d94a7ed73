"""Noise (LC314): whether what was added is Gaussian noise of the stated standard deviation.

Statement: z = (noised − clean)/s, s the stated deviation of a tensor at a step, has independent
entries N(0, 1), independent of the clean gradient. What several ranks hold of one release is one
noise. Compared, over the n entries of each tensor at each step, of all tensors of a step, of each
tensor in all steps, and of the whole run:

    size        Σz² is χ²_n, exactly, on either side
    mean        (1 + Σz/(√n‖z‖))/2 is Beta((n − 1)/2, (n − 1)/2), exactly, whatever the size
    leak        Σ_t ⟨z_t, c_t⟩/‖c_t‖ over T steps with clean gradients c_t is N(0, T), exactly:
                c_t may depend on earlier noise, and each term is N(0, 1) whatever went before;
                noise that knows the gradient hides less of it
    shape       D, the distance of Kolmogorov and Smirnov from N(0, 1), has P(D ≥ d) ≤ 2exp(−2nd²)
                for every n (Massart, Ann. Probab. 18, 1990). It is looked at in cells of equal
                probability only, which makes it smaller; at single steps for n ≥ 1000
    tails       the number of |z| > t is binomial, exactly, on either side, for each t of `_TAILS`
    regularity  ‖z_t‖² of each tensor and step, q, is χ² of its entries, so that w = 2|F(q) − ½| is
                uniform and Σ −2 ln w of J of them χ²_2J, exactly (Fisher): noise that is scaled to
                its deviation has too small w, and noise whose size changes between the steps too
                large ones (Σ −2 ln(1 − w)). The same of all tensors of a step together

    known       directions that c_t and earlier noise fix before z_t is drawn have their share of
                it, exactly: Σ_t (Σz_t)²/n and Σ_t ⟨z_t, c_t⟩²/‖c_t‖² are χ²_T, ‖z_t‖² over
                the half of the entries where |c_t| is larger, or smaller, is χ² of their number.
                Each may be too small: noise that is centred, projected off the gradient, or placed
                where that is small
    still       entries of c ≠ 0 that are as they were: |noised − c| ≤ r, r = 2u|c|, u the unit of
                the type. Then the noise is at most 3.01r before it is rounded, which has at most
                the probability 6.02r/(s√(2π)); 2^-20 is added for generators of few bits
    coarse      entries of the noise, or of z, that lie on the grid of a type of p = 8 or 11 bits,
                where the clean gradient does not: what is added has then its last bits unhidden.
                Counted are those of 2^-6 ≤ |z| ≤ 4 for which rounding by e leaves 8e ≤ h/4, h the
                grid's width at that entry. Density changes by less than 1.2 over a width, so that
                P(|z − grid| ≤ 2e) ≤ 1.2·4e/h ≤ 1/4: hits are at most binomial with 1/4, exactly

Tails and all below are of several steps. Rounding to the stored type may have moved z by e, entry
by entry; of what that allows every test takes what favours the run. For the size that is
Σ max(|z| − e, 0)² and Σ (|z| + e)²; for the shape that Φ moves by at most e/√(2π).

Threshold: the tests of single steps share one `SHARE`, and those of all steps another: a test
rejects below its share divided by the number of tests, so that a right run is blamed with at most
that probability (union bound). A tensor whose difference is 0 everywhere, while s > 0, has no
noise; no chance is involved. The power of the tests of a whole run is stated for a chance of 1 in
100 to miss: σ(1 − x) is seen if the quantile 0.99 of (1 − x)²·χ²_n lies where the test rejects; a
distance Δ if Δ − √(ln 100/2n) does; a clamp at t if no entry beyond it is too rare.

Too little noise, a mean, a leak or another shape are violations: the account does not hold. Too
much noise is inconclusive, and so is then what its shape shows in the whole run: it costs accuracy
and no privacy if it is noise, but the record does not tell it from a gradient that is not the
recorded one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Final, final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr
from scipy.stats import beta, binom, chi2, norm

from lipcert.audit.checks.chance import SHARE, ChanceTest, log_hits, power_of_ten
from lipcert.audit.checks.recorded_run import (
    Finding,
    RecordedRun,
    exact,
    noise_stds,
    run_check,
    shortened,
    stored_roundoff,
)
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.core.program import FloatArray

_CHECK: Final = Check(
    "LC314",
    "noise",
    "add independent Gaussian noise of the stated deviation to every tensor that is released, and "
    "record the gradients directly before and after it",
)
_SHAPE_FROM: Final = 1000
_ALL: Final = "all tensors"
_CELLS: Final = 1 << 12
_TAILS: Final[FloatArray] = np.array([1.6, 2.1, 2.6, 3.1, 3.6, 4.1, 4.6])
_BEYOND: Final[FloatArray] = 2.0 * norm.sf(_TAILS)
_DENSITY: Final = float(norm.pdf(0.0))
_MISSED: Final = 0.01
_SHAPES: Final = (("uniform", 0.0572), ("Laplace", 0.0620))
"""distance from N(0, 1) of other laws of the same variance"""
_LEAST: Final = 1e-300
BITS: Final = (8, 11)
"""of bfloat16 and float16"""
_KNOWN: Final = ("in its mean", "along the gradient", "at large gradients", "at small gradients")
_Counts = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class AddedNoise:
    """Noise on one tensor: noised − clean, flat. moved: bound of what rounding added, entrywise.

    std: as stated; None where nothing is stated of this tensor.
    """

    step: str
    rank: int
    number: int
    tensor: str
    noise: FloatArray
    clean: FloatArray
    moved: FloatArray
    std: float | None


def added_noises(run: RecordedRun) -> Iterator[AddedNoise]:
    """The noise on every tensor that was recorded before and after it, in the order of the steps.

    What several ranks hold of one release comes once.
    """
    seen: set[tuple[int, str, str]] = set()
    for step in run.steps:
        before, after = step.gradients.clean, step.gradients.noised
        if before is None or after is None:
            continue
        release = (step.number, before.sha256, after.sha256)
        if release in seen:
            continue
        seen.add(release)
        clean, noised = before.tensors(), after.tensors()
        stds = noise_stds(run, step)
        for name in sorted(clean.keys() & noised.keys()):
            unit = stored_roundoff(step, noised[name])
            first, second = (exact(part[name]).reshape(-1) for part in (clean, noised))
            yield AddedNoise(
                run.name(step),
                step.rank,
                step.number,
                name,
                second - first,
                first,
                2.0 * unit * (np.abs(first) + np.abs(second)),
                stds.get(name),
            )


@final
@dataclass(slots=True, eq=False)
class CountedNoise:
    """What is counted of noise in units of its deviation, of one step or of several.

    squares: at least, at most. within: entries below the end of each cell, at least, at most.
    beyond: entries beyond each of `_TAILS`, likewise. leaks: of how many steps. sizes: least and
    largest ‖z‖² with the number of entries, of each step. known: Σ of squares along each of
    `_KNOWN`, at most, and how many they are. still: entries of c ≠ 0, those without noise, and how
    many of them are expected. Memory does not grow with the entries.
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
    known: FloatArray = field(default_factory=lambda: np.zeros((len(_KNOWN), 2)))
    still: FloatArray = field(default_factory=lambda: np.zeros(3))

    @classmethod
    def of(cls, z: FloatArray, e: FloatArray, clean: FloatArray) -> CountedNoise:
        """The noise of one step. e: what rounding moved; clean: all in units of the deviation."""
        size = np.abs(z)
        least, most = np.maximum(size - e, 0.0), size + e
        squares = np.array([least @ least, most @ most])
        found = cls(
            entries=len(z),
            square=float(z @ z),
            squares=squares,
            total=float(np.sum(z)),
            total_slack=float(np.sum(e)),
            sizes=[(float(squares[0]), float(squares[1]), len(z))],
        )
        length = float(np.linalg.norm(clean))
        if 0.0 < length < math.inf:
            found.leak = float(z @ clean) / length
            found.leak_slack = float(e @ np.abs(clean)) / length
            found.leaks = 1
        below = ndtr(z)
        for place, edge in enumerate((below + _DENSITY * e, below - _DENSITY * e)):
            found.within[place] = _cells(edge)
        for place, edge in enumerate((least, most)):
            found.beyond[place] = [np.count_nonzero(edge > t) for t in _TAILS]
        gradient, half = np.abs(clean), len(z) // 2
        smaller = float(np.sum(np.square(most[np.argpartition(gradient, half)[:half]])))
        found.known[:] = (
            ((abs(found.total) + found.total_slack) ** 2 / len(z), 1),
            ((abs(found.leak) + found.leak_slack) ** 2, found.leaks),
            (max(float(squares[1]) - smaller, 0.0), len(z) - half),
            (smaller, half),
        )
        stored = gradient[gradient > 0.0]
        size, e, after = (item[gradient > 0.0] for item in (size, e, np.abs(clean + z)))
        reach = e * stored / (stored + after)
        chances = np.minimum(1.0, 2.5 * reach + 2.0**-20)
        found.still[:] = len(stored), np.count_nonzero(size <= reach), np.sum(chances)
        return found

    def add(self, other: CountedNoise) -> None:
        """Count the noise of further steps as well."""
        for item in fields(self):
            total = getattr(self, item.name)
            total += getattr(other, item.name)
            setattr(self, item.name, total)

    def at_one_step(self) -> Iterator[ChanceTest]:
        """The tests of single steps."""
        if self.square == 0.0:
            what = "no noise was added at all"
            yield ChanceTest(-math.inf, what, numbers=(0.0, 1.0), kind="size")
            return
        yield from self._size()
        yield from self._mean_and_leak()
        if self.entries >= _SHAPE_FROM:
            yield self._shape()

    def tests(self) -> Iterator[ChanceTest]:
        """All of them; as many for every tensor."""
        yield from self._size()
        yield from self._mean_and_leak()
        yield self._shape()
        yield from self._tails()
        yield from regularity(self.sizes)
        yield from self._known_and_still()

    def _size(self) -> Iterator[ChanceTest]:
        least, most = map(float, self.squares)
        n, measured = self.entries, math.sqrt(self.square / self.entries)
        what = f"the noise has {measured:.6g} times the stated standard deviation"
        small, large = chi2.logcdf(most, n), chi2.logsf(least, n)
        numbers, more = (measured, 1.0), Verdict.INCONCLUSIVE
        yield ChanceTest(_either(small), what, numbers=numbers, kind="size")
        yield ChanceTest(_either(large), what, numbers=numbers, verdict=more, kind="size")

    def _mean_and_leak(self) -> Iterator[ChanceTest]:
        n = self.entries
        reach = math.sqrt(n * float(self.squares[1]))
        cosine = min(1.0, _less(self.total, self.total_slack) / reach) if reach > 0.0 else 0.0
        chance = beta.logcdf((1.0 - cosine) / 2.0, (n - 1) / 2.0, (n - 1) / 2.0) if n > 1 else 0.0
        text = f"the noise has the mean {self.total / n:.3g} standard deviations, not 0"
        yield ChanceTest(_either(chance), text, numbers=(self.total / n, 0.0), kind="mean")
        root = math.sqrt(max(self.leaks, 1))
        leak = _less(self.leak, self.leak_slack) / root
        text = (
            "the noise is correlated with the gradients that it hides: along them it has the mean "
            f"{self.leak / max(self.leaks, 1):.3g} standard deviations"
        )
        yield ChanceTest(_either(norm.logsf(leak)), text, numbers=(leak, 0.0), kind="leak")

    def _shape(self) -> ChanceTest:
        ends = np.arange(1, _CELLS + 1) / _CELLS
        least, most = (np.cumsum(counts) / self.entries for counts in self.within)
        distance = float(max(np.max(least - ends), np.max(ends - most), 0.0))
        chance = min(0.0, math.log(2.0) - 2.0 * self.entries * distance**2)
        text = f"the noise is not Gaussian: its distribution is {distance:.3g} away"
        return ChanceTest(chance, text, numbers=(distance, 0.0), kind="shape")

    def _tails(self) -> Iterator[ChanceTest]:
        for t, p, least, most in zip(_TAILS, _BEYOND, *self.beyond, strict=True):
            expected = self.entries * p
            few, many = binom.logcdf(most, self.entries, p), binom.logsf(least - 1, self.entries, p)
            for chance, seen in ((few, int(most)), (many, int(least))):
                text = (
                    f"{seen} of its entries lie beyond {t:g} standard deviations, where "
                    f"{expected:.3g} are expected of Gaussian noise"
                )
                numbers = (float(seen), expected)
                yield ChanceTest(_either(chance), text, numbers=numbers, kind="tails")

    def _known_and_still(self) -> Iterator[ChanceTest]:
        for (square, degrees), where in zip(self.known.tolist(), _KNOWN, strict=True):
            chance = _at_most(chi2.logcdf(square, degrees)) if degrees else 0.0
            measured = math.sqrt(square / max(degrees, 1.0))
            text = f"{where} the noise has {measured:.3g} times the stated standard deviation"
            yield ChanceTest(chance, text, numbers=(measured, 1.0), kind="known")
        entries, hits, expected = self.still.tolist()
        text = f"{hits:.0f} of {entries:.0f} entries of the gradient are released without noise"
        chance = _at_most(log_hits(hits, entries, expected))
        yield ChanceTest(chance, text, numbers=(hits, expected), kind="still")


def regularity(sizes: Sequence[tuple[float, float, int]]) -> Iterator[ChanceTest]:
    """Whether the sizes of independent noises vary too little, or too much."""
    least, most, entries = np.array(sizes).T
    lower, upper, above = chi2.cdf(least, entries), chi2.cdf(most, entries), chi2.sf(least, entries)
    widest = 2.0 * np.maximum(np.abs(lower - 0.5), np.abs(upper - 0.5))
    tail = np.where(upper < 0.5, 2.0 * upper, np.where(lower > 0.5, 2.0 * above, 1.0))
    text = (
        f"its size varies too little between {len(sizes)} places: noise that is scaled to its "
        "deviation is not Gaussian, and does not hide as much"
    )
    yield _fisher(widest, text)
    yield _fisher(tail, f"its size varies more between {len(sizes)} places than by chance")


def _fisher(uniform: FloatArray, text: str) -> ChanceTest:
    """Whether independent uniform numbers are too small altogether."""
    value = -2.0 * float(np.sum(np.log(np.maximum(uniform, _LEAST))))
    degrees = 2 * len(uniform)
    chance = float(chi2.logsf(value, degrees))
    return ChanceTest(chance, text, numbers=(value, float(degrees)), kind="regularity")


@run_check(_CHECK, keeps_passes=True)
def noise(run: RecordedRun) -> Iterator[Finding]:
    """A report for each place that fails at a single step, or a pass; and those of all steps."""
    pool, tests, tensors = Pool(), list[ChanceTest](), 0
    silent: dict[str, None] = {}
    for _, group in groupby(added_noises(run), key=lambda item: item.step):
        items = list(group)
        tensors += len(items)
        silent |= dict.fromkeys(item.tensor for item in items if item.std is None)
        tests += pool.take(items)
    if not tensors:
        yield (
            "no step records clean and noised gradients; use recorder.gradients(clean=…, "
            "noised=…) at detailed steps"
        )
        return
    for name in sorted(silent):
        yield f"the standard deviation for {name!r} is not stated"
    pooled, single = pool.reports(), _of_steps(tests, tensors)
    explains = any(report.verdict is Verdict.VIOLATION for report in pooled)
    yield from (*pooled, *single) if explains else (*single, *pooled)


def _at(where: str, entries: int, test: ChanceTest) -> ChanceTest:
    """A test of the noise on one tensor, or on all, at a step or in all steps, with its place."""
    chance = ""
    if test.log_chance > -math.inf:
        power = power_of_ten(max(test.log_chance, math.log(_LEAST)))
        chance = f" ({entries} entries), which has at most the probability {power} by chance"
    return replace(test, where=where, message=f"{where}: {test.message}{chance}")


def _of_steps(tests: list[ChanceTest], tensors: int) -> tuple[CheckReport, ...]:
    """A report of each place that fails at a single step, or one pass."""
    if not tests:
        return ()
    failed = [test for test in tests if test.is_too_rare(SHARE / len(tests))]
    failed.sort(key=lambda test: (test.verdict is Verdict.VIOLATION, -test.log_chance))
    worst = [*{test.where: test for test in failed}.values()]
    worst.sort(key=lambda test: test.verdict is not Verdict.VIOLATION)
    if worst:
        return shortened([test.failed(_CHECK) for test in worst])
    rarest = min(tests, key=lambda test: test.log_chance)
    message = (
        f"{len(tests)} tests of the noise on {tensors} tensors agree with the stated standard "
        f"deviations; the rarest has the probability {math.exp(rarest.log_chance):.2g}"
    )
    return (_CHECK.passed(message, rarest.where),)


@final
@dataclass(slots=True, eq=False)
class Pool:
    """The noise of a run, tensor by tensor."""

    whole: CountedNoise = field(default_factory=CountedNoise)
    tensors: dict[str, CountedNoise] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    coarse: _Counts = field(default_factory=lambda: np.zeros((4, 2), dtype=np.int64))
    """for the noise and for z, and each of `BITS`: entries that count, and that lie on the grid"""

    def take(self, items: Sequence[AddedNoise]) -> list[ChanceTest]:
        """Count the noises of one rank at one step; the tests of this step.

        One rank counts for all, which release one thing.
        """
        tests: list[ChanceTest] = []
        scaled: dict[str, list[FloatArray]] = {}
        for item in items:
            wrong = None
            if item.std is None:
                continue
            if not np.all(np.isfinite(item.noise)):
                wrong = Verdict.VIOLATION, "the gradients hold NaN or infinity", math.nan, 1.0
            elif item.std > 0.0:
                parts = (item.noise, item.moved, item.clean)
                scaled[item.tensor] = [part / item.std for part in parts]
            elif np.any(np.abs(item.noise) > item.moved):
                wrong = Verdict.INCONCLUSIVE, "no noise is stated, and some was added", 1.0, 0.0
            if wrong is not None:
                verdict, what, *numbers = wrong
                test = ChanceTest(-math.inf, what, "", (numbers[0], numbers[1]), verdict, "size")
                tests.append(_at(f"{item.step}, {item.tensor}", len(item.noise), test))
        if not scaled:
            return tests
        step, number = items[0].step, items[0].number
        found = {name: CountedNoise.of(*parts) for name, parts in scaled.items()}
        together = CountedNoise.of(*map(np.concatenate, zip(*scaled.values(), strict=True)))
        for name, counted in {**found, **({_ALL: together} if len(found) > 1 else {})}.items():
            where = f"{step}, {name}"
            tests += [_at(where, counted.entries, test) for test in counted.at_one_step()]
        if number not in self.steps:
            self.steps.add(number)
            self.coarse += sum(_coarse(item) for item in items if item.tensor in scaled)
            self.whole.add(together)
            for name, counted in found.items():
                self.tensors.setdefault(name, CountedNoise()).add(counted)
        return tests

    def reports(self) -> tuple[CheckReport, ...]:
        """A report on each tensor that fails and on the run, the worst first; or one pass."""
        if not self.steps:
            return ()
        every = [size for item in self.tensors.values() for size in item.sizes]
        found = {_ALL: [*self.whole.tests(), *regularity(every), *self._coarse()]}
        if len(self.tensors) > 1:
            found |= {name: list(item.tests()) for name, item in self.tensors.items()}
        tests = sum(map(len, found.values()))
        limit = math.log(SHARE / tests)
        worst = {name: _worst(some, limit) for name, some in found.items()}
        failed = [
            self._at(name, test).failed(_CHECK)
            for name, test in sorted(worst.items(), key=lambda item: item[1].log_chance)
            if test.log_chance < limit
        ]
        failed.sort(key=lambda report: report.verdict is not Verdict.VIOLATION)
        return shortened(failed) or (self._passed(worst, tests, limit),)

    def _coarse(self) -> Iterator[ChanceTest]:
        for (counted, hits), bits in zip(self.coarse.tolist(), 2 * BITS, strict=True):
            text = (
                f"{hits} of {counted} entries of the noise have at most {bits} bits, and the clean "
                "gradient has more: its last bits are released without noise"
            )
            chance = _at_most(binom.logsf(hits - 1, counted, 0.25))
            yield ChanceTest(chance, text, numbers=(hits, counted / 4.0), kind="coarse")

    def _at(self, name: str, test: ChanceTest) -> ChanceTest:
        noise = self.whole if name == _ALL else self.tensors[name]
        return _at(f"all {len(noise.sizes)} steps, {name}", noise.entries, test)

    def _passed(self, worst: dict[str, ChanceTest], tests: int, limit: float) -> CheckReport:
        name, rarest = min(worst.items(), key=lambda item: item[1].log_chance)
        whole = self.whole
        seen = [f"noise {_too_small(whole.entries, limit)} too small"]
        if len(self.tensors) > 1:
            least = min(item.entries for item in self.tensors.values())
            seen[0] += f" ({_too_small(least, limit)} on one tensor of {least} entries)"
        return _CHECK.passed(
            f"{tests} tests of all recorded noise together (steps: {len(self.steps)}, tensors: "
            f"{len(self.tensors)}, entries: {whole.entries}) agree with Gaussian noise of the "
            f"stated standard deviations; the rarest ({rarest.kind}, {name}) has the probability "
            f"{math.exp(rarest.log_chance):.2g}. {_powers(whole, seen, limit)}",
            f"all {len(self.steps)} steps",
            (math.sqrt(whole.square / whole.entries), 1.0),
        )


def _worst(tests: Sequence[ChanceTest], limit: float) -> ChanceTest:
    """The rarest, a size that fails before all others, since it explains them, but for a mean."""
    failed = [test for test in tests if test.log_chance < limit]
    sizes = [test for test in failed if test.kind == "size"]
    if any(test.verdict is Verdict.INCONCLUSIVE for test in sizes):
        sizes = [test for test in failed if test.kind == "mean"] or sizes
    return min(sizes or tests, key=lambda test: test.log_chance)


def _powers(noise: CountedNoise, seen: list[str], limit: float) -> str:
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


def _coarse(item: AddedNoise) -> _Counts:
    """What `Pool.coarse` counts, of one tensor at one step."""
    std = item.std or 0.0
    size = np.abs(item.noise) / std
    found = []
    for values, moved in ((item.noise, item.moved), (item.noise / std, item.moved / std)):
        for bits in BITS:
            width = _width(values, bits)
            counts = (size >= 2.0**-6) & (size <= 4.0) & (32.0 * moved <= width)
            counts &= off_grid(item.clean, bits) > 0.0
            hits = counts & (off_grid(values, bits) <= moved)
            found.append([np.count_nonzero(counts), np.count_nonzero(hits)])
    return np.array(found)


def _width(values: FloatArray, bits: int) -> FloatArray:
    """The distance of neighbours of a type of so many bits, at each value."""
    return np.asarray(np.ldexp(1.0, np.frexp(values)[1] - bits), dtype=np.float64)


def off_grid(values: FloatArray, bits: int) -> FloatArray:
    """How far each value is from the next one of the type."""
    width = _width(values, bits)
    return np.asarray(np.abs(values - np.rint(values / width) * width), dtype=np.float64)


def _cells(edges: FloatArray) -> _Counts:
    places = np.clip(edges * _CELLS, 0.0, _CELLS - 1.0).astype(np.int64)
    return np.bincount(places, minlength=_CELLS)


def _either(log_chance: float) -> float:
    """Of two tails."""
    return _at_most(math.log(2.0) + log_chance)


def _at_most(log_chance: float | FloatArray) -> float:
    """A probability that underflows is at most the least that is stated."""
    found = min(0.0, float(log_chance))
    return found if math.isfinite(found) else math.log(_LEAST)


def _less(value: float, slack: float) -> float:
    return max(abs(value) - slack, 0.0)
