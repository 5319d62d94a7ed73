"""Admissibility: whether examples lie in the input domain that the bounds are about.

What enters: inputs as they were fed, and the declared domain. What leaves: the indices of those
outside. Numbers are compared exactly: every float type embeds in float64, and a norm counts as too
large only where rounding cannot be the reason.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.settings import Settings
from lipcert.upper import FloatArray

DRAWN_IN: Final = 1.0 - 2.0**-20
"""of the radius: to which training draws examples in; what rounding the result adds is less"""
_ROUNDING: Final = 2.0**-52


def outside(
    x: npt.NDArray[Any], settings: Settings, *, is_whole: bool = False
) -> list[tuple[int, str]]:
    """Each inadmissible example of x [examples, ...] with the reason, in order.

    is_whole: only whole numbers are admitted.

    An example that was scaled to the radius R and then stored may have a norm of (1 + u)·R, u the
    largest relative error of rounding an entry to its type: it counts as admissible. So does what
    the sum of n squares may be off by, n·2^-52, and an entry that is an end of the box as rounded
    to the type of x.
    """
    flat = _flat(x)
    found: dict[int, str] = {}
    box = settings.effective_input_box
    if box is not None:
        low, high = _stored_ends(box, x.dtype)
        least, most = flat.min(axis=1, initial=low), flat.max(axis=1, initial=high)
        for index in np.flatnonzero((least < low) | (most > high)):
            worst = least[index] if least[index] < low else most[index]
            found[int(index)] = f"has the entry {worst:.6g} outside [{low:.6g}, {high:.6g}]"
    if is_whole:
        for index in np.flatnonzero((flat != np.rint(flat)).any(axis=1)):
            worst = flat[index][flat[index] != np.rint(flat[index])][0]
            found[int(index)] = f"has the entry {worst:.6g}, which is no whole number"
    if settings.input_norm is not None:
        norms = np.sqrt(np.sum(flat * flat, axis=1))
        rounding = flat.shape[1] * _ROUNDING + _unit(x.dtype)
        for index in np.flatnonzero(norms > settings.input_norm * (1.0 + rounding)):
            found[int(index)] = (
                f"has the norm {norms[index]:.9g}, above the radius {settings.input_norm:.9g}"
            )
    return sorted(found.items())


def settled(x: npt.NDArray[Any], radius: float, settings: Settings) -> FloatArray:
    """Admissible examples in float64: what rounding left outside of box or ball is drawn into them.

    radius: bound of the norm of an admissible example.
    Proof: the computed norm of n entries is off by less than a factor of 1 + n·2^-52, and as much
    is left free. The box holds the segment from x to its point c nearest to
    0, on which the norm is convex: at c + t(x − c) it is at most ‖c‖ + t(‖x‖ − ‖c‖).
    """
    low, high = settings.effective_input_box or (-math.inf, math.inf)
    flat = np.clip(_flat(x), low, high)
    centre = min(max(0.0, low), high)
    least, wanted = (
        abs(centre) * math.sqrt(flat.shape[1]),
        radius * (1.0 - flat.shape[1] * _ROUNDING),
    )
    norms = np.sqrt(np.sum(flat * flat, axis=1))[:, None]
    far = norms > wanted
    if least < wanted and np.any(far):
        share = (wanted - least) / (np.where(far, norms, wanted) - least)
        drawn = np.clip(centre + share * (flat - centre), low, high)
        flat = np.where(far, drawn, flat)
    return flat.reshape(x.shape)


def _stored_ends(box: tuple[float, float], dtype: np.dtype[Any]) -> tuple[float, float]:
    """The box, its ends where rounding to a type would put them, if that is further out."""
    if dtype.kind != "f":
        return box
    with np.errstate(over="ignore"):
        low, high = np.asarray(box).astype(dtype).astype(np.float64).tolist()
    return min(box[0], low), max(box[1], high)


def _flat(x: npt.NDArray[Any]) -> FloatArray:
    """One row for each example, exactly."""
    return np.asarray(x, dtype=np.float64).reshape(len(x), math.prod(x.shape[1:]))


def _unit(dtype: np.dtype[Any]) -> float:
    """Relative error of one rounding to a type; 0 for integers, which are exact."""
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
