"""Matrices: the op that a weight makes, as matrices whose norms bound that of the op.

What enters: the numbers of a parameter. What leaves: the Gram matrices M M* of [count] matrices
[side, longer], the largest of whose norms, times a factor, bounds the norm of the op.

Invariant: everything that depends on shapes alone is found once, on construction.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.core.program import Conv, IndexArray
from lipcert.graph.ir import Node
from lipcert.graph.operand import Operand
from lipcert.graph.viewed import viewed
from lipcert.training.projection.proof import Matrix
from lipcert.training.projection.torus import (
    TWIDDLE_ERROR,
    Boxes,
    Torus,
    cosine_squared,
    extended_axes,
    live_kernels,
    polyphase,
    reduced_angles,
    torus_size,
)
from lipcert.training.projection.written_out import written_out
from lipcert.upper import ONE, UNIT_ROUNDOFF, FloatArray, Lower, gamma

_EXPLICIT: Final = 2**20  # multiplications for which a map is always written out
_WORTH: Final = 4  # how many times the work by frequencies its border effects are worth
_SAMPLES: Final = 16  # per degree of the symbol: costs 0.5 % of the norm per axis


@dataclass(frozen=True, slots=True, eq=False)
class Matrices(ABC):
    """Of one operand. factor: ‖op‖ ≤ factor · the largest ‖M‖ of the computed M.

    spread: entries off by a relative u move every norm by at most u·spread times the largest.
    """

    operand: Operand
    count: int
    side: int
    longer: int
    factor: float
    spread: float

    @property
    @abstractmethod
    def is_complex(self) -> bool:
        """Whether the Gram matrices are."""

    @abstractmethod
    def gram(self, whole: FloatArray, result: Matrix) -> None:
        """Write M M* of the parameter `whole` into `result`: [count, side, side]."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class RealMatrices(Matrices):
    """Matrices that show the entries of the operand: dense layers, and convolutions written out.

    index: [count, side, longer], where 0 is the number 0 and k the entry k − 1; None: the operand
    itself or, where that is tall, its transpose.
    """

    index: IndexArray | None

    @classmethod
    def of(cls, operand: Operand, index: IndexArray | None = None) -> RealMatrices:
        """Returns matrices with ‖op‖ = max ‖M‖, given that these are the blocks of the op.

        Proof of the spread: ‖E‖ ≤ ‖E‖_F ≤ u‖M‖_F ≤ u√side·‖M‖ for |E| ≤ u|M|. The factor of a
        view is such a rounding, too.
        """
        if index is not None and index.shape[1] > index.shape[2]:
            index = np.ascontiguousarray(index.swapaxes(1, 2))
        count, side, longer = (1, *sorted(operand.shape)) if index is None else index.shape
        spread = math.sqrt(side)
        factor = 1.0 + 2.0 * UNIT_ROUNDOFF * (1.0 + spread)
        return cls(operand, count, side, longer, factor, spread, index)

    @property
    def is_complex(self) -> bool:
        """No."""
        return False

    def gram(self, whole: FloatArray, result: Matrix) -> None:
        """One product; of a matrix with itself, of which numpy computes one half only."""
        array = viewed(self.operand, whole)
        if self.index is not None:
            matrices = np.take(_behind_zero(array), self.index)
            np.matmul(matrices, matrices.swapaxes(1, 2), out=result)
            return
        wide = array if array.shape[0] <= array.shape[1] else array.T
        np.matmul(wide, wide.T, out=result[0])


