"""Lines: along one axis, a convolution as part of a circular one with shifts and phases.

Output o reads entry reads[o, t] through tap t, or nothing. Let s, d be stride and dilation,
g = gcd(s, d), D = d/g, and, counted from the first tap in use, tap t = (s/g)·j + r. A line of N
places for every phase r carries the input: tap t of output o looks at place (o + D·j) mod N of
line r. `fits` checks on the whole table that
1. the outputs are different modulo N (one that reads nothing is 0, and left out),
2. no place is looked at both for one entry and for another, or for nothing,
3. no entry has two places; with a twist, not even before reduction modulo N.
Nothing about strides, dilations and padding is believed: another choice of r, j and D would be as
good a proof, if it passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lipcert.core.interval import Array
from lipcert.core.norms.convolution import Convolution
from lipcert.core.program import IndexArray


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """The taps in use along an axis, their phases r (renumbered) and shifts j.

    outputs: those that read something; reads: what, [outputs, taps]; phases: how many; apart: D.
    """

    taps: tuple[int, ...]
    phase: IndexArray
    shift: IndexArray
    outputs: IndexArray
    reads: IndexArray
    phases: int
    apart: int

    @classmethod
    def of(cls, convolution: Convolution, axis: int) -> Axis:
        """Taps that read the input somewhere and are not all zero, and outputs that read any."""
        reads, live = convolution.reads(axis), _live_taps(convolution)
        used = np.flatnonzero(live.any(axis=tuple(a for a in range(live.ndim) if a != axis)))
        stride, dilation = (
            n[axis] for n in (convolution.window.strides, convolution.window.dilations)
        )
        divisor = math.gcd(stride, dilation)
        numbers = (used - used.min(initial=reads.shape[1])).astype(np.int64)
        shift, residue = numbers // (stride // divisor), numbers % (stride // divisor)
        residues, phase = np.unique(residue, return_inverse=True)
        reads = reads[:, used]
        outputs = np.flatnonzero((reads >= 0).any(axis=1)).astype(np.int64)
        taps = tuple(used.tolist())
        apart = dilation // divisor
        return cls(taps, phase, shift, outputs, reads[outputs], len(residues), apart)

    @property
    def length(self) -> int:
        """The number of shifts along the axis."""
        return int(self.shift.max(initial=0)) + 1

    def fits(self, count: int, twist: int) -> bool:
        """Whether the lines of some N with this many frequencies carry the axis."""
        sizes = [
            count * g for g in range(1, self.apart + 1) if math.gcd(count * g, self.apart) == g
        ]
        return any(self._fits(size, twist == 1) for size in sizes)

    def fits_alone(self) -> bool:
        """Whether lines carry an axis without shifts: P does not depend on its frequency."""
        return self._fits(int(self.outputs.max()) + 1, False)

    @property
    def is_plain(self) -> bool:
        """Whether an entry has one phase, and one reader through each tap."""
        outputs, taps = np.nonzero(self.reads >= 0)
        entries = self.reads[outputs, taps]
        readers = entries * len(self.taps) + taps
        return _determines(entries, self.phase[taps]) and _determines(readers, outputs)

    def _fits(self, size: int, twisted: bool) -> bool:
        """The three conditions, and the one of the twist."""
        place = self.outputs[:, None] + self.apart * self.shift
        line = np.broadcast_to(self.phase, place.shape)
        cells, entries = (line * size + place % size).ravel(), self.reads.ravel()
        whole = (line * (place.max() + 1) + place).ravel() if twisted else cells
        inside = entries >= 0
        return (
            _determines(self.outputs % size, self.outputs)
            and _determines(cells, entries)
            and _determines(entries[inside], cells[inside])
            and _determines(entries[inside], whole[inside])
        )


def _determines(keys: IndexArray, values: IndexArray) -> bool:
    """Whether equal keys have equal values."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    return not ((keys[1:] == keys[:-1]) & (values[1:] != values[:-1])).any()


def _live_taps(convolution: Convolution) -> npt.NDArray[np.bool_]:
    """Which taps are not 0, and read something along every axis: the others add nothing to T."""
    live = np.asarray(convolution.kernel.any(axis=(0, 1)))
    for axis in range(len(convolution.size)):
        unread = ~(convolution.reads(axis) >= 0).any(axis=0)
        np.moveaxis(live, axis, 0)[unread] = False
    return live


def axes_of(convolution: Convolution) -> list[Axis]:
    """All axes of the convolution, in order."""
    return [Axis.of(convolution, axis) for axis in range(len(convolution.size))]


def phases_of(convolution: Convolution, axes: list[Axis]) -> Array:
    """The kernel as [shifts, groups, outputs of a group, inputs · phases of all axes]."""
    kernel = np.ascontiguousarray(np.moveaxis(convolution.kernel, (0, 1), (-2, -1)))
    for number, axis in enumerate(axes):
        if axis.phases == 1 and len(axis.taps) == axis.length == kernel.shape[number]:
            continue  # each tap is a shift
        moved = np.moveaxis(kernel, number, 0)
        split = np.zeros((axis.length, axis.phases, *moved.shape[1:]))
        split[axis.shift, axis.phase] = moved[list(axis.taps)]
        lines = np.moveaxis(split, 1, -1)  # [shifts, other axes, outputs, inputs, phases]
        joined = lines.reshape(*lines.shape[:-2], -1)
        kernel = np.moveaxis(joined, 0, number)
    outputs, inputs = kernel.shape[-2:]
    groups = convolution.groups
    return np.ascontiguousarray(kernel.reshape(-1, groups, outputs // groups, inputs))
