"""Symbol: the matrix function of frequency whose supremum is the norm of a convolution.

What enters: unit-stride kernels [groups, out, in, *taps] with entries below 1 in magnitude.
What leaves: H(w) = P(w)* P(w), P(w) = Σ_t K_t exp(i w·t), at chosen frequencies, with a bound of
the rounding error that holds for all frequencies.

Invariant: frequencies are rational multiples of 2π and are reduced exactly, as integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.norms.frequencies import TWIDDLE_ERROR, half_space, reduced_angles
from lipcert.norms.geometry import IndexArray
from lipcert.norms.scaling import UNDERFLOW, largest_norm
from lipcert.upper import ONE, FloatArray, Upper, gamma

ComplexArray = npt.NDArray[np.complex128]

_PORTION: Final = 2_000_000  # entries


@final
@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """H(w) = Σ_δ A_δ exp(i w·δ) of every group, as real coefficients of cosines and sines.

    spans: degree of P along each axis (number of taps − 1).
    shifts: [terms, axes], one of every pair ±δ.     cosines, sines: [groups, terms, c · c].
    error: ‖computed H(w) − H(w)‖₂ ≤ error for every w and group.
    """

    spans: tuple[int, ...]
    channels: int
    shifts: IndexArray
    cosines: FloatArray
    sines: FloatArray
    error: Upper

    @classmethod
    def of(cls, kernels: FloatArray) -> Symbol:
        """The symbol, on the smaller channel side (P P* and P* P have the same largest eigenvalue).

        Proof of the error bound, with n taps and m = n‖K‖_F² ≥ (Σ_t ‖K_t‖_F)²: A_δ = Σ K_tᵀK_{t+δ}
        is computed with an error of at most γ_k Σ_t |K_t|ᵀ|K_{t+δ}|, k = out · n, in all at most
        γ_k m over every δ. S_δ = A_δ + A_δᵀ and A_δ − A_δᵀ are rounded once more. Each of the
        real and the imaginary part of H(w) is a sum over the terms with an error of at most
        (γ_{terms+2} + twiddle error) m (1 + γ_k). The factor 4 covers both parts and (1 + γ_k).
        """
        if kernels.shape[2] > kernels.shape[1]:
            kernels = kernels.swapaxes(1, 2)
        groups, outer, channels, *taps = kernels.shape
        by_tap = np.moveaxis(kernels, (1, 2), (-2, -1))  # [groups, *taps, out, in]
        shifts = half_space(tuple(size - 1 for size in taps))
        cosines = np.empty((groups, len(shifts), channels * channels))
        sines = np.empty_like(cosines)
        for term, shift in enumerate(shifts):
            matrix = _correlation(by_tap, shift)
            mirrored = matrix.swapaxes(1, 2)
            folded = matrix + mirrored if any(shift) else 0.5 * (matrix + mirrored)
            cosines[:, term] = folded.reshape(groups, -1)
            sines[:, term] = (matrix - mirrored).reshape(groups, -1) if any(shift) else 0.0
        count = math.prod(taps)
        largest = largest_norm(kernels)
        mass = Upper(float(count)) * largest * largest
        per_term = gamma(len(shifts) + 4) + TWIDDLE_ERROR
        error = (gamma(outer * count + 2) + Upper(4.0) * per_term) * mass * (ONE + ONE) + UNDERFLOW
        spans = tuple(size - 1 for size in taps)
        return cls(spans, channels, np.array(shifts).reshape(-1, len(taps)), cosines, sines, error)

    @property
    def groups(self) -> int:
        """Number of independent blocks."""
        return len(self.cosines)

    def portions(
        self, group: IndexArray, numerators: IndexArray, denominators: IndexArray
    ) -> Iterator[ComplexArray]:
        """`at`, in portions of moderate memory: [part, c, c]."""
        step = max(1, _PORTION // (self.channels**2 + len(self.shifts)))
        for start in range(0, len(group), step):
            part = slice(start, start + step)
            yield self.at(group[part], numerators[part], denominators[part])

    def at(
        self, group: IndexArray, numerators: IndexArray, denominators: IndexArray
    ) -> ComplexArray:
        """H of group[k] at w_k = 2π · numerators[k] / denominators[k]: [n, c, c].

        group and denominators: [n]; numerators: [n, axes].
        """
        angles = reduced_angles(self.shifts, numerators, denominators)
        cosine, sine = np.cos(angles), np.sin(angles)
        result = np.empty((len(group), self.channels * self.channels), dtype=np.complex128)
        order = np.argsort(group, kind="stable")
        borders = np.flatnonzero(np.diff(group[order])) + 1
        for rows in np.split(order, borders):
            which = group[rows[0]]
            result.real[rows] = cosine[rows] @ self.cosines[which]
            result.imag[rows] = sine[rows] @ self.sines[which]
        return result.reshape(-1, self.channels, self.channels)


def _correlation(by_tap: FloatArray, shift: tuple[int, ...]) -> FloatArray:
    """A_δ = Σ_t K_tᵀ K_{t+δ}: [groups, c, c]. by_tap: [groups, *taps, out, c]."""
    groups, *taps, _, channels = by_tap.shape
    early, late = [slice(None)], [slice(None)]
    for size, step in zip(taps, shift, strict=True):
        early.append(slice(max(0, -step), size - max(0, step)))
        late.append(slice(max(0, step), size - max(0, -step)))
    first = by_tap[tuple(early)].reshape(groups, -1, channels)
    second = by_tap[tuple(late)].reshape(groups, -1, channels)
    product: FloatArray = first.swapaxes(1, 2) @ second
    return product
