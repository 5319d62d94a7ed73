"""Weights of entries, as of `core.forms.weights`: a and b for which R·‖ρu/b‖ is small.

Input: linear steps below unknown slopes. Output: untrusted numbers for all pairs of classes. Steps
along the gradient (Adam; Kingma and Ba 2015) lower the logarithm of R·‖diag(a)·Aᵀ·diag(b)‖·‖ρu/b‖,
whose norm is seen by a few vectors that a power of the matrix turns towards the largest ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from lipcert.core.interval import Array
from lipcert.core.line import NotProved
from lipcert.core.lines.kernels import Added, Kernel, added_below
from lipcert.core.lines.proof import Proof
from lipcert.search.eigenvalues import spectral_norm

_LOOKS: Final = 240
_VECTORS, _POWERS = 16, 2
_RATE: Final = 0.1
_WIDTH: Final = 0.01
"""of the smoothed maximum, as a part of it"""
_WORTH: Final = 0.99
"""of what is known, what must be proved"""
_LARGEST: Final = 1e30
_ROOM: Final = 2.0**-20
_FARTHEST: Final = 12.0
"""of the logarithms of squares"""


def weights_found(
    proof: Proof, kernel: Kernel, stop: str
) -> tuple[tuple[tuple[float, ...], ...], Array | None]:
    """a and b, and what they prove of every pair of classes; nothing where that is no gain."""
    try:
        added = added_below(proof, kernel, stop)
    except NotProved:
        return (), None
    problem = _Problem.of(kernel, added)
    if problem is None:
        return (), None
    inner, outer = problem.weights()
    try:
        part = added.part(kernel, inner, outer, proof)
    except NotProved:
        return (), None
    known, _ = kernel.rests(None)
    if not float(part.max()) < _WORTH * kernel.norm * float(known.max()):
        return (), None
    return (tuple(inner.tolist()), tuple(outer.tolist())), part


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """whole: A; matrix: A over its largest entry; squares: (ρu)² for every pair of classes, of
    which the largest sum is 1; slopes: m², [channels, windows]; rooms: of the squares of x, for
    each channel of the output and pixel."""

    whole: Array
    matrix: npt.NDArray[np.float32]
    squares: Array
    slopes: Array
    kernel: Kernel
    rooms: Array

    @classmethod
    def of(cls, kernel: Kernel, added: Added) -> _Problem | None:
        """None for numbers that are too large or too small, and where there is nothing to gain."""
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
        """a and b, ‖diag(a)·Aᵀ·diag(b)‖ being a little below 1."""
        above, below = self.matrix.shape
        point, mean, spread = (
            np.zeros(above + below),
            np.zeros(above + below),
            np.zeros(above + below),
        )
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
        """The gradient by the logarithms of b² and a², and better vectors."""
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
        """R² for each channel, and the squares of x that each window meets there."""
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
