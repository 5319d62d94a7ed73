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

from lipcert.facts import Bound, Shape, ValueFacts, no_bound, product_of, tightest
from lipcert.interval import Interval
from lipcert.ops.base import Op
from lipcert.scope import Scope
from lipcert.upper import INFINITE, FloatArray, Upper


class DomainFunction(ABC):
    """A function of one number; subclasses are frozen dataclasses.

    `image` and `derivative` speak of those x of the box at which f is defined.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the spelling of ONNX."""

    @property
    @abstractmethod
    def needs(self) -> str:
        """What a box must fulfil for value and slope to be bounded, in words."""

    @abstractmethod
    def is_defined(self, box: Interval) -> bool:
        """Whether f is a finite number at every point of the box."""

    @abstractmethod
    def value(self, x: FloatArray) -> FloatArray:
        """f entry by entry, in ordinary float64."""

    @abstractmethod
    def image(self, box: Interval) -> Interval:
        """Holds f(x) for every x of the box, entry by entry."""

    @abstractmethod
    def derivative(self, box: Interval) -> Interval:
        """Holds f'(x) for every x of the box, entry by entry."""

    def chord(self, box: Interval) -> Upper:
        """B ≥ sup |f(x)|/|x| over the box; inf where nothing is claimed."""
        del box
        return INFINITE


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

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖f(x)‖ over the box: c·X with |f(x)| ≤ c|x|, or the norm of the image.

        Hypotheses: f is defined on the whole box; otherwise there is no bound.
        Proof: both hold entry by entry.
        Attained: by the image, where every entry takes its largest magnitude at once.
        """
        del scope
        (x,) = inputs
        rule = "domain.output_norm"
        box = x.box.broadcast(x.shape)
        if not self.function.is_defined(box):
            return ValueFacts.of(x.shape, self._refusal(rule, box))
        image = self.function.image(box)
        chord = self.function.chord(box)
        by_chord = by_image = self._refusal(rule, box)
        if chord.is_finite:
            by_chord = product_of(rule, Bound(chord, rule), x.norm)
        if image.norm().is_finite:
            by_image = Bound(image.norm(), rule)
        return ValueFacts.of(x.shape, tightest(by_chord, by_image), image)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ sup |f'| over the box: the Jacobian is diagonal.

        Hypotheses: f is defined on the whole box and its slope is bounded there.
        Attained: where the supremum of |f'| over the box is.
        """
        del index, scope
        (x,) = inputs
        rule = "domain.input_lipschitz"
        box = x.box.broadcast(x.shape)
        if not self.function.is_defined(box):
            return self._refusal(rule, box)
        slope = self.function.derivative(box).max_abs()
        return Bound(slope, rule) if slope.is_finite else self._refusal(rule, box)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """f(x); NaN or infinite where f is not defined."""
        (x,) = inputs
        with np.errstate(all="ignore"):
            return self.function.value(x)

    def _refusal(self, rule: str, box: Interval) -> Bound:
        low, high = np.min(box.lo, initial=np.inf), np.max(box.hi, initial=-np.inf)
        return no_bound(
            rule,
            f"{self.kind} needs {self.function.needs}, but its entries are only known to lie in "
            f"[{low:.4g}, {high:.4g}]",
            "state bounds of the inputs that imply it (--input-box, --input-norm), or put a Clip "
            "before it",
        )
