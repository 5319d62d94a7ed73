"""Noise (LC314): whether what was added is Gaussian noise of the stated standard deviation.

Statement: z = (noised − clean)/s, s the stated deviation of a tensor at a step, has independent
entries N(0, 1), independent of the clean gradient. If several ranks hold one release, its noise
counts once. Compared, over the n entries of each tensor at each step, of all tensors of a step, of
each tensor in all steps, and of the whole run:

    size        Σz² is χ²_n, exactly; two-sided
    mean        (1 + Σz/(√n‖z‖))/2 is Beta((n − 1)/2, (n − 1)/2), exactly, for any size
    leak        Σ_t ⟨z_t, c_t⟩/‖c_t‖ over T steps with clean gradients c_t is N(0, T), exactly:
                c_t may depend on earlier noise, and each term is N(0, 1) given the past; noise
                that depends on the gradient hides less of it. The same along c_{t−1} and c_1 + … +
                c_{t−1}, which what is noised may still hold, as in a momentum, and along z_1 + … +
                z_{t−1}: noises that cancel each other leave the sum of all steps bare
    shape       Σf(z), f the Hermite polynomials of degree 3 and 4, whose means are skewness and
                excess of kurtosis, and the indicators of |z| > t, for each t of `_TAILS`; made
                constant on some 2^12 cells, so that the moment generating function of f is a finite
                sum, to which Chernoff's bound applies; two-sided; at single steps for n ≥ 1000
    regularity  whether ‖z_t‖² of each tensor and step, and of all tensors of a step together,
                varies as χ² of its entries does; `axes` does the same for rows and columns, and
                tests whether these are independent

    known       directions that c_t and earlier noise fix before z_t is drawn have their share of
                it, exactly: Σ_t (Σz_t)²/n and Σ_t ⟨z_t, c_t⟩²/‖c_t‖² are χ²_T, ‖z_t‖² over
                the half of the entries where |c_t| is smaller, or over the half, an eighth or a
                32nd where it is largest, is χ² of their number. Values that are too small show
                noise that is centred, projected off the gradient, or placed where it is small
    same        entries of the noise that are 0, have few bits, or have the magnitude that they had
                at the step before: ||z| − |z'|| ≤ w, w no less than the errors of both, of which
                that of z is at most 2u(2|c|/s + 8), u the unit of the type, as far as |z| ≤ 8. Then
                they are within 2w before rounding, which has at most the probability 0.8·4w; 2^-20
                is added for generators of few bits. Few bits: z, or z·s, lies within its error on
                the grid of numbers of 11 bits, as in float16. At most 5·2^10 + 2 of these have
                magnitudes z from ¼ to 8, so that for both grids 2^15·w + 2^-8 bounds the
                probability. Entries whose gradient has as few bits do not count here, nor where
                such noise is compared

    alone       a tensor of which only c_t + noise is recorded: Σ‖c_t/s + z_t‖² over the steps is no
                less likely to be small than χ² of its entries, since z_t is most likely in a ball
                whose centre is 0 (Anderson, 1955). Values that are too small show too little noise;
                others show nothing

Regularity and the tests after it use several steps. Rounding to the stored type may have moved z by
e, entry by entry; every test uses the value in this range that favours the run. For the size these
are Σ max(|z| − e, 0)² and Σ (|z| + e)²; for the shape, f is the sum of an increasing function,
evaluated at z − e, and of a decreasing one, evaluated at z + e, or the other way round.

Threshold: the tests of single steps share one `SHARE`, and those of all steps another: a test
rejects below its share divided by the number of tests, so that a correct run is rejected with at
most that probability (union bound). A tensor whose difference is 0 everywhere, while s > 0, has no
noise; no chance is involved. The power of the tests of a whole run is stated for a chance of 1 in
100 to miss: σ(1 − x) is seen if the quantile 0.99 of (1 − x)²·χ²_n lies where the test rejects; a
shape if its mean of f, less 2.33 deviations, does; a clamp at t if it is too rare that no entry
exceeds t.

Too little noise, a mean, a leak or another shape are violations: the account does not hold. Too
much noise is inconclusive, and so is then what its shape shows, at that step and in the whole run:
if it is noise, it costs accuracy and no privacy, but the record does not distinguish it from a
clean gradient that was not the recorded one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr
from scipy.stats import beta, chi2, norm

from lipcert.audit.checks.axes import Axes, regularity, varied
from lipcert.audit.checks.chance import SHARE, ChanceTest, log_chernoff, log_hits, power_of_ten
from lipcert.audit.checks.run_check import (
    FEW,
    Finding,
    exact,
    noise_stds,
    norm_of,
    run_check,
    shortened,
    stored_roundoff,
)
from lipcert.audit.recorded import RecordedRun
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
_TAILS: Final = (1.6, 2.1, 2.6, 3.1, 3.6, 4.1, 4.6)
_CELLS: Final = 1 << 12
_EDGES: Final[FloatArray] = np.unique([
    *norm.ppf(np.arange(1, _CELLS) / _CELLS), *_TAILS, *(-t for t in _TAILS)
])  # fmt: skip
_BELOW: Final = np.concatenate([[0.0], ndtr(_EDGES), [1.0]])
_SHARES: Final[FloatArray] = np.diff(_BELOW)
_MIDDLES: Final[FloatArray] = norm.ppf(_BELOW[:-1] + _SHARES / 2.0)
_FUNCTIONS: Final[Mapping[str, FloatArray]] = {
    name: (f - _SHARES @ f) / math.sqrt(_SHARES @ (f - _SHARES @ f) ** 2)
    for name, f in {
        "skewness": _MIDDLES**3 - 3.0 * _MIDDLES,
        "kurtosis": _MIDDLES**4 - 6.0 * _MIDDLES**2,
        **{f"share beyond {t}": np.where(np.abs(_MIDDLES) > t, 1.0, 0.0) for t in _TAILS},
    }.items()
}
"""Values at the middle of each cell, of mean 0 and deviation 1."""
_MISSED: Final = 0.01
_USUAL: Final = 4.0
"""Deviations of a mean below which it is not examined further."""
_SHAPES: Final = (
    ("uniform noise", -0.249, 0.66),
    ("Laplace noise", 0.498, 3.93),
    ("sums of 12 uniform numbers", -0.0203, 0.88),
)
"""Mean and deviation of the function for kurtosis under other distributions of the same
variance."""
_LEAST: Final = 1e-300
_BITS: Final = 11
_LEAKS: Final = (
    "the gradients that it hides",
    "those of the steps before",
    "the sums of those before",
    "the sums of the noise before",
)
_LARGE: Final = np.array([2, 8, 32])
_KNOWN: Final = (
    "in its mean",
    "along the gradient",
    "at small gradients",
    *(f"at large gradients (one of {share})" for share in _LARGE),
)
_SAME: Final = ("without noise", "with noise of few bits", "with the noise of the step before")
_LEAST_COARSE: Final = 0.25
LARGEST: Final = 8.0
_LOST: Final = 0.25
"""Share of its deviation by which rounding may move noise in most entries."""
_EXPLAINED: Final = frozenset({"shape", "regularity", "covariance"})
"""Kinds of tests that too much noise may fail, of its tensor or of all of them."""
_Counts = npt.NDArray[np.int64]
_Places = npt.NDArray[np.bool_]
_Noise = tuple[FloatArray, FloatArray, FloatArray, _Places, _Places]
"""z, e and the clean gradient, in units of the deviation; which z have few bits, and which have a
gradient of more bits."""
_Past = tuple[FloatArray, ...]
"""The same of the step before, and the sums of clean gradients and of z of all steps before."""


@dataclass(frozen=True, slots=True, eq=False)
class AddedNoise:
    """Noise on one tensor: noised − clean, flat.

    moved: bound of what rounding added, entrywise. std: as stated; None if nothing is stated for
    this tensor.
    """

    step: str
    rank: int
    number: int
    tensor: str
    noise: FloatArray
    clean: FloatArray
    moved: FloatArray
    std: float | None
    shape: tuple[int, ...] = ()

    @property
    def is_coarse(self) -> _Places:
        """A mask of the entries on the grid of float16, as they are or in units of the
        deviation."""
        std = self.std or 1.0
        parts = (self.noise, self.moved), (self.noise / std, self.moved / std)
        found, also = (_off_grid(values) <= slack for values, slack in parts)
        return np.asarray(found | also, dtype=np.bool_)

    @property
    def is_plain(self) -> _Places:
        """A mask of the entries whose gradient is on that grid.

        Coarse noise has equal entries by chance, and hides such a gradient completely.
        """
        return np.asarray(_off_grid(self.clean) == 0.0, dtype=np.bool_)


def _off_grid(values: FloatArray) -> FloatArray:
    """Return how far each value is from the nearest one of this many bits."""
    width = np.ldexp(1.0, np.frexp(values)[1] - _BITS)
    return np.asarray(np.abs(values - np.rint(values / width) * width), dtype=np.float64)


def reach_of(z: FloatArray, e: FloatArray, clean: FloatArray) -> FloatArray:
    """Return what rounding may move entries up to `LARGEST`, as it follows from the gradient."""
    length = np.abs(clean) + np.abs(clean + z)
    unit = float(np.max(e / np.maximum(length, _LEAST), initial=0.0))
    found: FloatArray = unit * (2.0 * np.abs(clean) + LARGEST)
    return found


def added_noises(run: RecordedRun) -> Iterator[AddedNoise]:
    """Yield the noise on every tensor that was recorded before and after it, in the order of the
    steps.

    If several ranks hold one release, its noise is yielded once. A tensor that is left out before
    the noise counts as 0 there.
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
        if run.replays(step):  # where a replay finds out whether that is right
            clean |= {name: np.zeros_like(noised[name]) for name in noised.keys() - clean.keys()}
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
                clean[name].shape,
            )


