"""Kinds of steps that many programs lack; a check loads them only when it needs one.

They follow the conventions of those in `program`.
"""

from dataclasses import dataclass
from typing import ClassVar

from lipcert.core.program import FloatArray, Op, Operand, Shape, Window, kind_of_step


@dataclass(frozen=True, slots=True, eq=False)
class Compare(Op):
    """y = 1 where x = limits, or where x > limits if `above`, and 0 elsewhere.

    x: whole numbers, or 0 and 1. limits: whole numbers, of the shape of x.
    """

    limits: FloatArray
    above: bool


@kind_of_step
class MaskedMean(Op):
    """y = Σ x·m / max(Σ m, floor) over axes, which keep the length 1, for a mask m of 0 and 1.

    The mask has the rank of x, and is repeated along axes on which its length is 1. floor > 0.
    """

    axes: Shape
    floor: float


@kind_of_step
class LpPool(Op):
    """(Σ |x|^p)^(1/p) over windows of the axes behind the first two; p = 1 or 2."""

    window: Window
    p: int


@kind_of_step
class DivideByNorm(Op):
    """y = x/max(share·‖x‖₂, floor), the norm over axes; 0 at 0. share is one positive number."""

    axes: Shape
    share: Operand
    floor: float


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
class Multiply(Op):
    """y = x_0·x_1 entry by entry, broadcast as numpy does; both may be the same value."""


@kind_of_step
class Divide(Op):
    """y = x_0/x_1 entry by entry, broadcast as numpy does."""


@kind_of_step
class MatMul(Op):
    """y = x_0 @ x_1 as numpy does, both computed from the input."""


@kind_of_step
class Softmax(Op):
    """softmax along an axis, or its logarithm."""

    axis: int
    logarithm: bool


@kind_of_step
class Normalize(Op):
    """y = (x − m)/√(mean of (x − m)² + epsilon) over axes.

    m is the mean over the axes, or 0 if not centred.
    LayerNormalization, InstanceNormalization, RMSNormalization and, between two reshapes,
    GroupNormalization, without their scale and shift, which are steps behind it.
    """

    axes: Shape
    epsilon: float
    centred: bool


@kind_of_step
class Attention(Op):
    """y = softmax(scale·(x_0 @ x_1) + mask) @ x_2 along the last axis of the scores.

    x_0: queries [..., n, d], x_1: transposed keys [..., d, m], x_2: values [..., m, e]. The mask is
    any constant, perhaps −inf in places but not in a whole row: no rule depends on it.
    x_3, if there is one, is 1 where a score is hidden and 0 elsewhere, broadcast to the scores; a
    query that sees nothing has the output 0, or none at all.
    """

    hides: ClassVar[bool] = True
    scale: float
    mask: Operand | None = None


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


@kind_of_step
class Hide(Op):
    """y = x_0, or −inf where x_1 is 1: scores of an `Attention`, until that is assembled.

    Programs do not contain it, as no rule covers infinities.
    """

    is_final: ClassVar[bool] = False
