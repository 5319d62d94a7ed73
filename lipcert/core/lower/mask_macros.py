"""Recombine masked means that exporters write as several nodes."""

import math
from dataclasses import dataclass, replace

import numpy as np

from lipcert.core.kinds import Compare, MaskedMean
from lipcert.core.lower.moves import indices
from lipcert.core.lower.rewriter import Rewriter
from lipcert.core.lower.values import check_size
from lipcert.core.program import IndexArray, Move, Op, Shape, Step
from lipcert.core.token_kinds import Multiply, ReduceSum

_NOT_NEGATIVE = ("relu", "sigmoid", "exp", "softplus")


@dataclass(frozen=True, slots=True, eq=False)
class _Origin:
    """Entry k of a value is entry index[k] of another, after comparisons with single numbers.

    comparisons: each limit, and whether it is a lower one; the last comparison first.
    """

    name: str
    index: IndexArray
    comparisons: tuple[tuple[float, bool], ...]


def masked_mean(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine Σ x·m/max(Σ m, floor), if each sum of the mask covers the entries that meet x's;
    without a maximum there is no floor.

    Proof: both sums of the mask are over the same entries of one value that it is computed from.
    """
    above, below = (_moved(rewriter, name) for name in step.inputs)
    top, clip = rewriter.made(above.name, ReduceSum), rewriter.function(below.name, "clip")
    count = _moved(rewriter, below.name if clip is None else clip[1])
    bottom = rewriter.made(count.name, ReduceSum)
    if top is None or bottom is None or top[0].mean or bottom[0].mean:
        return None
    factors = rewriter.made(top[1].inputs[0], Multiply)
    floor, highest = (-math.inf, math.inf) if clip is None else clip[0].numbers
    if factors is None or not floor < math.inf == highest:
        return None
    shape, read = factors[1].shape, np.broadcast_to(above.index, step.shape)
    shown = _origin(rewriter, bottom[1].inputs[0])
    chosen = count.index.reshape(-1)[np.broadcast_to(below.index, step.shape)].reshape(-1)
    counted = _terms(shown, rewriter.shapes[bottom[1].inputs[0]], bottom[0].axes)[chosen]
    for x, mask in (factors[1].inputs, factors[1].inputs[::-1]):
        own = _origin(rewriter, mask)
        if (own.name, own.comparisons) != (shown.name, shown.comparisons):
            continue
        is_weight = own.comparisons or rewriter.function(own.name, *_NOT_NEGATIVE)
        if not (is_weight or rewriter.made(own.name, Op) is None):
            continue  # computed numbers may be negative; of inputs, the facts say it
        if rewriter.shapes[x] != shape or len(rewriter.shapes[mask]) != len(shape):
            continue
        met = _terms(own, shape, top[0].axes)[read.reshape(-1)]
        if met.shape != counted.shape or (np.sort(met) != np.sort(counted)).any():
            continue
        name, op = rewriter.sink.fresh(step.output), MaskedMean(top[0].axes, floor)
        mean = Step(op, (x, mask), name, top[1].shape, step.node)
        return [mean, replace(step, op=Move(read.copy()), inputs=(name,))]
    return None


def _moved(rewriter: Rewriter, name: str) -> _Origin:
    """Return the source of a moved value."""
    index = indices(rewriter.shapes[name])
    while True:
        found = rewriter.made(name, Move)
        if found is None or (found[0].sources < 0).any():
            return _Origin(name, index, ())
        index, name = found[0].sources.reshape(-1)[index], found[1].inputs[0]


def _origin(rewriter: Rewriter, name: str) -> _Origin:
    """Return the source of a moved and compared value."""
    found = _moved(rewriter, name)
    step = rewriter.made(found.name, Compare)
    if step is None or not step[0].limits.size or (step[0].limits != step[0].limits.flat[0]).any():
        return found
    inner = _origin(rewriter, step[1].inputs[0])
    own = (float(step[0].limits.flat[0]), step[0].above)
    return _Origin(inner.name, inner.index.reshape(-1)[found.index], (own, *inner.comparisons))


def _terms(mask: _Origin, shape: Shape, axes: Shape) -> IndexArray:
    """Return, for each entry of a sum over axes in this shape, the summed entries of the origin."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    full = np.broadcast_to(mask.index, check_size(shape)).transpose(*kept, *axes)
    return full.reshape(math.prod(shape[axis] for axis in kept), -1)
