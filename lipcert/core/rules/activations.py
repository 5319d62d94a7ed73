"""Activations: functions of one number that act entry by entry, and ReLU among them."""

import math
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Interval, clip
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Activation, Shape
from lipcert.core.rules import FUNCTIONS
from lipcert.core.rules.base import Entrywise
from lipcert.core.rules.facts import Fact, root_up


class ScalarFunction(Protocol):
    """A locally Lipschitz function f of one number, over boxes of arguments."""

    @property
    def at_zero(self) -> float:
        """≥ |f(0)|."""

    def image(self, box: Interval) -> Interval:
        """f(x) for all x of the box."""

    def derivative(self, box: Interval) -> Interval:
        """Every Clarke derivative at every x of the box."""

    def chord(self, box: Interval) -> float:
        """≥ |f(x) − f(0)|/|x| on the box."""


def function(name: str, numbers: tuple[float, ...]) -> ScalarFunction:
    """Return the function of this name; raise Unsupported if there is no rule for it."""
    if name not in FUNCTIONS or not all(number == number for number in numbers):  # noqa: PLR0124
        raise Unsupported(f"no rule is known for the function {name!r}")
    found: ScalarFunction = FUNCTIONS[name](*numbers)
    return found


_MOST_KEPT: Final = 1 << 16
"""numbers of a box whose slopes are kept"""
_KEPT: Final[WeakKeyDictionary[Fact, dict[tuple[str, tuple[float, ...]], Interval]]] = (
    WeakKeyDictionary()
)


class ActivationRule(Entrywise[Activation]):
    """y = f(x) entry by entry; what is known of f stands beside the function, in `functions`."""

    @property
    def _function(self) -> ScalarFunction:
        return function(self.op.name, self.op.numbers)

    def fact(self) -> Fact:
        """√n·|f(0)| + c·X for n entries, also for runs, and the image of the box.

        Proof: ‖f(x)‖ ≤ ‖f(0)‖ + ‖f(x) − f(0)‖, and c bounds the slopes of the chords from 0.
        Attained: f(0) = 0 and |f(x)| = c|x| on one entry; at X = 0 always.
        """
        x, shape, known = self.x, self.shape, self._function
        chord, at_zero = known.chord(x.box), known.at_zero

        def grown(length: float, entries: Shape) -> float:
            fixed = multiply_up(root_up(math.prod(entries)), at_zero)
            return add_up(fixed, multiply_up(chord, length))

        return Fact.of(
            shape,
            grown(x.norm, shape),
            known.image(x.box),
            grown(x.row_norm, shape[-1:]),
            grown(x.column_norm, shape[-2:-1]),
        )

    def slopes(self) -> Interval:
        """Every Clarke derivative on the box. Attained: by the steepest point of it.

        Asked for several times in a derivation, and kept as long as the fact that it follows from.
        """
        if self.x.box.lo.size > _MOST_KEPT:
            return self._function.derivative(self.x.box)
        known, key = _KEPT.setdefault(self.x, {}), (self.op.name, self.op.numbers)
        if key not in known:
            known[key] = self._function.derivative(self.x.box)
        return known[key]


@dataclass(frozen=True, slots=True)
class Relu:
    """max(x, 0), the function that most networks apply."""

    at_zero: float = 0.0

    def image(self, box: Interval) -> Interval:
        """max(x, 0) rises."""
        return clip(box, 0.0, math.inf)

    def derivative(self, box: Interval) -> Interval:
        """0 where x < 0, 1 where x > 0, anything between at 0."""
        return Interval(np.where(box.lo > 0.0, 1.0, 0.0), np.where(box.hi < 0.0, 0.0, 1.0))

    def chord(self, _: Interval) -> float:
        """0 ≤ max(x, 0)/x ≤ 1."""
        return 1.0
