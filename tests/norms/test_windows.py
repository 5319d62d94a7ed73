"""Exact counts of windows, and the constants that follow from them."""

import itertools
import math

import numpy as np
import pytest

from lipcert.geometry import Window
from lipcert.norms.windows import (
    conv_positions,
    largest_overlap,
    max_pool_norm,
    window_multiplicity,
)
from tests.norms.operators import conv_matrix, random_window, true_norm


def test_counts_match_their_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        window = random_window(rng, 9)
        reads = [
            (output, tap, window.read(output, tap))
            for output, tap in itertools.product(range(window.outputs), range(window.taps))
        ]
        live = [(o, t, p) for o, t, p in reads if p is not None]
        by_position, by_output = [0] * window.size, [0] * window.outputs
        for output, _, position in live:
            by_position[position] += 1
            by_output[output] += 1
        assert window.multiplicity() == tuple(by_position)
        assert window.reads() == tuple(by_output)
        assert window.overlap == max(by_position)
        for tap in range(window.taps):
            expected = [(o, p) for o, t, p in live if t == tap]
            found = zip(window.readers(tap), window.positions(tap), strict=True)
            assert list(found) == expected


def test_multiplicity_bounds_every_kernel_and_image() -> None:
    """Alternating maximisation over kernel and image never exceeds the constant."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        geometry = (random_window(rng, 6), random_window(rng, 5))
        taps = tuple(window.taps for window in geometry)
        bound = window_multiplicity(geometry).value
        kernel = np.abs(rng.standard_normal((1, 1, *taps)))
        reached = 0.0
        for _ in range(12):
            kernel = kernel / max(np.linalg.norm(kernel), 1e-30)
            matrix = conv_matrix(kernel, geometry)
            left, values, _ = np.linalg.svd(matrix)
            reached = max(reached, float(values[0]))
            image = np.abs(np.linalg.svd(matrix)[2][0])
            gradient = np.zeros(taps)
            for tap in np.ndindex(*taps):
                single = np.zeros((1, 1, *taps))
                single[(0, 0, *tap)] = 1.0
                gradient[tap] = np.abs(left[:, 0]) @ conv_matrix(single, geometry) @ image
            kernel = gradient[None, None]
        assert reached <= bound * (1 + 1e-12)


def test_channels_do_not_change_the_constant() -> None:
    rng = np.random.default_rng(2)
    geometry = (Window(6, 3, pad_begin=1, pad_end=1),) * 2
    for _ in range(20):
        weight = rng.standard_normal((4, 3, 3, 3))
        ratio = true_norm(conv_matrix(weight, geometry)) / np.linalg.norm(weight)
        assert ratio <= window_multiplicity(geometry).value


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window(56, 3, 1, 1, 1, 1), 3.0),
        (Window(224, 7, 2, 1, 3, 3), 4.0),
        (Window(56, 1), 1.0),
        (Window(56, 2, 2), 1.0),
        (Window(28, 3, 1, 2, 2, 2), 3.0),
        (Window(28, 3, 2, 2, 2, 2), 3.0),
        (Window(5, 5), 1.0),
        (Window(6, 5), 2.0),
        (Window(1, 3, 1, 1, 1, 1), 1.0),
    ],
)
def test_known_constants(window: Window, expected: float) -> None:
    assert window_multiplicity((window, window)).value == pytest.approx(expected, rel=1e-15)


def test_constant_image_attains_the_constant_asymptotically() -> None:
    geometry = (Window(40, 3, pad_begin=1, pad_end=1),)
    kernel = np.full((1, 1, 3), 1 / math.sqrt(3))
    assert true_norm(conv_matrix(kernel, geometry)) > 0.99 * window_multiplicity(geometry).value


def test_pooling_and_positions() -> None:
    same = (Window(8, 3, pad_begin=1, pad_end=1),) * 2
    assert max_pool_norm(same).value == 3.0
    assert largest_overlap(same) == 9
    assert conv_positions((Window(8, 3, 2), Window(9, 3))) == 3 * 7
    assert max_pool_norm((Window(8, 2, 2),)).value == 1.0
