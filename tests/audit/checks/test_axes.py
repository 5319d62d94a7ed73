"""Noise along the axes of its tensors: chances are those stated, and what axes share is seen."""

import math
import re

import numpy as np
import pytest

from lipcert.audit.checks.axes import Axes
from lipcert.audit.checks.chance import SHARE, ChanceTest

Random = np.random.Generator
SHAPES = ((24, 12), (24,), (6, 24), (5, 4, 3, 3))


def noises(random: Random, step: int) -> list[np.ndarray]:
    return [random.standard_normal(shape) for shape in SHAPES]


def told_of(drawn, seed: int = 0, steps: int = 20, moved: float = 0.0) -> list[ChanceTest]:
    random, axes = np.random.default_rng(seed), Axes()
    for step in range(steps):
        axes.take((z, np.full(z.shape, moved)) for z in drawn(random, step))
    return list(axes.tests())


def rarest(tests: list[ChanceTest]) -> ChanceTest:
    return min(tests, key=lambda test: test.log_chance)


@pytest.mark.sample(1)
@pytest.mark.parametrize("steps", [1, 3, 8])
def test_chances_of_right_noise_are_those_stated(steps: int) -> None:
    """Also where there are hardly more rows than columns, which are added up then."""
    runs = [[t.log_chance for t in told_of(noises, seed, steps)] for seed in range(80)]
    shares = np.mean(np.array(runs) < math.log(0.05), axis=0)
    assert np.all(shares < 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / len(runs)))
    assert np.min(runs) > math.log(1e-6)


def test_as_many_tests_as_the_shapes_have_axes() -> None:
    """A second axis of one size is in another matrix: two rows would share entries otherwise."""
    square = told_of(lambda random, _: [random.standard_normal((9, 9))])
    assert sum(test.kind == "covariance" and "axes of" in test.message for test in square) == 2
    assert len(told_of(noises)) == len(told_of(noises, steps=1))


def changed(place: int, change):
    def drawn(random: Random, step: int) -> list[np.ndarray]:
        found = noises(random, step)
        found[place] = change(found, random)
        return found

    return drawn


BASIS = np.linalg.qr(np.random.default_rng(9).standard_normal((12, 12)))[0][:, :9]
FAULTS = {
    "rows in a subspace": (
        changed(0, lambda found, _: found[0] @ BASIS @ BASIS.T * math.sqrt(12 / 9)),
        "axes of (24|12) entries",
    ),
    "a part that rows share": (
        changed(0, lambda found, random: 0.9 * found[0] + 0.436 * random.standard_normal((24, 1))),
        "the sums of rows have 1.59",
    ),
    "centred rows": (
        changed(0, lambda found, _: found[0] - found[0].mean(axis=1, keepdims=True)),
        "the sums of rows have 0.[2-6]",
    ),
    "a bias that follows from weights": (
        changed(1, lambda found, _: found[0].sum(axis=1) / math.sqrt(12)), "axes of 24 entries",
    ),
    "columns of two deviations": (
        changed(2, lambda found, random: found[2] * random.choice([0.5, math.sqrt(1.75)], 24)),
        "varies more between 800 columns",
    ),
    "a row with less noise": (
        changed(0, lambda found, _: found[0] * np.where(np.arange(24) == 3, 0.6, 1.0)[:, None]),
        "place 3 of the rows of shape 24×12 the noise has 0.[56]",
    ),
    "a channel with less noise": (
        changed(3, lambda found, _: found[3] * np.array([0.8, 1, 1, 1])[:, None, None]),
        "place 0 of the columns of shape 5×4×3×3 the noise has 0.[78]",
    ),
    "scaled rows": (
        changed(0, lambda found, _: found[0] * math.sqrt(12)
                / np.linalg.norm(found[0], axis=1, keepdims=True)),
        "varies too little between",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(name: str) -> None:
    drawn, says = FAULTS[name]
    found = [test for test in told_of(drawn) if test.is_too_rare(SHARE / 100.0)]
    assert any(re.search(says, test.message) for test in found), found


def test_rounding_counts_for_the_run() -> None:
    """Of noise below the unit of its type nothing is known."""
    coarse = changed(0, lambda found, _: np.round(found[0] / 2.0) * 2.0)
    assert rarest(told_of(coarse)).is_too_rare(SHARE)
    assert not rarest(told_of(coarse, moved=1.0)).is_too_rare(SHARE)


def test_a_step_of_other_shapes_is_passed_over() -> None:
    found = told_of(lambda random, step: noises(random, step)[: 1 + (step != 3)])
    assert not rarest(found).is_too_rare(SHARE)
