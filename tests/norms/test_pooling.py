"""Average pooling against torch, for every way of counting padding."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d

from lipcert.geometry import Window
from lipcert.norms.pooling import average_pool_norm
from tests.norms.operators import random_window, true_norm


def _counted(window: Window, include_padding: bool) -> tuple[int, ...]:
    return (window.taps,) * window.outputs if include_padding else window.reads()


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize(
    ("size", "taps", "stride", "pad"),
    [(7, 3, 1, 1), (7, 3, 2, 1), (8, 2, 2, 0), (9, 4, 3, 2), (5, 5, 1, 0), (6, 3, 2, 0)],
)
def test_against_torch(size: int, taps: int, stride: int, pad: int, include: bool) -> None:
    basis = torch.eye(size * size, dtype=torch.float64).reshape(-1, 1, size, size)
    out = avg_pool2d(basis, taps, stride, pad, count_include_pad=include)
    window = Window(size, taps, stride, 1, pad, pad)
    divisors = _counted(window, include)
    value = average_pool_norm((window, window), (divisors, divisors)).value
    truth = true_norm(out.reshape(size * size, -1).numpy())
    assert truth * (1 - 1e-12) <= value <= truth * (1 + 1e-6)


def test_known_answers() -> None:
    same = Window(7, 3, 1, 1, 1, 1)
    counts = same.reads()
    assert average_pool_norm((same, same), (counts, counts)).value == pytest.approx(
        1.0167, abs=5e-5
    )
    tiles = Window(28, 2, 2)
    halves = (2,) * 14
    assert average_pool_norm((tiles, tiles), (halves, halves)).value == 0.5
    whole = Window(7, 7)
    assert average_pool_norm((whole, whole), ((7,), (7,))).value == pytest.approx(1 / 7)


def test_random_lines() -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        window = random_window(rng, 12)
        divisors = tuple(int(d) for d in rng.integers(1, 6, size=window.outputs))
        matrix = np.zeros((window.outputs, window.size))
        for output, tap in itertools.product(range(window.outputs), range(window.taps)):
            position = window.read(output, tap)
            if position is not None:
                matrix[output, position] += 1 / divisors[output]
        value = average_pool_norm((window,), (divisors,)).value
        assert true_norm(matrix) * (1 - 1e-12) <= value <= true_norm(matrix) * (1 + 1e-6)


def test_long_lines_use_the_test_of_schur() -> None:
    window = Window(4000, 3, 1, 1, 1, 1)
    value = average_pool_norm((window,), ((3,) * 4000,)).value
    assert (1 + 2 * math.cos(math.pi / 4001)) / 3 <= value <= 1.0 + 1e-12


def test_divisors_must_fit() -> None:
    with pytest.raises(ValueError, match="divisors"):
        average_pool_norm((Window(8, 2, 2),), ((2, 2),))
    with pytest.raises(ValueError, match="divisors"):
        average_pool_norm((Window(4, 2, 2),), ((2, 0),))
