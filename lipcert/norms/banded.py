"""The exact norm of convolutions whose matrix is too large to factor at once: block by block.

What enters: kernels, and per dimension a table of reads, with any kind of padding. What leaves: an
`Upper` within 1e-5 of the norm of the finite operator. Only a few blocks are in memory at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np

from lipcert.norms.factor import PanelNorms, factor_panel, frobenius_norm
from lipcert.norms.geometry import IndexArray
from lipcert.norms.reads import NOTHING, Reads, flat_positions
from lipcert.norms.scaling import UNDERFLOW, balanced, largest_norm, restored
from lipcert.upper import INFINITE, UNIT_ROUNDOFF, ZERO, FloatArray, Upper, gamma, maximum

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_SLACKS: Final = (1e-6, 1e-5, 1e-4, 1e-3)
_ACCURACY: Final = 1e-8  # of the estimate
_NEGLIGIBLE: Final = 2.0**-40  # of ‖K‖_F²: less remains where taps that read one entry cancel
_TOO_LARGE: Final = 1e-7  # a factor with a larger relative residual is useless
_MOST_ENTRIES: Final = 1.4e8
_OVERHEAD: Final = 1e6  # operations for which there was time while one step is interpreted
_PRODUCTS: Final = 400  # with the map or its adjoint, for an estimate
_DENSE_SIDE: Final = 32


def is_affordable(shape: tuple[int, ...], reads: Sequence[Reads], budget: float) -> bool:
    """Whether `banded_norm` fits in the budget of floating-point operations, and in memory."""
    groups, outer, inner, *_ = shape
    costs = [_cost(outer, reads)]
    adjoint = _adjoint(reads)
    if adjoint is not None:
        costs.append(_cost(inner, adjoint))
    work, entries = min(costs)
    return groups * work <= budget and entries <= _MOST_ENTRIES


def _cost(channels: int, reads: Sequence[Reads]) -> tuple[float, float]:
    """Roughly the floating-point operations, and how many numbers are in memory at a time."""
    bands = reads[_longest(reads)]
    block = float(_rows(channels, reads)) / bands.outputs
    width = bands.bandwidth()
    taps = math.prod(table.taps for table in reads)
    steps = bands.outputs * (width + 1) * (taps // bands.taps) ** 2 + _PRODUCTS * taps
    work = bands.outputs * (width * (width + 2) + 1) * block**3 + _OVERHEAD * steps
    return work, (width**2 + 2 * width + 1) * block**2


def banded_norm(kernels: FloatArray, reads: Sequence[Reads]) -> Upper:
    """Returns B with B ≥ ‖T‖₂ for the finite convolution T by each kernel.

    kernels: [groups, out, in, *taps]; reads: a table per spatial dimension.
    Hypotheses: the kernels' taps are those of the tables.
    Proof: ‖T‖² = λ_max(TT*) = λ_max(T*T). A Cholesky factor R of λ − TT* is computed block column
    by block column, where a block holds all outputs with the same coordinate of one dimension;
    blocks beyond the reach of the windows are zero. λ_max(TT*) ≤ λ + ‖λ − TT* − RR*‖, and
    `PanelNorms.distance` bounds the latter, with as many products as the blocks in a row hold.
    An entry of TT* is a sum of at most in · taps² products, hence errs by at most γ of |T||T|*,
    and ‖|T|‖² ≤ overlap · ‖K‖_F² bounds the 2-norm of the error.
    Attained: within 1e-6 relative, where the estimate is good and ‖T‖ > 1e-6 ‖K‖_F.
    """
    kernels = _live(kernels, reads)
    if not np.any(kernels):
        return ZERO
    scaled, exponent = balanced(kernels)
    bound = maximum(_squared_norm(kernel, reads) for kernel in scaled)
    return restored(bound.sqrt(), exponent)


def _live(kernels: FloatArray, reads: Sequence[Reads]) -> FloatArray:
    """The kernels with zeros at taps that read nothing: the same operator."""
    alive = np.ones((), dtype=np.bool_)
    for table in reads:
        alive = np.logical_and.outer(alive, np.any(table.sources != NOTHING, axis=0))
    return np.where(alive, kernels, 0.0)


def _squared_norm(kernel: FloatArray, reads: Sequence[Reads]) -> Upper:
    """The square of the norm for one group: [out, in, *taps]."""
    adjoint = _adjoint(reads)
    if adjoint is not None and _rows(kernel.shape[1], adjoint) < _rows(kernel.shape[0], reads):
        kernel, reads = kernel.swapaxes(0, 1), adjoint
    if not np.any(kernel):
        return ZERO
    mass = largest_norm(kernel[None])
    terms = (kernel.shape[1] + 2) * math.prod(kernel.shape[2:]) ** 2
    overlap = Upper(float(math.prod(table.overlap for table in reads)))
    rounding = gamma(terms) * mass * mass * overlap + UNDERFLOW
    gram = _BandedGram.of(kernel, reads)
    estimate = max(_estimated_square(kernel, reads), _NEGLIGIBLE * mass.value**2)
    for slack in _SLACKS:
        shift = estimate * (1.0 + slack)
        distance = _distance(gram, shift)
        if distance.is_finite:
            return Upper(shift) + distance + rounding
    return INFINITE


def _distance(gram: _BandedGram, shift: float) -> Upper:
    """‖shift − TT* − R R*‖₂ for some R; inf without one."""
    side, diagonal = gram.side, np.arange(gram.side)
    reach = gram.bands.bandwidth()
    columns: dict[int, FloatArray] = {}  # of R, below the diagonal block
    found, largest = [], ZERO
    for column in range(gram.bands.outputs):
        panel = gram.minus_column(column, reach)
        panel[diagonal, diagonal] += shift
        largest = max(largest, Upper(float(np.max(np.abs(panel[diagonal, diagonal])))))
        entries = frobenius_norm(panel)
        for earlier, factor in columns.items():
            below = factor[(column - earlier - 1) * side :]
            panel[: len(below)] -= below @ below[:side].T
        norms = factor_panel(panel, entries)
        if norms is None or norms.residual.value > _TOO_LARGE * shift:
            return INFINITE
        found.append(norms)
        columns.pop(column - reach, None)
        if reach:
            columns[column] = panel[side:].copy()
    terms = (reach + 1) * side
    return PanelNorms.joined(found).distance(terms) + Upper(UNIT_ROUNDOFF) * largest


@final
@dataclass(frozen=True, slots=True, eq=False)
class _BandedGram:
    """TT* by blocks: rows and columns are the outputs of one dimension.

    matrices: [taps of that dimension, other taps, out, in]; others: the tables of the others.
    meetings: the pairs of taps through which two outputs of that dimension meet.
    places: for two of the other taps, where outputs of the other dimensions meet.
    """

    matrices: FloatArray
    bands: Reads
    others: tuple[Reads, ...]
    meetings: Mapping[tuple[int, int], Sequence[tuple[int, int]]]
    places: Mapping[tuple[int, int], tuple[IndexArray, IndexArray]]

    @classmethod
    def of(cls, kernel: FloatArray, reads: Sequence[Reads]) -> _BandedGram:
        """Blocks along the dimension of the most outputs. kernel: [out, in, *taps]."""
        axis = _longest(reads)
        others = tuple(table for index, table in enumerate(reads) if index != axis)
        moved = np.moveaxis(kernel, axis + 2, 2)
        matrices = moved.reshape(*moved.shape[:3], -1).transpose(2, 3, 0, 1)
        meetings: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for first, second in itertools.product(range(reads[axis].taps), repeat=2):
            for pair in zip(*reads[axis].meetings(first, second), strict=True):
                meetings.setdefault((int(pair[0]), int(pair[1])), []).append((first, second))
        return cls(matrices, reads[axis], others, meetings, _places(others))

    @property
    def side(self) -> int:
        """Rows of a block."""
        return _rows(int(self.matrices.shape[2]), self.others)

    def minus_column(self, column: int, reach: int) -> FloatArray:
        """−TT* in a block column, from the diagonal block to the last one within reach."""
        count = min(reach + 1, self.bands.outputs - column)
        outer = self.matrices.shape[2]
        positions = self.side // outer
        panel = np.zeros((count, positions, outer, positions, outer))
        for block in range(count):
            pairs = self.meetings.get((column + block, column), ())
            for (one, other), (rows, columns) in self.places.items():
                if not pairs or not rows.size:
                    continue
                product = sum(
                    self.matrices[first, one] @ self.matrices[second, other].T
                    for first, second in pairs
                )
                panel[block, rows, :, columns, :] -= product
        return panel.reshape(-1, self.side)


def _places(tables: tuple[Reads, ...]) -> dict[tuple[int, int], tuple[IndexArray, IndexArray]]:
    """For every two taps of the tables, the pairs of outputs that meet through them."""
    sizes = tuple(table.outputs for table in tables)
    taps = list(enumerate(np.ndindex(*(table.taps for table in tables))))
    places = {}
    for (i, first), (j, second) in itertools.product(taps, repeat=2):
        pairs = [t.meetings(a, b) for t, a, b in zip(tables, first, second, strict=True)]
        rows = flat_positions([pair[0] for pair in pairs], sizes)
        places[i, j] = (rows, flat_positions([pair[1] for pair in pairs], sizes))
    return places


def _estimated_square(kernel: FloatArray, reads: Sequence[Reads]) -> float:
    """An untrusted estimate of ‖T‖²."""
    from scipy.sparse.linalg import (  # noqa: PLC0415  slow to import, and most nets need no block
        ArpackError,
        LinearOperator,
        eigsh,
    )

    outer, inner, *taps = kernel.shape
    sizes = tuple(table.size for table in reads)
    selections = [_selection(reads, tap) for tap in np.ndindex(*taps)]
    adjoints = [selection.T.tocsr() for selection in selections]
    matrices = kernel.reshape(outer, inner, -1).transpose(2, 0, 1)

    def gram(vector: FloatArray) -> FloatArray:
        image = vector.reshape(inner, -1).T
        out = sum(s @ (image @ m.T) for s, m in zip(selections, matrices, strict=True))
        back = sum(s @ (out @ m) for s, m in zip(adjoints, matrices, strict=True))
        return np.ravel(np.asarray(back, dtype=np.float64).T)

    side = inner * math.prod(sizes)
    if side <= _DENSE_SIDE:
        columns = np.stack([gram(row) for row in np.eye(side)])
        return float(np.linalg.eigvalsh(columns)[-1])
    start = np.random.default_rng(0).standard_normal(side)
    operator = LinearOperator((side, side), matvec=gram, dtype=np.float64)
    try:
        values = eigsh(operator, 1, tol=_ACCURACY, v0=start, return_eigenvectors=False)
    except ArpackError:  # no convergence, or a map that is zero
        return 0.0
    return float(values[0])


def _selection(reads: Sequence[Reads], taps: tuple[int, ...]) -> csr_array:
    """The 0/1 matrix from inputs to the outputs that read them through these taps."""
    from scipy.sparse import csr_array as matrix  # noqa: PLC0415  slow to import

    sizes = tuple(table.size for table in reads)
    counts = tuple(table.outputs for table in reads)
    columns = [table.sources[:, tap] for table, tap in zip(reads, taps, strict=True)]
    rows = [np.flatnonzero(column != NOTHING) for column in columns]
    sources = [column[row] for column, row in zip(columns, rows, strict=True)]
    where = (flat_positions(rows, counts), flat_positions(sources, sizes))
    shape = (math.prod(counts), math.prod(sizes))
    return matrix((np.ones(len(where[0])), where), shape=shape)


def _adjoint(reads: Sequence[Reads]) -> list[Reads] | None:
    """The tables of the adjoint map; None where it has none."""
    tables = [table.adjoint() for table in reads]
    whole = [table for table in tables if table is not None]
    return whole if len(whole) == len(tables) else None


def _longest(reads: Sequence[Reads]) -> int:
    return max(range(len(reads)), key=lambda axis: reads[axis].outputs)


def _rows(channels: int, reads: Sequence[Reads]) -> int:
    return channels * math.prod(table.outputs for table in reads)
