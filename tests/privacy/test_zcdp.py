"""The zCDP statement against its definition, in exact arithmetic."""

import math
from fractions import Fraction

import pytest

from lipcert.privacy.account import zero_concentrated
from lipcert.privacy.accounting import epsilon
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan

SHUFFLED = TrainingPlan(
    1000, Sampling.SHUFFLE, 1e-5, 10, epochs=7, neighbours=Neighbouring.REPLACE_ONE
)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.7])
def test_rho_adds_up_over_epochs_and_converts(sigma) -> None:
    found = zero_concentrated(SHUFFLED, sigma)
    assert Fraction(found.rho_per_release) >= Fraction(1, 2) / Fraction(sigma) ** 2
    assert Fraction(found.rho) >= 7 * Fraction(1, 2) / Fraction(sigma) ** 2
    rho = 3.5 / sigma**2
    assert found.rho == pytest.approx(rho)
    assert found.epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.7])
def test_the_simple_conversion_is_above_the_accountant(sigma) -> None:
    assert zero_concentrated(SHUFFLED, sigma).epsilon >= epsilon(SHUFFLED, sigma)


def test_sampling_anew_has_no_such_statement() -> None:
    assert zero_concentrated(TrainingPlan(1000, Sampling.POISSON, 1e-5, 10, 5), 1.0) is None
