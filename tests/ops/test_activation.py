"""Activations: known answers, the use of boxes, and the slope of PRelu under both scopes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.activation import Activation, PRelu
from lipcert.ops.functions import Cos, Gelu, LeakyRelu, Mish, Relu, Sigmoid, Softplus, Tanh
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.upper import Upper

POINT = PointScope(Tier.QUICK)


def facts(shape, radius, box=None) -> ValueFacts:
    ends = None if box is None else Interval(np.full(shape, box[0]), np.full(shape, box[1]))
    reason = "unknown" if math.isinf(radius) else ""
    return ValueFacts.of(shape, Bound(Upper(radius), "test", reason), ends)


def constrained(radius: float, kind: ConstraintKind = ConstraintKind.FROBENIUS) -> ConstraintScope:
    return ConstraintScope(
        {"slope": Constraint(kind, Upper(radius))}, frozenset({"slope"}), Tier.QUICK
    )


@pytest.mark.parametrize(
    ("function", "at_zero"), [(Sigmoid(), 5.0), (Softplus(), 10 * math.log(2)), (Cos(), 10.0)]
)
def test_output_at_radius_zero_is_f_of_zero(function, at_zero) -> None:
    """X·L would say 0 here."""
    norm = Activation(function).output_facts([facts((100,), 0.0)], POINT).norm.value.value
    assert at_zero <= norm <= at_zero * (1 + 1e-14)


def test_sigmoid_is_capped_by_its_range() -> None:
    norm = Activation(Sigmoid()).output_facts([facts((100,), math.inf)], POINT).norm
    assert norm.is_finite
    assert 10.0 <= norm.value.value <= 10.0 * (1 + 1e-12)


@pytest.mark.parametrize("function", [Gelu(), Mish(), Relu(), Tanh()], ids=repr)
def test_functions_below_the_identity_do_not_grow_the_norm(function) -> None:
    out = Activation(function).output_facts([facts((7,), 3.0)], POINT)
    assert out.norm.value.value <= 3.0


def test_a_box_sharpens_the_slope() -> None:
    def slope(function, low, high):
        x = facts((3,), 99.0, (low, high))
        return Activation(function).input_lipschitz(0, [x], POINT).value.value

    assert slope(Relu(), -2.0, -0.5) == 0.0
    assert slope(Relu(), -2.0, 0.0) == 1.0
    assert slope(LeakyRelu(3.0), 0.5, 1.0) == 1.0
    assert slope(LeakyRelu(3.0), 0.0, 1.0) == 3.0
    assert slope(Sigmoid(), 2.0, 5.0) == pytest.approx(0.10499358540350651, rel=1e-12)
    assert slope(Gelu(), -0.5, 0.5) == pytest.approx(0.8674951246561, rel=1e-11)
    assert slope(Tanh(), -1.0, 4.0) == 1.0


def test_a_box_away_from_zero_sharpens_the_output() -> None:
    below = Activation(LeakyRelu(0.1)).output_facts([facts((4,), 1.0, (-9.0, 0.0))], POINT)
    assert below.norm.value.value <= 1.0


def test_mixed_boxes_are_treated_entry_by_entry() -> None:
    x = ValueFacts.of(
        (2,), Bound(Upper(5.0), "test"), Interval(np.array([-3.0, 1.0]), np.array([-1.0, 2.0]))
    )
    out = Activation(Relu()).output_facts([x], POINT)
    assert out.box.lo.tolist() == [0.0, 1.0]
    assert out.box.hi.tolist() == [0.0, 2.0]


def test_prelu_slopes_of_entries_that_stay_positive_do_not_count() -> None:
    op = PRelu(Operand(np.array([[5.0], [0.5]]), "slope"))
    shape = (2, 3)
    low = np.array([[0.125] * 3, [-1.0] * 3])
    x = ValueFacts.of(shape, Bound(Upper(9.0), "test"), Interval(low, np.full(shape, 2.0)))
    assert op.input_lipschitz(0, [x], POINT).value.value == 1.0
    touching = ValueFacts.of(
        shape, Bound(Upper(9.0), "test"), Interval(np.zeros(shape), np.full(shape, 2.0))
    )
    assert op.input_lipschitz(0, [touching], POINT).value.value == 5.0
    assert op.output_facts([touching], POINT).norm.value.value <= math.sqrt(24.0) * (1 + 1e-14)


def test_prelu_slope_gradient_uses_sharing_and_box() -> None:
    x = facts((3, 4), 100.0, (-0.5, 7.0))
    per_channel = PRelu(Operand(np.full((3, 1), 0.25), "slope"))
    shared = PRelu(Operand(np.array([0.25]), "slope"))
    assert per_channel.param_lipschitz([x], POINT)["slope"].value.value == pytest.approx(1.0)
    assert shared.param_lipschitz([x], POINT)["slope"].value.value == pytest.approx(math.sqrt(3))
    small = facts((3, 4), 0.3)
    assert shared.param_lipschitz([small], POINT)["slope"].value.value == 0.3


def test_prelu_under_a_constraint() -> None:
    op = PRelu(Operand(np.array([[0.25], [0.5]]), "slope"))
    x = facts((2, 3), 2.0)
    assert op.input_lipschitz(0, [x], constrained(4.0)).value.value == 4.0
    assert op.input_lipschitz(0, [x], constrained(0.5)).value.value == 1.0
    assert op.output_facts([x], constrained(4.0)).norm.value.value == 8.0
    free = ConstraintScope({}, frozenset({"slope"}), Tier.QUICK)
    answer = op.input_lipschitz(0, [x], free)
    assert not answer.is_finite
    assert "slope" in answer.reason
    positive = facts((2, 3), 2.0, (0.25, 1.0))
    assert op.input_lipschitz(0, [positive], free).value.value == 1.0


def test_shapes_are_checked() -> None:
    assert Activation(Relu()).output_shape([(2, 3)]) == (2, 3)
    op = PRelu(Operand(np.ones((2, 1, 1)), "slope"))
    assert op.output_shape([(2, 5, 5)]) == (2, 5, 5)
    with pytest.raises(ValueError, match="broadcast"):
        op.output_shape([(3, 5, 5)])
    with pytest.raises(ValueError, match="broadcast"):
        op.output_shape([(5,)])
