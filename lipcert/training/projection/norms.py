"""Certified upper bounds of norms of the present weights: `Measure.bounds`.

Norms of maps are guessed and proved in batches: matrices of one size form a `Stack`. A guess only
chooses the shift of the next proof; it is within 2^-10 above a lower estimate of the eigenvalue or
above a shift whose proof failed, and bounds are as tight as that. No estimate is trusted. (The
proofs of `core.norms` bound the same residual; they decide one claim in exact rational arithmetic,
which takes thirty times as long for the small weights of most steps.)

The proofs assume IEEE double arithmetic, and matrix products in which every entry is a sum of
products in some order (BLAS-3 GEMM and SYRK, LAPACK's LAUUM; not Strassen, not 3M). How a Cholesky
factor was found does not matter: only its residual counts. Gram matrices need to be symmetric only
up to rounding: either triangle obeys the bounds, and one of them is enough.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dlauum, dpotrf

from lipcert.core.program import FloatArray, IndexArray
from lipcert.graph.ir import Node, Operand, viewed
from lipcert.search.eigenvalues import estimated_squares
from lipcert.training.projection.matrices import UNIT_ROUNDOFF, Matrices, Matrix, gamma, matrices_of

Numbers = Mapping[str, FloatArray]
"""The exact entries of parameters, by the graph's names."""

_ROUNDED: Final = 1.0 + 2.0**-49  # more than the few roundings of the last operations
FLOOR: Final = 2.0**-80  # of a limit: norms below it are taken for it, far above all underflow


class Norm(Enum):
    """The kind of norm that must be bounded."""

    EUCLIDEAN = "Euclidean norm of all entries of the parameter"
    LARGEST = "largest magnitude of an entry that the op uses"
    OPERATOR = "norm of the op as a linear map"
    ROW = "norm of the longest row of a table"


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One norm of one parameter.

    limit: the value of this norm that the bounds assume. node, operand: where the parameter is
    used; both are None for the parameter as a whole.
    """

    parameter: str
    norm: Norm
    limit: float
    node: Node | None = None
    operand: Operand | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Measure(ABC):
    """Bounds the norms of some uses.

    spreads: for each use, B such that weights whose entries are off by a relative u have a norm
    that is off by at most u·B times what this measure proves of it.
    """

    uses: tuple[Use, ...]
    spreads: tuple[float, ...]

    @abstractmethod
    def bounds(self, numbers: Numbers, *, tight: bool) -> Sequence[float]:
        """Return for each use a bound of its norm; inf or NaN if nothing can be proved.

        tight: within about one in a thousand of what this measure can prove at all. Otherwise, if a
        norm is proved to be within its limit, the limit may be returned.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Entrywise(Measure):
    """Bounds Euclidean norms, norms of rows, and largest magnitudes.

    They grow with the magnitudes of the entries, so that the spreads are 1.
    """

    @classmethod
    def of(cls, uses: Sequence[Use]) -> Entrywise:
        """Measure the norms of uses that are not linear maps."""
        return cls(tuple(uses), (1.0,) * len(uses))

    def bounds(self, numbers: Numbers, *, tight: bool) -> Sequence[float]:
        """Returns B ≥ ‖θ‖₂, B ≥ ‖row‖₂ for all rows of the view, or B ≥ max |entries of it|.

        Proof: the computed sum S of n squares is at least (1 − γ_n) times the exact one, and
        1/√(1 − γ_n) ≤ 1 + γ_n. The largest magnitude is exact up to the rounding of a view's
        factor. The floor covers underflow: n·2^-1022 is far below its square.
        Attained: up to rounding.
        """
        del tight
        with np.errstate(over="ignore"):
            return [_bound(use, numbers[use.parameter]) for use in self.uses]


