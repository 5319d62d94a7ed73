"""Scalar majorants: values, Toeplitz matrices, proofs, and bounds of finite maps."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lipcert.norms.cells import verify_cells
from lipcert.norms.fit import fitted
from lipcert.norms.geometry import Window
from lipcert.norms.laurent import laurent_norm, symbol_of
from lipcert.norms.majorant import Majorant
from lipcert.norms.search import Search
from lipcert.norms.tiling import Cells, Tiling
from lipcert.norms.toeplitz import majorant_norm
from lipcert.upper import INFINITE
from tests.norms.operators import conv_matrix, true_norm

Array = np.ndarray


def _random_majorant(rng: np.random.Generator, spans: tuple[int, ...]) -> Majorant:
    return Majorant.of(spans, rng.standard_normal(len(Majorant.shifts_of(spans))))


def _value(majorant: Majorant, frequency: Array) -> float:
    """From the definition."""
    terms = np.cos(majorant.shifts @ frequency) * np.where(majorant.shifts.any(axis=1), 2.0, 1.0)
    return float(terms @ majorant.coefficients)


def _smooth_kernel(shape: tuple[int, ...], seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1.0


SPANS = [(1,), (4,), (1, 1), (2, 2), (2, 3), (1, 2, 1)]


@pytest.mark.parametrize("spans", SPANS)
def test_values_and_supremum(spans: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        majorant = _random_majorant(rng, spans)
        tiling = Tiling(spans, 2)
        cells = tiling.everything(1)
        numerators, denominators = tiling.centres(cells)
        frequencies = 2 * np.pi * numerators / denominators[:, None]
        exact = [_value(majorant, frequency) for frequency in frequencies]
        assert np.allclose(majorant.at(tiling, cells), exact, atol=1e-12)
        samples = rng.uniform(0, 2 * np.pi, size=(2000, len(spans)))
        largest = max(_value(majorant, frequency) for frequency in samples)
        assert majorant.supremum.value >= largest
        floors = majorant.floor(tiling, cells)
        drop = majorant.supremum.value * math.sin(float(tiling.angle(0)) * math.pi) ** 2
        assert np.all(floors <= np.array(exact) - drop + 1e-12)


def test_the_supremum_is_tight() -> None:
    bump = Majorant.of((2,), np.array([1.0, 0.4, 0.1]))  # largest at 0: 2
    assert 2.0 <= bump.supremum.value <= 2.0 * 1.02
    assert Majorant.constant((2, 2), 3.0).supremum.value == 3.0


@pytest.mark.parametrize("spans", SPANS)
def test_toeplitz_matrices_by_definition(spans: tuple[int, ...]) -> None:
    majorant = _random_majorant(np.random.default_rng(2), spans)
    sizes = (4, 3, 2)[: len(spans)]
    matrix = majorant.toeplitz(sizes)
    points = list(np.ndindex(*sizes))
    table = {tuple(s): c for s, c in zip(majorant.shifts, majorant.coefficients, strict=True)}
    for i, first in enumerate(points):
        for j, second in enumerate(points):
            shift = tuple(a - b for a, b in zip(first, second, strict=True))
            mirrored = tuple(-each for each in shift)
            assert matrix[i, j] == table.get(shift, table.get(mirrored, 0.0))


def test_the_inequality_behind_majorants() -> None:
    """f(c) ≤ M sin²θ + m cos²θ near a minimum m of a trigonometric polynomial below M."""
    rng = np.random.default_rng(3)
    for _ in range(12):
        f = _random_majorant(rng, (3,))
        grid = np.linspace(0, 2 * np.pi, 2001)
        values = np.array([_value(f, np.array([w])) for w in grid])
        at, low, high = grid[np.argmin(values)], values.min(), values.max()
        distance = np.linspace(-np.pi / 3, np.pi / 3, 200)
        theta = 3 * np.abs(distance) / 2
        near = np.array([_value(f, np.array([at + d])) for d in distance])
        assert np.all(near <= high * np.sin(theta) ** 2 + low * np.cos(theta) ** 2 + 1e-3)


def _proved(kernels: Array, sizes: tuple[int, ...]) -> tuple[Search, Majorant]:
    symbol, _ = symbol_of(kernels)
    search = Search.of(symbol, 1e12, 2)
    fit = fitted(search, sizes)
    assert fit is not None
    return search, search.with_room(fit.majorant)


def test_a_proved_majorant_verifies_and_stands_above_the_symbol() -> None:
    kernels = _smooth_kernel((2, 3, 4, 3, 3))
    search, proposed = _proved(kernels, (7, 7))
    certificate, rounding = search.prove(proposed)
    assert verify_cells(search.symbol, certificate).value == pytest.approx(rounding.value)
    rng = np.random.default_rng(0)
    numerators = rng.integers(0, 1000, size=(3000, 2))
    group, denominators = rng.integers(0, 2, size=3000), np.full(3000, 1000)
    heights = np.linalg.eigvalsh(search.symbol.at(group, numerators, denominators))[:, -1]
    for height, numerator in zip(heights, numerators, strict=True):
        value = _value(certificate.majorant, 2 * np.pi * numerator / 1000)
        assert value + rounding.value >= height * (1 - 1e-12)


def test_a_majorant_that_is_too_low_somewhere_is_refused() -> None:
    kernels = _smooth_kernel((1, 3, 4, 3, 3))
    search, proposed = _proved(kernels, (7, 7))
    certificate, _ = search.prove(proposed)
    sup = certificate.majorant.supremum.value
    for step in (0.02, 0.1, 0.5):
        lower = certificate.majorant.raised(-step * sup)
        assert not verify_cells(search.symbol, replace(certificate, majorant=lower)).is_finite
    coarse = search.tiling.everything(1)
    finest = Cells(0, coarse.group, coarse.index)
    for _ in range(4):
        finest = finest.children()
    claim = replace(certificate, leaves=(finest,))
    assert verify_cells(search.symbol, claim).is_finite
    values = certificate.majorant.at(search.tiling, finest)
    heights = search.estimates(finest)
    too_low = certificate.majorant.raised(-float(np.min(values - heights)) - 1e-6 * sup)
    assert not verify_cells(search.symbol, replace(claim, majorant=too_low)).is_finite


def test_a_majorant_of_lower_degree_than_the_symbol_is_refused() -> None:
    symbol, _ = symbol_of(_smooth_kernel((1, 2, 2, 3, 3)))
    search = Search.of(symbol, 1e12)
    certificate, _ = search.prove(Majorant.constant((2, 2), search.peak() * 1.01))
    tiling = Tiling((1, 1), 24)
    claim = replace(
        certificate,
        tiling=tiling,
        leaves=(tiling.everything(1).children().children(),),
        majorant=Majorant.constant((1, 1), search.peak() * 100.0),
    )
    assert not verify_cells(symbol, claim).is_finite


@pytest.mark.parametrize(
    ("shape", "window"),
    [((4, 4, 3, 3), Window(7, 3, 1, 1, 1, 1)), ((4, 3, 4, 4), Window(10, 4, 2, 1, 1, 1)),
     ((3, 4, 3, 3), Window(14, 3, 1, 2, 2, 2)), ((4, 4, 5), Window(20, 5, 1, 1, 2, 2))],
)  # fmt: skip
def test_is_closer_to_the_finite_norm_than_the_supremum(
    shape: tuple[int, ...], window: Window
) -> None:
    kernels = _smooth_kernel(shape)
    geometry = (window,) * (len(shape) - 2)
    truth = true_norm(conv_matrix(kernels, geometry))
    value = majorant_norm(kernels[None], geometry, 1e12).value
    supremum = laurent_norm(kernels[None], geometry, INFINITE, 1e12).value
    assert truth * (1 - 1e-12) <= value <= truth * 1.03
    assert value < supremum


def test_groups_share_one_majorant() -> None:
    kernels = _smooth_kernel((5, 1, 1, 3, 3))
    geometry = (Window(9, 3, 1, 1, 1, 1),) * 2
    truth = max(true_norm(conv_matrix(kernel, geometry)) for kernel in kernels)
    assert truth * (1 - 1e-12) <= majorant_norm(kernels, geometry, 1e12).value <= truth * 1.05


def test_nothing_is_spent_where_nothing_is_gained() -> None:
    rng = np.random.default_rng(0)
    pointwise = rng.standard_normal((1, 3, 3, 1, 1))
    assert not majorant_norm(pointwise, (Window(7, 1),) * 2, 1e12).is_finite
    kernels = rng.standard_normal((1, 3, 3, 3, 3))
    large = (Window(64, 3, 1, 1, 1, 1),) * 2
    assert not majorant_norm(kernels, large, 1e12).is_finite
    small = (Window(7, 3, 1, 1, 1, 1),) * 2
    assert not majorant_norm(kernels, small, 1e3).is_finite
    sparse = np.zeros((1, 1, 1, 3, 3))
    sparse[0, 0, 0, 0] = 1.0
    assert majorant_norm(sparse, small, 1e12).value >= true_norm(conv_matrix(sparse[0], small))


def test_a_small_budget_loosens_the_bound_only() -> None:
    kernels = _smooth_kernel((1, 5, 5, 3, 3))
    geometry = (Window(7, 3, 1, 1, 1, 1),) * 2
    truth = true_norm(conv_matrix(kernels[0], geometry))
    for budget in (2e6, 5e6, 1e7, 1e8):
        assert majorant_norm(kernels, geometry, budget).value >= truth * (1 - 1e-12)
