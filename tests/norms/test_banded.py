"""Exact norms by block columns, for zeros and for every other kind of padding."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import ArpackError
from torch.nn.functional import conv2d, pad

from lipcert.norms import banded
from lipcert.norms.banded import banded_norm, is_affordable
from lipcert.geometry import Window
from lipcert.training.projection.polyphase import live_kernels
from lipcert.norms.reads import NOTHING, Border, Reads
from tests.norms.operators import conv_matrix, random_kernel, random_window, true_norm

ROUNDING = 1 - 1e-12
TORCH_MODES = {Border.REFLECT: "reflect", Border.EDGE: "replicate", Border.WRAP: "circular"}


def _tables(*windows: Window) -> list[Reads]:
    return [Reads.of(window) for window in windows]


def test_random_convolutions() -> None:
    rng = np.random.default_rng(31)
    for case in range(120):
        axes = (1, 2, 3)[case % 3]
        geometry = tuple(random_window(rng, {1: 9, 2: 5, 3: 3}[axes]) for _ in range(axes))
        groups, outer, inner = (int(n) for n in rng.integers(1, 4, size=3))
        weight = random_kernel(rng, (groups * outer, inner, *(w.taps for w in geometry)))
        truth = true_norm(conv_matrix(weight, geometry, groups))
        kernels = live_kernels(weight.reshape(groups, outer, *weight.shape[1:]), geometry)
        value = banded_norm(kernels, _tables(*geometry)).value
        assert truth * ROUNDING <= value <= truth * (1 + 1e-6) + 1e-300


@pytest.mark.parametrize("border", list(Border))
def test_padded_convolutions_against_torch(border: Border) -> None:
    rng = np.random.default_rng(5)
    for taps, stride, begin, end in ((3, 1, 1, 1), (3, 2, 1, 1), (4, 1, 2, 1), (5, 1, 2, 2)):
        weight = rng.standard_normal((3, 2, taps, taps))
        basis = torch.eye(2 * 36, dtype=torch.float64).reshape(-1, 2, 6, 6)
        wide = pad(basis, (begin, end, begin, end), mode=TORCH_MODES[border])
        out = conv2d(wide, torch.from_numpy(weight), stride=stride)
        truth = true_norm(out.reshape(len(basis), -1).numpy())
        table = Reads.padded(Window(6 + begin + end, taps, stride), begin, end, border)
        value = banded_norm(weight[None], [table, table]).value
        assert truth * ROUNDING <= value <= truth * (1 + 1e-6)


def test_a_padded_shift_is_longer_than_any_zero_padded_one() -> None:
    """A shift has norm 1 over zeros; a reflected border repeats √2 per dimension."""
    shift = np.zeros((1, 1, 1, 3, 3))
    shift[0, 0, 0, 0, 0] = 1.0
    table = Reads.padded(Window(9, 3), 1, 1, Border.REFLECT)
    assert banded_norm(shift, [table, table]).value == pytest.approx(2.0, rel=2e-6)
    zero = Reads.of(Window(7, 3, 1, 1, 1, 1))
    assert banded_norm(shift, [zero, zero]).value == pytest.approx(1.0, rel=2e-6)


@pytest.mark.parametrize("factor", [0.5, 0.999, 1 - 1e-9])
def test_a_value_below_the_norm_is_refused(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    kernel = rng.standard_normal((1, 3, 4, 3, 3))
    geometry = (Window(6, 3, 1, 1, 1, 1),) * 2
    truth = true_norm(conv_matrix(kernel[0], geometry))
    scale = 4.0 ** -math.frexp(float(np.max(np.abs(kernel))))[1]
    monkeypatch.setattr(banded, "_estimated_square", lambda *_: truth**2 * scale * factor)
    monkeypatch.setattr(banded, "_SLACKS", (0.0,))
    assert not banded_norm(kernel, _tables(*geometry)).is_finite


def test_estimates_do_not_decide_soundness(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    kernel = rng.standard_normal((1, 3, 4, 3, 3))
    geometry = (Window(6, 3, 1, 1, 1, 1),) * 2
    truth = true_norm(conv_matrix(kernel[0], geometry))
    for nonsense in (0.0, 1e-3, 100.0, 1e200):
        monkeypatch.setattr(banded, "_estimated_square", lambda *_, value=nonsense: value)
        assert banded_norm(kernel, _tables(*geometry)).value >= truth


def test_taps_that_read_nothing() -> None:
    """A kernel with weights only there is the zero map, whatever else it could read."""
    for border in Border:
        reads = (Reads.padded(Window(2, 3, pad_begin=1), 1, 0, border), Reads.of(Window(2, 1)))
        for tap, answer in enumerate((0.0, 2.0, 2.0)):
            kernels = np.zeros((1, 1, 1, 3, 1))
            kernels[0, 0, 0, tap] = 2.0
            assert banded_norm(kernels, reads).value == pytest.approx(answer, rel=2e-6)


@pytest.mark.parametrize("size", [2, 40])
def test_taps_that_cancel_in_one_group_do_not_spoil_the_others(size: int) -> None:
    """Windows of stride 2 over repeated entries: each reads one entry twice, as 1 − 1."""
    sources = np.repeat(np.arange(size)[:, None], 2, axis=1)
    kernels = np.array([[1.0, -1.0], [1.0, 1.0]]).reshape(2, 1, 1, 2)
    reads = [Reads(size, sources)]
    assert banded_norm(kernels, reads).value == pytest.approx(2.0, rel=2e-6)
    assert banded_norm(kernels[:1], reads).value <= 3e-6


def test_an_estimate_that_fails_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ArpackError(-9)

    monkeypatch.setattr("scipy.sparse.linalg.eigsh", fails)
    reads = [Reads.of(Window(40, 3))]
    assert not banded_norm(np.ones((1, 1, 1, 3)), reads).is_finite


def test_degenerate_kernels() -> None:
    tables = _tables(Window(5, 3, 1, 1, 1, 1), Window(4, 1))
    assert banded_norm(np.zeros((2, 2, 2, 3, 1)), tables).value == 0.0
    half = np.zeros((2, 2, 2, 3, 1))
    half[1] = 1.0
    truth = true_norm(conv_matrix(half[1], (Window(5, 3, 1, 1, 1, 1), Window(4, 1))))
    assert truth * ROUNDING <= banded_norm(half, tables).value <= truth * (1 + 1e-6)
    point = [Reads.of(Window(1, 1))]
    assert banded_norm(np.full((1, 1, 1, 1), -3.0), point).value == pytest.approx(3.0)


@pytest.mark.parametrize("exponent", [-1060, -500, 500, 1000])
def test_extreme_scales(exponent: int) -> None:
    kernel = np.array([[[[1.0, 2.0, -1.0]]]])
    window = Window(5, 3, 1, 1, 1, 1)
    truth = true_norm(conv_matrix(kernel[0], (window,)))
    value = banded_norm(np.ldexp(kernel, exponent), [Reads.of(window)]).value
    assert value >= math.ldexp(truth * ROUNDING, exponent)
    assert value <= math.ldexp(truth * (1 + 1e-6), exponent) + 2.0**-1070


def test_the_budget_counts_work_and_memory() -> None:
    tables = _tables(Window(14, 3, 1, 1, 1, 1), Window(14, 3, 1, 1, 1, 1))
    assert is_affordable((1, 8, 8, 3, 3), tables, 1e11)
    assert not is_affordable((1, 8, 8, 3, 3), tables, 1e5)
    assert not is_affordable((1, 4096, 4096, 3, 3), tables, 1e30)


def test_tables_agree_with_windows() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        window = random_window(rng, 9)
        table = Reads.of(window)
        for output in range(window.outputs):
            for tap in range(window.taps):
                position = window.read(output, tap)
                assert table.sources[output, tap] == (NOTHING if position is None else position)
        assert table.overlap == max(window.overlap, 0)
        assert table.bandwidth() == _bandwidth(table)
        first, second = (int(n) for n in rng.integers(0, window.taps, size=2))
        pairs = set(zip(*(side.tolist() for side in table.meetings(first, second)), strict=True))
        assert pairs == _meetings(table, first, second)
        adjoint = table.adjoint()
        assert adjoint is not None
        assert np.array_equal(adjoint.sources >= 0, _readers(table) >= 0)
        assert np.array_equal(adjoint.sources, _readers(table))


def test_meetings_with_repeated_positions() -> None:
    table = Reads.padded(Window(8, 3), 3, 2, Border.EDGE)
    assert table.size == 3
    for first in range(3):
        for second in range(3):
            pairs = list(zip(*(s.tolist() for s in table.meetings(first, second)), strict=True))
            assert len(set(pairs)) == len(pairs)
            assert set(pairs) == _meetings(table, first, second)
    assert table.adjoint() is None
    assert table.bandwidth() == _bandwidth(table)
    with pytest.raises(ValueError, match="room"):
        Reads.padded(Window(4, 2), 2, 2, Border.EDGE)


def _meetings(table: Reads, first: int, second: int) -> set[tuple[int, int]]:
    return {
        (i, j)
        for i, one in enumerate(table.sources[:, first])
        for j, other in enumerate(table.sources[:, second])
        if one == other != NOTHING
    }


def _bandwidth(table: Reads) -> int:
    taps = range(table.sources.shape[1])
    pairs = [pair for a in taps for b in taps for pair in _meetings(table, a, b)]
    return max((abs(i - j) for i, j in pairs), default=0)


def _readers(table: Reads) -> np.ndarray:
    result = np.full((table.size, table.sources.shape[1]), NOTHING)
    for output, row in enumerate(table.sources):
        for tap, source in enumerate(row):
            if source != NOTHING:
                result[source, tap] = output
    return result
