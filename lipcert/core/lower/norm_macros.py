"""Recombine norms and normalizations that exporters write as several nodes.

As in `macros`, every rule is an identity of real functions, for the numbers in the file.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lipcert.core.interval import Interval, exact
from lipcert.core.kinds import Centre, Divide, DivideByNorm, ReduceNorm
from lipcert.core.lower.gates import ONE, as_interval, as_operand, chain, number_in, product
from lipcert.core.lower.moves import indices
from lipcert.core.lower.rewriter import Rewriter
from lipcert.core.program import IndexArray, Move, Operand, Shape, Step
from lipcert.core.token_kinds import Add, Multiply, Normalize, ReduceSum, Scale


class _Lengths(NamedTuple):
    """share·(Σx² over axes), or share·√(Σx² + floor), moved: where each entry comes from.

    shape: that of the sums. factors: the numbers of the file in the share. is_mean: whether that
    counts the terms, too.
    """

    x: str
    axes: Shape
    shape: Shape
    places: IndexArray
    share: Interval
    factors: list[Operand]
    floor: float = 0.0
    is_mean: bool = False


def length(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine √(Σx² + c) with one number c ≥ 0, or √(k·Σx²), also of a mean.

    A standard deviation, of x minus its mean, is such a root: its slope is bounded, unlike that
    of √. Moves of entries in between commute with functions of single ones.
    """
    value, places = _before_moves(rewriter, step.inputs[0], indices(step.shape))
    offset, value = rewriter.shifted(value) or (None, value)
    total = _lengths(rewriter, value, places, is_root=True)
    if total is None or (total.places < 0).any():
        return None
    low = 0.0 if offset is None else offset.lo.item()
    if not (low >= 0.0 and 0.0 < total.share.lo <= total.share.hi < math.inf):
        return None
    if offset is not None and not (offset.is_exact and total.share is ONE):
        return None
    rewriter.swallow(offset, *total.factors)
    op = ReduceNorm(total.axes, 2, float(low))
    root = _root(total.share)
    if np.array_equal(total.places, indices(total.shape)):
        return chain(rewriter, step, total.x, op, root)
    norm = Step(op, (total.x,), rewriter.sink.fresh(step.output), total.shape, step.node)
    return [norm, *chain(rewriter, step, norm.output, Move(total.places), root)]


