"""Loss: what every loss of one example declares, and how it is read and bounded.

Input: a kind and every parameter, as a user or a certificate states them, and a fact about
the outputs z of one example. Output: a bound for every admissible label. A parameter that is
missing, unknown or out of range is refused: it would be another loss.

Invariant: a loss is *per example*; the reduction over the batch divides the sensitivity, not the
gradient of a loss, and does not concern it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Final, TypeAlias, get_args, get_type_hints

from lipcert.core.codec import Limit
from lipcert.core.losses import KINDS
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Shape
from lipcert.core.rules.facts import Cotangent, Fact

_LARGEST: Final = 1e100
_RANGE: Final = "magnitudes from 1e-100 to 1e100"


def _within(least: float, below: float = math.inf) -> Limit:
    def holds(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and bool(least <= value <= _LARGEST and value < below)

    sign = "positive" if least else "non-negative"
    what = f"a {sign} number ({_RANGE})" if below > 1.0 else "in [0, 1)"
    return Limit(what, holds)


Positive: TypeAlias = Annotated[float, _within(1.0 / _LARGEST)]
NotNegative: TypeAlias = Annotated[float, _within(0.0)]
Share: TypeAlias = Annotated[float, _within(0.0, 1.0)]
Flag: TypeAlias = Annotated[bool, Limit("true or false", lambda value: isinstance(value, bool))]
Terms: TypeAlias = Annotated[str, Limit("one of mean, sum", ("mean", "sum").__contains__)]
"""how the terms of one example, one per class or output, are combined"""
Axis: TypeAlias = Annotated[str, Limit("one of first, last", ("first", "last").__contains__)]
"""the axis of an output along which the scores of the classes lie"""


@dataclass(frozen=True, slots=True)
class Loss(ABC):
    """A loss of one example; subclasses are final frozen dataclasses of its parameters.

    A field is a parameter, under the name of the settings and of certificates, with its range as a
    type. One with a default of None may be left out of a certificate, all others may not.
    """

    of_classes: ClassVar[bool] = False
    """whether a label is one of several classes, of which the outputs are the scores"""
    of_one_score: ClassVar[bool] = True
    """whether a single output may be the score of one of two classes, or a number"""

    def __post_init__(self) -> None:
        for name, limit in _limits(type(self)).items():
            value = getattr(self, name)
            if value is not None and not limit.holds(value):
                raise Unsupported(f"{name.replace('_', '-')}: {value!r} is not {limit.what}")

    @property
    def kind(self) -> str:
        """The name that users and certificates give it ("cross-entropy")."""
        return KINDS.name_of(type(self))

    @abstractmethod
    def bound(self, logits: Fact, outputs: int) -> Cotangent:
        """The gradient by so many outputs: a norm, and a hull where the labels are classes."""


NO_LABEL: Final = -100
"""in place of a class number: the token has no label, and its loss is 0; that of torch's losses"""


@dataclass(frozen=True, slots=True)
class ClassLoss(Loss):
    """A loss of one label among several classes, or of one for each of many tokens (or pixels).

    per_token: ℓ = Σ_t ℓ(z_t, y_t), or its mean, over all tokens t, whose scores z_t lie along the
    last axis of the output, or along the first one of an example (`class_axis`). A token without
    label has the loss 0, and counts in the mean: what the sum is divided by is the same always.
    """

    of_classes: ClassVar[bool] = True
    of_one_score: ClassVar[bool] = False
    per_token: Terms | None = field(default=None, kw_only=True)
    class_axis: Axis | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Loss.__post_init__(self)
        if self.per_token is not None and self.class_axis is None:
            object.__setattr__(self, "class_axis", "last")
        if self.per_token is None and self.class_axis is not None:
            raise Unsupported("class-axis: it is that of a loss per token")


def loss_class(kind: str) -> type[Loss]:
    """The class of a loss, loaded when it is needed."""
    if kind not in KINDS:
        raise Unsupported(f"there is no rule for the loss {kind!r}")
    found: type[Loss] = KINDS[kind]
    return found


def parameters_of(kind: str) -> dict[str, bool]:
    """The names of the parameters of a loss, and whether it can do without each."""
    return {item.name: item.default is not MISSING for item in fields(loss_class(kind))}


def read_loss(kind: str, stated: Mapping[str, float | str]) -> Loss:
    """From what a certificate states of it."""
    found = loss_class(kind)
    names = {item.name for item in fields(found)}
    needed = {item.name for item in fields(found) if item.default is not None}
    if not needed <= stated.keys() <= names:
        raise Unsupported(f"the loss {kind} has other parameters than {sorted(stated)}")
    words = {"true": True, "false": False}
    return found(**{
        name: words.get(value, value) if isinstance(value, str) else value
        for name, value in stated.items()
    })  # fmt: skip


def loss_cotangent(loss: Loss, logits: Fact, shape: Shape) -> Cotangent:
    """The gradient of a loss by the outputs of this shape, batch axis of one example included."""
    if not isinstance(loss, ClassLoss):
        return loss.bound(logits, math.prod(shape))
    if loss.per_token is not None:
        from lipcert.core.losses.tokens import token_cotangent  # noqa: PLC0415  for these only

        return token_cotangent(loss, logits, shape)
    if not is_vector(shape):
        raise Unsupported(unfit(loss, "one vector", shape))
    classes = math.prod(shape)
    if classes < 2 and not loss.of_one_score:
        raise Unsupported(f"the loss {loss.kind} of a single class is constant")
    return loss.bound(logits, classes)


def is_vector(shape: Shape) -> bool:
    """Whether the class scores of one example lie along the one axis with more than one entry."""
    return sum(size != 1 for size in shape) <= 1


def unfit(loss: Loss, needed: str, shape: Shape) -> str:
    """That outputs of this shape do not hold what a loss of classes needs."""
    return f"the loss {loss.kind} needs {needed} of class scores, not shape {shape}"


@cache
def _limits(found: type[Loss]) -> Mapping[str, Limit]:
    """What holds of each parameter, as its type says, or that of `T | None`."""
    hints = get_type_hints(found, include_extras=True)
    limits = {}
    for item in fields(found):
        parts = (hints[item.name], *get_args(hints[item.name]))
        limits[item.name] = next(
            limit for part in parts for limit in getattr(part, "__metadata__", ())
        )
    return limits
