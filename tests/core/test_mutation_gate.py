"""A fast part of the mutation score: see `benchmarks/certificate_mutants.py` for all of it."""

from __future__ import annotations

import pytest

from tests.core.mutants.every import every_mutant
from tests.core.mutants.networks import certified
from tests.core.mutants.record import Effect, Outcome, judged

TRIED = 64


CASES = [("mlp", False), ("cnn", True), ("clipped", False), ("layers", False), ("scaled", False)]


@pytest.fixture(scope="module", params=CASES, ids=["mlp", "cnn-set", "clipped", "layers", "scaled"])
def case(request, tmp_path_factory):
    family, constrained = request.param
    return certified(family, tmp_path_factory.mktemp(family), constrained=constrained)


@pytest.mark.sample(1)
def test_every_kind(case, tmp_path):
    """Of all mutants some of each effect; a quarter of them with the other engine as well."""
    every = list(every_mutant(case, tmp_path))
    mutants = every[:: len(every) // TRIED]
    assert len(mutants) >= TRIED
    assert {item.effect for item in mutants} >= {Effect.WEAKENING, Effect.HARMLESS}
    wrong = []
    for number, item in enumerate(mutants):
        engines = ("float", "exact") if number % 4 == 0 else ("float",)
        outcomes = {judged(case, item, tmp_path, engine) for engine in engines}
        verdicts = {outcome for outcome, _ in outcomes}
        wrong += [(item.kind, outcomes)] * (len(verdicts) > 1 or Outcome.WRONG in verdicts)
    assert not wrong
