"""Centred bounds against sampled and ascended inputs, and against plain propagation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.ir import evaluate
from lipcert.norms.operator_norm import Tier
from lipcert.ops import functions
from lipcert.ops.activation import Activation
from lipcert.ops.affine import Scale, Shift
from lipcert.ops.linear import Dense
from lipcert.ops.shape import Reshape
from lipcert.ops.sorting import Sort
from lipcert.propagation.centred import EnclosingBall, centred_facts
from lipcert.propagation.chains import Chains
from lipcert.propagation.propagate import forward
from lipcert.scope import PointScope
from lipcert.upper import Upper
from tests.networks import ball, box, chain, orthogonal, proved, trained

SEEDS = st.integers(0, 2**32 - 1)


def domain(low, high, radius):
    interval = Interval(np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64))
    norm = Bound(Upper(radius), "test.input", "" if math.isfinite(radius) else "none")
    return ValueFacts.of(interval.shape, norm, interval)


def members(facts, count, rng):
    """Points of the box and of its corners, pulled towards the point of least norm until inside."""
    lo, hi = facts.box.lo, facts.box.hi
    points = rng.uniform(lo, hi, (count, *facts.shape))
    corner = rng.random((count // 2, *facts.shape)) < rng.random(
        (count // 2, *[1] * len(facts.shape))
    )
    points[: count // 2] = np.where(corner, lo, hi)
    least = np.clip(0.0, lo, hi)
    radius = facts.norm.value.value
    for _ in range(60):
        outside = np.linalg.norm(points.reshape(count, -1), axis=1) > radius
        points[outside] = least + 0.97 * (points[outside] - least)
    return points[np.linalg.norm(points.reshape(count, -1), axis=1) <= radius]


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, share=st.floats(0.0, 1.0))
def test_the_ball_holds_the_box_cut_by_the_norm(seed, share):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6))
    ends = np.sort(rng.uniform(-2, 2, (2, size)) + rng.integers(0, 2) * rng.uniform(-2, 2), axis=0)
    least, most = np.linalg.norm(np.clip(0.0, *ends)), np.linalg.norm(np.abs(ends).max(axis=0))
    facts = domain(*ends, float(rng.uniform(least, most)) + 1e-9)
    points = members(facts, 200, rng)
    for candidate in (EnclosingBall.of(facts, share), *EnclosingBall.several(facts)):
        if candidate is None or not len(points):
            continue
        assert np.all(candidate.centre >= facts.box.lo)
        assert np.all(candidate.centre <= facts.box.hi)
        assert np.linalg.norm(candidate.centre) <= facts.norm.value.value * (1 + 1e-15)
        distances = np.linalg.norm(points - candidate.centre, axis=1)
        assert np.max(distances) <= candidate.radius.value * (1 + 1e-14)


def test_the_ball_around_a_cube_is_the_smallest():
    """[0, 1]^n with ‖x‖ ≤ R: the points with R² ones lie on a sphere of radius R·√(1 − R²/n)."""
    facts = domain(np.zeros(64), np.ones(64), 4.0)
    smallest = min(ball.radius.value for ball in EnclosingBall.several(facts))
    assert smallest == pytest.approx(4.0 * math.sqrt(1 - 16 / 64), rel=1e-12)
    around_box = EnclosingBall.several(domain(np.zeros(64), np.ones(64), math.inf))
    assert min(ball.radius.value for ball in around_box) == pytest.approx(4.0, rel=1e-12)


def test_no_ball_without_a_domain():
    unknown = ValueFacts.of((3,), Bound(Upper(math.inf), "test", "nothing is known"))
    assert EnclosingBall.several(unknown) == []


def random_network(seed):
    rng = np.random.default_rng(seed)
    widths = [int(rng.integers(2, 6)) for _ in range(4)]
    activation = [functions.Relu(), functions.Gelu(), functions.Tanh(), functions.LeakyRelu(-0.5)]
    ops = [
        Scale(trained("s", rng.uniform(0.5, 2.0, 1))),
        Shift(trained("t", rng.standard_normal(1))),
    ]
    for k, (before, after) in enumerate(itertools.pairwise(widths)):
        weight = 2.0 * rng.standard_normal((after, before)) / np.sqrt(before)
        ops += [
            Dense(trained(f"w{k}", weight), trained(f"b{k}", rng.standard_normal(after))),
            Activation(activation[int(rng.integers(4))]),
        ]
    graph = chain((1, widths[0]), Reshape((widths[0],)), *ops)
    ends = np.sort(rng.uniform(-1.5, 1.5, (2, 1, widths[0])), axis=0)
    most = np.linalg.norm(np.abs(ends).max(axis=0))
    least = np.linalg.norm(np.clip(0.0, *ends))
    return graph, domain(*ends, float(rng.uniform(least, most)) + 1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_facts_hold_and_are_never_worse(seed):
    graph, inputs = random_network(seed)
    scope = PointScope(Tier.FAST)
    plain = forward(graph, inputs, scope)
    facts = proved(graph, inputs).facts
    points = members(inputs, 400, np.random.default_rng(seed))
    values = evaluate(graph, points) if len(points) else {}
    for name, known in facts.items():
        assert known.norm.value.value <= plain[name].norm.value.value * (1 + 1e-14)
        if name in values:
            flat = values[name].reshape(len(points), -1)
            assert np.max(np.linalg.norm(flat, axis=1)) <= known.norm.value.value * (1 + 1e-12)
            assert np.all(values[name] >= known.box.lo - 1e-12 * np.abs(known.box.lo) - 1e-300)
            assert np.all(values[name] <= known.box.hi + 1e-12 * np.abs(known.box.hi) + 1e-300)


def test_large_biases_no_longer_add_up():
    """Layers that shift far away from 0 and back: the product rule adds the shifts, or boxes."""
    first, second, third = (orthogonal(32, k) for k in range(3))
    far = 100.0 * np.ones(32)
    graph = chain(
        (32,),
        Dense(trained("w0", first), trained("b0", far)),
        Activation(functions.Relu()),
        Dense(trained("w1", second), trained("b1", -second @ far)),
        Activation(functions.Relu()),
        Dense(trained("w2", third)),
    )
    inputs = ball((32,), 1.0)
    assert forward(graph, inputs, PointScope(Tier.FAST))["v4"].norm.value.value > 5.0
    assert proved(graph, inputs).facts["v4"].norm.value.value < 1.01


def test_bias_free_orthogonal_networks_stay_exact():
    ops = [op for k in range(3) for op in (Dense(trained(f"w{k}", orthogonal(6, k))), Sort(0))]
    bounds = proved(chain((6,), *ops), ball((6,), 2.0))
    for known in bounds.facts.values():
        assert known.norm.value.value == pytest.approx(2.0, rel=1e-6)


def test_nothing_without_a_chain_at_the_input():
    graph = chain((6,), Sort(0), Dense(trained("w", orthogonal(6, 0))))
    scope = PointScope(Tier.FAST)
    facts = forward(graph, ball((6,), 1.0), scope)
    assert centred_facts(graph, facts, scope, Chains.of(graph, facts, scope)) == {}


@pytest.mark.parametrize("exponent", [-160, 120, 200, 300])
def test_extreme_magnitudes(exponent):
    factor = 10.0**exponent
    weights = [np.random.default_rng(k).standard_normal((4, 4)) for k in range(2)]

    def network(scale):
        return chain(
            (4,),
            Dense(trained("w0", scale * weights[0]), trained("b0", scale * np.ones(4))),
            Activation(functions.Relu()),
            Dense(trained("w1", weights[1])),
        )

    inputs = box((4,), 0.0, 1.0)
    plain = proved(network(1.0), inputs).facts["v2"].norm.value.value
    scaled = proved(network(factor), inputs).facts["v2"].norm.value.value
    assert scaled >= 0.5 * plain * factor
    assert scaled <= 2.0 * plain * factor
