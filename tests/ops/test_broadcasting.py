"""Repetition counts and slice norms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.facts import Bound, ValueFacts, no_bound
from lipcert.interval import Interval
from lipcert.ops.broadcasting import aligned, repetition_root, root_of, slice_norm
from lipcert.upper import Upper


def test_roots_round_up() -> None:
    assert root_of(49).value == 7.0
    assert root_of(2).value ** 2 >= 2.0
    assert repetition_root((3, 1), (2, 3, 4)).value == pytest.approx(math.sqrt(8.0))
    assert repetition_root((), ()).value == 1.0


def test_slices_run_over_the_axes_where_the_partner_is_repeated() -> None:
    magnitude = np.array([[3.0, 4.0], [5.0, 12.0]])
    facts = ValueFacts.of((2, 2), Bound(Upper(99.0), "test"), Interval(-magnitude, magnitude))
    for partner, truth in [((2, 1), 13.0), ((2,), math.hypot(4.0, 12.0)), ((2, 2), 12.0)]:
        assert slice_norm(facts, partner, (2, 2)).value.value == pytest.approx(truth)
    assert slice_norm(facts, (), (2, 2)).value.value == pytest.approx(math.sqrt(194.0))


def test_the_whole_norm_caps_a_slice_and_explains_its_absence() -> None:
    ball = ValueFacts.of((2, 2), Bound(Upper(1.0), "test"))
    assert slice_norm(ball, (), (2, 2)).value == Upper(1.0)
    unknown = ValueFacts.of((2, 2), no_bound("test", "nothing is known"))
    assert slice_norm(unknown, (2,), (2, 2)).reason == "nothing is known"


def test_alignment_keeps_the_example_axis_first() -> None:
    assert aligned(np.zeros((5, 3)), 3).shape == (5, 1, 1, 3)
