"""Multipliers against what a general optimiser finds for the same forms."""

import numpy as np
import pytest
from scipy.optimize import minimize

from lipcert.core.forms.chain import chain_form
from lipcert.core.forms.links import Diagonal, Edge, Matrix, links_of
from lipcert.core.interval import Interval, exact
from lipcert.core.norms.float_engine import definite_float
from lipcert.core.program import Activation, Dense, Operand, Shape, Step
from lipcert.core.rules.facts import Hull
from lipcert.search.forms import Spectra
from lipcert.search.multipliers import Linked, multipliers
from tests.core.forged import proved

WIDTHS = (4, 5, 5, 3)


def network(seed: int, low: float) -> tuple[list[Step], dict[str, Shape], dict[str, Interval]]:
    """Three matrices with activations between them, of slopes between `low` and 1."""
    rng = np.random.default_rng(seed)
    steps, shapes, slopes = [], {"x": (1, WIDTHS[0])}, {}
    value = "x"
    for count, width in enumerate(WIDTHS[1:]):
        weight = rng.standard_normal((width, shapes[value][-1]))
        steps.append(
            Step(Dense(Operand(weight, weight), None), (value,), f"d{count}", (1, width), 0)
        )
        value = f"d{count}"
        shapes[value] = (1, width)
        if count < len(WIDTHS) - 2:
            steps.append(Step(Activation("relu"), (value,), f"a{count}", (1, width), 0))
            value = f"a{count}"
            shapes[value] = (1, width)
            slopes[value] = Interval(np.full((1, 1), low), np.ones((1, 1)))
    return steps, shapes, slopes


@pytest.mark.sample(2)
@pytest.mark.parametrize("hull", [False, True])
@pytest.mark.parametrize(
    ("seed", "low", "sharp", "room"),
    [
        (0, 0.0, False, 1.003),
        (0, 0.0, True, 1.0002),
        (1, 0.2, False, 1.003),
        (2, -1.0, False, 1.06),
    ],
)
def test_as_good_as_a_general_optimiser(
    seed: int, low: float, sharp: bool, room: float, hull: bool
) -> None:
    """To within 0.3 %, 0.02 % where the norm alone counts, or 6 % for slopes of both signs.

    The bound is convex in the multipliers.
    """
    steps, shapes, slopes = network(seed, low)
    linked = links_of("x", steps, shapes, slopes, ())
    found = multipliers(Linked(linked[0]), hull=hull, patience=4.0 if sharp else 1.0, sharp=sharp)
    lists, norm = found

    def bound(numbers) -> float:
        form = proved(chain_form, "x", steps, shapes, slopes, numbers, proof=definite_float)
        if form is None:
            return 1e6
        return form.over_hull(Hull(WIDTHS[-1], 1.0)) if hull else Spectra().norm(form)

    def of_logarithms(point: np.ndarray) -> float:
        return bound(list(np.exp(point.reshape(2, -1))))

    ours = bound(lists)
    assert norm == pytest.approx(ours, rel=1e-3)
    rest = minimize(of_logarithms, np.log(np.array(lists)).ravel(), method="Nelder-Mead",
                    options={"maxfev": 300, "adaptive": True})  # fmt: skip
    assert ours <= room * rest.fun


def test_known_and_unknown_slopes_side_by_side() -> None:
    """A rotation of pairs, slopes 1 and [−1, 1], and back: nothing is lost, however often."""
    rng = np.random.default_rng(1)
    half = np.array([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
    edges, place = [], 0
    low = np.tile([1.0, -1.0], 8)
    slopes = Interval(low, np.ones(16))
    for _ in range(4):
        rotation = np.linalg.qr(rng.standard_normal((16, 16)))[0]
        turn = Matrix(exact(np.kron(np.eye(8), half)))
        links = [Matrix(exact(rotation)), turn, Diagonal(slopes, weighed=True), turn]
        for link in links:
            edges.append(Edge((f"v{place}", 0), (f"v{place + 1}", 0), link))
            place += 1
    found = multipliers(Linked(tuple(edges)), hull=False)
    assert [len(numbers) for numbers in found[0]] == [16] * 4
    assert all(number > 0.0 for numbers in found[0] for number in numbers)


def test_a_matrix_of_zeros_before_slopes_that_are_hardly_any() -> None:
    """There is nothing to bound, and nothing to improve: forms are as small as rounding."""
    for seed in range(40):
        low = 10.0 ** -np.random.default_rng(seed).uniform(0, 60, 2)
        slopes = Interval(low, low * (1.0 + 2.0**-41))
        links = [Matrix(exact(np.zeros((2, 2)))), Diagonal(slopes, weighed=True)]
        edges = [Edge((f"v{k}", 0), (f"v{k + 1}", 0), link) for k, link in enumerate(links)]
        assert multipliers(Linked(tuple(edges)), hull=False) is not None
