"""What is asked of the gradient of one operand of one node: ways to measure it, and the gradient.

What enters: a `Pair`. What leaves: squared gradient norms by a `Method`, or the gradients
themselves. Invariant: every method of an operand bounds its own error; none approximates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.pair import Pair
from lipcert.audit.gradient_norms.squares import Squares
from lipcert.core.program import Shape


@final
@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """Per-example gradients, each within `distance` (2-norm) of the exact one.

    gradient: [examples, *operand]; distance: float64 [examples].
    """

    gradient: Tensor
    distance: Tensor


@final
@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """One way to measure: its name, bytes of scratch memory per example, and the computation.

    work: multiplications per example, roughly. cancels: whether small norms may come from the
    difference of large numbers; such examples are computed again by instantiation as soon as
    their error is noticeable.
    """

    name: str
    scratch: int
    squares: Callable[[Pair], Squares]
    cancels: bool = False
    work: int = 0

    def widest(self, dtype: torch.dtype) -> float:
        """Relative error of a norm above which it is computed again (float32: 1e-3)."""
        return 2.0**13 * torch.finfo(dtype).eps if self.cancels else 0.05


class OperandGradient(ABC):
    """∂loss/∂operand of one operand of one node, as a function of the node's `Pair`."""

    __slots__ = ()

    @property
    def needs_value(self) -> bool:
        """Whether the pair must hold the value; if not, its a may be anything."""
        return True

    def sums_channels(self, shape: Shape) -> bool:
        """Whether its best method needs `Pair.channel_sums` of a value of this shape."""
        del shape
        return False

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """What the best method depends on, besides the shapes and dtypes of the pair."""

    @abstractmethod
    def methods(self, pair: Pair) -> Sequence[Method]:
        """All exact ways to measure; never empty."""

    @abstractmethod
    def gradients(self, pair: Pair) -> Gradients:
        """The gradients themselves, in the dtype of the pair."""

    @abstractmethod
    def gradient_scratch(self, pair: Pair) -> int:
        """Bytes per example that `gradients` takes on a float64 pair, its result included."""
