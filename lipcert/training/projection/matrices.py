"""Matrices: represent the op of a weight by matrices whose norms bound that of the op.

`Matrices.gram` computes the Gram matrices M M* of [count] matrices [side, longer]; the largest of
their norms, times a factor, bounds the norm of the op. Everything that depends only on shapes is
computed once, on construction: by the windows, lines and tori of `core.norms`, applied to a kernel
whose entries are the numbers 1, 2, … of its positions.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
from scipy.sparse import bmat, coo_array
from scipy.sparse.csgraph import connected_components

from lipcert.core.arithmetic import divide_up, multiply_down, round_up, sqrt_down
from lipcert.core.circle import half_turns
from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.core.norms.lines import Axis, axes_of, phases_of
from lipcert.core.norms.stacks import ComplexArray
from lipcert.core.program import FloatArray, IndexArray
from lipcert.core.window_kinds import Conv
from lipcert.errors import UsageError
from lipcert.graph.ir import Node, Operand, linear_step, viewed

Matrix = npt.NDArray[np.float64 | np.complex128]
UNIT_ROUNDOFF: Final = 2.0**-53

_EXPLICIT: Final = 2**20  # multiplications for which a map is always written out
_WORTH: Final = 4  # how many times the work by frequencies its border effects are worth
_ENTRIES: Final = 2**19  # of a map that is written out
_SAMPLES: Final = 16  # per degree of the symbol: costs 0.5 % of the norm per axis
_LEFT: Final = 0.9903926402016152  # cos²(π / (2·_SAMPLES)), rounded down


def gamma(terms: int) -> float:
    """Return γ_n = n·u/(1 − n·u), rounded up: the relative error of a sum or inner product of n
    terms."""
    return round_up(Fraction(terms, 2**53 - terms)) if terms < 2**52 else math.inf


@dataclass(frozen=True, slots=True, eq=False)
class Matrices(ABC):
    """The matrices of one operand: ‖op‖ ≤ factor · the largest ‖M‖ of the computed M.

    spread: entries off by a relative u move every norm by at most u·spread times the largest.
    is_complex: whether the Gram matrices are complex.
    """

    is_complex: ClassVar[bool] = False
    operand: Operand
    count: int
    side: int
    longer: int
    factor: float
    spread: float

    @abstractmethod
    def gram(self, whole: FloatArray, result: Matrix) -> None:
        """Write M M* of the parameter `whole` into `result`: [count, side, side]."""


@dataclass(frozen=True, slots=True, eq=False)
class RealMatrices(Matrices):
    """Matrices whose entries are those of the operand: dense layers, and convolutions written out.

    index: [count, side, longer], in which 0 is the number 0 and k the entry k − 1; None: the
    operand itself or, if that is tall, its transpose.
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

    def gram(self, whole: FloatArray, result: Matrix) -> None:
        """Compute one product; numpy computes only one half of a matrix times its own transpose."""
        array = viewed(self.operand, whole)
        if self.index is not None:
            matrices = np.take(_behind_zero(array), self.index)
            np.matmul(matrices, matrices.swapaxes(1, 2), out=result)
            return
        wide = array if array.shape[0] <= array.shape[1] else array.T
        np.matmul(wide, wide.T, out=result[0])