@final
@dataclass(frozen=True, slots=True, eq=False)
class SymbolMatrices(Matrices):
    """The symbol of a convolution at finitely many frequencies: [frequencies · groups] matrices.

    index: [taps, groups · side · longer], as in `RealMatrices`. cosines, sines: of every frequency
    and tap.
    """

    index: IndexArray
    cosines: FloatArray = field(repr=False)
    sines: FloatArray = field(repr=False)

    @classmethod
    def of(cls, operand: Operand, labels: IndexArray, counts: tuple[int, ...]) -> SymbolMatrices:
        """Returns matrices with ‖T‖ ≤ factor · max ‖P(w)‖ for the zero-padded convolution T.

        labels: the polyphase kernel [groups, out, in, *taps]; counts: `torus_size` of each axis.
        Proof: T is a part of a circular convolution on every torus of at least `counts` positions
        (`circulant_norm`), with frequencies 2π(j + ½)/N, and ‖P(−w)‖ = ‖P(w)‖, so that half of
        them suffice. Along an axis of n + 1 taps only M < N frequencies may be taken: let the
        torus grow along it, and let ‖P‖ be largest at w₀, with unit u, v such that
        u*P(w₀)v = ‖P(w₀)‖ = μ. Along the axis, e^{−inw/2}u*P(w)v is of exponential type n/2, and
        its real part, turned so that it is μ at w₀, is at least μ cos(n|w − w₀|/2) (Duffin and
        Schaeffer 1938). One of the M frequencies is within π/M of w₀: μ is at most the largest
        ‖P‖ there over cos(πn/2M). One axis after the other gives the product.
        Rounding: with K the kernel of T taps on matrices of sides d ≤ m, the computed P is off by
        at most √2·η·√T·‖K‖_F, η = γ_{T+2} + the error of cosines and sines. At N ≥ T frequencies
        per axis the mean of ‖P‖_F² is ‖K‖_F² (Parseval), so that ‖K‖_F ≤ √d·max ‖P‖. The same
        gives the spread √(T·d).
        Attained: on large maps within 1 %, and by kernels that are largest at frequency 0; random
        kernels of three taps within 3 % on 8×8 maps.
        """
        if labels.shape[1] > labels.shape[2]:
            labels = labels.swapaxes(1, 2)
        groups, side, longer, *taps = labels.shape
        sizes, stretch = _sampled(tuple(size - 1 for size in taps), counts)
        angles = _angles(tuple(taps), sizes)
        spread = math.sqrt(math.prod(taps) * side)
        rounding = gamma(math.prod(taps) + 2).value + 2.0 * TWIDDLE_ERROR.value
        slack = 3.0 * (rounding + UNIT_ROUNDOFF) * spread
        factor = stretch * (1.0 + slack)
        by_tap = np.moveaxis(labels.reshape(groups, side, longer, -1), 3, 0)
        return cls(
            operand,
            len(angles) * groups,
            side,
            longer,
            factor,
            spread,
            np.ascontiguousarray(by_tap).reshape(len(by_tap), -1),
            np.cos(angles),
            np.sin(angles),
        )

    @property
    def is_complex(self) -> bool:
        """Yes."""
        return True

    def gram(self, whole: FloatArray, result: Matrix) -> None:
        """(C + iS)(C + iS)* = CCᵀ + SSᵀ + i(X − Xᵀ), X = SCᵀ."""
        taps = np.take(_behind_zero(viewed(self.operand, whole)), self.index)
        shape = (self.count, self.side, -1)
        if self.side == 1:
            cosine, sine = self.cosines @ taps, self.sines @ taps
            squares = (cosine * cosine + sine * sine).reshape(shape)
            result[...] = squares.sum(axis=2, keepdims=True)
            return
        cosine, sine = (self.cosines @ taps).reshape(shape), (self.sines @ taps).reshape(shape)
        cosine_t = cosine.swapaxes(1, 2)
        mixed = sine @ cosine_t
        np.add(cosine @ cosine_t, sine @ sine.swapaxes(1, 2), out=result.real)
        np.subtract(mixed, mixed.swapaxes(1, 2), out=result.imag)


def matrices_of(node: Node, operand: Operand) -> Matrices | None:
    """The matrices of a linear layer by the cheapest rule that is tight; None for an op that is 0.

    Windows that do not overlap give one matrix per group, and the exact norm if one of them reads
    with all of its taps (`reshape_bound`). Small maps are written out. What is left is bounded by
    frequencies.
    """
    if not isinstance(node.op, Conv):
        return RealMatrices.of(operand)
    geometry = node.geometry
    labels = np.arange(1.0, operand.array.size + 1.0).reshape(operand.shape)
    kernels = labels.reshape(node.op.groups, -1, *labels.shape[1:])
    phases = polyphase(live_kernels(kernels, geometry), geometry)
    if not np.any(phases):
        return None
    spans, counts = extended_axes(phases, tuple(torus_size(window) for window in geometry))
    index = phases.astype(np.int64).reshape(*phases.shape[:3], *(span + 1 for span in spans))
    has_full_window = all(max(window.reads()) == window.taps for window in geometry)
    if not spans and has_full_window:
        return RealMatrices.of(operand, index)
    blocks = written_out(node, labels)
    if blocks is not None and _is_worth_it(blocks, index, math.prod(counts)):
        return RealMatrices.of(operand, blocks)
    return SymbolMatrices.of(operand, index, counts) if spans else RealMatrices.of(operand, index)


def _is_worth_it(blocks: IndexArray, index: IndexArray, frequencies: int) -> bool:
    """Whether matrices cost little, or little more than frequencies, which miss border effects.

    Half of the frequencies count, with the four multiplications of complex numbers.
    """
    limit = _WORTH * 2 * frequencies * _work(index.shape[:3])
    return _work(blocks.shape) <= max(_EXPLICIT, limit)


def _work(shape: tuple[int, ...]) -> int:
    """Multiplications, roughly, for Gram matrices and their factors."""
    count, outer, inner = shape
    return count * min(outer, inner) ** 2 * (outer + inner)


def _behind_zero(array: FloatArray) -> FloatArray:
    """[0, entries …]."""
    return np.concatenate((np.zeros(1), array.reshape(-1)))


def _sampled(spans: tuple[int, ...], counts: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
    """How many frequencies to take along each axis, and what that costs."""
    sizes, squared = [], Lower(1.0)
    for span, count in zip(spans, counts, strict=True):
        enough = _SAMPLES * span
        if enough < count:
            squared = squared * cosine_squared(Fraction(span, 2 * enough))
        sizes.append(min(enough, count))
    return tuple(sizes), ONE.over(squared.sqrt()).value


def _angles(taps: tuple[int, ...], counts: tuple[int, ...]) -> FloatArray:
    """w·t of every frequency and tap: [frequencies, taps]."""
    torus = Torus(tuple(size - 1 for size in taps), counts, (1,) * len(counts))
    (last,) = torus.everything(1).last
    numbers = np.indices(tuple(last)).reshape(len(last), -1).T
    boxes = Boxes(np.zeros(len(numbers), dtype=np.int64), numbers, numbers + 1)
    shifts = np.indices(taps).reshape(len(taps), -1).T
    return reduced_angles(shifts, *torus.centres(boxes))
