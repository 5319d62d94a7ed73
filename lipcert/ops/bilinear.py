"""Products and quotients of two values entry by entry, and products of matrices.

What enters: facts about both values. What leaves: norm and box of the result, and for each value
the Jacobian norm, which is a norm of the *other* value: bounded only on a bounded domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import Bound, Shape, ValueFacts, no_bound, product_of, tightest
from lipcert.interval import Interval
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import aligned, broadcast_shape, slice_norm
from lipcert.scope import Scope
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Multiply(Op):
    """y = a · b, entry by entry, with broadcasting."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Mul"

    @property
    def family(self) -> str:
        """Rule family."""
        return "multiply"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        first, second = inputs
        return broadcast_shape([first, second])

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖a·b‖ = min(X_a·L_a, X_b·L_b), and the product of the boxes.

        Proof: for fixed b the product is linear in a with norm at most L_a; likewise for b.
        Attained: when both norms sit on one entry.
        """
        a, b = inputs
        shape = self.output_shape([a.shape, b.shape])
        return ValueFacts.of(shape, _bilinear_norm(self, inputs, scope), a.box * b.box)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ the largest norm of the slice of the other value that meets one entry.

        Hypotheses: the other value is bounded.
        Proof: the columns of the Jacobian are these slices, with disjoint supports.
        Attained: when the other value can concentrate on one slice.
        """
        del scope
        value, other = inputs[index], inputs[1 - index]
        shape = self.output_shape([x.shape for x in inputs])
        largest = slice_norm(other, value.shape, shape)
        return _needs_bounded("multiply.input_lipschitz", largest)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        rank = max(x.ndim for x in inputs) - 1
        a, b = (aligned(x, rank) for x in inputs)
        return a * b


@final
@dataclass(frozen=True, slots=True)
class Quotient(Op):
    """y = a / b, entry by entry, with broadcasting."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Div"

    @property
    def family(self) -> str:
        """Rule family."""
        return "quotient"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        first, second = inputs
        return broadcast_shape([first, second])

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖a/b‖ = X_a·L_a, and the quotient of the boxes.

        Hypotheses: the box of b excludes 0.
        Proof: for fixed b the quotient is linear in a with norm at most L_a.
        Attained: when a sits on the entry with the least |b|.
        """
        a, b = inputs
        rule = "quotient.output_norm"
        norm = product_of(rule, self.input_lipschitz(0, inputs, scope), a.norm)
        box = a.box * b.box.reciprocal()
        return ValueFacts.of(self.output_shape([a.shape, b.shape]), norm, box)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ the norms of the slices of 1/b, or of a/b², that meet one entry.

        Hypotheses: the box of b excludes 0; for b, a is bounded too.
        Proof: ∂y/∂a = 1/b and ∂y/∂b = −a/b², entry by entry; the columns of each Jacobian are
        such slices, with disjoint supports.
        Attained: when |b| is least on a whole slice, and |a| largest.
        """
        del scope
        rule = "quotient.input_lipschitz"
        a, b = inputs
        inverse = b.box.reciprocal()
        if not inverse.max_abs().is_finite:
            return _needs_nonzero(rule, b)
        shape = self.output_shape([a.shape, b.shape])
        inverse_facts = ValueFacts.of(b.shape, no_bound(rule, "only the box is known"), inverse)
        if index == 0:
            return product_of(rule, slice_norm(inverse_facts, a.shape, shape))
        largest = Bound(inverse.max_abs(), rule)
        by_norm = product_of(rule, slice_norm(a, b.shape, shape), largest, largest)
        slopes = ValueFacts.of(shape, by_norm, a.box * (inverse * inverse))
        return tightest(by_norm, product_of(rule, slice_norm(slopes, b.shape, shape)))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64; NaN or infinite where b is 0."""
        rank = max(x.ndim for x in inputs) - 1
        a, b = (aligned(x, rank) for x in inputs)
        with np.errstate(all="ignore"):
            return a / b


