"""Dense layers: y = W x + b on the last axis, the same at every position.

What enters: facts about x, and a scope that bounds W and b. What leaves: norm and box of y, the
Jacobian norms in x, W and b, and the cotangent at x, where a hull of logit gradients is used up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.facts import (
    Bound,
    CotangentFacts,
    PairHull,
    Runs,
    Shape,
    ValueFacts,
    no_bound,
    product_of,
    sum_of,
    tightest,
)
from lipcert.interval import Interval
from lipcert.links import Link, Matrix
from lipcert.norms.linear_map import DenseMap
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import root_of
from lipcert.scope import Scope
from lipcert.upper import ZERO, FloatArray, Upper, gamma, row_norms

_BLOCK_ENTRIES: Final = 2**22
_LARGEST_HULL: Final = 5000
_TWO: Final = Upper(2.0)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Dense(Op):
    """y[..., o] = Σ_i weight[o, i] · x[..., i] + bias[o]. weight: [out, in]; bias: [out]."""

    weight: Operand
    bias: Operand | None = None

    def __post_init__(self) -> None:
        if len(self.weight.shape) != 2:
            raise ValueError(f"a dense weight has two axes, not shape {self.weight.shape}")
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ValueError(f"bias {self.bias.shape} does not fit weight {self.weight.shape}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Gemm"

    @property
    def family(self) -> str:
        """Rule family."""
        return "dense"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The last axis is replaced by the rows of the weight."""
        (shape,) = inputs
        if shape[-1:] != self.weight.shape[1:]:
            raise ValueError(f"input {shape} does not fit weight {self.weight.shape}")
        return (*shape[:-1], self.weight.shape[0])

    def operands(self) -> Mapping[str, Operand]:
        """Weight, and bias where there is one."""
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def operator_norm(self, scope: Scope) -> Bound:
        """Norm of the weight; the map at several positions is block diagonal with equal blocks."""
        return scope.operator_norm(DenseMap(self.weight))

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖Wx + 1⊗b‖ over ‖x‖ ≤ X, and a box of the entries.

        Hypotheses: X bounds the input of all P positions together.
        Proof: ‖Wx‖ ≤ ‖W‖X, and b is added at P positions: √P‖b‖. Sharper, because the square
        is expanded: ‖Wx + 1⊗b‖² ≤ ‖W‖²X² + 2√P·X·‖Wᵀb‖ + P‖b‖². Round the centre c of the box,
        whose radius is r: ‖Wx + 1⊗b‖ ≤ ‖Wc + 1⊗b‖ + ‖W‖‖r‖. Each entry lies in the interval
        product of row and box, and |y_o| ≤ ‖w_o‖‖x_p‖ + |b_o| (Cauchy–Schwarz).
        Attained: without bias, by the top right singular vector.
        """
        (x,) = inputs
        shape = self.output_shape([x.shape])
        token = x.run_norm(-1)
        by_norm = Interval.exact(self._row_norms(scope)) * Interval.symmetric(token, (1,))
        by_box = self._products(x.box.broadcast(x.shape), scope)
        box = self._shifted(by_box.intersect(by_norm), scope)
        return ValueFacts.of(
            shape,
            tightest(self._around_zero(x, scope), self._around_centre(x, scope)),
            box,
            self._tokens(token, len(shape), scope),
        )

    def _tokens(self, token: Upper, rank: int, scope: Scope) -> Runs:
        """‖Wx_p + b‖ ≤ ‖W‖·‖x_p‖ + ‖b‖ at every position p."""
        reach = self.operator_norm(scope).value * token
        added = ZERO if self.bias is None else scope.norm(self.bias).value
        return Runs(rank - 1, reach + added)

    def _around_zero(self, x: ValueFacts, scope: Scope) -> Bound:
        """‖W‖X + √P‖b‖, or √(‖W‖²X² + 2√P·X·‖Wᵀb‖ + P‖b‖²)."""
        linear = product_of("dense.output_norm", self.operator_norm(scope), x.norm)
        if self.bias is None:
            return linear
        root = root_of(_positions(x.shape))
        shift = scope.norm(self.bias).scaled(root)
        joint = sum_of("dense.output_norm", linear, shift)
        cross = self._cross(self.bias, scope)
        if not (joint.is_finite and cross.is_finite):
            return joint
        square = linear.value * linear.value + shift.value * shift.value
        square = square + _TWO * root * x.norm.value * cross
        if not square.is_finite:
            return joint
        return tightest(joint, Bound(square.sqrt(), "dense.output_norm.expanded"))

    def _around_centre(self, x: ValueFacts, scope: Scope) -> Bound:
        """‖Wc + 1⊗b‖ + ‖W‖‖r‖, where the box is known and clearly smaller than the ball."""
        rule = "dense.output_norm.centred"
        with np.errstate(invalid="ignore", over="ignore"):
            centre = 0.5 * x.box.lo + 0.5 * x.box.hi
        if not np.all(np.isfinite(centre)):
            return no_bound(rule, "the box of the input is not bounded")
        point = Interval.exact(np.broadcast_to(centre, x.shape))
        radius = (x.box - point).norm()
        if not radius < x.norm.value:
            return no_bound(rule, "the box of the input is not smaller than its ball")
        value = self._shifted(self._products(point, scope), scope).norm()
        if not value.is_finite:
            return no_bound(rule, "the entries of the weight are not bounded")
        stretch = product_of(rule, self.operator_norm(scope), Bound(radius, rule))
        return sum_of(rule, Bound(value, rule), stretch)

    def _shifted(self, product: Interval, scope: Scope) -> Interval:
        return product if self.bias is None else product + scope.entries(self.bias)

    def _row_norms(self, scope: Scope) -> FloatArray:
        """Bounds of ‖w_o‖: from the entries, and from either norm of the whole weight: [out]."""
        entries = scope.entries(self.weight)
        cap = min(scope.norm(self.weight).value, self.operator_norm(scope).value).value
        blocks = [row_norms(_rows(entries, r).magnitude()) for r in _row_blocks(entries.shape)]
        return np.minimum(np.concatenate(blocks), cap)

    def _products(self, box: Interval, scope: Scope) -> Interval:
        """W x at every position, block of rows by block of rows to bound memory."""
        entries = scope.entries(self.weight)
        blocks = [
            box.matmul(_rows(entries, rows).map(np.transpose))
            for rows in _row_blocks(entries.shape)
        ]
        return Interval(
            np.concatenate([block.lo for block in blocks], axis=-1),
            np.concatenate([block.hi for block in blocks], axis=-1),
        )

    def _cross(self, bias: Operand, scope: Scope) -> Upper:
        """‖Wᵀb‖, block of rows by block of rows."""
        entries, shift = scope.entries(self.weight), scope.entries(bias)
        result = Interval.exact(np.zeros((1, self.weight.shape[1])))
        for rows in _row_blocks(entries.shape):
            left = _rows(shift, rows).map(lambda array: array[None, :])
            result = result + left.matmul(_rows(entries, rows))
        return result.norm()

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ ‖W‖₂, the spectral norm of the Jacobian at every position.

        Attained: everywhere (the Jacobian is constant).
        """
        del index, inputs
        return self.operator_norm(scope)

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """W at every position, where the scope knows it exactly."""
        del inputs
        weight = scope.entries(self.weight)
        after, before = self.weight.shape
        return Matrix(after, before, lambda: weight.lo) if weight.is_exact else None

    def param_lipschitz(self, inputs: Sequence[ValueFacts], scope: Scope) -> Mapping[str, Bound]:
        """Returns, for the weight, B ≥ sup ‖X‖₂ of the [P, in] input matrix; for the bias, √P.

        Proof: W ↦ (W x_p)_p has norm ‖X‖₂ ≤ ‖X‖_F ≤ X; b ↦ (b)_p has norm √P. Together they
        have norm at most √(X² + P), the root of the sum of squares.
        Attained: at P = 1, or when all positions are parallel.
        """
        del scope
        (x,) = inputs
        found = {"weight": product_of("dense.param_lipschitz.weight", x.norm)}
        if self.bias is not None:
            root = root_of(_positions(x.shape))
            found["bias"] = Bound(root, "dense.param_lipschitz.bias")
        return found

    def input_cotangent(
        self,
        index: int,
        cotangent: CotangentFacts,
        inputs: Sequence[ValueFacts],
        scope: Scope,
    ) -> CotangentFacts:
        """Returns B ≥ sup ‖Wᵀg‖: the chain rule l‖W‖, or the hull's vertices where g has one.

        Hypotheses: one position, as many outputs as classes, weights known exactly.
        Proof: ‖Wᵀg‖ is convex in g, hence maximal at a vertex of the hull.
        Attained: when a vertex is approached (one class takes all the probability).
        """
        chained = cotangent.through(self.input_lipschitz(index, inputs, scope))
        hull, weight = cotangent.hull, scope.entries(self.weight)
        single = _positions(inputs[index].shape) == 1
        if hull is None or not single or not weight.is_exact:
            return chained
        if hull.classes != self.weight.shape[0] or hull.classes > _LARGEST_HULL:
            return chained
        pairs = pair_norm(weight.lo, hull)
        if not pairs.is_finite:
            return chained
        return CotangentFacts(tightest(chained.norm, Bound(pairs, "dense.input_cotangent.pairs")))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        product: FloatArray = x @ self.weight.array.T
        return product if self.bias is None else product + self.bias.array


