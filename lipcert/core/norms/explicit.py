"""‖T‖₂ ≤ c for a convolution T written out as a matrix, where it is small enough. Exact.

The float engine takes the matrix in strips, of which most are alike. It stands row upon row in
them. The rows of a strip are zero but for some neighbouring columns, and the same strip may occur
many times, each time further on. Nothing else of T is ever held: AᵀA, what is taken from it and its
triangular factor are kept in panels of columns, from the diagonal down to the last row that any
strip joins with the panel or with one before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.norms.claim import FloatMatrix, NormCheck
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.residual import ETA, U, gamma, norm, square_sum
from lipcert.core.program import IndexArray

PANEL: Final = 128


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """Rows that occur len(starts) times in T: their first column is 0, and each of `starts`."""

    rows: FloatMatrix
    starts: tuple[int, ...]


def strips_at_most_float(strips: Sequence[Strip], columns: int, claim: float) -> bool:
    """Whether ‖T‖₂ ≤ claim could be proved of the matrix of these strips.

    ValueError for a claim that is not a bound, or numbers that are not finite.
    Proof. That of `float_engine`, step by step, with three remarks. (1) An entry of AᵀA is the sum,
    over the strips that meet its row and its column, of inner products of columns of a strip: a sum
    of at most m products in some order, and 0 where no strip meets both. That the product of a
    strip by itself is formed once, and added wherever the strip occurs, changes no order. (2) With
    the panels L_k of the factor, a panel of LLᵀ is Σ_j L_j·(rows of L_j that are the columns of the
    panel)ᵀ over the panels j ≤ k that reach it: sums of at most as many products as these have
    columns. (3) Panels hold the part on and below their diagonal blocks; in norms of symmetric
    matrices what is below counts twice.
    """
    spend()
    if not (math.isfinite(claim) and claim >= 0.0):
        raise ValueError(f"{claim!r} is not a bound")
    if not all(np.isfinite(strip.rows).all() for strip in strips):
        raise ValueError("the norm of a matrix with NaN or infinite entries is not defined")
    largest = max((float(np.abs(strip.rows).max(initial=0.0)) for strip in strips), default=0.0)
    if largest == 0.0 or claim < largest:
        return largest == 0.0
    fraction, exponent = math.frexp(claim)
    scaled = [Strip(np.ldexp(strip.rows, -exponent), strip.starts) for strip in strips]
    count = sum(len(strip.starts) * len(strip.rows) for strip in strips)
    target = (Fraction(fraction) - count * columns * ETA) ** 2
    frobenius = sum(
        (len(strip.starts) * square_sum(strip.rows) for strip in scaled), start=Fraction(0)
    )
    if frobenius <= target:
        return True
    gram = _Panels.gram(scaled, columns)
    gram_error = gamma(count) * frobenius + 4 * count * columns**2 * ETA
    level = float(target - 2 * (gram_error + gamma(columns) * columns))
    below = gram.below(level)
    rest = below.unexplained()
    error = gram_error + U * norm(*below.twice())
    return rest is not None and Fraction(level) + rest + error <= target


@dataclass(frozen=True, slots=True, eq=False)
class _Panels:
    """A symmetric matrix. panels: columns edges[k] to edges[k + 1], rows from edges[k] on."""

    edges: tuple[int, ...]
    panels: tuple[FloatMatrix, ...]

    @classmethod
    def gram(cls, strips: Sequence[Strip], columns: int) -> _Panels:
        """The sum of the products of all strips by themselves."""
        edges = (*range(0, columns, PANEL), columns)
        reach = np.zeros(columns, dtype=np.int64)
        for strip in strips:
            for start in strip.starts:
                reach[start] = max(reach[start], start + strip.rows.shape[1])
        reach = np.maximum.accumulate(reach)
        panels = tuple(
            np.zeros((max(int(reach[stop - 1]), stop) - start, stop - start))
            for start, stop in pairwise(edges)
        )
        for strip in strips:
            spend()
            product = strip.rows.T @ strip.rows
            for start in strip.starts:
                _add(panels, edges, start, product)
        for panel in panels:
            top = panel[: panel.shape[1]]
            top[:] = np.tril(top) + np.tril(top, -1).T
        return cls(edges, panels)

    def below(self, level: float) -> _Panels:
        """level·I minus this."""
        panels = []
        for panel in self.panels:
            rest = -panel
            np.einsum("ii->i", rest[: rest.shape[1]])[:] += level
            panels.append(rest)
        return _Panels(self.edges, tuple(panels))

    def twice(self) -> Iterator[FloatMatrix]:
        """Parts that hold every entry of the symmetric matrix once."""
        for panel in self.panels:
            width = panel.shape[1]
            yield panel[:width]
            yield panel[width:]
            yield panel[width:]

    def unexplained(self) -> Fraction | None:
        """An upper bound of ‖B − LLᵀ‖₂ for some lower triangular L, None for no such L."""
        factor: list[FloatMatrix] = []
        rests: list[FloatMatrix] = []
        terms = 0
        for number, panel in enumerate(self.panels):
            spend()
            width = panel.shape[1]
            known, used = self._known(factor, number)
            rest = panel - known
            try:
                top = np.linalg.cholesky(rest[:width])
            except np.linalg.LinAlgError:
                return None
            own = np.concatenate((top, np.linalg.solve(top, rest[width:].T).T))
            if not (
                np.abs(own) <= 1.0
            ).all():  # a factor of B, whose diagonal is below 1, is smaller
                return None
            terms = max(terms, used + width)
            rests.append(panel - (known + own @ top.T))
            factor.append(own)
        size = self.edges[-1]
        measured = norm(*_Panels(self.edges, tuple(rests)).twice())
        product_error = gamma(terms) * square_sum(*factor) + 4 * size**3 * ETA
        return measured + product_error + U * measured + 2 * size * ETA

    def _known(self, factor: Sequence[FloatMatrix], number: int) -> tuple[FloatMatrix, int]:
        """A panel of LLᵀ, as far as it comes from panels before it; and from how many columns."""
        start, stop = self.edges[number : number + 2]
        known, used = np.zeros_like(self.panels[number]), 0
        for edge, before in zip(self.edges, factor, strict=False):
            rows = before[start - edge :]
            if len(rows):
                top = rows[: stop - start]
                known[: len(rows), : len(top)] += rows @ top.T
                used += before.shape[1]
        return known, used


def _add(
    panels: Sequence[FloatMatrix], edges: Sequence[int], start: int, product: FloatMatrix
) -> None:
    """Put a square on the diagonal, from one column on."""
    stop = start + len(product)
    for number in range(start // PANEL, -(-stop // PANEL)):
        edge = edges[number]
        first, last = max(edge, start), min(edges[number + 1], stop)
        part = product[first - start :, first - start : last - start]
        panels[number][first - edge : stop - edge, first - edge : last - edge] += part


def explicit_at_most(conv: Convolution, claim: float, check: NormCheck) -> bool:
    """Whether T can be written out, and ‖T‖₂ ≤ claim."""
    if not conv.is_small:
        return False
    if check is norm_at_most_float:
        return all(strips_at_most_float(*block, claim) for block in strips_of(conv))
    return all(check(block, claim) for block in conv.blocks())


def strips_of(conv: Convolution) -> Iterator[tuple[tuple[Strip, ...], int]]:
    """T by groups or their transposes, whichever have fewer columns: strips, and how many.

    Positions along one axis come first and channels last, so that each position of an output
    reads neighbouring columns only: rows and columns are permuted, which leaves the norm.
    Rows that read nothing are left out.
    """
    conv.require_small()
    outputs, inputs = len(conv.kernel) // conv.groups, conv.kernel.shape[1]
    inner, outer = inputs * math.prod(conv.size), outputs * math.prod(conv.window.outputs)
    flipped = outer < inner
    short, lengths = (outer, conv.window.outputs) if flipped else (inner, conv.size)
    tables = [_joined(conv.reads(axis), flipped) for axis in range(len(conv.size))]
    widths = [_widest(*table) * short // n for table, n in zip(tables, lengths, strict=True)]
    axis = int(np.argmin(widths))
    others = [a for a in range(len(conv.size)) if a != axis]
    for kernel in np.split(conv.kernel, conv.groups):
        taps = []
        for tap in range(kernel.shape[axis + 2]):
            block = conv.block(np.take(kernel, tap, axis + 2), others)
            matrix = block.transpose(1, 0, 3, 2).reshape(-1, block.shape[2] * block.shape[3])
            taps.append(matrix.T if flipped else matrix)
        yield tuple(_strips(*tables[axis], taps)), short


def _joined(reads: IndexArray, flipped: bool) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Output positions, input positions and taps that join them along an axis; or flipped."""
    outputs, taps = np.nonzero(reads >= 0)
    inputs = reads[outputs, taps]
    return (inputs, outputs, taps) if flipped else (outputs, inputs, taps)


def _widest(rows: IndexArray, columns: IndexArray, _: IndexArray) -> int:
    """How many columns lie between the first and the last one of a row, at most, both counted."""
    last = np.full(rows.max(initial=0) + 1, -1)
    first = np.full(len(last), columns.max(initial=0))
    np.maximum.at(last, rows, columns)
    np.minimum.at(first, rows, columns)
    return max(1, int((last - first).max()) + 1)


def _strips(
    rows: IndexArray, columns: IndexArray, taps: IndexArray, matrices: Sequence[FloatMatrix]
) -> Iterator[Strip]:
    """The matrices of the taps of each row side by side; rows that look alike once."""
    height, width = matrices[0].shape
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    order = np.argsort(rows, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):
        first = int(columns[own].min(initial=len(order)))
        look = tuple(zip((columns[own] - first).tolist(), taps[own].tolist(), strict=True))
        alike.setdefault(look, []).append(first * width)
    for look, starts in alike.items():
        strip = np.zeros((height, max((place + 1 for place, _ in look), default=0) * width))
        for place, tap in look:
            strip[:, place * width : (place + 1) * width] = matrices[tap]
        yield Strip(strip, tuple(starts))
