"""A fast part of the mutation score: see `benchmarks/certificate_mutants.py` for all of it."""

from __future__ import annotations

import itertools

import pytest

from tests.checker.mutants.every import every_mutant
from tests.checker.mutants.networks import certified
from tests.checker.mutants.record import Effect, Outcome, judged

STRIDE = 17


@pytest.fixture(scope="module", params=[("mlp", False), ("cnn", True)], ids=["mlp", "cnn-set"])
def case(request, tmp_path_factory):
    family, constrained = request.param
    return certified(family, tmp_path_factory.mktemp(family), constrained=constrained)


def test_every_kind(case, tmp_path):
    """Of all mutants some of each effect; the first half of them with the other engine as well."""
    mutants = list(itertools.islice(every_mutant(case, tmp_path), 0, None, STRIDE))
    assert len(mutants) >= 60
    assert {item.effect for item in mutants} == set(Effect)
    wrong = []
    for number, item in enumerate(mutants):
        engines = ("float", "exact") if number % 4 == 0 else ("float",)
        outcomes = {judged(case, item, tmp_path, engine) for engine in engines}
        verdicts = {outcome for outcome, _ in outcomes}
        wrong += [(item.kind, outcomes)] * (len(verdicts) > 1 or Outcome.WRONG in verdicts)
    assert not wrong
