"""How long v + Jd can be for known v, where a form bounds J: by a level that is stated."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import add_up, sqrt_up
from lipcert.core.forms.form import Form
from lipcert.core.interval import Array, Interval, norm_up, up
from lipcert.core.norms.definite import MAX_SIZE, room_for


def reach(form: Form, value: Interval, radius: float, level: float) -> float:
    """≥ ‖v + Jd‖ for every v in `value` [runs, size] and ‖d‖ ≤ radius over all runs; inf: unproved.

    Proof: for λ > λ_max(Q), maximising over d,
        ‖v + Jd‖² ≤ λ‖d‖² + λ·vᵀ(λI − JJᵀ)⁻¹v ≤ λ‖d‖² + λ·vᵀ(λI − Q)⁻¹v,
    and the last product is at most c if [[λI − Q, v], [vᵀ, c]] is positive semidefinite (so is
    then λI − Q, and Q may be replaced by limits from below). The squares of the runs add, and
    one matrix with a border row for each v serves all: c is then a diagonal entry of its
    corner. λ = level is not trusted, nor is the corner; the distance of v to its middle is added.
    Attained: for a single matrix, up to the choice of λ.
    """
    middle = 0.5 * value.lo + 0.5 * value.hi
    unit = math.frexp(norm_up(middle))[1]
    with np.errstate(over="ignore", under="ignore"):
        scaled = float(np.ldexp(level, -2 * form.exponent))
    fits = len(form.matrix) + len(middle) <= MAX_SIZE and math.isfinite(radius)
    above = float(np.max(form.matrix.diagonal(), initial=0.0)) < scaled < math.inf
    if not (fits and above and norm_up(middle) < math.inf):
        return math.inf
    corner = _corner(form, scaled, np.ldexp(middle, -unit))
    if corner is None:
        return math.inf
    # in units of 4^exponent for λ and 4^unit for v vᵀ
    square = Fraction(scaled) * (
        Fraction(radius) ** 2 * Fraction(4) ** form.exponent + corner * Fraction(4) ** unit
    )
    rest = norm_up(np.maximum(up(value.hi - middle), up(middle - value.lo)))
    return add_up(sqrt_up(square), rest)


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
