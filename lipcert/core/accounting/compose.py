"""Composition: the ε of T independent releases, from the discrete pair of one.

The T-fold convolution is computed for tilted masses p_i·g^i/M, g > 1, and tilted back where δ is
evaluated; so its error is small relative to δ, however small δ is. The choices of g, M and the
window use ordinary floating-point arithmetic and affect only tightness.

Convolutions are computed by a Fourier transform with a proved error bound. The additions and
multiplications are float64 and rounded to nearest: a complex sum is off by at most 2^−53 of itself,
a product by √5·2^−53 of itself (Brent, Percival and Zimmermann, 2007). The roots of unity are
computed with integers, so that no library's sine is trusted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.accounting.pair import Losses
from lipcert.core.arithmetic import add_up, round_up
from lipcert.core.circle import half_turns
from lipcert.core.exponential import exp_bounds
from lipcert.core.interval import Array
from lipcert.core.logarithm import log_bounds

_Complex: TypeAlias = npt.NDArray[np.complex128]
"""Fractional bits of the roots of unity."""


def convolution_power(measure: Array, times: int) -> tuple[Array, float]:
    """Return y and e with |y_j − (measure^{*times})_j| ≤ e; cyclic, of length a power of 2.

    Hypotheses: entries ≥ 0, their sum S has S^times ≤ 2, times ≤ 2^32; else e is inf or honest.
    Proof: with the relative errors ρ of `_transform` (of S) and τ = 2^−50 of a product, repeated
    squaring of ẑ has the relative error (1+τ)^(times−1) − 1 ≤ 2·τ·times, and
    |z^n − ẑ^n| ≤ n·(|ẑ|+ρS)^(n−1)·ρS. An inverse transform is the mean of the z_k·(unit), so its
    error is at most the mean of the errors, and ρ times the mean of |ẑ^n|. Means and powers are
    raised by 1 + 2^−9 for their own rounding; underflow loses less than 2^−450 in total.
    """
    if times == 1:
        return measure, 0.0
    relative = len(measure).bit_length() * 2.0**-49
    mass = float(np.sum(measure)) * (1.0 + 2.0**-20)
    values = _transform(measure.astype(np.complex128))
    steep = _size(_power((_size(values) + 2.0 * relative * mass).astype(np.complex128), times - 1))
    product = _power(values, times)
    errors = times * (steep * (relative * mass) + 2.0**-49 * _size(product))
    error = np.mean(errors + 2.0 * relative * _size(product)) * (1.0 + 2.0**-9) + 2.0**-400
    return np.conj(_transform(np.conj(product))).real / len(measure), float(error)


def _size(values: _Complex) -> Array:
    """Return |values| within 2^−9 of itself, plus 2^−500."""
    return np.sqrt(values.real * values.real + values.imag * values.imag) + 2.0**-500


def _power(base: _Complex, exponent: int) -> _Complex:
    """Return base^exponent, by squaring from the highest binary digit down."""
    result = base
    for digit in bin(exponent)[3:]:
        result = result * result
        if digit == "1":
            result = result * base
    return result


def _transform(values: _Complex) -> _Complex:
    """Σ_j values_j·e^(−2πijk/n); each output off by less than log2(2n)·2^−49·Σ|values|.

    Proof: every output is a sum over the inputs, each multiplied by log2 n roots of unity; root
    (2·2^−53), product (√5·2^−53) and sum (2^−53) are off by less than 2^−50 of it at each level.
    """
    size = len(values)
    roots = _roots(size)
    table = values.reshape(1, size)
    while table.shape[0] < size:
        rows, half = table.shape[0], table.shape[1] // 2
        twisted = table[:, half:] * roots[:: size // (2 * rows)][:rows, None]
        table = np.concatenate([table[:, :half] + twisted, table[:, :half] - twisted])
    return table.ravel()


@lru_cache(maxsize=2)
def _roots(size: int) -> _Complex:
    """e^(−2πik/n) for k < n/2, each within 2·2^−53."""
    half = max(size // 2, 1)
    return np.conj(half_turns(half, half))


_Reals: TypeAlias = npt.NDArray[np.floating]

_LONGEST: Final = 1 << 21
_TINY: Final = 1e-300
_BITS: Final = 128


def composed_epsilon(losses: Losses, steps: int, delta: Fraction) -> float | None:
    """Return ε ≥ 0 such that `steps` releases are (ε, δ)-close in this direction, or None.

    Proof: δ(ε) ≤ T·infinite + Σ_j (1 − e^ε/E_j)₊·(p^{*T})_j. An upper bound of this is computed at
    two neighbours E of the grid; between them it lies below the chord, being convex in E.
    """
    kept = _without_rare(losses, float(delta) / steps * 2.0**-20)
    rest = delta - steps * Fraction(kept.infinite)
    if rest <= 0:
        return None
    tilted = _tilted(kept, steps, delta)
    composed = None if tilted is None else _composed(tilted, steps)
    if composed is None:
        return None
    low, high = composed.start - 1, composed.start + len(composed.tail) - 1
    if composed.delta(high) > rest:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if composed.delta(middle) <= rest:
            high = middle
        else:
            low = middle
    return _between(composed, low, high, rest, kept.gap)


def _without_rare(losses: Losses, share: float) -> Losses:
    """Count the largest losses, of total probability at most `share`, as infinite."""
    above = np.cumsum(losses.masses[::-1])[::-1] * (1.0 + 2.0**-20)
    cut = max(int(np.count_nonzero(above > share)), 1)
    rare = float(above[cut]) if cut < len(above) else 0.0
    infinite = add_up(losses.infinite, rare)
    return Losses(losses.gap, losses.indices[:cut], losses.masses[:cut], infinite)


def _between(composed: _Composed, low: int, high: int, rest: Fraction, gap: Fraction) -> float:
    """Return the ε at which the chord from `low` (above `rest`, if tried) to `high` is `rest`."""
    part = Fraction(1)
    if low >= composed.start:
        above, below = composed.delta(low), composed.delta(high)
        part = (above - rest) / (above - below)
    elif high + composed.origin == 0:
        return 0.0
    step = log_bounds(1 + gap, _BITS)
    index = low + composed.origin
    rise = log_bounds(1 + part * gap, _BITS)[1]
    return max(0.0, round_up(index * step[index >= 0] + rise))


@dataclass(frozen=True, slots=True)
class _Tilted:
    """masses[i] ≥ p_j·g^(j−origin)/M at the loss index j = origin + offsets[i]."""

    masses: Array
    offsets: npt.NDArray[np.int64]
    origin: int
    growth: float
    norm: float
    gap: Fraction


@dataclass(frozen=True, slots=True)
class _Composed:
    """tail[j−start] ≥ (tilted T-fold)_j for j from `start` to the end of the window.

    weights[m] ≥ (1 − r^−m)·g^−m. origin: the loss index of j = 0. beyond: whether there are losses
    above the window.
    """

    tail: Array
    start: int
    origin: int
    weights: Array
    log_norm: Fraction
    log_growth: tuple[Fraction, Fraction]
    beyond: bool

    def delta(self, j: int) -> Fraction:
        """Return an upper bound of δ at the ε of index j.

        Proof: p^{*T}_i = M^T·g^−i·tilted_i; the tilted masses above the window sum to at most 2. A
        sum of n products ≥ 0 has a relative error below n·2^−52.
        """
        seen = self.tail[j - self.start :]
        total = float(np.dot(self.weights[: len(seen)], seen))
        inside = Fraction(total) * (1 + Fraction(len(seen) + 2, 1 << 51))
        found = self._scale(j) * inside
        return found + 2 * self._scale(self.start + len(self.tail)) if self.beyond else found

    def _scale(self, j: int) -> Fraction:
        """Return an upper bound of M^T·g^−j."""
        return exp_bounds(self.log_norm - j * self.log_growth[j < 0], _BITS)[1]


def _tilted(losses: Losses, steps: int, delta: Fraction) -> _Tilted | None:
    """Return the tilted masses; None if the tilt is numerically impossible.

    Proof: powers of g by repeated quotients are off by one rounding each.
    """
    step = math.log1p(float(losses.gap))
    logs = np.log(losses.masses)
    rise = min(0.4, _best_tilt(logs, losses.indices * step, steps, delta) * step)
    growth = math.exp(rise)
    peak = int(losses.indices[np.argmax(logs + losses.indices * rise)])
    offsets = losses.indices - peak
    distance = np.abs(offsets)
    powers = _powers_down(growth, int(np.max(distance)))
    if powers[np.max(offsets)] < _TINY or not growth > 1.0:
        return None
    weights = np.where(offsets > 0, 1.0 / np.maximum(powers, _TINY)[distance], powers[distance])
    masses = losses.masses * weights * (1.0 + (distance + 8) * 2.0**-51) + _TINY
    norm = float(np.sum(masses)) * (1.0 + 2.0**-40)
    if not math.isfinite(norm):
        return None
    return _Tilted(masses / norm * (1.0 + 2.0**-51), offsets, peak, growth, norm, losses.gap)


def _best_tilt(logs: _Reals, losses: _Reals, steps: int, delta: Fraction) -> float:
    """Return about the θ that minimises (T·log Σ p·e^(θ·loss) − log δ)/θ; the minimum is near ε."""
    surprise = math.log(delta.denominator) - math.log(delta.numerator)

    def value(log_theta: float) -> float:
        theta = math.exp(log_theta)
        exponents = logs + theta * losses
        top = float(np.max(exponents))
        moment = top + math.log(float(np.sum(np.exp(exponents - top))))
        return (steps * moment + surprise) / theta

    low, high = -12.0, 14.0
    for _ in range(50):
        third = (high - low) / 3.0
        if value(low + third) < value(high - third):
            high -= third
        else:
            low += third
    return math.exp(low)


def _composed(tilted: _Tilted, steps: int) -> _Composed | None:
    """Return the T-fold convolution on a window of 8 deviations on both sides of the mean, or None.

    Proof: what wraps around is counted twice: cyclic sums contain the terms they stand for, and
    more. Folding adds few terms in each bin.
    """
    offsets = tilted.offsets
    mean = float(np.dot(offsets, tilted.masses))
    variance = max(0.0, float(np.dot((offsets - mean) ** 2, tilted.masses)))
    half = 8.0 * math.sqrt(steps * variance) + 64.0
    if not half < _LONGEST / 2:
        return None
    size = 1 << math.ceil(math.log2(2.0 * half))
    bottom = math.floor(steps * mean - half)
    bins = np.bincount(offsets % size, tilted.masses, size)
    folded = np.asarray(bins * (1.0 + (len(offsets) // size + 4) * 2.0**-51), dtype=np.float64)
    power, error = convolution_power(folded, steps)
    excess = Fraction(float(np.sum(folded))) * (1 + Fraction(1, 1 << 30)) - 1
    if not error < math.inf or steps * excess > Fraction(1, 2):
        return None
    return _window(tilted, steps, bottom, np.maximum(power, 0.0) + error * (1.0 + 2.0**-50))


def _window(tilted: _Tilted, steps: int, bottom: int, cyclic: Array) -> _Composed | None:
    origin = steps * tilted.origin
    top = bottom + len(cyclic)
    start = max(bottom, -origin)
    if start >= top - 1:
        return None
    tail = np.roll(cyclic, -bottom % len(cyclic))[start - bottom :]
    fine = _powers_down(1.0 + float(tilted.gap), len(cyclic))
    steep = _powers_down(tilted.growth, len(cyclic))
    weights = steep * ((1.0 - fine) + (np.arange(len(fine)) + 8) * 2.0**-50) + _TINY
    largest = steps * int(np.max(tilted.offsets))
    return _Composed(
        tail,
        start,
        origin,
        weights,
        steps * log_bounds(Fraction(tilted.norm), _BITS)[1],
        log_bounds(Fraction(tilted.growth), _BITS),
        largest >= top,
    )


def _powers_down(base: float, count: int) -> Array:
    """Return base^0, base^−1, … base^−count; each factor adds one rounding, or underflows."""
    return np.divide.accumulate(np.concatenate([[1.0], np.full(count, base)]))
