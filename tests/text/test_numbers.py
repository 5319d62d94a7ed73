"""A displayed bound is never below the bound."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.text.numbers import NO_BOUND, at_most, bar, measured, percent, shape_text
from tests.report.shown import number_of

bounds = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)


@given(value=bounds, digits=st.integers(1, 12))
def test_display_rounds_up_by_less_than_one_unit(value: float, digits: int) -> None:
    shown = number_of(at_most(value, digits))
    digits = min(digits, 3) if value >= 1e6 else digits
    assert shown >= Fraction(value)
    assert shown <= Fraction(value) * (1 + Fraction(10) ** (1 - digits))


@given(value=bounds, above=bounds)
def test_a_norm_is_never_shown_above_its_bound(value: float, above: float) -> None:
    norm, bound = sorted((value, above))
    assert number_of(measured(norm)) <= number_of(at_most(bound, 4))
    tolerance = Fraction(1, 200 if norm >= 1e6 else 2000)
    assert abs(number_of(measured(norm)) - Fraction(norm)) <= tolerance * Fraction(norm)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.1, "0.10001"),
        (28.0, "28"),
        (1.4142135623730954, "1.4143"),
        (123456.0, "123460"),
        (0.0000001, "1e-7"),
        (999_999.0, "10⁶"),
        (1e6, "10⁶"),
        (1_000_001.0, "1.01·10⁶"),
        (4.801e22, "4.81·10²²"),
        (None, NO_BOUND),
        (float("inf"), NO_BOUND),
    ],
)
def test_display(value: float | None, text: str) -> None:
    if text == "0.10001":  # the double 0.1 is a little above 1/10
        assert at_most(value) == text
    elif text == "1e-7":
        assert at_most(value) in {"1e-7", "1.0000e-7"}
    else:
        assert at_most(value) == text


def test_decoration() -> None:
    assert percent(0.5) == "50.0%"
    assert percent(None) == ""
    assert bar(1.0) == "█" * 12
    assert bar(0.0) != ""
    assert shape_text((3, 32, 32)) == "3×32×32"
    assert shape_text(()) == "scalar"
