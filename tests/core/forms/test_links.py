"""Links against a plain evaluator: their product is the Jacobian of a linear program."""

import math

import numpy as np
import pytest

from lipcert.core.forms.chain import chain_form
from lipcert.core.forms.links import Diagonal, Matrix, links_of
from lipcert.core.interval import Interval
from lipcert.core.kinds import BatchNorm, Centre, PRelu
from lipcert.core.norms.float_engine import definite_float
from lipcert.core.paths import is_only_way, reads_of, steps_between, steps_on_ways
from lipcert.core.program import Activation, Dense, Move, Op, Operand, Place, Program, Shape, Step
from lipcert.core.token_kinds import Add, Normalize, ReduceSum, Scale, Shift
from lipcert.core.window_kinds import AveragePool, Conv, Window
from lipcert.graph.evaluate import evaluate
from lipcert.search.forms import Spectra
from tests.core.forged import proved

RNG = np.random.default_rng(3)


def operand(*shape: int) -> Operand:
    values = RNG.standard_normal(shape)
    return Operand(values, values)


def program_of(shape: Shape, *ops: tuple[Op, Shape]) -> Program:
    """Steps in a row."""
    shapes = {"x": shape}
    steps = []
    value = "x"
    for number, (op, after) in enumerate(ops):
        steps.append(Step(op, (value,), f"v{number}", after, number))
        value = f"v{number}"
        shapes[value] = after
    return Program("x", value, shapes, tuple(steps), Place(0), ())


def jacobian(program: Program) -> np.ndarray:
    """Of an affine program."""
    shape = program.shapes["x"]
    size = math.prod(shape)

    def image(x: np.ndarray) -> np.ndarray:
        return np.asarray(evaluate(program, x.reshape(shape))[program.output]).ravel()

    origin = image(np.zeros(size))
    return np.stack([image(row) - origin for row in np.eye(size)], axis=1)


