"""Steps that pick or order entries, as matrices and slopes: the larger of two numbers, in rounds.

The larger and the smaller of a and b are (a + b)/2 ± |a − b|/2. The chords of |·|, and at 0 the
mixtures of its derivatives, have slopes between −1 and 1; half of the sum passes as it is.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.forms.links import Diagonal, Edge, Matrix
from lipcert.core.interval import Array, Interval, exact
from lipcert.core.kinds import ReduceMax, Sort
from lipcert.core.line import NotProved
from lipcert.core.program import IndexArray, Op, Shape, Step
from lipcert.core.rules.windows import axes_of
from lipcert.core.window_kinds import MaxPool

_LARGEST_BLOCK: Final = 1 << 11


def ordered(step: Step, before: Sequence[Shape]) -> list[tuple[Edge, int]]:
    """The edges of a step that picks or orders entries, each with the number of its blocks.

    Blocks of consecutive entries are treated alike: by a matrix, then in each round by slopes, in
    [−1, 1] or 1, and a matrix. All numbers are sums of powers of two.
    """
    groups, axis = _groups(step.op, before[0], step.shape)
    first, rounds = _tournament(groups, math.prod(before[0][axis:]), both=isinstance(step.op, Sort))
    value, stage, blocks = step.output, 1, math.prod(before[0][:axis])
    found = [(Edge((step.inputs[0], 0), (value, stage), Matrix(exact(first))), blocks)]
    for unknown, mix in rounds:
        low = np.tile(np.where(unknown, -1.0, 1.0), blocks)
        slopes = Diagonal(Interval(low, np.ones(low.size)), weighed=True)
        found.append((Edge((value, stage), (value, stage + 1), slopes), low.size))
        stage += 2
        place = (value, 0 if mix is rounds[-1][1] else stage)
        found.append((Edge((value, stage - 1), place, Matrix(exact(mix))), blocks))
    return found


def _groups(op: Op, before: Shape, after: Shape) -> tuple[IndexArray, int]:
    """The entries of a block that each output of a step chooses from, and the axis of blocks.

    Proof: a maximum of several numbers is the maximum of maxima of pairs, and what is alone in a
    round passes. A window at the rim reads one of its entries again in the place of padding, which
    is never the maximum. A minimum, and either order of a pair, differ in the sign of a slope.
    """
    match op:
        case Sort(axis) if before[axis % len(before)] == 2:
            first = axis % len(before)
            return _of_block(before, first).reshape(2, -1).T, first
        case ReduceMax(axes):
            first = min(axis % len(before) for axis in axes)
            within = [axis % len(before) - first for axis in axes]
            entries = np.moveaxis(_of_block(before, first), within, range(-len(within), 0))
            length = math.prod(before[axis] for axis in axes)
            return entries.reshape(-1, max(length, 1)), first
        case MaxPool():
            windows = _windows(op, before)
            if len(windows) == math.prod(after[2:]):
                return windows, 2
    raise NotProved("a step orders more than pairs")


def _of_block(shape: Shape, axis: int) -> IndexArray:
    """The numbers of the entries of a block, in its shape."""
    inner = shape[axis:]
    return np.arange(math.prod(inner), dtype=np.int64).reshape(inner)


def _windows(op: MaxPool, before: Shape) -> IndexArray:
    """The entries that each window reads."""
    found = np.zeros((1, 1), dtype=np.int64)
    for axis in axes_of(op.window, before[2:]):
        if not axis.at_outputs.any(axis=1).all() or found.size * axis.reads.size > 1 << 22:
            raise NotProved("a window reads nothing, or there are too many")
        anyone = axis.reads.max(axis=1, keepdims=True)
        reads = np.where(axis.reads < 0, anyone, axis.reads)
        both = found[:, None, :, None] * axis.size + reads[None, :, None, :]
        found = both.reshape(found.shape[0] * len(reads), -1)
    return found


def _tournament(
    groups: IndexArray, columns: int, *, both: bool
) -> tuple[Array, list[tuple[npt.NDArray[np.bool_], Array]]]:
    """The maximum of each group of entries of a block; both: of pairs, the minimum as well.

    The first matrix, then rounds: which entries have unknown slopes, and a matrix.

    Minima come first, all of them, then maxima: as a pair lies along the axis.
    """
    if groups.shape[1] < 2 or max(columns, groups.size) > _LARGEST_BLOCK:
        raise NotProved("a step orders single entries, or too many")
    rows = np.eye(columns)[groups]
    matrices: list[Array] = []
    unknown: list[npt.NDArray[np.bool_]] = []
    while (length := rows.shape[1]) > 1:
        pairs = length // 2
        left, right, rest = (
            rows[:, : 2 * pairs : 2],
            rows[:, 1 : 2 * pairs : 2],
            rows[:, 2 * pairs :],
        )
        parts = np.concatenate([0.5 * (left + right), 0.5 * (left - right), rest], axis=1)
        matrices.append(parts.reshape(-1, parts.shape[-1]))
        kinds = np.repeat([False, True, False], [pairs, pairs, length - 2 * pairs])
        unknown.append(np.tile(kinds, len(groups)))
        state = np.eye(kinds.size * len(groups)).reshape(len(groups), kinds.size, -1)
        largest = state[:, :pairs] + state[:, pairs : 2 * pairs]
        rows = np.concatenate([largest, state[:, 2 * pairs :]], axis=1)
    last = rows[:, 0]
    if both:
        last = np.concatenate([state[:, 0] - state[:, 1], last])
    first, *mixes = *matrices, last
    return first, list(zip(unknown, mixes, strict=True))
