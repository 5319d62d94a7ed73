"""Softmax: what its logarithm passes on."""

from __future__ import annotations

from lipcert.core.program import Shape, Softmax
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from tests.core.rules.cases import rule


def test_the_logarithm_of_a_softmax_passes_a_hull_on() -> None:
    shape, cotangent = (1, 4), Cotangent(1.5, Hull(4, 1.0))

    def pulled(shape: Shape, *, logarithm: bool) -> Cotangent:
        asked = rule(Softmax(1, logarithm), [Fact.of(shape)], [shape], shape)
        return asked.pulled(0, cotangent)

    assert pulled(shape, logarithm=True) == cotangent
    assert pulled(shape, logarithm=False) == Cotangent(0.75)
    assert pulled((2, 2), logarithm=True).hull is None
