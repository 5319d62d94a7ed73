"""Quadratic forms of cotangents: one bound of a whole chain of layers instead of a product.

What enters: the links of a chain, from a fixed value upwards. What leaves: for each value above, a
form Q with ‖δ‖² ≤ sᵀQs, where s is any cotangent there and δ what the fixed value receives from
it, for all Jacobians in between; finally the supremum over a ball or a hull of logit gradients.

Invariant: a form is never below what it stands for. The multipliers that shape it are not
trusted: whatever they are, the result is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.facts import PairHull
from lipcert.forms.completion import completed, gap_between, solved, symmetric
from lipcert.interval import Interval
from lipcert.norms.eigenvalues import estimate_largest, largest_eigenvalue
from lipcert.norms.scaling import UNDERFLOW, balanced, restored
from lipcert.upper import INFINITE, ONE, UNIT_ROUNDOFF, ZERO, FloatArray, Upper, gamma, norm

_LARGEST_SCALE: Final = 1000
_UNKNOWN_SCALE: Final = 2**60
_ENTRY_ERROR: Final = 4
_MARGIN: Final = 1.0 + 2.0**-26
_MODERATE: Final = 2.0**100


@final
@dataclass(frozen=True, slots=True, eq=False)
class Multipliers:
    """Untrusted proposal for one diagonal link: `weights` p [size], and κ = ratio·λ_max(PQP)."""

    weights: FloatArray
    ratio: float

    def is_usable(self, radius: FloatArray) -> bool:
        """Whether they are as many numbers, of a size that floating point can handle."""
        if self.weights.shape != radius.shape:
            return False
        weights = self.weights[radius > 0.0]
        mild = np.all((weights > 1.0 / _MODERATE) & (weights < _MODERATE))
        return bool(mild) and 1.0 < self.ratio < _MODERATE


@final
@dataclass(frozen=True, slots=True, eq=False)
class QuadraticForm:
    """‖δ‖² ≤ 4^scale · Σ sᵀ·matrix·s, over the runs s of `size` entries of the cotangent.

    matrix: [size, size], exactly symmetric, of moderate size (below 1), or all zero.
    """

    matrix: FloatArray
    scale: int

    @classmethod
    def of(cls, link: FloatArray | Interval) -> QuadraticForm:
        """The form of y, for the fixed value x: W Wᵀ for a matrix y = Wx, or slopes squared.

        Proof: as for `through`; |δ_i| ≤ max|slope_i|·|s_i|.
        """
        if isinstance(link, Interval):
            largest = _exact(link.magnitude())
            return _form(np.zeros((len(link.lo), len(link.lo))), largest * largest, ZERO, 0)
        if not np.any(link):
            return _zero(len(link))
        scaled, exponent = balanced(link)
        mass = norm(scaled)
        error = gamma(link.shape[1] + 2 * _ENTRY_ERROR + 2) * mass * mass + UNDERFLOW
        product = symmetric(scaled @ scaled.T)
        return _form(product, _exact(product.diagonal()), error, exponent)

    @property
    def size(self) -> int:
        """Length of the runs of entries."""
        return len(self.matrix)

    def over_ball(self) -> Upper:
        """Returns B ≥ sup ‖δ‖ over all cotangents of norm 1."""
        return self._root(largest_eigenvalue(self.matrix[None])) if np.any(self.matrix) else ZERO

    def over_hull(self, hull: PairHull) -> Upper:
        """Returns B ≥ sup ‖δ‖ over the cotangents in a hull with one class per entry.

        Proof: the form is convex, hence largest at a vertex e_j − t, t = (1 − a)e_y + (a/K)1,
        where it is Q_jj − 2(Qt)_j + tᵀQt.
        """
        form, smoothing = _exact(self.matrix), _exact(hull.smoothing)
        keep, share = _exact(1.0) - smoothing, smoothing * _exact(float(self.size)).reciprocal()
        diagonal = _exact(self.matrix.diagonal())
        mean = form.sum((1,)) * share
        at_target = diagonal * keep * keep + mean * keep * _exact(2.0) + mean.sum((0,)) * share
        image = form * keep + _column(mean)  # (Qt)_j for the label y: [j, y]
        squares = _column(diagonal) - image * _exact(2.0) + at_target
        return self._root(Upper(max(float(np.max(squares.hi)), 0.0))) * hull.scale

    def swing(self, radius: Upper) -> Interval:
        """Holds each entry of Jd, ‖d‖ ≤ R, for all J with J Jᵀ ≤ Q: |Jd|_i ≤ √Q_ii·R. [size]."""
        roots = _exact(np.maximum(self.matrix.diagonal(), 0.0)).monotone(np.sqrt)
        unit = self._root(ONE)
        return _exact(roots.hi) * Interval.symmetric(radius * unit, (1,))

    def reach(self, cases: Iterable[tuple[Interval, Upper]]) -> Upper:
        """Returns B ≥ sup ‖v + Jd‖ over ‖d‖ ≤ R and JJᵀ ≤ Q run by run, the least over the cases.

        cases: pairs of an interval of v [runs, size], and R.
        Proof: ‖v‖ + √λ_max(Q)·R; also, for every λ > λ_max(Q),
            ‖v + Jd‖² ≤ λ‖d‖² + vᵀ(I − JJᵀ/λ)⁻¹v ≤ λR² + λ·vᵀ(λI − Q)⁻¹v,
        a sum over the runs, and for every z, with e = v − (λI − Q)z,
            vᵀ(λI − Q)⁻¹v = vᵀz + eᵀz + eᵀ(λI − Q)⁻¹e ≤ vᵀz + ‖e‖‖z‖ + ‖e‖²/(λ − λ_max(Q)).
        The middle of an inexact v serves, and its distance is added at the end.
        Attained: for a single matrix, up to the choice of λ (the trust-region problem).
        """
        if not np.any(self.matrix):
            return min(offset.norm() for offset, _ in cases)
        largest = largest_eigenvalue(self.matrix[None])
        spectrum = np.linalg.eigh(self.matrix)
        return min(self._reach(v, R * self._root(ONE), largest, spectrum) for v, R in cases)

    def _reach(
        self,
        offset: Interval,
        radius: Upper,
        largest: Upper,
        spectrum: tuple[FloatArray, FloatArray],
    ) -> Upper:
        """One case, with the bound of λ_max(Q) and untrusted eigenvalues and -vectors."""
        simple = largest.sqrt() * radius + offset.norm()
        middle = 0.5 * offset.lo + 0.5 * offset.hi
        if not (_is_moderate(middle) and _is_moderate(np.array(radius.value))):
            return simple
        limit = Upper(_best_limit(*spectrum, middle, radius.value))
        gap = gap_between(limit, largest)
        if gap is None:
            return simple
        solution, residual = solved(self.matrix, limit, middle.T)
        product = (_exact(middle.T) * _exact(solution)).sum((0, 1)).magnitude()
        inner = Upper(float(product)) + residual * norm(solution) + (residual * residual).over(gap)
        square = limit * (radius * radius + inner)
        return min(simple, square.sqrt() + (offset - _exact(middle)).norm())

    def stretched(self, factor: Upper) -> QuadraticForm:
        """The form where all δ are larger by a factor."""
        if factor == ONE or not np.any(self.matrix):
            return self
        if not (factor.is_finite and factor.value > 0.0):
            return _zero(self.size) if factor == ZERO else _unknown(self.size)
        mantissa, exponent = math.frexp(factor.value)
        product = mantissa * mantissa * self.matrix
        error = Upper(4.0 * UNIT_ROUNDOFF) * norm(product)
        return _form(product, _exact(product.diagonal()), error, self.scale + exponent)

    def through(
        self, link: FloatArray | Interval, proposal: Multipliers | None = None
    ) -> QuadraticForm:
        """The form above a link: a matrix [m, size], or slopes [size] with multipliers for them."""
        if not np.any(self.matrix):
            return _zero(len(link.lo) if isinstance(link, Interval) else len(link))
        if isinstance(link, Interval):
            return self._through_slopes(link, proposal)
        return self._through_matrix(link)

    def _through_matrix(self, weight: FloatArray) -> QuadraticForm:
        """The form of y = Wx, from that of x. weight: [m, size].

        Proof: s_x = Wᵀs_y, hence Q_y = W Q Wᵀ. Computed as fl(fl(WQ)Wᵀ) and made symmetric, it
        errs by at most γ_{2n+2}·|W||Q||W|ᵀ entry by entry, whose 2-norm is at most
        γ_{2n+2}·‖W‖_F²‖Q‖_F. Entries of W that err by 4u themselves add 8 to the terms.
        """
        if not np.any(weight):
            return _zero(len(weight))
        scaled, exponent = balanced(weight)
        product = symmetric(scaled @ self.matrix @ scaled.T)
        mass = norm(scaled)
        terms = 2 * self.size + 2 * _ENTRY_ERROR + 2
        error = gamma(terms) * mass * mass * norm(self.matrix) + UNDERFLOW
        return _form(product, _exact(product.diagonal()), error, self.scale + exponent)

    def _through_slopes(self, slopes: Interval, proposal: Multipliers | None) -> QuadraticForm:
        """The form of y, from that of x, where ∂y/∂x is diagonal within `slopes`: [size].

        Proof: let the slopes lie in m ± r, and p be positive where r is. Then δ = Ms + Pf with
        |f_i| ≤ (r_i/p_i)|s_i|, and for every κ > λ_max(PQP), maximising over all f,
            δᵀQδ ≤ δᵀQδ + κ·Σ((r_i/p_i)²s_i² − f_i²)
                 ≤ sᵀ(M(Q + QP(κI − PQP)⁻¹PQ)M + κR²P⁻²)s.
        Without a proposal p = √(r/b), b = |m| + r, and κ = λ_max(Q): where all slopes have the
        same range, no eigenvalue grows by more than b². Where p and κ do not fit: λ_max(Q)·b²·I.
        Reference: Fazlyab et al. 2019 for the multipliers; Xu and Sivaranjani 2024 for these
        ones, there for slopes in [0, 1] and in the direction of the values.
        """
        if not np.any(slopes.magnitude()):
            return _zero(self.size)
        if np.all((slopes.lo == 1.0) & (slopes.hi == 1.0)):
            return self
        middle, radius, exponent = middle_and_radius(slopes.broadcast((self.size,)))
        if proposal is None or not proposal.is_usable(radius):
            proposal = default_multipliers(self.matrix, middle, radius)
        weights = np.where(radius > 0.0, proposal.weights, 0.0)
        divisors = np.where(radius > 0.0, weights, 1.0)
        largest = self._largest(weights)
        limit = largest * Upper(proposal.ratio)
        gap = gap_between(limit, largest)
        if gap is None or not np.all(divisors > 0.0):
            return self._flat(slopes)
        inner, error = completed(self.matrix, weights, limit, gap)
        product = np.outer(middle, middle) * inner
        rounding = Upper(4.0 * UNIT_ROUNDOFF) * norm(product) + UNDERFLOW
        stretch = _exact(radius) * _exact(divisors).reciprocal()
        diagonal = _exact(inner.diagonal()) + _exact(error.value)
        diagonal = diagonal * _exact(middle) * _exact(middle)
        diagonal = diagonal + stretch * stretch * _exact(limit.value)
        return _form(product, diagonal, rounding, self.scale + exponent)

    def _flat(self, slopes: Interval) -> QuadraticForm:
        """λ_max(Q)·b²·I."""
        largest = QuadraticForm(self.matrix, 0).over_ball() * slopes.max_abs()
        diagonal = np.full(self.size, (largest * largest).value)
        return _form(np.diag(diagonal), _exact(diagonal), UNDERFLOW, self.scale)

    def _largest(self, weights: FloatArray) -> Upper:
        """Bound of λ_max(PQP).

        Proof: fl(PQP) errs by 2u + u² in each entry, and where only a trace bounds it, size-fold.
        """
        product = np.outer(weights, weights) * self.matrix
        error = Upper(4.0 * UNIT_ROUNDOFF * (self.size + 1)) * norm(product)
        return largest_eigenvalue(product[None]) + error + UNDERFLOW

    def _root(self, square: Upper) -> Upper:
        """√square · 2^scale."""
        if self.scale > _LARGEST_SCALE:
            return INFINITE
        return restored(square.sqrt(), max(self.scale, -_LARGEST_SCALE))


def middle_and_radius(slopes: Interval) -> tuple[FloatArray, FloatArray, int]:
    """m, r and e with 2^-e·slopes inside m ± r; r = 0 where the slope is known."""
    exponent = 0
    largest = slopes.max_abs().value
    if not 1.0 / _MODERATE < largest < _MODERATE:
        exponent = max(math.frexp(largest)[1], -_LARGEST_SCALE)
        slopes = slopes * _exact(2.0**-exponent)
    middle = 0.5 * slopes.lo + 0.5 * slopes.hi
    return middle, (slopes - _exact(middle)).magnitude(), exponent


def default_multipliers(form: FloatArray, middle: FloatArray, radius: FloatArray) -> Multipliers:
    """p = √(r/b) and κ = λ_max(Q), where entries with no slope but 0 count as 0 in Q."""
    reach = np.abs(middle) + radius
    weights = np.sqrt(np.divide(radius, reach, out=np.zeros_like(reach), where=reach > 0.0))
    alive = (reach > 0.0).astype(np.float64)
    both = np.stack([np.outer(alive, alive) * form, np.outer(weights, weights) * form])
    whole, weighted = estimate_largest(both, 1e-9)
    ratio = whole / weighted if weighted > 0.0 else 1.0
    return Multipliers(weights, max(ratio, 1.0) * _MARGIN)


def _best_limit(
    values: FloatArray, vectors: FloatArray, offset: FloatArray, radius: float
) -> float:
    """An untrusted λ > λ_max(Q) that makes λR² + λ·vᵀ(λI − Q)⁻¹v small."""
    squares = np.sum((offset @ vectors) ** 2, axis=0)
    limits = float(values[-1]) * (1.0 + np.geomspace(1e-6, 1e6, 400))
    shares = squares / (limits[:, None] - values)
    return float(limits[np.argmin(limits * (radius * radius + shares.sum(axis=1)))])


def _is_moderate(array: FloatArray) -> bool:
    """Whether squares neither overflow nor vanish."""
    largest = float(np.max(np.abs(array), initial=0.0))
    return largest == 0.0 or 1.0 / _MODERATE < largest < _MODERATE


def _form(matrix: FloatArray, diagonal: Interval, error: Upper, scale: int) -> QuadraticForm:
    """The form with this diagonal and an error bound added to it, brought to moderate size."""
    raised = matrix.copy()
    raised[np.diag_indices(len(matrix))] = (diagonal + _exact(error.value)).hi
    if not np.all(np.isfinite(raised)):
        return _unknown(len(matrix))
    _, exponent = balanced(raised)
    half = -(-exponent // 2)
    raised = np.ldexp(raised, -2 * half)
    covered = _exact(raised.diagonal()) + _exact(UNDERFLOW.value)
    raised[np.diag_indices(len(matrix))] = covered.hi
    return QuadraticForm(raised, scale + half)


def _zero(size: int) -> QuadraticForm:
    """Nothing reaches the fixed value."""
    return QuadraticForm(np.zeros((size, size)), 0)


def _unknown(size: int) -> QuadraticForm:
    """A form beyond float64."""
    return QuadraticForm(0.25 * np.eye(size), _UNKNOWN_SCALE)


def _exact(array: FloatArray | float) -> Interval:
    return Interval.exact(np.asarray(array, dtype=np.float64))


def _column(row: Interval) -> Interval:
    return row.map(lambda end: end[:, None])
