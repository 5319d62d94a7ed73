"""Norms for certificates: which bound of a linear map the checker can prove, and by which route.

What enters: the checker's kernels of linear steps and runs. What leaves: a `NormClaim` for each.
The engine's search finds the values; a little is added, because arithmetic of finite precision
proves nothing to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.core.certificate import NormClaim
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.steps import Kernel
from lipcert.facts import Bound
from lipcert.norms.boxes import TorusCertificate
from lipcert.norms.circulant import circulant_norm
from lipcert.norms.geometry import Geometry, Window
from lipcert.norms.linear_map import ConvMap, DenseMap
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.norms.torus import torus_size
from lipcert.operand import Operand
from lipcert.upper import FloatArray

_ROOM: Final = 4e-8
_ROUTES: Final = {
    "norms.reshape": "windows",
    "norms.frobenius": "windows",
    "norms.absolute": "absolute",
    "norms.closed_form": "windows",
}
_BUDGET: Final = 1e13


def norm_claim(kernel: Kernel, tier: Tier) -> NormClaim | None:
    """What the checker will accept as the norm of every map by a kernel in its interval.

    None for a convolution of moved entries (behind padding by repetition, say) that is too large
    to be written out.
    """
    lo, hi = kernel.entries.lo, kernel.entries.hi
    middle = np.ascontiguousarray(np.where(lo == hi, lo, 0.5 * lo + 0.5 * hi))
    if kernel.is_matrix:
        bound = operator_norm(DenseMap(Operand(middle[:, :, 0])), tier)
        return NormClaim(_raised(bound.value.value), "dense")
    frame = replace(kernel.frame, kernel=middle)
    if frame.moved:
        if not frame.is_small:
            return None
        bound = operator_norm(DenseMap(Operand(frame.matrix())), tier)
        return NormClaim(_raised(bound.value.value), "explicit")
    geometry = _geometry(frame)
    bound = operator_norm(ConvMap(Operand(middle), geometry, frame.groups), tier)
    if bound.rule in _ROUTES:
        return NormClaim(_raised(bound.value.value), _ROUTES[bound.rule])
    if bound.rule == "norms.explicit" and frame.is_small:
        return NormClaim(_raised(bound.value.value), "explicit")
    return _on_torus(middle, frame.groups, geometry, bound)


def _raised(bound: float) -> float:
    return bound * (1.0 + _ROOM)


def _on_torus(kernel: FloatArray, groups: int, geometry: Geometry, bound: Bound) -> NormClaim:
    """What the frequencies of a torus prove: as found, or found anew for a rule of its own.

    The supremum over all frequencies, which a Laurent bound is, is one on every torus.
    """
    witness, value = bound.witness, bound.value.value
    if bound.rule != "norms.laurent" and not isinstance(witness, TorusCertificate):
        kernels = kernel.reshape(groups, -1, *kernel.shape[1:])
        proved = circulant_norm(kernels, geometry, _BUDGET)
        witness, value = proved.witness, proved.bound.value
    if isinstance(witness, TorusCertificate):
        torus = witness.torus
        return NormClaim(_raised(value), "torus", torus.twists, torus.counts)
    counts = tuple(torus_size(window) for window in geometry if _is_long(window))
    return NormClaim(_raised(value), "torus", (0,) * len(counts), counts)


def _is_long(window: Window) -> bool:
    """Whether the polyphase kernel has several taps along an axis."""
    phases = window.stride // math.gcd(window.stride, window.dilation)
    return window.taps > phases


def _geometry(frame: Convolution) -> Geometry:
    """The engine's description of the windows."""
    window = frame.window
    found = []
    for axis, size in enumerate(frame.size):
        reach = window.dilations[axis] * (window.taps[axis] - 1) + 1
        end = (window.outputs[axis] - 1) * window.strides[axis] + reach
        found.append(
            Window(
                size,
                window.taps[axis],
                window.strides[axis],
                window.dilations[axis],
                window.before[axis],
                max(0, end - size - window.before[axis]),
            )
        )
    return tuple(found)
