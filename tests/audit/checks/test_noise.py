"""Tests of the noise by chance: right noise is not accused, and wrong noise is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.audit.checks.chance import ChanceTest
from lipcert.audit.checks.noise import AddedNoise, Pool
from lipcert.audit.records import Verdict


def added(d: np.ndarray, clean: np.ndarray | None = None) -> AddedNoise:
    zero = np.zeros_like(d)
    return AddedNoise("step 0", 0, 0, "w", d, zero + 1 if clean is None else clean, zero, 1.0)


def shown(item: AddedNoise) -> list[ChanceTest]:
    return Pool().take([item])


def chances(d: np.ndarray, clean: np.ndarray | None = None) -> dict[str, float]:
    return {
        f"{test.verdict.value}{test.message.partition(':')[2][:19]}": math.exp(test.log_chance)
        for test in shown(added(d, clean))
    }


def test_p_values_of_right_noise_are_uniform_enough() -> None:
    """Of 300 right noises each test gives a probability below 0.05 to about a twentieth."""
    random = np.random.default_rng(0)
    found = [list(chances(random.standard_normal(1200)).values()) for _ in range(300)]
    below = np.mean(np.array(found) < 0.05, axis=0)
    assert np.all(below < 0.11)
    assert np.all(below[2:] > 0.01)
    assert np.min(found) > 1e-9


@pytest.mark.parametrize("entries", [1, 2, 10])
def test_short_tensors_are_not_accused(entries: int) -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        assert min(chances(random.standard_normal(entries)).values()) > 1e-9


def test_uniform_noise_of_the_right_variance_is_not_gaussian() -> None:
    random = np.random.default_rng(2)
    found = chances(random.uniform(-math.sqrt(3), math.sqrt(3), 20_000))
    assert [name for name, chance in found.items() if chance < 1e-9] == [
        "violation the noise is not G"
    ]


def test_noise_that_takes_back_the_gradient() -> None:
    random = np.random.default_rng(3)
    clean = random.standard_normal(5000)
    found = chances(random.standard_normal(5000) - 0.2 * clean, clean)
    assert found["violation the noise is corre"] < 1e-9


def test_rounding_of_the_stored_type_is_no_evidence() -> None:
    """Noise far below the spacing of the stored numbers: the difference says nothing."""
    d = np.zeros(2000)
    d[::2] = 64.0
    item = AddedNoise("s", 0, 0, "w", d, np.full(2000, 1e9), np.full(2000, 128.0), 1.0)
    assert all(test.log_chance > math.log(1e-9) for test in shown(item))


def test_no_noise_where_none_is_stated() -> None:
    item = AddedNoise("s", 0, 0, "w", np.ones(5), np.ones(5), np.zeros(5), 0.0)
    (test,) = shown(item)
    assert test.verdict is Verdict.INCONCLUSIVE
