"""Clipped backpropagation: nothing exceeds its bound on random ONNX models, at any weights."""

from dataclasses import replace

import pytest

from lipcert.core import clips as placing
from lipcert.core.kinds import CotangentClip, InputClip
from lipcert.core.rules.base import rule_class
from lipcert.core.rules.facts import Cotangent, Fact
from tests.core.adversary import found_above

SEEDS = 10


@pytest.mark.sample(seed=SEEDS // 3)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_exceeds_its_bound(seed: int) -> None:
    assert not found_above(seed, clipped=True)


def _smaller(found: object) -> object:
    match found:
        case Fact():
            return Fact(found.norm / 2.0, found.box, found.row_norm, found.column_norm)
        case Cotangent():
            return Cotangent(found.norm / 2.0, found.hull, found.sums / 2.0)
        case _:
            return found


@pytest.mark.parametrize(("kind", "question"), [(InputClip, "fact"), (CotangentClip, "pulled")])
def test_the_adversary_finds_a_lost_factor_of_two(
    monkeypatch: pytest.MonkeyPatch, kind, question: str
) -> None:
    """That of channel sums is reached by one position alone: `rules.test_clips` finds it."""
    rule = rule_class(kind)
    right = getattr(rule, question)
    monkeypatch.setattr(rule, question, lambda *a: _smaller(right(*a)))
    assert any(found_above(seed, clipped=True) for seed in range(8))


@pytest.mark.parametrize("kind", [InputClip, CotangentClip])
def test_the_adversary_finds_a_clip_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """The checker puts the clips of half the radius in place."""
    right = placing.with_clips

    def wrong(program, clip):
        found = right(program, clip)
        steps = (
            replace(step, op=replace(step.op, radius=step.op.radius / 2.0))
            if isinstance(step.op, kind)
            else step
            for step in found.steps
        )
        return replace(found, steps=tuple(steps))

    monkeypatch.setattr("tests.core.adversary.with_clips", wrong)
    assert any(found_above(seed, clipped=True) for seed in range(8))
