"""Criterion: the certified loss, summed over the examples and divided by a constant.

Given the network's output and the labels of a batch or of a slice of it, `PrivateLoss` returns Σᵢ
ℓᵢ / B. Its backward pass leaves the *sum* of the gradients in `.grad`; the release divides it by B.

Invariant: a backward pass is refused through anything but exactly this number: not through a mean
over the current batch, another factor, or a further term on the logits. The criterion
differentiates the losses itself, separately from anything else in the backward pass, and passes the
result to the guard; a gradient that contains more is not released.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from lipcert.core.losses.base import ClassLoss, Loss
from lipcert.core.losses.joint import Joint
from lipcert.core.program import Shape
from lipcert.data.source import array_of
from lipcert.errors import NoVerdictError, UsageError
from lipcert.gradient_stats.labels import Classes, checked_labels, label_set
from lipcert.measure.losses import per_example_loss
from lipcert.training.clipping.gradients import Asked
from lipcert.training.guards import NO_NUMBER, Passing, StepGuard, as_it_is
from lipcert.training.kept_numbers import is_finite
from lipcert.training.modes import kept_as_they_are
from lipcert.training.network import joined_labels

Labels: TypeAlias = Tensor | Sequence[Tensor] | Mapping[str, Tensor]

_DIVISOR: Final = (
    "training: the loss was scaled by {factor:.6g} before backward(): the sum over the batch is "
    "divided by the constant {divisor:g} already, and any other factor changes the influence of "
    "one example; call private.criterion(model(x), y).backward() as it is (a GradScaler is for "
    "16-bit numbers, and to accumulate gradients give the loader the size of the whole batch and "
    "call private.step(x, y), with max_physical_batch in make_private)"
)


class PrivateLoss(nn.Module):
    """Σᵢ ℓᵢ / divisor of a batch; the gradients of calls for slices of the batch add up.

    divisor: B, the public constant. clip: the norm to which the loss gradient at the output is
    clipped; None for no clip. gradients: returns the sum of per-example clipped gradients, under
    mechanisms that clip them. It is called in the forward pass; its result is computed and stored
    in backward(), and autograd does not run through the module. reduction: "sum", or "none" for the
    losses of single examples, which a recorder uses.
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
        admitted = label_set(loss, output_shape)
        self._classes = admitted.classes if isinstance(admitted, Classes) else 0
        self._divisor = divisor
        self._clip = clip
        self._guard = guard
        self._gradients = gradients
        self._run = as_it_is(super().__call__)

    def __call__(self, logits: Tensor, labels: Labels) -> Any:
        """Return `forward` of this output, after normalising how labels and scores are given.

        Labels of several outputs may be one tensor for each, in the order of the loss or by name.
        Scores of tokens may be in the forms that torch's losses take, which are views of the
        output; hooks on the criterion see the output itself.
        """
        given = joined_labels(labels, self._names) if self._names else labels
        if isinstance(self._loss, ClassLoss) and self._loss.per_token and isinstance(given, Tensor):
            logits, given = _as_returned(logits, given, self._output_shape)
        return self._run(logits, given)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the released sum of these examples; labels as `lipcert audit` takes them."""
        admissible = self._labels(logits, labels.detach().as_subclass(Tensor)).clone()
        if self.reduction == "none":
            return per_example_loss(self._loss, logits, admissible)
        passing = self._guard.losing(logits)
        with kept_as_they_are():
            if self._gradients is not None:
                return self._clipped(self._gradients, logits, admissible, passing)
            total = per_example_loss(self._loss, passing.output, admissible, self._clip).sum()
        return self._released(total, passing, lambda: self._differentiated(total, passing.output))

    def _clipped(
        self,
        gradients: Callable[[Tensor, Tensor], Asked],
        logits: Tensor,
        labels: Tensor,
        passing: Passing,
    ) -> Tensor:
        """Return the sum of the losses, whose backward pass stores the clipped sum of gradients."""
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
        """Return the sum over B: a leaf, whose `.grad` after a backward pass is the factor by which
        it was scaled."""
        released = (total.detach() / self._divisor).requires_grad_()

        def put(leaf: Tensor) -> None:
            factor, leaf.grad = float(leaf.grad), None  # type: ignore[arg-type]
            if factor != 1.0:
                raise UsageError(_DIVISOR.format(factor=factor, divisor=self._divisor))
            self._guard.returning(passing)
            with kept_as_they_are():
                self._guard.put(gradients())

        released.register_post_accumulate_grad_hook(put)  # type: ignore[no-untyped-call]
        return released

    def _differentiated(self, total: Tensor, output: Tensor) -> Mapping[str, Tensor]:
        """Return ∂total/∂θ for the parameters that the total depends on, through the output."""
        if not total.requires_grad:
            return {}
        held = self._guard.leaves
        cotangent, *found = torch.autograd.grad(total, [output, *held.values()], allow_unused=True)
        if not is_finite(cotangent):
            raise NoVerdictError(f"training: the loss gradient at the output is {NO_NUMBER}")
        return {name: own for name, own in zip(held, found, strict=True) if own is not None}

    def _labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Check class numbers on their device; check all other labels as audits do."""
        if labels.dtype is torch.int64 and labels.dim() == 1 and self._classes and len(labels):
            least, most = labels.aminmax()
            if int(least) >= 0 and int(most) < self._classes:
                return labels.to(logits.device)
        checked = checked_labels(self._loss, array_of(labels), self._output_shape)
        return torch.from_numpy(checked).to(logits.device)


def _as_returned(logits: Tensor, labels: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return the output of which the logits are a view of all scores, and labels [examples, …].

    The logits are [examples, classes, tokens…], or the scores of the tokens of all examples one
    after another. Anything else is returned unchanged.
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
    first, second = ((x.shape, x.stride(), x.storage_offset()) for x in (one, other))
    return first == second
