"""Masses: norms of linear maps with all entries replaced by their magnitudes.

What enters: weights that are replayed. What leaves: upper bounds of ‖|W|‖₂, by which rounding
errors of products are measured. Invariant: a mass is at least the norm of the map itself.
"""

from __future__ import annotations

import numpy as np

from lipcert.norms.windows import window_multiplicity
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.upper import ONE, ZERO, FloatArray, Upper, gamma, maximum, norm

_STEPS = 4
_SHARE = 2.0**-20


def matrix_mass(weight: FloatArray) -> Upper:
    """Returns B ≥ ‖|W|‖₂ of a matrix [out, in].

    Proof: the weighted Schur test, ‖A‖² ≤ max_i (Av)_i/w_i · max_j (Aᵀw)_j/v_j for A ≥ 0 and any
    positive v and w; also ‖A‖ ≤ ‖A‖_F. All terms are positive, so that sums of n terms err by at
    most γ_n of themselves. Attained: where v and w are the top singular vectors.
    """
    magnitude = np.abs(weight)
    largest = float(np.max(magnitude, initial=0.0))
    if largest == 0.0:
        return ZERO
    scaled = magnitude / largest
    rows, columns = scaled.shape
    right, left = np.ones(columns), np.ones(rows)
    for _ in range(_STEPS):
        left = _positive(scaled @ right)
        right = _positive(scaled.T @ left)
    ratio = float(np.max((scaled @ right) / left)) * float(np.max((scaled.T @ left) / right))
    slack = ONE + Upper(4.0) * gamma(rows + columns + 16)
    by_schur = (Upper(ratio) * slack).sqrt() * Upper(largest) * slack
    return min(by_schur, norm(weight))


def convolution_mass(op: Conv | ConvTranspose, weight: FloatArray) -> Upper:
    """Returns B ≥ ‖|T|‖₂ of the convolution with this kernel, in either direction.

    Proof: κ·‖W‖_F, see `window_multiplicity`; and with the taps of |W| summed up, ‖|T|‖ is at
    most the norm of that matrix of channels (Young), for each group alone.
    """
    by_norm = window_multiplicity(op.geometry) * norm(weight)
    outer, inner = weight.shape[:2]
    taps = np.sum(np.abs(weight).reshape(outer, inner, -1), axis=2)
    slack = ONE + Upper(4.0) * gamma(weight[0, 0].size + 4)
    by_taps = maximum(map(matrix_mass, taps.reshape(op.groups, outer // op.groups, inner))) * slack
    return min(by_norm, by_taps)


def _positive(vector: FloatArray) -> FloatArray:
    """Scaled to a largest entry of 1, small entries raised."""
    largest = float(np.max(vector, initial=0.0))
    raised: FloatArray = np.maximum(vector / (largest or 1.0), _SHARE)
    return raised
