"""Torus: a grid of frequencies, cut into boxes that can be bisected down to single frequencies.

What enters: the degrees (spans) of a symbol, and per axis the number of frequencies and a twist.
What leaves: boxes with exact rational centres, and how far a norm can fall between a frequency of
a box and its centre.

Since H(−w) is the conjugate of H(w), half of the last axis suffices.
Strided, dilated convolutions come here in polyphase form: one with unit stride and unit dilation.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.core.program import IndexArray
from lipcert.graph.geometry import Geometry, Window
from lipcert.upper import FloatArray, Lower, Upper


def torus_size(window: Window) -> int:
    """How many positions of one residue class suffice for a torus on which no window wraps.

    Proof: let g = gcd(stride, dilation), P = stride/g, D = dilation/g. Tap t = P·j + r of output
    o reads position stride·(o + j·D) + r·dilation − pad, so that outputs of one residue class
    modulo D, o = D·o' + c, share no input with others, and read the inputs of phase r numbered
    q = o' + j: for every c, a convolution with the polyphase kernel. Taps that read padding only
    and outputs that do so act as zero and are left out. Let N exceed every |q − i| for numbers q
    that are read, from the input or from padding, and numbers i of inputs that are read, and
    every difference of two o'. Modulo N, then, inputs and outputs stay distinct, and what is
    read from padding meets no input.
    """
    divisor = math.gcd(window.stride, window.dilation)
    phases, apart = window.stride // divisor, window.dilation // divisor
    readers = {tap: window.readers(tap) for tap in range(window.taps) if window.readers(tap)}
    if not readers:
        return 1
    inputs = [o // apart + t // phases for t, r in readers.items() for o in (r[0], r[-1])]
    outputs = [o // apart for r in readers.values() for o in (r[0], r[-1])]
    shifts = [tap // phases for tap in readers]
    lowest, highest = min(outputs) + min(shifts), max(outputs) + max(shifts)
    return 1 + max(max(inputs) - lowest, highest - min(inputs), max(outputs) - min(outputs))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Frequencies first ≤ j < last along every axis. group: [n]; first, last: [n, axes]."""

    group: IndexArray
    first: IndexArray
    last: IndexArray

    def __len__(self) -> int:
        return len(self.group)

    def chosen(self, which: slice | IndexArray | np.typing.NDArray[np.bool_]) -> Boxes:
        """The boxes selected by a slice, a mask or positions."""
        return Boxes(self.group[which], self.first[which], self.last[which])

    @property
    def widths(self) -> IndexArray:
        """Frequencies along each axis: [n, axes]."""
        return self.last - self.first

    def children(self) -> Boxes:
        """The halves of every box along every axis of several frequencies."""
        middle = (self.first + self.last) // 2  # equal to `first` where there is one frequency
        parts = []
        for corner in itertools.product((False, True), repeat=self.first.shape[1]):
            first = np.where(corner, middle, self.first)
            last = np.where(corner, self.last, middle)
            parts.append(Boxes(self.group, first, last).chosen(np.all(first < last, axis=1)))
        group = np.concatenate([part.group for part in parts])
        first = np.concatenate([part.first for part in parts])
        last = np.concatenate([part.last for part in parts])
        return Boxes(group, first, last)


