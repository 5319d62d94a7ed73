"""Windows: which numbers give convolutions and ReLUs in a row a small bound together.

`window_line` takes the steps between a value without negative entries and a ReLU behind several
convolutions, and returns untrusted numbers for `core.lines.windows`. In units of what is known of
each value, let G(r) be H less r on the diagonal of each: then ‖v_L‖² ≤ Σ r + n·λ + Σ γτ, λ ≥ 0 the
largest eigenvalue of the symbol of G, n the number of values. Steps along the gradient (Adam;
Kingma and Ba 2015) lower that, for a smoothed λ at a few frequencies, over the logarithms of all
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.interval import exact
from lipcert.core.line import NotProved
from lipcert.core.lines.gains import image_of_zero
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.windows import WindowFact, kernels_of, layers_of, ties_of
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.joint_kernels import Layout
from lipcert.core.norms.lines import axes_of
from lipcert.core.program import Step
from lipcert.search.torus import torus_norm

FloatArray = npt.NDArray[np.float64]
_LOOKS: Final = 200
_RATE: Final = 0.2
_WIDTHS: Final = (0.01, 0.0005)
"""how far the largest eigenvalue is smoothed, as a part of what is known, at first and at last"""
_WORK: Final = 3e12
"""operations of all looks"""
_PER_EIGENVALUE: Final = 60.0
_FIRST_TIE, _OTHER, _TINY, _FIRST_SHARES = 1.0, 1e-2, 1e-6, (0.3, 0.02)
_FIRST_LEVEL: Final = 0.3
_LOWEST, _HIGHEST = -25.0, 10.0
"""logarithms of numbers"""
_NUMBERS: Final = 1 << 16
_WORTH: Final = 0.98
_ROOM: Final = 1e-9
"""what is added to the norm of the form, relatively"""


def window_line(proof: Proof, steps: Sequence[Step], norms: Sequence[float]) -> WindowFact | None:
    """Return a line about the ReLU at the end of these steps, None where too little is gained.

    norms: of what they read, and of each ReLU.
    """
    values = tuple(step.output for step in steps)
    try:
        layers = layers_of(proof, values[:-1], values[-1])
        kernels = kernels_of(proof, layers)
        layout = Layout.of([kernel.frame for kernel in kernels])
    except NotProved:
        return None
    points = _waves(layout.shape[2:], _few(layout.shape[2:])).shape[1]
    work = _LOOKS * points * _PER_EIGENVALUE * layout.shape[0] ** 3
    boxes = [image_of_zero(layer[:-1], proof) for layer in layers]
    known = [np.array(norms), *(box.magnitude() for box in boxes)]
    known += [kernel.entries.magnitude() for kernel in kernels]
    if work > _WORK or sum(at.size for at in (*layout.own, *layout.below)) > _NUMBERS:
        return None
    if not (all(np.isfinite(part).all() for part in known) and min(norms) > 0.0):
        return None
    middles = [np.array(0.5 * k.entries.lo + 0.5 * k.entries.hi) for k in kernels]
    constants = [np.where(np.eye(len(box.lo)), box.hi, box.lo) / norms[-1] for box in boxes]
    problem = _Problem(layout, middles, constants, np.array(norms) / norms[-1])
    with np.errstate(all="ignore"):
        return problem.line(problem.point(), values, norms[-1])


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """Magnitudes of Θ and Θ itself, M, τ and γ of each layer, and r of each value."""

    magnitudes: list[FloatArray]
    ties: list[FloatArray]
    added: list[FloatArray]
    levels: FloatArray
    shares: FloatArray
    gammas: list[FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The bound, as a part of what is known, by the logarithms of all numbers.

    constants: c as far as it counts in Θc; norms: over that of the last value, which is known.
    """

    layout: Layout
    kernels: list[FloatArray]
    constants: list[FloatArray]
    norms: FloatArray

    def numbers(self, point: FloatArray) -> _Numbers:
        """Return the numbers that have these logarithms."""
        own, count = self.layout.own[1:], len(self.kernels)
        sizes = np.cumsum([*(at.size for at in (*own, *self.layout.below)), count])
        *parts, levels, shares = np.split(np.exp(np.clip(point, _LOWEST, _HIGHEST)), sizes)
        ties = [ties_of(part, at) for part, at in zip(parts[:count], own, strict=True)]
        sums = ((tie * c).sum(axis=2) for tie, c in zip(ties, self.constants, strict=True))
        gammas = [np.maximum(part, 0.0) for part in sums]
        return _Numbers(parts[:count], ties, parts[count:], levels, shares, gammas)

    def kernel(self, numbers: _Numbers, scales: FloatArray, shift: float = 0.0) -> Convolution:
        """Return shift·I + SHS."""
        first = self.layout.own[0].shape
        diagonal = [np.zeros(first[:2]), *map(np.divide, numbers.gammas, numbers.levels)]
        diagonal[-1] = diagonal[-1] + 1.0
        ties, entries = [np.zeros(first), *numbers.ties], [*map(exact, self.kernels)]
        made = self.layout.kernel(entries, ties, numbers.added, diagonal, scales.tolist(), shift)
        return made.frame

    def rest(self, numbers: _Numbers) -> float:
        """Return Σ γτ over all entries."""
        sums = np.array([gamma.sum() for gamma in numbers.gammas])
        return math.prod(self.layout.places) * float(sums @ numbers.levels)

    def point(self) -> FloatArray:
        """Return the logarithms of numbers that prove a small bound."""
        taps, count = self.layout.shape[2:], len(self.kernels)
        waves, ties = _waves(taps, _few(taps)).astype(np.complex64), self.layout.own[1:]
        first = [
            np.where(np.eye(at.shape[1]), _FIRST_TIE, np.full(at.shape, _OTHER)) for at in ties
        ]
        first += [
            np.full(at.size, _OTHER * float(np.abs(kernel).mean()) + _TINY)
            for kernel, at in zip(self.kernels, self.layout.below, strict=True)
        ]
        first += [np.full(count, _FIRST_LEVEL) / math.sqrt(math.prod(self.layout.places))]
        first += [np.array([_FIRST_SHARES[0], *[_FIRST_SHARES[1]] * count])]
        point = np.log(np.concatenate([part.ravel() for part in first]))
        best: tuple[float, FloatArray] = math.inf, point
        mean, spread = np.zeros_like(point), np.zeros_like(point)
        for look in range(1, _LOOKS + 1):
            left = 1.0 - look / _LOOKS
            value, gradient = self.look(point, waves, _WIDTHS[1] + left * _WIDTHS[0])
            best = min(best, (value, point), key=lambda pair: pair[0])
            mean += 0.1 * (gradient - mean)
            spread += 0.001 * (gradient**2 - spread)
            step = mean / (1.0 - 0.9**look) / (np.sqrt(spread / (1.0 - 0.999**look)) + 1e-12)
            point = np.clip(point - _RATE * (left + 0.01) * step, _LOWEST, _HIGHEST)
        return best[1]

    def look(self, point: FloatArray, waves: Any, width: float) -> tuple[float, FloatArray]:
        """Return the bound at a point, and its slopes."""
        numbers, layout, count = self.numbers(point), self.layout, len(self.norms)
        symbol = _symbol(self.kernel(numbers, self.norms).kernel.astype(np.float32), waves)
        symbol -= np.diag(np.repeat(numbers.shares, np.diff(layout.ends)).astype(np.float32))
        values, vectors = np.linalg.eigh(symbol)
        top = max(float(values.max()), 0.0)
        weights = np.exp((values - top) / width)
        total = float(weights.sum()) + math.exp(-top / width)
        value = float(numbers.shares.sum()) + count * (top + width * math.log(total))
        cases = (vectors * np.sqrt(count * weights / total)[:, None, :]).astype(np.complex64)
        dual = np.matmul(cases.conj(), np.swapaxes(cases, 1, 2))
        by_share = np.add.reduceat(-np.einsum("faa->a", dual).real, layout.ends[:-1])
        slopes = np.real(np.moveaxis(dual, 0, 2) @ waves.T).astype(np.float64).ravel()
        places, by_ties, by_added, by_levels = math.prod(layout.places), [], [], []
        for k, (kernel, tie, gamma) in enumerate(
            zip(self.kernels, numbers.ties, numbers.gammas, strict=True)
        ):
            level, scale = numbers.levels[k], self.norms[k + 1]
            below = 2.0 * scale * self.norms[k] * slopes[layout.below[k]]
            own = scale**2 * slopes[layout.own[k + 1]]
            diagonal = np.einsum("paa->pa", own) / level
            by_tie = below.reshape(*tie.shape[:2], -1) @ kernel.reshape(len(kernel), -1).T
            by_tie -= own + np.swapaxes(own, 1, 2)
            more = (diagonal + level * places) * (gamma > 0.0)
            by_tie += more[:, :, None] * self.constants[k]
            by_ties.append((by_tie * tie).ravel())
            by_added.append(below.ravel() * numbers.added[k])
            by_levels.append((gamma * (places * level - diagonal)).sum())
        rows = [*by_ties, *by_added, np.array(by_levels), numbers.shares * (1.0 + by_share)]
        return value + self.rest(numbers), np.concatenate(rows)

    def line(self, point: FloatArray, values: tuple[str, ...], known: float) -> WindowFact | None:
        """Return the line that these numbers make, None where too little is gained."""
        numbers, taps, ends = self.numbers(point), self.layout.shape[2:], self.layout.ends
        few = _waves(taps, _few(taps))
        symbol = _symbol(self.kernel(numbers, self.norms).kernel, few)
        symbol -= np.diag(np.repeat(numbers.shares, np.diff(ends)))
        shares = numbers.shares + max(float(np.linalg.eigvalsh(symbol).max()), 0.0)
        scales = self.norms / np.sqrt(shares)
        least = np.linalg.eigvalsh(_symbol(self.kernel(numbers, scales).kernel, few)).min()
        shift = max(-0.6 * float(least), 0.0)
        frame = self.kernel(numbers, scales, shift)
        torus = torus_norm(frame)
        if torus is None:
            return None
        numbered = zip(torus.counts, torus.twists, strict=True)
        axes = [next(numbered) if axis.length > 1 else (1, 0) for axis in axes_of(frame)]
        gain = float(np.linalg.eigvalsh(_symbol(frame.kernel, _waves(taps, axes))).max())
        gain *= 1.0 + _ROOM
        if not (gain - shift) * float(shares.sum()) + self.rest(numbers) < _WORTH**2:
            return None
        return WindowFact(
            value=values[-1],
            values=values[:-1],
            ties=tuple(tuple(part.tolist()) for part in numbers.magnitudes),
            added=tuple(tuple(part.tolist()) for part in numbers.added),
            levels=tuple((numbers.levels * known).tolist()),
            scales=tuple(scales.tolist()),
            shift=shift,
            gain=gain,
            method="torus",
            twists=torus.twists,
            counts=torus.counts,
        )


def _symbol(kernel: Any, waves: Any) -> Any:
    """Return the symbol of a joint kernel at each frequency."""
    return np.moveaxis(kernel.reshape(*kernel.shape[:2], -1) @ waves, 2, 0)


def _few(taps: Sequence[int]) -> list[tuple[int, int]]:
    """Return counts and twists of a few frequencies along each axis."""
    return [(2 * n if n > 1 else 1, 0) for n in taps]


def _waves(taps: Sequence[int], axes: Sequence[tuple[int, int]]) -> Any:
    """Return exp(iw·shift) at half of the frequencies w of a torus: [taps, frequencies]."""
    found: Any = np.ones((1, 1), dtype=np.complex128)
    for axis, (length, (count, twist)) in enumerate(zip(taps, axes, strict=True), start=1):
        many = (count - twist) // 2 + 1 if axis == len(taps) and count > 1 else count
        angles = (2 * np.arange(many) + twist) * (math.pi / count)
        found = np.kron(found, np.exp(1j * np.outer(np.arange(length) - length // 2, angles)))
    return found
