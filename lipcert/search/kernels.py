"""Levels for gradients of kernels: which σ + κ·h·‖d‖ the core may be able to prove of all pairs.

Input: a proof with its cotangents settled, and a convolution. Output: lines that have not been
evaluated. Pairs come in the order of a cheaper bound of σ, until no other can have a larger one.
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
from lipcert.core.program import Conv, Dense
from lipcert.settings.values import TierName

_RATIOS: Final = (0.7, 1.0, 1.4, 1.7, 2.0)
_ROOMS: Final = (1.0 + 1e-5, 1.01, 1.05)
_WORTH: Final = 0.99
"""of the bound that is known, what must be possible"""
_WORK: Final[Mapping[TierName, float]] = MappingProxyType(
    {"quick": 0.0, "fast": 3e9, "tight": 1e12}
)
"""multiplications for the pairs of one convolution"""
_PULLED: Final[Mapping[TierName, float]] = MappingProxyType(
    {"quick": 0.0, "fast": 1e8, "tight": 1e11}
)
"""multiplications that pull the vectors of all classes down to a value"""
_PAIR: Final = 2e7
"""multiplications that take as long as what is done for a pair besides"""


def kernel_lines(
    proof: Proof, value: str, known: float, tier: TierName
) -> Iterator[KernelGradient]:
    """For the convolution that computes a value, where they may say more than is known; the one
    that says most first."""
    stop = stop_above(proof, value, tier)
    if stop is None:
        return
    try:
        kernel = kernel_at(proof, value, stop)
    except NotProved:
        return
    with np.errstate(over="ignore", divide="ignore"):
        limit = _WORTH * known / np.float64(kernel.scale * kernel.norm)
    weights: tuple[tuple[float, ...], ...] = ()
    part = None
    if tier == "tight":
        from lipcert.search.weights import weights_found  # noqa: PLC0415  where effort is tight

        weights, part = weights_found(proof, kernel, stop)
    ratio, level = _level(kernel, _WORK[tier], float(limit), part)
    for room in _ROOMS:
        if level * room < limit:
            yield KernelGradient(
                value=value,
                stop=stop,
                ratio=ratio,
                claim=level * room,
                weights=weights,
            )


def stop_above(proof: Proof, value: str, tier: TierName) -> str | None:
    """The nearest value on the single way up of which the cotangent lies in a hull; None if there
    is none, or differences of classes are not worth being pulled down from it."""
    own, work = proof.passes[LOSS], 0.0
    while True:
        cotangent = own.cotangents.get(value)
        if cotangent is not None and cotangent.hull is not None:
            return value if work * cotangent.hull.classes < _PULLED[tier] else None
        readers = own.readers.get(value, ())
        if len(readers) != 1 or proof.reads[value] != 1:
            return None
        op, value = readers[0].op, readers[0].output
        if isinstance(op, Conv | Dense):
            places = math.prod(readers[0].shape) // op.weight.shape[0]
            work += math.prod(op.weight.shape) * places


def _level(
    kernel: Kernel, work: float, limit: float, added: Array | None = None
) -> tuple[float, float]:
    """A ratio, and the level of all pairs; inf where that is not below the limit.

    σ is found of the pairs that may have the largest, as far as the work allows.
    """
    one, other = np.triu_indices(len(kernel.differences.rests), 1)
    stretch = kernel.stretch * kernel.steepest
    sizes = stretch * kernel.differences.sizes[one, other]
    rests = kernel.rests(added)[0][one, other]
    order = np.argsort(-sizes)
    channels, windows = kernel.slopes.shape
    most = int(work / _cost(2 * channels, windows))
    left = float(sizes[order[most]]) if most < len(order) else 0.0
    if not (len(order) and 0.0 < sizes.max() < math.inf and max(left, rests.max()) < limit):
        return 1.0, math.inf

    def whole(part: Array, ratio: float) -> float:
        return _norm(laid_out(_rows(part, ratio), kernel.reads, kernel.pixels)) * _weight(ratio)

    few = order[:most]
    parts = [_parts(kernel, int(one[pair]), int(other[pair])) for pair in few]
    times = math.sqrt(np.bincount(kernel.reads[kernel.reads >= 0]).max())
    ratio = min(_RATIOS, key=lambda a: _norm(_rows(parts[0], a)) * _weight(a))
    by_rows = times * _weight(ratio) * np.array([_norm(_rows(part, ratio)) for part in parts])
    upper = np.minimum(sizes[few], rests[few] + by_rows)
    most = int(work / _cost(2 * channels * kernel.reads.shape[1], kernel.pixels))
    if most > len(_RATIOS):
        part = parts[int(np.argmax(upper))]
        ratio = min(_RATIOS, key=lambda a: whole(part, a))
    level = left
    for count, place in enumerate(np.argsort(-upper)):
        if upper[place] <= level:
            break
        if count >= most:
            level = float(upper[place])
            break
        found = float(rests[few[place]]) + whole(parts[place], ratio)
        level = max(level, min(found, float(upper[place])))
        if level >= limit:
            break
    return ratio, level


def _cost(rows: int, columns: int) -> float:
    """Multiplications for a norm of each pair."""
    small, large = sorted((rows, columns))
    return _PAIR + 2.0 * small * small * (large + small)


def _weight(ratio: float) -> float:
    return math.sqrt(1.0 + 1.0 / ratio**2)


def _parts(kernel: Kernel, one: int, other: int) -> Array:
    """What is correlated for a pair, for the ratio 1."""
    vector, slopes = kernel.vector(one, other), kernel.slopes
    return correlated(vector, slopes, 1.0, nonnegative=kernel.nonnegative).lo


def _rows(parts: Array, ratio: float) -> Array:
    """[aμv; ρ|v|]."""
    signed, plain = parts
    return np.concatenate([ratio * signed, plain])


def _norm(matrix: Array) -> float:
    """‖matrix‖₂, up to rounding."""
    wide = matrix.shape[0] < matrix.shape[1]
    square = matrix @ matrix.T if wide else matrix.T @ matrix
    return math.sqrt(max(float(np.linalg.eigvalsh(square)[-1]), 0.0))
