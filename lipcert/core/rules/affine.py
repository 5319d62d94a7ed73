"""Affine maps: a norm of Tx + s."""

from __future__ import annotations

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.rules.facts import root_up


def affine_norm(largest: float, x: float, cross: float, shift: float, copies: int) -> float:
    """≥ ‖Tx + s‖, s a shift added `copies` times, where ‖T‖ ≤ largest and ‖Tᵀs‖ ≤ cross.

    Proof: ‖Tx‖ + ‖s‖, or the square expanded: ‖Tx‖² + 2⟨x, Tᵀs⟩ + ‖s‖², where ‖s‖ = √copies·shift.
    """
    linear, added = multiply_up(largest, x), multiply_up(root_up(copies), shift)
    square = add_up(multiply_up(linear, linear), multiply_up(added, added))
    square = add_up(square, multiply_up(2.0, multiply_up(x, cross)))
    return min(add_up(linear, added), sqrt_up(square))
