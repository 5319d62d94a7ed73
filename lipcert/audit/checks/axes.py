"""Axes of noise (LC314): whether noise is independent, and of one size, along axes of its tensors.

Statement: z, the noise in units of its deviation, has independent entries N(0, 1). Compared, along
the first and the second axis of every tensor, with what each test finds:

    slices      ‖·‖² of the entries at one place of an axis (a row, a column, a channel) is χ² with
                as many degrees of freedom, independent of other places, so that w = 2|F(q) − ½| is
                uniform and Σ −2 ln w over J places is χ²_2J, exactly (Fisher). Finds noise that is
                scaled to its deviation, whose w are too small, and noise whose size changes from
                place to place, whose w are too large (Σ −2 ln(1 − w)). First axes of all tensors
                count together, and so do second ones: each entry counts once
    places      ‖·‖² of the entries at one place, over all steps and all tensors of one shape, is
                χ², too: the least likely of J has J times its probability. Finds a row, a channel
                or a class with less noise
    sums        (Σz)² over the entries at such a place, divided by their number, add up over J
                places to χ²_J; two-sided. Finds noise that a row shares, and noise that is centred
    covariance  A has d rows; its columns are all tensors with an axis of size d, unfolded along it
                (a second such axis of one tensor is in another A). Over all steps, with n rows in
                all, S = ΣAᵀA is Wishart W_p(n, 1). Compared: the ratio of likelihoods of a
                covariance 1 and of the observed one, Λ = (e/n)^(pn/2) |S|^(n/2) e^(−tr S/2)
                (Anderson, An Introduction to Multivariate Statistical Analysis, 10.8). Finds noise
                that rows or columns share, noise of low rank or in a subspace, and noise of one
                tensor that follows from that of others

Threshold: EΛ^(−s) = (2e/n)^(−pns/2) (1 − s)^(−pn(1−s)/2) Γ_p(n(1 − s)/2)/Γ_p(n/2) follows from the
constant of the Wishart density, for 0 ≤ s < 1 − (p − 1)/n; Markov's inequality does the rest. More
than 256 columns, or n/4, are reduced to that number by adding up disjoint sets of columns and
dividing by the root of their number: independent entries N(0, 1) again. Rounding may have moved A
by E; no singular value of A is off by more than ‖E‖, which does not grow if columns are added up,
and the value of each that favours the run is used.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from scipy.special import multigammaln
from scipy.stats import chi2

from lipcert.audit.checks.chance import STEEPEST, ChanceTest, log_chernoff
from lipcert.core.program import FloatArray

_LEAST: Final = 1e-300
_COLUMNS: Final = 256
_PLACES: Final = ("rows", "columns")
_ROUNDED: Final = 2.0**-20
"""Share of the largest singular value by which the eigenvalues of its square may be off."""


def folded(rows: FloatArray, width: int) -> FloatArray:
    """Add up columns to this many, each sum divided by the root of the number of its columns."""
    counts = np.bincount(np.arange(rows.shape[1]) % width, minlength=width)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % width)))
    found: FloatArray = padded.reshape(len(rows), -1, width).sum(axis=1) / np.sqrt(counts)
    return found


def varied(least: FloatArray, most: FloatArray, entries: FloatArray | int) -> FloatArray:
    """Return Σ −2 ln w, Σ −2 ln(1 − w), and their degrees of freedom, for sizes between these
    ends."""
    lower, upper, above = chi2.cdf(least, entries), chi2.cdf(most, entries), chi2.sf(least, entries)
    widest = 2.0 * np.maximum(np.abs(lower - 0.5), np.abs(upper - 0.5))
    tail = np.where(upper < 0.5, 2.0 * upper, np.where(lower > 0.5, 2.0 * above, 1.0))
    logs = -2.0 * np.log(np.maximum([widest, tail], _LEAST))
    return np.array([*np.sum(logs, axis=1), 2.0 * least.size])


def regularity(sums: FloatArray, where: str = "places") -> Iterator[ChanceTest]:
    """Test, from such sums, whether the sizes of independent noises vary too little, or too
    much."""
    even, uneven, degrees = map(float, sums)
    count = f"{degrees / 2.0:.0f} {where}"
    texts = (
        f"its size varies too little between {count}: noise that is scaled to have exactly the "
        "stated deviation is not Gaussian, and hides less",
        f"its size varies more between {count} than chance explains",
    )
    for value, text in zip((even, uneven), texts, strict=True):
        chance = float(chi2.logsf(value, degrees)) if degrees else 0.0
        yield ChanceTest(chance, text, numbers=(value, degrees), kind="regularity")


@dataclass(slots=True, eq=False)
class _Covariance:
    """S, the number of rows, and Σ‖E‖² of one size of axis."""

    square: FloatArray
    rows: int = 0
    moved: float = 0.0

    def test(self, size: int) -> ChanceTest:
        n, p = self.rows, min(len(self.square), self.rows // 4)
        if p < 2:
            return ChanceTest(0.0, "too few rows")
        fold = folded(np.eye(len(self.square)), p)
        sizes = np.sqrt(np.maximum(np.linalg.eigvalsh(fold.T @ self.square @ fold), 0.0))
        slack = math.sqrt(self.moved) + _ROUNDED * float(sizes[-1])
        low, high = np.maximum(sizes - slack, 0.0), np.maximum(sizes + slack, _LEAST)
        value = 0.5 * float(low @ low) + n * float(p * (math.log(n) - 1.0) / 2 - np.log(high).sum())
        steepest = (1.0 - p / n) / STEEPEST

        def log_moment(slope: float) -> float:
            rest = 1.0 - slope * steepest
            ratio = multigammaln(n * rest / 2.0, p) - multigammaln(n / 2.0, p)
            own = (rest - 1.0) * (1.0 - math.log(n / 2.0)) - rest * math.log(rest)
            return float(ratio + n * p / 2.0 * own)

        text = (
            f"along axes of {size} entries it is not independent: rows or columns share noise, or "
            "that of one tensor follows from that of others"
        )
        chance = log_chernoff(log_moment, steepest * value, upper=True)
        return ChanceTest(chance, text, numbers=(value, p * (p + 1) / 4.0), kind="covariance")


@dataclass(slots=True, eq=False)
class Axes:
    """The noise of a run along its axes. Memory does not grow with the steps."""

    _slices: FloatArray = field(default_factory=lambda: np.zeros((2, 3)))
    _sums: FloatArray = field(default_factory=lambda: np.zeros((2, 3)))
    """At least, at most, degrees of freedom."""
    _places: dict[tuple[int, ...], FloatArray] = field(default_factory=dict)
    """Σ of squares at each place, at most, and of how many entries, by axis and shape."""
    _covariances: dict[tuple[int, int], _Covariance] = field(default_factory=dict)

    def take(self, tensors: Iterable[tuple[FloatArray, FloatArray]]) -> None:
        """Add the noises of one step in units of their deviations, and what rounding moved of
        each."""
        unfolded: dict[tuple[int, int], list[FloatArray]] = {}
        moved: dict[tuple[int, int], float] = {}
        for z, e in tensors:
            squares = np.square(np.maximum(np.abs(z) - e, 0.0)), np.square(np.abs(z) + e)
            for axis, size in enumerate(z.shape[:2]):
                if z.size > size:
                    self._count(axis, z, e, squares)
                if size > 1:
                    key = size, z.shape[:axis].count(size)
                    unfolded.setdefault(key, []).append(np.moveaxis(z, axis, 0).reshape(size, -1))
                    moved[key] = moved.get(key, 0.0) + float(np.vdot(e, e))
        for key, parts in unfolded.items():
            share = min(1.0, _COLUMNS / sum(part.shape[1] for part in parts))
            widths = [max(1, int(share * part.shape[1])) for part in parts]
            rows = np.hstack([folded(*each) for each in zip(parts, widths, strict=True)])
            square = np.zeros((rows.shape[1], rows.shape[1]))
            known = self._covariances.setdefault(key, _Covariance(square))
            if known.square.shape == square.shape:
                known.square += rows.T @ rows
                known.rows += len(rows)
                known.moved += moved[key]

    def _count(
        self, axis: int, z: FloatArray, e: FloatArray, squares: tuple[FloatArray, FloatArray]
    ) -> None:
        """Add the entries at each place of an axis.

        squares: of entries, at least and at most.
        """
        others = tuple(place for place in range(z.ndim) if place != axis)
        count, size = z.shape[axis], z.size // z.shape[axis]
        least, most = (np.sum(part, axis=others) for part in squares)
        self._slices[axis] += varied(least, most, size)
        known = self._places.setdefault((axis, *z.shape), np.zeros((2, count)))
        known += most, np.full(count, size)
        sums, slack = np.abs(np.sum(z, axis=others)), np.sum(e, axis=others)
        low, high = np.maximum(sums - slack, 0.0), sums + slack
        self._sums[axis] += low @ low / size, high @ high / size, count

    def tests(self) -> Iterator[ChanceTest]:
        """Yield the tests; their number depends only on the shapes of the tensors."""
        for sums, what in zip(self._slices, _PLACES, strict=True):
            yield from regularity(sums, what)
        for (axis, *shape), (squares, entries) in self._places.items():
            chances = chi2.logcdf(squares, entries) + math.log(len(squares))
            place = int(np.argmin(chances))
            root = math.sqrt(squares[place] / entries[place])
            text = f"at place {place} of the {_PLACES[axis]} of shape {'×'.join(map(str, shape))} "
            text += f"the noise has {root:.4g} times the stated standard deviation"
            chance = min(0.0, float(chances[place]))
            yield ChanceTest(chance, text, numbers=(root, 1.0), kind="known")
        for (least, most, degrees), what in zip(self._sums.tolist(), _PLACES, strict=True):
            for tail, value in ((chi2.logcdf, most), (chi2.logsf, least)):
                chance = math.log(2.0) + float(tail(value, degrees)) if degrees else 0.0
                root = math.sqrt(value / max(degrees, 1.0))
                text = f"the sums of {what} have {root:.4g} times the deviation of independent ones"
                yield ChanceTest(min(0.0, chance), text, numbers=(root, 1.0), kind="covariance")
        for (size, _), found in self._covariances.items():
            yield found.test(size)
