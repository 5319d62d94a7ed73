"""Loss: the contract every loss fulfils, and what several losses ask of the logits.

What enters: facts about the logits of one example. What leaves: facts about the gradient of the
loss with respect to them. Invariant: a loss is *per example*; the reduction over the batch divides
the sensitivity, not this gradient, and is no business of a loss. A loss record is valid by
construction: a parameter out of range is a `UsageError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

from lipcert.errors import UsageError
from lipcert.facts import Bound, CotangentFacts, Shape, ValueFacts, no_bound
from lipcert.upper import FloatArray, Lower, Upper

_LARGEST_PARAMETER: Final = 1e100
_RANGE: Final = "magnitudes from 1e-100 to 1e100"

LossRecord = Mapping[str, str | float]


class OutputReduction(Enum):
    """How the terms of one example (one per class or output) are combined."""

    MEAN = "mean"
    SUM = "sum"

    def applied(self, bound: Upper, terms: int) -> Upper:
        """A bound of the summed terms, divided by their number for a mean."""
        return bound.over(Lower(float(terms))) if self is OutputReduction.MEAN else bound


class Loss(ABC):
    """A per-example loss; subclasses are final frozen dataclasses of its parameters."""

    __slots__ = ()

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name on the command line ("cross-entropy")."""

    @abstractmethod
    def parameters(self) -> LossRecord:
        """Every parameter that determines the loss."""

    @abstractmethod
    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Facts about ∂loss/∂logits of one example, for every admissible label and logits."""

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


def no_class_axis(rule: str, shape: Shape) -> Bound:
    """The refusal for an output that is not one vector of class scores."""
    return no_bound(
        rule,
        f"the output of one example has shape {shape}: which axis holds the classes, and how the "
        "losses of several positions are combined, is not stated",
        "end the network in one vector of class scores per example",
    )


def require_positive(name: str, value: float) -> None:
    """UsageError unless the parameter is positive, and neither it nor its inverse overflows."""
    if not 1.0 / _LARGEST_PARAMETER <= value <= _LARGEST_PARAMETER:
        raise UsageError(f"{name}: {value!r} is not a positive number ({_RANGE})")


def require_nonnegative(name: str, value: float) -> None:
    """UsageError unless the parameter is 0 or positive, and does not overflow."""
    if not 0.0 <= value <= _LARGEST_PARAMETER:
        raise UsageError(f"{name}: {value!r} is not a non-negative number ({_RANGE})")
