"""Weights of entries: how much of an image windows may read, by linear programs."""

import numpy as np
import pytest
from scipy.optimize import linprog

from lipcert.core.forms.kernels import weighted_reach
from lipcert.core.rules.window_reads import windows_over
from lipcert.core.rules.windows import Axis, axes_of
from tests.core.norms.convolutions import window_of
from tests.core.test_kernel_gradients import evenly


def read(size: int, taps: int, stride: int, dilation: int) -> np.ndarray:
    window = window_of((taps, taps), (size, size), *evenly(2, stride, dilation, 1, 1))
    axes: tuple[Axis, ...] = axes_of(window, (size, size))
    return windows_over((1, 1, size, size), axes)


@pytest.mark.parametrize("seed", range(20))
def test_no_image_is_read_more(seed):
    rng = np.random.default_rng(seed)
    groups, size = int(rng.integers(1, 3)), int(rng.integers(3, 7))
    reads = read(size, int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(1, 3)))
    inputs, outputs = groups * int(rng.integers(1, 3)), groups * int(rng.integers(1, 3))
    weights = rng.random((outputs, len(reads))) ** 2
    largest = rng.random((inputs, size * size)) * (rng.random((inputs, size * size)) < 0.8)
    norm = float(rng.random() * np.linalg.norm(largest) * 1.5) if seed else 0.0
    most = 0.0
    for channel, row in enumerate(weights):
        factors = np.zeros(size * size)
        for tap in reads.T:
            np.add.at(factors, tap[tap >= 0], row[tap >= 0] ** 2)
        group = channel * groups // outputs
        own = largest.reshape(groups, -1, size * size)[group]
        every = np.tile(factors, len(own))
        limits = [(0.0, end) for end in (own**2).ravel()]
        found = linprog(-every, np.ones((1, len(every))), [norm**2], bounds=limits)
        most = max(most, -found.fun)
    bound = weighted_reach(weights, reads, largest, norm, groups)
    assert most**0.5 * (1.0 - 1e-9) <= bound <= most**0.5 * (1.0 + 1e-9) + 1e-12


def test_without_a_box():
    reads = read(6, 3, 2, 1)
    weights, unknown = np.ones((1, len(reads))), np.full((1, 36), np.inf)
    assert weighted_reach(weights, reads, unknown, 3.0, 1) == pytest.approx(6.0)
