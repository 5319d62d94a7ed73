"""Cell certificates: what is accepted proves the bound, what is weakened is refused."""

from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from lipcert.norms.cells import CellCertificate, verify_cells
from lipcert.norms.search import Search
from lipcert.norms.symbol import Symbol
from lipcert.training.projection.torus import Cells, Tiling, cosine_squared, cosine_squared_above
from lipcert.upper import Upper


def _symbol(shape: tuple[int, ...], seed: int = 0) -> Symbol:
    kernels = np.random.default_rng(seed).standard_normal(shape)
    return Symbol.of(kernels / (2.0 * np.abs(kernels).max()))


def _supremum(symbol: Symbol, points: int) -> float:
    """From below, on a uniform grid."""
    axes = len(symbol.spans)
    grid = np.indices((points,) * axes).reshape(axes, -1).T
    best = 0.0
    for group in range(symbol.groups):
        values = symbol.at(np.full(len(grid), group), grid, np.full(len(grid), points))
        best = max(best, float(np.max(np.linalg.eigvalsh(values))))
    return best


def _target(search: Search) -> float:
    """Slightly above the estimated peak."""
    return search.peak() * 1.006


SHAPES = [(1, 3, 2, 4), (1, 3, 4, 3, 3), (2, 2, 2, 2, 4), (1, 2, 2, 2, 2, 3), (3, 1, 1, 3, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_found_certificates_verify_and_bound(shape: tuple[int, ...]) -> None:
    symbol = _symbol(shape)
    search = Search.of(symbol, 1e11)
    certificate, rounding = search.prove(_target(search))
    assert verify_cells(symbol, certificate).value == pytest.approx(rounding.value, rel=1e-9)
    bound = Upper(certificate.square) + rounding
    assert bound.value >= _supremum(symbol, {4: 4001, 5: 60, 6: 20}[len(shape)])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_below_the_supremum_is_refused(shape: tuple[int, ...]) -> None:
    symbol = _symbol(shape)
    search = Search.of(symbol, 1e11)
    certificate, _ = search.prove(_target(search))
    too_small = _supremum(symbol, 64 if len(shape) < 6 else 20) * (1 - 1e-6)
    assert not verify_cells(symbol, replace(certificate, square=too_small)).is_finite


def test_no_cells_prove_a_value_below_the_supremum() -> None:
    """Even at a resolution where cos θ is almost 1, for a supremum that is known: 9² at w = 0."""
    symbol = Symbol.of(np.full((1, 1, 1, 3, 3), 0.5))
    too_small = 4.5**2 * (1 - 1e-6)
    for level in range(5):
        tiling = Tiling(symbol.spans, 5)
        cells = tiling.everything(1)
        for _ in range(level):
            cells = cells.children()
        claim = CellCertificate(tiling, (cells,), too_small)
        assert not verify_cells(symbol, claim).is_finite


def test_incomplete_or_repeated_cells_are_refused() -> None:
    symbol = _symbol((2, 3, 4, 3, 3))
    search = Search.of(symbol, 1e11)
    certificate, _ = search.prove(_target(search))
    for position, leaves in enumerate(certificate.leaves):
        others = certificate.leaves[:position] + certificate.leaves[position + 1 :]
        fewer = leaves.chosen(slice(1, None))
        twice = leaves.chosen(np.r_[0, 0, 1 : len(leaves)])
        moved = leaves.chosen(np.r_[1, 1 : len(leaves)])
        outside = Cells(leaves.level, leaves.group, leaves.index + 1000)
        negative = Cells(leaves.level, leaves.group, leaves.index - 1)
        for wrong in (fewer, twice, moved, outside, negative):
            claim = replace(certificate, leaves=(*others, wrong))
            assert not verify_cells(symbol, claim).is_finite
        both = replace(certificate, leaves=(*others, leaves, leaves.children()))
        assert not verify_cells(symbol, both).is_finite
    assert not verify_cells(symbol, replace(certificate, leaves=())).is_finite


def test_a_certificate_of_another_symbol_is_refused() -> None:
    symbol, other = _symbol((1, 3, 4, 3, 3)), _symbol((1, 3, 4, 3, 3), seed=5)
    search = Search.of(symbol, 1e11)
    certificate, rounding = search.prove(_target(search))
    assert not verify_cells(_symbol((1, 3, 4, 3, 2)), certificate).is_finite
    assert not verify_cells(_symbol((2, 3, 4, 3, 3)), certificate).is_finite
    if _supremum(other, 64) > (Upper(certificate.square) + rounding).value:
        assert not verify_cells(other, certificate).is_finite


@pytest.mark.parametrize("spans", [(1,), (3,), (2, 2), (5, 5), (1, 2), (2, 3), (1, 1, 2)])
@pytest.mark.parametrize("density", [1, 2, 3])
def test_every_frequency_is_near_a_centre(spans: tuple[int, ...], density: int) -> None:
    """Σ spans_i |w_i − c_i|/2 ≤ θ for some centre c, or its mirror image."""
    tiling = Tiling(spans, density)
    cells = tiling.everything(1).children()
    assert tiling.is_covered_by((cells,), 1)
    numerators, denominators = tiling.centres(cells)
    centres = 2 * np.pi * numerators / denominators[:, None]
    centres = np.concatenate((centres, -centres))
    samples = np.random.default_rng(0).uniform(0, 2 * np.pi, size=(300, len(spans)))
    distance = np.abs((samples[:, None] - centres + np.pi) % (2 * np.pi) - np.pi)
    nearest = (distance @ np.array(spans) / 2).min(axis=1)
    assert np.max(nearest) <= float(tiling.angle(1)) * np.pi * (1 + 1e-9)


def test_the_cosine_is_bounded_from_below() -> None:
    for density in (1, 2, 3, 7, 40):
        for level in range(5):
            tiling = Tiling((2, 2), density)
            exact = np.cos(float(tiling.angle(level)) * np.pi) ** 2
            value = tiling.cosine_squared(level).value
            assert value <= exact * (1 + 1e-14) + 1e-30
            assert value >= exact * (1 - 1e-9) - 1e-4


def test_the_cosine_is_bounded_from_both_sides() -> None:
    for angle in (Fraction(1, 1000), Fraction(1, 7), Fraction(1, 3), Fraction(49, 100)):
        with mpmath.workdps(40):
            exact = mpmath.cos(mpmath.pi * angle.numerator / angle.denominator) ** 2
            assert mpmath.mpf(cosine_squared(angle).value) <= exact
            assert mpmath.mpf(cosine_squared_above(angle).value) >= exact
        assert cosine_squared_above(angle).value <= float(exact) * (1 + 1e-9)
    with pytest.raises(ValueError, match="right"):
        cosine_squared_above(Fraction(1, 2))


def test_the_inequality_behind_cells() -> None:
    """‖P(c)‖ ≥ cos θ · sup ‖P‖ for every c near a maximiser, on random symbols."""
    for seed in range(30):
        symbol = _symbol((1, 2, 3, 3, 3), seed)
        points = 256
        grid = np.indices((points, points)).reshape(2, -1).T
        values = symbol.at(np.zeros(len(grid), np.int64), grid, np.full(len(grid), points))
        norms = np.sqrt(np.linalg.eigvalsh(values)[:, -1]).reshape(points, points)
        peak = np.unravel_index(np.argmax(norms), norms.shape)
        offsets = np.arange(-60, 61)
        near = norms[np.ix_((peak[0] + offsets) % points, (peak[1] + offsets) % points)]
        distance = np.abs(offsets[:, None]) + np.abs(offsets)
        theta = np.minimum(distance * 2 * np.pi / points, np.pi / 2)
        assert np.all(near >= np.max(norms) * np.cos(theta) * (1 - 1e-3))
