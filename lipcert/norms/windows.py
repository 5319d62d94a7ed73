"""Window multiplicity: how much sliding a window over a grid can stretch a norm.

What enters: a geometry. What leaves: certified constants that depend on nothing else: the norm of
patch extraction with a free kernel (convolution weights), of overlapping patches (pooling), and
the number of positions (biases).
"""

from __future__ import annotations

import math

from lipcert.norms.geometry import Geometry, Window
from lipcert.upper import Upper


def window_multiplicity(geometry: Geometry) -> Upper:
    """Returns B with B ≥ sup ‖conv(w, x)‖₂ over all kernels ‖w‖_F ≤ 1 and inputs ‖x‖₂ ≤ 1.

    So ‖∂conv/∂w‖ ≤ B‖x‖ and ‖∂conv/∂x‖ ≤ B‖w‖_F, for any channels, groups and zero pads.
    Hypotheses: zero padding (the geometry has no other).
    Proof: one channel first. The bilinear map has a 0/1 tensor A[y, x, t] = Π_i A_i[y_i, x_i, t_i]
    (output y reads input x through tap t), any two indices fixing the third. Its norm is at most
    that of each flattening, and a flattening of a partial permutation with rows that repeat at
    most m times has norm √m: m is the number of windows that read one position, of taps read by
    one window, or of outputs that use one tap. Flattenings may differ between dimensions:
    apply the bound of dimension 1 to the tensor whose entries are the norms of the slices along
    the others. Channels: ‖Σ_c X_c w_c‖² ≤ Σ_c ‖X_c‖² for the patch matrices X_c of single
    channels; groups are block diagonal.
    Attained: windows that do not overlap; asymptotically by constant images under a constant
    kernel (3×3: 3; 7×7 with stride 2: 4).
    """
    square = math.prod(
        min(max(window.multiplicity()), max(window.reads()), _uses(window)) for window in geometry
    )
    return Upper(float(square)).sqrt()


def max_pool_norm(geometry: Geometry) -> Upper:
    """Returns B with B ≥ the Lipschitz constant of max pooling in the Euclidean norm.

    Hypotheses: none; padding (−∞) is never selected from a window that reads the input.
    Proof: |max(x_S) − max(z_S)| ≤ max_S |x − z| ≤ ‖x_S − z_S‖, and each input position lies in
    at most Π overlap_i windows S.
    Attained: a single peak at a position of largest overlap.
    """
    return Upper(float(largest_overlap(geometry))).sqrt()


def largest_overlap(geometry: Geometry) -> int:
    """The largest number of windows that read one input position, exactly."""
    return math.prod(window.overlap for window in geometry)


def conv_positions(geometry: Geometry) -> int:
    """The number of output positions, each of which receives the bias once."""
    return math.prod(window.outputs for window in geometry)


def _uses(window: Window) -> int:
    """The largest number of outputs that read the input through one tap."""
    return max(len(window.readers(tap)) for tap in range(window.taps))
