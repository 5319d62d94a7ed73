"""The admissible inputs of one example: whether there are any."""

from __future__ import annotations

import numpy as np

from lipcert.core.program import Shape
from lipcert.errors import UsageError
from lipcert.settings import Settings
from lipcert.upper import norm_lower


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
