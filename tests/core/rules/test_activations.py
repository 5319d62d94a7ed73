"""Activations: slopes on a box."""

from __future__ import annotations

import math

import pytest

from lipcert.core.program import Activation
from lipcert.core.rules.facts import Fact
from tests.core.rules.cases import everywhere, stretch


def test_slopes_on_a_box_are_tight() -> None:
    box = everywhere(1.0, 2.0, 1)
    for name, slope in (("tanh", 1 - math.tanh(1.0) ** 2), ("sigmoid", 0.19661193324148185)):
        found = stretch(Activation(name), 0, [Fact.of((3,), box=box)], [(3,)], (3,))
        assert found == pytest.approx(slope, rel=1e-9)
