"""Normalisation layers: closed forms, attained values, constraint sets, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.normalization import BatchNorm, GroupNorm, LayerNorm, RmsNorm
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.upper import Upper

POINT = PointScope(Tier.QUICK)


def facts(shape, radius, box=None) -> ValueFacts:
    ends = None if box is None else Interval(np.full(shape, box[0]), np.full(shape, box[1]))
    reason = "unknown" if math.isinf(radius) else ""
    return ValueFacts.of(shape, Bound(Upper(radius), "test", reason), ends)


def ones(*shape, name="scale") -> Operand:
    return Operand(np.ones(shape), name)


def batch_norm(channels, variance=1.0, epsilon=0.0, mean=0.0, scale=1.0, bias=0.0) -> BatchNorm:
    full = (np.full(channels, float(v)) for v in (mean, variance))
    return BatchNorm(
        *(Operand(array) for array in full),
        epsilon,
        Operand(np.full(channels, float(scale)), "scale"),
        Operand(np.full(channels, float(bias)), "bias"),
    )


def constrained(**radii: float) -> ConstraintScope:
    constraints = {
        name: Constraint(ConstraintKind.FROBENIUS, Upper(radius)) for name, radius in radii.items()
    }
    return ConstraintScope(constraints, frozenset({"scale", "bias"}), Tier.QUICK)


def test_layer_norm_of_a_small_input_is_not_the_naive_minimum() -> None:
    """‖y‖ = X/√(X²/n + ε): 2.48 where min(√n, X/√ε) says 3.16."""
    out = LayerNorm(1, 1e-5).output_facts([facts((16,), 0.01)], POINT).norm.value.value
    closed = 0.01 / math.sqrt(0.01**2 / 16 + 1e-5)
    assert closed == pytest.approx(2.4807, abs=1e-4)
    assert closed <= out <= closed * (1 + 1e-12)
    x = np.tile([1.0, -1.0], 8)
    attained = LayerNorm(1, 1e-5).evaluate((x * 0.01 / 4.0)[np.newaxis])
    assert np.linalg.norm(attained) == pytest.approx(out, rel=1e-12)


def test_layer_norm_slope_is_attained_without_spread() -> None:
    bound = LayerNorm(1, 1e-5).input_lipschitz(0, [facts((16,), 1.0)], POINT).value.value
    assert bound == pytest.approx(316.2278, abs=1e-3)
    step = np.zeros((1, 16))
    step[0, :2] = 1e-9, -1e-9
    measured = np.linalg.norm(LayerNorm(1, 1e-5).evaluate(step)) / np.linalg.norm(step)
    assert measured == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (5, 16), (3, 2), (4, 1)])
def test_layer_norm_scale_gradient_is_the_largest_normalised_entry(tokens, width) -> None:
    op = LayerNorm(1, 0.0, ones(width), ones(width, name="bias"))
    answers = op.param_lipschitz([facts((tokens, width), math.inf)], POINT)
    expected = math.sqrt(tokens * (width - 1))
    assert answers["scale"].value.value == pytest.approx(expected, rel=1e-15)
    assert answers["bias"].value.value == pytest.approx(math.sqrt(tokens), rel=1e-15)
    if width > 1:
        x = np.full((1, tokens, width), -1.0)
        x[..., 0] = width - 1.0
        largest = np.linalg.norm(LayerNorm(1, 0.0).evaluate(x)[0, :, 0])
        assert largest == pytest.approx(expected, rel=1e-12)


def test_group_norm_scale_gradient() -> None:
    def scale(shape, groups):
        op = GroupNorm(groups, 0.0, ones(shape[0]), ones(shape[0], name="bias"))
        return op.param_lipschitz([facts(shape, math.inf)], POINT)["scale"].value.value

    assert scale((4, 3, 3), 2) == pytest.approx(math.sqrt(18))
    assert scale((4, 1), 2) == pytest.approx(1.0)
    assert scale((8,), 2) == pytest.approx(math.sqrt(3))
    assert scale((4, 3, 3), 4) == pytest.approx(3.0)


@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([1e-6, 1e-2, 1.0]),
    st.floats(1e-3, 1e3),
    st.integers(0, 10**6),
)
@settings(max_examples=100, deadline=None)
def test_random_points_stay_below_every_bound(blocks, size, epsilon, radius, seed) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(20, blocks, size)) * np.exp(random.normal(size=(20, blocks, 1)))
    x *= radius / np.linalg.norm(x.reshape(20, -1), axis=1)[:, None, None]
    given_facts = [facts((blocks, size), radius * (1 + 1e-12))]
    scale = Operand(random.normal(size=size), "scale")
    for op in (
        LayerNorm(1, epsilon, scale),
        RmsNorm(1, epsilon, scale),
        GroupNorm(blocks, epsilon, Operand(random.normal(size=blocks), "scale")),
    ):
        value = op.evaluate(x)
        out = op.output_facts(given_facts, POINT)
        slack = 1 + 1e-9
        assert np.all(np.linalg.norm(value.reshape(20, -1), axis=1) <= out.norm.value.value * slack)
        assert np.all(np.abs(value) <= out.box.hi * slack + 1e-12)
        plain = type(op)(blocks if isinstance(op, GroupNorm) else 1, epsilon).evaluate(x)
        axis = 2 if isinstance(op, GroupNorm) else 1
        columns = np.linalg.norm(plain, axis=axis).max()
        assert (
            columns <= op.param_lipschitz(given_facts, POINT)["scale"].value.value * slack + 1e-12
        )


def test_without_epsilon_there_is_no_slope_but_an_output() -> None:
    for op in (LayerNorm(1, 0.0), RmsNorm(1, 0.0), GroupNorm(1, 0.0)):
        answer = op.input_lipschitz(0, [facts((4,), 1.0)], POINT)
        assert not answer.is_finite
        assert "epsilon" in answer.reason
        assert answer.remedy
        assert op.output_facts([facts((4,), math.inf)], POINT).norm.value.value == 2.0
    assert LayerNorm(1, 0.0).input_lipschitz(0, [facts((4, 1), 1.0)], POINT).value.value == 0.0


def test_batch_norm_matches_the_explicit_diagonal() -> None:
    random = np.random.default_rng(0)
    arrays = [random.normal(size=3), random.random(3), random.normal(size=3), random.normal(size=3)]
    mean, variance, scale, bias = arrays
    op = BatchNorm(
        Operand(mean), Operand(variance), 1e-3, Operand(scale, "scale"), Operand(bias, "bias")
    )
    diagonal = np.abs(scale) / np.sqrt(variance + 1e-3)
    x = facts((3, 2, 2), 2.0)
    assert op.input_lipschitz(0, [x], POINT).value.value == pytest.approx(diagonal.max(), rel=1e-14)
    assert op.operator_norm(POINT) == op.input_lipschitz(0, [x], POINT)
    assert op.param_lipschitz([x], POINT)["bias"].value.value == 2.0
    longest = ((2.0 + 2.0 * np.abs(mean)) / np.sqrt(variance + 1e-3)).max()
    assert op.param_lipschitz([x], POINT)["scale"].value.value == pytest.approx(longest, rel=1e-14)
    at_zero = op.output_facts([facts((3, 2, 2), 0.0)], POINT).norm.value.value
    true = np.linalg.norm(op.evaluate(np.zeros((1, 3, 2, 2))))
    assert true * (1 - 1e-14) <= at_zero <= true * (1 + 1e-12)


def test_batch_norm_scale_gradient_uses_the_box() -> None:
    op = batch_norm(2, mean=0.5)
    x = facts((2, 4), 1e6, (0.25, 0.75))
    assert op.param_lipschitz([x], POINT)["scale"].value.value == pytest.approx(0.5, rel=1e-12)


def test_batch_norm_under_constraints() -> None:
    op = batch_norm(4, variance=4.0, mean=0.0, scale=9.0, bias=9.0)
    x = facts((4, 1), 2.0)
    scope = constrained(scale=1.0, bias=3.0)
    assert op.input_lipschitz(0, [x], scope).value.value == pytest.approx(0.5)
    assert op.output_facts([x], scope).norm.value.value == pytest.approx(1.0 + 3.0)
    free = constrained(bias=3.0)
    answer = op.input_lipschitz(0, [x], free)
    assert not answer.is_finite
    assert "scale" in answer.reason
    assert not op.output_facts([x], free).norm.is_finite
    assert op.param_lipschitz([x], free)["scale"].is_finite


def test_layer_norm_under_constraints() -> None:
    op = LayerNorm(1, 0.25, ones(4), ones(4, name="bias"))
    scope = constrained(scale=3.0, bias=0.5)
    x = facts((2, 4), math.inf)
    assert op.input_lipschitz(0, [x], scope).value.value == pytest.approx(6.0)
    expected = 3.0 * math.sqrt(8) + math.sqrt(2) * 0.5
    assert op.output_facts([x], scope).norm.value.value == pytest.approx(expected)
    assert not op.output_facts([x], constrained(scale=1.0)).norm.is_finite


def test_a_variance_close_to_zero_gives_no_silent_bound() -> None:
    with pytest.raises(ValueError, match="variance"):
        batch_norm(2, variance=0.0)
    with pytest.raises(ValueError, match="variance"):
        batch_norm(2, variance=-1e-9, epsilon=1.0)
    with pytest.raises(ValueError, match="too small"):
        batch_norm(2, variance=5e-324)
    steep = batch_norm(2, variance=1e-300, scale=1e300)
    answer = steep.input_lipschitz(0, [facts((2,), 1.0)], POINT)
    assert not answer.is_finite
    assert answer.reason


@pytest.mark.parametrize("epsilon", [-1e-9, math.nan, math.inf])
def test_epsilon_is_checked(epsilon) -> None:
    for make in (
        lambda: LayerNorm(1, epsilon),
        lambda: RmsNorm(1, epsilon),
        lambda: GroupNorm(1, epsilon),
        lambda: batch_norm(2, epsilon=epsilon),
    ):
        with pytest.raises(ValueError, match="epsilon"):
            make()


def test_shapes_are_checked() -> None:
    assert LayerNorm(2, 0.1, ones(3, 4)).output_shape([(2, 3, 4)]) == (2, 3, 4)
    for op, shape in (
        (LayerNorm(3, 0.1), (2, 3)),
        (LayerNorm(0, 0.1), (2, 3)),
        (LayerNorm(1, 0.1, ones(4)), (2, 3)),
        (LayerNorm(1, 0.1, ones(2, 2, 3)), (2, 3)),
        (GroupNorm(2, 0.1), (3, 4)),
        (GroupNorm(2, 0.1, ones(2)), (4, 4)),
        (batch_norm(3), (4, 4)),
        (batch_norm(3), ()),
    ):
        with pytest.raises(ValueError, match=r"."):
            op.output_shape([shape])
    with pytest.raises(ValueError, match="groups"):
        GroupNorm(0, 0.1)
    with pytest.raises(ValueError, match="shape"):
        BatchNorm(ones(2), ones(3), 0.1, ones(2), ones(2))