def centre(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine x minus its mean over axes."""
    if not isinstance(step.op, Add) or step.op.signs != (1, -1):
        return None
    x, average = step.inputs
    mean = rewriter.made(average, ReduceSum)
    if mean is None or not mean[0].mean or mean[1].inputs != (x,):
        return None
    return [replace(step, op=Centre(mean[0].axes), inputs=(x,))]


def divide_by_norm(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine d/√(mean of d² + ε), where d may be x minus its mean over the same axes; and x over
    its norm times a number, joined with a floor: the larger one of both, their sum, or the root of
    the sum of their squares. Factors of d or x, or of the inverse, come behind.

    Without a floor x/‖x‖ has no value at 0, where the step has the value 0.
    """
    for value, divisor, is_root, behind in _quotients(rewriter, step):
        inner, before = _unscaled(rewriter, value)
        for x, factors in ((value, behind), (inner, [*before, *behind])):
            op = _norm_of(rewriter, x, divisor, is_root=is_root)
            if op is None or step.shape != rewriter.shapes[x]:
                continue
            if any(item.factor.lo.ndim != len(step.shape) for item in factors):
                continue
            mean = rewriter.made(x, Centre) if isinstance(op, Normalize) else None
            if isinstance(op, Normalize) and mean is not None and mean[0].axes == op.axes:
                return chain(rewriter, step, mean[1].inputs[0], replace(op, centred=True), *factors)
            return chain(rewriter, step, x, op, *factors)
    return None


def _quotients(rewriter: Rewriter, step: Step) -> Iterator[tuple[str, str, bool, list[Scale]]]:
    """Yield d, t, whether d is divided by √t instead of t, and factors of that quotient."""
    if isinstance(step.op, Divide):
        value, divisor = step.inputs
        root = rewriter.function(divisor, "sqrt")
        yield value, root[1] if root else divisor, root is not None, []
    elif isinstance(step.op, Multiply):
        for value, other in (step.inputs, step.inputs[::-1]):
            name, factors = _unscaled(rewriter, other)
            inverse = rewriter.function(name, "reciprocal", "power")
            if inverse is None or inverse[0].numbers not in {(), (-0.5,)}:
                continue
            root = None if inverse[0].numbers else rewriter.function(inverse[1], "sqrt")
            is_root = root is not None or bool(inverse[0].numbers)
            yield value, root[1] if root else inverse[1], is_root, factors


def _unscaled(rewriter: Rewriter, name: str) -> tuple[str, list[Scale]]:
    """Return the value behind factors of entries, and these."""
    found = rewriter.made(name, Scale)
    return (name, []) if found is None else (found[1].inputs[0], [found[0]])


def _norm_of(
    rewriter: Rewriter, x: str, divisor: str, *, is_root: bool
) -> DivideByNorm | Normalize | None:
    """Return the step that divides x by this value or its root, if that is such a norm of x."""
    shape, rank = rewriter.shapes[x], len(rewriter.shapes[x])
    value, places = _before_moves(rewriter, divisor, indices(rewriter.shapes[divisor]))
    clip, added = rewriter.function(value, "clip"), rewriter.shifted(value)
    offset, floor, order = None, exact(0.0), 2.0
    if clip is not None and clip[0].numbers[1] == math.inf:
        floor, order, value = exact(clip[0].numbers[0]), math.inf, clip[1]
    elif added is not None:
        offset, value = added
        floor, order = as_interval(offset), 2.0 if is_root else 1.0
    found = _lengths(rewriter, value, places, is_root=is_root)
    if found is None:
        return None
    share = found.share
    if found.floor:
        floor = exact(0.0) if clip or added else product(share, exact(found.floor).root())
    if not all(0.0 < item.lo <= item.hi < math.inf for item in (floor, share)):
        return None
    if not (_is_same(rewriter, x, found.x) and _met(found.places, indices(found.shape), shape)):
        return None
    rewriter.swallow(offset, *found.factors)
    if is_root and order == 2.0 and found.is_mean and not found.factors and number_in(floor):
        return Normalize(found.axes, float(floor.lo), centred=False)
    if is_root:
        share, floor = _root(share), _root(floor)
    return DivideByNorm(found.axes, as_operand(share, rank), as_operand(floor, rank), order)


def _lengths(
    rewriter: Rewriter, name: str, places: IndexArray, *, is_root: bool
) -> _Lengths | None:
    """Return what a value at these places is, if it is a multiple of sums of squares or, unless
    that is below the root, of norms."""
    share, factors = ONE, []
    while True:
        name, places = _before_moves(rewriter, name, places)
        factor, inner = rewriter.scaled(name)
        if factor is None:
            break
        share, name = product(share, as_interval(factor)), inner
        factors.append(factor)
    found = rewriter.made(name, ReduceSum if is_root else ReduceNorm)
    if found is None:
        return None
    (op, step), argument = found, found[1].inputs[0]
    if isinstance(op, ReduceNorm):
        known = _Lengths(argument, op.axes, step.shape, places, share, factors, op.floor)
        return known if op.p == 2 else None
    square = rewriter.function(argument, "power")
    if not isinstance(op, ReduceSum) or square is None or square[0].numbers != (2.0,):
        return None
    if op.mean:
        count = math.prod(rewriter.shapes[argument]) // math.prod(step.shape)
        share = product(share, exact(float(count)).reciprocal())
    return _Lengths(square[1], op.axes, step.shape, places, share, factors, is_mean=op.mean)


def _root(number: Interval) -> Interval:
    return ONE if number_in(number) == 1 else number.root()


def _is_same(rewriter: Rewriter, x: str, other: str) -> bool:
    """Whether two values are the same: one value, or x minus its mean, computed twice."""
    one, two = rewriter.made(x, Centre), rewriter.made(other, Centre)
    if one is None or two is None:
        return x == other
    return one[0] == two[0] and one[1].inputs == two[1].inputs


def _before_moves(rewriter: Rewriter, name: str, places: IndexArray) -> tuple[str, IndexArray]:
    """Return the value behind moves of entries, and where in it entries at places come from."""
    while (move := rewriter.made(name, Move)) is not None:
        places = np.where(places < 0, -1, move[0].sources.reshape(-1)[places])
        name = move[1].inputs[0]
    return name, places


def _met(places: IndexArray, blocks: IndexArray, shape: Shape) -> bool:
    """Whether, broadcast to a shape, these are the places of the blocks."""
    try:
        spread = np.broadcast_to(places, shape)
    except ValueError:
        return False
    return np.array_equal(spread, np.broadcast_to(blocks, shape))
