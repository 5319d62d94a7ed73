"""Softmax and LogSoftmax: the exact suprema, boxes from the spread of the logits, the hull."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, CotangentFacts, PairHull, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.ops.softmax import LogSoftmax, Softmax
from lipcert.scope import PointScope
from lipcert.upper import ONE, Upper

POINT = PointScope(Tier.QUICK)


def ball(shape, radius) -> ValueFacts:
    return ValueFacts.of(shape, Bound(Upper(radius), "test", "x" if math.isinf(radius) else ""))


def probabilities(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


@given(
    logits=st.lists(st.integers(-300, 300), min_size=2, max_size=9),
)
@settings(max_examples=60, deadline=None)
def test_jacobian_norms_over_the_smallest_ball_and_box(logits) -> None:
    """The domain is the sphere through the point, then the box through it."""
    z = np.array(logits) / 10
    p = probabilities(z)
    classes = len(z)
    soft = np.linalg.norm(np.diag(p) - np.outer(p, p), 2)
    log = np.linalg.norm(np.eye(classes) - np.outer(np.ones(classes), p), 2)
    whole = Bound(Upper(float(np.linalg.norm(z)) * (1 + 1e-12)), "test")
    for facts in (
        ValueFacts.of(z.shape, whole),
        ValueFacts.of(
            z.shape, whole, Interval(np.full(classes, z.min()), np.full(classes, z.max()))
        ),
    ):
        slack = 1 + 1e-9
        assert soft <= Softmax(-1).input_lipschitz(0, [facts], POINT).value.value * slack
        assert log <= LogSoftmax(-1).input_lipschitz(0, [facts], POINT).value.value * slack
        share, log_share = (op(-1).output_facts([facts], POINT) for op in (Softmax, LogSoftmax))
        assert np.all(p <= share.box.hi * slack)
        assert np.all(p >= share.box.lo / slack)
        assert np.linalg.norm(p) <= share.norm.value.value * slack
        logarithms = z - z.max() - np.log(np.exp(z - z.max()).sum())
        assert np.all(logarithms >= log_share.box.lo - 1e-9)
        assert np.all(logarithms <= log_share.box.hi + 1e-9)
        assert np.linalg.norm(logarithms) <= log_share.norm.value.value * slack


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_unbounded_logits_give_the_suprema(classes) -> None:
    facts = ball((classes,), math.inf)
    assert Softmax(-1).input_lipschitz(0, [facts], POINT).value.value == 0.5
    log = LogSoftmax(-1).input_lipschitz(0, [facts], POINT).value.value
    assert math.sqrt(classes) <= log <= math.sqrt(classes) * (1 + 1e-15)
    assert Softmax(-1).output_facts([facts], POINT).norm.value.value == 1.0
    unknown = LogSoftmax(-1).output_facts([facts], POINT).norm
    assert not unknown.is_finite
    assert unknown.reason


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_equal_logits_give_the_least_answers(classes) -> None:
    facts = ball((4, classes), 0.0)
    root = math.sqrt(classes)
    close = {"rel": 1e-12}
    assert LogSoftmax(-1).input_lipschitz(0, [facts], POINT).value.value == pytest.approx(
        1, **close
    )
    soft = Softmax(-1).input_lipschitz(0, [facts], POINT).value.value
    assert soft == pytest.approx(1 / classes, **close)
    norm = Softmax(-1).output_facts([facts], POINT).norm.value.value
    assert norm == pytest.approx(2 / root, **close)
    log_norm = LogSoftmax(-1).output_facts([facts], POINT).norm.value.value
    assert log_norm == pytest.approx(2 * root * math.log(classes), **close)


def test_the_largest_probability_on_a_ball_is_exact() -> None:
    """Jensen's bound is attained at z proportional to e_1 - 1/n."""
    classes, radius = 7, 2.5
    z = np.full(classes, -1.0 / classes)
    z[0] += 1.0
    p = probabilities(z * radius / np.linalg.norm(z))
    share = Softmax(-1).output_facts([ball((classes,), radius)], POINT).box
    assert p[0] == pytest.approx(float(share.hi[0]), rel=1e-12)


def test_slices_along_other_axes_and_single_classes() -> None:
    facts = ball((3, 4), math.inf)
    root = Softmax(0).output_facts([facts], POINT).norm.value.value
    assert 2.0 <= root <= 2.0 * (1 + 1e-12)
    for op in (Softmax(0), LogSoftmax(0)):
        assert op.input_lipschitz(0, [ball((1, 5), 3.0)], POINT).value.value == 0.0
    assert LogSoftmax(0).output_facts([ball((1, 5), 3.0)], POINT).norm.value.value <= 1e-300


