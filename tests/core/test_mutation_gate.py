"""The mutation score: see `benchmarks/certificate_mutants.py` for certificates of real files."""

import pytest

from tests.core.mutants.every import every_mutant, spread
from tests.core.mutants.networks import FAMILIES, certified
from tests.core.mutants.record import Effect, Outcome, judged
from tests.core.mutants.reuse import reused

TRIED = 24
BY_NIGHT = 400
"""of each of 14 certificates"""

CASES = [("mlp", False), ("cnn", True), ("clipped", False), ("layers", False), ("scaled", False)]


@pytest.fixture(scope="module", params=CASES, ids=["mlp", "cnn-set", "clipped", "layers", "scaled"])
def case(request, tmp_path_factory):
    family, constrained = request.param
    return certified(family, tmp_path_factory.mktemp(family), constrained=constrained)


@pytest.mark.sample(1)
def test_every_kind(case, tmp_path):
    """Of all mutants some of each effect; a quarter of them with the other engine as well."""
    mutants = spread(every_mutant(case, tmp_path), TRIED, 1)
    assert len(mutants) >= TRIED
    assert {item.effect for item in mutants} == set(Effect)
    wrong = []
    with reused({}):
        for number, item in enumerate(mutants):
            engines = ("float", "exact") if number % 4 == 0 else ("float",)
            outcomes = {judged(case, item, tmp_path, engine) for engine in engines}
            verdicts = {outcome for outcome, _ in outcomes}
            wrong += [(item.kind, outcomes)] * (len(verdicts) > 1 or Outcome.WRONG in verdicts)
    assert not wrong


@pytest.mark.nightly
@pytest.mark.parametrize("constrained", [False, True], ids=["point", "set"])
@pytest.mark.parametrize("family", FAMILIES)
def test_thousands_of_mutants(family, constrained, tmp_path):
    """What mutants of one certificate share is proved once."""
    case = certified(family, tmp_path, constrained=constrained)
    mutants = spread(every_mutant(case, tmp_path), BY_NIGHT, family)
    assert len(mutants) == BY_NIGHT
    wrong = []
    with reused({}):
        for item in mutants:
            outcome, said = judged(case, item, tmp_path)
            wrong += [(item.kind, said)] * (outcome is Outcome.WRONG)
    assert not wrong
