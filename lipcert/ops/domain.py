"""Functions that are finite, or have finite slopes, on a part of the line only.

What enters: facts about x; its box decides. What leaves: norm and box of f(x), and the largest
slope on the box; where the box leaves the safe part, no bound, with the reason and what would help.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


class DomainFunction(ABC):
    """A function of one number; subclasses are frozen dataclasses.

    `image` and `derivative` speak of those x of the box at which f is defined.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the spelling of ONNX."""

    @abstractmethod
    def value(self, x: FloatArray) -> FloatArray:
        """f entry by entry, in ordinary float64."""


@final
@dataclass(frozen=True, slots=True)
class OnDomain(Op):
    """y = f(x), entry by entry, with f bounded on a known box at best."""

    function: DomainFunction

    @property
    def kind(self) -> str:
        """Name of the function."""
        return self.function.name

    @property
    def family(self) -> str:
        """Rule family."""
        return "domain"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input."""
        (shape,) = inputs
        return shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """f(x); NaN or infinite where f is not defined."""
        (x,) = inputs
        with np.errstate(all="ignore"):
            return self.function.value(x)
