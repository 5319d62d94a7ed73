"""‖A‖₂ ≤ c for the linear part A of a step of the program: Dense or Conv.

Input: a step with its operand, known exactly or within an interval, a claim, and a witness that
names the route of the proof. Output: whether the claim is proved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.core.arithmetic import multiply_up, round_down, sqrt_up
from lipcert.core.interval import Array, Interval, norm_up, up
from lipcert.core.norms.convolution import Convolution, NormCheck
from lipcert.core.program import Conv, Dense, Shape, Window


@final
@dataclass(frozen=True, slots=True)
class NormWitness:
    """How a norm is proved: "windows", "absolute", "explicit" or "torus"; "dense" is "windows".

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
    return Kernel.of(op, shape_in, shape_out).norm_at_most(claim, witness, check)


def frobenius_at_most(array: Array, radius: float) -> bool:
    """Whether ‖array‖_F ≤ radius could be proved: membership in a ball."""
    return norm_up(array) <= radius


@final
@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A convolution whose kernel lies in `entries`; a matrix is one of one tap at one position.

    frame: its windows, with some kernel of the same shape. adjoint: the linear map is the
    transpose of that convolution, and has the same norm.
    """

    entries: Interval
    frame: Convolution
    adjoint: bool

    @classmethod
    def of(cls, op: Dense | Conv, shape_in: Shape, shape_out: Shape) -> Kernel:
        """The linear part of a step; ValueError where it does not fit its shapes."""
        if isinstance(op, Dense):
            entries = Interval(op.weight.lo, op.weight.hi).moved(lambda end: end[:, :, None])
            if (shape_out[-1], shape_in[-1]) != op.weight.shape or shape_in[:-1] != shape_out[:-1]:
                raise ValueError("a matrix does not fit the shapes of its step")
            return cls(entries, Convolution(entries.lo, (1,), _POINT), False)
        entries = Interval(op.weight.lo, op.weight.hi)
        above, below = (shape_in, shape_out) if op.transposed else (shape_out, shape_in)
        frame = Convolution(entries.lo, below[2:], op.window, op.groups)
        outputs, inputs = entries.shape[:2]
        fits = below[:2] == (1, inputs * op.groups) and above == (1, outputs, *op.window.outputs)
        if not fits:
            raise ValueError("a convolution does not fit the shapes of its step")
        return cls(entries, frame, op.transposed)

    @property
    def is_matrix(self) -> bool:
        """Whether it acts on the last axis of a value, not on axis 1."""
        return self.frame.window is _POINT

    def norm_at_most(self, claim: float, witness: NormWitness, check: NormCheck) -> bool:
        """Whether the norm of every convolution by a kernel in `entries` is at most a claim.

        Proof: ‖T_K‖ ≤ ‖T_M‖ + ‖T_(K−M)‖ for the middle M, and ‖T_D‖ ≤ √overlap·‖D‖_F.
        """
        lo, hi = self.entries.lo, self.entries.hi
        if not (math.isfinite(claim) and np.isfinite(lo).all() and np.isfinite(hi).all()):
            return False
        if lo is hi:
            return claim >= 0.0 and _proved(replace(self.frame, kernel=lo), claim, witness, check)
        middle = np.where(lo == hi, lo, 0.5 * lo + 0.5 * hi)
        radius = np.where(lo == hi, 0.0, np.maximum(up(hi - middle), up(middle - lo)))
        frame = replace(self.frame, kernel=middle)
        error = multiply_up(sqrt_up(float(frame.overlap())), norm_up(radius))
        rest = round_down(Fraction(claim) - Fraction(error)) if error < claim or not error else -1.0
        return rest >= 0.0 and _proved(frame, rest, witness, check)


def _proved(frame: Convolution, claim: float, witness: NormWitness, check: NormCheck) -> bool:
    """By the route of the witness."""
    match witness.method:
        case "dense" | "windows":
            return frame.by_windows(claim, check)
        case "explicit":
            return frame.by_matrix(claim, check)
        case "absolute":
            from lipcert.core.norms.torus import absolute_at_most  # noqa: PLC0415  this route only

            return absolute_at_most(frame, claim, check)
        case "torus":
            from lipcert.core.norms.torus import torus_at_most  # noqa: PLC0415  this route only

            return torus_at_most(frame, witness.counts, witness.twists, claim, check)
    return False


_POINT = Window((1,), (1,), (1,), (0,), (1,))
"""one tap at one position"""
