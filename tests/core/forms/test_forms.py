"""Forms of chains, against every mask of small networks and sampled slopes."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.forms.chain import Form, at_the_bottom, chain_form
from lipcert.core.forms.descent import inequality_of
from lipcert.core.forms.links import Diagonal, Edge, Matrix, links_of
from lipcert.core.interval import Interval, exact
from lipcert.core.lines.balls import Ball, enclosing_ball, fact_around, reach
from lipcert.core.lines.several_inputs import side_by_side
from lipcert.core.norms.claim import Definite, is_semidefinite, lowered
from lipcert.core.norms.float_engine import definite_float
from lipcert.core.norms.integer_engine import definite_exact
from lipcert.core.program import Activation, Dense, Operand, Shape, Step
from lipcert.core.rules.facts import Fact, Hull
from lipcert.search.forms import Spectra
from lipcert.search.multipliers import Linked, multipliers
from tests.core.forged import proved

BOTH = pytest.mark.parametrize("proof", [definite_float, definite_exact])


class Network:
    """A chain of matrices and slopes from below, as steps of the checker."""

    def __init__(self, links, positions: int = 1) -> None:
        self.links = links
        self.steps: list[Step] = []
        self.shapes: dict[str, Shape] = {}
        self.slopes: dict[str, Interval] = {}
        first = links[0]
        width = len(first.lo) if isinstance(first, Interval) else first.shape[1]
        value = "x"
        self.shapes[value] = (1, positions, width)
        for number, link in enumerate(links):
            output = f"v{number}"
            if isinstance(link, Interval):
                op = Activation("relu")
                self.slopes[output] = Interval(link.lo[None, None], link.hi[None, None])
            else:
                op, width = Dense(Operand(link, link), None), len(link)
            self.shapes[output] = (1, positions, width)
            self.steps.append(Step(op, (value,), output, self.shapes[output], number))
            value = output

    def numbers(self, hull: bool):
        """Multipliers that are worth something."""
        linked = links_of("x", self.steps, self.shapes, self.slopes, ())
        found = multipliers(Linked(at_the_bottom(linked[0])), hull=hull)
        return found[0]

    def form(self, numbers, proof: Definite) -> Form:
        return chain_form("x", self.steps, self.shapes, self.slopes, numbers, proof=proof)

    def jacobians(self, rng: np.random.Generator, most: int) -> list[np.ndarray]:
        """With slopes at their ends: all of them, or as many as asked for, drawn by chance."""
        diagonals = [link for link in self.links if isinstance(link, Interval)]
        free = sum(len(link.lo) for link in diagonals)
        if 2**free <= most:
            choices = [np.array(c) for c in itertools.product((0, 1), repeat=free)]
        else:
            choices = list(rng.integers(0, 2, (most, free)))
        return [self._jacobian(choice) for choice in choices]

    def _jacobian(self, choice: np.ndarray) -> np.ndarray:
        result, used = None, 0
        for link in self.links:
            if isinstance(link, Interval):
                part = choice[used : used + len(link.lo)]
                used += len(link.lo)
                matrix = np.diag(np.where(part == 1, link.hi, link.lo))
            else:
                matrix = link
            result = matrix if result is None else matrix @ result
        assert result is not None
        return result


def random_links(rng: np.random.Generator, widths, mixed: bool) -> list:
    """Dense layers with slopes between them; mixed: with known ones, other ranges, at both ends."""
    links: list[np.ndarray | Interval] = []
    for below, above in itertools.pairwise(widths):
        links.append(rng.standard_normal((above, below)))
        low, high = np.zeros(above), np.ones(above)
        if mixed:
            low = rng.choice([0.0, 0.1, -0.3, 1.0, 0.0], above)
            high = low + rng.choice([1.0, 0.0, 0.5, 1e-16], above)
        links.append(Interval(low, high))
    return links if mixed else links[:-1]


@BOTH
@pytest.mark.sample(seed=1)
@pytest.mark.parametrize("seed", range(12))
def test_every_mask(proof: Definite, seed: int) -> None:
    """No Jacobian of a small network exceeds the form: norm, hull, entries, cotangents."""
    rng = np.random.default_rng(seed)
    network = Network(random_links(rng, (3, 4, 3, 3), mixed=seed % 2 == 1))
    numbers = network.numbers(hull=seed % 3 == 0)
    form = network.form(numbers, proof)
    hull = Hull(3, 0.75, 0.25)
    tried = (proved(network.form, network.numbers(hull=h), proof) for h in (False, True))
    others = [other for other in tried if other is not None]
    assert form.over_hull(hull, *others) <= min(one.over_hull(hull) for one in (form, *others))
    smoothed = 0.75 * np.eye(3) + 0.25 / 3
    for jacobian in network.jacobians(rng, 1 << 7):
        norm = np.linalg.norm(jacobian, 2)
        assert norm <= Spectra().norm(form) * (1 + 1e-12)
        assert np.linalg.eigvalsh(form.matrix - jacobian @ jacobian.T)[0] >= -1e-13 * norm**2
        differences = np.eye(3)[:, :, None] - smoothed[None]  # j, class, y
        vertices = np.moveaxis(differences, 1, 0).reshape(3, -1)
        largest = 0.75 * np.linalg.norm(jacobian.T @ vertices, axis=0).max()
        assert largest <= form.over_hull(hull) * (1 + 1e-12)
        assert largest <= form.over_hull(hull, *others) * (1 + 1e-12)
        assert (np.linalg.norm(jacobian, axis=1) * 2.0 <= form.swing(2.0) * (1 + 1e-12)).all()
    assert Spectra().norm(form) <= math.prod(
        np.linalg.norm(link, 2) if isinstance(link, np.ndarray) else link.magnitude().max()
        for link in network.links
    ) * (1 + 1e-6)


@given(st.integers(0, 10**6), st.floats(-12.0, 12.0), st.floats(0.0, 3.0))
def test_garbage_proves_nothing_false(seed: int, size: float, spread: float) -> None:
    """Multipliers by chance: no form, or a valid one."""
    rng = np.random.default_rng(seed)
    network = Network(random_links(rng, (2, 3, 3, 2), mixed=seed % 2 == 0))
    numbers = [
        list(10.0 ** (size + spread * rng.standard_normal(len(link.lo))))
        for link in network.links
        if isinstance(link, Interval)
    ]
    form = proved(network.form, numbers, definite_float)
    if form is not None:
        largest = max(np.linalg.norm(j, 2) for j in network.jacobians(rng, 1 << 6))
        assert largest <= Spectra().norm(form) * (1 + 1e-12)


@pytest.mark.parametrize("wrong", [[], [[]], [[1.0]], [[1.0] * 4] * 2, [[-1.0] * 4], [[0.0] * 4],
                                   [[math.nan] * 4], [[math.inf] * 4], [[1e-300] * 4],
                                   [[1e300] * 4]])  # fmt: skip
def test_unusable_multipliers(wrong: list[list[float]]) -> None:
    """Too few, too many, of the wrong size, not positive, not moderate."""
    rng = np.random.default_rng(0)
    network = Network(random_links(rng, (3, 4, 2), mixed=False))
    assert proved(network.form, wrong, definite_float) is None
    network.form([[100.0] * 4], definite_float)


def test_a_product_of_matrices() -> None:
    """Without slopes the form is the Gram matrix: its norm is attained to 1e-9."""
    rng = np.random.default_rng(5)
    links = [rng.standard_normal((7, 5)), rng.standard_normal((4, 7)), rng.standard_normal((6, 4))]
    form = Network(links).form([], definite_float)
    exact_norm = np.linalg.norm(links[2] @ links[1] @ links[0], 2)
    assert exact_norm <= Spectra().norm(form) <= exact_norm * (1 + 1e-9)
    assert form.has_norm(exact_norm * (1 + 1e-9))
    assert not any(map(form.has_norm, (0.0, 5e-324, 0.5 * exact_norm, exact_norm * (1 - 1e-9))))
    assert form.has_norm(1e300)


def test_rounding_of_a_long_sum() -> None:
    """Of squares that add nothing to a sum in float64, in a row much longer than all else."""
    row = np.append(np.full(64, 2.0**10), np.full(99_936, 0.7 * 2.0**-16))
    found, error = inequality_of([Edge(("v", 0), ("v", 1), Matrix(exact(row[None])))], 1)
    assert sum(Fraction(x) ** 2 for x in row.tolist()) + Fraction(found[0, 0]) <= error[0, 0]


def test_slopes_at_both_ends() -> None:
    """At the bottom slopes count with their largest magnitude; at the top as any others."""
    rng = np.random.default_rng(6)
    low, high = -rng.random(5), rng.random(5)
    bottom = Interval(low, high)
    weight = rng.standard_normal((3, 5))
    form = Network([bottom, weight]).form([[]], definite_exact)
    exact_norm = np.linalg.norm(weight * np.maximum(-low, high), 2)
    assert exact_norm <= Spectra().norm(form) <= exact_norm * (1 + 1e-9)
    top = Network([weight, Interval(np.zeros(3), np.ones(3))])
    form = top.form([[2.0 * np.linalg.norm(weight, 2) ** 2] * 3], definite_exact)
    assert Spectra().norm(form) == pytest.approx(np.linalg.norm(weight, 2), rel=1e-6)


def test_positions_are_runs() -> None:
    """A network that treats several positions alike has the form of one position."""
    rng = np.random.default_rng(7)
    links = random_links(rng, (3, 5, 4), mixed=False)
    numbers = Network(links).numbers(hull=False)
    one, several = (Network(links, n).form(numbers, definite_float) for n in (1, 6))
    assert several.runs == 6
    assert Spectra().norm(several) == Spectra().norm(one)
    assert several.over_hull(Hull(4, 1.0)) == math.inf


def reached(form: Form, value: Interval, radius: float) -> float:
    """The lesser of what a good level proves and of what the norm of the form does."""
    near = Spectra().norm(form) * radius + float(np.linalg.norm(value.magnitude()))
    level = Spectra().level(form, value, radius)
    return near if level is None else min(near, reach(form, value, radius, level))


@pytest.mark.parametrize("factor", [1e-300, 0.5, 0.999, 1.001, 2.0, 1e300])
def test_a_level_at_most_the_largest_eigenvalue_proves_nothing(factor: float) -> None:
    weight = np.random.default_rng(4).standard_normal((4, 6))
    form = Network([weight]).form([], definite_float)
    offset = np.full((1, 4), 0.5)
    level = factor * np.linalg.norm(weight, 2) ** 2
    found = reach(form, exact(offset), 1.5, level)
    assert found >= _farthest(weight, offset.ravel(), 1.5) * (1 - 1e-12)
    assert (found < math.inf) == (factor > 1.0)


@BOTH
@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e6])
def test_reach_of_a_matrix(proof: Definite, runs: int, size: float) -> None:
    """For one matrix the reach is a trust-region problem: attained to 1e-3, never exceeded."""
    rng = np.random.default_rng(8)
    weight = rng.standard_normal((4, 6))
    form = Network([weight], runs).form([], proof)
    offset = size * rng.standard_normal((runs, 4))
    bound = reached(form, exact(offset), 1.5)
    matrix = np.kron(np.eye(runs), weight)
    best = _farthest(matrix, offset.ravel(), 1.5)
    assert best <= bound * (1 + 1e-12)
    assert bound <= best * (1 + 2e-3)
    wide = Interval(offset - 0.01, offset + 0.01)
    assert reached(form, wide, 1.5) >= _farthest(matrix, offset.ravel() + 0.01, 1.5)


def _farthest(matrix: np.ndarray, offset: np.ndarray, radius: float) -> float:
    """The largest ‖offset + matrix·d‖ found over ‖d‖ = radius, among the stationary points."""
    gram = matrix @ matrix.T
    values, vectors = np.linalg.eigh(gram)
    best = float(
        np.linalg.norm(offset + radius * matrix @ (matrix.T @ vectors[:, -1] / np.sqrt(values[-1])))
    )
    levels = values[-1] * (1.0 + np.geomspace(1e-9, 1e9, 2000))
    steps = (offset @ vectors / (levels[:, np.newaxis] - values)) @ vectors.T @ matrix
    if not offset.any():
        return best
    steps *= radius / np.linalg.norm(steps, axis=1, keepdims=True)
    return max(best, float(np.linalg.norm(offset + steps @ matrix.T, axis=1).max()))


@pytest.mark.sample(seed=2)
@pytest.mark.parametrize("seed", range(6))
def test_centred_facts(seed: int) -> None:
    """Sampled inputs stay inside the facts around a centre."""
    rng = np.random.default_rng(seed)
    links = random_links(rng, (4, 6, 3), mixed=False)
    network = Network(links)
    numbers = network.numbers(hull=False)
    form = network.form(numbers, definite_float)
    shape = (1, 1, 4)
    low = rng.uniform(-1.0, 0.2, (1, 1, 4))
    fact = Fact.of(shape, 1.3, Interval(low, low + 1.5))
    bias = rng.standard_normal(6)

    def network_at(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.maximum(x @ links[0].T + bias, 0.0) @ links[2].T)

    samples = rng.uniform(low, low + 1.5, (4000, 1, 1, 4)).reshape(-1, 1, 1, 4)
    samples = samples[np.linalg.norm(samples.reshape(-1, 4), axis=1) <= 1.3]
    images = network_at(samples)
    for share in (Fraction(0), Fraction(1, 3), Fraction(1)):
        ball = enclosing_ball(fact, shape, share)
        if np.linalg.norm(ball.centre) > 1.3:
            continue
        distances = np.linalg.norm((samples - ball.centre).reshape(-1, 4), axis=1)
        assert distances.max() <= ball.radius
        middle = network_at(ball.centre)
        near = Interval(middle - 1e-12, middle + 1e-12)
        level = Spectra().level(form, near, ball.radius)
        around = fact_around(near, (1, 1, 3), form, ball.radius, level)
        assert np.linalg.norm(images.reshape(-1, 3), axis=1).max() <= around.norm
        assert (images >= around.box.lo).all()
        assert (images <= around.box.hi).all()


def test_enclosing_balls() -> None:
    """Attained by a cube with a corner at 0; a centre outside of the ball is no centre."""
    shape = (1, 9)
    cube = Interval(np.zeros((1, 1)), np.ones((1, 1)))
    for share in (Fraction(0), Fraction(1, 4), Fraction(1)):
        ball = enclosing_ball(Fact.of(shape, 3.0, cube), shape, share)
        t = float(share)
        expected = math.sqrt(9 * max((1 - t) ** 2 / 4 + t, ((1 + t) / 2) ** 2))
        assert ball.radius == pytest.approx(expected, rel=1e-12)
        assert ball.radius >= expected * (1 - 1e-15)
        assert ball.point().norm == pytest.approx(1.5 * (1 - t))
    enclosing_ball(Fact.of(shape, 3.0), shape, Fraction(0))
    assert proved(enclosing_ball, Fact.of(shape), shape, Fraction(0)) is None
    assert proved(enclosing_ball, Fact.of(shape, 1e160), shape, Fraction(0)) is None
    assert proved(enclosing_ball, Fact.of(shape, 3.0, cube), shape, Fraction(2)) is None


def test_balls_side_by_side() -> None:
    """Attained by points that are at the rim of both."""
    balls = [Ball(np.full((1, 4), 1.0), 3.0), Ball(np.full((2, 2), -1.0), 4.0)]
    found = side_by_side(balls, (1, 8))
    assert found.centre.tolist() == [[1.0] * 4 + [-1.0] * 4]
    assert 5.0 <= found.radius <= 5.0 * (1.0 + 1e-15)


@pytest.mark.parametrize(
    ("size", "radius"), [*((1.0, r) for r in (1e-300, 1e-200, 1e160, 1e200, 1e307)), (1e-300, 1e10)]
)
def test_reach_of_balls_whose_squares_are_no_numbers(size: float, radius: float) -> None:
    """‖v + Jd‖ ≤ ‖v‖ + ‖J‖·radius, with J = 1; also where the radius is none in units of v."""
    form = Form(np.eye(1), 1, definite_float)
    found = reached(form, exact(np.full((1, 1), size)), radius)
    assert size + radius <= found <= (size + radius) * (1.0 + 1e-9)


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1e-9, 1e-3]), st.floats(-150.0, 150.0))
def test_rounding_counts(seed: int, width: float, size: float) -> None:
    """The exact matrix of an inequality, of any weights within the links, is as near as is said."""
    rng = np.random.default_rng(seed)
    inner, lower, upper = (rng.standard_normal(shape) for shape in ((3, 2), (4, 3), (2, 4)))
    low, high, t = -rng.random(3), rng.random(3), np.exp(rng.standard_normal(3)) * 2.0**size
    matrices = [Matrix(Interval(w, w + width * rng.random(w.shape))) for w in (inner, lower, upper)]
    links = matrices[0], Diagonal(Interval(low, high), t, weighed=True), *matrices[1:]
    edges = [Edge(("v", k), ("v", k + 1), link) for k, link in enumerate(links)]
    found, error = inequality_of(edges, 2)

    ends = [
        np.where(rng.random(m.entries.shape) < 0.5, m.entries.lo, m.entries.hi) for m in matrices
    ]
    a, b, c, low, high, t = (np.vectorize(Fraction)(part) for part in (*ends, low, high, t))
    s = b.T @ c.T
    cross = -np.diag(t * (low + high)) @ s / 2
    whole = np.block([[np.diag(t) - a @ a.T, cross], [cross.T, s.T @ np.diag(t * low * high) @ s]])
    assert (np.abs(np.vectorize(Fraction)(found) - whole) <= np.vectorize(Fraction)(error)).all()

    asked = []
    is_semidefinite(found, error, lambda scaled, _: asked.append(scaled) is not None)
    scale = np.vectorize(Fraction)(lowered(found, error)[1])
    above = whole * scale[:, None] * scale - np.vectorize(Fraction)(asked[0])
    assert np.linalg.eigvalsh(np.float64(above))[0] >= -1e-30


def test_an_entry_that_cancels_pays_alone_for_its_rounding() -> None:
    near = np.array([[1.0, 1.0 - 1e-9, 0.0], [1.0 - 1e-9, 1.0, 0.0], [0.0, 0.0, 1e-12]])
    assert is_semidefinite(near, np.full((3, 3), 1e-14), definite_float)
    assert not is_semidefinite(near, np.full((3, 3), 1e-12), definite_float)
