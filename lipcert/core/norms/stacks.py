"""‖Z‖₂ ≤ c for many complex matrices at once in float64, with rounding bounded beforehand.

Contract: True for a matrix of the stack only if its norm is at most c. False says nothing.

Hypotheses. As in `float_engine`; and a product of complex matrices is formed from the four real
products of every two entries: its real and imaginary parts are sums of 2m real products in some
order, for inner products of m terms (not the three products of Karatsuba).

Proof, for one matrix Z, m×n with n ≤ m, with f ≥ ‖Z‖_F² and η = 2^-1022.
1. H = fl(Z*Z). Its real part errs entry by entry by γ_2m·VᵀV + 8mη and its imaginary part by
   γ_2m·VᵀV' + 8mη, where V stacks |Re Z| on |Im Z| and V' stands the other way round. Both
   products have Frobenius norms of at most ‖Z‖_F², so ‖H − Z*Z‖_F ≤ e = 2γ_2m·f + 16mn·η. What
   follows holds of any H that is this close to Z*Z.
   In the same way F = fl(LL*) with ‖F − LL*‖_F ≤ 2γ_2n·‖L‖_F² + 16n²η.
2. M = fl(λI − H) is rounded on the diagonal only, by u(λ + |H_ii|), or η: in all by at most
   u(nλ + f + ne) + nη. R = fl(M − F) errs by u‖R‖_F + 2n²η.
3. λI − Z*Z = LL* + E with ‖E‖₂ ≤ ‖R‖_F + the sum of 1 and 2, and LL* is positive semidefinite,
   so ‖Z‖² ≤ λ + ‖E‖₂.
L may come from anywhere: whatever it is, what it fails to explain is measured.
A stack is scaled by a power of two so that c becomes s in [1/2, 1); scaling loses at most η per
part, so that ‖Z‖ is off by at most 2mnη. The claim holds if λ + ‖E‖₂ ≤ (s − 2mnη)².

Attained up to a relative slack of about 20·n²·u of c², 6e-10 for n = 512.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import round_down
from lipcert.core.interval import Array, up
from lipcert.core.norms.residual import ETA, U, gamma

BoolArray: TypeAlias = npt.NDArray[np.bool_]
ComplexArray: TypeAlias = npt.NDArray[np.complex128]

_BLOCKS: Final = 8
_ALONE: Final = 48
"""side from which matrices are factored one by one: a stack with one that has no factor fails"""
_SMALLEST: Final = 2.0**-500


@dataclass(frozen=True, slots=True, eq=False)
class Grams:
    """H ≈ Z*Z for a stack of matrices Z: ‖Z‖_F² ≤ square and ‖H − Z*Z‖_F ≤ error for each."""

    H: ComplexArray
    square: Fraction
    error: Fraction

    @classmethod
    def of(cls, Z: ComplexArray, square: Fraction, *, triangular: bool = False) -> Grams:
        """fl(Z*Z) and item 1 of the proof.

        By blocks of columns: of a block of H and its adjoint one is formed, and where Z is upper
        triangular, without the rows in which one factor is 0. No entry is a sum of more terms for
        that.
        """
        count, m, n = Z.shape
        H = np.empty((count, n, n), dtype=np.complex128)
        ends = [n * part // _BLOCKS for part in range(_BLOCKS + 1)]
        for start, stop in pairwise(ends):
            rows = stop if triangular else m
            below = Z[:, :rows, start:].conj().swapaxes(1, 2) @ Z[:, :rows, start:stop]
            H[:, start:, start:stop] = below
            H[:, start:stop, stop:] = below[:, stop - start :].conj().swapaxes(1, 2)
        return cls(H, square, 2 * gamma(2 * m) * square + 16 * m * n * ETA)

    def at_most(self, target: Fraction) -> BoolArray:
        """Of which Z ‖Z‖₂² ≤ target could be proved. Numbers are of magnitude ≤ 2^400."""
        n = self.H.shape[1]
        level = float(target - 2 * (self.error + 2 * gamma(2 * n) * n * target))
        if level <= _SMALLEST:
            return np.zeros(len(self.H), dtype=np.bool_)
        M = -self.H
        np.einsum("kii->ki", M)[:] += level
        L = _factors(M)
        squares = square_sums(L)
        # a factor of M has ‖L‖_F² = tr M; of another one there is no need to know
        usable = np.asarray((squares > _SMALLEST) & (squares <= n * (1.0 + level)), dtype=np.bool_)
        if not usable.any():
            return usable
        M, L = (M, L) if usable.all() else (M[usable], L[usable])
        square = Fraction(float(squares[usable].max()))
        product = Grams.of(L.conj().swapaxes(1, 2), square, triangular=True)
        rounding = U * (n * Fraction(level) + self.square + n * self.error) + 3 * n**2 * ETA
        room = target - Fraction(level) - self.error - product.error - rounding
        if room <= 0:
            return np.zeros(len(usable), dtype=np.bool_)
        M -= product.H
        usable[usable] = square_sums(M) <= round_down((room / (1 + U)) ** 2)
        return usable


def norms_at_most_float(stack: ComplexArray, claim: float) -> BoolArray:
    """Of which matrices Z of stack [k, m, n] ‖Z‖₂ ≤ claim could be proved."""
    if not (math.isfinite(claim) and claim >= 0.0 and np.isfinite(stack).all()):
        raise ValueError("norms of numbers that are not finite are not checked")
    largest = np.abs(_parts(stack)).max(axis=(1, 2), initial=0.0)
    proved = np.asarray(largest == 0.0, dtype=np.bool_)
    open_ = np.flatnonzero(~proved & (largest <= claim))
    if len(open_) == 0:
        return proved
    fraction, exponent = math.frexp(claim)
    Z = np.ldexp(_parts(stack[open_]), -exponent).view(np.complex128)
    Z = Z if Z.shape[1] >= Z.shape[2] else Z.swapaxes(1, 2)
    _, m, n = Z.shape
    proved[open_] = Grams.of(Z, Fraction(float(square_sums(Z).max()))).at_most(
        (Fraction(fraction) - 2 * m * n * ETA) ** 2
    )
    return proved


def square_sums(stack: ComplexArray) -> Array:
    """Upper bounds of ‖Z‖_F² for every matrix of a stack of numbers of magnitude ≤ 2^500: [k].

    Proof: a sum of N squares, rounded in any order, is at least (1 − γ_N) of the exact one, less
    2Nη; and 1/(1 − γ_N) ≤ 1 + 2N·u, where N is below 2^30.
    """
    flat = _parts(stack)
    terms = flat.shape[1] * flat.shape[2]
    computed = np.einsum("kij,kij->k", flat, flat) * (1.0 + terms * 2.0**-52)
    return up(up(computed) + 2.0**-990)


def _factors(M: ComplexArray) -> ComplexArray:
    """A triangular factor of every matrix, zero where there is none."""
    try:
        if len(M) == 1 or M.shape[1] < _ALONE:
            return np.asarray(np.linalg.cholesky(M), dtype=np.complex128)
    except np.linalg.LinAlgError:
        if len(M) == 1:
            return np.zeros_like(M)
    return np.concatenate([_factors(each[None]) for each in M])


def _parts(stack: ComplexArray) -> Array:
    """Real and imaginary parts side by side: [k, m, 2n]."""
    return np.ascontiguousarray(stack).view(np.float64)
