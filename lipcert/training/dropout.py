"""Dropout: harmless where the gradient of each example is clipped, since masks mix no examples.

What enters: a module. What leaves: which of its parts no bound or clip covers, the same module with
its dropout at rest, and the masks of a forward pass, which a second pass uses again. Invariant: the
gradient that is clipped is that of the function whose losses the criterion has told.

Proof that masks cost no privacy under gradient clipping: they are drawn independently of the
examples, each entry for one example; given all masks, a release is a clipped sum with noise, as
without dropout, and what holds for every value of the masks holds for their mixture.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.hooks import RemovableHandle

from lipcert.errors import NoVerdictError
from lipcert.measure.agreement import active_parts

MASKED: Final = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""what multiplies its input by a mask, and does nothing else"""


def dropouts(module: nn.Module) -> dict[str, nn.Module]:
    """By name, those whose masks can be drawn once and used twice."""
    return {name: part for name, part in module.named_modules() if type(part) in MASKED}


def refused_parts(module: nn.Module, *, masks: bool) -> Iterator[tuple[str, str]]:
    """Parts in a mode in which they are random, or mix or remember examples, and why.

    masks: dropout is clipped example by example, and may be active.
    """
    allowed = dropouts(module) if masks else {}
    for name, reason in active_parts(module):
        if name not in allowed:
            yield name, reason
    for name, part in module.named_modules():
        if isinstance(part, _InstanceNorm) and part.training and part.track_running_stats:
            yield name, f"{type(part).__name__} that tracks running statistics"


@contextmanager
def at_rest(module: nn.Module) -> Iterator[None]:
    """The module with its dropout in evaluation mode, and everything else as it is."""
    modes = {part: part.training for part in dropouts(module).values()}
    try:
        for part in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@final
class DropoutMasks:
    """Of the last forward pass of a module in training mode, while gradients were enabled.

    handles: of the hooks that remember them.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._names = {part: name for name, part in dropouts(module).items()}
        self._passes: list[bool] = []  # under way, the innermost last: whether it remembers
        self._drawn: list[tuple[nn.Module, Tensor]] = []
        self._again: deque[tuple[nn.Module, Tensor]] = deque()
        self._waiting: list[Tensor] = []
        self.handles: tuple[RemovableHandle, ...] = (
            module.register_forward_pre_hook(self._begin),
            module.register_forward_hook(self._end, always_call=True),
            *(part.register_forward_pre_hook(self._enter) for part in self._names),
            *(part.register_forward_hook(self._leave) for part in self._names),
        )

    def drawn(self) -> Sequence[tuple[nn.Module, Tensor]]:
        """In the order in which they were used: the part, and its mask  # [examples, …]."""
        return tuple(self._drawn)

    @contextmanager
    def again(self, parts: Sequence[nn.Module], masks: Sequence[Tensor]) -> Iterator[None]:
        """One example is evaluated with these masks, each without its axis of examples."""
        self._again = deque(zip(parts, masks, strict=True))
        try:
            with at_rest(self._module):
                yield
            if self._again:
                raise self._other_pass(self._again[0][0])
        finally:
            self._again.clear()
            self._waiting.clear()

    def _begin(self, module: nn.Module, arguments: object) -> None:
        """Of its own, or of a copy that is compared before it enters."""
        del arguments
        self._passes.append(module.training and torch.is_grad_enabled())
        if self._remembers:
            self._drawn.clear()
            self._waiting.clear()

    def _end(self, *unused: object) -> None:
        del unused
        if self._passes:  # empty where another hook failed before `_begin`
            self._passes.pop()

    @property
    def _remembers(self) -> bool:
        return bool(self._passes) and self._passes[-1]

    def _enter(self, part: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Of ones, a part in training mode makes the mask itself."""
        if not (self._remembers and part.training):
            return None
        (x,) = arguments
        self._waiting.append(x)
        return (torch.ones_like(x),)

    def _leave(self, part: nn.Module, arguments: object, output: Tensor) -> Tensor | None:
        del arguments
        if self._remembers and part.training:
            self._drawn.append((part, output.detach()))
            return self._waiting.pop() * output
        if self._again and self._again[0][0] is part:
            _, mask = self._again.popleft()
            if output.shape != (1, *mask.shape):
                raise self._other_pass(part)
            return output * mask
        return None

    def _other_pass(self, part: nn.Module) -> NoVerdictError:
        return NoVerdictError(
            f"training: the masks of {self._names[part]} ({type(part).__name__}) cannot be told "
            "apart by example: dropout has to read the examples along the first axis, and a "
            "forward pass has to call the same parts for one example as for many; replace it: "
            "lipcert.training.make_trainable(module)"
        )
