"""Which examples lie in the declared domain."""

import math
from fractions import Fraction

import numpy as np
import pytest

from lipcert.core.program import Part
from lipcert.gradient_stats.examples import outside, random_examples, settled
from lipcert.losses import make_loss
from lipcert.settings.settings import Settings
from tests.domains import side_by_side


def test_the_box_is_exact() -> None:
    x = np.array([[0.0, 1.0], [np.nextafter(np.float32(0), np.float32(-1)), 0.5], [0.5, 1.0000001]])
    found = outside(x.astype(np.float32), Settings())
    assert [index for index, _ in found] == [1, 2]
    assert "outside [0, 1]" in found[0][1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 10, 3000])
def test_scaling_to_the_radius_is_admissible_and_more_is_not(dtype: type, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((50, size))
    x *= 3.0 / np.linalg.norm(x, axis=1, keepdims=True)
    settings = Settings(input_norm=3.0)
    assert outside(x.astype(dtype), settings) == []
    more = x * (1.0 + 4.0 * np.finfo(dtype).eps + 1e-11)
    assert len(outside(more.astype(np.float64), Settings(input_norm=3.0))) == 50


def test_both_conditions_hold() -> None:
    settings = Settings(input_norm=1.0, input_box=(-1.0, 1.0))
    x = np.array([[1.0, 0.0], [1.0, 1.0], [-1.5, 0.0], [0.6, 0.8], [1e200, 0.0]])
    assert [index for index, _ in outside(x, settings)] == [1, 2, 4]


def test_no_examples() -> None:
    assert outside(np.zeros((0, 4), dtype=np.float32), Settings()) == []


@pytest.mark.parametrize("size", [1, 7, 400])
def test_settled_examples_are_inside_and_hardly_moved(size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((64, size)).astype(np.float32)
    x *= np.float32(2.0) / np.linalg.norm(x, axis=1, keepdims=True)
    x[::2] *= np.float32(0.5)
    found = settled(x, 2.0, Settings(input_norm=2.0))
    exact = [sum(Fraction(float(entry)) ** 2 for entry in row) for row in found]
    assert all(square < 4 for square in exact)
    assert np.array_equal(found[::2], x[::2])
    assert np.allclose(found, x, rtol=1e-6)


@pytest.mark.parametrize("box", [(0.0, 1.0), (0.5, 1.0), (-3.0, -0.5), (-1.0, 2.0)])
def test_settling_stays_in_the_box_and_in_the_ball(box: tuple[float, float]) -> None:
    low, high = box
    far = low if abs(low) > abs(high) else high
    corners = np.where(np.random.default_rng(0).random((20, 4)) < 0.5, low, high)
    corners[0] = far
    radius = 2.0 * abs(far)
    found = settled(corners.astype(np.float32), radius, Settings(input_box=box))
    assert np.all((found >= low) & (found <= high))
    exact = [sum(Fraction(float(entry)) ** 2 for entry in row) for row in found]
    assert all(square <= Fraction(radius) ** 2 for square in exact)
    assert np.allclose(found, corners, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_ball_and_box_beside_zero_hold_what_rounding_left_outside(dtype: type) -> None:
    settings = Settings(input_norm=2.0, input_box=(0.1, 1.7))
    rng = np.random.default_rng(1)
    x = rng.uniform(0.5, 1.6, (100, 4))
    stored = (2.0 * x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)
    assert outside(stored, settings) == []
    exact = [sum(Fraction(float(e)) ** 2 for e in row) for row in settled(stored, 2.0, settings)]
    assert all(square < 4 for square in exact)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_ends_of_the_box_may_be_rounded_to_the_type_of_the_data(dtype: type) -> None:
    settings = Settings(input_box=(-0.4242, 2.8215))
    ends = np.array([[-0.4242, 2.8215]]).astype(dtype)
    assert outside(ends, settings) == []
    found = settled(ends, 10.0, settings)
    assert np.all((found >= -0.4242) & (found <= 2.8215))
    beyond = np.nextafter(ends, np.array([[-10.0, 10.0]], dtype=dtype))
    assert len(outside(beyond, settings)) == 1
    assert len(outside(np.array([[2.8215 + 1e-6, 0.0]]), settings)) == 1


def test_several_inputs_lie_in_their_domains_and_in_that_of_all() -> None:
    inputs = [(4, 0.5, None), (6, math.inf, (0.5, 2.0))]
    for radius in (math.inf, 1.5):
        domain = side_by_side(inputs, radius)
        drawn = random_examples((1, 10), domain, make_loss("cross-entropy"), (1, 3), 50)
        x = drawn.x.reshape(50, 10)
        assert np.linalg.norm(x[:, :4], axis=1).max() <= 0.5 * (1.0 + 1e-12)
        assert 0.5 <= x[:, 4:].min() <= x[:, 4:].max() <= 2.0
        assert np.linalg.norm(x, axis=1).max() <= radius * (1.0 + 1e-12)


def test_several_inputs_are_settled_in_the_ball_of_each() -> None:
    settings = Settings(input_norm={"a": 1.0}).with_inputs([Part("a", (3,)), Part("b", (2,))])
    found = settled(np.ones((1, 5)), math.inf, settings)
    assert sum(Fraction(float(entry)) ** 2 for entry in found[0, :3]) < 1
    assert np.allclose(found, [[3**-0.5] * 3 + [1.0] * 2], rtol=1e-12)
