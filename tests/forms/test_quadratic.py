"""Quadratic forms of chains against every mask, attacks on the numerics, and the product rule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, CotangentFacts, PairHull
from lipcert.forms.multipliers import tuned
from lipcert.forms.quadratic import Multipliers, QuadraticForm
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops import functions
from lipcert.ops.activation import Activation, PRelu
from lipcert.ops.affine import Scale, Shift
from lipcert.ops.linear import Dense
from lipcert.ops.shape import Reshape
from lipcert.propagation.chains import chains_of
from lipcert.propagation.propagate import backward, forward
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.upper import ONE, Upper
from tests.networks import ball, box, chain, proved, trained

SEEDS = st.integers(0, 2**32 - 1)
RELU_3 = Interval(np.zeros(3), np.ones(3))
HULL = PairHull(4, ONE)


def form_of(links, proposals=None):
    form = QuadraticForm.of(links[0])
    rest = links[1:]
    for link, proposal in zip(rest, proposals or [None] * len(rest), strict=True):
        form = form.through(link, proposal)
    return form


def masked(links, diagonals):
    """The Jacobian of the chain for one choice of the diagonals."""
    diagonals = iter(diagonals)
    total = None
    for link in links:
        matrix = np.diag(next(diagonals)) if isinstance(link, Interval) else link
        total = matrix if total is None else matrix @ total
    return total


def corners(links):
    """The Jacobians of the chain at every corner of the slopes, where suprema are attained."""
    ranges = [link for link in links if isinstance(link, Interval)]
    choices = [itertools.product(*zip(slopes.lo, slopes.hi, strict=True)) for slopes in ranges]
    for diagonals in itertools.product(*choices):
        yield masked(links, [np.array(d) for d in diagonals])


def pair_sup(jacobian, smoothing=0.0):
    """sup ‖Jᵀg‖ over the vertices e_j − t_y."""
    classes = len(jacobian)
    targets = (1 - smoothing) * np.eye(classes) + smoothing / classes
    return max(
        float(np.linalg.norm((np.eye(classes)[j] - targets[y]) @ jacobian))
        for j in range(classes)
        for y in range(classes)
    )


def small_chain(seed, slopes=None, hidden=None):
    rng = np.random.default_rng(seed)
    widths = [int(rng.integers(1, 5)), *(hidden or [int(rng.integers(2, 6)) for _ in range(2)]), 4]
    links = []
    for before, after in itertools.pairwise(widths):
        links += [rng.standard_normal((after, before)), None]
    links = links[:-1]
    for i, link in enumerate(links):
        if link is None:
            size = len(links[i - 1])
            if slopes is None:
                ends = np.sort(rng.uniform(-0.5, 1.5, (2, size)), axis=0)
                ends[:, rng.random(size) < 0.2] = float(rng.integers(0, 2))
            else:
                ends = np.repeat(np.array(slopes)[:, None], size, axis=1)
            links[i] = Interval(ends[0], ends[1])
    return links


@settings(max_examples=35, deadline=None)
@given(
    seed=SEEDS, slopes=st.sampled_from([(0.0, 1.0), (-0.13, 1.13), (-1.0, 1.0), (0.1, 1.0), None])
)
def test_never_below_any_mask(seed, slopes):
    links = small_chain(seed, slopes)
    jacobians = list(corners(links))
    free_ball = max(np.linalg.norm(j, 2) for j in jacobians)
    free_hull = max(map(pair_sup, jacobians))
    start = QuadraticForm.of(links[0]).matrix
    for proposals in (None, tuned(start, links[1:], False), tuned(start, links[1:], True)):
        form = form_of(links, proposals)
        assert form.over_ball().value >= free_ball * (1 - 1e-12)
        assert form.over_hull(HULL).value >= free_hull * (1 - 1e-12)


@settings(max_examples=35, deadline=None)
@given(
    seed=SEEDS,
    ratio=st.sampled_from(
        [np.nan, np.inf, 0.5, 1.0, 1.0 + 1e-15, 1.0 + 1e-9, 1.1, 2.0, 1e6, 1e300]
    ),
)
def test_no_multipliers_are_trusted(seed, ratio):
    links = small_chain(seed, None)
    rng = np.random.default_rng(seed)
    proposals = [
        Multipliers(
            10.0 ** rng.uniform(-12, 12, len(link.lo)) * (rng.random(len(link.lo)) < 0.9), ratio
        )
        if isinstance(link, Interval)
        else None
        for link in links[1:]
    ]
    form = form_of(links, proposals)
    assert form.over_hull(HULL).value >= max(map(pair_sup, corners(links))) * (1 - 1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, smoothing=st.floats(0.0, 0.99))
def test_hull_with_label_smoothing(seed, smoothing):
    links = small_chain(seed, (0.0, 1.0))
    hull = PairHull(4, Upper(2.0), smoothing)
    exact = max(pair_sup(jacobian, smoothing) for jacobian in corners(links))
    assert form_of(links).over_hull(hull).value >= 2.0 * exact * (1 - 1e-12)


def test_hull_of_a_single_matrix_is_exact():
    weight = np.random.default_rng(0).standard_normal((4, 6))
    for smoothing in (0.0, 0.3):
        bound = QuadraticForm.of(weight).over_hull(PairHull(4, ONE, smoothing)).value
        assert bound == pytest.approx(pair_sup(weight, smoothing), rel=1e-9)


def test_tuned_multipliers_are_nearly_exact():
    """Over free masks; random nets of the smallest sizes, where the gap is largest."""
    ratios = []
    for seed in range(40):
        links = small_chain(seed, (0.0, 1.0))
        exact = max(map(pair_sup, corners(links)))
        start = QuadraticForm.of(links[0]).matrix
        bound = form_of(links, tuned(start, links[1:], True)).over_hull(HULL).value
        ratios.append(bound / exact)
    assert np.median(ratios) < 1.02
    assert max(ratios) < 1.3


@pytest.mark.parametrize("slopes", [(0.0, 1.0), (-0.13, 1.13), (-1.0, 1.0), (0.5, 0.5), (0.2, 0.9)])
def test_default_multipliers_are_never_worse_than_the_product(slopes):
    for seed in range(20):
        links = small_chain(seed, slopes)
        product = max(map(abs, slopes)) ** 2
        for link in links:
            product *= 1.0 if isinstance(link, Interval) else np.linalg.norm(link, 2)
        assert form_of(links).over_ball().value <= product * (1 + 1e-6)


def test_diagonal_on_the_identity_is_exact():
    slopes = Interval(np.array([-2.0, 0.0, 0.5, 0.0, -1.0]), np.array([1.0, 1.0, 0.5, 0.0, 3.0]))
    expected = np.diag(np.maximum(np.abs(slopes.lo), np.abs(slopes.hi)) ** 2)
    for form in (QuadraticForm.of(slopes), QuadraticForm.of(np.eye(5)).through(slopes)):
        np.testing.assert_allclose(form.matrix * 4.0**form.scale, expected, atol=1e-6)


@pytest.mark.parametrize("exponent", [-900, -500, -150, 150, 400, 900])
def test_extreme_magnitudes(exponent):
    """The bound scales with the weights, until float64 ends: then there is none."""
    links = small_chain(7, (0.0, 1.0))
    factor = 2.0**exponent
    plain = form_of(links).over_hull(HULL).value
    scaled = form_of([links[0] * factor, *links[1:]]).over_hull(HULL).value
    assert scaled == pytest.approx(plain * factor, rel=1e-12)
    twice = form_of([links[0] * factor, *links[1:-1], links[-1] * factor]).over_hull(HULL)
    assert twice.value >= min(plain, 1.0) * factor * factor
    if exponent == 900:
        assert not twice.is_finite


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, decay=st.floats(0.0, 30.0))
def test_ill_conditioned_matrices(seed, decay):
    """Singular values down to 10^-decay; checked in extended precision."""
    rng = np.random.default_rng(seed)
    first, second = (
        (rng.standard_normal((4, 4)) * 10.0 ** -rng.uniform(0, decay, 4)).astype(np.float64)
        for _ in range(2)
    )
    links = [first, Interval(np.zeros(4), np.ones(4)), second]
    exact = 0.0
    for mask in itertools.product((0.0, 1.0), repeat=4):
        jacobian = second.astype(np.longdouble) @ (np.array(mask)[:, None] * first)
        for j, y in itertools.permutations(range(4), 2):
            difference = jacobian[j] - jacobian[y]
            exact = max(exact, float(np.sqrt(np.sum(difference * difference))))
    assert form_of(links).over_hull(HULL).value >= exact * (1 - 1e-15)


def test_zero_weights_and_dead_units():
    zero = [np.zeros((3, 2)), RELU_3, np.ones((4, 3))]
    assert form_of(zero).over_ball().value == 0.0
    rng = np.random.default_rng(1)
    first, second = rng.standard_normal((3, 2)), rng.standard_normal((4, 3))
    dead = Interval(np.zeros(3), np.array([1.0, 0.0, 1.0]))
    alive = np.array([0, 2])
    small = [first[alive], Interval(np.zeros(2), np.ones(2)), second[:, alive]]
    assert form_of([first, dead, second]).over_hull(HULL).value == pytest.approx(
        form_of(small).over_hull(HULL).value, rel=1e-6
    )
    assert form_of([first, Interval(np.zeros(3), np.zeros(3)), second]).over_ball().value == 0.0


def test_known_slopes_cost_nothing():
    """Slopes in an interval of one ulp act as the matrix they are (batch normalisation)."""
    rng = np.random.default_rng(2)
    first, second = rng.standard_normal((5, 3)), rng.standard_normal((4, 5))
    factors = rng.uniform(0.1, 3.0, 5)
    thin = Interval(factors, factors).widen(1)
    exact = np.linalg.norm(second @ np.diag(factors) @ first, 2)
    assert form_of([first, thin, second]).over_ball().value == pytest.approx(exact, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_reach_holds_for_every_displacement(seed):
    rng = np.random.default_rng(seed)
    weight, offset = rng.standard_normal((4, 3)), rng.standard_normal((1, 4)) * rng.integers(0, 3)
    radius = float(rng.uniform(0.1, 3.0))
    bound = QuadraticForm.of(weight).reach([(Interval.exact(offset), Upper(radius))]).value
    points = rng.standard_normal((2000, 3))
    points *= radius / np.linalg.norm(points, axis=1, keepdims=True)
    for _ in range(100):  # power iteration for the maximum of a convex function on a sphere
        points = (points @ weight.T + offset) @ weight
        points *= radius / np.linalg.norm(points, axis=1, keepdims=True)
    attained = np.max(np.linalg.norm(points @ weight.T + offset, axis=1))
    assert attained * (1 - 1e-12) <= bound <= attained * 1.01 + 1e-12


# Chains in graphs


def relu():
    return Activation(functions.Relu())


def mlp(seed, widths, activation=relu, scale=1.0):
    rng = np.random.default_rng(seed)
    ops = []
    for k, (before, after) in enumerate(itertools.pairwise(widths)):
        weight = scale * rng.standard_normal((after, before)) / np.sqrt(before)
        ops += [Dense(trained(f"w{k}", weight), trained(f"b{k}", 0.3 * rng.standard_normal(after)))]
        ops += [activation()]
    return chain((widths[0],), *ops[:-1])


def pair_loss(classes):
    hull = PairHull(classes, ONE)
    return lambda _logits: CotangentFacts(Bound(Upper(2.0).sqrt(), "test.loss"), hull)


def product_rule(graph, inputs, loss, scope=None):
    """Facts and cotangents without chains."""
    scope = scope or PointScope(Tier.FAST)
    facts = forward(graph, inputs, scope)
    return facts, backward(graph, facts, loss(facts[graph.output_name]), scope)


@pytest.mark.parametrize(
    "activation",
    [
        relu,
        lambda: Activation(functions.Gelu()),
        lambda: Activation(functions.LeakyRelu(0.1)),
        lambda: Activation(functions.Tanh()),
        lambda: Activation(functions.Abs()),
        lambda: Activation(functions.Silu()),
    ],
)
def test_networks_are_never_worse_and_usually_better(activation):
    for seed in range(3):
        graph = mlp(seed, [6, 12, 9, 4], activation)
        inputs = box((6,), 0.0, 1.0)
        facts, cotangents = product_rule(graph, inputs, pair_loss(4))
        bounds = proved(graph, inputs, pair_loss(4))
        for name, known in bounds.facts.items():
            assert known.norm.value <= facts[name].norm.value
            assert np.all(known.box.lo >= facts[name].box.lo)
        for name, known in bounds.cotangents.items():
            assert known.norm.value <= cotangents[name].norm.value
        assert bounds.cotangents["x"].norm.value.value < 0.999 * cotangents["x"].norm.value.value


@pytest.mark.parametrize("activation", [relu, lambda: Activation(functions.Gelu())])
def test_jacobians_of_real_inputs_stay_below(activation):
    graph = mlp(3, [5, 16, 16, 16, 4], activation, scale=1.5)
    inputs = box((5,), -1.0, 1.0)
    bounds = proved(graph, inputs, pair_loss(4))
    rng = np.random.default_rng(0)
    step = 1e-6
    largest = dict.fromkeys(["x", *(f"v{i}" for i in range(len(graph.nodes)))], 0.0)
    for x in rng.uniform(-1.0, 1.0, (200, 5)):
        values = {"x": x}
        jacobian = np.eye(4)
        for node in graph.nodes:
            values[node.output] = node.op.evaluate(values[node.inputs[0]][None])[0]
        for node in reversed(graph.nodes):
            below = values[node.inputs[0]]
            if isinstance(node.op, Dense):
                jacobian = jacobian @ node.op.weight.array
            else:
                shifted = node.op.evaluate(np.stack([below - step, below + step]))
                jacobian = jacobian * ((shifted[1] - shifted[0]) / (2 * step))
            found = max(np.linalg.norm(a - b) for a, b in itertools.combinations(jacobian, 2))
            largest[node.inputs[0]] = max(largest[node.inputs[0]], found)
    for name, found in largest.items():
        assert found <= bounds.cotangents[name].norm.value.value * (1 + 1e-6)


def test_constraint_sets_use_no_chain():
    graph = mlp(0, [5, 8, 8, 3])
    inputs = ball((5,), 1.0)
    trainable = frozenset(graph.parameters)
    limits = {name: Constraint(ConstraintKind.SPECTRAL, ONE) for name in trainable}
    scope = ConstraintScope(limits, trainable, Tier.FAST)
    facts, cotangents = product_rule(graph, inputs, pair_loss(3), scope)
    bounds = proved(graph, inputs, pair_loss(3), scope)
    assert not list(chains_of(graph, facts, scope))
    for name, known in bounds.cotangents.items():
        assert known.norm == cotangents[name].norm
    for name, known in bounds.facts.items():
        assert known.norm == facts[name].norm


def test_branches_end_a_chain():
    from lipcert.ops.combine import Add
    from tests.networks import dag

    rng = np.random.default_rng(0)
    dense = [Dense(trained(f"w{k}", rng.standard_normal((4, 4)))) for k in range(4)]
    graph = dag(
        (4,),
        [
            ("a", dense[0], ("x",)),
            ("b", relu(), ("a",)),
            ("c", dense[1], ("b",)),
            ("d", Add((1.0, 1.0)), ("a", "c")),
            ("e", dense[2], ("d",)),
            ("f", dense[3], ("e",)),
        ],
    )
    facts = forward(graph, ball((4,), 1.0), PointScope(Tier.FAST))
    found = [
        [node.output for node in c.nodes] for c in chains_of(graph, facts, PointScope(Tier.FAST))
    ]
    assert found == [["e", "f"]]
    bounds = proved(graph, ball((4,), 1.0))
    joint = np.linalg.norm(dense[3].weight.array @ dense[2].weight.array, 2)
    assert bounds.cotangents["d"].norm.value.value == pytest.approx(joint, rel=1e-6)


def test_output_that_is_read_again_ends_a_chain():
    from lipcert.ir import Graph

    graph = mlp(0, [4, 5, 4])
    cut = Graph("x", (4,), "v0", graph.nodes, graph.parameters)
    facts = forward(cut, ball((4,), 1.0), PointScope(Tier.FAST))
    assert all(
        "v0" not in [n.inputs[0] for n in c.nodes[1:]]
        for c in chains_of(cut, facts, PointScope(Tier.FAST))
    )


def test_positions_share_a_form():
    """Dense layers at P positions: the same bound as at one, for a ball of cotangents."""
    rng = np.random.default_rng(0)
    first, second = (
        trained("a", rng.standard_normal((6, 3))),
        trained("b", rng.standard_normal((4, 6))),
    )
    single = chain((3,), Dense(first), relu(), Dense(second))
    many = chain((5, 3), Dense(first), relu(), Dense(second))
    one = proved(single, ball((3,), 1.0)).lipschitz.value.value
    assert proved(many, ball((5, 3), 1.0)).lipschitz.value.value == pytest.approx(one, rel=1e-9)
    assert one < 0.99 * np.linalg.norm(first.array, 2) * np.linalg.norm(second.array, 2)


def test_runs_of_different_length_meet_across_a_reshape():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((3, 2)), rng.standard_normal((4, 15))
    graph = chain((5, 2), Dense(trained("a", first)), Reshape((15,)), Dense(trained("b", second)))
    exact = np.linalg.norm(second @ np.kron(np.eye(5), first), 2)
    assert proved(graph, ball((5, 2), 1.0)).lipschitz.value.value == pytest.approx(exact, rel=1e-6)


def test_diagonals_between_matrices_are_one_linear_map():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((6, 3)), rng.standard_normal((4, 6))
    factor = rng.uniform(-2.0, 2.0, 6)
    graph = chain(
        (3,),
        Dense(trained("a", first)),
        Scale(trained("s", factor)),
        Shift(trained("t", rng.standard_normal(6))),
        Dense(trained("b", second)),
    )
    exact = np.linalg.norm(second @ np.diag(factor) @ first, 2)
    assert proved(graph, ball((3,), 1.0)).lipschitz.value.value == pytest.approx(exact, rel=1e-6)


def test_prelu_slopes_are_a_range():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((4, 3)), rng.standard_normal((4, 4))
    slope = np.array([-0.5, 0.0, 0.3, 1.7])
    graph = chain(
        (3,), Dense(trained("a", first)), PRelu(Operand(slope, "p")), Dense(trained("b", second))
    )
    links = [first, Interval(np.minimum(slope, 1.0), np.maximum(slope, 1.0)), second]
    exact = max(np.linalg.norm(jacobian, 2) for jacobian in corners(links))
    assert exact <= proved(graph, ball((3,), 1.0)).lipschitz.value.value <= 1.2 * exact


def test_wide_chains_are_left_alone():
    weight = Operand(np.ones((1500, 1500)), "w")
    graph = chain((1500,), Dense(weight), relu(), Dense(weight), relu(), Dense(weight))
    facts = forward(graph, ball((1500,), 1.0), PointScope(Tier.QUICK))
    found = list(chains_of(graph, facts, PointScope(Tier.QUICK)))
    assert not any(max(c.sizes) > 1024 and len(c.nodes) > 2 for c in found)


def test_convolutions_and_means_are_matrices():
    from lipcert.geometry import Window
    from lipcert.ops.conv import Conv
    from lipcert.ops.pooling import AveragePool

    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((3, 2, 3, 3))
    window, pool = Window(6, 3, 1, 1, 1, 1), Window(6, 3, 3)
    conv = Conv(trained("k", kernel), trained("b", rng.standard_normal(3)), (window, window))
    mean = AveragePool((pool, pool), ((3, 3), (3, 3)))
    dense = Dense(trained("w", rng.standard_normal((4, 12))))
    graph = chain((2, 6, 6), conv, mean, Reshape((12,)), dense)
    basis = np.eye(72).reshape(72, 2, 6, 6)
    constant = Conv(conv.weight, None, conv.geometry)
    images = mean.evaluate(constant.evaluate(basis)).reshape(72, 12) @ dense.weight.array.T
    exact = np.linalg.norm(images, 2)
    bounds = proved(graph, ball((2, 6, 6), 1.0))
    assert bounds.lipschitz.value.value == pytest.approx(exact, rel=1e-6)
    assert bounds.lipschitz.value.value >= exact * (1 - 1e-12)
