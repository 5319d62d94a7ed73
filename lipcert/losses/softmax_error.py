"""How far a softmax can be from its target distribution: the geometry behind cross-entropy.

What enters: number of classes K, label smoothing a, and how large the logits can be (radius of a
ball around 0, spread between the largest and the smallest). What leaves: upper bounds of
    norm = sup ‖p − t_y‖₂   and   miss = sup (1 − p_y),   p = softmax(z),
over every label y and all such logits, where t_y = (1 − a)·e_y + (a/K)·1.

Both suprema are those of a function of two real numbers at most, because only few patterns of
logits can be extremal; the proofs stand at the functions. By symmetry the label is class 0, and p
is determined by the differences of the other logits to z_0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.interval import Interval
from lipcert.upper import ONE, FloatArray, Lower, Upper

_ARC_POINTS: Final = 2**14
_LARGEST_RADIUS: Final = 32.0  # beyond it the whole simplex is reached to 1e-6 for 1e6 classes
_LARGEST_SPREAD: Final = 64.0
_EXP_ULPS: Final = 8


@final
@dataclass(frozen=True, slots=True)
class SoftmaxError:
    """norm ≥ sup ‖p − t_y‖₂ and miss ≥ sup (1 − p_y)."""

    norm: Upper
    miss: Upper

    def meet(self, other: SoftmaxError) -> SoftmaxError:
        """The better of two sound answers, one by one."""
        return SoftmaxError(min(self.norm, other.norm), min(self.miss, other.miss))


def softmax_error(classes: int, radius: Upper, spread: Upper, smoothing: float) -> SoftmaxError:
    """The smallest of the bounds over the simplex, over ‖z‖ ≤ radius and over the spread."""
    if classes < 2:
        raise ValueError("a softmax error needs at least two classes")
    result = over_simplex(classes, smoothing)
    if radius.value <= _LARGEST_RADIUS:
        result = result.meet(over_ball(classes, radius, smoothing))
    if spread.value <= _LARGEST_SPREAD:
        result = result.meet(over_spread(classes, spread, smoothing))
    return result


def over_simplex(classes: int, smoothing: float) -> SoftmaxError:
    """Returns B with B ≥ sup ‖p − t_y‖₂ over all p in the simplex; √2 without smoothing.

    Proof: a convex function is largest at a vertex, p = e_j. Let a' = a/K. j ≠ y gives
    (1 − a')² + (1 − a + a')² + (K − 2)·a'², and j = y no more: (a − a')² + (K − 1)·a'².
    Attained: in the limit of growing logits. Exact rational arithmetic.
    """
    share = Fraction(smoothing) / classes
    hit = 1 - Fraction(smoothing) + share
    square = (1 - share) ** 2 + hit**2 + (classes - 2) * share**2
    return SoftmaxError(Upper.of_fraction(square).sqrt(), ONE)


def over_ball(classes: int, radius: Upper, smoothing: float) -> SoftmaxError:
    """Returns the suprema over ‖z‖₂ ≤ R, up to 1e-5 (R ≤ 32; 3e-7 for R ≤ 8).

    Hypotheses: K ≥ 2 classes, 0 ≤ a ≤ 1, R finite.
    Proof. *Few levels.* Let b = 1 − a, S = ‖p‖²; ‖p − t‖² = S − 2b·p_0 + const. At a maximum
    over the ball, p_i(p_i − c) = μz_i for every i ≥ 1, with c = S − b·p_0 and μ ≥ 0 (μ = 0 inside).
    Two wrong classes i, j of equal logit allow the tangent direction e_i − e_j, along which the
    second-order condition reads p_i(2p_i − c) ≤ μ; this is h'(z_i) ≤ 0 for
    h(t) = A²e^{2t} − cAe^t − μt, A = p_i/e^{z_i}, whose roots are the admissible z_i.
    If μ = 0, then p_i = c for all i ≥ 1 and K ≥ 3 violates it (2c² − c² > 0). If μ > 0, then h
    tends to +∞ on both sides and h'' changes sign at most once, so h has at most three roots with
    multiplicity, an even number, hence two; at the larger one h' > 0, so that at most *one* wrong
    class sits there. Adding a constant to z changes nothing, so Σz_i = 0. Hence the maximum is on
    the circle z = R(cos θ·e + sin θ·f), ‖z‖ = R, of the logits (z_0, one class, all others alike).
    For log((1 − p_0)/p_0) = log Σ_{i≥1} e^{z_i} − z_0 the same argument, with h(t) = Ae^t − μt
    convex and second-order condition Ae^t ≤ μ, leads to the same circle. For K = 2 the circle is
    the two points z = ±R(−1, 1)/√2.
    *From a grid to the supremum.* Along the circle |φ''| ≤ R²‖D²‖ + R‖D‖. For φ = ‖p − t‖²,
    ‖D‖ ≤ 2·½·√2 and ‖D²‖ ≤ 2(½)² + 2·max|p − t|·2Var_p(d) ≤ 2.5 for unit d, Var_p(d) ≤ ½; for
    p_0 both are at most ½. At the maximum φ' = 0, so a grid point at distance δ loses at most
    ½|φ''|δ². θ = 2·arctan s for s in [−1, 1] and its antipodes cover the circle; a spacing of 1/n
    in s gives δ ≤ 1/n. The grid values are computed with outward rounding.
    Attained: always, up to the grid.
    """
    logits = _two_points(radius) if classes == 2 else _circle(classes, radius)
    one, others = logits
    found = _largest(classes, smoothing, Weights.of_differences(one, others, classes - 2))
    if classes == 2:
        return found
    square = found.norm * found.norm + _grid_loss(radius, Upper(2.5), Upper(1.5))
    miss = found.miss + _grid_loss(radius, Upper(0.5), Upper(0.5))
    return SoftmaxError(square.sqrt(), min(miss, ONE))


def over_spread(classes: int, spread: Upper, smoothing: float) -> SoftmaxError:
    """Returns the suprema over max_i z_i − min_i z_i ≤ w, exact up to rounding.

    Proof: shifted, the logits fill the cube [0, w]^K. Write F = ½‖p − t‖² as a function of one
    logit. For i ≥ 1, F' = p_i(p_i − c) with c = S − b·p_0, and where F' = 0,
    F'' = p_i²(1 − S + 2b·p_0) > 0. For the label, F' = p_0(p_0 − S − b(1 − p_0)), and where F' = 0,
    F'' = p_0²(1 − p_0)(1 − b) ≥ 0; for b = 1, F' = −p_0(1 − 2p_0 + S) < 0, because S ≥ p_0².
    So no coordinate has a maximum inside, and the supremum is at a corner: the label and any
    number of other classes at w, the rest at 0. 1 − p_0 is monotone in every logit.
    Attained: always.
    """
    high = Interval.exact(np.asarray(spread.value)).monotone(np.exp, _EXP_ULPS)
    count = np.arange(classes, dtype=np.float64)  # wrong classes at w
    rest = Interval.exact(classes - 1.0 - count)
    one = _scalar(1.0)
    found = [
        _largest(classes, smoothing, Weights(label, high, Interval.exact(count), one, rest))
        for label in (one, high)
    ]
    return SoftmaxError(max(error.norm for error in found), max(error.miss for error in found))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Unnormalised probabilities: of the label, of `highs` classes, and of `lows` classes."""

    label: Interval
    high: Interval
    highs: Interval
    low: Interval
    lows: Interval

    @classmethod
    def of_differences(cls, one: Interval, others: Interval, count: int) -> Weights:
        """The label at logit 0, one class at `one`, `count` classes at `others`."""
        return cls(
            _scalar(1.0),
            one.monotone(np.exp, _EXP_ULPS),
            _scalar(1.0),
            others.monotone(np.exp, _EXP_ULPS),
            _scalar(float(count)),
        )


