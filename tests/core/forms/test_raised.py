"""Raised weights, against ascent over inputs without negative entries."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lipcert.core.certificate import ScopeClaim
from lipcert.core.engines import ENGINES
from lipcert.core.forms.raised import Affine, Raised, affine_of, raised_of
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.integer_engine import norm_at_most_exact
from lipcert.core.program import (
    Activation,
    BatchNorm,
    Conv,
    Dense,
    Operand,
    Place,
    Program,
    Shape,
    Shift,
    Step,
    Window,
)
from lipcert.graph.evaluate import evaluate_batch
from lipcert.search.evidence import RAISED, ChainWitness, Evidence
from lipcert.search.prover import derive
from lipcert.search.raising import numbers_to_raise
from tests.core.forged import PREMISES

Numbers = tuple[tuple[float, ...], ...]


def operand(low: np.ndarray, high: np.ndarray | None = None) -> Operand:
    return Operand(low, low if high is None else high)


def random_map(seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """W, b and a radius; biases of either sign, or none."""
    rng = np.random.default_rng(seed)
    rows, columns = (int(n) for n in rng.integers(1, 12, 2))
    matrix = rng.standard_normal((rows, columns)) * rng.choice([1e-3, 1.0, 1e3])
    shift = rng.choice([-1.0, 0.0, 1.0]) * np.abs(matrix).mean()
    return matrix, shift + rng.choice([0.0, 0.3]) * matrix[:, 0], float(rng.choice([0.1, 1.0, 7.0]))


def longest(matrix: np.ndarray, constants: np.ndarray, radius: float) -> float:
    """‖relu(Wx + b)‖ at the best x ≥ 0 of some ascents: a convex function of x."""
    rng = np.random.default_rng(0)
    x = rng.random((60, matrix.shape[1])) * (rng.random((60, matrix.shape[1])) < 0.6)
    best = 0.0
    for _ in range(60):
        x *= radius / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
        values = np.maximum(x @ matrix.T + constants, 0.0)
        best = max(best, float(np.linalg.norm(values, axis=1).max()))
        x = np.maximum(values @ matrix, 0.0)
    return max(best, float(np.linalg.norm(np.maximum(constants, 0.0))))


def raised(matrix: np.ndarray, constants: np.ndarray, numbers: Numbers) -> Raised | None:
    return raised_of(Affine(matrix, 1), constants, numbers, norm_at_most_float)


@pytest.mark.sample(seed=14)
@pytest.mark.parametrize("seed", range(40))
def test_no_numbers_prove_what_is_false(seed: int) -> None:
    matrix, constants, radius = random_map(seed)
    rng, reached = np.random.default_rng(seed), longest(matrix, constants, radius)
    size = float(np.abs(matrix).mean()) ** 0.5
    for spread in (0.1, 1.0, 3.0):
        p, q = (size * np.exp(spread * rng.standard_normal(n + k)) for n, k in
                zip(matrix.shape, (0, 1), strict=True))  # fmt: skip
        numbers = (tuple(p.tolist()), tuple(q.tolist()), (float(rng.random() + 1e-3),))
        found = raised(matrix, constants, numbers)
        assert found is None or found.times(radius, 1) >= reached * (1 - 1e-12)


def test_searched_numbers_are_next_to_what_is_attained() -> None:
    ratios = []
    for seed in range(40):
        matrix, constants, radius = random_map(seed)
        reached = longest(matrix, constants, radius)
        numbers = numbers_to_raise(matrix, constants, radius, 1, math.inf)
        assert numbers is not None
        found = raised(matrix, constants, numbers)
        assert found is not None
        assert reached * (1 - 1e-12) <= found.times(radius, 1)
        if reached > 0.0:
            ratios.append(found.times(radius, 1) / reached)
    assert np.median(ratios) <= 1.02
    assert np.quantile(ratios, 0.9) <= 1.2


def test_a_matrix_of_signs_by_chance() -> None:
    """Of norm 2 in the limit; where no entry is negative, √2."""
    matrix, zero = np.random.default_rng(0).standard_normal((64, 64)) / 8.0, np.zeros(64)
    numbers = numbers_to_raise(matrix, zero, 1.0, 1, math.inf)
    assert numbers is not None
    found = raised(matrix, zero, numbers)
    assert found is not None
    assert found.times(1.0, 1) <= 1.15 * longest(matrix, zero, 1.0)
    assert found.times(1.0, 1) <= 0.85 * np.linalg.norm(matrix, 2)


def test_nothing_is_searched_in_vain() -> None:
    """Where what is known is attained, and where numbers leave what float64 holds."""
    matrix, constants = np.array([[1.0, 2.0]]), np.zeros(1)
    assert numbers_to_raise(matrix, constants, 1.0, 1, 5.0**0.5) is None
    assert numbers_to_raise(1e60 * matrix, constants, 1.0, 1, math.inf) is None
    assert numbers_to_raise(matrix, constants, math.inf, 1, math.inf) is None


@pytest.mark.parametrize("norms", [norm_at_most_float, norm_at_most_exact])
def test_nothing_to_raise_is_attained(norms: object) -> None:
    """Of W, b ≥ 0, by the x that suits them: no bound is below, in exact arithmetic."""
    matrix, constants = np.array([[0.1, 0.7], [0.3, 0.2]]), np.array([0.1, 0.3])
    numbers = ((1.0, 1.0), (1.0, 1.0, 1.0), (0.4,))
    found = raised_of(Affine(matrix, 1), constants, numbers, norms)  # type: ignore[arg-type]
    assert found is not None
    for x in ([0.6, 0.8], [0.0, 1.0], [0.5, 0.5], [0.8, 0.6]):
        exactly = [Fraction(n) for n in x]
        values = [
            sum((Fraction(w) * n for w, n in zip(row, exactly, strict=True)), Fraction(b))
            for row, b in zip(matrix.tolist(), constants.tolist(), strict=True)
        ]
        square = sum((n * n for n in exactly), Fraction(0))
        bound = Fraction(found.times(math.nextafter(math.sqrt(square), 2.0), 1))
        assert sum((v * v for v in values), Fraction(0)) <= bound**2


def test_squares_of_runs_add_up() -> None:
    """3 and 4 have norm 5, 1 and 1 the norm √2."""
    assert math.isclose(Raised(1.0, 1e-9).times(5.0, 2), 5.0)
    assert math.isclose(Raised(1.0, 1.0).times(0.0, 2), 2.0**0.5)
    assert Raised(1.0, 1.0).times(math.inf, 2) == math.inf


@pytest.mark.parametrize(
    "numbers",
    [
        (),
        ((1.0,), (1.0, 1.0), ()),
        ((1.0,), (1.0,), (1.0,)),
        ((1.0, 1.0), (1.0, 1.0), (1.0,)),
        ((1.0,), (1.0, 1.0), (0.0,)),
        ((1.0,), (1.0, 1.0), (5e-324,)),
        ((1e308,), (1e308, 1.0), (1e308,)),
    ],
)
def test_unusable_numbers(numbers: Numbers) -> None:
    found = raised(np.array([[-1.0]]), np.ones(1), numbers)
    assert found is None or found.times(0.0, 1) >= 1.0


def test_beyond_the_limits_of_a_proof() -> None:
    """Norms that are no number, more terms than a proof adds up, τ beyond all numbers."""
    for matrix in (np.full((2, 2), 9e153), np.ones(((1 << 20) + 1, 1))):
        rows, columns = matrix.shape
        numbers = [np.zeros(rows), np.zeros(columns + 1), [1.0]]
        assert raised_of(Affine(matrix, 1), np.zeros(rows), numbers, norm_at_most_float) is None
    assert raised(np.eye(1), np.ones(1), ((1.0,), (1.0, 1.0), (math.inf,))) is None


def test_upper_limits_of_every_entry() -> None:
    """Convolution, normalisation and shift, with weights between limits, against their corners."""
    rng = np.random.default_rng(0)
    low = rng.standard_normal((3, 2, 2, 2))
    high = low + 0.1 * rng.random(low.shape)
    window = Window((2, 2), (1, 1), (1, 1), (0, 0), (2, 2))
    scale, inverse = np.array([0.5, -2.0, 1.0]), np.array([1.0, 0.5, 3.0])
    normalisation = BatchNorm(*(operand(n) for n in (scale, scale, scale, inverse)))
    shift = Shift(operand(rng.standard_normal((1, 3, 1, 1))))
    shapes: dict[str, Shape] = {"x": (1, 2, 3, 3)}
    ops = [Conv(operand(low, high), None, window, 1, transposed=False), normalisation, shift]
    steps, value = [], "x"
    for number, op in enumerate(ops):
        output = f"v{number}"
        shapes[output] = (1, 3, 2, 2)
        steps.append(Step(op, (value,), output, shapes[output], number))  # type: ignore[arg-type]
        value = output
    affine = affine_of("x", steps, shapes)
    assert affine is not None
    assert affine.upper.shape == (12, 18)
    upper = affine.upper.reshape(3, 2, 2, 2, 3, 3)
    ends = [(scale * inverse)[:, None, None, None] * kernel for kernel in (low, high)]
    for i, j in np.ndindex(2, 2):
        found = upper[:, i, j, :, i : i + 2, j : j + 2]
        assert (found >= np.maximum(*ends)).all()
        assert (found <= np.maximum(*ends) + 1.0).all()


def test_no_affine_map() -> None:
    shapes: dict[str, Shape] = {"x": (1, 2), "y": (1, 2), "z": (1, 2)}
    dense = Step(Dense(operand(np.eye(2)), None), ("y",), "z", (1, 2), 1)
    assert affine_of("x", [Step(Activation("relu"), ("x",), "y", (1, 2), 0), dense], shapes) is None


@pytest.mark.parametrize("size", [1e-9, 0.3, 1e9])
def test_forged_chains_prove_nothing_false(size: float) -> None:
    """Between all pairs of values, also below 0, through a tanh, and the wrong way round."""
    rng = np.random.default_rng(0)
    kinds = ["dense", "relu", "dense", "tanh", "dense", "relu", "dense", "relu"]
    shapes: dict[str, Shape] = {"x": (1, 2)}
    steps = []
    for number, kind in enumerate(kinds):
        below, value = list(shapes)[-1], f"v{number}"
        weight, bias = rng.standard_normal((2, 2)), rng.standard_normal(2)
        dense = Dense(operand(weight), operand(bias))
        shapes[value] = (1, 2)
        op = dense if kind == "dense" else Activation(kind)
        steps.append(Step(op, (below,), value, (1, 2), number))
    program = Program("x", "v7", shapes, tuple(steps), Place(0), ())
    numbers = ((size,) * 2, (size,) * 3, (size,))
    chains = tuple(
        ChainWitness(RAISED, start, stop, numbers) for start in shapes for stop in shapes
    )
    box = (-1.0, 1.0)
    premises = replace(PREMISES, input_box=box)
    evidence = Evidence(ScopeClaim("point", (), ()), {}, (), chains, ENGINES["float"])
    facts = derive(program, premises, evidence).facts
    grid = np.stack(np.meshgrid(*[np.linspace(*box, 41)] * 2), axis=-1).reshape(-1, 1, 2)
    for value, reached in evaluate_batch(program, grid).items():
        longest_one = float(np.linalg.norm(reached, axis=(1, 2)).max())
        assert longest_one <= facts[value].norm * (1 + 1e-12)
