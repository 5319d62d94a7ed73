"""‖T‖₂ ≤ c for a convolution T written out as a matrix, where it is small enough. Exact.

The float engine takes the matrix in strips, of which most are alike. It stands row upon row in
them. The rows of a strip are zero but for some neighbouring columns, and the same strip may occur
many times, each time further on. T itself is never held, and AᵀA is zero outside of a band.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.norms.claim import FloatMatrix, NormCheck, NormClaim
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.float_engine import gram_at_most, norm_at_most_float
from lipcert.core.norms.residual import ETA, square_sum
from lipcert.core.program import IndexArray


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """Rows that occur len(starts) times in T: their first column is 0, and each of `starts`."""

    rows: FloatMatrix
    starts: tuple[int, ...]


def strips_at_most_float(strips: Sequence[Strip], columns: int, claim: float) -> bool:
    """Whether ‖T‖₂ ≤ claim could be proved of the matrix of these strips.

    NotProved for a claim that is not a bound, or numbers that are not finite.
    Proof. That of `float_engine`: an entry of AᵀA is the sum, over the strips that meet its row and
    its column, of inner products of columns of a strip: a sum of at most m products in some order,
    and 0 where no strip meets both. That the product of a strip by itself is formed once, and added
    wherever the strip occurs, changes no order.
    """
    spend()
    every = (np.zeros((1, 1)), *(strip.rows for strip in strips))
    if any(NormClaim.of(rows, claim) is False for rows in every):
        return False
    fraction, exponent = math.frexp(claim)
    scaled = [Strip(np.ldexp(strip.rows, -exponent), strip.starts) for strip in strips]
    count = sum(len(strip.starts) * len(strip.rows) for strip in strips)
    target = (Fraction(fraction) - count * columns * ETA) ** 2
    frobenius = sum(
        (len(strip.starts) * square_sum(strip.rows) for strip in scaled), start=Fraction(0)
    )
    if frobenius <= target:
        return True
    gram = np.zeros((columns, columns))
    for strip in scaled:
        spend()
        product = strip.rows.T @ strip.rows
        for start in strip.starts:
            stop = start + len(product)
            gram[start:stop, start:stop] += product
    return gram_at_most(gram, count, frobenius, target)


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
