"""The symbol of a circular convolution, P(w) = Σ_j K_j·exp(i·Σ_a j_a·w_a), and bounds of its norm.

Rounding. The largest entry of the kernel is in [1/2, 1). exp(i·Σ_a j_a·w_a) is a product of a unit
roots, one for each axis. A unit root is within 1.5u of the exact one, and a product of a of them
within 5a·u, as multiplying two rounded ones adds at most 2.9u. There are J shifts; the K_j of a
group are c×d matrices with c ≤ d, or else their transposes take their place, as P(w)ᵀ has the
norm of P(w). Let k ≥ ‖K‖_F of each group, and η = 2^-1022.

Of P itself. A part of an entry is a sum of J products and errs by γ_J·Σ_j|K_j|, besides what the
roots do. So ‖P̃ − P‖_F ≤ (5a + 2J)·u·‖Σ_j|K_j|‖_F + 4J·cd·η, and ‖Σ_j|K_j|‖_F ≤ √J·k.

Of P(w)P(w)*, without P. It is Σ_δ A_δ·exp(iδw) with A_δ = Σ_j K_{j+δ}K_jᵀ and A_{−δ} = A_δᵀ, or
    A_0 + Σ_{δ>0} cos(δw)·(A_δ + A_δᵀ) + i·Σ_{δ>0} sin(δw)·(A_δ − A_δᵀ)
over T shifts δ, of each pair ±δ one. Let B_δ = Σ_j |K_{j+δ}||K_j|ᵀ. A matrix in parentheses errs by
γ_{Jd+1}·(B_δ + B_δᵀ), a cosine or sine by 5a·u, and the sum of T products adds γ_T, so that a part
of an entry errs by γ_{Jd+1+5a+T} of Σ_δ B_δ, over all δ. ‖Σ_δ B_δ‖_F ≤ (Σ_j ‖K_j‖_F)² ≤ J·k², which
bounds ‖P(w)‖_F², too. Underflow of all Jd·T products of an entry and of their sums adds less than
16JdT·η. So the computed matrix errs by 2γ_{Jd+1+5a+T}·J·k² + 16c²·JdT·η in the Frobenius norm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import round_down, sqrt_up
from lipcert.core.budget import spend
from lipcert.core.interval import Array, norm_up
from lipcert.core.norms.claim import NormCheck
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.residual import ETA, U, gamma
from lipcert.core.norms.stacks import (
    BoolArray,
    ComplexArray,
    Grams,
    norms_at_most_float,
    square_sums,
)
from lipcert.core.program import IndexArray

_PRODUCT: Final = 10_000
"""operations that take as long as the call of a product of matrices"""
_MAX_NUMBERS: Final = 1 << 24
"""entries of the matrices A_δ that are kept"""


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """kernel: [shifts, groups, outputs, inputs · phases], its largest entry in [1/2, 1).

    lengths: how many shifts there are along each axis that has more than one.
    """

    kernel: Array
    lengths: tuple[int, ...]

    @property
    def exponents(self) -> IndexArray:
        """The shifts j: [J, axes]."""
        return _product(map(range, self.lengths))

    @property
    def size(self) -> int:
        """The larger of the numbers of powers and of entries at one frequency."""
        return max(len(self.kernel), int(self.kernel[0].size))

    def matrices(self, powers: ComplexArray) -> ComplexArray:
        """P in all groups, given exp(i·Σ_a j_a·w_a) for frequencies and shifts: [n · groups, …]."""
        taps = self.kernel.reshape(len(self.kernel), -1)
        stack = _complex(powers.real @ taps, powers.imag @ taps)
        return stack.reshape(-1, *self.kernel.shape[2:])

    def at_most(self, powers: ComplexArray, limit: Fraction, check: NormCheck) -> BoolArray:
        """Of which P, in all groups, ‖P‖ ≤ limit could be proved: [n · groups].

        powers: as within their rounding.
        """
        rest = round_down(limit - self._rounding())
        if rest < 0.0:
            return np.zeros(len(powers) * self.kernel.shape[1], dtype=np.bool_)
        return _norms_at_most(self.matrices(powers), rest, check)

    def _rounding(self) -> Fraction:
        """An upper bound of ‖P̃ − P‖_F."""
        shifts = len(self.kernel)
        sizes = Fraction(sqrt_up(float(shifts))) * Fraction(norm_up(self.kernel))
        return (5 * len(self.lengths) + 2 * shifts) * U * sizes + 4 * self.kernel.size * ETA


@dataclass(frozen=True, slots=True, eq=False)
class GramSymbol:
    """P(w)P(w)* by its coefficients A_0 and A_δ + A_δᵀ, 0 and A_δ − A_δᵀ: [T, groups, c, c].

    exponents: the differences δ, [T, axes]. square, error: as in `Grams`.
    """

    even: Array
    odd: Array
    exponents: IndexArray
    square: Fraction
    error: Fraction

    @classmethod
    def of(cls, symbol: Symbol) -> GramSymbol:
        """From products of the kernel by itself, shifted."""
        J, groups, c, d = _wide(symbol.kernel).shape
        rows = np.ascontiguousarray(np.moveaxis(_wide(symbol.kernel), 0, 2))
        numbers = np.arange(J).reshape(symbol.lengths)
        exponents = _product(range(1 - length, length) for length in symbol.lengths)
        exponents = exponents[len(exponents) // 2 :]  # the middle one is 0, and before are the −δ
        T, axes = exponents.shape
        even, odd = np.zeros((2, T, groups, c, c), rows.dtype)
        for number, exponent in enumerate(exponents.tolist()):
            spend()
            ahead = numbers[tuple(map(_from, exponent))].ravel()
            behind = numbers[tuple(_from(-shift) for shift in exponent)].ravel()
            left, right = (rows[:, :, j].reshape(groups, c, -1) for j in (ahead, behind))
            A = left @ right.swapaxes(1, 2)
            even[number] = A + A.swapaxes(1, 2) if number else A
            odd[number] = A - A.swapaxes(1, 2) if number else 0.0
        largest = max(map(Fraction, map(norm_up, rows)))
        square = J * largest**2
        error = 2 * gamma(J * d + 1 + 5 * axes + T) * square + 16 * c * c * J * d * T * ETA
        return cls(even, odd, exponents, square, error)

    @property
    def size(self) -> int:
        """As the one of `Symbol`, of powers of differences."""
        return max(len(self.even), int(self.even[0].size))

    def matrices(self, powers: ComplexArray) -> ComplexArray:
        """PP* in all groups, given exp(i·Σ_a δ_a·w_a) for frequencies and differences."""
        T = len(self.even)
        stack = _complex(
            powers.real @ self.even.reshape(T, -1), powers.imag @ self.odd.reshape(T, -1)
        )
        return stack.reshape(-1, *self.even.shape[2:])

    def at_most(self, powers: ComplexArray, limit: Fraction, _: NormCheck) -> BoolArray:
        """As `Symbol.at_most`, by Gram matrices in float64."""
        target = limit**2 if limit > 0 else Fraction(0)
        if target >= self.square:
            return np.ones(len(powers) * self.even.shape[1], dtype=np.bool_)
        return Grams(self.matrices(powers), self.square, self.error).at_most(target)


def symbol_of(kernel: Array, lengths: tuple[int, ...], points: int) -> Symbol | GramSymbol:
    """What takes fewer operations in float64 at this many frequencies."""
    J, groups, c, d = _wide(kernel).shape
    T = math.prod(2 * length - 1 for length in lengths) // 2 + 1
    direct = points * (4 * J * c * d + 6 * c * c * d)
    by_coefficients = points * 4 * T * c * c + J * J * (c * c * d + _PRODUCT)
    symbol = Symbol(kernel, lengths)
    fits = groups * T * c * c <= _MAX_NUMBERS
    return GramSymbol.of(symbol) if fits and by_coefficients < direct else symbol


def _norms_at_most(stack: ComplexArray, limit: float, check: NormCheck) -> BoolArray:
    """Of which matrices Z of a stack ‖Z‖ ≤ limit could be proved; the float engine takes all at
    once.

    Proof: ‖Z‖ ≤ ‖Z‖_F; and Z as a real map of pairs (real parts, imaginary parts) has its norm.
    """
    proved = np.asarray(square_sums(stack) <= round_down(Fraction(limit) ** 2), dtype=np.bool_)
    hard = stack[~proved]
    if check is norm_at_most_float:
        proved[~proved] = norms_at_most_float(hard, limit)
    else:
        doubled = (np.block([[Z.real, -Z.imag], [Z.imag, Z.real]]) for Z in hard)
        proved[~proved] = [check(matrix, limit) for matrix in doubled]
    return proved


def _wide(kernel: Array) -> Array:
    """With the shorter side of its matrices first."""
    return kernel.swapaxes(2, 3) if kernel.shape[2] > kernel.shape[3] else kernel


def _product(shifts: Iterable[range]) -> IndexArray:
    """All combinations of shifts along the axes, in order: [combinations, axes]."""
    return np.array(list(itertools.product(*shifts)), dtype=np.int64)


def _from(shift: int) -> slice:
    """Of a sequence K_j, the K_{j+shift} for which there is a K_j."""
    return slice(max(shift, 0), min(shift, 0) or None)


def _complex(real: Array, imaginary: Array) -> ComplexArray:
    result = np.empty(real.shape, dtype=np.result_type(real, np.complex64))
    result.real, result.imag = real, imaginary
    return result
