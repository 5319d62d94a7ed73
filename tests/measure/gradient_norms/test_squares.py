"""Sums of squares with their errors, against exact ones."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from lipcert.measure.gradient_norms.squares import Squares


@pytest.mark.parametrize("parts", [1, 2, 7, 300])
def test_a_total_is_within_its_error(parts: int) -> None:
    random = np.random.default_rng(parts)
    values = np.abs(random.standard_normal((parts, 5))) * 10.0 ** random.integers(-9, 9, (parts, 5))
    errors = np.abs(values) * 1e-16 * random.random((parts, 5))
    pairs = [map(torch.tensor, pair) for pair in zip(values, errors, strict=True)]
    given = [Squares.within(*pair) for pair in pairs]
    total = Squares.total(given)
    for place in range(5):
        exact = sum(map(Fraction, values[:, place].tolist()), Fraction(0))
        slack = sum(map(Fraction, errors[:, place].tolist()), Fraction(0))
        off = abs(Fraction(float(total.value[place])) - exact)
        assert off + slack <= Fraction(float(total.error[place]))
        least = slack + Fraction(2**-50) * parts * sum(map(abs, map(Fraction, values[:, place])))
        assert Fraction(float(total.error[place])) <= 2 * least
    assert torch.isnan(Squares.total([*given, Squares(*torch.full((2, 5), torch.nan))]).value).all()
