"""Attention: tokens without bounds, equal tokens, shared heads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.core.interval import exact
from lipcert.core.program import Attention, Operand
from lipcert.core.rules.facts import Fact
from tests.core.rules.cases import output, stretch

INF = math.inf


def test_attention_on_unbounded_tokens() -> None:
    shapes = ((2, 3), (3, 4), (4, 3))
    unknown = [Fact.of(shape) for shape in shapes]
    assert stretch(Attention(1.0), 0, unknown, shapes, (2, 3)) == INF
    assert stretch(Attention(1.0), 1, unknown, shapes, (2, 3)) == INF
    assert stretch(Attention(1.0), 2, unknown, shapes, (2, 3)) == pytest.approx(math.sqrt(2))


def test_attention_without_scores_spreads_evenly() -> None:
    """All probabilities are 1/4, unless a mask leaves one token: two queries, one column."""
    shapes = ((2, 3), (3, 4), (4, 3))
    facts = [Fact.of(shapes[0], 0.0), Fact.of(shapes[1], 1.0), Fact.of(shapes[2], 1.0)]
    even = stretch(Attention(1.0), 2, facts, shapes, (2, 3))
    assert even == pytest.approx(math.sqrt(0.5))
    lone = np.array([[0.0, -INF, -INF, -INF], [0.0, 0.0, -INF, -INF]])
    hidden = stretch(Attention(1.0, Operand(lone, lone)), 2, facts, shapes, (2, 3))
    assert hidden == pytest.approx(math.sqrt(1.5))
    unsure = Operand(np.full((2, 4), -INF), np.zeros((2, 4)))
    assert stretch(Attention(1.0, unsure), 2, facts, shapes, (2, 3)) == pytest.approx(math.sqrt(2))


def test_attention_to_equal_tokens_does_not_see_the_scores() -> None:
    token = exact(np.ones((4, 1)))
    shapes = ((2, 3), (3, 4), (4, 3))
    facts = [Fact.of(shapes[0], 5.0), Fact.of(shapes[1], 7.0), Fact.of(shapes[2], box=token)]
    assert stretch(Attention(2.0), 0, facts, shapes, (2, 3)) < 1e-12


def test_attention_heads_that_share_their_keys_have_no_rule() -> None:
    shapes = ((2, 2, 3), (1, 3, 4), (1, 4, 3))
    facts = [Fact.of(shape, 1.0) for shape in shapes]
    assert output(Attention(1.0), facts, shapes, (2, 2, 3)).norm == INF
    assert stretch(Attention(1.0), 2, facts, shapes, (2, 2, 3)) == INF