@dataclass(frozen=True, slots=True, eq=False)
class SymbolMatrices(Matrices):
    """The symbol of a convolution at finitely many frequencies: [frequencies · groups] matrices.

    index: [shifts, groups · side · longer], as in `RealMatrices`. cosines, sines: of every
    frequency and shift.
    """

    is_complex: ClassVar[bool] = True
    index: IndexArray
    cosines: FloatArray = field(repr=False)
    sines: FloatArray = field(repr=False)

    @classmethod
    def of(cls, operand: Operand, labels: IndexArray, axes: Sequence[Axis]) -> SymbolMatrices:
        """Returns matrices with ‖T‖ ≤ factor · max ‖P(w)‖ for the zero-padded convolution T.

        labels: as `phases_of` has them; axes: those of several shifts, in order.
        Proof: `core.norms.torus`: T is a part of a circular convolution on every torus that carries
        it, with frequencies π(2k + twist)/N, and half of those of the last axis suffice. Along an
        axis of n + 1 shifts only M < N frequencies may be taken: let the torus grow along it, and
        let ‖P‖ be largest at w₀, with unit u, v such that u*P(w₀)v = ‖P(w₀)‖ = μ. Along the axis,
        e^{−inw/2}u*P(w)v is of exponential type n/2, and its real part, turned so that it is μ at
        w₀, is at least μ cos(n|w − w₀|/2) (Duffin and Schaeffer 1938). One of the M frequencies is
        within π/M of w₀: μ is at most the largest ‖P‖ there over cos(πn/2M), where M is
        n·`_SAMPLES`. One axis after the other gives the product.
        Rounding: with K the kernel of J shifts on matrices of sides d ≤ m, a product of a unit
        roots is within 5a·u (`core.norms.torus`), so that the computed P is off by at most
        √2·η·√J·‖K‖_F, η = γ_{J+2} + 5a·u. At frequencies that tell the shifts of a phase apart, as
        those of a torus that carries T do, the mean of ‖P‖_F² is ‖K‖_F² (Parseval), so that
        ‖K‖_F ≤ √d·max ‖P‖. The same gives the spread √(J·d).
        Attained: on large maps within 1 %, and by kernels that are largest at frequency 0; random
        kernels of three taps within 3 % on 8×8 maps.
        """
        if labels.shape[2] > labels.shape[3]:
            labels = labels.swapaxes(2, 3)
        shifts, groups, side, longer = labels.shape
        circles, left = [], 1.0
        for number, axis in enumerate(axes, 1):
            circle, is_sampled = _circle(axis, is_last=number == len(axes))
            circles.append(circle)
            left = multiply_down(left, _LEFT) if is_sampled else left
        roots = circles[0]
        for circle in circles[1:]:
            joined = roots[:, None, :, None] * circle[None, :, None, :]
            roots = joined.reshape(len(roots) * len(circle), -1)
        spread = math.sqrt(shifts * side)
        rounding = gamma(shifts + 2) + 5.0 * len(axes) * UNIT_ROUNDOFF
        slack = 3.0 * (rounding + UNIT_ROUNDOFF) * spread
        return cls(
            operand,
            len(roots) * groups,
            side,
            longer,
            divide_up(1.0, sqrt_down(left)) * (1.0 + slack),
            spread,
            np.ascontiguousarray(labels).reshape(shifts, -1),
            np.ascontiguousarray(roots.real),
            np.ascontiguousarray(roots.imag),
        )

    def gram(self, whole: FloatArray, result: Matrix) -> None:
        """Compute (C + iS)(C + iS)* = CCᵀ + SSᵀ + i(X − Xᵀ), X = SCᵀ."""
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
    """Return the matrices of a linear layer by the cheapest tight rule; None for an op that is 0.

    Windows that do not overlap give one matrix per group, and the exact norm if one of them reads
    with all of its taps (`reshape_bound`). Small maps are written out. Everything else is bounded
    by frequencies.
    """
    if not isinstance(node.op, Conv):
        return RealMatrices.of(operand)
    labels = np.arange(1.0, operand.array.size + 1.0).reshape(operand.shape)
    try:
        step, given = linear_step(node, labels)
        frame = Kernel.of(step.op, given, step.shape).frame
    except ValueError as error:
        raise UsageError(
            f"training: the weight of node {node.name!r} is beyond what can be projected "
            f"({error}); freeze it, or use another mechanism"
        ) from error
    axes = axes_of(frame)
    if not all(axis.taps for axis in axes):
        return None
    phases = phases_of(frame, axes).astype(np.int64)
    extended = [axis for axis in axes if axis.length > 1]
    if not extended and all(max(window.reads()) == window.taps for window in node.geometry):
        return RealMatrices.of(operand, phases[0])
    blocks = _written_out(frame)
    frequencies = math.prod(_frequencies(axis)[0] for axis in extended)
    if blocks is not None and _is_worth_it(blocks, phases, frequencies):
        return RealMatrices.of(operand, blocks)
    if not extended:
        return RealMatrices.of(operand, phases[0])
    return SymbolMatrices.of(operand, phases, extended)


def _written_out(frame: Convolution) -> IndexArray | None:
    """Return the blocks of the map, padded by zeros to one shape; None if the whole map is large.

    Groups, dilated windows, and axes along which a kernel has one tap give many equal blocks.
    """
    outputs, inputs = frame.kernel.shape[0], frame.kernel.shape[1] * frame.groups
    entries = outputs * math.prod(frame.window.outputs) * inputs * math.prod(frame.size)
    if not frame.is_small or entries > _ENTRIES:
        return None
    found: dict[bytes, IndexArray] = {}
    for matrix in (block.astype(np.int64) for block in frame.blocks()):
        sparse = coo_array(matrix)
        _, parts = connected_components(bmat([[None, sparse], [sparse.T, None]]), directed=False)
        rows, columns = parts[: len(matrix)], parts[len(matrix) :]
        for part in np.unique(rows[np.any(matrix, axis=1)]):
            block = matrix[np.ix_(rows == part, columns == part)]
            found.setdefault(bytes(str(block.shape), "ascii") + block.tobytes(), block)
    height = max(len(block) for block in found.values())
    width = max(block.shape[1] for block in found.values())
    result = np.zeros((len(found), height, width), dtype=np.int64)
    for place, block in zip(result, found.values(), strict=True):
        place[: block.shape[0], : block.shape[1]] = block
    return result


def _is_worth_it(blocks: IndexArray, phases: IndexArray, frequencies: int) -> bool:
    """Whether the explicit matrices cost little, or little more than frequencies, which miss border
    effects.

    Half of the frequencies count, with the four multiplications of complex numbers.
    """
    limit = _WORTH * 2 * frequencies * _work(phases.shape[1:])
    return _work(blocks.shape) <= max(_EXPLICIT, limit)


def _work(shape: tuple[int, ...]) -> int:
    """Estimate the multiplications of Gram matrices and their factors."""
    count, outer, inner = shape
    return count * min(outer, inner) ** 2 * (outer + inner)


def _behind_zero(array: FloatArray) -> FloatArray:
    """Prepend a 0 to the flattened entries."""
    return np.concatenate((np.zeros(1), array.reshape(-1)))


def _frequencies(axis: Axis) -> tuple[int, int]:
    """Return how many frequencies carry the axis at least, and how many suffice as a sample."""
    least = -(-len(axis.outputs) // axis.apart)
    carried = next(n for n in itertools.count(least) if axis.fits(n, 1) or axis.fits(n, 0))
    return carried, _SAMPLES * (axis.length - 1)


def _circle(axis: Axis, *, is_last: bool) -> tuple[ComplexArray, bool]:
    """Return exp(iwj) as [frequencies, shifts], and whether they are only a sample."""
    carried, enough = _frequencies(axis)
    count, twist = carried, int(axis.fits(carried, 1))
    if enough < carried:
        count, twist = enough, 1
    frequencies = (count - twist) // 2 + 1 if is_last else count
    turns = (2 * np.arange(frequencies)[:, None] + twist) * np.arange(axis.length)
    return half_turns(count, 2 * count)[turns % (2 * count)], enough < carried