@dataclass(slots=True, eq=False)
class CountedNoise:
    """Statistics of noise in units of its deviation, of one step or of several.

    squares: at least, at most. within: number of entries in each cell, with each as large as it may
    be, or as small. leak: along each of `_LEAKS`, what rounding moved of it, number of steps.
    varied: of the sizes of the steps. known: Σ of squares along each of `_KNOWN`, at most, and
    their degrees of freedom. same: number of entries, how many are 0, or as they were at the step
    before, and how many of these are expected. Memory does not grow with the entries.
    """

    entries: int = 0
    square: float = 0.0
    squares: FloatArray = field(default_factory=lambda: np.zeros(2))
    total: float = 0.0
    total_slack: float = 0.0
    leak: FloatArray = field(default_factory=lambda: np.zeros((len(_LEAKS), 3)))
    within: _Counts = field(default_factory=lambda: np.zeros((2, len(_SHARES)), dtype=np.int64))
    varied: FloatArray = field(default_factory=lambda: np.zeros(3))
    known: FloatArray = field(default_factory=lambda: np.zeros((len(_KNOWN), 2)))
    same: FloatArray = field(default_factory=lambda: np.zeros((3, 3)))

    @classmethod
    def of(cls, noise: _Noise, before: _Past = ()) -> CountedNoise:
        """Return the statistics of one step; before: of the steps before, if known."""
        z, e, clean, few, counts = noise
        size = np.abs(z)
        least, most = np.maximum(size - e, 0.0), size + e
        squares = np.array([least @ least, most @ most])
        found = cls(
            entries=len(z),
            square=float(z @ z),
            squares=squares,
            total=float(np.sum(z)),
            total_slack=float(np.sum(e)),
            varied=varied(squares[:1], squares[1:], len(z)),
        )
        before = before if before and len(before[0]) == len(z) else ()
        for place, along in enumerate((clean, *before[2:])):
            length = float(np.linalg.norm(along))
            if 0.0 < length < math.inf:
                found.leak[place] = z @ along / length, e @ np.abs(along) / length, 1
        leak, leak_slack, leaks = found.leak[0].tolist()
        for place, edge in enumerate((z + e, z - e)):
            cells = np.searchsorted(_EDGES, edge)
            found.within[place] = np.bincount(cells, minlength=len(_SHARES))
        gradient, large = np.abs(clean), -(-len(z) // _LARGE)
        order = np.argpartition(gradient, len(z) - large)[::-1]
        sums = np.cumsum(np.square(most[order]))[large - 1]
        found.known[:] = (
            ((abs(found.total) + found.total_slack) ** 2 / len(z), 1),
            ((abs(leak) + leak_slack) ** 2, leaks),
            (max(float(squares[1] - sums[0]), 0.0), len(z) - large[0]),
            *zip(sums, large, strict=True),
        )
        reach = reach_of(z, e, clean)
        coarsely = few & (size >= _LEAST_COARSE) & (size <= LARGEST)
        compared = [
            (size <= reach, 4.0 * reach + 2.0**-20, counts | True),
            (coarsely, 2.0**15 * reach + 2.0**-8, counts),
        ]
        if before:
            width = reach + before[1]
            is_same = np.abs(size - np.abs(before[0])) <= width
            compared.append((is_same & (counts | ~few), 4.0 * width + 2.0**-20, counts | True))
        for place, (hits, chances, some) in enumerate(compared):
            expected = float(np.minimum(1.0, chances) @ some)
            found.same[place] = np.sum(some), np.sum(hits & some), expected
        return found

    def add(self, other: CountedNoise) -> None:
        """Add the statistics of further steps."""
        for item in fields(self):
            total = getattr(self, item.name)
            total += getattr(other, item.name)
            setattr(self, item.name, total)

    def at_one_step(self, *, of_one: bool) -> Iterator[ChanceTest]:
        """Yield the tests of single steps.

        of_one: whether this is the noise on one tensor.
        """
        yield from self._size()
        yield from self._mean_and_leak()
        if of_one and self.entries >= _SHAPE_FROM and self.square > 0.0:
            yield from self._shape()

    def tests(self) -> Iterator[ChanceTest]:
        """Yield all tests; as many for every tensor."""
        yield from self._size()
        yield from self._mean_and_leak()
        yield from self._shape()
        yield from regularity(self.varied)
        yield from self._known_and_same()

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
        text = f"the mean of the noise is {self.total / n:.3g} standard deviations, not 0"
        yield ChanceTest(_either(chance), text, numbers=(self.total / n, 0.0), kind="mean")
        for (total, slack, steps), what in zip(self.leak.tolist(), _LEAKS, strict=True):
            count = max(steps, 1.0)
            leak = _less(total, slack) / math.sqrt(count)
            text = f"the noise is correlated with {what}: its mean along them is "
            text += f"{total / count:.3g} standard deviations"
            yield ChanceTest(_either(norm.logsf(leak)), text, numbers=(leak, 0.0), kind="leak")

    def _shape(self) -> Iterator[ChanceTest]:
        large, small = self.within
        for what, f in _FUNCTIONS.items():
            rising = np.cumsum(np.maximum(np.diff(f, prepend=f[0]), 0.0))
            for up, down, upper in ((small, large, True), (large, small, False)):
                mean = float(rising @ up + (f - rising) @ down) / self.entries
                text = f"the noise is not Gaussian: its {what} is off by {mean:.3g} deviations"
                chance = _log_mean(f, self.entries, mean, upper=upper)
                yield ChanceTest(chance, text, numbers=(mean, 0.0), kind="shape")

    def _known_and_same(self) -> Iterator[ChanceTest]:
        for (square, degrees), where in zip(self.known.tolist(), _KNOWN, strict=True):
            chance = _at_most(chi2.logcdf(square, degrees)) if degrees else 0.0
            measured = math.sqrt(square / max(degrees, 1.0))
            text = f"{where} the noise has {measured:.3g} times the stated standard deviation"
            yield ChanceTest(chance, text, numbers=(measured, 1.0), kind="known")
        for (entries, hits, expected), how in zip(self.same.tolist(), _SAME, strict=True):
            text = f"{hits:.0f} of {entries:.0f} entries of the gradient are released {how}"
            chance = _at_most(log_hits(hits, max(entries, 1.0), expected))
            yield ChanceTest(chance, text, numbers=(hits, expected), kind="same")


def _certain(what: str, measured: float, expected: float) -> ChanceTest:
    """Make a test whose result has no probability by chance."""
    return ChanceTest(-math.inf, what, numbers=(measured, expected), kind="size")


def _log_mean(f: FloatArray, entries: int, mean: float, *, upper: bool) -> float:
    """Return ln of a bound of the probability that the mean of f is so large, or so small."""
    root = math.sqrt(entries)
    if abs(mean) * root < _USUAL:
        return 0.0

    def log_moment(slope: float) -> float:
        exponents = slope / root * f
        most = float(exponents.max())
        return entries * (most + math.log(_SHARES @ np.exp(exponents - most)))

    return log_chernoff(log_moment, root * mean, upper=upper)


@run_check(_CHECK, keeps_passes=True)
def noise(run: RecordedRun) -> Iterator[Finding]:
    """Report each place that fails at a single step, or a pass; and the results of all steps."""
    pool, tests, tensors = Pool(), list[ChanceTest](), 0
    silent: dict[str, None] = {}
    for _, group in groupby(added_noises(run), key=lambda item: item.step):
        items = list(group)
        tensors += len(items)
        silent |= dict.fromkeys(item.tensor for item in items if item.std is None)
        tests += pool.take(items)
    alone = list(_alone(run))
    tests += alone
    if alone or not tensors:
        of = ", ".join(test.where for test in alone[:FEW]) or "any tensor"
        text = f"the clean and the noised gradient of {of} are not recorded together"
        yield run.unshown(_CHECK, f"{text}; use recorder.gradients(clean=…, noised=…)")
    if not tensors:
        tests = [test for test in tests if test.is_too_rare(SHARE / len(tests))]
    for name in sorted(silent):
        text = f"the standard deviation for {name!r} is not stated"
        found = _CHECK.failed(f"{text} at every step", name, verdict=Verdict.INCONCLUSIVE)
        yield found if name in pool.tensors else run.unshown(_CHECK, text)
    pooled, single = pool.reports(), _of_steps(tests, tensors)
    explains = any(report.verdict is Verdict.VIOLATION for report in pooled)
    yield from (*pooled, *single) if explains else (*single, *pooled)


def _alone(run: RecordedRun) -> Iterator[ChanceTest]:
    """Test the length of each tensor that is recorded after the noise, and never before it."""
    found: dict[str, FloatArray] = {}
    for step in run.steps:
        clean, noised, _ = step.gradients.tensors()
        stds = {} if step.rank or (clean and run.replays(step)) else noise_stds(run, step)
        for name in noised.keys() - clean.keys():
            if (std := stds.get(name, 0.0)) > 0.0:
                longest = norm_of(exact(noised[name])) * (1.0 + stored_roundoff(step, noised[name]))
                part = np.array([(longest / std) ** 2, noised[name].size])
                found[name] = found.get(name, np.zeros(2)) + part
    for name, (square, entries) in sorted(found.items()):
        times = math.sqrt(square / entries)
        text = f"what is released has only {times:.3g} times the length of the stated noise"
        test = ChanceTest(_at_most(chi2.logcdf(square, entries)), text, numbers=(times, 1.0))
        yield _at(name, int(entries), test)


def _at(where: str, entries: int, test: ChanceTest) -> ChanceTest:
    """Add to a test of the noise on one tensor, or on all, its place: one step or all steps."""
    chance = ""
    if test.log_chance > -math.inf:
        power = power_of_ten(max(test.log_chance, math.log(_LEAST)))
        chance = f" ({entries} entries), which has at most the probability {power} by chance"
    return replace(test, where=where, message=f"{where}: {test.message}{chance}")


def _of_steps(tests: list[ChanceTest], tensors: int) -> tuple[CheckReport, ...]:
    """Report each place that fails at a single step, or one pass."""
    if not tests:
        return ()
    failed = [test for test in tests if test.is_too_rare(SHARE / len(tests))]
    much = {t.where for t in failed if t.kind == "size" and t.verdict is Verdict.INCONCLUSIVE}
    failed = [test for test in failed if test.kind not in _EXPLAINED or test.where not in much]
    failed.sort(key=lambda test: (test.verdict is not Verdict.VIOLATION, test.log_chance))
    if failed:
        where = dict.fromkeys(test.where for test in failed)
        worst = (next(test for test in failed if test.where == place) for place in where)
        return shortened([test.failed(_CHECK) for test in worst])
    rarest = min(tests, key=lambda test: test.log_chance)
    message = (
        f"{len(tests)} tests of the noise on {tensors} tensors agree with the stated standard "
        f"deviations; the rarest has the probability {math.exp(rarest.log_chance):.2g}"
    )
    return (_CHECK.passed(message, rarest.where),)


@dataclass(slots=True, eq=False)
class Pool:
    """The noise of a run, tensor by tensor."""

    whole: CountedNoise = field(default_factory=CountedNoise)
    tensors: dict[str, CountedNoise] = field(default_factory=dict)
    axes: Axes = field(default_factory=Axes)
    past: dict[str, _Past] = field(default_factory=dict)
    """Of the noise on each tensor."""
    steps: set[int] = field(default_factory=set)

    def take(self, items: Sequence[AddedNoise]) -> list[ChanceTest]:
        """Add the noises of one rank at one step, and return the tests of this step.

        One rank counts for all, since they make one release.
        """
        tests: list[ChanceTest] = []
        scaled: dict[str, _Noise] = {}
        for item in items:
            if item.std is None:
                continue
            wrong: ChanceTest | None = None
            if not np.all(np.isfinite(item.noise)):
                wrong = _certain("the gradients hold NaN or infinity", math.nan, 1.0)
            elif item.std > 0.0 and np.median(item.moved) > _LOST * item.std:
                what = "the noise is lost in the rounding of the gradient to which it was added"
                wrong = replace(_certain(what, 0.0, 1.0), verdict=Verdict.INCONCLUSIVE)
            elif item.std > 0.0:
                z, e, clean = (part / item.std for part in (item.noise, item.moved, item.clean))
                scaled[item.tensor] = z, e, clean, item.is_coarse, ~item.is_plain
            elif np.any(np.abs(item.noise) > item.moved):
                what = "no noise is stated, and some was added"
                wrong = replace(_certain(what, 1.0, 0.0), verdict=Verdict.INCONCLUSIVE)
            if wrong is not None:
                tests.append(_at(f"{item.step}, {item.tensor}", len(item.noise), wrong))
        if not scaled:
            return tests
        step, number = items[0].step, items[0].number
        past = self.past if number > max(self.steps, default=-1) else {}
        shapes = {item.tensor: item.shape or item.noise.shape for item in items}
        found = {name: CountedNoise.of(own, past.get(name, ())) for name, own in scaled.items()}
        z, e, clean, few, counts = map(np.concatenate, zip(*scaled.values(), strict=True))
        before = tuple(map(np.concatenate, zip(*(past.get(n, ()) for n in scaled), strict=False)))
        together = CountedNoise.of((z, e, clean, few, counts), before)
        for name, counted in {**found, **({_ALL: together} if len(found) > 1 else {})}.items():
            single = counted.at_one_step(of_one=name != _ALL)
            tests += [_at(f"{step}, {name}", counted.entries, test) for test in single]
        if number not in self.steps:
            self.steps.add(number)
            self.whole.add(together)
            for name, (noise, moved, own, *_) in scaled.items():
                known = past.get(name, ())
                sums = known[3:] if known and len(known[0]) == len(noise) else (0.0, 0.0)
                self.past[name] = noise, moved, own, sums[0] + own, sums[1] + noise
            self.axes.take(
                (z.reshape(shapes[name]), e.reshape(shapes[name]))
                for name, (z, e, *_) in scaled.items()
            )
            for name, counted in found.items():
                self.tensors.setdefault(name, CountedNoise()).add(counted)
        return tests

    def reports(self) -> tuple[CheckReport, ...]:
        """Report each tensor that fails, and the run, the worst first; or one pass."""
        if not self.steps:
            return ()
        every = np.sum([item.varied for item in self.tensors.values()], axis=0)
        whole = [*self.whole.tests(), *self.axes.tests(), *regularity(every)]
        found = {name: list(item.tests()) for name, item in self.tensors.items()}
        found = {_ALL: whole, **(found if len(found) > 1 else {})}
        tests = sum(map(len, found.values()))
        limit = math.log(SHARE / tests)
        worst = {name: _worst(some, limit) for name, some in found.items()}
        if any(
            test.verdict is Verdict.INCONCLUSIVE and test.log_chance < limit
            for test in worst.values()
        ):
            worst[_ALL] = _worst([t for t in whole if t.kind not in _EXPLAINED], limit)
        failed = [
            self._at(name, test).failed(_CHECK)
            for name, test in sorted(worst.items(), key=lambda item: item[1].log_chance)
            if test.log_chance < limit
        ]
        failed.sort(key=lambda report: report.verdict is not Verdict.VIOLATION)
        return shortened(failed) or (self._passed(worst, tests, limit),)

    def _at(self, name: str, test: ChanceTest) -> ChanceTest:
        noise = self.whole if name == _ALL else self.tensors[name]
        steps = round(noise.varied[2] / 2.0)
        return _at(f"all {steps} steps, {name}", noise.entries, test)

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
    """Return the rarest test; a size that fails comes first, since it explains all others except a
    mean."""
    failed = [test for test in tests if test.log_chance < limit]
    sizes = [test for test in failed if test.kind == "size"]
    if any(test.verdict is Verdict.INCONCLUSIVE for test in sizes):
        sizes = [test for test in failed if test.kind == "mean"] or sizes
    return min(sizes or tests, key=lambda test: test.log_chance)


def _powers(noise: CountedNoise, seen: list[str], limit: float) -> str:
    """Say which faults the tests of the run would have seen, and which not."""
    unseen: list[str] = []
    n = noise.entries
    for name, mean, deviation in _SHAPES:
        least = max(0.0, abs(mean) + float(norm.ppf(_MISSED)) * deviation / math.sqrt(n))
        kurtosis = math.copysign(least, mean)
        chance = _log_mean(_FUNCTIONS["kurtosis"], n, kurtosis, upper=mean > 0.0)
        (seen if chance < limit else unseen).append(f"{name} of the same variance")
    shares = zip(_TAILS, 2.0 * np.asarray(norm.sf(_TAILS)), strict=True)
    clamps = [t for t, p in shares if n * math.log1p(-p) < limit]
    if clamps:
        seen.append(f"noise clamped at {max(clamps):.3g} standard deviations")
    else:
        unseen.append("clamped noise")
    size = np.full(round(noise.varied[2] / 2.0), n / noise.varied[2] * 2.0)
    scaled, _ = regularity(varied(size, size, size))
    (seen if scaled.log_chance < limit else unseen).append("noise scaled to its deviation")
    text = f"Would have been seen: {', '.join(seen)}"
    return f"{text}; not: {', '.join(unseen)}" if unseen else text


def _too_small(entries: int, limit: float) -> str:
    """Return by how much noise has to be too small for its size to be noticed."""
    rejected = float(chi2.ppf(math.exp(limit) / 2.0, entries))
    share = 1.0 - math.sqrt(rejected / float(chi2.ppf(1.0 - _MISSED, entries)))
    return f"{100.0 * share:.2g} %"


def _either(log_chance: float) -> float:
    """Return the log-probability of two tails."""
    return _at_most(math.log(2.0) + log_chance)


def _at_most(log_chance: float | FloatArray) -> float:
    """Replace a probability that underflows by the smallest one that is stated."""
    found = min(0.0, float(log_chance))
    return found if math.isfinite(found) else math.log(_LEAST)


def _less(value: float, slack: float) -> float:
    return max(abs(value) - slack, 0.0)
