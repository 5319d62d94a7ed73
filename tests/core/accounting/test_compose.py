"""The Fourier transform stays within the error that it states."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from lipcert.core.accounting.compose import convolution_power


def _exact_power(measure: list[Fraction], times: int) -> list[Fraction]:
    size = len(measure)
    result = measure
    for _ in range(times - 1):
        result = [
            sum(result[j] * measure[(k - j) % size] for j in range(size)) for k in range(size)
        ]
    return result


@pytest.mark.parametrize(("size", "times"), [(1, 3), (2, 5), (8, 1), (8, 2), (16, 9), (32, 6)])
@pytest.mark.parametrize("spread", [0.0, 40.0])
def test_error_is_honest_and_small(size: int, times: int, spread: float) -> None:
    generator = np.random.default_rng(size * times)
    measure = np.exp(-spread * generator.random(size))
    measure /= measure.sum()
    power, error = convolution_power(measure, times)
    exact = _exact_power([Fraction(float(x)) for x in measure], times)
    found = [abs(Fraction(float(y)) - e) for y, e in zip(power, exact, strict=True)]
    assert max(found) <= Fraction(error)
    assert error < 1e-12


def test_long_measures_agree_with_numpy() -> None:
    measure = np.random.default_rng(0).random(1 << 14)
    measure /= measure.sum()
    power, error = convolution_power(measure, 1000)
    other = np.fft.ifft(np.fft.fft(measure) ** 1000).real
    assert float(np.max(np.abs(power - other))) < error < 1e-13
