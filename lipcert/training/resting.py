"""Resting: parts of a module that stay in evaluation mode while the others are trained.

    features.eval().requires_grad_(False)  # before make_private
    …
    model.train()  # leaves them in evaluation mode

What enters: a module, in the modes in which it is handed over. What leaves: the parts that stay as
they are, and hooks that see to it, whatever `model.train()` says of them. Such a part is a layer
that normalises by statistics it holds, which in training mode would mix the examples of a batch;
or what is in evaluation mode within a part whose parameters are all frozen: features that others
have learnt. Invariant: everything else is in the mode that it is put in.

Statistics that are held are constants, as frozen parameters are: with mean m, variance v and ε,
x ↦ γ(x − m)/√(v + ε) + β is an affine map of each channel of each example by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from lipcert.audit.observation import unwrapped


def holds_statistics(part: nn.Module) -> bool:
    """Whether it normalises by running statistics as they are: it is in evaluation mode."""
    return (
        isinstance(part, _BatchNorm)
        and not part.training
        and part.running_mean is not None
        and part.running_var is not None
    )


def has_learnt(part: nn.Module) -> bool:
    """Whether a part has running statistics of something: those of a layer as it is made, and as
    a new network has it, are 0 and 1."""
    if not isinstance(part, _BatchNorm) or part.running_mean is None or part.running_var is None:
        return False
    return bool(part.running_mean.any()) or not bool(part.running_var.eq(1.0).all())


def frozen(module: nn.Module) -> frozenset[nn.Module]:
    """The parts that are in a part, perhaps themselves, whose parameters are all frozen."""
    found: set[nn.Module] = set()
    for part in module.modules():
        if part not in found and part is not module and _is_frozen(part):
            found.update(part.modules())
    return frozenset(found)


def resting(module: nn.Module) -> frozenset[nn.Module]:
    """The parts that stay in evaluation mode."""
    still = frozen(module)
    return frozenset(
        part
        for part in module.modules()
        if holds_statistics(part) or (part in still and not part.training)
    )


@final
class Rest:
    """Of one module, from now until `remove`. parts: that stay in evaluation mode."""

    def __init__(self, model: nn.Module) -> None:
        """model: the module, or what is wrapped around it."""
        self.parts = resting(unwrapped(model))
        self._handles: list[RemovableHandle] = []
        below = {child for part in self.parts for child in part.children()}
        for part in {model, *(self.parts - below)} if self.parts else ():
            resting_there = self.parts.intersection(part.modules())
            self._handles.append(part.register_forward_pre_hook(_Resting(resting_there)))

    def remove(self) -> None:
        """The parts are in the mode that they are put in, again."""
        _put_to_rest(self.parts)
        for handle in self._handles:
            handle.remove()


@final
class _Resting:
    """A hook before a forward pass."""

    def __init__(self, parts: frozenset[nn.Module]) -> None:
        self._parts = parts

    def __call__(self, module: nn.Module, arguments: object) -> None:
        """Nothing of the pass is changed."""
        del module, arguments
        _put_to_rest(self._parts)


def _put_to_rest(parts: Iterable[nn.Module]) -> None:
    for part in parts:
        part.training = False


def _is_frozen(part: nn.Module) -> bool:
    """Whether it has parameters, none of which is trained."""
    trained = [item.requires_grad for item in part.parameters()]
    return bool(trained) and not any(trained)
