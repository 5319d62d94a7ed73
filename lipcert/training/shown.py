"""Shown: the output of the network as its caller gets it, and the output itself.

What enters: the output of a forward pass. What leaves: a copy of it that leads back to nothing.
Invariant: only the criterion has the output itself, so that no hook and no further term of the loss
reaches the network through what the caller has; whoever differentiates the copy is told.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx

from lipcert.errors import NoVerdictError, UsageError
from lipcert.training.comparing import are_equal, is_finite

NO_NUMBER: Final = (
    "NaN or infinite, which no noise hides; lower the learning rate, or look for examples that are "
    "not finite"
)
_OTHER_TERM: Final = (
    "training: something besides private.criterion depends on the output of the network, so its "
    "gradient is not the one that was bounded; leave out further terms of the loss, and hooks and "
    "changes of the output"
)


@final
class Shown:
    """One output. output: what the criterion takes. given: the copy, while its caller keeps it."""

    def __init__(self, output: Tensor) -> None:
        self.output = output
        if output.requires_grad:
            output.register_hook(_refuse_no_number)  # type: ignore[no-untyped-call]
        self._caller: weakref.ref[Tensor] | None = None

    def copied(self) -> Tensor:
        """For the caller."""
        anchor = torch.empty(0, requires_grad=True)
        given: Tensor = _Apart.apply(anchor, self.output.detach())  # type: ignore[no-untyped-call]
        self._caller = weakref.ref(given)
        return given

    def is_of(self, logits: Tensor) -> bool:
        """Whether these are the copy, and still what it was; what is no number may be anything."""
        if self._caller is None or self._caller() is not logits:
            return False
        if logits.shape != self.output.shape:
            return False
        with torch.no_grad():
            return are_equal(logits, self.output) or bool(
                ((logits == self.output) | self.output.isnan()).all()
            )

    def refuse_hooks(self) -> None:
        """A hook on the copy would never run."""
        given = None if self._caller is None else self._caller()
        if given is not None and given._backward_hooks:
            raise UsageError(_OTHER_TERM)


class _Apart(Function):
    """A copy with a history of its own, in which nothing may be differentiated."""

    @staticmethod
    def forward(ctx: FunctionCtx, anchor: Tensor, output: Tensor) -> Tensor:
        """The output's numbers."""
        del ctx, anchor
        return output.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Any) -> tuple[None, None]:
        """Nobody but the criterion differentiates the output."""
        del ctx, cotangents
        raise UsageError(_OTHER_TERM)


def _refuse_no_number(cotangent: Tensor) -> None:
    if not is_finite(cotangent):
        raise NoVerdictError(f"training: the loss gradient at the output is {NO_NUMBER}")
