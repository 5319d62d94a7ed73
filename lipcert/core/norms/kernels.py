"""Kernels: convolutions, and matrices as convolutions, known exactly or within an interval.

Input: a step, a claim about the norm of its linear part, and a witness that names the route of the
proof. Output: whether the claim is proved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from lipcert.core.arithmetic import sqrt_up
from lipcert.core.interval import Array, Interval
from lipcert.core.norms.claim import NormCheck, NormWitness, all_at_most, matrix_of
from lipcert.core.norms.convolution import Convolution
from lipcert.core.program import Conv, Dense, Shape, Window


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
            entries = matrix_of(op, shape_in, shape_out).moved(lambda end: end[:, :, None])
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

        Proof: ‖T_D‖ ≤ √overlap·‖D‖_F.
        """

        def check_kernel(kernel: Array, bound: float) -> bool:
            return _proved(replace(self.frame, kernel=kernel), bound, witness, check)

        stretch = sqrt_up(float(self.frame.overlap()))
        return all_at_most(self.entries, stretch, claim, check_kernel)


def _proved(frame: Convolution, claim: float, witness: NormWitness, check: NormCheck) -> bool:
    """By the route of the witness."""
    match witness.method:
        case "dense" | "windows":
            return frame.by_windows(claim, check)
        case "explicit":
            from lipcert.core.norms.explicit import explicit_at_most  # noqa: PLC0415  this route

            return explicit_at_most(frame, claim, check)
        case "absolute":
            from lipcert.core.norms.torus import absolute_at_most  # noqa: PLC0415  this route only

            return absolute_at_most(frame, claim, check)
        case "torus":
            from lipcert.core.norms.torus import torus_at_most  # noqa: PLC0415  this route only

            return torus_at_most(frame, witness.counts, witness.twists, claim, check)
    return False


_POINT = Window((1,), (1,), (1,), (0,), (1,))
"""one tap at one position"""
