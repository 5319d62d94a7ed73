"""Comparing: whether tensors hold the same numbers, or finite ones, as fast as memory is read.

What enters: tensors; a module and the parameters that are trained. What leaves: yes or no; a
`UsageError` that names what was changed since the last step. Invariants: a yes is never wrong,
however sums are rounded; numbers are compared themselves, not counters of writes, which `.data` and
numpy pass by; comparing reads all weights twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, final

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.errors import UsageError

_MANY: Final = 2**16
"""entries from which numpy is faster, by up to five times"""
_PLAIN: Final = frozenset({torch.float32, torch.float64})
_MOMENT: Final = (
    "forward and backward passes must see the weights of the last step: weights that are perturbed "
    "for a gradient and put back (SAM, weight noise, averaged weights) have other bounds; evaluate "
    "such weights in evaluation mode or under torch.no_grad()"
)


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether all entries are the same numbers, of the same type; NaN is no number."""
    if one.dtype is not other.dtype:
        return False
    if one.numel() < _MANY or not (_is_plain(one) and _is_plain(other)):
        return torch.equal(one, other)
    return np.array_equal(one.numpy(force=True), other.numpy(force=True))


def first_difference(ones: Sequence[Tensor], others: Sequence[Tensor]) -> int | None:
    """The place of the first pair that is not equal; a GPU, which stops at every question, is asked
    once for all pairs."""
    pairs = list(zip(ones, others, strict=True))
    if not pairs or _are_here(ones):
        return next((place for place, pair in enumerate(pairs) if not are_equal(*pair)), None)
    differ = [
        torch.ne(one, other).any()
        if one.shape == other.shape and one.dtype is other.dtype
        else torch.ones((), dtype=torch.bool, device=one.device)
        for one, other in pairs
    ]
    places = torch.stack([item.to(ones[0].device) for item in differ]).nonzero()
    return int(places[0]) if len(places) else None


def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are numbers.

    Proof: a sum that holds NaN or an infinite number is none of the finite ones. Finite numbers
    whose sum overflows in their own type are added up in float64.
    """
    return math.isfinite(tensor.sum()) or math.isfinite(tensor.sum(dtype=torch.float64))


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in _PLAIN


def _are_here(tensors: Sequence[Tensor]) -> bool:
    return all(item.device.type == "cpu" for item in tensors)


@final
class KeptNumbers:
    """Of one module. trained: by name; all others are kept from `keep` on."""

    def __init__(self, module: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        self._module = module
        self._trained = trained
        self._addresses = {name: item.data_ptr() for name, item in trained.items()}
        self._left = {name: item.detach().clone() for name, item in trained.items()}
        self._kept: dict[str, Tensor] | None = None

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
        self._require_kept()

    def require_released(self) -> None:
        """UsageError unless all numbers are those that were left, on whatever device."""
        changed = _changed(self._trained, self._left)
        if changed is not None:
            raise UsageError(
                f"training: {changed} was changed after the last step by something else than the "
                "optimizer, so the model does not hold what was released, and no ε is that of its "
                "weights; private.restore() goes back to a checkpoint; average, quantise, or train "
                "on with public examples after the `with` block"
            )
        self._require_kept()

    def _require_kept(self) -> None:
        """UsageError where anything that is not trained is another one, or new."""
        if self._kept is None:
            return
        present = self._others()
        changed = _changed(present, self._kept)
        if changed is not None:
            raise UsageError(
                f"training: {changed} is not trained, and was changed since make_private was "
                "called: bounds hold for what it was, and buffers of what examples gave would "
                "be kept without noise"
            )
        new = present.keys() - self._kept.keys()
        saved = sorted(new & self._module.state_dict().keys()) if new else []
        if saved:
            raise UsageError(
                f"training: {saved[0]} was added to the module since make_private was called, and "
                "would be saved with it without noise; add it before, or as a buffer with "
                "persistent=False"
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
    there = [present[name].detach().to(item.device) for name, item in known.items()]
    place = first_difference(there, list(known.values()))
    return None if place is None else names[place]
