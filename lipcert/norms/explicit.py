"""The exact norm of small convolutions: their finite Gram matrices, with every border effect.

What enters: kernels and a geometry. What leaves: an `Upper` within 1e-7 of the norm of the finite
zero-padded operator, which no bound by frequencies can reach on small maps.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from lipcert.norms.eigenvalues import largest_eigenvalue
from lipcert.norms.geometry import Geometry, IndexArray, Window
from lipcert.norms.reads import flat_positions
from lipcert.norms.scaling import UNDERFLOW, balanced, largest_norm, restored
from lipcert.norms.windows import conv_positions, largest_overlap
from lipcert.upper import ZERO, FloatArray, Upper, gamma


def explicit_cost(shape: tuple[int, ...], geometry: Geometry) -> float:
    """Floating-point operations, roughly, of `explicit_norm` for kernels of this shape."""
    groups, outer, inner, *taps = shape
    side = min(outer * conv_positions(geometry), inner * _inputs(geometry))
    pairs = math.prod(taps) ** 2
    return groups * (2.0 * side**3 + 6e4 * side) + 2e5 * pairs


def explicit_norm(kernels: FloatArray, geometry: Geometry) -> Upper:
    """Returns B with B ≥ ‖T‖₂ for the finite convolution T by each kernel.

    kernels: [groups, out, in, *taps].
    Hypotheses: zero padding; the kernels' taps are those of the geometry.
    Proof: ‖T‖² = λ_max(T*T) = λ_max(TT*); the smaller Gram matrix is assembled from the products
    K_tᵀK_t' (K_tK_t'ᵀ) of tap matrices, each added where both taps meet at an output (input).
    An entry is a sum of at most channels · taps products, hence errs by at most γ of
    (|T|ᵀ|T|) entry by entry, and ‖|T|‖² ≤ overlap · ‖K‖_F² bounds the 2-norm of the error.
    Attained: within 1e-7 relative.
    """
    if not np.any(kernels):
        return ZERO
    scaled, exponent = balanced(kernels)
    _, outer, inner, *taps = kernels.shape
    by_output = outer * conv_positions(geometry) < inner * _inputs(geometry)
    mass = largest_norm(scaled)
    terms = (max(outer, inner) + 2) * math.prod(taps)
    error = gamma(terms) * mass * mass * Upper(float(largest_overlap(geometry)))
    square = largest_eigenvalue(_gram(scaled, geometry, by_output)) + error + UNDERFLOW
    return restored(square.sqrt(), exponent)


def _inputs(geometry: Geometry) -> int:
    return math.prod(window.size for window in geometry)


def _gram(kernels: FloatArray, geometry: Geometry, by_output: bool) -> FloatArray:
    """T T* (by_output) or T* T of every group, rows ordered by position, then channel."""
    groups, outer, inner, *taps = kernels.shape
    matrices = kernels.reshape(groups, outer, inner, -1).transpose(3, 0, 1, 2)
    if by_output:
        matrices = matrices.swapaxes(2, 3)
    channels = matrices.shape[3]
    sizes = tuple(window.outputs if by_output else window.size for window in geometry)
    positions = math.prod(sizes)
    meetings = [_all_meetings(window, by_output) for window in geometry]
    gram = np.zeros((positions, positions, groups, channels, channels))
    every_tap = list(enumerate(np.ndindex(*taps)))
    for (i, first), (j, second) in itertools.product(every_tap, repeat=2):
        pairs = [each[a, b] for each, a, b in zip(meetings, first, second, strict=True)]
        rows = flat_positions([pair[0] for pair in pairs], sizes)
        columns = flat_positions([pair[1] for pair in pairs], sizes)
        if rows.size:
            gram[rows, columns] += matrices[i].swapaxes(1, 2) @ matrices[j]
    side = positions * channels
    return gram.transpose(2, 0, 3, 1, 4).reshape(groups, side, side)


def _all_meetings(
    window: Window, by_output: bool
) -> dict[tuple[int, int], tuple[IndexArray, IndexArray]]:
    """For every two taps, the pairs of inputs that one output reads through them.

    by_output: instead, the pairs of outputs that read one input through them.
    """
    readers = [np.array(window.readers(tap), dtype=np.int64) for tap in range(window.taps)]
    positions = [np.array(window.positions(tap), dtype=np.int64) for tap in range(window.taps)]
    keys, values = (positions, readers) if by_output else (readers, positions)
    meetings = {}
    for first, second in itertools.product(range(window.taps), repeat=2):
        _, left, right = np.intersect1d(
            keys[first], keys[second], assume_unique=True, return_indices=True
        )
        meetings[first, second] = (values[first][left], values[second][right])
    return meetings
