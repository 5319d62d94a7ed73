"""‖A‖₂ ≤ c for the linear part A of a step of the program: Dense or Conv.

Input: a step with its operand, known exactly or within an interval, a claim, and a witness that
names the route of the proof. Output: whether the claim is proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, final

import numpy as np

from lipcert.core.arithmetic import multiply_up, round_down
from lipcert.core.interval import Array, Interval, norm_up
from lipcert.core.norms.claim import FloatMatrix
from lipcert.core.program import Conv, Dense, Shape

NormCheck: TypeAlias = Callable[[FloatMatrix, float], bool]
"""whether ‖W‖₂ ≤ c could be proved of a matrix"""


@final
@dataclass(frozen=True, slots=True)
class NormWitness:
    """How a norm is proved: "dense" of a matrix; "windows", "absolute", "explicit" or "torus".

    twists, counts: of `torus_at_most`.
    """

    method: str
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


def step_norm_at_most(  # noqa: PLR0917 (a map has two shapes)
    op: Dense | Conv,
    shape_in: Shape,
    shape_out: Shape,
    claim: float,
    witness: NormWitness,
    check: NormCheck,
) -> bool:
    """Whether ‖A‖₂ ≤ claim could be proved, A the linear part of the step for one example.

    ValueError where the step does not fit its shapes, or is beyond the limits of the check.
    """
    if isinstance(op, Dense) and witness.method == "dense":
        return all_at_most(matrix_of(op, shape_in, shape_out), 1.0, claim, check)
    from lipcert.core.norms.kernels import Kernel  # noqa: PLC0415  convolutions only

    return Kernel.of(op, shape_in, shape_out).norm_at_most(claim, witness, check)


def frobenius_at_most(array: Array, radius: float) -> bool:
    """Whether ‖array‖_F ≤ radius could be proved: membership in a ball."""
    return norm_up(array) <= radius


def matrix_of(op: Dense, shape_in: Shape, shape_out: Shape) -> Interval:
    """The entries of a matrix that acts on the last axis; ValueError where it does not fit."""
    if (shape_out[-1], shape_in[-1]) != op.weight.shape or shape_in[:-1] != shape_out[:-1]:
        raise ValueError("a matrix does not fit the shapes of its step")
    return Interval(op.weight.lo, op.weight.hi)


def all_at_most(entries: Interval, stretch: float, claim: float, check: NormCheck) -> bool:
    """Whether ‖A_K‖₂ ≤ claim for every K in `entries`, where A is linear in K.

    stretch: ‖A_D‖₂ ≤ stretch·‖D‖_F for every D. check: of ‖A_M‖₂, by the entries of M.
    Proof: ‖A_K‖ ≤ ‖A_M‖ + ‖A_(K−M)‖ for the middle M.
    """
    if not (math.isfinite(claim) and np.isfinite(entries.magnitude()).all()):
        return False
    middle, radius = entries.ball()
    error = multiply_up(stretch, norm_up(radius))
    rest = round_down(Fraction(claim) - Fraction(error)) if error < claim or not error else -1.0
    return rest >= 0.0 and check(middle, rest)
