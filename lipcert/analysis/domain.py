"""The admissible inputs of one example: whether there are any, and as a set to search."""

from __future__ import annotations

import numpy as np

from lipcert.errors import UsageError
from lipcert.facts import Bound, Shape, ValueFacts, no_bound
from lipcert.interval import Interval
from lipcert.settings import Settings
from lipcert.upper import Upper, norm_lower


def input_facts(shape: Shape, settings: Settings) -> ValueFacts:
    """‖x‖₂ ≤ input_norm and every entry in input_box, whichever are declared."""
    norm = no_bound("input.undeclared", "no norm of the input is declared", "give --input-norm")
    if settings.input_norm is not None:
        norm = Bound(Upper(settings.input_norm), "input.declared_norm")
    box = None
    if settings.effective_input_box is not None:
        low, high = settings.effective_input_box
        box = Interval(np.full(shape, low), np.full(shape, high))
    return ValueFacts.of(shape, norm, box)


def check_domain(shape: Shape, settings: Settings) -> None:
    """UsageError where no input of the box is as short as the declared norm."""
    if settings.input_norm is None or settings.effective_input_box is None:
        return
    low, high = settings.effective_input_box
    least = norm_lower(np.full(shape, np.clip(0.0, low, high))).value
    if least > settings.input_norm:
        raise UsageError(
            f"input-norm: no example of shape {list(shape)} with entries in [{low}, {high}] has a "
            f"2-norm of at most {settings.input_norm}; the least is {least:.6g}"
        )
