"""The page on reproduced numbers shows what the quick parts measure; verdicts follow from it."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.reproductions import accounting, guo, small_sets
from benchmarks.reproductions.datasets import BREAST_CANCER_UNITS, PROBLEMS, in_units
from benchmarks.reproductions.methods import NORMALISED
from benchmarks.reproductions.page import table_of
from benchmarks.reproductions.parts import PARTS
from benchmarks.reproductions.rows import Verdict, table
from benchmarks.reproductions.study import PlannedStudy, accuracies, problem
from tests.privacy.test_accounting import EXPECTED

PAGE = Path(__file__).resolve().parents[1] / "benchmarks/reproductions/results.md"
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
PRINTED_ONLY = "small-sets"
"""No paper has these rows."""
SLOW = "accounting"
"""Its runs are those of tests/privacy/test_accounting.py, where they are done."""


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def assert_same(shown: str, printed: str) -> None:
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split()
    assert numbers(shown) == pytest.approx(numbers(printed), rel=5e-3, abs=2e-4)


@pytest.mark.nightly
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name", [name for name, part in PARTS.items() if part.is_quick and name != SLOW]
)
def test_the_page_shows_what_is_measured(name: str) -> None:
    assert_same(table_of(PAGE, name), "\n".join(table(PARTS[name].rows())))


def test_the_accounts_on_the_page_are_those_of_the_example() -> None:
    shown = [line.split(" | ") for line in table_of(PAGE, SLOW).splitlines()[2:]]
    theorem = list(table(accounting.theorem_rows()))[2:]
    assert_same("\n".join(" | ".join(cells) for cells in shown[:2]), "\n".join(theorem))
    faults = [cells for cells in shown[2:] if "attacked" not in cells[0]]
    for cells, (claimed, true, code) in zip(faults, EXPECTED, strict=True):
        assert numbers(cells[1]) == pytest.approx([claimed], abs=0.006)
        assert ("no ε" in cells[2]) == (true == float("inf"))
        assert code in cells[2]
        if "no ε" not in cells[2]:
            assert numbers(cells[2].split(",")[0]) == pytest.approx([true], rel=2e-3)
        assert cells[3] == f"{Verdict.REFUTED.value} |"


def test_every_part_has_its_table() -> None:
    marked = re.findall(r"<!-- table: (.+) -->", PAGE.read_text(encoding="utf-8"))
    assert sorted(marked) == sorted(PARTS.keys() - {PRINTED_ONLY})


@pytest.mark.parametrize("target", [2.5, 3.8, 50.0])
def test_points_of_rest_by_hand(target: float) -> None:
    """R = 1, λ = ½: min(ridge, R/λ) under decoupled decay, ridge inside."""
    ridge = target / 1.5
    assert guo.scalar_rest(target, inside=True) == pytest.approx(ridge, abs=1e-6)
    assert guo.scalar_rest(target, inside=False) == pytest.approx(min(ridge, 2.0), abs=1e-6)


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_splits(name: str) -> None:
    """Norms at most 1; every class on both sides; another seed, another split."""
    problem = PROBLEMS[name]()
    assert float(problem.x.norm(dim=1).max()) <= 1.0
    split = problem.split(0)
    assert len(split.y) == problem.training_examples
    assert len(split.y) + len(split.test_y) == len(problem.y)
    assert set(split.test_y.tolist()) == set(range(problem.classes))
    assert set(split.y.tolist()) == set(range(problem.classes))
    again = problem.split(0)
    assert torch.equal(again.x, split.x)
    assert not torch.equal(problem.split(1).y, split.y)


def test_examples_are_prepared_one_by_one() -> None:
    """No statistic of the data is used: an example alone gives the same vector."""
    rows = np.random.default_rng(0).lognormal(0.0, 2.0, (9, len(BREAST_CANCER_UNITS)))
    rows[3, :4] = 0.0
    together = in_units(rows, BREAST_CANCER_UNITS, 5.0)
    for i, row in enumerate(rows):
        assert torch.equal(in_units(row[None], BREAST_CANCER_UNITS, 5.0)[0], together[i])


TINY = PlannedStudy("wine", 3.0, 1e-3, batch_size=64, epochs=1, seeds=1)


@pytest.mark.nightly
def test_a_seed_fixes_a_private_run() -> None:
    """One epoch of each mechanism; one of them twice."""
    found = [accuracies(TINY, method.candidates[0]) for method in small_sets.METHODS]
    assert all(0.0 <= first <= 1.0 for (first,) in found)
    assert accuracies(TINY, small_sets.METHODS[0].candidates[0]) == found[0]


def test_normalisation_by_hand() -> None:
    """(x − μ)/max(α, σ) of each group, before the ReLU."""
    torch.manual_seed(0)
    given = problem("wine")
    for network in NORMALISED:
        first, norm, relu, last = network.for_problem(given)
        hidden = first(given.x[:5]).reshape(5, 2, 8)
        spread = hidden.std(dim=2, unbiased=False, keepdim=True).clamp(min=network.norm_floor)
        by_hand = ((hidden - hidden.mean(dim=2, keepdim=True)) / spread).reshape(5, 16)
        assert torch.allclose(norm(first(given.x[:5])), by_hand, atol=1e-6)
        assert last(relu(by_hand)).shape == (5, 3)
