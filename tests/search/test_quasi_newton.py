"""Quasi-Newton steps against minima that are known."""

from dataclasses import dataclass

import numpy as np
import pytest

from lipcert.search.quasi_newton import FloatArray, descend

SIZE = 30


@dataclass(frozen=True)
class Quartic:
    """(x − 1)ᵀA(x − 1)/2 + Σ(x − 1)⁴, of which the least value 0 is at 1; infinite far from there.

    curvature: a factor on the estimate, which need not be good.
    """

    point: FloatArray
    matrix: FloatArray
    curvature: float

    @property
    def value(self) -> float:
        rest = self.point - 1.0
        return float(0.5 * rest @ self.matrix @ rest + (rest**4).sum())

    def slopes(self) -> tuple[FloatArray, FloatArray]:
        rest = self.point - 1.0
        second = self.matrix.diagonal() + 12.0 * rest**2
        return self.matrix @ rest + 4.0 * rest**3, self.curvature * second


@pytest.mark.parametrize("curvature", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_minimum_is_found_and_no_step_goes_up(seed: int, curvature: float) -> None:
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((SIZE, SIZE))
    matrix = factor @ factor.T + np.diag(10.0 ** rng.uniform(-1, 2, SIZE))
    asked = 0

    def look(point: FloatArray) -> Quartic | None:
        nonlocal asked
        asked += 1
        far = float(np.linalg.norm(point - 1.0)) > 12.0
        return None if far else Quartic(point, matrix, curvature)

    first = Quartic(1.0 + rng.uniform(-2.0, 2.0, SIZE), matrix, curvature)
    values = [found.value for found in descend(look, first, 120, 0.0)]
    assert asked <= 120
    assert values == sorted(values, reverse=True)
    assert values[-1] < 1e-4 * first.value


def test_nothing_is_asked_without_looks_or_at_a_minimum() -> None:
    matrix = np.eye(3)

    def look(point: FloatArray) -> Quartic:
        raise AssertionError

    assert not list(descend(look, Quartic(np.zeros(3), matrix, 1.0), 0, 0.0))
    assert not list(descend(look, Quartic(np.ones(3), matrix, 1.0), 9, 0.0))
