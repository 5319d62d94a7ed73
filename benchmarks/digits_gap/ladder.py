"""Ladder: every row there is.

Recipes were chosen on random fifths held out of the training images, never on the test images. The
privacy that this choice costs is not accounted for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from benchmarks.digits_gap.inputs import Inputs
from benchmarks.digits_gap.rows import Network, Row
from lipcert.choices import AllocationName
from lipcert.training import Clipless, GradientClipping, Loss

__all__ = ["ROWS", "TABLES"]

_ALL: Final = 1437
"""training images: with this batch size, every batch is all of them"""
_BOX: Final = (0.0, 1.0)
_LONGEST: Final = 8.0
"""an image in this box has at most this norm, and the temperature grows with it"""


def _loss(temperature: float) -> Loss:
    return Loss("cross-entropy", temperature=temperature)


def _held(
    temperature: float,
    *,
    radius: float = 1.0,
    loss_clip: float | None = None,
    allocation: AllocationName = "optimal",
    inputs: Inputs = Inputs.UNIT,
) -> Clipless:
    is_box = inputs is Inputs.PIXELS
    return Clipless(
        radius=radius,
        loss=_loss(temperature * (_LONGEST if is_box else 1.0)),
        loss_clip=loss_clip,
        allocation=allocation,
        input_norm=None if is_box else 1.0,
        input_box=_BOX if is_box else None,
    )


def _clipped(temperature: float, clip_norm: float, *, inputs: Inputs = Inputs.UNIT)->GradientClipping:
    is_box = inputs is Inputs.PIXELS
    return GradientClipping(
        clip_norm=clip_norm,
        loss=_loss(temperature * (_LONGEST if is_box else 1.0)),
        input_norm=None if is_box else 1.0,
        input_box=_BOX if is_box else None,
    )
