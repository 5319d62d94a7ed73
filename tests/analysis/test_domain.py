"""The admissible inputs."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lipcert.analysis.premises import check_domain, norm_down
from lipcert.errors import UsageError
from lipcert.settings.settings import Settings


@given(hnp.arrays(np.float64, st.integers(0, 12), elements=st.floats(-1e100, 1e100)))
def test_the_least_norm_is_below_the_exact_one(vector: np.ndarray) -> None:
    exact = sum((Fraction(float(v)) ** 2 for v in vector), Fraction(0))
    found = Fraction(norm_down(vector))
    assert found**2 <= exact
    assert exact <= found**2 * (1 + Fraction(1, 10**13)) or exact < Fraction(1, 10**500)


def test_the_least_norm_of_a_long_array_is_below_the_exact_one() -> None:
    """2^20 squares of a number whose square is not a float64."""
    vector = np.full(2**20 + 1, 1.0 + 2.0**-30)
    exact = len(vector) * Fraction(1.0 + 2.0**-30) ** 2
    assert Fraction(norm_down(vector)) ** 2 <= exact <= Fraction(norm_down(vector) * 1.00001) ** 2


@pytest.mark.parametrize(
    ("norm", "box"), [(0.1, (0.5, 1.0)), (1.0, (0.5, 1.0)), (0.5, (-2.0, -1.0))]
)
def test_an_empty_domain_is_a_usage_error(norm: float, box: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="the least is"):
        check_domain((100,), Settings(input_norm=norm, input_box=box))


def test_a_box_that_the_ball_reaches_is_admitted() -> None:
    check_domain((100,), Settings(input_norm=5.0, input_box=(0.5, 1.0)))
    check_domain((100,), Settings(input_norm=0.0, input_box=(-1.0, 1.0)))
