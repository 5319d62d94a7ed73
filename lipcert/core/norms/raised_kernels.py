"""Raised kernels of convolutions and of runs of steps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from lipcert.core.interval import Array, exact
from lipcert.core.norms.convolution import Convolution, Kernel, kernel_of
from lipcert.core.norms.raised import raised_entries
from lipcert.core.program import Shape, Step


def raised_run(
    steps: Sequence[Step],
    shapes: Mapping[str, Shape],
    constants: Array,
    numbers: Sequence[Sequence[float]],
) -> Kernel | None:
    """K' of a run; None where it is not a kernel, or numbers do not fit."""
    kernel = kernel_of(steps, shapes)
    return None if kernel is None else raised_kernel(kernel, constants, numbers)


def raised_kernel(
    kernel: Kernel, constants: Array, numbers: Sequence[Sequence[float]]
) -> Kernel | None:
    """K' for all kernels in the interval of one; None where numbers do not fit."""
    frame, tap = kernel.frame, tap_of_all(kernel.frame)
    if kernel.adjoint or tap is None:
        return None
    found = raised_entries(kernel.entries.hi, frame.groups, tap, constants, numbers)
    if found is None:
        return None
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
