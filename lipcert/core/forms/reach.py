"""How long v + Jd can be for known v, where a form bounds J: by a level that is only proposed."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.forms.form import Form
from lipcert.core.interval import Array, Interval, norm_up, up
from lipcert.core.norms.definite import MAX_SIZE, room_for

_LEVELS: Final = 200


def reach(form: Form, value: Interval, radius: float) -> float:
    """≥ ‖v + Jd‖ for every v in `value` [runs, size] and ‖d‖ ≤ radius over all runs.

    Proof: ‖v‖ + ‖J‖R. Also, for λ > λ_max(Q), maximising over d,
        ‖v + Jd‖² ≤ λ‖d‖² + λ·vᵀ(λI − JJᵀ)⁻¹v ≤ λ‖d‖² + λ·vᵀ(λI − Q)⁻¹v,
    and the last product is at most c if [[λI − Q, v], [vᵀ, c]] is positive semidefinite (so is
    then λI − Q, and Q may be replaced by limits from below). The squares of the runs add, and
    one matrix with a border row for each v serves all: c is then a diagonal entry of its
    corner. λ is not trusted, nor is the corner; the distance of v to its middle is added.
    Attained: for a single matrix, up to the choice of λ.
    """
    simple = add_up(multiply_up(form.over_ball(), radius), norm_up(value.magnitude()))
    middle = 0.5 * value.lo + 0.5 * value.hi
    size = len(form.matrix) + len(middle)
    if not (math.isfinite(simple) and size <= MAX_SIZE and middle.any() and radius > 0.0):
        return simple
    rest = norm_up(np.maximum(up(value.hi - middle), up(middle - value.lo)))
    unit = math.frexp(norm_up(middle))[1]
    offsets = np.ldexp(middle, -unit)
    with np.errstate(over="ignore"):
        far = float(np.ldexp(radius, form.exponent - unit))
    level = _best_level(form, offsets, far)
    corner = _corner(form, level, offsets)
    if corner is None:
        return simple
    # in units of 4^exponent for λ and 4^unit for v vᵀ
    square = Fraction(level) * (
        Fraction(radius) ** 2 * Fraction(4) ** form.exponent + corner * Fraction(4) ** unit
    )
    return min(simple, add_up(sqrt_up(square), rest))


def _corner(form: Form, level: float, offsets: Array) -> Fraction | None:
    """≥ Σ vᵀ(λI − Q)⁻¹v over the rows v, for rows of a total norm of at most 1; None: unproved.

    All is scaled so that λ and the corner are below ½. λI − Q is rounded on the diagonal, by at
    most u/2 then, and the other half of u covers what underflows.
    """
    size, count = len(form.matrix), len(offsets)
    half = -(-(math.frexp(level)[1] + 1) // 2)
    gap = np.ldexp(level * np.eye(size) - form.matrix, -2 * half)
    room = 2.0 * float(room_for(size + count))
    try:
        solved = np.linalg.solve(gap - room * np.eye(size), offsets.T)
    except np.linalg.LinAlgError:
        return None
    corner = offsets @ solved
    shift = max(math.frexp(float(np.max(corner.diagonal(), initial=1e-300)))[1], -60)
    exponent = -(-(shift + 1) // 2)
    corner = np.ldexp(0.5 * corner + 0.5 * corner.T, -2 * exponent) + room * np.eye(count)
    border = np.ldexp(offsets, -exponent)
    whole = np.block([[gap, border.T], [border, corner]])
    if not (np.isfinite(whole).all() and form.proof(whole, Fraction(1, 1 << 53))):
        return None
    total = sum((Fraction(c) for c in corner.diagonal().tolist()), Fraction(0))
    return total * Fraction(4) ** (exponent - half)


def _best_level(form: Form, offsets: Array, radius: float) -> float:
    """An untrusted λ > λ_max(Q) for which λR² + λ·vᵀ(λI − Q)⁻¹v is small."""
    values, vectors = form.spectrum
    squares = np.sum((offsets @ vectors) ** 2, axis=0)
    levels = max(float(values[-1]), 1e-300) * (1.0 + np.geomspace(1e-6, 1e6, _LEVELS))
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.square(np.float64(radius))
        costs = levels * (far + (squares / (levels[:, None] - values)).sum(axis=1))
    return float(levels[np.argmin(costs)])
