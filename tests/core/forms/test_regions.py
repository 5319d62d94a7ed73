"""Forms of regions with branches, sorts and maxima, against Jacobians of their programs."""

import itertools
import math

import numpy as np
import pytest

from lipcert.core.forms.chain import Form, at_the_bottom, chain_form
from lipcert.core.forms.extremes import ordered
from lipcert.core.forms.links import links_of
from lipcert.core.interval import Interval
from lipcert.core.kinds import Concat, ReduceMax, Sort
from lipcert.core.norms.float_engine import definite_float
from lipcert.core.norms.integer_engine import definite_exact
from lipcert.core.program import Activation, Dense, Move, Op, Operand, Place, Program, Shape, Step
from lipcert.core.rules.facts import Hull
from lipcert.core.token_kinds import Add
from lipcert.core.window_kinds import Conv, MaxPool, Window
from lipcert.graph.evaluate import evaluate
from lipcert.search.forms import Spectra
from lipcert.search.multipliers import Linked, multipliers
from tests.core.forged import proved

Rng = np.random.Generator


class Growing:
    """A program from its steps, one after another."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.shapes = {"x": shape}
        self.steps: list[Step] = []

    def __call__(self, op: Op, inputs: str, shape: Shape) -> str:
        output = f"v{len(self.steps)}"
        self.steps.append(Step(op, tuple(inputs.split()), output, shape, len(self.steps)))
        self.shapes[output] = shape
        return output

    def weight(self, *shape: int) -> Operand:
        values = self.rng.standard_normal(shape)
        return Operand(values, values)

    def dense(self, value: str, width: int) -> str:
        before = self.shapes[value]
        bias = self.weight(width)
        return self(Dense(self.weight(width, before[-1]), bias), value, (*before[:-1], width))

    def same(self, op: Op, inputs: str) -> str:
        return self(op, inputs, self.shapes[inputs.split(maxsplit=1)[0]])

    def done(self) -> Program:
        return Program("x", self.steps[-1].output, self.shapes, tuple(self.steps), Place(0), ())


RELU = Activation("relu")


def residual(seed: int) -> Program:
    """x + W₂relu(W₁x), twice, the second time from behind an activation that both branches read."""
    g = Growing((1, 4), seed)
    x = g.dense("x", 5)
    inner = g.dense(g.same(RELU, g.dense(x, 6)), 5)
    x = g.same(RELU, g.same(Add((1, 1)), f"{x} {inner}"))
    inner = g.same(RELU, g.dense(x, 5))
    g.same(Add((-1, 1)), f"{inner} {x}")
    return g.done()


def at_the_start(seed: int) -> Program:
    """The first value is read by several steps, one of which acts entry by entry."""
    g = Growing((1, 4), seed)
    low = g.same(RELU, "x")
    g.same(Add((1, -1, 1)), f"{low} x {g.dense('x', 4)}")
    return g.done()


def sorted_pairs(seed: int) -> Program:
    g = Growing((1, 4), seed)
    value = "x"
    for _ in range(2):
        value = g.dense(value, 6)
        value = g(Move(np.arange(6).reshape(1, 3, 2)), value, (1, 3, 2))
        value = g(Sort(2), value, (1, 3, 2))
        value = g(Move(np.arange(6).reshape(1, 6)), value, (1, 6))
    g.dense(value, 3)
    return g.done()


def sorted_elsewhere(seed: int) -> Program:
    """Pairs along an axis in the middle."""
    g = Growing((1, 8), seed)
    value = g(Move(np.arange(8).reshape(1, 2, 4)), g.dense("x", 8), (1, 2, 4))
    g.dense(g(Sort(1), value, (1, 2, 4)), 3)
    return g.done()


def pooled(seed: int) -> Program:
    """Windows that overlap, with padding."""
    g = Growing((1, 2, 4, 3), seed)
    window = Window((2, 2), (1, 1), (1, 1), (0, 0), (3, 2))
    value = g(Conv(g.weight(2, 2, 2, 2), g.weight(2), window, 1, False), "x", (1, 2, 3, 2))
    window = Window((3, 2), (2, 1), (1, 1), (1, 0), (2, 1))
    value = g(MaxPool(window), g.same(RELU, value), (1, 2, 2, 1))
    g.dense(g(Move(np.arange(4).reshape(1, 4)), value, (1, 4)), 3)
    return g.done()


def least(seed: int) -> Program:
    """Of three numbers, which are two rounds."""
    g = Growing((1, 2, 3), seed)
    value = g(ReduceMax((1, 2), True), g.dense("x", 3), (1, 1, 1))
    value = g(Concat(2), f"{value} {value}", (1, 1, 2))
    g.dense(value, 2)
    return g.done()


def joined(seed: int) -> Program:
    """Several positions, and branches side by side."""
    g = Growing((1, 3, 2), seed)
    left = g.same(RELU, g.dense("x", 3))
    right = g.same(Activation("abs"), g.dense("x", 2))
    g.dense(g(Concat(2), f"{left} {right} x", (1, 3, 7)), 3)
    return g.done()


CASES = [residual, at_the_start, sorted_pairs, sorted_elsewhere, pooled, least, joined]


def form_of(program: Program, *, hull: bool = False, exactly: bool = False) -> Form:
    """With slopes of which nothing is known."""
    slopes = {}
    for step in program.steps:
        if isinstance(step.op, Activation):
            low = np.full((1,) * len(step.shape), 0.0 if step.op.name == "relu" else -1.0)
            slopes[step.output] = Interval(low, np.ones_like(low))
    linked = links_of("x", program.steps, program.shapes, slopes, ())
    found = multipliers(Linked(at_the_bottom(linked[0])), hull=hull)
    proof = definite_exact if exactly else definite_float
    return chain_form("x", program.steps, program.shapes, slopes, found[0], proof=proof)


def function(program: Program, x: np.ndarray) -> np.ndarray:
    values = evaluate(program, x.reshape(program.shapes["x"]))
    return np.asarray(values[program.output]).ravel()


def jacobian(program: Program, x: np.ndarray) -> np.ndarray:
    """By differences, which are exact but for rounding where nothing switches between."""
    size, step = x.size, 1e-6
    ends = [(function(program, x + d), function(program, x - d)) for d in step * np.eye(size)]
    return np.stack([(up - down) / (2 * step) for up, down in ends], axis=1)


@pytest.mark.sample(seed=1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_no_jacobian_is_larger(case, seed: int) -> None:
    """Nor any chord: the whole form, entries, and the ball."""
    program = case(seed)
    form = form_of(program, hull=seed == 1, exactly=seed == 2)
    whole = np.kron(np.eye(form.runs), form.matrix)
    rng = np.random.default_rng(seed)
    size = math.prod(program.shapes["x"])
    points = [rng.standard_normal(size) * 10.0 ** rng.uniform(-2, 2) for _ in range(60)]
    largest = 0.0
    for x, other in itertools.pairwise(points):
        J = jacobian(program, x)
        largest = max(largest, np.linalg.norm(J, 2))
        lowest = np.linalg.eigvalsh(whole - J @ J.T)[0]
        assert lowest >= -1e-7 * max(np.linalg.norm(whole, 2), 1.0)
        chord, way = function(program, x) - function(program, other), x - other
        assert np.linalg.norm(chord) <= Spectra().norm(form) * np.linalg.norm(way) * (1 + 1e-9)
        swing = np.tile(form.swing(float(np.linalg.norm(way))), form.runs)
        assert (np.abs(chord) <= swing * (1 + 1e-9)).all()
    searched = form.over_hull(Hull(len(form.matrix), 1.0)) if seed == 1 else math.inf
    assert min(Spectra().norm(form), searched) <= 4.0 * largest


@pytest.mark.parametrize("seed", range(4))
def test_orthogonal_sorts_cost_nothing(seed: int) -> None:
    """The Lipschitz constant 1 of rotations and sorts of pairs is found, to within a part in 50."""
    g = Growing((1, 8), seed)
    value = "x"
    for _ in range(3):
        rotation = np.linalg.qr(g.rng.standard_normal((8, 8)))[0]
        value = g(Dense(Operand(rotation, rotation), None), value, (1, 8))
        value = g(Move(np.arange(8).reshape(1, 4, 2)), value, (1, 4, 2))
        value = g(Sort(2), value, (1, 4, 2))
        value = g(Move(np.arange(8).reshape(1, 8)), value, (1, 8))
    form = form_of(g.done())
    assert 1.0 <= Spectra().norm(form) <= 1.02


def test_a_residual_sum_is_less_than_its_parts() -> None:
    """x + W₂relu(W₁x): less than 1 + ‖W₂‖‖W₁‖, by what slopes that are not negative leave."""
    g = Growing((1, 6), 5)
    inner = g.dense(g.same(RELU, g.dense("x", 6)), 6)
    g.same(Add((1, 1)), f"x {inner}")
    program = g.done()
    form = form_of(program)
    first, second = (np.linalg.norm(program.steps[k].op.weight.lo, 2) for k in (0, 2))
    assert Spectra().norm(form) <= 0.95 * (1.0 + first * second)


def test_what_is_too_large_or_no_extreme() -> None:
    def links(op, before, after):
        return proved(ordered, Step(op, ("x",), "y", after, 0), [before])

    assert links(Sort(1), (1, 2), (1, 2))
    assert not links(Sort(1), (1, 3), (1, 3))
    assert not links(ReduceMax((1,), False), (1, 1), (1, 1))
    assert not links(ReduceMax((1,), False), (1, 1 << 12), (1, 1))
    empty = Window((2,), (1,), (1,), (4,), (5,))  # its first windows read nothing
    assert not links(MaxPool(empty), (1, 1, 3), (1, 1, 5))
