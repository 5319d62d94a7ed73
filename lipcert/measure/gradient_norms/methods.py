"""Methods: ways to measure the gradient of one operand of one node, and the choice among them.

A `Pair` holds what the node read and the cotangent that it received: all that the gradient depends
on. Invariant: every method of an operand bounds its own error; none approximates. The method with
the least work is chosen, the same on every machine and in every run. Scratch memory stays below the
limit wherever a single example allows it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from lipcert.measure.gradient_norms.squares import Squares, sum_of_squares, with_distance


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
        """Make a pair, and compute its squares."""
        return cls(a, b, sum_of_squares(a), sum_of_squares(b))

    def __len__(self) -> int:
        return len(self.b)

    @property
    def reach(self) -> Tensor:
        """An upper bound of ‖a‖·‖b‖."""
        return self.a_squares.upper.sqrt() * self.b_squares.upper.sqrt()

    def swapped(self) -> Pair:
        """Exchange the roles of value and cotangent."""
        return Pair(self.b, self.a, self.b_squares, self.a_squares)

    def contiguous(self) -> Pair:
        """Return both tensors in the memory order of their axes."""
        if self.a.is_contiguous() and self.b.is_contiguous():
            return self
        return Pair(self.a.contiguous(), self.b.contiguous(), self.a_squares, self.b_squares)

    def part(self, start: int, stop: int) -> Pair:
        """Return the examples from start to stop."""
        if start == 0 and stop >= len(self):
            return self
        return self.picked(slice(start, stop))

    def picked(self, where: slice | Tensor) -> Pair:
        """Return the examples at these indices, or of a slice."""
        squares = (self.a_squares.at(where), self.b_squares.at(where))
        return Pair(self.a[where], self.b[where], *squares)

    def double(self) -> Pair:
        """Return the pair in float64, where squares of float32 numbers neither overflow nor
        underflow."""
        if self.b.dtype is torch.float64:
            return self
        return Pair.of(self.a.double(), self.b.double())


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """Per-example gradients, each within `distance` (2-norm) of the exact one.

    gradient: [examples, *operand]; distance: float64 [examples].
    """

    gradient: Tensor
    distance: Tensor


_LOOSE: Final = 0.05
"""Relative error above which a norm is computed again."""


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """One way to measure: its name, bytes of scratch memory per example, and the computation.

    work: multiplications per example, roughly. cancels: whether small norms may result from
    differences of large numbers; if the error of such an example is noticeable, it is measured
    again by instantiation.
    """

    name: str
    scratch: int
    squares: Callable[[Pair], Squares]
    cancels: bool = False
    work: int = 0

    def widest(self, dtype: torch.dtype) -> float:
        """Return the relative error above which a norm is computed again (float32: 1e-3)."""
        return 2.0**13 * torch.finfo(dtype).eps if self.cancels else _LOOSE


class OperandGradient(ABC):
    """∂loss/∂operand of one operand of one node, as a function of the node's `Pair`."""

    __slots__ = ()

    @property
    def needs_value(self) -> bool:
        """Whether the pair must hold the value; if not, its a may be anything."""
        return True

    def of_norms(self, pair: Pair) -> Squares | None:
        """Return the squares if they follow from those of the pair with the same accuracy,
        otherwise None."""
        del pair
        return None

    @abstractmethod
    def methods(self, pair: Pair) -> Sequence[Method]:
        """Return all exact ways to measure, never none; of equal work, the faster one comes
        first."""

    @abstractmethod
    def gradients(self, pair: Pair) -> Gradients:
        """Return the gradients themselves, in the dtype of the pair."""

    @abstractmethod
    def gradient_scratch(self, pair: Pair) -> int:
        """Return the bytes per example that `gradients` takes on a float64 pair, including its
        result."""

    def instantiated(self, pair: Pair) -> Squares:
        """Return the squares of the gradients themselves, which are kept if they are small."""
        found = self.gradients(pair)
        return with_distance(found.gradient, found.distance, pair.b)


_ALONE: Final = 2**24
"""Bytes of scratch memory for an operand with one method, which passes over its tensors once."""
_SCRATCH: Final = {"cpu": 2**22}
"""Bytes for all others, chosen to fit a cache; on other devices, the limit."""


@dataclass(frozen=True, slots=True)
class Chooser:
    """Chooses among methods that fit into this many bytes."""

    memory_limit: int

    def squares(self, of: OperandGradient, pair: Pair, later: list[Squares] | None) -> Squares:
        """Return the squares of every example, by the method of the least work.

        later: a list that collects squares whose errors are checked later; None: examples with too
        large an error are measured again by instantiation.
        """
        squares, widest = of.of_norms(pair), _LOOSE
        if squares is not None and later is not None:
            return squares
        if squares is None:
            methods = self._admitted(of.methods(pair))
            method = min(methods, key=lambda each: each.work)
            limit = _SCRATCH.get(pair.b.device.type, self.memory_limit)
            limit = min(max(_ALONE, limit) if len(methods) == 1 else limit, self.memory_limit)
            squares = by_chunks(method.squares, pair, max(1, limit // max(method.scratch, 1)))
            widest = method.widest(pair.b.dtype)
        if later is not None:
            later.append(squares)
            return squares
        is_wide = squares.is_wide(widest)
        if not is_wide.any():
            return squares
        wide = is_wide.nonzero().squeeze(1)
        chunk = max(1, self.memory_limit // of.gradient_scratch(pair))
        known = by_chunks(lambda part: of.instantiated(part.double()), pair.picked(wide), chunk)
        return squares.replaced(wide, known)

    def _admitted(self, methods: Sequence[Method]) -> Sequence[Method]:
        """Return the methods that fit one example into the memory, or else the one that takes
        least."""
        fitting = [method for method in methods if method.scratch <= self.memory_limit]
        return fitting or [min(methods, key=lambda method: method.scratch)]


def by_chunks(squares: Callable[[Pair], Squares], pair: Pair, chunk: int) -> Squares:
    """Return the squares of a pair, computed `chunk` examples at a time."""
    if chunk >= len(pair):
        return squares(pair)
    starts = range(0, len(pair), chunk)
    return Squares.joined([squares(pair.part(start, start + chunk)) for start in starts])
