"""Magnitudes that come again are seen in any order; those of independent noises are left alone."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import erfinv, ndtr, ndtri

from lipcert.audit.checks.chance import SHARE, ChanceTest
from lipcert.audit.checks.noise import AddedNoise
from lipcert.audit.checks.seed_reuse import Values, _predicted

STD, ENTRIES = 0.04, 6000


def values(z: np.ndarray, clean: np.ndarray | None = None, dtype: type = np.float32) -> Values:
    """As they are recorded in a type."""
    clean = np.zeros(len(z)) if clean is None else clean.astype(dtype).astype(np.float64)
    noised = (clean + STD * z).astype(dtype).astype(np.float64)
    moved = float(np.finfo(dtype).eps) * (np.abs(clean) + np.abs(noised))
    return Values.of(AddedNoise("s", 0, 0, "w", noised - clean, clean, moved, STD))


def compared(first: Values, second: Values) -> ChanceTest:
    return first.in_other(second, "both", "s", ENTRIES)


def predicted(noises: list[Values]) -> list[float]:
    """The chances that noises on one tensor follow from what was before them."""
    releases = [{"w": SimpleNamespace(values=item)} for item in noises]
    return [test.log_chance for test in _predicted(releases)]


def normal(random: np.random.Generator) -> np.ndarray:
    return random.standard_normal(ENTRIES)


def of_floats(random: np.random.Generator) -> np.ndarray:
    return random.standard_normal(ENTRIES, dtype=np.float32).astype(np.float64)


def of_23_bits(random: np.random.Generator) -> np.ndarray:
    """Normal numbers from uniform ones of 23 bits, as some libraries draw them."""
    uniform = (random.integers(0, 1 << 23, ENTRIES) + 0.5) / (1 << 22) - 1.0
    return np.asarray(math.sqrt(2.0) * erfinv(uniform), dtype=np.float64)


@pytest.mark.sample(7)
@pytest.mark.parametrize("draw", [normal, of_floats, of_23_bits])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0.0, 0.02, 1.0])
def test_chances_of_independent_noises_are_those_said(draw, dtype, size) -> None:
    """size: of the clean gradients, of which the second noise has its own."""
    random = np.random.default_rng(0)
    found, follows = [], []
    for _ in range(25):
        parts = [values(draw(random), size * normal(random), dtype) for _ in range(2)]
        found.append(math.exp(compared(*parts).log_chance))
        follows += predicted(parts)
    assert np.mean(np.array(found) < 0.05) <= 0.05
    assert np.mean(np.array(follows) < math.log(0.05)) <= 0.05
    assert min(found) > 1e-3


@pytest.mark.parametrize(
    "copied",
    [
        lambda z, random: random.permutation(z),
        lambda z, random: z * random.choice([-1.0, 1.0], len(z)),
        lambda z, _: z.reshape(60, -1).T.ravel(),
        lambda z, random: np.where(random.random(len(z)) < 0.1, -z[::-1], normal(random)),
    ],
    ids=["permuted", "signs", "transposed", "a tenth, reversed"],
)
@pytest.mark.parametrize("size", [0.0, 0.2])
def test_magnitudes_that_come_again_are_seen(copied, size) -> None:
    random = np.random.default_rng(1)
    z = normal(random)
    first, second = (
        values(item, size * normal(random)) for item in (z, np.asarray(copied(z, random)))
    )
    assert compared(first, second).log_chance < math.log(SHARE)


def of_shifted_bits(random: np.random.Generator) -> np.ndarray:
    z = normal(random)
    for place in range(31, ENTRIES):
        z[place] = math.copysign(z[place], z[place - 3] * z[place - 31])
    return z


def multiplied(random: np.random.Generator) -> np.ndarray:
    uniform = random.random((ENTRIES // 2, 1))
    return np.concatenate([uniform, 75.0 * uniform % 1.0], axis=1)


def of_two_angles(random: np.random.Generator) -> np.ndarray:
    """Of Box and Muller."""
    first, second = multiplied(random).T
    waves = np.exp(2j * math.pi * second) * np.sqrt(-2.0 * np.log(first))
    return np.stack([waves.real, waves.imag], axis=1).ravel()


@pytest.mark.parametrize(
    "drawn",
    [
        lambda random: [of_shifted_bits(random)],
        lambda random: [ndtri(multiplied(random)).ravel()],
        lambda random: [of_two_angles(random)],
        lambda random: [z := normal(random), ndtri(75.0 * ndtr(z) % 1.0)],
    ],
    ids=["shifted bits", "multiplied", "before Box and Muller", "at the next step"],
)
def test_a_weak_generator_is_seen(drawn: Callable[..., list[np.ndarray]]) -> None:
    chances = predicted([values(z) for z in drawn(np.random.default_rng(4))])
    assert sum(chance < math.log(SHARE / 1e3) for chance in chances) == 1, chances


def test_noise_of_few_bits_is_left_to_the_other_check() -> None:
    """It may be that of a gradient of as few bits, and repeats its values by chance."""
    random = np.random.default_rng(2)
    first, second = (values(normal(random).astype(np.float16).astype(float)) for _ in range(2))
    assert compared(first, second).log_chance == 0.0


def test_nothing_is_said_of_noise_of_no_stated_deviation() -> None:
    zero = np.zeros(3)
    assert Values.of(AddedNoise("s", 0, 0, "w", zero, zero, zero, None)) is None
