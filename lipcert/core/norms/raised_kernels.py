"""Raised kernels of convolutions."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lipcert.core.interval import Array, exact
from lipcert.core.line import NotProved
from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.core.norms.raised import raised_entries


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
