"""Make nodes that do not jump for a function of x that a file writes with comparisons.

Proof: a function is replaced only where its pieces meet exactly at every break, and by nodes that
compute the same function of the real number x. A softplus is the one exception: its guard only
avoids overflow, see `guards`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Final

import numpy as np

from lipcert.core.arithmetic import round_down, round_up
from lipcert.core.lower.call import Sink
from lipcert.core.lower.piecewise import (
    UNIT,
    ZERO,
    Piecewise,
    Reader,
    Sum,
    Term,
    X,
    at,
    line,
    slope_of,
)
from lipcert.core.lower.values import Constant, Value
from lipcert.core.reader.records import Attribute, Node

SATURATED: Final = 15
"""From here on x may replace a softplus: they differ by less than ln(1 + e^−15) < 4e-7."""
_HARD_SWISH: Final = (ZERO, {Term(2): Fraction(1, 6), X: Fraction(1, 2)}, line(1))
"""x·(x + 3)/6 between −3 and 3, 0 below, x above"""


def _exact(value: Fraction) -> bool:
    """Whether a float64 represents this number exactly."""
    try:
        return Fraction(float(value)) == value
    except OverflowError:
        return False


class Maker:
    """Makes nodes that compute a function of x for a node's output: a line, a function, a line.

    values: new constants are added to them.
    """

    def __init__(self, reader: Reader, node: Node, values: dict[str, Value], sink: Sink) -> None:
        self._reader, self._node, self._x = reader, node, reader.x
        self._values, self._sink = values, sink
        self._made: list[Node] = []

    def made(self, function: Piecewise) -> list[Node]:
        """Return the nodes; none for a function that jumps or is not known here."""
        found = function.joined()
        name = self._softplus(function) if found is None else self._function(*found)
        if name is None:
            return []
        if not self._made:
            self._add("Identity", name)
        return [*self._made[:-1], replace(self._made[-1], outputs=self._node.outputs)]

    def _function(self, kinks: list[Fraction], pieces: list[Sum]) -> str | None:
        if not kinks:
            straight = slope_of(pieces[0])
            return None if straight is None else self._line(self._x, *straight)
        if kinks == [-3, 3] and tuple(pieces) == _HARD_SWISH:
            return self._add("HardSwish", self._x)
        found = None
        if len(kinks) == 1:
            (t,), (below, above) = kinks, pieces
            found = self._kink(t, below, above) or self._exponential(t, below, above)
        return found or self._shrink(kinks, pieces) or self._parts(kinks, pieces)

    def _parts(self, points: Sequence[Fraction], pieces: Sequence[Sum]) -> str | None:
        """Polynomials, each of x held between two breaks t, so that they follow each other.

        Proof: for x between two breaks, all pieces before have run their course and contribute
        p(t') − p(t), their part of the way to p(x); all behind contribute p(t) − p(t) = 0.
        """
        total, offset = list[str](), Fraction(0)
        for place, piece in enumerate(pieces):
            if any(term._replace(power=0) != UNIT for term in piece):
                return None
            start = points[max(place - 1, 0)]
            offset += at(piece, start).get(UNIT, Fraction(0)) if place == 0 else 0
            powers = [(term.power, factor) for term, factor in sorted(piece.items()) if term.power]
            inner = self._x
            if powers and place:
                inner = self._add("Max", inner, self._constant(points[place - 1]))
            if powers and place < len(points):
                inner = self._add("Min", inner, self._constant(points[place]))
            for power, factor in powers:
                offset -= factor * start**power
                name = reduce(lambda a, b: self._add("Mul", a, b), [inner] * power)
                total.append(self._line(name, factor, Fraction(0)))
        if not total:
            return None
        name = total[0] if len(total) == 1 else self._add("Sum", *total)
        return self._line(name, Fraction(1), offset)

    def _add(self, op_type: str, *inputs: str, **numbers: Fraction) -> str:
        name = self._sink.fresh(self._node.outputs[0])
        attributes = {key: Attribute("FLOAT", float(value)) for key, value in numbers.items()}
        self._made.append(
            replace(
                self._node, op_type=op_type, inputs=inputs, outputs=(name,), attributes=attributes
            )
        )
        return name

    def _constant(self, value: Fraction | int) -> str:
        """Add a constant of this number, or of the two float64 around it; return its name."""
        value = Fraction(value)
        name = self._sink.fresh(self._node.outputs[0])
        low = np.asarray(round_down(value))
        self._values[name] = Constant(low, low if _exact(value) else np.asarray(round_up(value)))
        return name

    def _line(self, name: str, slope: Fraction | int, offset: Fraction | int) -> str:
        if slope != 1:
            name = self._add("Mul", name, self._constant(slope))
        return self._add("Add", name, self._constant(offset)) if offset else name

    def _kink(self, t: Fraction, below: Sum, above: Sum) -> str | None:
        """Slope a below t, c above, and v there: v + c·leaky(x − t), and simpler ones."""
        if t == 0 and above == line(1) and (name := self._slope(below)):
            return self._add("PRelu", self._x, name)
        first, second = slope_of(below), slope_of(above)
        if first is None or second is None:
            return None
        (a, _), (c, offset) = first, second
        v = c * t + offset
        if a == 0 and 0 in {t, v}:
            return self._line(self._add("Relu", self._line(self._x, 1, -t)), c, v)
        if a == 0 or c == 0:
            return None  # the larger or the smaller one of x and t, as `_parts` has it
        if a == -c:
            return self._line(self._add("Abs", self._line(self._x, 1, -t)), c, v)
        if _exact(a / c):
            u = self._line(self._x, 1, -t)
            return self._line(self._add("LeakyRelu", u, alpha=a / c), c, v)
        if _exact(c / a):
            u = self._line(self._x, -1, t)
            return self._line(self._add("LeakyRelu", u, alpha=c / a), -a, v)
        return None

    def _slope(self, piece: Sum) -> str:
        """The name of a stored tensor a for a·x, if it shapes the function here alone.

        Its entries may be what is trained.
        """
        ((term, factor), *more) = piece.items() or [(UNIT, Fraction(0))]
        name = term.symbols[0] if term.symbols else ""
        is_stored = isinstance(self._values.get(name), Constant) and name not in self._reader.plain
        is_slope = factor == 1 and term == Term(1, symbols=(name,)) and not more
        return name if is_slope and is_stored else ""

    def _shrink(self, kinks: list[Fraction], pieces: list[Sum]) -> str | None:
        """The same slope on both sides of a flat piece."""
        lines = [slope_of(piece) for piece in pieces]
        if len(kinks) != 2 or lines[0] is None or lines[2] is None or lines[1] is None:
            return None
        (low, high), (slope, _), (flat, offset) = kinks, lines[0], lines[1]
        limit = (high - low) / 2
        if flat or slope == 0 or slope != lines[2][0] or not _exact(limit):
            return None
        u = self._line(self._x, 1, -(low + high) / 2)
        return self._line(self._add("Shrink", u, lambd=limit, bias=limit), slope, offset)

    def _exponential(self, t: Fraction, below: Sum, above: Sum) -> str | None:
        """β·u above 0 and γ·(e^(δ·u) − 1) below, plus v, for u = x − t or t − x."""
        sign, curve, straight = 1, below, slope_of(above)
        if straight is None:
            sign, curve, straight = -1, above, slope_of(below)
        powers = [(term, factor) for term, factor in curve.items() if term != UNIT]
        if straight is None or len(powers) != 1:
            return None
        ((term, gamma),) = powers
        beta, delta, v = sign * straight[0], sign * term.rate, straight[0] * t + straight[1]
        is_power = term == Term(rate=term.rate, shift=-term.rate * t) and delta > 0
        if not is_power or curve.get(UNIT, Fraction(0)) != v - gamma:
            return None
        if beta and delta != 1 and beta == gamma * delta and _exact(1 / delta):
            u = self._line(self._x, sign, -sign * t)
            return self._line(self._add("Celu", u, alpha=1 / delta), beta, v)
        alpha, gain = (gamma * delta / beta, beta / delta) if beta else (Fraction(0), Fraction(1))
        if not _exact(alpha):
            return None
        u = self._line(self._x, sign * delta, -sign * delta * t)
        if not beta:
            power = self._add("Exp", self._add("Min", u, self._constant(0)))
            return self._line(power, gamma, v - gamma)
        if gain == 1 or not _exact(gain):
            return self._line(self._add("Elu", u, alpha=alpha), gain, v)
        return self._line(self._add("Selu", u, alpha=alpha, gamma=gain), 1, v)

    def _softplus(self, function: Piecewise) -> str | None:
        """softplus(c·x)/c up to t, x beyond, for c·t ≥ `SATURATED`."""
        if len(function.breaks) != 1:
            return None
        (t,), (below, here, above) = function.breaks, function.pieces
        if here not in (below, above) or above != line(1) or not isinstance(below, Mapping):
            return None
        ((term, share), *more) = below.items() or [(UNIT, Fraction(0))]
        if more or len(term.symbols) != 1 or term != Term(symbols=term.symbols):
            return None
        maker = self._reader.producers.get(term.symbols[0])
        if maker is None or maker.op_type != "Softplus" or maker.domain:
            return None
        inner = self._reader.of(maker.inputs[0])
        if inner is None or inner.pieces != (line(1 / share),):
            return None
        return self._line(term.symbols[0], share, 0) if 0 < share * SATURATED <= t else None
