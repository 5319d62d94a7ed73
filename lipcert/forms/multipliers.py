"""Multipliers: a few cheap steps towards the best ones for a chain. Nothing here is trusted.

What enters: the links of a chain, and whether the cotangent above lies in a ball or in a hull of
class differences. What leaves: one `Multipliers` per diagonal link, which `quadratic.py` turns
into a bound, whatever they are. Ordinary float64 throughout.

Method. The bound is convex in the multipliers t_i = κ/p_i². If s is the worst cotangent above a
diagonal link and m_i·s_i + w_i the worst one below it, the derivative by t_i is (r_i s_i)² − w_i²:
at the optimum every constraint |w_i| ≤ r_i|s_i| holds with equality. For a single entry Newton's
step multiplies t_i by (w_i²/(r_i s_i)²)^¼; here all entries of all links take this step at once,
shortened while it fails. The maximum at the top is smoothed: a mean of s sᵀ stands for one s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.forms.quadratic import Multipliers, default_multipliers, middle_and_radius
from lipcert.interval import Interval
from lipcert.upper import FloatArray

_TEMPERATURES: Final = tuple(float(t) for t in np.geomspace(0.15, 0.03, 8))
_ROOM: Final = 0.98
_TINY: Final = 1e-100
_HUGE: Final = 1e40


_Slopes = tuple[FloatArray, FloatArray]
"""The middle and the radius of a diagonal link."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Diagonal:
    """A diagonal link at work, with κ = 1: the worst δ below s is Ms + gain·Ms."""

    middle: FloatArray
    radius: FloatArray
    weights: FloatArray
    largest: float  # λ_max(PQP)
    gain: FloatArray

    @classmethod
    def above(cls, form: FloatArray, slopes: _Slopes, weights: FloatArray | None) -> _Diagonal:
        """With the default multipliers, or with these weights, smaller where κ = 1 forbids them."""
        middle, radius = slopes
        room = _ROOM
        if weights is None:
            start = default_multipliers(form, middle, radius)
            weights, room = start.weights * _HUGE, 1.0 / start.ratio
        largest = float(np.linalg.eigvalsh(np.outer(weights, weights) * form)[-1])
        if largest > room:
            weights, largest = weights * np.sqrt(room / largest), room
        cross = weights[:, None] * form
        solution: FloatArray = np.linalg.solve(np.eye(len(form)) - cross * weights, cross)
        return cls(middle, radius, weights, max(largest, _TINY), weights[:, None] * solution)

    def form(self, below: FloatArray) -> FloatArray:
        """The form above the link."""
        raised = below + below @ self.gain
        stretch = np.divide(
            self.radius, self.weights, out=np.zeros_like(self.radius), where=self.weights > 0.0
        )
        outer = np.outer(self.middle, self.middle)
        return 0.5 * outer * (raised + raised.T) + np.diag(stretch**2)

    def moment(self, above: FloatArray) -> FloatArray:
        """The mean of δδᵀ, for that of s sᵀ."""
        scaled = np.outer(self.middle, self.middle) * above
        whole = self.gain @ scaled + scaled
        return whole + whole @ self.gain.T

    def better(self, above: FloatArray, length: float) -> FloatArray:
        """Weights after a step of this length (1: Newton's), for this mean of s sᵀ."""
        scaled = np.outer(self.middle, self.middle) * above
        reached = np.einsum("ij,ij->i", self.gain @ scaled, self.gain)
        allowed = self.radius**2 * above.diagonal()
        ratio = np.divide(
            reached + 1e-12 * reached.max(),
            allowed + 1e-12 * allowed.max(),
            out=np.ones_like(reached),
            where=allowed > 0.0,
        )
        result: FloatArray = self.weights * np.clip(ratio, 1e-2, 1e2) ** (-0.125 * length)
        return result

    def proposal(self) -> Multipliers:
        """These multipliers, for forms of any scale, as a read-only copy."""
        weights = self.weights.copy()
        weights.setflags(write=False)
        return Multipliers(weights, 1.0 / self.largest)


_Step = FloatArray | _Diagonal
_Weights = Sequence[FloatArray | None]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Ascent:
    """One way up the chain: what each link did, and the form at the top."""

    steps: Sequence[_Step]
    form: FloatArray

    @classmethod
    def of(
        cls, start: FloatArray, links: Sequence[FloatArray | _Slopes], weights: _Weights
    ) -> _Ascent:
        """With given weights at the diagonal links, default ones for None."""
        form = start
        steps: list[_Step] = []
        for link, weight in zip(links, weights, strict=True):
            if isinstance(link, tuple):
                step = _Diagonal.above(form, link, weight)
                form = step.form(form)
                steps.append(step)
            else:
                form = link @ form @ link.T
                steps.append(link)
        return cls(steps, form)

    def worst(self, hull: bool, temperature: float) -> tuple[float, FloatArray]:
        """The supremum at the top, and a mean of the worst s sᵀ, smoothed by the temperature."""
        if not hull:
            values, vectors = np.linalg.eigh(self.form)
            return float(values[-1]), (vectors * _shares(values, temperature)) @ vectors.T
        diagonal = self.form.diagonal()
        squares = diagonal[:, None] + diagonal - 2.0 * self.form
        shares = _shares(squares, temperature)
        return float(np.max(squares)), np.diag(shares.sum(axis=1)) - shares

    def better(self, moment: FloatArray, length: float) -> _Weights:
        """Weights of the links after a step, for this mean of s sᵀ at the top."""
        weights: list[FloatArray | None] = []
        for step in reversed(self.steps):
            if isinstance(step, _Diagonal):
                weights.append(step.better(moment, length))
                moment = step.moment(moment)
            else:
                weights.append(None)
                moment = step.T @ moment @ step
        return weights[::-1]


def tuned(
    start: FloatArray, links: Sequence[FloatArray | Interval], hull: bool
) -> list[Multipliers | None]:
    """Multipliers for each of the links, None where there is nothing to choose.

    start: the form below them; hull: whether class differences are bounded instead of a ball.
    """
    scaled = [_of_unit_size(link) for link in links]
    if not any(isinstance(link, tuple) for link in scaled):
        return [None] * len(links)
    best = _Ascent.of(start, scaled, [None] * len(links))
    length = 1.0
    for temperature in _TEMPERATURES:
        value, moment = best.worst(hull, temperature)
        attempt = _Ascent.of(start, scaled, best.better(moment, length))
        if attempt.worst(hull, temperature)[0] < value:
            best, length = attempt, min(1.0, 1.5 * length)
        else:
            length *= 0.4
    return [step.proposal() if isinstance(step, _Diagonal) else None for step in best.steps]


def _of_unit_size(link: FloatArray | Interval) -> FloatArray | _Slopes:
    """A matrix, scaled so that long chains neither overflow nor vanish, or uncertain slopes."""
    if isinstance(link, Interval):
        middle, radius, _ = middle_and_radius(link)
        return (middle, radius) if np.any(radius) else np.diag(middle)
    largest = max(float(np.max(np.abs(link), initial=0.0)), _TINY)
    result: FloatArray = link / largest
    result /= max(float(np.linalg.norm(result)), _TINY)
    return result


def _shares(values: FloatArray, temperature: float) -> FloatArray:
    """Shares that sum to 1 and grow with value/largest/temperature."""
    largest = max(float(np.max(values)), _TINY)
    weights: FloatArray = np.exp((values / largest - 1.0) / temperature)
    weights /= weights.sum()
    return weights
