"""Claims against what is derived: exactly, without tolerance."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core import claims
from lipcert.core.certificate import GroupClaim
from lipcert.core.ledger.updates import GradientClipping
from tests.core.forged import PREMISES
from tests.core.mutants.claims import claim_mutants
from tests.core.mutants.networks import certified
from tests.core.mutants.record import Effect, Outcome, judged

positive = st.floats(1e-150, 1e150)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=5))
def test_joint_multiplier(pairs):
    """Never above the exact one, and within a few ulps of it."""
    groups = tuple(GroupClaim("g", ("p",), 1, moved, moved, noise) for moved, noise in pairs)
    found = Fraction(claims.joint_multiplier(groups))
    exact = 1 / sum((Fraction(moved) / Fraction(noise)) ** 2 for moved, noise in pairs)
    assert found**2 <= exact
    assert found**2 >= exact * (1 - Fraction(1, 1 << 50))


@pytest.mark.parametrize(("moved", "noise"), [(1.0, 0.0), (math.inf, 1.0)])
def test_nothing_is_hidden(moved, noise):
    assert claims.joint_multiplier((GroupClaim("g", ("p",), 1, moved, moved, noise),)) == 0.0


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return certified("mlp", tmp_path_factory.mktemp("mlp"), constrained=True)


def test_lowered_claims(case, tmp_path):
    """One ulp below what is derived is too little; one above is fine; absent is no claim."""
    for number, item in enumerate(claim_mutants(case)):
        if number % 6 == 0 and item.effect is not Effect.WITNESS:
            outcome, said = judged(case, item, tmp_path)
            weak = item.effect is Effect.WEAKENING
            assert outcome is (Outcome.REJECTED if weak else Outcome.ACCEPTED), (item.kind, said)


def test_group_bounds(case):
    certificate = case.certificate
    gradients = {claim.tensor: 3.0 for claim in certificate.parameters}
    whole = GroupClaim("g", tuple(c.name for c in certificate.parameters), 1, 0.0, 0.0, 0.0)
    one = replace(certificate, groups=(whole,))
    joint = 3.0 * math.sqrt(len(gradients))

    def bound(**changes):
        (found,) = claims.group_bounds(one, gradients, replace(PREMISES, **changes))
        return found

    assert bound().grad_norm == pytest.approx(joint)
    assert bound().sensitivity == bound().grad_norm
    assert bound(relation="replace-one").sensitivity == pytest.approx(2 * joint)
    assert bound(divisor=8).sensitivity == pytest.approx(joint / 8)
    assert bound(mechanism=GradientClipping(1.0, "flat", "decoupled")).grad_norm == 1.0
    assert bound(mechanism=GradientClipping(100.0, "flat", "decoupled")).grad_norm == pytest.approx(
        joint
    )
    assert bound(mechanism=GradientClipping(100.0, "flat", "inside")).grad_norm == 100.0
    parts = tuple(GroupClaim(n, (n,), 1, 0.0, 0.0, 0.0) for n in whole.parameters)
    shared = claims.group_bounds(
        replace(certificate, groups=parts),
        gradients,
        replace(PREMISES, mechanism=GradientClipping(1.0, "group", "inside")),
    )
    assert sum(found.grad_norm**2 for found in shared) == pytest.approx(1.0)
    split = claims.group_bounds(
        replace(certificate, groups=parts),
        gradients,
        replace(PREMISES, mechanism=GradientClipping(1.0, "flat", "inside")),
    )
    assert all(found.grad_norm == math.inf for found in split)


_SIZES = st.floats(1e-30, 1e30)


@given(_SIZES, st.integers(1, 10**9), st.sampled_from(["add-remove", "zero-out", "replace-one"]))
def test_sensitivities(bound: float, divisor: int, relation: str) -> None:
    factor = 2 if relation == "replace-one" else 1
    exact = factor * Fraction(bound)
    assert Fraction(claims.sensitivity_up(bound, None, relation)) == exact
    mean = claims.sensitivity_up(bound, divisor, relation)
    assert Fraction(math.nextafter(mean, 0.0)) < exact / divisor <= Fraction(mean)


def test_refusals() -> None:
    with pytest.raises(KeyError):
        claims.sensitivity_up(1.0, None, "neighbours")
    assert claims.sensitivity_up(math.inf, 5, "replace-one") == math.inf


@given(st.lists(st.tuples(_SIZES, _SIZES), min_size=1, max_size=5))
def test_multiplier_is_the_largest_lower_bound(groups: list[tuple[float, float]]) -> None:
    found = Fraction(claims.effective_multiplier(*zip(*groups, strict=True)))
    exact = 1 / sum((Fraction(delta) / Fraction(noise)) ** 2 for delta, noise in groups)
    assert found**2 <= exact < Fraction(math.nextafter(float(found), math.inf)) ** 2


@given(st.lists(_SIZES, max_size=5))
def test_total(deltas: list[float]) -> None:
    total = Fraction(claims.total_sensitivity(deltas))
    assert total**2 >= sum(Fraction(delta) ** 2 for delta in deltas)


def test_hidden_and_unhidden() -> None:
    assert claims.effective_multiplier([1.0, 0.0], [1.0, 0.0]) == 1.0
    assert claims.effective_multiplier([1.0, 1.0], [1.0, 0.0]) == 0.0
    assert claims.effective_multiplier([0.0], [0.0]) == math.inf
    assert claims.effective_multiplier([math.inf], [1.0]) == 0.0
    assert claims.total_sensitivity([1.0, math.inf]) == math.inf
    with pytest.raises(ValueError, match="negative"):
        claims.effective_multiplier([1.0], [-1.0])
    with pytest.raises(ValueError, match="negative"):
        claims.effective_multiplier([math.nan], [1.0])
