"""How much of a value one window of a convolution reads, for gradients by sums over channels."""

import math
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import multiply_up
from lipcert.core.program import Move, Shape
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import root_up
from lipcert.core.rules.windows import Axis
from lipcert.core.window_kinds import Conv

_Indices: TypeAlias = npt.NDArray[np.int64]
_BLOCK: Final = 1 << 20
_MOST_READS: Final = 1 << 24
_MOST_TIMES: Final = 16


def longest_window(rule: Rule[Conv], axes: tuple[Axis, ...]) -> float:
    """R with ‖∂loss/∂kernel‖ ≤ R·S, where S ≥ √Σ_c ‖g_c‖₁² for the cotangents g_c of channels.

    It is ‖x‖, or √m·‖z‖ for a value z behind a move. Here no position of the output meets an
    entry of z more than m times.
    Proof (Young): the gradient for output channel c is Σ_p g_c(p)·r_c(p), where r_c(p) holds,
    for each channel and tap, the entry of x that position p meets through that tap, or 0: of a
    convolution x(p·stride + t·dilation − before), of a transposed one the q with
    q·stride + t·dilation − before = p. Different taps meet different entries, so
    ‖r_c(p)‖ ≤ ‖x‖ and ‖Σ_p g_c(p)·r_c(p)‖ ≤ ‖g_c‖₁·‖x‖; squares add over c. If an entry of z
    occurs m times in r_c(p) at most, ‖r_c(p)‖ ≤ √m‖z‖. Of t entries it has at most √t times the
    largest. Attained: at one position and one tap.
    """
    behind, x = rule.behind, rule.x
    if rule.op.transposed:
        return x.norm
    entries = math.prod(rule.op.weight.shape[1:])
    longest = min(x.norm, multiply_up(root_up(entries), x.max_abs))
    if behind is None or not isinstance(behind.op, Move) or rule.before[0] != 1:
        return longest
    repeated = _most_in_a_window(behind.op, rule.before, axes)
    return min(longest, multiply_up(repeated, behind.x.norm))


def _most_in_a_window(move: Move, before: Shape, axes: tuple[Axis, ...]) -> float:
    """√m: how often one entry of the value behind a move is in one window, over all channels.

    inf where that is more than some times, or takes too long to find out.
    """
    channels = before[1]
    size = channels * math.prod(axis.reads.size for axis in axes)
    if move.sources.shape != before or size > _MOST_READS:
        return math.inf
    reads = windows_over(before, axes)  # [windows, taps], −1 outside
    sources = np.concatenate([move.sources.reshape(channels, -1), np.full((channels, 1), -1)], 1)
    most = 1
    step = max(1, _BLOCK // max(reads.shape[1] * channels, 1))
    for start in range(0, len(reads), step):
        part = reads[start : start + step]
        met = np.moveaxis(sources[:, part], 0, 1).reshape(len(part), -1)
        met.sort(axis=1)
        while most < met.shape[1] and _has_run(met, most + 1):
            most += 1
            if most > _MOST_TIMES:
                return math.inf
    return root_up(most)


def _has_run(rows: _Indices, length: int) -> bool:
    """Whether a number ≥ 0 stands so many times in one of these sorted rows."""
    first, last = rows[:, : 1 - length], rows[:, length - 1 :]
    return bool(((first == last) & (first >= 0)).any())


def windows_over(before: Shape, axes: tuple[Axis, ...]) -> _Indices:
    """The flat position that each tap of each window reads: [windows, taps], −1 for padding."""
    flat = np.zeros((1, 1), dtype=np.int64)
    for axis, size in zip(axes, before[2:], strict=True):
        outer, inner = flat[:, None, :, None], axis.reads[None, :, None, :]
        joint = np.where((outer < 0) | (inner < 0), -1, outer * size + inner)
        flat = joint.reshape(len(flat) * len(axis.reads), -1)
    return flat
