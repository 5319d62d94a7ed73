"""`make_loss`: from the words of a request to a loss.

What enters: the kind and the parameters of a loss as a user states them; None means "not given".
What leaves: a valid `Loss`, or a `UsageError` that says what is wrong and what would be right. A
parameter that the loss does not have is an error: silence would certify another loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from lipcert.choices import check_choice
from lipcert.errors import UsageError
from lipcert.losses.base import Loss, OutputReduction
from lipcert.losses.cross_entropy import CrossEntropy, Focal, NegativeLogLikelihood
from lipcert.losses.elementwise import (
    AbsoluteError,
    BinaryCrossEntropy,
    Cosine,
    Huber,
    SquaredError,
)
from lipcert.losses.margin import (
    HingeKantorovichRubinstein,
    KantorovichRubinstein,
    MulticlassHinge,
    MultiMargin,
)

LOSS_PARAMETERS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "cross-entropy": frozenset({"temperature", "label-smoothing"}),
        "bce": frozenset({"temperature", "output-reduction"}),
        "mse": frozenset({"label-norm", "output-reduction", "half"}),
        "mae": frozenset({"output-reduction"}),
        "huber": frozenset({"huber-delta", "label-norm", "output-reduction"}),
        "focal": frozenset({"focal-gamma"}),
        "nll": frozenset(),
        "multiclass-hinge": frozenset({"margin", "output-reduction"}),
        "multi-margin": frozenset({"margin", "output-reduction"}),
        "kr": frozenset(),
        "hkr": frozenset({"margin", "hkr-weight"}),
        "cosine": frozenset({"cosine-floor"}),
    }
)
_BATCH_WEIGHTED: Final = frozenset({"kr-batch", "hkr-batch"})
_Given = Mapping[str, object]


def make_loss(
    kind: str,
    *,
    temperature: float | None = None,
    label_smoothing: float | None = None,
    label_norm: float | None = None,
    margin: float | None = None,
    huber_delta: float | None = None,
    focal_gamma: float | None = None,
    hkr_weight: float | None = None,
    cosine_floor: float | None = None,
    output_reduction: Literal["mean", "sum"] | None = None,
    half: bool | None = None,
) -> Loss:
    """The loss of this kind; parameters that are not given have the default of its class."""
    _check(
        kind,
        {
            "temperature": temperature,
            "label-smoothing": label_smoothing,
            "label-norm": label_norm,
            "margin": margin,
            "huber-delta": huber_delta,
            "focal-gamma": focal_gamma,
            "hkr-weight": hkr_weight,
            "cosine-floor": cosine_floor,
            "output-reduction": output_reduction,
            "half": half,
        },
    )
    reduction = _reduction(output_reduction)
    margin = _default(margin, 1.0)
    match kind:
        case "cross-entropy":
            return CrossEntropy(_default(temperature, 1.0), _default(label_smoothing, 0.0))
        case "nll":
            return NegativeLogLikelihood()
        case "bce":
            return BinaryCrossEntropy(_default(temperature, 1.0), reduction)
        case "mse":
            if label_norm is None:
                raise UsageError("label-norm: the loss mse needs a bound of ‖y‖₂ of one example")
            return SquaredError(label_norm, reduction, bool(half))
        case "mae":
            return AbsoluteError(reduction)
        case "huber":
            return Huber(_default(huber_delta, 1.0), label_norm, reduction)
        case "focal":
            return Focal(_default(focal_gamma, 2.0))
        case "multiclass-hinge":
            return MulticlassHinge(margin, reduction)
        case "multi-margin":
            return MultiMargin(margin, reduction)
        case "kr":
            return KantorovichRubinstein()
        case "hkr":
            return HingeKantorovichRubinstein(_default(hkr_weight, 1.0), margin)
        case _:  # "cosine", as _check admits nothing else
            return Cosine(cosine_floor)


def _check(kind: str, given: _Given) -> None:
    """UsageError for an unknown kind, a refused one, or a parameter that does not belong to it."""
    if kind in _BATCH_WEIGHTED:
        raise UsageError(
            f"loss: {kind} weights each example by the class counts of its batch, so replacing one "
            "example changes the gradients of all others and no per-example bound exists (it grows "
            f"with the batch size); use {kind.removesuffix('-batch')}, which has constant weights"
        )
    check_choice("loss", kind, tuple(LOSS_PARAMETERS))
    allowed = LOSS_PARAMETERS[kind]
    for name, value in given.items():
        if value is not None and name not in allowed:
            takes = f"takes {', '.join(sorted(allowed))}" if allowed else "has no parameter"
            raise UsageError(f"{name}: the loss {kind} {takes}")


def _reduction(name: str | None) -> OutputReduction:
    try:
        return OutputReduction.MEAN if name is None else OutputReduction(name)
    except ValueError:
        raise UsageError(f"output-reduction: {name!r} is not one of mean, sum") from None


def _default(value: float | None, default: float) -> float:
    return default if value is None else value
