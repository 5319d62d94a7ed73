"""The suprema of ‖softmax(z) − t_y‖ and of 1 − p_y, against brute force and closed forms."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from lipcert.losses.softmax_error import over_ball, over_simplex, over_spread, softmax_error
from lipcert.upper import INFINITE, FloatArray, Upper


def target(classes: int, smoothing: float) -> FloatArray:
    result = np.full(classes, smoothing / classes)
    result[0] += 1.0 - smoothing
    return result


def softmax(z: FloatArray) -> FloatArray:
    weights = np.exp(z - z.max(axis=-1, keepdims=True))
    result: FloatArray = weights / weights.sum(axis=-1, keepdims=True)
    return result


def error(z: FloatArray, smoothing: float) -> float:
    return float(np.linalg.norm(softmax(z) - target(z.size, smoothing)))


def climbed(classes: int, radius: float, smoothing: float, starts: int) -> tuple[float, float]:
    """Largest error and miss found on the sphere from starts in the full space."""
    rng = np.random.default_rng(classes)
    best, miss = 0.0, 0.0

    def on_sphere(z: FloatArray) -> FloatArray:
        result: FloatArray = z * (radius / np.linalg.norm(z))
        return result

    for start in range(starts):
        z = rng.normal(size=classes)
        if start < classes - 1:  # the first classes share the mass
            z = np.concatenate([[-1.0], np.ones(start + 1), np.zeros(classes - start - 2)])
        found = minimize(lambda u: -error(on_sphere(u), smoothing), z, method="BFGS").x
        best = max(best, error(on_sphere(found), smoothing))
        found = minimize(lambda u: softmax(on_sphere(u))[0], z, method="BFGS").x
        miss = max(miss, 1.0 - softmax(on_sphere(found))[0])
    return best, miss


@pytest.mark.parametrize("classes", [2, 3, 4, 7, 12])
@pytest.mark.parametrize("radius", [0.1, 1.0, 2.5, 6.0, 10.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_ball_is_attained_and_never_exceeded(classes: int, radius: float, smoothing: float) -> None:
    bound = over_ball(classes, Upper(radius), smoothing)
    norm, miss = climbed(classes, radius, smoothing, starts=8)
    assert norm <= bound.norm.value * (1 + 1e-14)
    assert bound.norm.value <= norm * (1 + 2e-6)
    assert miss <= bound.miss.value <= miss + 1e-6


@pytest.mark.parametrize("classes", [30, 300])
@pytest.mark.parametrize("radius", [0.5, 3.0, 6.0, 12.0])
def test_ball_beats_every_pattern_of_three_levels(classes: int, radius: float) -> None:
    """Any number of classes at the upper level; the proof says one (or all) is best."""
    bound = over_ball(classes, Upper(radius), 0.0)
    angles = np.linspace(0.0, 2.0 * np.pi, 721)[:, None]
    for share in (1, 2, 3, 10, classes // 2, classes - 2):
        first = np.zeros(classes)
        first[0], first[1 : 1 + share] = -1.0, 1.0 / share
        second = np.zeros(classes)
        second[1 : 1 + share], second[1 + share :] = 1.0 / share, -1.0 / (classes - 1 - share)
        first /= np.linalg.norm(first)
        second -= (second @ first) * first
        second /= np.linalg.norm(second)
        p = softmax(radius * (np.cos(angles) * first + np.sin(angles) * second))
        assert np.linalg.norm(p - target(classes, 0.0), axis=1).max() <= bound.norm.value
        assert (1.0 - p[:, 0]).max() <= bound.miss.value


@pytest.mark.parametrize(
    ("radius", "classes", "known"),
    [
        (2.0, 16, 1.041275),
        (0.1, 10, 0.95827),
        (3.0, 10, 1.21679),
        (5.0, 100, 1.16669),
        (8.0, 1000, 1.24967),
        (8.0, 3, 1.41410),
    ],
)
def test_known_values(radius: float, classes: int, known: float) -> None:
    assert over_ball(classes, Upper(radius), 0.0).norm.value == pytest.approx(known, rel=1e-5)


def test_one_large_rival_misses_more_than_many_small_ones() -> None:
    """For K = 10 and R = 10 spreading the mass over all rivals is *not* the worst case."""
    spread_out = 1.0 / (1.0 + 9.0 * math.exp(10.0 * math.sqrt(10.0 / 9.0)))
    one_rival = 1.0 / (1.0 + math.exp(10.0 * math.sqrt(2.0)) + 8.0 * math.exp(10.0 / math.sqrt(2)))
    assert one_rival < spread_out
    assert over_ball(10, Upper(10.0), 0.0).miss.value >= 1.0 - one_rival


@given(st.floats(0.0, 30.0))
def test_two_classes_have_a_closed_form(radius: float) -> None:
    """√2·σ(√2·R), in 60 digits."""
    with mpmath.workdps(60):
        root = mpmath.sqrt(2)
        exact = root / (1 + mpmath.exp(-root * mpmath.mpf(radius)))
        bound = over_ball(2, Upper(radius), 0.0)
        assert exact <= bound.norm.value <= exact * (1 + mpmath.mpf("1e-13"))
        assert exact / root <= bound.miss.value


@given(st.integers(2, 10**6), st.floats(0.0, 1.0, exclude_max=True))
def test_simplex_is_the_largest_vertex(classes: int, smoothing: float) -> None:
    with mpmath.workdps(60):
        share = mpmath.mpf(smoothing) / classes
        hit = 1 - mpmath.mpf(smoothing) + share
        exact = mpmath.sqrt((1 - share) ** 2 + hit**2 + (classes - 2) * share**2)
        bound = over_simplex(classes, smoothing).norm.value
        assert exact <= bound <= exact * (1 + mpmath.mpf(2) ** -51)


def test_simplex_without_smoothing_is_root_two() -> None:
    assert over_simplex(10, 0.0).norm == Upper(2.0).sqrt()


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("spread", [0.0, 0.7, 3.0, 9.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_spread_is_the_best_corner(classes: int, spread: float, smoothing: float) -> None:
    bound = over_spread(classes, Upper(spread), smoothing)
    corners = spread * np.array(list(np.ndindex(*[2] * classes)), dtype=float)
    norms = [error(corner, smoothing) for corner in corners]
    assert bound.norm.value == pytest.approx(max(norms), rel=1e-13)
    assert bound.miss.value == pytest.approx(max(1 - softmax(corners)[:, 0]), rel=1e-13)
    inside = np.random.default_rng(0).uniform(0.0, spread, (4000, classes))
    assert max(error(z, smoothing) for z in inside) <= bound.norm.value
    assert (1.0 - softmax(inside)[:, 0]).max() <= bound.miss.value + 1e-15


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 40),
    st.floats(0.0, 40.0),
    st.floats(0.0, 80.0),
    st.sampled_from([0.0, 0.1, 0.9]),
    st.integers(0, 2**32 - 1),
)
def test_never_exceeded_by_random_logits(
    classes: int, radius: float, spread: float, smoothing: float, seed: int
) -> None:
    bound = softmax_error(classes, Upper(radius), Upper(spread), smoothing)
    rng = np.random.default_rng(seed)
    for start in rng.normal(size=(50, classes)) * 10.0 ** rng.uniform(-2, 2, (50, 1)):
        z = start * min(1.0, radius / np.linalg.norm(start), spread / np.ptp(start))
        assert error(z, smoothing) <= bound.norm.value + 1e-12
        assert 1.0 - softmax(z)[0] <= bound.miss.value + 1e-12


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 50), st.floats(0.01, 20.0), st.floats(1.0, 3.0))
def test_monotone_in_the_radius(classes: int, radius: float, factor: float) -> None:
    small = over_ball(classes, Upper(radius), 0.0)
    large = over_ball(classes, Upper(radius * factor), 0.0)
    assert small.norm.value <= large.norm.value * (1 + 1e-4)
    assert softmax_error(classes, INFINITE, INFINITE, 0.0).norm == Upper(2.0).sqrt()


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="two classes"):
        softmax_error(1, INFINITE, INFINITE, 0.0)