def _bound(use: Use, whole: FloatArray) -> float:
    if use.norm is Norm.EUCLIDEAN:
        flat = whole.reshape(-1)
        return euclidean_bound(use, math.sqrt(np.dot(flat, flat)), flat.size)
    if use.norm is Norm.ROW and use.operand is not None:
        rows = viewed(use.operand, whole)
        longest = np.max(np.einsum("ij,ij->i", rows, rows), initial=0.0)
        value = math.sqrt(longest) * _rounding(rows.shape[1])
    else:
        array = whole if use.operand is None else viewed(use.operand, whole)
        value = max(float(np.max(array, initial=0.0)), -float(np.min(array, initial=0.0)))
    return _above(use, value)


def euclidean_bound(use: Use, computed: float, terms: int) -> float:
    """Return the bound of `Entrywise.bounds` from the root of a computed sum of this many
    squares."""
    return _above(use, computed * _rounding(terms))


def _above(use: Use, value: float) -> float:
    bound = value * _ROUNDED
    floor = use.limit * FLOOR
    return floor if bound < floor else bound


@cache
def _rounding(terms: int) -> float:
    """Return 1 + γ of a sum of squares, with a few terms to spare."""
    return 1.0 + gamma(terms + 4)


BoolArray = npt.NDArray[np.bool_]

RESIDUAL: Final = 2.0**-36
_TOO_LARGE: Final = 0.25
_ALONE: Final = 32  # a side from which no matrix gains from being treated with others
_FEW: Final = 2  # so many never do


def product_margin(side: int, longer: int) -> float:
    """Returns ε such that ‖M‖ ≤ (1 + ε)√q wherever `below` holds for the computed M M* and q.

    M: [side, longer] = [d, m], taken as exact; d·m below 2^40.
    Hypotheses: M M* is computed as real products of m terms each, of which at most two are added,
    in any order; q ≥ 2^-400, so that underflows, at most 2^-1022 each, are less than the spare
    2^-53·q.
    Proof: the computed G has |G − M M*| ≤ 2γ_{m+2}|M||M|ᵀ summed up, ‖G − M M*‖ ≤ 2γ_{m+2}d‖M‖².
    Either ‖G‖_F ≤ q up to the rounding γ_{2d²+4} of a norm; or there is an R for which the
    residual Ê of A = fl(qI − G) against RR*, computed, has a norm of at most τq. It is off by at
    most 2γ_{d+4}(‖A‖_F + ‖R‖_F²); the diagonal of Ê gives ‖R‖_F² ≤ 1.2dq, because A_ii ≤ q(1+u),
    and then ‖A‖_F ≤ 1.3dq. The diagonal of A is rounded by at most uq(1 + 2^-10). So for unit x,
    x*(qI − G)x ≥ x*RR*x − (1.01τ + 5γ_{d+4}d + 2u)q, that is
    ‖M‖²(1 − 2γ_{m+2}d) ≤ q(1 + 1.01τ + 5γ_{d+4}d + 2u), and (1 + a)/(1 − b) ≤ (1 + a + b)²
    for a, b ≤ 1/4.
    Attained: never; it is 2e-11 for matrices of moderate size.
    Reference: Rump 2006, Verification of positive definiteness, with a residual in place of an
    error analysis of the factorisation.
    """
    inner = gamma(side + 4) * 5.0 * side + gamma(2 * side * side + 4)
    margin = 1.01 * RESIDUAL + inner + gamma(longer + 2) * 2.0 * side + 8.0 * UNIT_ROUNDOFF
    if margin > _TOO_LARGE:
        raise ValueError(f"matrices of {side} by {longer} are too large for a proof in float64")
    return margin


def below(grams: Matrix, shifts: FloatArray) -> BoolArray:
    """Return for which of the matrices [n, d, d] λ_max ≤ shift is proved, in the sense above: [n].

    Symbols are far below their peak at most frequencies, where their Frobenius norms suffice; for
    single matrices they hardly ever do.
    """
    side = grams.shape[-1]
    if side > 1 and not np.iscomplexobj(grams):
        if side < _ALONE and len(grams) > _FEW:
            return _factored(grams, shifts)
        return np.array([_is_below(*pair) for pair in zip(grams, shifts, strict=True)])
    proved: BoolArray = frobenius_norms(grams) <= shifts
    left = np.flatnonzero(~proved)
    if left.size:
        proved[left] = _factored(grams[left], shifts[left])
    return proved


