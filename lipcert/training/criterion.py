"""Criterion: the loss that was certified, summed over the examples and divided by a constant.

What enters: the output of the network and the labels of a batch, or of a slice of it. What leaves:
Σᵢ ℓᵢ / B, whose backward pass leaves the *sum* of the gradients in `.grad`; the release divides it
by B. Invariant: a backward pass through anything else than exactly this number is refused: a mean
over the batch at hand, another factor, a further term on the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx

from lipcert.audit.labels import checked_labels
from lipcert.audit.losses import clipped_gradient, per_example_loss
from lipcert.errors import NoVerdictError, UsageError
from lipcert.facts import Shape
from lipcert.losses.base import Loss
from lipcert.training.guards import StepGuard

__all__ = ["PrivateLoss"]

_DIVISOR: Final = (
    "training: the loss was scaled by {factor:.6g} before backward(): the sum over the batch is "
    "divided by the constant {divisor:g} already, and any other factor changes what one example "
    "can move; call private.criterion(model(x), y).backward() as it is"
)
_OTHER_TERM: Final = (
    "training: something besides private.criterion depends on the output of the network, so its "
    "gradient is not the one that was bounded; leave out further terms of the loss"
)
_NOT_FINITE: Final = (
    "training: the loss gradient at the output is NaN or infinite, which no noise hides; lower the "
    "learning rate, or look for examples that are not finite"
)


@final
class PrivateLoss(nn.Module):
    """Σᵢ ℓᵢ / divisor of a batch; calling it for slices of the batch adds up.

    divisor: B, the public constant. clip: of the loss gradient at the output, None for none.
    factors: of the losses, where gradients are clipped by them. gradients: the clipped sum itself,
    where no weighting of losses gives it; backward() then puts it in place, and nothing runs
    backwards through the module. reduction: "sum", or "none" for the losses of the single examples,
    for whoever records them.
    """

    def __init__(
        self,
        loss: Loss,
        output_shape: Shape,
        divisor: float,
        clip: float | None,
        *,
        guard: StepGuard,
        factors: Callable[[Tensor, Tensor], Tensor] | None = None,
        gradients: Callable[[Tensor, Tensor], Mapping[str, Tensor]] | None = None,
    ) -> None:
        super().__init__()
        self.reduction = "sum"
        self._loss = loss
        self._output_shape = output_shape
        self._divisor = divisor
        self._clip = clip
        self._guard = guard
        self._factors = factors
        self._gradients = gradients

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The released sum of these examples; labels as `lipcert audit` takes them."""
        admissible = self._labels(logits, labels)
        if self.reduction == "none":
            return per_example_loss(self._loss, logits, admissible)
        self._guard.losing(logits)
        if self._gradients is not None:
            return self._in_place(self._gradients, logits, admissible)
        watched = self._watched(logits)
        if self._clip is not None:
            watched = clipped_gradient(watched, self._clip)
        losses = per_example_loss(self._loss, watched, admissible)
        if self._factors is not None:
            losses = losses * self._factors(self._guard.inputs, admissible).to(losses)
        return self._released(losses.sum(), self._guard.returning)

    def _in_place(
        self,
        gradients: Callable[[Tensor, Tensor], Mapping[str, Tensor]],
        logits: Tensor,
        labels: Tensor,
    ) -> Tensor:
        """The losses as a number whose backward pass adds the clipped sum to the gradients."""
        with torch.no_grad():
            total = per_example_loss(self._loss, logits, labels).sum()
        x = self._guard.inputs

        def put() -> None:
            self._guard.returning()
            self._guard.put(gradients(x, labels))

        return self._released(total.requires_grad_(), put)

    def _released(self, total: Tensor, backward: Callable[[], None]) -> Tensor:
        released: Tensor = _Released.apply(  # type: ignore[no-untyped-call]
            total, self._divisor, backward
        )
        return released

    def _labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        array = labels.detach().cpu().numpy()
        checked = checked_labels(self._loss, array, self._output_shape)
        return torch.from_numpy(checked).to(logits.device)

    def _watched(self, logits: Tensor) -> Tensor:
        """The logits; what arrives at them in the backward pass must come from here alone."""
        if not logits.requires_grad:
            return logits
        seen: list[Tensor] = []
        own = logits.view_as(logits)
        own.register_hook(seen.append)  # type: ignore[no-untyped-call]

        def compare(cotangent: Tensor) -> None:
            if not bool(torch.isfinite(cotangent).all()):
                raise NoVerdictError(_NOT_FINITE)
            if not (seen and torch.equal(seen[-1], cotangent)):
                raise UsageError(_OTHER_TERM)

        logits.register_hook(compare)  # type: ignore[no-untyped-call]
        return own


class _Released(Function):
    """Divides a sum by B, and passes nothing but 1 back to it: the division of the gradient comes
    last, so that clips inside the backward pass see the cotangents of single examples."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, total: Tensor, divisor: float, backward: Callable[[], None]
    ) -> Tensor:
        """The sum over B."""
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