@final
@dataclass(frozen=True, slots=True)
class Torus:
    """The frequencies w_i = 2π (j + twists[i]/2) / counts[i] with 0 ≤ j < counts[i].

    A twist is 0 or 1.
    """

    spans: tuple[int, ...]
    counts: tuple[int, ...]
    twists: tuple[int, ...]

    def everything(self, groups: int) -> Boxes:
        """For every group, one box that holds each frequency or its negative.

        Proof: the negative of number j is number −j − twist, modulo the count; so the numbers
        0, ..., ⌊(count − twist)/2⌋ of the last axis suffice, those of the other axes being all.
        The cells around these centres, half a step to both sides, contain half a turn.
        """
        last = np.array(self.counts, dtype=np.int64)
        last[-1] = (self.counts[-1] - self.twists[-1]) // 2 + 1
        rows = np.tile(last, (groups, 1))
        return Boxes(np.arange(groups), np.zeros_like(rows), rows)

    @property
    def points(self) -> int:
        """How many frequencies `everything` holds."""
        return int(np.prod(self.everything(1).widths))

    def centres(self, boxes: Boxes) -> tuple[IndexArray, IndexArray]:
        """(numerators [n, axes], denominators [n]): w = 2π · numerators / denominators."""
        common = math.lcm(*self.counts)
        weights = np.array([common // count for count in self.counts], dtype=np.int64)
        numerators = (boxes.first + boxes.last - 1 + np.array(self.twists)) * weights
        return numerators, np.full(len(boxes), 2 * common, dtype=np.int64)

    def angle(self, widths: tuple[int, ...]) -> Fraction:
        """θ/π, where Σ spans_i |w_i − c_i|/2 ≤ θ for all w in the cell around a box with centre c.

        Proof: the cell reaches half a step beyond the frequencies of the box, so that |w_i − c_i|
        is at most π · widths_i / counts_i.
        """
        sizes = zip(self.spans, widths, self.counts, strict=True)
        return sum((Fraction(span * width, 2 * count) for span, width, count in sizes), Fraction(0))


def extended_axes(
    phases: FloatArray, counts: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Spans, and counts, of the axes of several taps."""
    pairs = [(n - 1, count) for n, count in zip(phases.shape[3:], counts, strict=True) if n > 1]
    return tuple(span for span, _ in pairs), tuple(count for _, count in pairs)


TWIDDLE_ERROR: Final = Upper(2.0**-48)
"""|computed − true| of cos and sin: the angle, at most π, is rounded three times (3 · 2^-53 · π
< 2^-49) and the functions of numpy err by at most 4 units in the last place (< 2^-50)."""


def reduced_angles(
    shifts: IndexArray, numerators: IndexArray, denominators: IndexArray
) -> FloatArray:
    """w·δ in (−π, π], reduced exactly as integers: [n, terms]."""
    turns = (numerators @ shifts.T) % denominators[:, None]
    turns = np.where(2 * turns > denominators[:, None], turns - denominators[:, None], turns)
    angles: FloatArray = 2.0 * np.pi * (turns / denominators[:, None])
    return angles


_PI_ABOVE: Final = Fraction(31415926535897932385, 10**19)


def cosine_squared(angle: Fraction) -> Lower:
    """Lower bound of cos²θ, θ = π · angle; 0 where θ exceeds π/2.

    Proof: cos²θ = (1 + cos 2θ)/2 decreases on [0, π/2], and partial sums of the cosine series
    that end with a negative term are lower bounds of the cosine.
    """
    theta = angle * _PI_ABOVE
    if theta >= Fraction(3, 2):
        return Lower(0.0)
    return Lower(float(_half_of_one_plus_cosine(2 * theta, 11))) * Lower(1.0 - 2.0**-52)


def _half_of_one_plus_cosine(angle: Fraction, terms: int) -> Fraction:
    """(1 + cos)/2, the series cut after this many terms."""
    term, cosine = Fraction(1), Fraction(1)
    for order in range(1, terms + 1):
        term *= -(angle**2) / ((2 * order - 1) * (2 * order))
        cosine += term
    return (1 + cosine) / 2


def live_kernels(kernels: FloatArray, geometry: Geometry) -> FloatArray:
    """The kernels with zeros at taps that never read anything but padding: the same operator.

    kernels: [groups, out, in, *taps].
    """
    alive = np.ones((), dtype=np.bool_)
    for window in geometry:
        alive = np.logical_and.outer(
            alive, [len(window.readers(tap)) > 0 for tap in range(window.taps)]
        )
    return kernels if np.all(alive) else np.where(alive, kernels, 0.0)


def polyphase(kernels: FloatArray, geometry: Geometry) -> FloatArray:
    """Kernels of a unit-stride convolution with the same norm on the infinite grid.

    kernels: [groups, out, in, *taps]; result: [groups, out, in · Π phases, *fewer taps], without
    all-zero borders.
    Proof: with p = stride / gcd(stride, dilation), tap t = p·j + r reads input residue class r
    (distinct r, distinct classes) at shift j·dilation' + constant. The constants multiply the
    columns of the symbol by unit complex numbers and w ↦ dilation'·w maps the torus onto
    itself; neither changes the supremum of the norm.
    """
    for axis, window in enumerate(geometry, start=3):
        phases = window.stride // math.gcd(window.stride, window.dilation)
        kernels = _split(_trimmed(kernels, axis), axis, phases)
    for axis in range(3, kernels.ndim):
        kernels = _trimmed(kernels, axis)
    return kernels


def _split(kernels: FloatArray, axis: int, phases: int) -> FloatArray:
    """Tap p·j + r becomes tap j of the input channels of phase r."""
    if phases == 1:
        return kernels
    taps = kernels.shape[axis]
    widths = [(0, 0)] * kernels.ndim
    widths[axis] = (0, -taps % phases)
    padded = np.pad(kernels, widths)
    shape = padded.shape
    split = padded.reshape(*shape[:axis], -1, phases, *shape[axis + 1 :])
    by_phase = np.moveaxis(split, axis + 1, 3)  # [groups, out, in, phases, *taps]
    return by_phase.reshape(*shape[:2], shape[2] * phases, *by_phase.shape[4:])


def _trimmed(kernels: FloatArray, axis: int) -> FloatArray:
    """Without all-zero planes at both ends of an axis."""
    planes = np.moveaxis(kernels, axis, 0)
    used = [index for index in range(len(planes)) if np.any(planes[index])]
    if len(used) in (0, len(planes)):
        return kernels
    return np.moveaxis(planes[used[0] : used[-1] + 1], 0, axis)