def test_log_softmax_keeps_a_hull_of_logit_gradients() -> None:
    hull = CotangentFacts(Bound(Upper(1.5), "loss"), PairHull(5, ONE))
    op = LogSoftmax(-1)
    assert op.input_cotangent(0, hull, [ball((5,), 3.0)], POINT) is hull
    assert op.input_cotangent(0, hull, [ball((1, 5), 3.0)], POINT) is hull
    several = op.input_cotangent(0, hull, [ball((2, 5), 3.0)], POINT)
    assert several.hull is None
    plain = CotangentFacts(Bound(Upper(1.5), "loss"))
    through = op.input_cotangent(0, plain, [ball((5,), math.inf)], POINT)
    assert through.norm.value.value == pytest.approx(1.5 * math.sqrt(5))


@given(st.integers(2, 12), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 0.5]))
def test_members_of_the_hull_pass_unchanged(classes, seed, smoothing) -> None:
    random = np.random.default_rng(seed)
    z = random.normal(size=classes) * 5
    weights = random.dirichlet(np.ones(classes), size=2)
    target = (1 - smoothing) * weights[1] + smoothing / classes
    g = weights[0] - target
    jacobian = np.eye(classes) - np.outer(np.ones(classes), probabilities(z))
    np.testing.assert_allclose(jacobian.T @ g, g, atol=1e-12)


def test_the_axis_is_checked() -> None:
    assert Softmax(1).output_shape([(2, 3)]) == (2, 3)
    for axis in (2, -3):
        with pytest.raises(ValueError, match="axis"):
            Softmax(axis).output_shape([(2, 3)])
        with pytest.raises(ValueError, match="axis"):
            LogSoftmax(axis).output_shape([(2, 3)])


@given(
    logits=st.lists(st.integers(-300, 300), min_size=2, max_size=9),
    label=st.integers(0, 8),
    shrunk=st.floats(0.0, 1.0),
)
@settings(max_examples=100, deadline=None)
def test_a_single_entry_becomes_a_softmax_error(logits, label, shrunk) -> None:
    """Jᵀ(−t·e_y) = t(p − e_y), over the smallest ball and box around the logits."""
    z = np.array(logits) / 10
    classes, y = len(z), label % len(z)
    p = probabilities(z)
    jacobian = np.eye(classes) - np.outer(np.ones(classes), p)
    found = jacobian.T @ (-0.75 * shrunk * np.eye(classes)[y])
    whole = Bound(Upper(float(np.linalg.norm(z)) * (1 + 1e-12)), "test")
    box = Interval(np.full(classes, z.min()), np.full(classes, z.max()))
    at_output = CotangentFacts(Bound(Upper(0.75), "test"), label=Upper(0.75))
    for facts in (ValueFacts.of(z.shape, whole), ValueFacts.of(z.shape, whole, box)):
        below = LogSoftmax(-1).input_cotangent(0, at_output, [facts], POINT)
        assert np.linalg.norm(found) <= below.norm.value.value * (1 + 1e-12)
        assert below.hull.classes == classes
        assert found.clip(0.0).sum() <= below.hull.scale.value * (1 + 1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_a_single_entry_behind_unbounded_and_equal_logits(classes) -> None:
    """√2 and ‖1/n − e_y‖, as for the cross-entropy of the logits."""
    at_output = CotangentFacts(Bound(ONE, "test"), label=ONE)
    for radius, truth in ((math.inf, math.sqrt(2.0)), (0.0, math.sqrt(1.0 - 1.0 / classes))):
        facts = ball((1, classes), radius)
        below = LogSoftmax(-1).input_cotangent(0, at_output, [facts], POINT)
        assert truth <= below.norm.value.value * (1 + 1e-15)
        assert below.norm.value.value == pytest.approx(truth, rel=1e-12)


def test_a_single_entry_of_several_slices_is_not_taken_for_a_softmax_error() -> None:
    at_output = CotangentFacts(Bound(ONE, "test"), label=ONE)
    below = LogSoftmax(-1).input_cotangent(0, at_output, [ball((4, 3), math.inf)], POINT)
    assert below.hull is None
    assert below.norm.value.value == pytest.approx(math.sqrt(3.0))
