"""Kinds of steps that many programs lack; a check loads them only when it needs one.

They follow the conventions of those in `program`.
"""

from dataclasses import dataclass
from typing import ClassVar

from lipcert.core.program import FloatArray, Op, Operand, Shape, kind_of_step


@kind_of_step
class Embedding(Op):
    """y[..., :] = table[x[...], :], for whole numbers x from −rows to rows − 1.

    table: [rows, width]. Negative numbers count from the end of the table; for any other x nothing
    is computed.
    """

    is_stored: ClassVar[bool] = True
    table: Operand


@kind_of_step
class BatchNorm(Op):
    """y = scale·(x − mean)·inverse + shift per channel (axis 1), inverse = 1/√(variance + ε).

    All of shape [channels].
    """

    is_stored: ClassVar[bool] = True
    scale: Operand
    shift: Operand
    mean: Operand
    inverse: Operand


@kind_of_step
class PRelu(Op):
    """y = x where x ≥ 0, slope·x elsewhere; slope has the rank of x, with 1 where repeated."""

    is_function: ClassVar[bool] = True
    slope: Operand


@kind_of_step
class Centre(Op):
    """y = x − mean of x over axes."""

    axes: Shape


@kind_of_step
class ReduceMax(Op):
    """Maximum (or minimum) over axes, which keep the length 1."""

    axes: Shape
    minimum: bool


@kind_of_step
class Sort(Op):
    """Sorted along an axis; all of it is kept (what is dropped is a `Move` behind it)."""

    axis: int


@kind_of_step
class Concat(Op):
    """The inputs one after another along an axis."""

    axis: int


@dataclass(frozen=True, slots=True, eq=False)
class Compare(Op):
    """y = 1 where x = limits, or where x > limits if `above`, and 0 elsewhere.

    x: whole numbers, or 0 and 1. limits: whole numbers, of the shape of x.
    """

    limits: FloatArray
    above: bool


@kind_of_step
class MaskedMean(Op):
    """y = Σ x·m / max(Σ m, floor) over axes, which keep the length 1, for a mask m of 0 and 1, or
    other numbers that are not negative.

    The mask has the rank of x, and is repeated along axes on which its length is 1. floor: −inf for
    none. Nothing is computed where the divisor is 0.
    """

    axes: Shape
    floor: float


@kind_of_step
class DivideByNorm(Op):
    """y = x/‖(share·‖x‖₂, floor)‖_p, the inner norm over axes; 0 at 0.

    share and floor are one number each, share > 0. p = 1, 2, or inf for the larger of both.
    """

    axes: Shape
    share: Operand
    floor: Operand
    p: float


@kind_of_step
class ReduceNorm(Op):
    """(Σ |x|^p + floor)^(1/p) over axes, which keep the length 1; p = 1 or 2."""

    axes: Shape
    p: int
    floor: float


@kind_of_step
class ReduceLogSumExp(Op):
    """ln Σ e^x over axes, which keep the length 1."""

    axes: Shape


@kind_of_step
class LocalResponse(Op):
    """y = x/s^power, s = floor + (strength/size)·Σ x² over `size` channels around each.

    Along axis 1; size is odd, and channels beyond the first or the last count as 0.
    """

    size: int
    strength: float
    power: float
    floor: float


@kind_of_step
class Divide(Op):
    """y = x_0/x_1 entry by entry, broadcast as numpy does."""


@kind_of_step
class InputClip(Op):
    """y = x·min(1, radius/‖x‖₂): not a node of a file; training inserts it before a layer."""

    radius: float


@kind_of_step
class CotangentClip(Op):
    """y = x; backpropagation sends g·min(1, radius/|g|) in place of the gradient g at y.

    |g| is Euclidean or, if by_channel, √Σ_c (Σ_i |g_ci|)², c along axis 1. Not a node of a file.
    """

    clips_cotangents: ClassVar[bool] = True
    radius: float
    by_channel: bool