WINDOW = Window((2, 3), (2, 1), (1, 2), (1, 1), (3, 2))
UPWARD = Window((2, 2), (2, 1), (1, 1), (0, 1), (2, 4))
POOL = Window((2, 2), (2, 1), (1, 1), (1, 0), (3, 3))
MOVED = np.array([3, 0, -1, 3, 5, 1, 2], dtype=np.int64)
CASES: dict[str, tuple[Shape, Op, Shape]] = {
    "dense": ((1, 5), Dense(operand(3, 5), operand(3)), (1, 3)),
    "positions": ((1, 4, 5), Dense(operand(3, 5), None), (1, 4, 3)),
    "conv": ((1, 4, 5, 4), Conv(operand(6, 2, 2, 3), operand(6), WINDOW, 2, False), (1, 6, 3, 2)),
    "transposed": ((1, 4, 2, 4), Conv(operand(4, 3, 2, 2), None, UPWARD, 2, True), (1, 6, 4, 4)),
    "scale": ((1, 3, 4), Scale(operand(1, 3, 1)), (1, 3, 4)),
    "shift": ((1, 3, 4), Shift(operand(1, 1, 4)), (1, 3, 4)),
    "norm": ((1, 3, 2, 2), BatchNorm(*[operand(3) for _ in range(4)]), (1, 3, 2, 2)),
    "pool": ((1, 2, 5, 4), AveragePool(POOL, True), (1, 2, 3, 3)),
    "pool inside": ((1, 2, 5, 4), AveragePool(POOL, False), (1, 2, 3, 3)),
    "sum": ((1, 3, 4, 2), ReduceSum((1, 3), False), (1, 1, 4, 1)),
    "mean": ((1, 3, 4, 2), ReduceSum((2,), True), (1, 3, 1, 2)),
    "centre": ((1, 3, 4, 2), Centre((1, 3)), (1, 3, 4, 2)),
    "move": ((1, 6), Move(MOVED), (7,)),
    "reshape": ((1, 6), Move(np.arange(6, dtype=np.int64).reshape(1, 2, 3)), (1, 2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_each_step(name: str) -> None:
    """One step: the link on all runs is the Jacobian."""
    before, op, after = CASES[name]
    program = program_of(before, (op, after))
    found = links_of("x", program.steps, program.shapes, {}, [])
    (edge,), runs = found
    link = edge.link
    whole = jacobian(program)
    if isinstance(link, Matrix):
        for end in (link.entries.lo, link.entries.hi):
            np.testing.assert_allclose(np.kron(np.eye(runs), end), whole, atol=1e-14, rtol=0.0)
    else:  # every entry is a run, and their union counts
        assert runs == math.prod(before)
        ends = [whole.diagonal().min(), whole.diagonal().max()]
        np.testing.assert_allclose([link.entries.lo[0], link.entries.hi[0]], ends, atol=1e-12)
        np.testing.assert_array_equal(whole, np.diag(whole.diagonal()))
    form = chain_form("x", program.steps, program.shapes, {}, [], proof=definite_float)
    norm = np.linalg.norm(jacobian(program), 2)
    assert norm * (1 - 1e-12) <= Spectra().norm(form) <= norm * (1 + 1e-7)


def test_a_convolutional_chain() -> None:
    """Matrices of many kinds, one after another, on common runs."""
    program = program_of(
        CASES["conv"][0],
        (CASES["conv"][1], CASES["conv"][2]),
        (BatchNorm(*[operand(6) for _ in range(4)]), (1, 6, 3, 2)),
        (ReduceSum((3,), True), (1, 6, 3, 1)),
        (Move(np.arange(18, dtype=np.int64).reshape(1, 18)), (1, 18)),
        (Dense(operand(4, 18), None), (1, 4)),
    )
    form = chain_form("x", program.steps, program.shapes, {}, [], proof=definite_float)
    norm = np.linalg.norm(jacobian(program), 2)
    assert norm * (1 - 1e-12) <= Spectra().norm(form) <= norm * (1 + 1e-7)


def test_uncertain_operands() -> None:
    """Weights within an interval: the form holds for all of them."""
    low = RNG.standard_normal((3, 4))
    weight = Operand(low, low + 1e-3)
    program = program_of((1, 4), (Dense(weight, None), (1, 3)))
    form = chain_form("x", program.steps, program.shapes, {}, [], proof=definite_float)
    for _ in range(50):
        inside = low + 1e-3 * RNG.random(low.shape)
        assert np.linalg.norm(inside, 2) <= Spectra().norm(form)


@pytest.mark.parametrize("width", [2.0**-24, 2.0**-21])
def test_a_scale_that_is_computed(width: float) -> None:
    """Between two matrices: the form holds for every factor in the interval, tightly."""
    low = 0.5 + RNG.random((1, 6))
    high = low * (1 + width)
    program = program_of(
        (1, 4), (Dense(operand(6, 4), None), (1, 6)), (Scale(Operand(low, high)), (1, 6)),
        (Dense(operand(3, 6), None), (1, 3)),
    )  # fmt: skip
    form = chain_form("x", program.steps, program.shapes, {}, [], proof=definite_float)
    below, above = (step.op.weight.lo for step in program.steps[::2] if isinstance(step.op, Dense))
    corners = [np.where(RNG.random(6) < 0.5, low, high) for _ in range(20)]
    norms = [np.linalg.norm(above * factor @ below, 2) for factor in (low, high, *corners)]
    assert max(norms) * (1 - 1e-12) <= Spectra().norm(form) <= max(norms) * (1 + 100 * width)


def test_a_scale_in_a_wide_interval() -> None:
    """Is no link."""
    factor = Operand(np.ones((1, 4)), np.full((1, 4), 1.001))
    program = program_of(
        (1, 4), (Dense(operand(4, 4), None), (1, 4)), (Scale(factor), (1, 4)),
        (Dense(operand(3, 4), None), (1, 3)),
    )  # fmt: skip
    steps, shapes = program.steps, program.shapes
    assert proved(chain_form, "x", steps, shapes, {}, [], proof=definite_float) is None


def test_runs_that_steps_respect() -> None:
    """Positions with slopes of their own share the union of these; two widths share a divisor."""
    shape = (1, 4, 3)
    program = program_of(
        shape, (Dense(operand(3, 3), None), shape), (Activation("relu"), shape),
        (Move(np.arange(12, dtype=np.int64).reshape(1, 2, 6)), (1, 2, 6)),
        (Dense(operand(5, 6), None), (1, 2, 5)),
    )  # fmt: skip
    low = np.arange(12.0).reshape(shape)
    slopes = {"v1": Interval(low, low + 1)}
    found = links_of("x", program.steps, program.shapes, slopes, [[1.0] * 6])
    links, runs = [edge.link for edge in found[0]], found[1]
    assert runs == 2
    assert isinstance(links[0], Matrix)
    assert links[0].entries.shape == (6, 6)
    assert isinstance(links[1], Diagonal)
    assert (links[1].entries.lo == np.arange(6.0)).all()
    assert (links[1].entries.hi == np.arange(7.0, 13.0)).all()


def test_what_is_no_link() -> None:
    """Unknown slopes, and steps that do not act entry by entry."""
    shape = (1, 2, 4, 4)
    program = program_of(shape, (Normalize((1,), 1e-5, True), shape))
    assert proved(links_of, "x", program.steps, program.shapes, {}, []) is None
    program = program_of(shape, (PRelu(operand(1, 2, 1, 1)), shape))
    unknown = Interval(np.zeros((1, 1, 1, 1)), np.full((1, 1, 1, 1), np.inf))
    assert proved(links_of, "x", program.steps, program.shapes, {"v0": unknown}, []) is None
    known = Interval(np.zeros((1, 1, 1, 1)), np.ones((1, 1, 1, 1)))
    links_of("x", program.steps, program.shapes, {"v0": known}, [])
    ones = np.broadcast_to(1.0, (1 << 13, 1 << 12))
    huge = Operand(ones, ones)
    program = program_of((1, 1 << 12), (Dense(huge, None), (1, 1 << 13)))
    assert proved(links_of, "x", program.steps, program.shapes, {}, []) is None


def test_regions() -> None:
    """What a value needs, what lies on the ways to it, and who else reads that."""
    shape = (1, 3)
    steps = (
        Step(Dense(operand(3, 3), None), ("x",), "a", shape, 0),
        Step(Activation("relu"), ("a",), "b", shape, 1),
        Step(Dense(operand(3, 3), None), ("b",), "c", shape, 2),
        Step(Add((1, 1)), ("c", "a"), "d", shape, 3),
    )
    shapes = dict.fromkeys("xabcd", shape)
    program = Program("x", "d", shapes, steps, Place(0), ())
    branch = steps_between(program, "a", "c")
    assert branch == steps_on_ways(program, "a", "c") == steps[1:3]
    assert is_only_way(program, branch)
    assert reads_of(branch, "a") == {"b": 1}
    whole = steps_between(program, "a", "d")
    assert whole == steps[1:]
    assert is_only_way(program, whole)
    assert reads_of(whole, "a") == {"b": 1, "d": 1} == reads_of(program.steps, "a")
    assert not is_only_way(program, steps[:3])
    assert steps_between(program, "x", "c") == steps[:3]
    assert steps_between(program, "b", "d") is None  # it needs a as well
    assert steps_on_ways(program, "b", "d") == steps[2:]
    for found in (steps_between, steps_on_ways):
        assert found(program, "c", "a") is None
        assert found(program, "a", "a") is None
    early = Program("x", "b", shapes, steps[:3], Place(0), ())
    assert not is_only_way(early, branch)
