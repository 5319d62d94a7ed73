"""Raised kernels: without negative entries below, a ReLU is bounded by a larger kernel.

Let x and z have no negative entries, and let every output read an entry of z that is τ. A kernel
K' ≥ [K, c/τ], entry by entry, has Kx + c ≤ K'(x, z), so that
    0 ≤ relu(Kx + c) ≤ relu(K'(x, z)),    hence    ‖relu(Kx + c)‖ ≤ ‖K'‖·√(‖x‖² + ‖z‖²).
The same holds of a ReLU with a limit, min(relu, h) for h ≥ 0.
K' is max([K, c/τ], −pqᵀ). The numbers p, q and τ > 0 are not trusted: with any of them K' is as
large as it has to be, and ‖K'‖ may be far below ‖K‖, since what K does to signs of all kinds is not
asked for.
Attained: where a best left and a best right singular vector of K' have no negative entries, and no
entry was raised between entries of theirs that are positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lipcert.core.interval import Array, exact, up
from lipcert.core.line import NotProved

if TYPE_CHECKING:  # which a matrix does without
    from lipcert.core.norms.convolution import Convolution, Kernel


def raised_entries(
    upper: Array,
    groups: int,
    tap: tuple[int, ...],
    constants: Array,
    numbers: Sequence[Sequence[float]],
) -> Array:
    """K', with one input channel more in each group, for z.

    upper: upper limits of K, [outputs, inputs of a group, *taps]; constants: of c, for each output.
    tap: one through which every output reads an entry. numbers: p, one for each output; q, one for
    each input channel and tap, and one more for z; τ alone. z is τ where it is read, 0 elsewhere:
    at no more entries of its channel than a channel of the output has.
    Proof: through the tap every output reads an entry, so K' has c/τ there. An entry of the linear
    map is an entry of the kernel, 0, or a sum of such entries.
    """
    outputs, inputs, *taps = upper.shape
    entries = groups * inputs * math.prod(taps)
    if [len(n) for n in numbers] != [outputs, entries + 1, 1] or not 0.0 < numbers[2][0] < np.inf:
        raise NotProved("its numbers do not fit its steps")
    p, q, (tau,) = (np.array(part, dtype=np.float64) for part in numbers)
    shape = groups, outputs // groups, inputs + 1, *taps
    whole, level = np.zeros(shape), np.zeros(shape)
    by_group = p.reshape(groups, -1)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        whole[:, :, :inputs] = upper.reshape(*shape[:2], inputs, *taps)
        whole[:, :, inputs, *tap] = up(constants / tau).reshape(shape[:2])
        own = q[:-1].reshape(groups, 1, inputs, *taps)
        level[:, :, :inputs] = -by_group.reshape(*shape[:2], 1, *[1] * len(taps)) * own
        level[:, :, inputs, *tap] = -by_group * q[-1]
        raised: Array = np.maximum(whole, level).reshape(outputs, inputs + 1, *taps)
    if not np.isfinite(raised).all():
        raise NotProved("its numbers are too large")
    return raised


def raised_kernel(kernel: Kernel, constants: Array, numbers: Sequence[Sequence[float]]) -> Kernel:
    """K' for all kernels in the interval of one; raise NotProved where numbers do not fit."""
    frame, tap = kernel.frame, tap_of_all(kernel.frame)
    if kernel.adjoint or tap is None:
        raise NotProved("not every output of its kernel reads an entry through one tap")
    found = raised_entries(kernel.entries.hi, frame.groups, tap, constants, numbers)
    return replace(kernel, entries=exact(found), frame=replace(frame, kernel=found))


def tap_of_all(frame: Convolution) -> tuple[int, ...] | None:
    """A tap through which every output reads an entry, not 0 beside the input; None for none."""
    found = []
    for axis in range(len(frame.size)):
        inside = (frame.reads(axis) >= 0).all(axis=0)
        if not inside.any():
            return None
        found.append(int(np.argmax(inside)))
    return tuple(found)
