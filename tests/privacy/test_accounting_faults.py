"""Published ways of accounting that claim too little, by the numbers of the example script."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from lipcert.privacy.account import Declaration, account_for
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan

SCRIPT = Path(__file__).parents[2] / "examples" / "accounting_faults.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("accounting_faults", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


EXPECTED = [  # claimed, true, code
    (1.83, 4.48, "LC403"),
    (1.83, 13.36, "LC403"),
    (1.83, 41.40, "LC403"),
    (1.57, 7.47, "LC403"),
    (3.24, 10.00, "LC402"),
    (1.83, math.inf, "LC401"),
    (1.83, 1195.8, "LC406"),
    (1.83, 2.844, "LC404"),
    (10.0, 10.39, ""),
]


@pytest.mark.nightly
def test_every_row_is_reproduced(script) -> None:
    rows = list(script.rows())
    assert len(rows) == len(EXPECTED)
    for row, (claimed, true, code) in zip(rows, EXPECTED, strict=True):
        assert row.code == code, row.name
        assert row.claimed == pytest.approx(claimed, abs=0.006), row.name
        assert row.true == pytest.approx(true, rel=2e-3), row.name
        assert row.claimed < row.true


@pytest.mark.parametrize(("sigma", "batches"), [(0.5, 1000), (0.8, 100)])
def test_an_attack_on_shuffled_batches_lies_between_poisson_and_the_account(
    script, sigma, batches
) -> None:
    run = TrainingPlan(
        50 * batches, Sampling.SHUFFLE, 1e-5, 50, epochs=1, neighbours=Neighbouring.ZERO_OUT
    )
    claim = Declaration(claimed_sampling=Sampling.POISSON)
    account = account_for(run, sigma, declaration=claim)
    reached = script.shuffle_attack(sigma, batches, 1e-5)
    assert account.claimed_epsilon < reached <= account.epsilon
    assert reached > 0.95 * account.epsilon


def test_the_classical_formula_misses_its_delta_at_large_epsilon(script) -> None:
    from scipy.stats import norm

    sigma = script.classical_sigma(10.0, 1e-5)
    delta = norm.cdf(0.5 / sigma - 10 * sigma) - math.exp(10) * norm.cdf(-0.5 / sigma - 10 * sigma)
    assert delta == pytest.approx(2.27e-5, rel=1e-2)


def test_a_random_divisor_doubles_what_one_example_moves() -> None:
    others = -np.ones(31)
    moved = abs((others.sum() + 1.0) / 32 - others.sum() / 31)
    assert moved == pytest.approx(2.0 / 32)


def test_the_scale_of_the_noise_tells_the_size_of_the_batch() -> None:
    """Noise s/31 or s/32 on 100,000 entries, no gradient at all."""
    dimension, cut = 100_000, 1.0 / (31 * 32)
    small = chi2.cdf(dimension * cut * 31**2, dimension)
    large = chi2.cdf(dimension * cut * 32**2, dimension)
    assert large - small > 0.999
