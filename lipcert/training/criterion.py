"""Criterion: the loss that was certified, summed over the examples and divided by a constant.

Input: the output of the network and the labels of a batch, or of a slice of it. Output: Σᵢ ℓᵢ / B,
whose backward pass leaves the *sum* of the gradients in `.grad`; the release divides it by B.
Invariant: a backward pass through anything but exactly this number is refused: a mean over the
current batch, another factor, a further term on the logits. The criterion differentiates the losses
itself, separately from anything else in the backward pass, and passes the result to the guard; a
gradient that contains more is not released.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx

from lipcert.core.losses.base import ClassLoss, Loss
from lipcert.core.losses.joint import Joint
from lipcert.core.losses.tokens import scores_of
from lipcert.core.program import Shape
from lipcert.errors import NoVerdictError, UsageError
from lipcert.gradient_stats.examples import checked_labels
from lipcert.measure.losses import per_example_loss
from lipcert.training.clipping import Asked
from lipcert.training.composition import is_finite
from lipcert.training.guards import Passing, StepGuard
from lipcert.training.network import joined_labels

Labels: TypeAlias = Tensor | Sequence[Tensor] | Mapping[str, Tensor]

_DIVISOR: Final = (
    "training: the loss was scaled by {factor:.6g} before backward(): the sum over the batch is "
    "divided by the constant {divisor:g} already, and any other factor changes the influence of "
    "one example; call private.criterion(model(x), y).backward() as it is"
)


class PrivateLoss(nn.Module):
    """Σᵢ ℓᵢ / divisor of a batch; calling it for slices of the batch adds up.

    divisor: B, the public constant. clip: of the loss gradient at the output, None for none.
    gradients: what gives the sum of clipped gradients, where they are clipped one by one; asked for
    in the forward pass that it is of, and called by backward(), which then puts it in place, and
    nothing runs backwards through the module. reduction: "sum", or "none" for the losses of the
    single examples, for a recorder.
    """

    def __init__(
        self,
        loss: Loss,
        output_shape: Shape,
        divisor: float,
        clip: float | None,
        *,
        guard: StepGuard,
        gradients: Callable[[Tensor, Tensor], Asked] | None = None,
    ) -> None:
        super().__init__()
        self.reduction = "sum"
        self._loss = loss
        self._names = tuple(part.output for part in loss.parts) if isinstance(loss, Joint) else ()
        self._output_shape = output_shape
        self._classes = _classes(loss, output_shape)
        self._divisor = divisor
        self._clip = clip
        self._guard = guard
        self._gradients = gradients

    def __call__(self, logits: Tensor, labels: Labels) -> Any:
        """As `forward`, for labels also as one tensor for each of several outputs, in the order of
        the loss or by name; and for scores of tokens as torch's losses read them, which are views
        of the output: hooks on the criterion see one tensor, the output itself."""
        given = joined_labels(labels, self._names) if self._names else labels
        if isinstance(self._loss, ClassLoss) and self._loss.per_token and isinstance(given, Tensor):
            logits, given = _as_returned(logits, given, self._output_shape)
        return super().__call__(logits, given)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The released sum of these examples; labels as `lipcert audit` takes them."""
        admissible = self._labels(logits, labels.detach().as_subclass(Tensor)).clone()
        if self.reduction == "none":
            return per_example_loss(self._loss, logits, admissible)
        passing = self._guard.losing(logits)
        if self._gradients is not None:
            return self._clipped(self._gradients, logits, admissible, passing)
        output = passing.shown.output
        total = per_example_loss(self._loss, output, admissible, self._clip).sum()
        return self._released(total, passing, lambda: _differentiated(total, self._guard.trained))

    def _clipped(
        self,
        gradients: Callable[[Tensor, Tensor], Asked],
        logits: Tensor,
        labels: Tensor,
        passing: Passing,
    ) -> Tensor:
        """The losses as a number whose backward pass leaves the clipped sum."""
        asked = gradients(self._guard.inputs, labels)
        with torch.no_grad():
            losses = asked.losses
            if losses is None:
                losses = per_example_loss(self._loss, logits, labels)
            total = losses.sum()
            if not is_finite(total):
                self._guard.refuse_lost()
        return self._released(total, passing, asked.gradients)

    def _released(
        self, total: Tensor, passing: Passing, gradients: Callable[[], Mapping[str, Tensor]]
    ) -> Tensor:
        def put() -> None:
            self._guard.returning(passing)
            self._guard.put(gradients())

        released: Tensor = _Released.apply(  # type: ignore[no-untyped-call]
            total.detach().requires_grad_(), self._divisor, put
        )
        return released

    def _labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Class numbers are checked where they lie; everything else as audits check it."""
        if labels.dtype is torch.int64 and labels.dim() == 1 and self._classes and len(labels):
            least, most = labels.aminmax()
            if int(least) >= 0 and int(most) < self._classes:
                return labels.to(logits.device)
        array = labels.detach().cpu().numpy()
        checked = checked_labels(self._loss, array, self._output_shape)
        return torch.from_numpy(checked).to(logits.device)


def _as_returned(logits: Tensor, labels: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """The output of which these are all scores, and labels [examples, …], where that can be seen.

    [examples, classes, tokens…], or the scores of the tokens of all examples one after another.
    """
    base = logits._base
    if base is None or tuple(base.shape[1:]) != shape:
        return logits, labels
    if _is_same_view(logits, base.movedim(-1, 1)):
        return base, labels
    if base.is_contiguous() and _is_same_view(logits, base.flatten(0, -2)):
        return base, labels.reshape(len(base), -1)
    return logits, labels


def _is_same_view(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.stride(), one.storage_offset()) == (
        other.shape,
        other.stride(),
        other.storage_offset(),
    )


def _differentiated(total: Tensor, trained: Mapping[str, nn.Parameter]) -> Mapping[str, Tensor]:
    """∂total/∂θ for those that it depends on."""
    if not total.requires_grad:
        return {}
    found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    pairs = zip(trained, found, strict=True)
    return {name: gradient for name, gradient in pairs if gradient is not None}


def _classes(loss: Loss, output_shape: Shape) -> int | None:
    """How many classes the loss tells apart by one number; None for one that takes other labels."""
    scores = scores_of(loss, output_shape)
    if scores is None or scores.classes < 2 or isinstance(loss, Joint):
        return None
    ends = np.array([0, scores.classes - 1])
    try:
        checked = checked_labels(loss, ends, output_shape)
    except NoVerdictError:
        return None
    return scores.classes if np.array_equal(checked, ends) else None


class _Released(Function):
    """Divides a sum by B, and passes nothing but 1 back to it: the division of the gradient comes
    last, so that clips inside the backward pass see the cotangents of single examples."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, total: Tensor, divisor: float, backward: Callable[[], None]
    ) -> Tensor:
        """The sum of losses, divided by B."""
        ctx.divisor, ctx.called = divisor, backward  # type: ignore[attr-defined]
        return total / divisor

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Any) -> tuple[Tensor, None, None]:
        """The cotangent, if it is 1."""
        (cotangent,) = cotangents
        factor = float(cotangent)
        divisor = ctx.divisor  # type: ignore[attr-defined]
        if factor != 1.0:
            raise UsageError(_DIVISOR.format(factor=factor, divisor=divisor))
        ctx.called()  # type: ignore[attr-defined]
        return cotangent, None, None
