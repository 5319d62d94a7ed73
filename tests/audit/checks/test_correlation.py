"""Noises compared at all shifts: copies are found, independent noises are left alone."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from lipcert.audit.checks.chance import SHARE
from lipcert.audit.checks.seed_reuse import Correlation, Piece, best_correlation, unshifted


def piece(noise: np.ndarray, moved: float = 0.0) -> Piece:
    return Piece(noise, np.full_like(noise, moved))


def own_correlation(noise: Piece) -> Correlation:
    return best_correlation(noise, noise)


def normal(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count)


@given(st.integers(8, 40), st.integers(8, 40), st.integers(0, 1000), st.booleans())
def test_the_best_shift_is_that_of_brute_force(p: int, q: int, seed: int, other: bool) -> None:
    """The one whose probability is the smallest, among all segments of 8 entries or more."""
    a, b = normal(p, seed), normal(q, seed + 1) if other else np.roll(normal(q, seed), 3)
    least = 1.0
    for shift in range(8 - p, q - 7):
        x, y = a[max(0, -shift) : q - shift], b[max(0, shift) : p + shift]
        assert len(x) == len(y) >= 8
        cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
        half = (len(x) - 1) / 2
        least = min(least, 2 * beta.cdf((1 - min(1.0, abs(cosine))) / 2, half, half))
    found = best_correlation(piece(a), piece(b))
    assert found.chance >= least * (1 - 1e-6) or least < 1e-50
    assert found.chance <= max(100 * least, 1e-12)


def test_chances_of_independent_noises_are_those_said() -> None:
    """Of 400 pairs, three releases together, and of 400 noises with themselves, at all shifts."""
    likes = []
    for seed in range(400):
        a, b = (normal(3 * size, 2 * seed + size % 4).reshape(3, size) for size in (90, 61))
        likes.append((best_correlation(piece(a), piece(b)), own_correlation(piece(a[0]))))
    assert {tuple(like.tests for like in both) for both in likes} == {(90 + 61 - 1, 2 * 89)}
    pairs, selves = np.array([[like.tests * like.chance for like in both] for both in likes]).T
    for found in (pairs, selves):
        assert np.mean(found < 0.05) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)
        assert min(found) > SHARE
    assert np.mean(pairs < 1.0) > 0.02  # the tests are not void


@pytest.mark.parametrize("factor", [1.0, -3.0, 1e-3])
@pytest.mark.parametrize("shift", [-700, -5, 0, 12, 930])
def test_a_shifted_copy_of_a_part_is_found_with_its_place(factor: float, shift: int) -> None:
    a, b = normal(1000, 1), normal(1500, 2)
    start, stop = max(0, -shift), min(1000, 1500 - shift)
    b[start + shift : stop + shift] = factor * a[start:stop]
    found = best_correlation(piece(a), piece(b))
    assert (found.shift, abs(found.cosine)) == (shift, pytest.approx(1.0))
    assert found.chance < SHARE / 1e7


@pytest.mark.parametrize("period", [1, 7, 64, 500, 900])
def test_repetition_within_one_noise_is_found(period: int) -> None:
    repeated = np.resize(normal(period, 3), 1000)
    found = own_correlation(piece(repeated))
    assert found.chance < SHARE / 1e7
    assert found.shift % period == 0


def test_what_is_said_of_the_power() -> None:
    """10·√M copied entries of M are found among 10⁷ shifts, 5·√M are not."""
    count = 40_000
    a = normal(count, 4)
    for factor, is_found in ((10, True), (5, False)):
        b = normal(count, 5)
        copied = factor * math.isqrt(count)
        b[:copied] = a[:copied]
        assert (best_correlation(piece(a), piece(b)).chance < SHARE / 1e7) == is_found


def test_noises_of_several_releases_are_one() -> None:
    """Too weak a copy is found together, far from the beginning."""
    many = normal(6 * 40_000, 6).reshape(6, -1)
    few = 0.5 * many[:, 30_000:30_100] + math.sqrt(0.75) * normal(600, 7).reshape(6, -1)
    assert best_correlation(piece(few[0]), piece(many[0])).chance > SHARE / 1e5
    found = best_correlation(piece(few), piece(many))
    assert (found.shift, found.chance < 1e-30) == (30_000, True)
    module = sys.modules["lipcert.audit.checks.seed_reuse"]
    weak = (many + 0.06 * np.roll(many, 3, axis=1))[:, :8000]
    alike = [{"w": module._Drawn("s", "w", "noise", True, piece(row))} for row in weak]
    assert min(test.log_chance for test in module._shifted(alike)) < math.log(1e-12)


def test_rounding_is_no_evidence() -> None:
    """Noise below the unit of what it is added to: d holds nothing but the same roundings."""
    d = np.resize([64.0, -64.0], 2000)
    assert own_correlation(piece(d)).chance == 0.0
    assert own_correlation(piece(d, 64.0)).chance > 0.99
    assert best_correlation(piece(d), piece(d, 64.0)).chance > 0.99
    assert unshifted(piece(d, 64.0), piece(d)).chance > 0.99


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_short_noises_are_not_shifted(count: int) -> None:
    short, long = piece(normal(count, 6)), piece(normal(50, 7))
    assert best_correlation(short, long).chance == best_correlation(long, short).chance == 1.0
    assert own_correlation(short).chance == 1.0


def test_zeros_are_like_nothing() -> None:
    zero = piece(np.zeros(50))
    assert best_correlation(zero, piece(normal(50, 8))).chance == 1.0
    assert own_correlation(zero).chance == 1.0
