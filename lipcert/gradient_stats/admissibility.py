"""Admissibility: which examples lie outside the input domain to which the bounds apply.

`outside` compares the inputs, as they were fed to the network, with the declared domain. Numbers
are compared exactly: every float type embeds in float64, and a norm counts as too large only if
rounding cannot be the reason. `settled` moves into the domain what only rounding left outside.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.program import FloatArray, Part
from lipcert.graph.ir import places_of
from lipcert.settings.settings import Settings

DRAWN_IN: Final = 1.0 - 2.0**-20
"""Share of the radius to which training scales examples; rounding the result adds less than the
rest."""
_ROUNDING: Final = 2.0**-52


@np.errstate(over="ignore")
def outside(
    x: npt.NDArray[Any], settings: Settings, inputs: Sequence[Part] = ()
) -> list[tuple[int, str]]:
    """Return each inadmissible example of x [examples, ...] with the reason, in order.

    inputs: those of the file; inputs of ids admit only whole numbers.

    An example that was scaled to the radius R and then stored may have a norm of (1 + u)·R, u the
    largest relative error of rounding an entry to its type: it counts as admissible. So does the
    possible error n·2^-52 of the sum of n squares, and an entry that is an end of the box as
    rounded to the type of x.
    """
    flat, dtype = _flat(x), _type(x, settings)
    found: dict[int, str] = {}
    for entries in _whole(inputs):
        found |= _fractions(flat[:, entries])
    for domain in settings.domains:
        numbers = flat[:, domain.entries]
        found |= _of(domain.input, _beyond_box(numbers, domain.box, dtype))
        found |= _of(domain.input, _beyond_norm(numbers, domain.norm, dtype))
    return sorted(found.items())


def _type(x: npt.NDArray[Any], settings: Settings) -> np.dtype[Any]:
    """Return the type in which the examples were stored.

    Several inputs, ids among them, are joined in float64, whatever type each had.
    """
    if settings.input_parts and x.dtype == np.float64:
        single = x.astype(np.float32)
        return single.dtype if np.array_equal(single, x) else x.dtype
    return x.dtype


def _of(name: str, found: dict[int, str]) -> dict[int, str]:
    """Add the name of the input to each reason, if there are several inputs."""
    return {i: f"in its input {name!r} {why}" for i, why in found.items()} if name else found


def _beyond_box(
    flat: FloatArray, box: tuple[float, float] | None, dtype: np.dtype[Any]
) -> dict[int, str]:
    if box is None:
        return {}
    low, high = _stored_ends(box, dtype)
    least, most = flat.min(axis=1, initial=low), flat.max(axis=1, initial=high)
    found = {}
    for index in np.flatnonzero((least < low) | (most > high)):
        worst = least[index] if least[index] < low else most[index]
        found[int(index)] = f"has the entry {worst:.6g} outside [{low:.6g}, {high:.6g}]"
    return found


def _fractions(flat: FloatArray) -> dict[int, str]:
    found = {}
    for index in np.flatnonzero((flat != np.rint(flat)).any(axis=1)):
        worst = flat[index][flat[index] != np.rint(flat[index])][0]
        found[int(index)] = f"has the entry {worst:.6g}, which is not a whole number"
    return found


def _beyond_norm(flat: FloatArray, radius: float | None, dtype: np.dtype[Any]) -> dict[int, str]:
    if radius is None:
        return {}
    norms = np.sqrt(np.sum(flat * flat, axis=1))
    rounding = flat.shape[1] * _ROUNDING + _unit(dtype)
    return {
        int(index): f"has the norm {norms[index]:.9g}, above the radius {radius:.9g}"
        for index in np.flatnonzero(norms > radius * (1.0 + rounding))
    }


def settled(
    x: npt.NDArray[Any],
    radius: float,
    settings: Settings,
    inputs: Sequence[Part] = (),
    share: float = 1.0,
) -> FloatArray:
    """Return admissible examples in float64: what rounding left outside of box or ball is moved
    inside.

    radius: bound of the norm of an admissible example. inputs: those of the file; ids are not
    changed. share: the share of each radius within which the results must lie.

    Proof: the computed norm of n entries is off by less than a factor of 1 + n·2^-52, and as much
    is left free. The box holds the segment from x to its point c nearest to 0, on which the norm is
    convex: at c + t(x − c) it is at most ‖c‖ + t(‖x‖ − ‖c‖). So moving several inputs together
    leaves none of them longer than it was, or than its own point c.
    """
    given = _flat(x)
    low, high = np.full(given.shape[1], -math.inf), np.full(given.shape[1], math.inf)
    for domain in settings.domains:
        if domain.box is not None:
            low[domain.entries], high[domain.entries] = domain.box
    flat, centre = np.clip(given, low, high), np.clip(0.0, low, high)
    balls = [(item.entries, item.norm) for item in settings.domains if item.input]
    for entries, norm in (*balls, (slice(None), radius)):
        if norm is not None:
            flat[:, entries] = _drawn_in(flat[:, entries], centre[entries], norm * share)
    flat = np.clip(flat, low, high)
    for entries in _whole(inputs):
        flat[:, entries] = given[:, entries]
    return flat.reshape(x.shape)


def _whole(inputs: Sequence[Part]) -> Iterator[slice]:
    """Yield the entries of an example that are ids."""
    return (where for part, where in places_of(inputs) if part.ids is not None)


def _drawn_in(flat: FloatArray, centre: FloatArray, radius: float) -> FloatArray:
    """Move examples that are longer than the radius towards the centre until they are short
    enough."""
    least = float(np.sqrt(np.sum(centre * centre)))
    wanted = radius * (1.0 - flat.shape[1] * _ROUNDING)
    norms = np.sqrt(np.sum(flat * flat, axis=1))[:, None]
    far = norms > wanted
    if not (least < wanted and np.any(far)):
        return flat
    part = (wanted - least) / (np.where(far, norms, wanted) - least)
    return np.where(far, centre + part * (flat - centre), flat)


def _stored_ends(box: tuple[float, float], dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the box with its ends rounded to a type, where that is further out."""
    if dtype.kind != "f":
        return box
    low, high = np.asarray(box).astype(dtype).astype(np.float64).tolist()
    return min(box[0], low), max(box[1], high)


def _flat(x: npt.NDArray[Any]) -> FloatArray:
    """Return one row for each example, in float64, exactly."""
    return np.asarray(x, dtype=np.float64).reshape(len(x), math.prod(x.shape[1:]))


def _unit(dtype: np.dtype[Any]) -> float:
    """Return the relative error of one rounding to a type; 0 for integers, which are exact."""
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
