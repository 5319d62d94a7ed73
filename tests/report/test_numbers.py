"""A displayed bound is never below the bound."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.report.numbers import NO_BOUND, at_most, bar, percent, shape_text

bounds = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)


@given(value=bounds, digits=st.integers(1, 12))
def test_display_rounds_up_by_less_than_one_unit(value: float, digits: int) -> None:
    shown = Fraction(at_most(value, digits))
    assert shown >= Fraction(value)
    assert shown <= Fraction(value) * (1 + Fraction(10) ** (1 - digits))


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
        (1e300, "1e+300"),
        (None, NO_BOUND),
        (float("inf"), NO_BOUND),
    ],
)
def test_display(value: float | None, text: str) -> None:
    if text == "0.10001":  # the double 0.1 is a little above 1/10
        assert at_most(value) == text
    elif text == "1e-7":
        assert at_most(value) in {"1e-7", "1.0000e-7"}
    elif text == "1e+300":
        assert Fraction(at_most(value)) >= Fraction(1e300)
    else:
        assert at_most(value) == text


def test_decoration() -> None:
    assert percent(0.5) == "50.0%"
    assert percent(None) == ""
    assert bar(1.0) == "█" * 12
    assert bar(0.0) != ""
    assert shape_text((3, 32, 32)) == "3×32×32"
    assert shape_text(()) == "scalar"
