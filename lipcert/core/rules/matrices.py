"""Products of interval matrices, by two or three floating-point products; affine images.

Hypotheses on the machine: as in `norms.float_engine` (conventional products, any order, perhaps
fused; gradual underflow is not assumed).
"""

from __future__ import annotations

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Array, Interval, down, up
from lipcert.core.rules.facts import root_up


def product(left: Interval, right: Interval) -> Interval:
    """left @ right over [..., m, n] and [..., n, k]; the whole line where an end is infinite.

    Proof: with left = a + δ, |δ| ≤ r, and right = b + ε, |ε| ≤ s, the product is
    ab + δb + (a + δ)ε. fl(ab) errs by at most γ_n|a||b| + 4nη, η = 2^-1022, so that the radius is
    at most (r + γ_n|a|)|b| + (|a| + r)s + 4nη. γ_n ≤ n·2^-52, and what the sums of non-negative
    terms lose is below 4(n + 1)u of them and 12nη.
    Attained: up to rounding, where one factor is exact.
    """
    (a, r), (b, s) = _ball(left), _ball(right)
    terms = a.shape[-1]
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        centre = a @ b
        magnitude = np.abs(a)
        spread = up(r + up(magnitude * (terms * 2.0**-52))) @ np.abs(b)
        if s.any():
            spread = spread + up(magnitude + r) @ s
        spread = up(up(spread * (1.0 + (terms + 4) * 2.0**-51)) + terms * 2.0**-1016)
        low, high = down(centre - spread), up(centre + spread)
    known = np.isfinite(low) & np.isfinite(high)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        known = np.zeros_like(known)
    return Interval(np.where(known, low, -np.inf), np.where(known, high, np.inf))


def transposed(matrix: Interval) -> Interval:
    """The last two axes exchanged."""
    return matrix.moved(lambda end: np.swapaxes(end, -1, -2))


def _ball(interval: Interval) -> tuple[Array, Array]:
    """A centre, and how far the ends are from it at most; not finite where an end is not."""
    low, high = interval.lo, interval.hi
    if low is high:
        return low, np.broadcast_to(0.0, low.shape)
    with np.errstate(invalid="ignore"):
        centre = np.where(low == high, low, 0.5 * low + 0.5 * high)
        radius = np.maximum(up(high - centre), up(centre - low))
    return centre, np.where(low == high, 0.0, radius)


def affine_norm(largest: float, x: float, cross: float, shift: float, copies: int) -> float:
    """≥ ‖Tx + s‖, s a shift added `copies` times, where ‖T‖ ≤ largest and ‖Tᵀs‖ ≤ cross.

    Proof: ‖Tx‖ + ‖s‖, or the square expanded: ‖Tx‖² + 2⟨x, Tᵀs⟩ + ‖s‖², where ‖s‖ = √copies·shift.
    """
    linear, added = multiply_up(largest, x), multiply_up(root_up(copies), shift)
    square = add_up(multiply_up(linear, linear), multiply_up(added, added))
    square = add_up(square, multiply_up(2.0, multiply_up(x, cross)))
    return min(add_up(linear, added), sqrt_up(square))
