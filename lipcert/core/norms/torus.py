"""‖T‖₂ ≤ c for a convolution T that is part of a circular one: every frequency is looked at.

`lines` checks that the input can be laid on lines of N places per axis, one for each phase, so
that a tap shifted by j looks, for output o, at place (o + D·j) mod N, and finds there the entry
that it reads, or nothing. Then T = R·C·E: E lays the input on the lines (no entry has two places),
C is the circular convolution with the kernel, R keeps the outputs of T. So ‖T‖ ≤ ‖C‖. With several
axes, places and entries are pairs, triples and so on, and what holds along each axis holds for
them. A tap that reads nothing along some axis is left out, as it adds nothing to T.

C is diagonal in the Fourier basis: ‖C‖ is the largest norm of the symbol
P(w) = Σ_j K_j·exp(i·Σ_a D_a·j_a·w_a), w_a = 2πk/N_a, with K_j of shape [outputs, inputs·phases].
Only D·w matters, modulo 2π: the multiples of 2π/count with count = N/gcd(N, D).

Twist: let every entry also have one place o + D·j before reduction modulo N (checked). Then T with
the entry of output o and input place q multiplied by exp(iψ(q − o)) has the same norm (both sides
are multiplied by unitary diagonal matrices), and its kernel is K_j·exp(iψDj). With ψD = π/count,
this moves every frequency by half a step.

P(−w) is the conjugate of P(w): of the last axis, half of the frequencies suffice, those numbered
up to (count − twist)/2, since −(2k + twist) = 2(count − k − twist) + twist modulo 2·count.

Blocks. Not every frequency has to be looked at. Let w stand for D·w. In some group let m be the
largest ‖P‖ over the torus, at w₀, and M that over all real w, at w₁. With n_a shifts along axis a,
c_a = (n_a − 1)/2 and unit u, v, f(w) = Re(e^{iφ}·e^{−ic·w}·u*P(w)v) is, on the line from w to
w + d, a sum of waves whose frequencies are at most θ = Σ_a c_a|d_a|, and |f| ≤ M. So
f'² + θ²f² ≤ θ²M² (Duffin and Schaeffer), and arccos(f/M) changes by at most θ.
1. With f(w₁) = M: some frequency of the torus lies within π/count_a of w₁ along every axis, so that
   m ≥ M·cos θ₀ with θ₀ = Σ_a c_a·π/count_a, if that is below π/2.
2. With f(w₀) = m, where arccos(f/M) ≤ θ₀: ‖P(w₀ + d)‖ ≥ M·cos(arccos(m/M) + θ)
   ≥ m·(cos θ − tan θ₀·sin θ) ≥ m·(1 − θ²/2 − θ·θ₀/(1 − θ₀²/2)), if that share is positive.
Let ‖P(c)‖ ≤ claim·share at the middle c of a block of frequencies, θ for half its sides. If w₀ is
in the block, then m ≤ claim. A block of which that is not proved is halved along every axis, down
to a single frequency, whose share is 1. So the bound is the one that a look at every frequency
gives, and few are looked at where ‖P‖ is far below it.

Rounding: `symbol`. The kernel is scaled by a power of two to a largest entry in [1/2, 1), and loses
at most η = 2^-1022 per entry, which is taken off the claim.

Attained: where T is circular itself, and by constant kernels; otherwise up to the border of T.
References: R. J. Duffin and A. C. Schaeffer, Some properties of functions of exponential type,
Bulletin of the AMS 44 (1938).
"""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.circle import half_turns
from lipcert.core.interval import Array, exact
from lipcert.core.norms.claim import NormCheck
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.lines import axes_of, phases_of
from lipcert.core.norms.residual import ETA
from lipcert.core.norms.stacks import BoolArray, ComplexArray
from lipcert.core.norms.symbol import Symbol, symbol_of
from lipcert.core.program import IndexArray

MAX_COUNT: Final = 1 << 14
"""parts of a half turn"""
_MAX_WORK: Final = 1 << 40
"""multiplications of Gram matrices: minutes in float64, an hour in integers"""
_NUMBERS: Final = 1 << 18
"""complex numbers that are formed at once"""
_AT_ONCE: Final = 1 << 10
"""blocks of frequencies"""
_LEAST_SHARE: Final = Fraction(3, 4)
"""of the claim, in the first blocks: larger ones are hardly ever proved"""
_PI_UP: Final = Fraction(355, 113)


def torus_at_most(
    convolution: Convolution,
    counts: tuple[int, ...],
    twists: tuple[int, ...],
    claim: float,
    check: NormCheck,
) -> bool:
    """Whether ‖T‖₂ ≤ claim could be proved on a torus.

    counts, twists: frequencies, and 0 or 1, for each axis along which the kernel has more than one
    tap of the same phase, in order.
    """
    axes = axes_of(convolution)
    if any(not axis.taps for axis in axes):
        return True
    lengths = tuple(axis.length for axis in axes if axis.length > 1)
    if not len(lengths) == len(counts) == len(twists):
        return False
    if any(not 1 <= n <= MAX_COUNT for n in counts) or any(twist not in (0, 1) for twist in twists):
        return False
    witness = iter(zip(counts, twists, strict=True))
    fit = [axis.fits(*next(witness)) if axis.length > 1 else axis.fits_alone() for axis in axes]
    if not all(fit):
        return False
    return _Torus(lengths, counts, twists).at_most(phases_of(convolution, axes), claim, check)


