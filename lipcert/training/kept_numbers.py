"""KeptNumbers: the numbers of a module are those that the last step left.

What enters: a module, and the parameters that are trained. What leaves: nothing, or a `UsageError`
that names what was changed. Invariant: numbers are compared themselves, not counters of writes,
which `.data` and numpy pass by; comparing reads all weights twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import torch
from torch import Tensor, nn

from lipcert.errors import UsageError
from lipcert.training.comparing import first_difference

_MOMENT: Final = (
    "forward and backward passes must see the weights of the last step: weights that are perturbed "
    "for a gradient and put back (SAM, weight noise, averaged weights) have other bounds; evaluate "
    "such weights in evaluation mode or under torch.no_grad()"
)


@final
class KeptNumbers:
    """Of one module. trained: by name; all others are kept from `keep` on."""

    def __init__(self, module: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        self._module = module
        self._trained = trained
        self._addresses = {name: item.data_ptr() for name, item in trained.items()}
        self._left = {name: item.detach().clone() for name, item in trained.items()}
        self._kept: dict[str, Tensor] = {}

    @torch.no_grad()
    def settle(self) -> None:
        """A step is done: these are the weights that the next one begins with."""
        for name, parameter in self._trained.items():
            self._left[name].copy_(parameter)

    def keep(self) -> None:
        """What is not trained stays what it is now."""
        self._kept = {name: item.clone() for name, item in self._others().items()}

    def require(self) -> None:
        """UsageError unless all numbers are those that were left, where they were."""
        for name, parameter in self._trained.items():
            if parameter.data_ptr() != self._addresses[name]:
                raise UsageError(
                    f"training: {name} lies elsewhere in memory than when make_private was "
                    "called; move and convert the model before that"
                )
        changed = _changed(self._trained, self._left)
        if changed is not None:
            raise UsageError(
                f"training: {changed} was changed since the last step by something else than the "
                f"optimizer, so the bounds may not speak of these weights; {_MOMENT}; use "
                "private.restore() to go back to a checkpoint"
            )
        changed = _changed(self._others(), self._kept) if self._kept else None
        if changed is not None:
            raise UsageError(
                f"training: {changed} is not trained, and was changed since make_private was "
                "called: bounds hold for what it was, and buffers of what examples gave would "
                "be kept without noise"
            )

    def _others(self) -> Mapping[str, Tensor]:
        """Parameters and buffers that are not trained, by name."""
        own = {id(item) for item in self._trained.values()}
        named = [*self._module.named_parameters(), *self._module.named_buffers()]
        return {name: item.detach() for name, item in named if id(item) not in own}


def _changed(present: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> str | None:
    """The first name whose numbers are not those that are known."""
    missing = [name for name in known if name not in present]
    if missing:
        return missing[0]
    names = list(known)
    place = first_difference([present[name] for name in names], list(known.values()))
    return None if place is None else names[place]
