"""Bounds of probabilities against brute force: never below the truth, and not far above it."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom

from lipcert.audit.checks.chance import (
    FALSE_ALARM,
    SHARE,
    ChanceTest,
    log_binomial_at_least,
    log_chernoff,
    power_of_ten,
)
from lipcert.audit.checks.draws import log_two_sided


@pytest.mark.parametrize(("total", "first", "second"), [(6, 2, 3), (7, 3, 3), (5, 3, 3), (8, 0, 2)])
def test_overlaps_obey_the_binomial_bound(total: int, first: int, second: int) -> None:
    fixed = set(range(first))
    shared = np.array([len(fixed & set(batch)) for batch in combinations(range(total), second)])
    for seen in range(int(max(shared)) + 1):
        bound = float(log_two_sided(np.array(seen), second, first / total))
        assert math.exp(bound) >= min(
            1.0, 2.0 * np.mean(shared <= seen), 2.0 * np.mean(shared >= seen)
        )


@pytest.mark.parametrize("probability", [1e-12, 0.03, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("trials", [1, 7, 400])
def test_the_binomial_bound_lies_above_the_tail(trials: int, probability: float) -> None:
    counts = np.arange(trials + 1)
    bound = log_binomial_at_least(counts, trials, np.full(trials + 1, math.log(probability)))
    exact = binom.logsf(counts - 1, trials, probability)
    assert np.all(bound >= exact - 1e-9)
    assert np.all(bound <= 0.0)
    above = (counts > trials * probability) & (exact > -600.0)
    assert np.all(bound[above] - exact[above] <= 1.0 + 0.5 * math.log(8.0 * trials))


def test_negatively_associated_indicators_obey_the_binomial_bound() -> None:
    """Without replacement: the number of examples in k of 3 batches of 2 out of 4, by counting."""
    subsets = [set(batch) for batch in combinations(range(4), 2)]
    for k in range(4):
        seen = [
            sum(sum(example in batch for batch in batches) >= k for example in range(4))
            for batches in product(subsets, repeat=3)
        ]
        log_p = np.full(5, binom.logsf(k - 1, 3, 0.5))
        bound = log_binomial_at_least(np.arange(5), 4, log_p)
        truth = np.array([np.mean(np.array(seen) >= count) for count in range(5)])
        assert np.all(np.exp(bound) >= truth - 1e-12)


def test_chernoff_on_a_binomial() -> None:
    def log_moment(slope: float) -> float:
        return 50 * math.log1p(0.2 * math.expm1(slope))

    for value in (0, 3, 9, 10):
        assert log_chernoff(log_moment, value, upper=False) >= binom.logcdf(value, 50, 0.2)
    for value in (10, 11, 20, 50):
        found = log_chernoff(log_moment, value, upper=True)
        assert found >= binom.logsf(value - 1, 50, 0.2) - 1e-9
        assert found <= binom.logsf(value - 1, 50, 0.2) + 3.0


def test_the_budget_of_false_alarms() -> None:
    """Batches, noise, reuse of noise, ε from below."""
    assert 5.0 * SHARE == pytest.approx(FALSE_ALARM) == 1e-6
    assert ChanceTest(math.log(0.9e-9), "").is_too_rare(1e-9)
    assert not ChanceTest(math.log(1.1e-9), "").is_too_rare(1e-9)
    assert [power_of_ten(chance) for chance in (-math.inf, -2303.0, 0.0)] == ["0", "1e-1000", "1e0"]
