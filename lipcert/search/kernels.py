"""Kernels: propose bounds of convolution-kernel gradients, as levels σ + κ·h·‖d‖ of class pairs.

The symbols are those of `core.forms.kernels`; `core.lines.kernels` proves a level for all pairs.
`kernel_lines` takes a proof with complete cotangents and a convolution, and yields lines that have
not been evaluated. Pairs are taken in the order of a cheaper bound of σ, until no other pair can
have a larger one.

Weights of entries are a and b for which R·‖ρu/b‖ is small: untrusted numbers of linear steps below
unknown slopes, for all pairs of classes. Steps along the gradient (Adam; Kingma and Ba 2015) reduce
the logarithm of R·‖diag(a)·Aᵀ·diag(b)‖·‖ρu/b‖, where the norm is estimated by a few vectors that a
power of the matrix turns towards the largest ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.forms.kernels import correlated, laid_out
from lipcert.core.interval import Array
from lipcert.core.line import NotProved
from lipcert.core.lines.kernels import Added, Kernel, KernelGradient, added_below, kernel_at
from lipcert.core.lines.proof import LOSS, Proof
from lipcert.core.program import Dense
from lipcert.core.window_kinds import Conv
from lipcert.search.eigenvalues import spectral_norm
from lipcert.settings.values import TierName

_RATIO, _STEP, _HALVINGS = 1.4, 1.4, 4
"""Ratio with which a search begins, its first step, and how often that is halved."""
_DECISIVE: Final = 12
"""Most pairs of classes whose largest level decides the ratio."""
_ROOMS: Final = (1.0 + 1e-5, 1.01, 1.05)
_WORTH: Final = 0.99
"""What must be possible, as a share of the known bound."""
_WORK: Final[Mapping[TierName, float]] = {"quick": 0.0, "fast": 3e9, "tight": 1e12}
"""Most multiplications for the pairs of one convolution."""
_PULLED: Final[Mapping[TierName, float]] = {"quick": 0.0, "fast": 1e8, "tight": 1e11}
"""Most multiplications that pull the vectors of all classes down to a value."""
_PAIR: Final = 2e7
"""Other work for a pair, in multiplications."""
_LOOKS: Final = 240
_VECTORS, _POWERS = 16, 2
_RATE: Final = 0.1
_WIDTH: Final = 0.01
"""Width of the smoothed maximum, as a share of it."""
_LARGEST: Final = 1e30
_ROOM: Final = 2.0**-20
_FARTHEST: Final = 12.0
"""Limit for the logarithms of squares."""


def kernel_lines(
    proof: Proof, value: str, known: float, tier: TierName
) -> Iterator[KernelGradient]:
    """Yield lines about the convolution that computes a value, if they may improve on `known`.

    The strongest comes first.
    """
    stop = stop_above(proof, value, tier)
    if stop is None:
        return
    try:
        kernel = kernel_at(proof, value, stop)
    except NotProved:
        return
    with np.errstate(over="ignore", divide="ignore"):
        limit = _WORTH * known / np.float64(kernel.scale * kernel.norm)
    weights, part = weights_found(proof, kernel, stop) if tier == "tight" else ((), None)
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
    """Return the nearest value above, on a single path, whose cotangent lies in a hull.

    The result is None if there is none, or if pulling down differences of classes costs too much.
    """
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
    """Return a ratio, and the level of all pairs; inf if that is not below the limit.

    σ is found for the pairs that may have the largest, as far as the work allows.
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
    ratio = _best_ratio(lambda a: _norm(_rows(parts[0], a)) * _weight(a))
    by_rows = times * _weight(ratio) * np.array([_norm(_rows(part, ratio)) for part in parts])
    upper = np.minimum(sizes[few], rests[few] + by_rows)
    most = int(work / _cost(2 * channels * kernel.reads.shape[1], kernel.pixels))
    ordered = np.argsort(-upper)
    if most > 2 * _HALVINGS:
        largest = ordered[: max(most // (4 * _HALVINGS), 1)][:_DECISIVE]
        ratio = _best_ratio(lambda a: max(rests[few[k]] + whole(parts[k], a) for k in largest))
    level = left
    for count, place in enumerate(ordered):
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


def _best_ratio(value: Callable[[float], float]) -> float:
    """Return about where a function is least that is convex in the logarithm of the ratio.

    σ² is: the largest of sums of a², 1/a² and 1 with weights that are not negative.
    """
    at, step, value = _RATIO, _STEP, cache(value)
    for _ in range(_HALVINGS):
        at = min((at / step, at, at * step), key=value)
        step = math.sqrt(step)
    return at


def _cost(rows: int, columns: int) -> float:
    """Return the multiplications of a norm of each pair."""
    small, large = sorted((rows, columns))
    return _PAIR + 2.0 * small * small * (large + small)


def _weight(ratio: float) -> float:
    return math.sqrt(1.0 + 1.0 / ratio**2)


def _parts(kernel: Kernel, one: int, other: int) -> Array:
    """Return what is correlated for a pair, with the ratio 1."""
    vector, slopes = kernel.vector(one, other), kernel.slopes
    return correlated(vector, slopes, 1.0, nonnegative=kernel.nonnegative).lo


def _rows(parts: Array, ratio: float) -> Array:
    """Return [aμv; ρ|v|]."""
    signed, plain = parts
    return np.concatenate([ratio * signed, plain])


def _norm(matrix: Array) -> float:
    """Return ‖matrix‖₂, up to rounding."""
    wide = matrix.shape[0] < matrix.shape[1]
    square = matrix @ matrix.T if wide else matrix.T @ matrix
    return math.sqrt(max(float(np.linalg.eigvalsh(square)[-1]), 0.0))


def weights_found(
    proof: Proof, kernel: Kernel, stop: str
) -> tuple[tuple[tuple[float, ...], ...], Array | None]:
    """Return a and b, and what they prove of every pair of classes; nothing if that is no gain."""
    try:
        added = added_below(proof, kernel, stop)
        problem = _Problem.of(kernel, added)
        if problem is None:
            return (), None
        inner, outer = problem.weights()
        part = added.part(kernel, inner, outer, proof)
    except NotProved:
        return (), None
    known, _ = kernel.rests(None)
    if not float(part.max()) < _WORTH * kernel.norm * float(known.max()):
        return (), None
    return (tuple(inner.tolist()), tuple(outer.tolist())), part


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The weights a and b as a minimisation problem.

    whole: A; matrix: A over its largest entry; squares: (ρu)² for every pair of classes, the
    largest sum being 1; slopes: m², [channels, windows]; rooms: of the squares of x, for each
    channel of the output and pixel.
    """

    whole: Array
    matrix: npt.NDArray[np.float32]
    squares: Array
    slopes: Array
    kernel: Kernel
    rooms: Array

    @classmethod
    def of(cls, kernel: Kernel, added: Added) -> _Problem | None:
        """Return the problem; None if numbers are too large or small, or nothing can be gained."""
        one, other = np.triu_indices(len(added.vectors.lo), 1)
        squares = (added.vectors.lo[one] - added.vectors.lo[other]) ** 2
        scale = float(np.abs(added.matrix.lo).max())
        total = float(squares.sum(axis=1).max(initial=0.0))
        numbers = np.array([scale, total, kernel.norm, kernel.steepest])
        if not ((numbers > 1.0 / _LARGEST) & (numbers < _LARGEST)).all():
            return None
        groups, channels = kernel.groups, len(kernel.slopes.lo)
        rooms = np.minimum(kernel.largest**2, kernel.norm**2)
        rooms = rooms.reshape(groups, -1, kernel.pixels).sum(axis=1)
        return cls(
            added.matrix.lo,
            (added.matrix.lo / scale).astype(np.float32),
            squares / total,
            kernel.slopes.magnitude() ** 2,
            kernel,
            np.repeat(rooms, channels // groups, axis=0),
        )

    def weights(self) -> tuple[Array, Array]:
        """Return a and b, with ‖diag(a)·Aᵀ·diag(b)‖ a little below 1."""
        above, below = self.matrix.shape
        point, mean, spread = np.zeros((3, above + below))
        vectors: Any = np.random.default_rng(0).standard_normal((below, _VECTORS))
        vectors = np.linalg.qr(vectors)[0].astype(np.float32)
        for look in range(1, _LOOKS + 1):
            gradient, vectors = self._look(point, vectors)
            mean += 0.1 * (gradient - mean)
            spread += 0.001 * (gradient**2 - spread)
            step = mean / (1.0 - 0.9**look) / (np.sqrt(spread / (1.0 - 0.999**look)) + 1e-12)
            point -= _RATE * (1.0 - 0.95 * look / _LOOKS) * step
            point = np.clip(point, -_FARTHEST, _FARTHEST)
        outer, inner = np.exp(0.5 * point[:above]), np.exp(0.5 * point[above:])
        norm = spectral_norm(self.whole * inner * outer[:, None])
        return inner, outer * ((1.0 - _ROOM) / norm)

    def _look(self, point: Array, vectors: Any) -> tuple[Array, Any]:
        """Return the gradient by the logarithms of b² and a², and better vectors."""
        above = len(self.matrix)
        outer, inner = np.exp(0.5 * point[:above]), np.exp(0.5 * point[above:])
        rows, columns = outer.astype(np.float32)[:, None], inner.astype(np.float32)[:, None]
        for _ in range(_POWERS):
            images = rows * (self.matrix @ (columns * vectors))
            vectors = np.linalg.qr(columns * (self.matrix.T @ (rows * images)))[0]
        images = rows * (self.matrix @ (columns * vectors))
        values, turn = np.linalg.eigh((images.T @ images).astype(np.float64))
        values = np.maximum(values, 1e-12 * max(float(values[-1]), 1e-30))
        shares = np.exp((values - values[-1]) / (_WIDTH * values[-1]))
        shares /= shares.sum()
        images, vectors = images @ turn.astype(np.float32), vectors @ turn.astype(np.float32)
        by_outer = (images.astype(np.float64) ** 2 / values) @ shares
        by_inner = (vectors.astype(np.float64) ** 2) @ shares
        lengths = self.squares / outer**2
        sums = lengths.sum(axis=1)
        by_pair = np.exp((sums - sums.max()) / (_WIDTH * sums.max()))
        weights = self.slopes / inner.reshape(self.slopes.shape) ** 2
        reached, met = self._reached(weights)
        reach = np.exp((reached - reached.max()) / (_WIDTH * reached.max()))
        by_reach = (reach / reach.sum() / reached)[:, None] * weights * met
        by_outer -= (by_pair / by_pair.sum() / np.maximum(sums, 1e-300)) @ lengths
        return np.concatenate([by_outer, by_inner - by_reach.ravel()]), vectors

    def _reached(self, weights: Array) -> tuple[Array, Array]:
        """Return R² for each channel, and the squares of x that each window meets there."""
        reads, pixels = self.kernel.reads, self.kernel.pixels
        factors = np.zeros((len(weights), pixels + 1))
        for places in reads.T:
            factors[:, places] += weights * (places >= 0)
        factors = factors[:, :pixels]
        order = np.argsort(-factors, axis=1)
        rooms = np.take_along_axis(self.rooms, order, axis=1)
        left = np.clip(self.kernel.norm**2 - np.cumsum(rooms, axis=1) + rooms, 0.0, rooms)
        squares = np.zeros((len(weights), pixels + 1))
        np.put_along_axis(squares, order, left, axis=1)
        met = squares[:, reads].sum(axis=2)
        return (squares[:, :pixels] * factors).sum(axis=1) + 1e-300, met