def _largest(classes: int, smoothing: float, weights: Weights) -> SoftmaxError:
    """The largest error at the given points."""
    share = _scalar(smoothing) * _scalar(float(classes)).reciprocal()
    hit = _scalar(1.0) - _scalar(smoothing) + share
    wrong = weights.high * weights.highs + weights.low * weights.lows
    scale = (weights.label + wrong).reciprocal()
    square = (
        _square(weights.label * scale - hit)
        + _square(weights.high * scale - share) * weights.highs
        + _square(weights.low * scale - share) * weights.lows
    )
    miss = _scalar(1.0) - weights.label * scale
    return SoftmaxError(square.max_abs().sqrt(), min(miss.max_abs(), ONE))


def _circle(classes: int, radius: Upper) -> tuple[Interval, Interval]:
    """Logits minus z_0 of the distinguished class and of the m = K − 2 others, on the circle.

    e = (−1, 1, 0, …)/√2 and f = (1, 1, −2/m, …)/√(2K/m) are orthonormal with sum 0; so for
    z = x·e + y·f the differences are √2·x and x/√2 − y·√(K/2m).
    """
    s = np.arange(-_ARC_POINTS, _ARC_POINTS + 1) / _ARC_POINTS
    squares = Interval.exact(s * s)
    scale = _scalar(radius.value) * (_scalar(1.0) + squares).reciprocal()
    x = (_scalar(1.0) - squares) * scale
    y = Interval.exact(2.0 * s) * scale
    one = _root(2, 1) * x
    others = _scalar(0.5) * one - _root(classes, 2 * (classes - 2)) * y
    return _with_antipodes(one), _with_antipodes(others)


def _two_points(radius: Upper) -> tuple[Interval, Interval]:
    one = _with_antipodes(_root(2, 1) * Interval.exact(np.array([radius.value])))
    return one, one  # there are no other classes


def _with_antipodes(half: Interval) -> Interval:
    other = -half
    return Interval(np.concatenate([half.lo, other.lo]), np.concatenate([half.hi, other.hi]))


def _grid_loss(radius: Upper, second: Upper, first: Upper) -> Upper:
    """½(second·R² + first·R)/n²."""
    curvature = second * radius * radius + first * radius
    return curvature.over(Lower(2.0 * _ARC_POINTS**2))


def _root(numerator: int, denominator: int) -> Interval:
    """√(numerator/denominator) between two doubles."""
    top, bottom = float(numerator), float(denominator)
    low = Lower(top).over(Upper(bottom)).sqrt()
    high = Upper(top).over(Lower(bottom)).sqrt()
    return Interval(np.asarray(low.value), np.asarray(high.value))


def _square(interval: Interval) -> Interval:
    magnitude: FloatArray = interval.magnitude()
    largest = Interval.exact(magnitude)
    return largest * largest


def _scalar(value: float) -> Interval:
    return Interval.exact(np.asarray(value))
