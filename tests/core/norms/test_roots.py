from __future__ import annotations

import mpmath
import pytest

from lipcert.core.norms.torus import MAX_COUNT, half_turns


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 16, 57, 113, 226])
def test_parts_are_within_the_promise(count):
    roots = half_turns(count)
    assert roots.shape == (2 * count,)
    with mpmath.workprec(200):
        for m, root in enumerate(roots.tolist()):
            angle = mpmath.pi * m / count
            assert abs(mpmath.mpf(root.real) - mpmath.cos(angle)) <= mpmath.mpf(2) ** -53
            assert abs(mpmath.mpf(root.imag) - mpmath.sin(angle)) <= mpmath.mpf(2) ** -53


def test_the_power_series_is_as_good_as_its_proof():
    from lipcert.core.norms import torus

    with mpmath.workprec(300):
        half_turn = torus._half_turn()
        assert abs(half_turn - mpmath.pi * mpmath.mpf(2) ** 128) < 2**12


@pytest.mark.parametrize("count", [0, -1, MAX_COUNT + 1])
def test_other_counts(count):
    with pytest.raises(ValueError, match="half turn"):
        half_turns(count)
