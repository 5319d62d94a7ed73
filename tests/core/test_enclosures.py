"""Enclosures against mpmath: they hold the exact value, and they are narrow."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core import enclosures
from lipcert.core.interval import Interval, exact
from lipcert.core.rules import powers, smooth
from lipcert.core.rules.waves import Wave

mpmath.mp.dps = 50

FUNCTIONS = {
    **{name: getattr(enclosures, name) for name in ("exp", "sigmoid", "tanh", "erf", "log")},
    "softplus": smooth.softplus_of,
    "inverse_tangent": smooth.inverse_tangent,
}
WHOLE_LINE = {
    "exp": mpmath.exp,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "tanh": mpmath.tanh,
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "erf": mpmath.erf,
    "inverse_tangent": mpmath.atan,
}
MONOTONE = [*WHOLE_LINE, "log"]


def _points() -> np.ndarray:
    rng = np.random.default_rng(1)
    special = [0.0, -0.0, 5e-324, -5e-324, 1e-300, 6.0, -6.0, 350.5, -350.5, 699.9, -699.9]
    rounded = np.linspace(-8.0, 8.0, 161)
    return np.concatenate([rounded, rng.normal(size=60) * 1e-8, rng.normal(size=90) * 60, special])


def _width(got: Interval, points: np.ndarray, oracle) -> float:
    """Largest width relative to 1 + |value|; fails where the value is outside."""
    widest = 0.0
    for point, low, high in zip(points, got.lo, got.hi, strict=True):
        value = oracle(mpmath.mpf(float(point)))
        assert mpmath.mpf(float(low)) <= value <= mpmath.mpf(float(high)), point
        widest = max(widest, float((high - low) / (1 + abs(value))))
    return widest


@pytest.mark.parametrize("name", WHOLE_LINE)
def test_encloses_the_exact_value_narrowly(name: str) -> None:
    points = _points()
    got = FUNCTIONS[name](exact(points))
    assert _width(got, points, WHOLE_LINE[name]) < 1e-12


def test_exponential_is_precise_relative_to_its_value() -> None:
    points = np.linspace(-699.0, 699.0, 301)
    got = enclosures.exp(exact(points))
    assert np.all(got.hi / got.lo < 1.0 + 1e-13)
    _width(got, points, mpmath.exp)


def test_logarithm() -> None:
    rng = np.random.default_rng(2)
    near_one = 1.0 + rng.normal(size=100) * 1e-9
    points = np.concatenate([np.exp(rng.normal(size=100) * 30), near_one, [1.0, 2.0, 0.5]])
    assert _width(enclosures.log(exact(points)), points, mpmath.log) < 1e-12
    extreme = np.array([5e-324, 1e-310, 1.7976931348623157e308])
    _width(enclosures.log(exact(extreme)), extreme, mpmath.log)


def test_exponential_minus_one_below_zero_keeps_its_sign_and_its_chord() -> None:
    points = -np.abs(_points())
    got = powers.expm1(exact(points))
    assert _width(got, points, mpmath.expm1) < 1e-12
    assert np.all(got.hi <= 0.0)
    assert np.all(got.lo >= np.maximum(points, -1.0))


@pytest.mark.parametrize("name", MONOTONE)
def test_infinite_ends_are_enclosed_by_the_limits(name: str) -> None:
    whole = Interval(np.array([-np.inf]), np.array([np.inf]))
    got = FUNCTIONS[name](whole)
    limits = {
        "exp": (0.0, np.inf),
        "sigmoid": (0.0, 1.0),
        "tanh": (-1.0, 1.0),
        "softplus": (0.0, np.inf),
        "erf": (-1.0, 1.0),
        "inverse_tangent": (-np.pi / 2, np.pi / 2),
        "log": (-np.inf, np.inf),
    }[name]
    assert got.lo[0] <= limits[0]
    assert got.hi[0] >= limits[1]


@given(st.floats(-1e6, 1e6), st.integers(0, 3))
def test_waves_enclose_the_exact_value(point: float, quarters: int) -> None:
    got = Wave(quarters).over(exact(np.array([point])))
    turned = (mpmath.sin, mpmath.cos, mpmath.sin, mpmath.cos)[quarters]
    value = turned(mpmath.mpf(point)) * (1 if quarters < 2 else -1)
    assert mpmath.mpf(float(got.lo[0])) <= value <= mpmath.mpf(float(got.hi[0]))
    assert got.hi[0] - got.lo[0] < 1e-9


@given(st.floats(-40.0, 40.0), st.floats(0.0, 9.0), st.integers(0, 3))
def test_waves_over_boxes_hold_crests_and_troughs(low: float, width: float, quarters: int) -> None:
    high = low + width
    got = Wave(quarters).over(Interval(np.array([low]), np.array([high])))
    inside = np.sin(np.linspace(low, high, 4001) + quarters * np.pi / 2)
    assert got.lo[0] <= inside.min() + 1e-12
    assert got.hi[0] >= inside.max() - 1e-12
    assert got.lo[0] >= inside.min() - 1e-5
    assert got.hi[0] <= inside.max() + 1e-5


def test_waves_far_away_say_nothing() -> None:
    far = Interval(np.array([-np.inf, 1e7]), np.array([0.0, 1e7]))
    got = Wave(0).over(far)
    assert got.lo.tolist() == [-1.0, -1.0]
    assert got.hi.tolist() == [1.0, 1.0]


@given(st.floats(-800, 800), st.floats(0, 50), st.floats(0, 1))
def test_boxes_hold_the_points_between_their_ends(low: float, width: float, share: float) -> None:
    high = low + width
    point = min(max(low + share * width, low), high)
    box = Interval(np.array([low]), np.array([high]))
    for name, oracle in WHOLE_LINE.items():
        got = FUNCTIONS[name](box)
        value = oracle(mpmath.mpf(point))
        assert mpmath.mpf(float(got.lo[0])) <= value <= mpmath.mpf(float(got.hi[0])), name


def test_digits_are_read_outwards() -> None:
    third = enclosures.near("0.333333333333333333333")
    assert float(third.lo) < float(third.hi)
    assert mpmath.mpf(float(third.lo)) < mpmath.mpf(1) / 3 < mpmath.mpf(float(third.hi))
    assert float(third.hi) - float(third.lo) < 1e-16
