"""The loss of a planned run, chosen by the settings and the shape of the network's output.

What enters: the settings and the per-example output shape. What leaves: a `Loss` that fits the
output, or a UsageError that says which would.
"""

from __future__ import annotations

from lipcert.errors import UsageError
from lipcert.facts import Shape
from lipcert.losses.base import Loss, class_axis
from lipcert.losses.factory import make_loss
from lipcert.settings import Settings

__all__ = ["default_loss", "planned_loss"]

_NEEDS_CLASSES = frozenset({"cross-entropy", "focal", "multiclass-hinge", "multi-margin"})


def default_loss(output_shape: Shape) -> str:
    """Cross-entropy for a vector of at least two class scores, otherwise binary cross-entropy."""
    return "cross-entropy" if _class_count(output_shape) >= 2 else "bce"


def planned_loss(settings: Settings, output_shape: Shape) -> Loss:
    """The loss that the settings name, or the default for this output."""
    kind = default_loss(output_shape) if settings.loss == "auto" else settings.loss
    if kind in _NEEDS_CLASSES and _class_count(output_shape) < 2:
        raise UsageError(
            f"loss: {kind} needs one vector of at least two class scores per example, but the "
            f"output has shape {list(output_shape)}; use --loss bce, or mse with --label-norm"
        )
    if settings.classes is not None and settings.classes != _class_count(output_shape):
        raise UsageError(
            f"classes: {settings.classes} labels are declared, but the output of one example has "
            f"shape {list(output_shape)}; give the label count the network was built for"
        )
    return make_loss(
        kind,
        temperature=settings.temperature,
        label_smoothing=settings.label_smoothing,
        label_norm=settings.label_norm,
        margin=settings.margin,
        huber_delta=settings.huber_delta,
        focal_gamma=settings.focal_gamma,
        hkr_weight=settings.hkr_weight,
        cosine_floor=settings.cosine_floor,
        output_reduction=settings.output_reduction,
        half=settings.half,
    )


def _class_count(output_shape: Shape) -> int:
    axis = class_axis(output_shape)
    return axis.classes if axis is not None else 0
