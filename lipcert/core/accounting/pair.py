"""Build the discrete pair that is composed; its curve lies above a given hockey-stick curve.

Input: a curve in fixed point, a grid of losses i·log r, r = 1 + gap. Output: upper
bounds of the probabilities of losses on the grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.accounting.curve import SLACK_BITS
from lipcert.core.arithmetic import round_up
from lipcert.core.interval import Array, up

STRIDE: Final = 16


@dataclass(frozen=True, slots=True)
class Grid:
    """Nodes from lowest ≤ 0 to beyond highest > 0: every one up to ±fine, then each `STRIDE`th.

    bits: scale of the numbers. gap: at least 2^−40.
    """

    bits: int
    gap: Fraction
    lowest: int
    highest: int
    fine: int

    def nodes(self) -> list[int]:
        """Return the nodes in increasing order; 0 is one of them."""
        below = [*range(max(self.lowest, -self.fine), 0)]
        if self.lowest < -self.fine:
            below = [*range(-self.fine - STRIDE, self.lowest - STRIDE, -STRIDE)][::-1] + below
        above = [*range(min(self.highest, self.fine) + 1)]
        return below + above + [*range(above[-1] + STRIDE, self.highest + STRIDE, STRIDE)]


@dataclass(frozen=True, slots=True)
class Losses:
    """Probability `masses[i]` of the loss indices[i]·log(1 + gap), `infinite` of any loss.

    All are upper bounds; composition is monotone in each of them.
    """

    gap: Fraction
    indices: npt.NDArray[np.int64]
    masses: Array
    infinite: float


@dataclass(frozen=True, slots=True)
class _Points:
    """The curve at the nodes: ratios E_j = r^(nodes[j]) and H(E_j)."""

    nodes: list[int]
    ratios: list[int]
    values: list[int]

    def mirrored(self, bits: int) -> _Points:
        """Return the points of the exchanged pair: H_(Q,P)(1/E) = 1 − 1/E + H_(P,Q)(E)/E."""
        one = 1 << bits
        inverses = [one * one // ratio for ratio in self.ratios]
        values = [
            one + ((value - one) << bits) // ratio
            for value, ratio in zip(self.values, self.ratios, strict=True)
        ]
        return _Points([-node for node in self.nodes[::-1]], inverses[::-1], values[::-1])


def both_directions(curve: Callable[[int], int], grid: Grid) -> tuple[Losses, Losses]:
    """Return the losses of the pair with this curve, and those of the exchanged pair."""
    points = _points(curve, grid, grid.nodes())
    return _losses(points, grid), _losses(points.mirrored(grid.bits), grid)


def symmetric_direction(curve: Callable[[int], int], grid: Grid) -> Losses:
    """Return the losses of a pair whose exchange has the same curve, known from ratio 1 up."""
    above = _points(curve, grid, [node for node in grid.nodes() if node >= 0])
    below = above.mirrored(grid.bits)
    whole = _Points(
        below.nodes[:-1] + above.nodes,
        below.ratios[:-1] + above.ratios,
        below.values[:-1] + above.values,
    )
    return _losses(whole, grid)


def _points(curve: Callable[[int], int], grid: Grid, nodes: list[int]) -> _Points:
    ratios = powers_of(grid.gap, nodes, grid.bits)
    return _Points(nodes, ratios, [curve(ratio) for ratio in ratios])


def powers_of(gap: Fraction, exponents: Sequence[int], bits: int) -> list[int]:
    """(1 + gap)^i for increasing i; off by less than 2·|i| + 1 units of the larger of it and 1."""
    part, whole = gap.as_integer_ratio()
    powers = [1 << bits]
    for _ in range(max(-exponents[0], exponents[-1])):
        powers.append(powers[-1] + powers[-1] * part // whole)
    one = 1 << 2 * bits
    return [powers[node] if node >= 0 else one // powers[-node] for node in exponents]


def _losses(points: _Points, grid: Grid) -> Losses:
    """Return the pair whose curve is piecewise linear through (0, 1) and the points, then flat.

    Proof: H is convex and decreasing, so this curve is above it; slopes change by the Q-masses
    p_j/E_j, so p_j = E_j·(s_(j−1) − s_j) with descents s_j = (H_j − H_(j+1))/(E_(j+1) − E_j), and
    E·s = 1 − H_0 before the first point, 0 after the last. A pair with a curve above composes to a
    curve above (Zhu, Dong and Wang, AISTATS 2022, theorem 10; connect-the-dots of Doroshenko et
    al., PETS 2022). E_j is at most (1 + gap)/gap of a difference, so errors ≤ δ of the values, and
    of 2^−4·δ·gap of the ratios relative to themselves, change p_j by less than 9·δ/gap.
    """
    one, slack = 1 << grid.bits, 1 << grid.bits - SLACK_BITS
    ratios, values = points.ratios, points.values
    falls = [before - after for before, after in itertools.pairwise(values)]
    rises = [after - before for before, after in itertools.pairwise(ratios)]
    before = [one - values[0]] + [
        ratio * fall // rise for ratio, fall, rise in zip(ratios[1:], falls, rises, strict=True)
    ]
    after = [
        ratio * fall // rise for ratio, fall, rise in zip(ratios, falls, rises, strict=False)
    ] + [0]
    extra = 10 * slack * grid.gap.denominator // grid.gap.numerator
    masses = [max(b - a + extra, 0) / one for b, a in zip(before, after, strict=True)]
    return Losses(
        grid.gap,
        np.array(points.nodes, dtype=np.int64),
        up(np.array(masses)),
        round_up(Fraction(values[-1] + slack, one)),
    )
