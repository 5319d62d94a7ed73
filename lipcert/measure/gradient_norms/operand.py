"""What is asked of the gradient of one operand of one node: ways to measure it, and the gradient.

A `Pair` is what the node read and the cotangent that it received: all that the gradient depends on.
Invariant: every method of an operand bounds its own error; none approximates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipcert.measure.gradient_norms.squares import Squares, sum_of_squares


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A value a, a cotangent b, and ‖a‖² and ‖b‖² of every example.

    a, b: [examples, ...] of one dtype, float32 or float64.
    """

    a: Tensor
    b: Tensor
    a_squares: Squares
    b_squares: Squares

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> Pair:
        """A pair whose squares are still to be computed."""
        return cls(a, b, sum_of_squares(a), sum_of_squares(b))

    def __len__(self) -> int:
        return len(self.b)

    @property
    def reach(self) -> Tensor:
        """‖a‖·‖b‖, from above."""
        return self.a_squares.upper.sqrt() * self.b_squares.upper.sqrt()

    def swapped(self) -> Pair:
        """The roles of value and cotangent exchanged."""
        return Pair(self.b, self.a, self.b_squares, self.a_squares)

    def contiguous(self) -> Pair:
        """Both tensors in the order of their axes."""
        if self.a.is_contiguous() and self.b.is_contiguous():
            return self
        return Pair(self.a.contiguous(), self.b.contiguous(), self.a_squares, self.b_squares)

    def part(self, start: int, stop: int) -> Pair:
        """The examples from start to stop."""
        if start == 0 and stop >= len(self):
            return self
        return self._at(slice(start, stop))

    def picked(self, where: Tensor) -> Pair:
        """The examples at given indices."""
        return self._at(where)

    def _at(self, where: slice | Tensor) -> Pair:
        squares = (self.a_squares.at(where), self.b_squares.at(where))
        return Pair(self.a[where], self.b[where], *squares)

    def double(self) -> Pair:
        """In float64, where squares of float32 numbers neither overflow nor underflow."""
        if self.b.dtype is torch.float64:
            return self
        return Pair.of(self.a.double(), self.b.double())


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

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """What determines the best method, besides the shapes and dtypes of the pair."""

    @abstractmethod
    def methods(self, pair: Pair) -> Sequence[Method]:
        """All exact ways to measure; never empty."""

    @abstractmethod
    def gradients(self, pair: Pair) -> Gradients:
        """The gradients themselves, in the dtype of the pair."""

    @abstractmethod
    def gradient_scratch(self, pair: Pair) -> int:
        """Bytes per example that `gradients` takes on a float64 pair, its result included."""
