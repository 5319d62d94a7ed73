"""Matrices of convolutions, held against the whole linear map."""

from unittest import mock

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.graph.geometry import Window
from lipcert.training.projection import matrices as module
from lipcert.training.projection.matrices import Matrices, RealMatrices, SymbolMatrices, matrices_of
from tests.networks import trained
from tests.ops import Conv, Dense
from tests.training.projection.networks import convolutions, input_shape, matrix_of


def largest(matrices: Matrices, whole: np.ndarray) -> float:
    """The bound, by eigenvalues."""
    kind = np.complex128 if matrices.is_complex else np.float64
    grams = np.zeros((matrices.count, matrices.side, matrices.side), dtype=kind)
    matrices.gram(whole, grams)
    return matrices.factor * float(np.sqrt(np.linalg.eigvalsh(grams)[:, -1].max().clip(0.0)))


@pytest.mark.parametrize("writes_out", [False, True])
@given(convolutions(), st.integers(0, 2**32 - 1), st.booleans())
def test_they_bound_the_map(writes_out: bool, case, seed: int, positive: bool) -> None:
    kind, geometry, groups, shape = case
    kernel = np.random.default_rng(seed).standard_normal(shape)
    kernel = np.abs(kernel) if positive else kernel
    node = kind(trained("w", kernel), None, geometry, groups)(input_shape(*case))
    exact = np.linalg.norm(matrix_of(node), 2)
    with mock.patch.object(module, "_is_worth_it", return_value=writes_out):
        matrices = matrices_of(node, node.operands["weight"])
    if matrices is None:
        assert exact == 0.0
        return
    bound = largest(matrices, kernel)
    assert bound >= exact * (1.0 - 1e-12)
    if writes_out:
        assert isinstance(matrices, RealMatrices)
        assert bound <= exact * (1.0 + 1e-12)


@given(convolutions(), st.integers(0, 2**32 - 1))
def test_the_spread_covers_relative_errors_of_entries(case, seed: int) -> None:
    """‖op(E)‖ ≤ u · spread · bound for |E| ≤ u|K|, also for the worst signs that are met."""
    kind, geometry, groups, shape = case
    random = np.random.default_rng(seed)
    kernel = random.standard_normal(shape)
    node = kind(trained("w", kernel), None, geometry, groups)(input_shape(*case))
    with mock.patch.object(module, "_is_worth_it", return_value=random.random() < 0.5):
        matrices = matrices_of(node, node.operands["weight"])
    if matrices is None:
        return
    reach = matrices.spread * largest(matrices, kernel)
    for moved in (np.abs(kernel), kernel * random.choice([-1.0, 0.0, 1.0], shape)):
        assert largest(matrices, moved) <= reach * (1.0 + 1e-12)


def test_few_frequencies_of_a_long_signal_suffice() -> None:
    """300 positions, 32 frequencies: the bound is above the norm, and within one percent of it."""
    for seed in range(6):
        channels = (1, 3, 3) if seed % 2 else (2, 3, 3)
        kernel = np.random.default_rng(seed).standard_normal(channels)
        node = Conv(trained("w", kernel), None, (Window(300, 3, 1, 1, 1, 1),))((3, 300))
        matrices = matrices_of(node, node.operands["weight"])
        assert isinstance(matrices, SymbolMatrices)
        assert matrices.count <= 17
        exact = np.linalg.norm(matrix_of(node), 2)
        assert exact <= largest(matrices, kernel) <= 1.01 * exact


def test_large_maps_are_within_one_percent() -> None:
    random = np.random.default_rng(0)
    window = Window(13, 3, 1, 1, 1, 1)
    for kernel in (np.ones((2, 2, 3, 3)), random.random((2, 2, 3, 3))):
        node = Conv(trained("w", kernel), None, (window, window))((2, 13, 13))
        exact = np.linalg.norm(matrix_of(node), 2)
        matrices = matrices_of(node, node.operands["weight"])
        assert isinstance(matrices, SymbolMatrices)
        assert exact <= largest(matrices, kernel) <= 1.01 * exact


def test_disjoint_windows_and_small_maps_are_exact() -> None:
    random = np.random.default_rng(0)
    apart, small = Window(8, 2, 2), Window(4, 3, 1, 1, 1, 1)
    for window in (apart, small):
        kernel = random.standard_normal((8, 4, window.taps, window.taps))
        node = Conv(trained("w", kernel), None, (window, window))((4, window.size, window.size))
        exact = np.linalg.norm(matrix_of(node), 2)
        matrices = matrices_of(node, node.operands["weight"])
        assert isinstance(matrices, RealMatrices)
        assert abs(largest(matrices, kernel) / exact - 1.0) < 1e-12


def test_dense_layers_in_both_orientations() -> None:
    for shape in ((3, 8), (8, 3), (1, 5), (5, 1)):
        weight = np.random.default_rng(0).standard_normal(shape)
        node = Dense(trained("w", weight))(shape[1:])
        matrices = matrices_of(node, node.operands["weight"])
        assert matrices.side == min(shape)
        assert abs(largest(matrices, weight) / np.linalg.norm(weight, 2) - 1.0) < 1e-12


def test_groups_dilation_and_single_taps_give_small_blocks() -> None:
    """One block per group, for one residue class, and for one row."""
    dilated, single = Window(6, 3, 1, 2), Window(7, 1)
    node = Conv(trained("w", np.ones((6, 1, 1, 3))), None, (single, dilated), 3)((3, 7, 6))
    matrices = matrices_of(node, node.operands["weight"])
    assert isinstance(matrices, RealMatrices)
    assert matrices.index.shape == (3, 2, 3)


def test_what_samples_of_frequencies_leave() -> None:
    truth = mpmath.cos(mpmath.pi / (2 * module._SAMPLES)) ** 2
    assert truth - 2.0**-50 <= module._LEFT <= truth