def frobenius_norms(stack: Matrix) -> FloatArray:
    """Return the computed norms of the matrices [n, d, d]: [n]."""
    rows = stack.reshape(len(stack), -1).view(np.float64)
    norms: FloatArray = np.sqrt(rows[:, None] @ rows[:, :, None])[:, 0, 0]
    return norms


def _is_below(gram: FloatArray, shift: float) -> bool:
    """Do as `_factored` for one real matrix, on one of its triangles.

    With rows and columns in reverse order, A = shift·I − G has a lower factor; in the original
    order it is an upper U with A = U Uᵀ, and computing U Uᵀ takes a third of the work of a product
    that ignores zeros. The other triangles hold A itself throughout, where the residual is then 0;
    whatever they hold, the residual on one triangle is at least 1/√2 of the whole.
    """
    shifted = np.negative(gram)
    shifted.reshape(-1)[:: len(gram) + 1] += shift
    upper = _upper_factor(shifted)
    if upper is None:
        return False
    product, _ = dlauum(upper.T, lower=0, overwrite_c=1)
    residual = np.subtract(shifted, product.T, out=shifted).reshape(-1)
    return math.sqrt(np.dot(residual, residual)) <= 0.5 * RESIDUAL * shift


def _upper_factor(matrix: FloatArray) -> FloatArray | None:
    """Return U of A = U Uᵀ, transposed, in the lower triangle of a copy of A; None if there is
    none."""
    reverse = np.ascontiguousarray(matrix[::-1, ::-1])
    factor, info = dpotrf(reverse.T, lower=1, clean=0, overwrite_a=1)
    return np.ascontiguousarray(factor.T[::-1, ::-1]) if info == 0 else None


def _factored(grams: Matrix, shifts: FloatArray) -> BoolArray:
    """Return whether shift·I − G has a numerical Cholesky factor with a small residual: [n]."""
    side = grams.shape[-1]
    shifted = np.negative(grams)
    shifted.reshape(len(grams), -1)[:, :: side + 1] += shifts[:, None]
    factors = _cholesky(shifted)
    small: BoolArray = frobenius_norms(_residuals(shifted, factors)) <= RESIDUAL * shifts
    return small


def _cholesky(stack: Matrix) -> Matrix:
    """Return lower factors; 0 for matrices that have none."""
    try:
        return np.asarray(np.linalg.cholesky(stack), dtype=stack.dtype)
    except np.linalg.LinAlgError:
        if len(stack) == 1:
            return np.zeros_like(stack)
    return np.concatenate([_cholesky(matrix[None]) for matrix in stack])


def _residuals(stack: Matrix, factors: Matrix) -> Matrix:
    """Return A − R R*."""
    if not np.iscomplexobj(factors):
        return np.asarray(stack - factors @ factors.swapaxes(1, 2), dtype=stack.dtype)
    real, imaginary = np.ascontiguousarray(factors.real), np.ascontiguousarray(factors.imag)
    real_t = real.swapaxes(1, 2)
    mixed = imaginary @ real_t
    result = stack.copy()
    result.real -= real @ real_t + imaginary @ imaginary.swapaxes(1, 2)
    result.imag -= mixed - mixed.swapaxes(1, 2)
    return result


SLACK: Final = 2.0**-10  # of an eigenvalue
_EXACT_SLACK: Final = 2.0**-40  # where a matrix is a number
_MORE_ROUNDS: Final = 8  # of the power iteration, where one was not enough
_DIRECT_SIDE: Final = 64  # up to here a full eigenvalue routine is as cheap
_SMALL: Final = 128  # up to here a proof costs little more than a guess
_ACCURACY: Final = 1e-5
_ATTEMPTS: Final = 24
_PATIENCE: Final = 3  # attempts before the slack grows
_INWARD: Final = 1.0 - 2.0**-48
_CHEAP: Final = 2.0**19  # multiplications that cost less than another stack


