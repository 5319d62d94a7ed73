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
from lipcert.core.line import NotProved
from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.core.program import Dense, IndexArray, Move, Shape, Step
from lipcert.core.token_kinds import Add, Scale, Shift
from lipcert.core.window_kinds import AveragePool, Conv


def fused_kernel(steps: Sequence[Step], shapes: Mapping[str, Shape]) -> Kernel:
    """The run as one kernel; raise NotProved where the steps are not a run.

    Hypotheses (checked): each step reads only the one before, or is the sum of that and of the
    input of the run; exactly one is a Dense or Conv; the others are a Scale or BatchNorm with a
    factor per channel, a Shift, and around a Conv a Move of whole positions before it or
    an AveragePool behind it.
    Proof: each step is affine, and is folded into the kernel.
    """
    places = [i for i, step in enumerate(steps) if isinstance(step.op, Dense | Conv)]
    if len(places) != 1 or not _is_chain(steps):
        raise NotProved("its steps are not a run around one matrix or convolution")
    (middle,) = places
    kernel = Kernel.of(steps[middle].op, shapes[steps[middle].inputs[0]], steps[middle].shape)
    for step in reversed(steps[:middle]):
        kernel = _preceded(kernel, step, shapes)
    for step in steps[middle + 1 :]:
        kernel = _followed(kernel, step, steps[0].inputs[0], shapes)
    return kernel


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


def _preceded(kernel: Kernel, step: Step, shapes: Mapping[str, Shape]) -> Kernel:
    """A kernel behind a step."""
    shape = shapes[step.inputs[0]]
    if isinstance(step.op, Move):
        from lipcert.core.norms.surroundings import behind, lines_of  # noqa: PLC0415  for these

        return behind(kernel, lines_of(step.op.sources, shape), shape[2:])
    return scaled(kernel, _factors(kernel, step, shape), outputs=False)


def _followed(kernel: Kernel, step: Step, start: str, shapes: Mapping[str, Shape]) -> Kernel:
    """A kernel before a step; start: the input of the run."""
    shape = shapes[step.inputs[0]]
    if isinstance(step.op, Add):
        if any(shapes[value] != step.shape for value in step.inputs):
            raise NotProved("a sum repeats values")
        through, around = step.op.signs if step.inputs[1] == start else step.op.signs[::-1]
        return plus_identity(kernel, through, around)
    if isinstance(step.op, AveragePool):
        from lipcert.core.norms.surroundings import averaged  # noqa: PLC0415  for these only

        return averaged(kernel, step.op.window)
    return scaled(kernel, _factors(kernel, step, shape), outputs=True)


def _factors(kernel: Kernel, step: Step, shape: Shape) -> Interval:
    """The factor of each channel of an affine step that keeps the shape."""
    axis = len(shape) - 1 if kernel.is_matrix else 1
    match step.op:
        case _ if step.shape != shape:
            pass
        case Shift():
            return Interval(np.ones(shape[axis]), np.ones(shape[axis]))
        case Scale(f) if len(f.shape) == len(shape) and f.shape[axis] == f.lo.size:
            return Interval(f.lo.reshape(-1), f.hi.reshape(-1)).broadcast((shape[axis],))
        case BatchNorm(scale, _, _, inverse) if axis == 1:
            return Interval(scale.lo, scale.hi) * Interval(inverse.lo, inverse.hi)
    raise NotProved(f"{step.output} has not one factor for each channel")


def scaled(kernel: Kernel, factors: Interval, outputs: bool) -> Kernel:
    """Factors [channels] on the outputs of the map, or on its inputs.

    Proof: diag(b)·T_K has the kernel b_o·K[o, i], T_K·diag(a) the kernel K[o, i]·a_i, i counted
    through all groups.
    """
    groups, entries = kernel.frame.groups, kernel.entries
    rows, inputs, *taps = entries.shape
    on_rows = outputs is not kernel.adjoint
    if factors.shape != ((rows,) if on_rows else (inputs * groups,)):
        raise NotProved("its factors do not fit the channels")
    split = (groups, rows // groups, inputs, *taps)
    ones = [1] * len(taps)
    shape = (groups, rows // groups, 1, *ones) if on_rows else (groups, 1, inputs, *ones)
    product = _reshaped(entries, split) * _reshaped(factors, shape).broadcast(split)
    return replace(kernel, entries=_reshaped(product, entries.shape))


def plus_identity(kernel: Kernel, through: int, around: int) -> Kernel:
    """through·T_K x + around·x for signs ±1; raise NotProved where no tap fits.

    Proof: the identity is a convolution by 1 at a tap through which every output reads the entry
    of its own place, for the channel of the output within its group.
    """
    rows, inputs = kernel.entries.shape[:2]
    own = [_own_tap(kernel.frame, axis) for axis in range(len(kernel.frame.size))]
    taps = tuple(tap for tap in own if tap is not None)
    if rows != inputs * kernel.frame.groups or len(taps) != len(own) or {through, around} - {1, -1}:
        raise NotProved("no entry of its kernel reads the same place")
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