def pair_norm(weight: FloatArray, hull: PairHull) -> Upper:
    """Returns B ≥ scale · max over j, y of ‖Wᵀ(e_j − t_y)‖₂ for an exact W [classes, in].

    Proof: the coefficients of e_j − t_y sum to 0, so the rows may be shifted by any common
    vector c. With A = W − c and B_y = (1 − s)A_y + s·mean(A), the vertex is A_j − B_y. Both are
    enclosed in intervals, represented by their lower ends; the widths are added to the result.
    The squared distances |A_j|² + |B_y|² − 2A_j·B_y are computed in blocks; each of the three
    inner products of n terms errs by at most γ_n (max|A| + max|B|)², as do the two additions,
    all covered by 8γ_{n+8}. c near the mean keeps that far below the distances themselves.
    """
    if not np.any(weight):
        return ZERO
    scaled, unit = _normalised(weight)
    shifted = Interval.exact(scaled) - Interval.exact(np.mean(scaled, axis=0, keepdims=True))
    targets = _smoothed(shifted, hull.smoothing)
    width = _width(shifted) + _width(targets)
    distance = _largest_distance(shifted.lo, targets.lo)
    return (distance + width) * unit * hull.scale


def _smoothed(rows: Interval, smoothing: float) -> Interval:
    """(1 − s)·row + s·mean of the rows."""
    if smoothing == 0.0:
        return rows
    share = Interval.exact(np.array(smoothing))
    keep = Interval.exact(np.array(1.0)) - share
    count = Interval.exact(np.array(float(rows.shape[0])))
    mean = rows.sum(axes=(0,), keepdims=True) * count.reciprocal()
    return rows * keep + mean * share


