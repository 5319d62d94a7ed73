"""Functions of one real number that are written down piece by piece, exactly.

A piece is a sum of terms c·x^p·e^(r·x + s)·(symbols) with rational numbers c, r and s, and a
symbol for whatever else is multiplied in. A function has a piece for each of its breaks, and for
each interval between them.

Equality at a point t is decided exactly: there, a term is a rational number times e^(r·t + s)
times its symbols, and powers of e with different rational exponents are linearly independent over
the rational numbers (Lindemann), so that a sum of them vanishes only if all its coefficients do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias, final

_MOST_TERMS: Final = 12
_MOST_BREAKS: Final = 12
_MOST_BITS: Final = 4096
_HIGHEST: Final = 4
"""power of x, and number of symbols, of a term"""


@final
class NotKnownError(ValueError):
    """A function that is not written down here."""


class Term(NamedTuple):
    """x^power·e^(rate·x + shift)·(symbols)."""

    power: int = 0
    rate: Fraction = Fraction(0)
    shift: Fraction = Fraction(0)
    symbols: tuple[str, ...] = ()


Sum: TypeAlias = Mapping[Term, Fraction]
"""terms with their coefficients, none of which is 0"""
UNIT: Final = Term()
X: Final = Term(1)
ZERO: Final[Sum] = {}


def number(value: Fraction | int) -> Sum:
    """A constant."""
    return {UNIT: Fraction(value)} if value else ZERO


def line(slope: Fraction | int, offset: Fraction | int = 0) -> Sum:
    """slope·x + offset."""
    return plus({X: Fraction(slope)}, number(offset))


def plus(first: Sum, second: Sum) -> Sum:
    """Their sum."""
    found = dict(first)
    for term, factor in second.items():
        found[term] = found.get(term, Fraction(0)) + factor
    return _checked(found)


def times(first: Sum, second: Sum) -> Sum:
    """Their product."""
    found: dict[Term, Fraction] = {}
    for a, f in first.items():
        for b, g in second.items():
            term = Term(
                a.power + b.power,
                a.rate + b.rate,
                a.shift + b.shift,
                tuple(sorted((*a.symbols, *b.symbols))),
            )
            found[term] = found.get(term, Fraction(0)) + f * g
    return _checked(found)


def _checked(found: Mapping[Term, Fraction]) -> Sum:
    kept = {term: factor for term, factor in found.items() if factor}
    numbers = [part for term, factor in kept.items() for part in (factor, term.rate, term.shift)]
    if len(kept) > _MOST_TERMS or any(_size(item) > _MOST_BITS for item in numbers):
        raise NotKnownError
    if any(max(term.power, len(term.symbols)) > _HIGHEST for term in kept):
        raise NotKnownError
    return kept


def _size(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def at(piece: Sum, point: Fraction) -> Sum:
    """Its value at a point, as a sum of powers of e."""
    found: dict[Term, Fraction] = {}
    for term, factor in piece.items():
        value = Term(0, Fraction(0), term.rate * point + term.shift, term.symbols)
        found[value] = found.get(value, Fraction(0)) + factor * point**term.power
    return _checked(found)


def moved(piece: Sum, point: Fraction) -> Sum:
    """The function of u = x − point."""
    found = ZERO
    for term, factor in piece.items():
        part: Sum = {Term(0, term.rate, term.shift + term.rate * point, term.symbols): factor}
        for _ in range(term.power):
            part = times(part, line(1, point))
        found = plus(found, part)
    return found


def mirrored(piece: Sum) -> Sum:
    """The function of u = −x."""
    return {
        term._replace(rate=-term.rate): factor * (-1) ** term.power
        for term, factor in piece.items()
    }


def slope_of(piece: Sum) -> tuple[Fraction, Fraction] | None:
    """(slope, offset) of a line; None for another function."""
    if not piece.keys() <= {X, UNIT}:
        return None
    return piece.get(X, Fraction(0)), piece.get(UNIT, Fraction(0))


@final
@dataclass(frozen=True, slots=True)
class Piecewise:
    """breaks: ascending; pieces: 2n + 1, which are before, at and behind each break, in turn."""

    breaks: tuple[Fraction, ...]
    pieces: tuple[Sum, ...]

    @classmethod
    def of(cls, piece: Sum) -> Piecewise:
        """A function of one piece."""
        return cls((), (piece,))

    def refined(self, breaks: Iterable[Fraction]) -> Piecewise:
        """The same with further breaks."""
        merged = tuple(sorted({*self.breaks, *breaks}))
        if len(merged) > _MOST_BREAKS:
            raise NotKnownError
        pieces = [self._before(merged[0])] if merged else list(self.pieces)
        for point in merged:
            pieces += [self._at(point), self._behind(point)]
        return Piecewise(merged, tuple(pieces))

    def _before(self, point: Fraction) -> Sum:
        return self.pieces[2 * sum(item < point for item in self.breaks)]

    def _at(self, point: Fraction) -> Sum:
        place = 2 * sum(item < point for item in self.breaks)
        return self.pieces[place + 1 if point in self.breaks else place]

    def _behind(self, point: Fraction) -> Sum:
        return self.pieces[2 * sum(item <= point for item in self.breaks)]

    def joined(self, other: Piecewise, act: Callable[[Sum, Sum], Sum]) -> Piecewise:
        """What `act` makes of the two, piece by piece."""
        first, second = self.refined(other.breaks), other.refined(self.breaks)
        return Piecewise(first.breaks, tuple(map(act, first.pieces, second.pieces)))

    def __add__(self, other: Piecewise) -> Piecewise:
        return self.joined(other, plus)

    def __mul__(self, other: Piecewise) -> Piecewise:
        return self.joined(other, times)

    def __sub__(self, other: Piecewise) -> Piecewise:
        return self + other * Piecewise.of(number(-1))

    def mapped(self, act: Callable[[Sum], Sum]) -> Piecewise:
        """What `act` makes of each piece."""
        return Piecewise(self.breaks, tuple(map(act, self.pieces)))

    def signs(self) -> Piecewise:
        """−1, 0 or 1, where all pieces are lines."""
        roots = []
        for place, piece in enumerate(self.pieces[::2]):
            slope, offset = _line(piece)
            low = self.breaks[place - 1] if place else None
            high = self.breaks[place] if place < len(self.breaks) else None
            root = -offset / slope if slope else None
            if root is not None and (low is None or low < root) and (high is None or root < high):
                roots.append(root)
        fine = self.refined(roots)
        points = fine.breaks
        inside = [(a + b) / 2 for a, b in pairwise(points)]
        inside = [points[0] - 1, *inside, points[-1] + 1] if points else [Fraction(0)]
        samples = [inside[0]]
        for point, behind in zip(points, inside[1:], strict=True):
            samples += [point, behind]
        found = []
        for piece, sample in zip(fine.pieces, samples, strict=True):
            slope, offset = _line(piece)
            value = slope * sample + offset
            found.append(number((value > 0) - (value < 0)))
        return Piecewise(points, tuple(found))

    def simplified(self) -> Piecewise | None:
        """Without breaks at which one piece goes on; None where it jumps at one."""
        breaks, pieces = [], [self.pieces[0]]
        for place, point in enumerate(self.breaks):
            before, here, behind = self.pieces[2 * place : 2 * place + 3]
            if not at(before, point) == at(here, point) == at(behind, point):
                return None
            if before != behind:
                breaks.append(point)
                pieces += [here, behind]
        return Piecewise(tuple(breaks), tuple(pieces))


def _line(piece: Sum) -> tuple[Fraction, Fraction]:
    found = slope_of(piece)
    if found is None:
        raise NotKnownError
    return found


def exponential(piece: Sum) -> Sum:
    """e to the power of a line."""
    slope, offset = _line(piece)
    return {Term(0, slope, offset): Fraction(1)}