def absolute_at_most(convolution: Convolution, claim: float, check: NormCheck) -> bool:
    """Whether ‖T‖₂ ≤ claim follows from the norms of Σ_j |K_j|.

    Hypotheses (checked): along each axis an entry is read in one phase only, and through one tap
    by one output only.
    Proof: let x_rb be the entries of channel b that are read in phase r; they are disjoint for
    different r. ‖y_a‖ ≤ Σ_r Σ_b Σ_j |K_j|_a,rb ‖x_rb‖ for output channel a, as each tap picks
    different entries for different outputs. So the norms of the y_a are at most Σ_j |K_j| applied
    to those of the x_rb, entry by entry. Groups act on different channels.
    Attained: non-negative kernels, up to the border of T.
    """
    axes = axes_of(convolution)
    if any(not axis.taps for axis in axes):
        return True
    if not all(axis.is_plain for axis in axes):
        return False
    with np.errstate(over="ignore"):
        total = exact(np.abs(phases_of(convolution, axes))).sum((0,)).hi[0]
    return bool(np.isfinite(total).all()) and all(check(matrix, claim) for matrix in total)


@dataclass(frozen=True, slots=True)
class _Torus:
    """The frequencies (2k + twist)·π/count along each axis, and how many shifts that has."""

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    twists: tuple[int, ...]

    def at_most(self, kernel: Array, claim: float, check: NormCheck) -> bool:
        """Whether ‖P(w)‖ ≤ claim could be proved for all w.

        kernel: [shifts, groups, outputs, inputs · phases], not zero.
        """
        shape = self._shape()
        points = math.prod(shape)
        if points * kernel[0].size * min(kernel.shape[2:]) > _MAX_WORK:
            return False
        exponent = math.frexp(float(np.abs(kernel).max()))[1]
        scaled = np.ldexp(kernel, -exponent)
        in_float = check is norm_at_most_float
        symbol = (
            symbol_of(scaled, self.lengths, points) if in_float else Symbol(scaled, self.lengths)
        )
        limit = Fraction(claim) / Fraction(2) ** exponent - kernel.size * ETA
        roots = tuple(half_turns(count, 2 * count) for count in self.counts)
        at_once = max(1, _NUMBERS // symbol.size)

        def proved(middles: IndexArray, least: Fraction) -> BoolArray:
            """At which frequencies, in parts of a half turn, ‖P‖ ≤ least could be proved."""
            found = []
            for start in range(0, len(middles), at_once):
                spend()
                powers = _powers(roots, middles[start : start + at_once], symbol.exponents)
                each = symbol.at_most(powers, least, check)
                found.append(each.reshape(len(powers), -1).all(axis=1))
            return np.concatenate(found)

        def hold(starts: IndexArray, side: int) -> bool:
            """Whether it could be proved in blocks that begin at these k, [n, axes]."""
            sides = np.minimum(side, np.array(shape, dtype=np.int64))
            middles = 2 * starts + np.array(self.twists, dtype=np.int64) + sides - 1
            left = starts[~proved(middles, limit * self._share(side))]
            if side == 1 or not len(left):
                return not len(left)
            corners = np.array(list(itertools.product((0, side // 2), repeat=len(shape))))
            halves = (left[:, None] + corners).reshape(-1, len(shape))
            return hold(halves[(halves < shape).all(axis=1)], side // 2)

        side = 1
        while side < max(shape, default=1) and self._share(2 * side) >= _LEAST_SHARE:
            side *= 2
        blocks = tuple(-(-count // side) for count in shape)
        return all(
            hold(side * _places(start, blocks), side)
            for start in range(0, math.prod(blocks), _AT_ONCE)
        )

    def _shape(self) -> tuple[int, ...]:
        """How many k there are along each axis: of the last one, half."""
        if not self.counts:
            return ()
        return (*self.counts[:-1], (self.counts[-1] - self.twists[-1]) // 2 + 1)

    def _share(self, side: int) -> Fraction:
        """Of the claim, what ‖P‖ in the middle of blocks of this side has to keep to, or 0."""
        steps = [
            Fraction(length - 1, 2) * _PI_UP / count
            for length, count in zip(self.lengths, self.counts, strict=True)
        ]
        between = sum(steps, Fraction(0))
        theta = (side - 1) * between
        if theta == 0 or between >= 1:
            return Fraction(int(theta == 0))
        return max(Fraction(0), 1 - theta**2 / 2 - theta * between / (1 - between**2 / 2))


def _powers(
    roots: tuple[ComplexArray, ...], places: IndexArray, exponents: IndexArray
) -> ComplexArray:
    """exp(i·Σ_a j_a·π·m_a/count_a) for places m and exponents j: [places, exponents]."""
    powers = np.ones((len(places), len(exponents)), dtype=np.complex128)
    for root, m, j in zip(roots, places.T, exponents.T, strict=True):
        powers *= root[m[:, None] * j % len(root)]
    return powers


def _places(start: int, shape: tuple[int, ...]) -> IndexArray:
    """Some places of a grid, in order: [n, axes]."""
    numbers = np.arange(start, min(start + _AT_ONCE, math.prod(shape)))
    places = np.unravel_index(numbers, shape) if shape else ()
    return np.array(places, dtype=np.int64).reshape(len(shape), len(numbers)).T