def _largest_distance(left: FloatArray, right: FloatArray) -> Upper:
    """Upper bound of max ‖left_j − right_y‖ over all pairs of rows of exact matrices."""
    left_squares = np.einsum("ij,ij->i", left, left)
    right_squares = np.einsum("ij,ij->i", right, right)
    largest = 0.0
    block = max(1, _BLOCK_ENTRIES // len(right))
    for start in range(0, len(left), block):
        rows = slice(start, start + block)
        squares = left_squares[rows, None] + right_squares - 2.0 * (left[rows] @ right.T)
        largest = max(largest, float(np.max(squares)))
    terms = left.shape[1]
    reach = Upper(float(np.max(row_norms(left)))) + Upper(float(np.max(row_norms(right))))
    error = Upper(8.0) * gamma(terms + 8) * reach * reach
    underflow = Upper(terms * 2.0**-1000)
    return (Upper(largest) + error + underflow).sqrt()


def _width(rows: Interval) -> Upper:
    """Bound of the distance of any row of the interval from its lower end."""
    return (Interval.exact(rows.hi) - Interval.exact(rows.lo)).norm()


def _normalised(weight: FloatArray) -> tuple[FloatArray, Upper]:
    """The weight divided by a power of two near its largest entry, and that power.

    Exact, except for entries that underflow because they are below 2⁻¹⁰²² of the largest; the
    `underflow` of `_largest_distance` covers them.
    """
    exponent = math.frexp(float(np.max(np.abs(weight))))[1] - 1
    return np.ldexp(weight, -exponent), Upper(math.ldexp(1.0, exponent))


def _positions(shape: Shape) -> int:
    return math.prod(shape[:-1])


def _rows(interval: Interval, rows: slice) -> Interval:
    return interval.map(lambda array: array[rows])


def _row_blocks(shape: Shape) -> Iterator[slice]:
    step = max(1, _BLOCK_ENTRIES // max(shape[1], 1))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)
