"""Polyphase form: a strided, dilated convolution as one with unit stride and unit dilation.

What enters: kernels and the geometry. What leaves: kernels [groups, out, in · phases, *taps] whose
bi-infinite unit-stride convolution has the same norm.
"""

from __future__ import annotations

import math

import numpy as np

from lipcert.geometry import Geometry
from lipcert.upper import FloatArray


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
