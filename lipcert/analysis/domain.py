"""The admissible inputs of one example: whether there are any."""

from __future__ import annotations

import math

import numpy as np

from lipcert.core.program import Shape
from lipcert.errors import UsageError
from lipcert.settings.settings import Settings
from lipcert.upper import norm_lower

_CLEARLY = 1.0 + 2.0**-40


def check_domain(shape: Shape, settings: Settings) -> None:
    """UsageError where no input of the box is as short as the declared norm."""
    box, least = settings.effective_input_box, 0.0
    for part in settings.input_parts:
        least = math.hypot(least, _least(part.shape, part.norm, part.box, f" {part.name!r}"))
    if box is not None:
        _least(shape, settings.input_norm, box)
    elif settings.input_norm is not None and least > settings.input_norm * _CLEARLY:
        raise UsageError(
            f"input-norm: no example has a 2-norm of at most {settings.input_norm}; the boxes of "
            f"its inputs leave at least {least:.6g}"
        )


def _least(
    shape: Shape, radius: float | None, box: tuple[float, float] | None, name: str = ""
) -> float:
    """The least norm that the box leaves an input."""
    if box is None:
        return 0.0
    low, high = box
    least = norm_lower(np.full(shape, np.clip(0.0, low, high))).value
    if radius is not None and least > radius:
        what = f"input{name}" if name else "example"
        raise UsageError(
            f"input-norm: no {what} of shape {list(shape)} with entries in [{low}, {high}] has a "
            f"2-norm of at most {radius}; the least is {least:.6g}"
        )
    return least
