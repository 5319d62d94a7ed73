"""‖A‖₂ ≤ c for the linear part A of a step of the program: Dense or Conv.

Input: a step with its operand, known exactly or within an interval, a claim, and a witness that
names the route of the proof. Output: whether the claim is proved.
"""

from __future__ import annotations

from lipcert.core.interval import Interval
from lipcert.core.norms.claim import NormCheck, NormWitness, all_at_most
from lipcert.core.program import Conv, Dense, Shape


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


def matrix_of(op: Dense, shape_in: Shape, shape_out: Shape) -> Interval:
    """The entries of a matrix that acts on the last axis; ValueError where it does not fit."""
    if (shape_out[-1], shape_in[-1]) != op.weight.shape or shape_in[:-1] != shape_out[:-1]:
        raise ValueError("a matrix does not fit the shapes of its step")
    return Interval(op.weight.lo, op.weight.hi)
