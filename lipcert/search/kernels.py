"""Levels for gradients of kernels: which σ + κ·h·‖d‖ the core may be able to prove of all pairs.

Input: a proof with its cotangents settled, and a convolution. Output: lines that have not been
evaluated. σ of every pair is estimated along one direction, and found for those that seem largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from lipcert.core.forms.correlation import correlated, laid_out
from lipcert.core.interval import Array
from lipcert.core.line import NotProved
from lipcert.core.lines.kernels import Kernel, KernelGradient, kernel_at
from lipcert.core.lines.proof import LOSS, Proof
from lipcert.settings.values import TierName

_RATIOS: Final = (0.7, 1.0, 1.4, 2.0)
_ROOMS: Final = (1.0 + 1e-5, 1.01, 1.05)
_FOUND: Final = 3
"""pairs of which σ is found"""
_STEPS: Final = 20
_WORTH: Final = 0.99
"""of the bound that is known, what must be possible"""
_WORK: Final[Mapping[TierName, float]] = MappingProxyType(
    {"quick": 0.0, "fast": 3e9, "tight": 1e12}
)
"""multiplications for the pairs of one convolution"""


def kernel_lines(
    proof: Proof, value: str, known: float, tier: TierName
) -> Iterator[KernelGradient]:
    """For the convolution that computes a value, where they may say more than is known; the one
    that says most first."""
    stop = _stop_above(proof, value)
    if stop is None or not _WORK[tier]:
        return
    try:
        kernel = kernel_at(proof, value, stop)
    except NotProved:
        return
    with np.errstate(over="ignore", divide="ignore"):
        limit = _WORTH * known / np.float64(kernel.scale * kernel.norm)
    ratio, level = _level(kernel, _WORK[tier], float(limit))
    for room in _ROOMS:
        if level * room < limit:
            yield KernelGradient(value=value, stop=stop, ratio=ratio, level=level * room)


def _stop_above(proof: Proof, value: str) -> str | None:
    """The nearest value on the single way up of which the cotangent lies in a hull."""
    own = proof.passes[LOSS]
    while True:
        cotangent = own.cotangents.get(value)
        if cotangent is not None and cotangent.hull is not None:
            return value
        readers = own.readers.get(value, ())
        if len(readers) != 1 or proof.reads[value] != 1:
            return None
        value = readers[0].output


def _level(kernel: Kernel, work: float, limit: float) -> tuple[float, float]:
    """A ratio, and the level of all pairs; inf where that is not below the limit.

    Where they are too many for the work, the rest of them are left with κ·h·‖q‖.
    """
    one, other = np.triu_indices(len(kernel.differences.rests), 1)
    stretch = kernel.stretch * kernel.steepest
    sizes = stretch * kernel.differences.sizes[one, other]
    rests = stretch * kernel.differences.rests[one, other]
    order = np.argsort(-sizes)
    rows = 2 * len(kernel.slopes.lo) * kernel.reads.shape[1]
    small, large = sorted((rows, kernel.pixels))
    most = int(work / (2.0 * small * small * (large + small)))
    left = float(sizes[order[most]]) if most < len(order) else 0.0
    if not (len(order) and 0.0 < sizes.max() < math.inf and max(left, rests.max()) < limit):
        return 1.0, math.inf
    few = order[:most]
    parts = [_parts(kernel, int(one[pair]), int(other[pair])) for pair in few]
    first = _matrix(kernel, parts[0], 1.0)
    direction = _direction(first)
    lengths = [float(np.linalg.norm(_matrix(kernel, part, 1.0) @ direction)) for part in parts]
    near = rests[few] + math.sqrt(2.0) * np.array(lengths)
    ratio, level = 0.0, left
    for place in np.argsort(-near)[:_FOUND]:
        if not near[place] < limit:
            return 1.0, math.inf
        ratios = (ratio,) if ratio else _RATIOS
        tried = ((rests[few[place]] + _factor(kernel, parts[place], a), a) for a in ratios)
        found, ratio = min(tried)
        level = max(level, float(found))
    return ratio, level


def _parts(kernel: Kernel, one: int, other: int) -> Array:
    """What is correlated for a pair, for the ratio 1."""
    vector, slopes = kernel.vector(one, other), kernel.slopes
    return correlated(vector, slopes, 1.0, nonnegative=kernel.nonnegative).lo


def _matrix(kernel: Kernel, parts: Array, ratio: float) -> Array:
    """About [aD; S]."""
    weighed = parts * np.array([ratio, 1.0])[:, None, None]
    return laid_out(weighed, kernel.reads, kernel.pixels)


def _direction(matrix: Array) -> Array:
    """About where it stretches most."""
    found = np.ones(matrix.shape[1])
    for _ in range(_STEPS):
        found = matrix.T @ (matrix @ found)
        found /= float(np.linalg.norm(found)) or 1.0
    return found


def _factor(kernel: Kernel, parts: Array, ratio: float) -> float:
    """About σ."""
    matrix = _matrix(kernel, parts, ratio)
    square = matrix @ matrix.T if len(matrix) < kernel.pixels else matrix.T @ matrix
    largest = max(float(np.linalg.eigvalsh(square)[-1]), 0.0)
    return math.sqrt(largest * (1.0 + 1.0 / ratio**2))
