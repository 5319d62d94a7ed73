"""Claims against what is derived: exactly, without tolerance."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.certificate import GroupClaim
from lipcert.core.claims import group_bounds, joint_multiplier
from lipcert.core.ledger.gradient_clipping import GradientClipping
from tests.core.forged import PREMISES
from tests.core.mutants.claims import claim_mutants
from tests.core.mutants.networks import certified
from tests.core.mutants.record import Effect, Outcome, judged

positive = st.floats(1e-150, 1e150)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=5))
def test_joint_multiplier(pairs):
    """Never above the exact one, and within a few ulps of it."""
    groups = tuple(GroupClaim("g", ("p",), 1, moved, moved, noise) for moved, noise in pairs)
    found = Fraction(joint_multiplier(groups))
    exact = 1 / sum((Fraction(moved) / Fraction(noise)) ** 2 for moved, noise in pairs)
    assert found**2 <= exact
    assert found**2 >= exact * (1 - Fraction(1, 1 << 50))


@pytest.mark.parametrize(("moved", "noise"), [(1.0, 0.0), (math.inf, 1.0)])
def test_nothing_is_hidden(moved, noise):
    assert joint_multiplier((GroupClaim("g", ("p",), 1, moved, moved, noise),)) == 0.0


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
        (found,) = group_bounds(one, gradients, replace(PREMISES, **changes))
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
    shared = group_bounds(
        replace(certificate, groups=parts),
        gradients,
        replace(PREMISES, mechanism=GradientClipping(1.0, "group", "inside")),
    )
    assert sum(found.grad_norm**2 for found in shared) == pytest.approx(1.0)
    split = group_bounds(
        replace(certificate, groups=parts),
        gradients,
        replace(PREMISES, mechanism=GradientClipping(1.0, "flat", "inside")),
    )
    assert all(found.grad_norm == math.inf for found in split)
