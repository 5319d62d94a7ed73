"""Every answer of every rule, weakened: the laws have to see it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lipcert.core.interval import Interval
from lipcert.core.kinds import Compare, Embedding
from lipcert.core.program import Op, Operand
from lipcert.core.rules.base import Rule, rule_class
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.token_kinds import Attention
from tests.core.rules import test_laws as laws
from tests.core.rules.cases import POINT, STEPS

SEEDS = 12


def _shorter(fact: Fact) -> Fact:
    return replace(fact, norm=fact.norm / 2.0)


def _shorter_runs(fact: Fact) -> Fact:
    return replace(fact, row_norm=fact.row_norm / 2.0, column_norm=fact.column_norm / 2.0)


def _narrower(fact: Fact) -> Fact:
    width = fact.box.hi - fact.box.lo
    low = fact.box.lo + np.where(np.isfinite(width), 0.25 * width, 0.0)
    return replace(fact, box=Interval(low, fact.box.hi))


def _half(stretch: float) -> float:
    return stretch / 2.0


def _weaker(cotangent: Cotangent) -> Cotangent:
    return replace(cotangent, norm=cotangent.norm / 2.0)


def _less_far(reaches):
    return ((operand, reach / 2.0) for operand, reach in reaches)


MUTANTS = [
    ("fact", _shorter),
    ("fact", _shorter_runs),
    ("fact", _narrower),
    ("lipschitz", _half),
    ("pulled", _weaker),
    ("reaches", _less_far),
]


def _mutants():
    for kind in STEPS:
        for question, change in MUTANTS:
            asks_nothing = rule_class(kind).reaches is Rule.reaches
            is_steep = kind in {Compare, Embedding} and question in {"lipschitz", "pulled"}
            if not is_steep and (question != "reaches" or not asks_nothing):
                name = f"{kind.__name__}-{question}-{change.__name__.strip('_')}"
                yield pytest.param(kind, question, change, id=name)


@pytest.mark.sample(41)
@pytest.mark.parametrize(("kind", "question", "change"), list(_mutants()))
def test_a_weakened_answer_is_seen(
    monkeypatch: pytest.MonkeyPatch, kind: type[Op], question: str, change
) -> None:
    """What has no bound cannot be weakened: slopes of rows and masks."""
    rule = rule_class(kind)
    right = getattr(rule, question)
    monkeypatch.setattr(rule, question, lambda *asked: change(right(*asked)))
    law = (
        laws.test_no_gradient_of_an_operand_is_larger
        if question == "reaches"
        else laws.test_nothing_leaves_the_fact_or_is_steeper
    )

    def is_seen(seed: int) -> bool:
        try:
            law(kind.__name__, seed)
        except AssertionError:
            return True
        return False

    assert any(map(is_seen, range(SEEDS)))


def test_an_unknown_reach_stays_unknown() -> None:
    mask = Operand(np.zeros((1, 1)), np.zeros((1, 1)), {"m": 1.0})
    shapes = ((1, 2), (2, 1), (1, 2))
    asked = rule_class(Attention)(
        op=Attention(1.0, mask),
        inputs=[Fact.of(shape, 1.0) for shape in shapes],
        shapes=shapes,
        shape=(1, 2),
        weights=POINT,
        output="y",
    )
    assert dict(asked.gradients(Cotangent(0.0))) == {"m": math.inf}
