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

Rounding. The kernel is scaled by a power of two to a largest entry in [1/2, 1), and loses at most
η = 2^-1022 per entry. A unit root is within 1.5u of the exact one, a product of a of them within
5a·u, as multiplying two rounded ones adds at most 2.9u. A part of an entry of P is a sum of J
products and errs by γ_J·Σ_j|K_j|, besides. So ‖P̃ − P‖_F ≤ (5a + 2J)·u·‖Σ_j|K_j|‖_F + 4J·size·η,
and ‖Σ_j|K_j|‖_F ≤ √J·‖K‖_F. That is taken off the claim.

Attained: where T is circular itself, and by constant kernels; otherwise up to the border of T.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import round_down, sqrt_up
from lipcert.core.budget import spend
from lipcert.core.interval import Array, exact, norm_up
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.lines import axes_of, phases_of
from lipcert.core.norms.roots import MAX_COUNT, ComplexArray, half_turns
from lipcert.core.norms.stacks import norms_at_most_float, square_sums
from lipcert.core.norms.steps import NormCheck

_AT_ONCE: Final = 1 << 18
"""complex numbers that are formed at once"""
_MAX_WORK: Final = 1 << 40
"""multiplications of Gram matrices: minutes in float64, an hour in integers"""
_U: Final = Fraction(1, 1 << 53)
_ETA: Final = Fraction(1, 1 << 1022)


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
    extended = [axis for axis in axes if axis.length > 1]
    if not len(extended) == len(counts) == len(twists):
        return False
    if any(not 1 <= n <= MAX_COUNT for n in counts) or any(twist not in (0, 1) for twist in twists):
        return False
    witness = iter(zip(counts, twists, strict=True))
    fit = [axis.fits(*next(witness)) if axis.length > 1 else axis.fits_alone() for axis in axes]
    if not all(fit):
        return False
    circles = _circles([axis.length for axis in extended], counts, twists)
    return _symbol_at_most(phases_of(convolution, axes), circles, claim, check)


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


def _symbol_at_most(
    kernel: Array, circles: list[ComplexArray], claim: float, check: NormCheck
) -> bool:
    """Whether ‖P(w)‖ ≤ claim could be proved for all w.

    kernel: [shifts, groups, outputs, inputs · phases], not zero. circles: for each axis with
    shifts, exp(i·D·w·j) as [frequencies, shifts].
    """
    points = math.prod(len(circle) for circle in circles)
    if points * kernel[0].size * min(kernel.shape[2:]) > _MAX_WORK:
        return False
    exponent = math.frexp(float(np.abs(kernel).max()))[1]
    scaled = np.ldexp(kernel, -exponent)
    limit = round_down(Fraction(claim) / Fraction(2) ** exponent - _rounding(scaled, len(circles)))
    if limit < 0.0:
        return False
    square = round_down(Fraction(limit) ** 2)
    for stack in _stacks(scaled, circles, points):
        hard = stack[square_sums(stack) > square]
        if len(hard) and not _all_at_most(hard, limit, check):
            return False
    return True


def _rounding(kernel: Array, axes: int) -> Fraction:
    """An upper bound of ‖P̃ − P‖_F for a kernel with entries of at most 1."""
    shifts = len(kernel)
    sizes = Fraction(sqrt_up(float(shifts))) * Fraction(norm_up(kernel))
    return (5 * axes + 2 * shifts) * _U * sizes + 4 * kernel.size * _ETA


def _stacks(kernel: Array, circles: list[ComplexArray], points: int) -> Iterator[ComplexArray]:
    """P at all frequencies and in all groups, some at a time: [k, outputs, inputs · phases]."""
    taps = kernel.reshape(len(kernel), -1)
    step = max(1, _AT_ONCE // taps.shape[1])
    shape = tuple(len(circle) for circle in circles)
    for start in range(0, points, step):
        spend()
        numbers = np.arange(start, min(start + step, points))
        powers = np.ones((len(numbers), 1), dtype=np.complex128)
        for circle, rows in zip(
            circles, np.unravel_index(numbers, shape) if shape else (), strict=True
        ):
            powers = (powers[:, :, None] * circle[rows][:, None, :]).reshape(len(numbers), -1)
        symbols = np.empty((len(numbers), taps.shape[1]), dtype=np.complex128)
        symbols.real = powers.real @ taps
        symbols.imag = powers.imag @ taps
        yield symbols.reshape(-1, *kernel.shape[2:])


def _all_at_most(stack: ComplexArray, limit: float, check: NormCheck) -> bool:
    """Whether ‖Z‖ ≤ limit for each matrix Z of a stack; the float engine takes all at once.

    Proof: Z as a real map of pairs (real parts, imaginary parts) has the same norm.
    """
    if check is norm_at_most_float:
        return norms_at_most_float(stack, limit)
    return all(check(np.block([[Z.real, -Z.imag], [Z.imag, Z.real]]), limit) for Z in stack)


def _circles(
    lengths: list[int], counts: tuple[int, ...], twists: tuple[int, ...]
) -> list[ComplexArray]:
    """For each axis, exp(iπ(2k + twist)·j/count) as [k, j], half of the last axis."""
    circles = []
    for number, (length, count, twist) in enumerate(zip(lengths, counts, twists, strict=True), 1):
        last = (count - twist) // 2 + 1 if number == len(counts) else count
        turns = (2 * np.arange(last)[:, None] + twist) * np.arange(length)
        circles.append(half_turns(count)[turns % (2 * count)])
    return circles