@final
@dataclass(frozen=True, slots=True)
class MatMul(Op):
    """Y = A B on the last two axes: [..., n, k] · [..., k, m], the others broadcast."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "MatMul"

    @property
    def family(self) -> str:
        """Rule family."""
        return "matmul"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[..., n, m]."""
        a, b = inputs
        if min(len(a), len(b)) < 2 or a[-1] != b[-2]:
            raise ValueError(f"matrices of shape {a} and {b} cannot be multiplied")
        return (*broadcast_shape([a[:-2], b[:-2]]), a[-2], b[-1])

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖AB‖_F = min(X_a·L_a, X_b·L_b), and interval products of the boxes.

        Proof: for fixed B the product is linear in A with norm at most L_a; likewise for B.
        Attained: by matrices of rank one.
        """
        a, b = inputs
        shape = self.output_shape([a.shape, b.shape])
        return ValueFacts.of(shape, _bilinear_norm(self, inputs, scope), _products(a, b, shape))

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ the largest Frobenius norm of the matrices that multiply one matrix.

        Hypotheses: the other value is bounded.
        Proof: A ↦ AB has norm ‖B‖₂ ≤ ‖B‖_F. A matrix of A that is repeated along an axis of B
        meets B_1, …, B_r; the norm is then that of [B_1 | … | B_r], at most √Σ‖B_i‖_F². Distinct
        matrices of A act on disjoint parts. (AB)ᵀ = BᵀAᵀ gives the case of B.
        Attained: by matrices of rank one.
        """
        del scope
        value, other = inputs[index], inputs[1 - index]
        batch = self.output_shape([x.shape for x in inputs])[:-2]
        partner = (*value.shape[:-2], 1, 1)
        largest = slice_norm(other, partner, (*batch, *other.shape[-2:]))
        return _needs_bounded("matmul.input_lipschitz", largest)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        rank = max(x.ndim for x in inputs) - 1
        a, b = (aligned(x, rank) for x in inputs)
        product: FloatArray = a @ b
        return product


def _bilinear_norm(op: Multiply | MatMul, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
    """min over both values of X·L."""
    rule = f"{op.family}.output_norm"
    products = [
        product_of(rule, op.input_lipschitz(index, inputs, scope), inputs[index].norm)
        for index in range(2)
    ]
    return tightest(*products)


def _needs_bounded(rule: str, other: Bound) -> Bound:
    if other.is_finite:
        return Bound(other.value, rule)
    return no_bound(
        rule,
        f"a product of two values has no Lipschitz bound unless both are bounded ({other.reason})",
        "state an input domain, or bound the factor (sigmoid gate, normalization, clip)",
    )


def _needs_nonzero(rule: str, divisor: ValueFacts) -> Bound:
    box = divisor.box
    low, high = np.min(box.lo, initial=np.inf), np.max(box.hi, initial=-np.inf)
    return no_bound(
        rule,
        "a quotient has a bound where the divisor stays away from 0, but its entries are only "
        f"known to lie in [{low:.4g}, {high:.4g}]",
        "add a positive constant to a divisor that is not negative, clip it, or state bounds of "
        "the inputs that keep it away from 0 (--input-box)",
    )


def _products(a: ValueFacts, b: ValueFacts, shape: Shape) -> Interval:
    """Interval products, one per matrix of the output: [..., n, m]."""
    batch = shape[:-2]
    left = a.box.broadcast((*batch, *a.shape[-2:]))
    right = b.box.broadcast((*batch, *b.shape[-2:]))
    lo, hi = np.empty(shape), np.empty(shape)
    for where in np.ndindex(batch):
        factor = Interval(right.lo[where], right.hi[where])
        block = Interval(left.lo[where], left.hi[where]).matmul(factor)
        lo[where], hi[where] = block.lo, block.hi
    return Interval(lo, hi)
