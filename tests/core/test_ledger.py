"""The ledger: premises and assumptions say the same, and every number of them counts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.certificate import CertificateFormatError, Constraint, ScopeClaim
from lipcert.core.ledger import CHECKED
from lipcert.core.ledger.layer_clipping import BackpropClipping, ClippedLayer
from lipcert.core.ledger.mechanism import Unchanged
from lipcert.core.ledger.premises import Circumstances, Premises
from lipcert.core.ledger.run import Run
from lipcert.core.ledger.updates import Clipless, GradientClipping, WeightClipping
from lipcert.core.text import texts
from lipcert.text.certificate import assumptions_of
from tests.core.forged import PREMISES
from tests.core.mutants.assumptions import premise_mutants
from tests.core.mutants.networks import certified
from tests.core.mutants.record import Effect, Outcome, judged

BARE = Circumstances(True, ())
STATED = SimpleNamespace(scope=ScopeClaim("point", (), ()), groups=(), privacy=None)
"""what the ledger depends on in a certificate"""


def stated(**changes):
    return SimpleNamespace(**{**vars(STATED), **changes})


RUN = Run("shuffle", 400, 16, 30, 2)
numbers = st.floats(0.0, 1e300)


@given(numbers, numbers, st.sampled_from(["add-remove", "replace-one", "zero-out"]), st.booleans())
def test_premises_survive_the_ledger(norm, low, relation, clipped):
    premises = replace(
        PREMISES,
        input_norm=norm,
        input_box=(-low, low),
        relation=relation,
        divisor=7,
        run=RUN,
        loss_clip=0.5,
        mechanism=GradientClipping(2.0) if clipped else Unchanged(),
    )
    assert Premises.read(assumptions_of(premises, STATED, BARE)) == premises


@given(numbers, numbers, st.sampled_from(["l1.5", "l2"]), st.integers(0, 3))
def test_clips_of_layers_survive_the_ledger(radius, clip, conv_clip, count):
    layers = tuple(ClippedLayer(f"v{i}", f"w{i}") for i in range(count))
    found = BackpropClipping(radius, clip, conv_clip, layers)
    premises = replace(PREMISES, mechanism=found)
    ledger = assumptions_of(premises, STATED, BARE)
    assert Premises.read(ledger) == premises
    if count:
        text = texts(ledger)["A-MECHANISM"]
        assert f"{clip!r} (convolutions: {conv_clip}), its input to {radius!r}" in text


radii = st.none() | numbers


@given(st.lists(st.tuples(radii, numbers), min_size=1, max_size=4), st.sampled_from(["l1.5", "l2"]))
def test_radii_of_single_layers_survive_the_ledger(given_radii, conv_clip):
    layers = [
        ClippedLayer(f"v{i}", f"w{i}", reads, receives)
        for i, (reads, receives) in enumerate(given_radii)
    ]
    found = BackpropClipping(conv_clip=conv_clip).around(layers)
    premises = replace(PREMISES, mechanism=found)
    ledger = assumptions_of(premises, STATED, BARE)
    assert Premises.read(ledger) == premises
    stated = [(found.input_radius(item), found.cotangent_radius(item)) for item in found.layers]
    assert stated == given_radii
    text = texts(ledger)["A-MECHANISM"]
    reads, receives = {item[0] for item in stated}, {item[1] for item in stated}
    assert all("not at all" if r is None else f"to {r!r}" in text for r in (*reads, *receives))


@pytest.mark.parametrize(
    ("changes", "fixed", "expected"),
    [
        ({"mechanism": Unchanged()}, True, "A-POINT"),
        ({"mechanism": Unchanged()}, False, None),
        ({"mechanism": WeightClipping(), "stepwise": 1.5}, True, "A-STEPWISE"),
        ({"mechanism": WeightClipping()}, True, "A-POINT"),
        ({"mechanism": Clipless(), "stepwise": 1.5}, True, "A-POINT"),
        ({"mechanism": WeightClipping(), "stepwise": 1.5}, False, None),
    ],
)
def test_a_run_whose_weights_move_needs_a_reason(changes, fixed, expected):
    premises = replace(PREMISES, run=RUN, **changes)
    scope = ScopeClaim("point" if fixed else "constraint-set", (), ())
    ledger = assumptions_of(premises, stated(scope=scope), BARE)
    reasons = {item.id for item in ledger} & {"A-POINT", "A-STEPWISE", "A-PROJ"}
    assert reasons == ({expected} if expected else set())
    if expected == "A-STEPWISE":
        assert Premises.read(ledger) == premises


def test_circumstances_are_stated():
    def ids(known=BARE, **changes):
        return {item.id: item.status for item in assumptions_of(PREMISES, stated(**changes), known)}

    constrained = ScopeClaim("constraint-set", ("w",), (Constraint("w", "spectral", 1.0),))
    assert ids()["A-PERSAMPLE"] == CHECKED
    assert ids(replace(BARE, batch_proved=False))["A-PERSAMPLE"] != CHECKED
    assert "A-FROZEN" in ids(replace(BARE, frozen=("w",)))
    assert "A-PROJ" in ids(scope=constrained)
    assert "A-PROJ" not in ids(scope=replace(constrained, constraints=()))
    assert "A-RNG" in ids(groups=("all",))
    assert "A-EPSILON" in ids(privacy=SimpleNamespace(status="declared"))
    assert "A-EPSILON" not in ids(privacy=SimpleNamespace(status="recomputed"))
    assert "A-NUMERIC" in ids()


@pytest.mark.parametrize(
    "change",
    [
        {"scheme": "bernoulli"},
        {"scheme": "poisson", "participations": 30, "dataset_size": 15},
        {"batch_size": 0},
        {"scheme": "poisson"},
        {"scheme": "full-batch", "participations": 30},
    ],
)
def test_impossible_runs(change):
    ledger = assumptions_of(replace(PREMISES, run=RUN), STATED, BARE)
    (stated_run,) = (item for item in ledger if item.id == "A-SAMPLING")
    with pytest.raises(CertificateFormatError, match="describes no run"):
        Run.read({**stated_run.data, **change})


def test_fewest_participations():
    """400 examples in batches of 16 are 25 batches: 50 steps enter an example at most twice."""
    for run, possible in ((replace(RUN, steps=50), True), (replace(RUN, steps=51), False)):
        assert run.is_possible() is possible
    assert replace(RUN, dataset_size=401, steps=52).is_possible()


@pytest.mark.parametrize(
    ("sampling", "relation"), [("shuffle", "zero-out"), ("poisson", "zero-out")]
)
def test_every_number_counts(tmp_path, sampling, relation):
    """Restated consistently, each number of the assumptions changes what is derived."""
    case = certified("mlp", tmp_path, constrained=True, sampling=sampling, neighbours=relation)
    kinds = set()
    for item in premise_mutants(case):
        if item.effect is Effect.WEAKENING:
            kinds.add(item.kind.removeprefix("premise: "))
            outcome, said = judged(case, item, tmp_path)
            assert outcome is Outcome.REJECTED, (item.kind, said)
    run = "run" if sampling == "poisson" else "participations"
    assert {"input box enlarged", "loss temperature", "relation", "divisor", run} <= kinds
