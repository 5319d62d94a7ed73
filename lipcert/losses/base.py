"""Loss: the contract every loss fulfils, and what several losses ask of the logits.

Invariant: a loss is *per example*; the reduction over the batch divides the sensitivity, not the
gradient of a loss, and is no business of one. A loss is valid by construction: a parameter out of
range is a `UsageError`. Its gradient is bounded by `core.losses`, which knows it by kind and
parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, final

from lipcert.core.program import FloatArray, Shape
from lipcert.errors import UsageError

_LARGEST_PARAMETER: Final = 1e100
_RANGE: Final = "magnitudes from 1e-100 to 1e100"

LossRecord = Mapping[str, str | float]


class OutputReduction(Enum):
    """How the terms of one example (one per class or output) are combined."""

    MEAN = "mean"
    SUM = "sum"


class Loss(ABC):
    """A per-example loss; subclasses are final frozen dataclasses of its parameters."""

    __slots__ = ()

    kind: ClassVar[str]
    """name on the command line ("cross-entropy")"""

    @abstractmethod
    def parameters(self) -> LossRecord:
        """Every parameter that determines the loss."""

    def gradients(self, logits: FloatArray) -> FloatArray | None:
        """∂loss/∂logits in float64 for logits [examples, *shape]: [labels, examples, *shape].

        For some admissible labels, the worst among them: for trying out a bound. None: not known.
        """
        del logits
        return None

    def record(self) -> LossRecord:
        """Kind and parameters, as plain values for reports."""
        return {"kind": self.kind, **self.parameters()}


@final
@dataclass(frozen=True, slots=True)
class ClassAxis:
    """Where the class scores of one example lie: how many, and whether along the last axis."""

    classes: int
    is_last: bool


def class_axis(shape: Shape) -> ClassAxis | None:
    """The one axis with more than one entry; None where there are several."""
    long = [axis for axis, size in enumerate(shape) if size != 1]
    if len(long) > 1:
        return None
    if not long:
        return ClassAxis(1, is_last=True)
    return ClassAxis(shape[long[0]], is_last=long[0] == len(shape) - 1)


def require_positive(name: str, value: float) -> None:
    """UsageError unless the parameter is positive, and neither it nor its inverse overflows."""
    if not 1.0 / _LARGEST_PARAMETER <= value <= _LARGEST_PARAMETER:
        raise UsageError(f"{name}: {value!r} is not a positive number ({_RANGE})")


def require_nonnegative(name: str, value: float) -> None:
    """UsageError unless the parameter is 0 or positive, and does not overflow."""
    if not 0.0 <= value <= _LARGEST_PARAMETER:
        raise UsageError(f"{name}: {value!r} is not a non-negative number ({_RANGE})")
