"""‖A‖₂ ≤ c for the linear part A of a run of steps around one convolution or matrix.

Input: steps of the program. Output: one interval kernel in their place, or whether its norm is
within a claim. A run of maps can have a far smaller norm than the product of their norms.

T_K is the convolution by K, for every K in an interval kernel; what is folded into it leaves the
kernel of the composed map. For a transposed convolution, all of it in the adjoint: what stands
before it acts on the outputs of the kernel.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.kinds import BatchNorm
from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.core.program import Dense, IndexArray, Move, Shape, Step
from lipcert.core.token_kinds import Add, Scale, Shift
from lipcert.core.window_kinds import AveragePool, Conv


def fused_kernel(steps: Sequence[Step], shapes: Mapping[str, Shape]) -> Kernel | None:
    """The run as one kernel, None where the steps are not a run.

    Hypotheses (checked): each step reads only the one before, or is the sum of that and of the
    input of the run; exactly one is a Dense or Conv; the others are a Scale or BatchNorm with a
    factor per channel, a Shift, and around a Conv a Move of whole positions before it or
    an AveragePool behind it.
    Proof: each step is affine, and is folded into the kernel.
    """
    places = [i for i, step in enumerate(steps) if isinstance(step.op, Dense | Conv)]
    if len(places) != 1 or not _is_chain(steps):
        return None
    (middle,) = places
    kernel = _of(steps[middle], shapes)
    for step in reversed(steps[:middle]):
        kernel = None if kernel is None else _preceded(kernel, step, shapes)
    for step in steps[middle + 1 :]:
        kernel = None if kernel is None else _followed(kernel, step, steps[0].inputs[0], shapes)
    return kernel


def _of(step: Step, shapes: Mapping[str, Shape]) -> Kernel | None:
    """The convolution or matrix of a run."""
    if not isinstance(step.op, Dense | Conv):
        return None
    return Kernel.of(step.op, shapes[step.inputs[0]], step.shape)


def _is_chain(steps: Sequence[Step]) -> bool:
    """Whether each step reads the one before, a sum also the input of the first."""
    start = steps[0].inputs[0]
    if steps[0].inputs != (start,):
        return False
    for before, step in itertools.pairwise(steps):
        expected = (before.output, start) if isinstance(step.op, Add) else (before.output,)
        if before.output == start or sorted(step.inputs) != sorted(expected):
            return False
    return True


def _preceded(kernel: Kernel, step: Step, shapes: Mapping[str, Shape]) -> Kernel | None:
    """A kernel behind a step."""
    shape = shapes[step.inputs[0]]
    if isinstance(step.op, Move):
        from lipcert.core.norms.surroundings import behind, lines_of  # noqa: PLC0415  for these

        lines = lines_of(step.op.sources, shape)
        return None if lines is None or kernel.is_matrix else behind(kernel, lines, shape[2:])
    factors = _factors(kernel, step, shape)
    return None if factors is None else scaled(kernel, factors, outputs=False)


def _followed(kernel: Kernel, step: Step, start: str, shapes: Mapping[str, Shape]) -> Kernel | None:
    """A kernel before a step; start: the input of the run."""
    shape = shapes[step.inputs[0]]
    if isinstance(step.op, Add):
        if any(shapes[value] != step.shape for value in step.inputs):
            return None
        through, around = step.op.signs if step.inputs[1] == start else step.op.signs[::-1]
        return plus_identity(kernel, through, around)
    if isinstance(step.op, AveragePool):
        from lipcert.core.norms.surroundings import averaged  # noqa: PLC0415  for these only

        return None if kernel.is_matrix else averaged(kernel, step.op.window)
    factors = _factors(kernel, step, shape)
    return None if factors is None else scaled(kernel, factors, outputs=True)


def _factors(kernel: Kernel, step: Step, shape: Shape) -> Interval | None:
    """The factor of each channel of an affine step that keeps the shape; None for another."""
    axis = len(shape) - 1 if kernel.is_matrix else 1
    if step.shape != shape:
        return None
    match step.op:
        case Shift():
            return Interval(np.ones(shape[axis]), np.ones(shape[axis]))
        case Scale(factor):
            others = (n for i, n in enumerate(factor.shape) if i != axis)
            if len(factor.shape) != len(shape) or any(n != 1 for n in others):
                return None
            ends = Interval(factor.lo.reshape(-1), factor.hi.reshape(-1))
            return ends.broadcast((shape[axis],))
        case BatchNorm(scale, _, _, inverse) if axis == 1:
            return Interval(scale.lo, scale.hi) * Interval(inverse.lo, inverse.hi)
    return None


def scaled(kernel: Kernel, factors: Interval, outputs: bool) -> Kernel | None:
    """Factors [channels] on the outputs of the map, or on its inputs; None if they do not fit.

    Proof: diag(b)·T_K has the kernel b_o·K[o, i], T_K·diag(a) the kernel K[o, i]·a_i, i counted
    through all groups.
    """
    groups, entries = kernel.frame.groups, kernel.entries
    rows, inputs, *taps = entries.shape
    on_rows = outputs is not kernel.adjoint
    if factors.shape != ((rows,) if on_rows else (inputs * groups,)):
        return None
    split = (groups, rows // groups, inputs, *taps)
    ones = [1] * len(taps)
    shape = (groups, rows // groups, 1, *ones) if on_rows else (groups, 1, inputs, *ones)
    product = _reshaped(entries, split) * _reshaped(factors, shape).broadcast(split)
    return replace(kernel, entries=_reshaped(product, entries.shape))


def plus_identity(kernel: Kernel, through: int, around: int) -> Kernel | None:
    """through·T_K x + around·x for signs ±1; None where no tap fits.

    Proof: the identity is a convolution by 1 at a tap through which every output reads the entry
    of its own place, for the channel of the output within its group.
    """
    rows, inputs = kernel.entries.shape[:2]
    own = [_own_tap(kernel.frame, axis) for axis in range(len(kernel.frame.size))]
    taps = tuple(tap for tap in own if tap is not None)
    if rows != inputs * kernel.frame.groups or len(taps) != len(own) or {through, around} - {1, -1}:
        return None
    channels = np.arange(rows, dtype=np.int64)
    where: tuple[IndexArray, ...] = (channels, channels % inputs, *map(np.array, taps))
    ends = np.full(rows, float(around))
    signed = kernel.entries if through > 0 else -kernel.entries
    lo, hi = signed.lo.copy(), signed.hi.copy()
    total = Interval(lo[where], hi[where]) + Interval(ends, ends)
    lo[where], hi[where] = total.lo, total.hi
    return replace(kernel, entries=Interval(lo, hi))


def _own_tap(frame: Convolution, axis: int) -> int | None:
    """A tap through which output o reads entry o, for every entry."""
    if frame.window.outputs[axis] != frame.size[axis]:
        return None
    own = (frame.reads(axis) == np.arange(frame.size[axis])[:, None]).all(axis=0)
    return int(np.argmax(own)) if own.any() else None


def _reshaped(interval: Interval, shape: tuple[int, ...]) -> Interval:
    return interval.moved(lambda end: end.reshape(shape))
