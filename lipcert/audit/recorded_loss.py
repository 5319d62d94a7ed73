"""A loss function that is watched: what it is called with and what it returns, unchanged.

What enters: a loss function of logits and labels. What leaves: the same results, its reduction,
and, where it can be asked for them, the losses of the single examples.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from lipcert.audit.trace.records import Reduction

Observer = Callable[[object, tuple[object, ...], object], None]


@final
class RecordedLoss:
    """Calls a function, and then whoever watches it."""

    def __init__(self, loss_fn: Callable[..., Any], observer: Observer) -> None:
        self._loss_fn = loss_fn
        self._observer = observer

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function returns."""
        result = self._loss_fn(*arguments, **keywords)
        self._observer(_Call(self._loss_fn, keywords), (*arguments, *keywords.values()), result)
        return result


@final
class _Call:
    """A function and the keywords it was called with."""

    def __init__(self, loss_fn: Callable[..., Any], keywords: dict[str, Any]) -> None:
        self.loss_fn = loss_fn
        self.keywords = keywords


def reduction_of(loss_fn: object, result: Tensor) -> Reduction | None:
    """How the loss combines examples: as it says itself, or as its result shows; else None."""
    if result.dim():
        return Reduction.NONE
    word = None
    if isinstance(loss_fn, nn.Module):
        word = getattr(loss_fn, "reduction", None)
    elif isinstance(loss_fn, _Call):
        word = loss_fn.keywords.get("reduction", _default(loss_fn.loss_fn))
    return next((item for item in Reduction if item.value == word), None)


@torch.no_grad()
def examples_losses(
    loss_fn: object, arguments: tuple[object, ...], result: Tensor
) -> Tensor | None:
    """One loss for each example; None where the loss cannot be asked for them.

    Only losses that state a reduction are asked, by calling them without one.
    """
    if result.dim() == 1:
        return result
    single: object = None
    if isinstance(loss_fn, nn.Module) and isinstance(getattr(loss_fn, "reduction", None), str):
        alone: Any = copy.copy(loss_fn)
        alone.reduction = "none"
        single = alone.forward(*arguments)
    elif isinstance(loss_fn, _Call) and _default(loss_fn.loss_fn) is not None:
        positional = arguments[: len(arguments) - len(loss_fn.keywords)]
        single = loss_fn.loss_fn(*positional, **{**loss_fn.keywords, "reduction": "none"})
    if not isinstance(single, Tensor) or single.dim() != 1:
        return None
    return single


def _default(loss_fn: Callable[..., Any]) -> object:
    """The default of its parameter `reduction`; None where there is no such parameter."""
    try:
        parameter = inspect.signature(loss_fn).parameters.get("reduction")
    except (TypeError, ValueError):
        return None
    return None if parameter is None else parameter.default
