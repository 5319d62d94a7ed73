"""‖Z‖₂ ≤ c for many complex matrices at once in float64, with rounding bounded beforehand.

Contract: True only if every matrix of the stack has a norm of at most c. False says nothing.

Hypotheses. As in `float_engine`; and a product of complex matrices is formed from the four real
products of every two entries: its real and imaginary parts are sums of 2m real products in some
order, for inner products of m terms (not the three products of Karatsuba).

Proof, for one matrix Z, m×n with n ≤ m, scaled by a power of two so that c becomes s in [1/2, 1);
scaling loses at most η = 2^-1022 per part, so that ‖Z‖ is off by at most 2mnη. Let f ≥ ‖Z‖_F².
1. H = fl(Z*Z). Its real part errs entry by entry by γ_2m·VᵀV + 8mη and its imaginary part by
   γ_2m·VᵀV' + 8mη, where V stacks |Re Z| on |Im Z| and V' stands the other way round. Both
   products have Frobenius norms of at most ‖Z‖_F², so ‖H − Z*Z‖_F ≤ 2γ_2m·f + 16mn·η.
   In the same way F = fl(LL*) with ‖F − LL*‖_F ≤ 2γ_2n·‖L‖_F² + 16n²η.
2. M = fl(λI − H) is rounded on the diagonal only, by u|M_ii| ≤ u(λ + |H_ii|), or η: in all by at
   most u(n + 2f) + nη, as λ ≤ 1 and ΣH_ii ≤ 2f. R = fl(M − F) errs by u‖R‖_F + 2n²η.
3. λI − Z*Z = LL* + E with ‖E‖₂ ≤ ‖R‖_F + the sum of 1 and 2, and LL* is positive semidefinite,
   so ‖Z‖² ≤ λ + ‖E‖₂. The claim holds if that is at most (s − 2mnη)².
L may come from anywhere: whatever it is, what it fails to explain is measured.

Attained up to a relative slack of about 20·n²·u of c², 6e-10 for n = 512.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import sqrt_up
from lipcert.core.interval import Array, up
from lipcert.core.norms.roots import ComplexArray

_U: Final = Fraction(1, 1 << 53)
_ETA: Final = Fraction(1, 1 << 1022)


def norms_at_most_float(stack: ComplexArray, claim: float) -> bool:
    """Whether ‖Z‖₂ ≤ claim could be proved of every matrix Z of stack [k, m, n]."""
    if not (math.isfinite(claim) and claim >= 0.0 and np.isfinite(stack).all()):
        raise ValueError("norms of numbers that are not finite are not checked")
    if claim == 0.0 or stack.size == 0:
        return not bool(stack.any())
    fraction, exponent = math.frexp(claim)
    if np.abs(_parts(stack)).max() > claim:
        return False
    Z = np.ldexp(_parts(stack), -exponent).view(np.complex128)
    Z = Z if Z.shape[1] >= Z.shape[2] else Z.swapaxes(1, 2)
    _, m, n = Z.shape
    target = (Fraction(fraction) - 2 * m * n * _ETA) ** 2
    H, f, gram_error = _gram(Z)
    level = float(target - 2 * (gram_error + 2 * _gamma(2 * n) * n))
    if level <= 0.0:
        return False
    M = -H
    np.einsum("kii->ki", M)[:] += level
    try:
        L = np.asarray(np.linalg.cholesky(M), dtype=np.complex128)
    except np.linalg.LinAlgError:
        return False
    if not (np.abs(_parts(L)) <= 1.0).all():  # a factor of M, whose diagonal is below 1, is smaller
        return False
    F, _, factor_error = _gram(L.conj().swapaxes(1, 2), triangular=True)
    rest = Fraction(sqrt_up(float(square_sums(M - F).max())))
    rounding = _U * (n + 2 * f + rest) + 3 * n**2 * _ETA
    return bool(Fraction(level) + rest + gram_error + factor_error + rounding <= target)


def _gram(Z: ComplexArray, *, triangular: bool = False) -> tuple[ComplexArray, Fraction, Fraction]:
    """fl(Z*Z), an upper bound f of all ‖Z‖_F², and one of all ‖fl(Z*Z) − Z*Z‖_F.

    By halves (A B) of the columns: B*A is formed once, for itself and its adjoint, and where Z is
    upper triangular, without the rows in which A is 0. No entry is a sum of more terms for that.
    """
    count, m, n = Z.shape
    f = Fraction(float(square_sums(Z).max()))
    half = n // 2
    rows = half if triangular else m
    A, B = Z[:, :rows, :half], Z[:, :, half:]
    adjoint = B.conj().swapaxes(1, 2)
    H = np.empty((count, n, n), dtype=np.complex128)
    H[:, :half, :half] = A.conj().swapaxes(1, 2) @ A
    H[:, half:, half:] = adjoint @ B
    H[:, half:, :half] = adjoint[:, :, :rows] @ A
    H[:, :half, half:] = H[:, half:, :half].conj().swapaxes(1, 2)
    return H, f, 2 * _gamma(2 * m) * f + 16 * m * n * _ETA


def square_sums(stack: ComplexArray) -> Array:
    """Upper bounds of ‖Z‖_F² for every matrix of a stack of numbers of magnitude ≤ 2^500: [k].

    Proof: a sum of N squares, rounded in any order, is at least (1 − γ_N) of the exact one, less
    2Nη; and 1/(1 − γ_N) ≤ 1 + 2N·u, where N is below 2^30.
    """
    flat = _parts(stack)
    terms = flat.shape[1] * flat.shape[2]
    computed = np.einsum("kij,kij->k", flat, flat) * (1.0 + terms * 2.0**-52)
    return up(up(computed) + 2.0**-990)


def _parts(stack: ComplexArray) -> Array:
    """Real and imaginary parts side by side: [k, m, 2n]."""
    return np.ascontiguousarray(stack).view(np.float64)


def _gamma(terms: int) -> Fraction:
    """γ_n = n·u/(1 − n·u)."""
    return terms * _U / (1 - terms * _U)
