"""The suprema of ‖softmax(z) − t_y‖ and of 1 − p_y, against brute force and closed forms."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lipcert.core.losses.softmax import domain_of
from lipcert.core.losses.softmax_error import square_at

INF = math.inf


def over(
    classes: int, smoothing: float, radius: float = INF, width: float = INF
) -> tuple[float, float]:
    """The suprema of the error and of 1 − p_y that the core states."""
    domain = domain_of(classes, radius, width)
    return domain.error(Fraction(smoothing)), domain.miss()


def target(classes: int, smoothing: float):
    result = np.full(classes, smoothing / classes)
    result[0] += 1.0 - smoothing
    return result


def softmax(z):
    weights = np.exp(z - z.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def error(z, smoothing: float) -> float:
    return float(np.linalg.norm(softmax(z) - target(z.size, smoothing)))


def climbed(classes: int, radius: float, smoothing: float, starts: int) -> tuple[float, float]:
    """Largest error and miss found on the sphere from starts in the full space."""
    rng = np.random.default_rng(classes)
    best, miss = 0.0, 0.0

    def on_sphere(z):
        return z * (radius / np.linalg.norm(z))

    for start in range(starts):
        z = rng.normal(size=classes)
        if start < classes - 1:  # the first classes share the mass
            z = np.concatenate([[-1.0], np.ones(start + 1), np.zeros(classes - start - 2)])
        found = minimize(lambda u: -error(on_sphere(u), smoothing), z, method="BFGS").x
        best = max(best, error(on_sphere(found), smoothing))
        found = minimize(lambda u: softmax(on_sphere(u))[0], z, method="BFGS").x
        miss = max(miss, 1.0 - softmax(on_sphere(found))[0])
    return best, miss


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("radius", [0.1, 2.5, 10.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_ball_is_attained_and_never_exceeded(classes: int, radius: float, smoothing: float) -> None:
    bound = over(classes, smoothing, radius)
    norm, miss = climbed(classes, radius, smoothing, starts=4)
    assert norm <= bound[0] * (1 + 1e-14)
    assert bound[0] <= norm * (1 + (2e-6 if radius < 8.0 else 2e-4))
    assert miss <= bound[1] <= miss + (1e-6 if radius < 8.0 else 2e-4)


@pytest.mark.parametrize("classes", [30, 300])
@pytest.mark.parametrize("radius", [0.5, 3.0, 6.0, 12.0])
def test_ball_beats_every_pattern_of_three_levels(classes: int, radius: float) -> None:
    """Any number of classes at the upper level; the proof says one (or all) is best."""
    error_bound, miss_bound = over(classes, 0.0, radius)
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
        assert np.linalg.norm(p - target(classes, 0.0), axis=1).max() <= error_bound
        assert (1.0 - p[:, 0]).max() <= miss_bound


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
    assert over(classes, 0.0, radius)[0] == pytest.approx(known, rel=1e-4)


def test_one_large_rival_misses_more_than_many_small_ones() -> None:
    """For K = 10 and R = 10 spreading the mass over all rivals is *not* the worst case."""
    spread_out = 1.0 / (1.0 + 9.0 * math.exp(10.0 * math.sqrt(10.0 / 9.0)))
    one_rival = 1.0 / (1.0 + math.exp(10.0 * math.sqrt(2.0)) + 8.0 * math.exp(10.0 / math.sqrt(2)))
    assert one_rival < spread_out
    assert over(10, 0.0, 10.0)[1] >= 1.0 - one_rival


@given(st.floats(0.0, 12.0))
def test_two_classes_have_a_closed_form(radius: float) -> None:
    """√2·σ(√2·R), in 60 digits."""
    with mpmath.workdps(60):
        root = mpmath.sqrt(2)
        exact = root / (1 + mpmath.exp(-root * mpmath.mpf(radius)))
        error_bound, miss_bound = over(2, 0.0, radius)
        assert exact <= error_bound <= exact * (1 + mpmath.mpf("1e-13"))
        assert exact / root <= miss_bound


@given(st.integers(2, 10**6), st.floats(0.0, 1.0, exclude_max=True))
def test_simplex_is_the_largest_vertex(classes: int, smoothing: float) -> None:
    with mpmath.workdps(60):
        share = mpmath.mpf(smoothing) / classes
        hit = 1 - mpmath.mpf(smoothing) + share
        exact = mpmath.sqrt((1 - share) ** 2 + hit**2 + (classes - 2) * share**2)
        bound = over(classes, smoothing)[0]
        assert exact <= bound <= exact * (1 + mpmath.mpf(2) ** -51)


def test_simplex_without_smoothing_is_root_two() -> None:
    assert over(10, 0.0)[0] == pytest.approx(math.sqrt(2.0), rel=1e-15)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("spread", [0.0, 0.7, 3.0, 9.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_spread_is_the_best_corner(classes: int, spread: float, smoothing: float) -> None:
    bound = over(classes, smoothing, width=spread)
    corners = spread * np.array(list(np.ndindex(*[2] * classes)), dtype=float)
    norms = [error(corner, smoothing) for corner in corners]
    assert bound[0] == pytest.approx(max(norms), rel=1e-13)
    assert bound[1] == pytest.approx(max(1 - softmax(corners)[:, 0]), rel=1e-13)
    inside = np.random.default_rng(0).uniform(0.0, spread, (4000, classes))
    assert max(error(z, smoothing) for z in inside) <= bound[0] + 1e-15
    assert (1.0 - softmax(inside)[:, 0]).max() <= bound[1] + 1e-15


STATED = [
    (2, 3.0, 64.0, 0.0, "0x1.64e8f703df2a3p+0", "0x1.f8bf3ab6642dbp-1"),
    (3, 0.1, 1.0, 0.2, "0x1.5f244d55534e9p-1", "0x1.62f90622daa91p-1"),
    (3, 8.0, INF, 0.0, "0x1.6a09e667f3bcdp+0", "0x1.fffe67f035357p-1"),
    (3, 12.0, 20.0, 0.1, "0x1.581871ffb2b53p+0", "0x1.fffffe91d5718p-1"),
    (5, 2.5, INF, 0.3, "0x1.0860a6fa532a0p+0", "0x1.f84bb094b14b0p-1"),
    (7, 6.3, 1.7, 0.0, "0x1.101df1a331ad1p+0", "0x1.f0df22b73bf32p-1"),
    (10, 0.75, INF, 0.0, "0x1.00e67a67e8e1bp+0", "0x1.e76f1e687362dp-1"),
    (10, 3.0, 2.5, 0.1, "0x1.09684f5c16bd3p+0", "0x1.fb5f5aed23d01p-1"),
    (10, 11.9, 30.0, 0.0, "0x1.6a09e667f3029p+0", "0x1.fffffe5adf566p-1"),
    (100, 5.0, INF, 0.0, "0x1.2aac2d70c0497p+0", "0x1.fff74d3cae9f0p-1"),
    (100, 0.3, 0.05, 0.25, "0x1.7e52e1547bd40p-1", "0x1.fb2098a0bd9b5p-1"),
    (1000, 9.1, 0.7, 0.0, "0x1.00003737fc3bfp+0", "0x1.ffbee0f8418b0p-1"),
    (1000, INF, 40.0, 0.1, "0x1.58696d4f58012p+0", "0x1.0000000000000p+0"),
]


@pytest.mark.parametrize(("classes", "radius", "width", "smoothing", "error", "miss"), STATED)
def test_the_numbers_are_those_of_certificates_in_use(
    classes: int, radius: float, width: float, smoothing: float, error: str, miss: str
) -> None:
    """Up to a share of the room of a line: a checker that derived more would refuse what an older
    one has issued."""
    for number, stated in zip(over(classes, smoothing, radius, width), (error, miss), strict=True):
        assert 0.9 <= number / float.fromhex(stated) <= 1.0 + 2.0**-30


WEIGHT = st.fractions(0, 1000, max_denominator=1 << 80)


@given(
    st.fractions(0, 1, max_denominator=10**17),
    st.integers(1, 40),
    st.integers(0, 9000),
    WEIGHT,
    WEIGHT,
    st.fractions(Fraction(1, 1000), 1000),
)
def test_squares_are_exact(
    smoothing: Fraction, ones: int, others: int, one: Fraction, other: Fraction, label: Fraction
) -> None:
    """‖p − t‖², entry by entry in rational numbers."""
    classes = 1 + ones + others
    total = label + ones * one + others * other
    share = smoothing / classes
    square = (label / total - (1 - smoothing) - share) ** 2
    square += ones * (one / total - share) ** 2 + others * (other / total - share) ** 2
    first, second = (one.as_integer_ratio(), ones), (other.as_integer_ratio(), others)
    assert Fraction(*square_at(smoothing, label.as_integer_ratio(), first, second)) == square