@dataclass(frozen=True, slots=True, eq=False)
class Stack(Measure):
    """The matrices of several uses.

    parts: the matrices of each use. owners: the use of each matrix. limits: shifts at which a use
    is proved to be within its limit. vectors: the state of the power iteration between calls: [n,
    side, 1]. inside: which uses were within their limits in the last call; if all were, this is
    checked first, and often no guess is needed.
    """

    matrices: tuple[Matrices, ...]
    parts: tuple[slice, ...]
    owners: IndexArray
    factors: tuple[float, ...]
    limits: FloatArray
    grams: Matrix = field(repr=False)
    vectors: Matrix = field(repr=False)
    inside: BoolArray = field(repr=False)

    @classmethod
    def of(cls, side: int, uses: Sequence[Use], matrices: Sequence[Matrices]) -> Stack:
        """Stack matrices of at most this side, all real or all complex; smaller ones are padded
        with zeros."""
        ends = list(itertools.accumulate(item.count for item in matrices))
        parts = tuple(map(slice, [0, *ends], ends))
        owners = np.repeat(np.arange(len(ends)), [item.count for item in matrices])
        factors = [item.factor * (1.0 + product_margin(side, item.longer)) for item in matrices]
        limits = [(use.limit / f) ** 2 * _INWARD for use, f in zip(uses, factors, strict=True)]
        kind = np.complex128 if matrices[0].is_complex else np.float64
        start = np.random.default_rng(0).standard_normal((len(owners), side, 1))
        for item, rows in zip(matrices, parts, strict=True):
            start[rows, item.side :] = 0.0
        grams: Matrix = np.zeros((len(owners), side, side), dtype=kind)
        vectors: Matrix = start.astype(kind)
        spreads = tuple(item.spread for item in matrices)
        return cls(
            tuple(uses),
            spreads,
            tuple(matrices),
            parts,
            owners,
            tuple(factors),
            np.array(limits),
            grams,
            vectors,
            np.zeros(len(ends), dtype=np.bool_),
        )

    def bounds(self, numbers: Numbers, *, tight: bool) -> Sequence[float]:
        """Returns B ≥ norm of each use: factor·√q, where all matrices of a use are below q.

        Proof: `product_margin`, and the factor of the matrices. What was proved at a smaller
        shift holds at a larger one. The floor keeps q above all underflow.
        Attained: within 2^-11 of what the matrices can tell.
        """
        with np.errstate(all="ignore"):
            for use, item, rows in zip(self.uses, self.matrices, self.parts, strict=True):
                item.gram(numbers[use.parameter], self.grams[rows, : item.side, : item.side])
            squares = self._proved(tight)
        pairs = zip(squares.tolist(), self.factors, strict=True)
        return [math.sqrt(square) * factor for square, factor in pairs]

    def _proved(self, tight: bool) -> FloatArray:
        """Return for each use q such that all of its matrices are proved to be below it; inf if
        none is found."""
        is_asked = not tight and self.grams.shape[-1] <= _SMALL and bool(self.inside.all())
        if is_asked and below(self.grams, self.limits[self.owners]).all():
            return self.limits
        squares = self._guessed(tight)
        self.inside[:] = squares <= self.limits
        return squares

    def _guessed(self, tight: bool) -> FloatArray:
        """Do as `_proved`, at guessed shifts."""
        slack = SLACK if self.grams.shape[-1] > 1 else _EXACT_SLACK
        peaks = self._largest(self._iterated(1))
        squares = self._shifts(peaks, slack, tight)
        proved = below(self.grams, squares[self.owners])
        if proved.all():
            return squares
        return self._proved_at_last(peaks, squares, np.flatnonzero(~proved), tight)

    def _proved_at_last(
        self, peaks: FloatArray, squares: FloatArray, left: IndexArray, tight: bool
    ) -> FloatArray:
        """Do as `_proved` for matrices that the first attempt did not prove, with better
        estimates."""
        slack = SLACK
        for attempt in range(_ATTEMPTS):
            failed = np.unique(self.owners[left])
            peaks[failed] = np.maximum(peaks[failed], squares[failed])
            left = left[np.isfinite(peaks)[self.owners[left]]]
            if not left.size:
                break
            self._sharpen(peaks, left, attempt)
            active = np.unique(self.owners[left])
            squares[active] = self._shifts(peaks, slack, tight)[active]
            left = left[~below(self._chosen(left), squares[self.owners[left]])]
            slack = slack if attempt < _PATIENCE else 4.0 * slack
        squares[~np.isfinite(peaks)] = math.inf
        squares[np.unique(self.owners[left])] = math.inf
        return squares

    def _shifts(self, peaks: FloatArray, slack: float, tight: bool) -> FloatArray:
        """Return shifts a little above the peaks, or the limit if it lies between, or if it
        suffices."""
        guesses = np.maximum(peaks * (1.0 + slack), self.limits * FLOOR)
        inside = peaks < self.limits
        if tight:
            inside &= guesses > self.limits
        return np.where(inside, self.limits, guesses)

    def _largest(self, values: FloatArray) -> FloatArray:
        """Return the largest value over the matrices of each use."""
        if len(values) == len(self.uses):
            return values
        return np.maximum.reduceat(values, [rows.start for rows in self.parts])

    def _sharpen(self, peaks: FloatArray, which: IndexArray, attempt: int) -> None:
        """Improve the estimates of the matrices that could not be proved, where that is worth the
        cost."""
        if attempt > 1:
            return
        grams = self._chosen(which)
        if grams.shape[-1] <= _DIRECT_SIDE:
            estimates = np.linalg.eigvalsh(grams)[:, -1]
        elif attempt == 0:
            estimates = self._iterated(_MORE_ROUNDS, which)
        else:
            stack: Any = grams
            estimates = np.sqrt(estimated_squares(stack, _ACCURACY))
        np.maximum.at(peaks, self.owners[which], estimates)

    def _iterated(self, rounds: int, which: IndexArray | None = None) -> FloatArray:
        """Return lower estimates of the largest eigenvalues, by the power iteration: [n].

        A matrix that is not finite has none, and leaves its vector for later matrices.
        """
        grams = self.grams if which is None else self._chosen(which)
        if grams.shape[-1] == 1:
            return np.array(grams[:, 0, 0].real)
        vectors = self.vectors if which is None else self.vectors[which]
        for _ in range(rounds):
            nearer = _product(grams, vectors)
            images = _product(grams, nearer)
            before, after = frobenius_norms(nearer), frobenius_norms(images)
            wide = after[:, None, None]
            np.divide(images, wide, out=vectors, where=(wide > 0.0) & (wide < np.inf))
        if which is not None:
            self.vectors[which] = vectors
        return np.divide(after, before, out=np.zeros_like(after), where=before != 0.0)

    def _chosen(self, which: IndexArray) -> Matrix:
        return self.grams if len(which) == len(self.grams) else self.grams[which]


def _product(left: Matrix, right: Matrix) -> Matrix:
    return np.asarray(left @ right, dtype=left.dtype)


def stacks_of(uses: Sequence[Use]) -> list[Stack]:
    """Return as few stacks as possible for uses that are linear maps; maps that are 0 are
    dropped."""
    found: dict[tuple[bool, int], list[tuple[Use, Matrices]]] = {}
    for use in uses:
        if use.node is not None and use.operand is not None:
            matrices = matrices_of(use.node, use.operand)
            if matrices is not None:
                found.setdefault((matrices.is_complex, matrices.side), []).append((use, matrices))
    for small, large in itertools.pairwise(sorted(found)):
        count = sum(matrices.count for _, matrices in found[small])
        work = count * large[1] ** 3 * (4 if large[0] else 1)
        if small[0] == large[0] and small[1] > 1 and work <= _CHEAP:
            found[large] += found.pop(small)
    return [Stack.of(side, *zip(*pairs, strict=True)) for (_, side), pairs in found.items()]
