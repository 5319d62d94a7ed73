"""Read functions of one real number x that nodes write with comparisons, piece by piece, exactly.

A piece is a sum of terms c·x^p·e^(r·x + s)·(symbols) with rational numbers c, r and s, and a
symbol for whatever else is multiplied in. A function has a piece at each of its breaks, and one in
each open interval between them: in such a region every comparison of lines in x that a node makes
has the same outcome for all x.

Equality at a point t is decided exactly: there, a term is a rational number times e^(r·t + s)
times its symbols, and powers of e with different rational exponents are linearly independent over
the rational numbers (Lindemann), so that a sum of them vanishes only if all its coefficients do.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial, reduce
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from lipcert.core.lower.entrywise import broadcast
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.operators import REALS
from lipcert.core.lower.values import Constant, Data, Value
from lipcert.core.reader.records import Node

_MOST_TERMS: Final = 12
_MOST_BREAKS: Final = 12
_MOST_BITS: Final = 4096
_HIGHEST: Final = 4
"""Largest power of x, and largest number of symbols, in a term."""
DEPTH: Final = 24
"""Largest number of consecutive nodes that are followed."""
_BOOL: Final = 9
_WHOLE: Final = frozenset({6, 7})


class NotKnownError(ValueError):
    """The function cannot be described by the pieces of this module."""


class _BreakError(Exception):
    """A comparison changes its outcome inside a region, at these points."""

    def __init__(self, *points: Fraction) -> None:
        super().__init__()
        self.points = points


# sums of terms -------------------------------------------------------------------------------


class Term(NamedTuple):
    """x^power·e^(rate·x + shift)·(symbols)."""

    power: int = 0
    rate: Fraction = Fraction(0)
    shift: Fraction = Fraction(0)
    symbols: tuple[str, ...] = ()


Sum: TypeAlias = Mapping[Term, Fraction]
"""Terms with their coefficients, none of which is 0."""
UNIT: Final = Term()
X: Final = Term(1)
ZERO: Final[Sum] = {}


def number(value: Fraction | int) -> Sum:
    """Return the constant function of this value."""
    return {UNIT: Fraction(value)} if value else ZERO


def line(slope: Fraction | int, offset: Fraction | int = 0) -> Sum:
    """slope·x + offset."""
    return plus({X: Fraction(slope)}, number(offset))


def plus(first: Sum, second: Sum) -> Sum:
    """Return the sum of two functions."""
    found = dict(first)
    for term, factor in second.items():
        found[term] = found.get(term, Fraction(0)) + factor
    return _checked(found)


def minus(first: Sum, second: Sum) -> Sum:
    """Return the first function minus the second."""
    return plus(first, times(number(-1), second))


def times(first: Sum, second: Sum) -> Sum:
    """Return the product of two functions."""
    found: dict[Term, Fraction] = {}
    for a, f in first.items():
        for b, g in second.items():
            symbols = tuple(sorted((*a.symbols, *b.symbols)))
            term = Term(a.power + b.power, a.rate + b.rate, a.shift + b.shift, symbols)
            found[term] = found.get(term, Fraction(0)) + f * g
    return _checked(found)


def _checked(found: Mapping[Term, Fraction]) -> Sum:
    kept = {term: factor for term, factor in found.items() if factor}
    numbers = [part for term, factor in kept.items() for part in (factor, term.rate, term.shift)]
    sizes = (max(abs(item.numerator), item.denominator).bit_length() for item in numbers)
    if len(kept) > _MOST_TERMS or any(size > _MOST_BITS for size in sizes):
        raise NotKnownError
    if any(max(term.power, len(term.symbols)) > _HIGHEST for term in kept):
        raise NotKnownError
    return kept


def at(piece: Sum, point: Fraction) -> Sum:
    """Return the value of a piece at a point, as a sum of powers of e."""
    found: dict[Term, Fraction] = {}
    for term, factor in piece.items():
        value = Term(0, Fraction(0), term.rate * point + term.shift, term.symbols)
        found[value] = found.get(value, Fraction(0)) + factor * point**term.power
    return _checked(found)


def slope_of(piece: Sum) -> tuple[Fraction, Fraction] | None:
    """Return (slope, offset) of a line; None for another function."""
    if not piece.keys() <= {X, UNIT}:
        return None
    return piece.get(X, Fraction(0)), piece.get(UNIT, Fraction(0))


def _line(piece: Sum) -> tuple[Fraction, Fraction]:
    found = slope_of(piece)
    if found is None:
        raise NotKnownError
    return found


def _number_of(piece: Sum | bool | int) -> Fraction:
    """Return the value of a constant function; refuse any other."""
    slope, offset = _line(piece) if isinstance(piece, Mapping) else (0, Fraction(piece))
    if slope:
        raise NotKnownError
    return offset


# functions -----------------------------------------------------------------------------------

_Found: TypeAlias = Sum | bool | int
"""what a value is in a region: real numbers as a function of x, a truth value, a whole number"""


@dataclass(frozen=True, slots=True)
class Piecewise:
    """breaks: ascending; pieces: 2n + 1, which are before, at and behind each break, in turn."""

    breaks: tuple[Fraction, ...]
    pieces: tuple[_Found, ...]

    def within(self, region: _Region) -> _Found:
        """Return the piece that applies in a region."""
        inside = [point for point in self.breaks if region.has(point)]
        if inside:
            raise _BreakError(*inside)
        place = bisect_left(self.breaks, region.sample)
        return self.pieces[2 * place + (region.sample in self.breaks[place : place + 1])]

    def joined(self) -> tuple[list[Fraction], list[Sum]] | None:
        """Return the breaks at which another piece begins, and the pieces between them.

        Return None for a function that jumps, or whose values are not real numbers.
        """
        pieces = [piece for piece in self.pieces if isinstance(piece, Mapping)]
        if len(pieces) < len(self.pieces):
            return None
        kinks, kept = [], pieces[:1]
        for place, point in enumerate(self.breaks):
            before, here, behind = pieces[2 * place : 2 * place + 3]
            if not at(before, point) == at(here, point) == at(behind, point):
                return None
            if before != behind:
                kinks.append(point)
                kept.append(behind)
        return kinks, kept


class _Region:
    """x at a point, low = high, or in an open interval, of which an end is None if it has none.

    sample: an x in it.
    """

    def __init__(self, reader: Reader, low: Fraction | None, high: Fraction | None) -> None:
        self._reader, self._low, self._high = reader, low, high
        first = high - 1 if low is None and high is not None else low or Fraction(0)
        last = low + 1 if high is None and low is not None else high or Fraction(0)
        self.sample = (first + last) / 2
        self._known: dict[str, _Found | None] = {reader.x: line(1)}
        self._depth = 0

    def has(self, point: Fraction) -> bool:
        """Whether a point lies between the ends."""
        return (self._low is None or self._low < point) and (
            self._high is None or point < self._high
        )

    def of(self, name: str) -> _Found:
        """Return a value as a function of x in this region."""
        if name not in self._known:
            self._known[name] = self._read(name)
        found = self._known[name]
        if found is None:
            raise NotKnownError
        return found

    def real(self, name: str) -> Sum:
        """Return a value that holds real numbers, as a function of x."""
        found = self.of(name)
        if not isinstance(found, Mapping):
            raise NotKnownError
        return found

    def sign(self, piece: Sum) -> int:
        """Return the sign of a line, which is the same for all x unless it crosses 0 inside."""
        slope, offset = _line(piece)
        if slope and self.has(-offset / slope):
            raise _BreakError(-offset / slope)
        value = slope * self.sample + offset
        return (value > 0) - (value < 0)

    def larger(self, first: Sum, second: Sum) -> Sum:
        """Return the maximum of two lines."""
        return first if self.sign(minus(first, second)) > 0 else second

    def smaller(self, first: Sum, second: Sum) -> Sum:
        """Return the minimum of two lines."""
        return second if self.sign(minus(first, second)) > 0 else first

    def _read(self, name: str) -> _Found | None:
        reader = self._reader
        value, node = reader.values.get(name), reader.producers.get(name)
        if isinstance(value, Constant):
            return reader.constant(name, value)
        known = reader.known.get(name)
        if known is not None:
            return known.within(self)
        if node is not None and not node.domain and self._depth < DEPTH:
            self._depth += 1
            try:
                return self._computed(node)
            except (ValueError, TypeError, LookupError, ZeroDivisionError):
                pass  # it is a symbol, then
            finally:
                self._depth -= 1
        is_value = isinstance(value, Data) and value.is_real and name not in reader.jumps
        return _symbol(name) if is_value and reader.fits(value) else None

    def _computed(self, node: Node) -> _Found:
        """Return the function that a node computes from its inputs."""
        kind, names = node.op_type, node.inputs
        if kind in _ARITHMETIC:
            return _ARITHMETIC[kind](*map(self._factor if kind == "Mul" else self.real, names))
        if kind in _COMPARISONS:
            first, second = map(self.real, names)
            return self.sign(minus(first, second)) in _COMPARISONS[kind]
        match kind, self.of(names[0]):
            case "Identity", found:
                return found
            case "Cast", found:
                return _cast(found, node.attributes["to"].value)
            case "Not", bool() as truth:
                return not truth
            case "And" | "Or", bool() as truth if isinstance(other := self.of(names[1]), bool):
                return truth and other if kind == "And" else truth or other
            case "Where", bool() as truth:
                above, below = map(self.real, names[1:])
                return above if truth else below
            case "Max" | "Min", Mapping():
                return reduce(self.larger if kind == "Max" else self.smaller, map(self.real, names))
            case "Sign", Mapping() as piece:
                return number(self.sign(piece))
            case "Abs", Mapping() as piece:
                return times(piece, number(self.sign(piece)))
            case "Relu", Mapping() as piece:
                return self.larger(piece, ZERO)
            case "LeakyRelu", Mapping() as piece:
                slope = _real(node, "alpha", 0.01)
                return piece if self.sign(piece) > 0 else times(piece, number(slope))
            case "Clip", Mapping() as piece:
                return self._clipped(node, piece)
            case "Pow", Mapping() as piece if (power := _number_of(self.of(names[1]))) in {1, 2, 3}:
                return reduce(times, [piece] * int(power))
        raise NotKnownError

    def _factor(self, name: str) -> Sum:
        return _symbol(name) if self._reader.is_slope(name) else self.real(name)

    def _clipped(self, node: Node, piece: Sum) -> Sum:
        names = (*node.inputs[1:], "", "")
        for name, key, act in zip(names, ("min", "max"), (self.larger, self.smaller), strict=False):
            if key in node.attributes:
                piece = act(piece, number(_real(node, key, math.nan)))
            elif name:
                piece = act(piece, self.real(name))
        return piece


def _cast(found: _Found, target: object) -> _Found:
    """A Cast to real numbers, or of truth values to whole ones; casts that round are unknown."""
    if target in REALS:
        return found if isinstance(found, Mapping) else number(int(found))
    if isinstance(found, bool) and (target in _WHOLE or target == _BOOL):
        return found if target == _BOOL else int(found)
    raise NotKnownError


def _real(node: Node, key: str, default: float) -> Fraction:
    """Return an attribute that is a finite number."""
    given = node.attributes.get(key)
    value = default if given is None else given.value
    if not isinstance(value, float) or not math.isfinite(value):
        raise NotKnownError
    return Fraction(value)


def _symbol(name: str) -> Sum:
    return {Term(symbols=(name,)): Fraction(1)}


def _exponential(piece: Sum) -> Sum:
    """Return e to the power of a line."""
    slope, offset = _line(piece)
    return {Term(0, slope, offset): Fraction(1)}


_ARITHMETIC: Final[Mapping[str, Callable[..., Sum]]] = {
    "Add": plus,
    "Div": lambda f, g: times(f, number(1 / _number_of(g))),
    "Exp": _exponential,
    "Mul": lambda *items: reduce(times, items),
    "Neg": partial(minus, ZERO),
    "Sub": minus,
    "Sum": lambda *items: reduce(plus, items),
}
_COMPARISONS: Final = {
    "Greater": {1}, "GreaterOrEqual": {0, 1}, "Less": {-1}, "LessOrEqual": {-1, 0},
}  # fmt: skip
"""The signs of the difference for which each comparison is true."""
OPERATORS: Final = frozenset(
    {"Abs", "And", "Cast", "Clip", "Identity", "LeakyRelu", "Max", "Min", "Not", "Or", "Pow"}
    | {"Relu", "Sign", "Where"} | _ARITHMETIC.keys() | _COMPARISONS.keys()
)  # fmt: skip
"""The operators that are followed from a function of x back to x."""


def leaves(value: Value, other: Value) -> bool:
    """Whether what is computed from both entry by entry has the shape and the batch of the other.

    Two that carry the batch on different axes do not: they make a table of all pairs of examples.
    """
    try:
        return broadcast([value, other]) == (other.shape, other.place)
    except (Unsupported, ValueError):
        return False


@dataclass(slots=True, eq=False)
class Reader:
    """Values as functions of one value x. symbolic: stored factors of a product are symbols, too.

    values, producers, jumps: as of `Guards`. known: the functions found so far. plain: constants
    that entered as plain numbers.
    """

    x: str
    values: Mapping[str, Value]
    producers: Mapping[str, Node]
    jumps: Mapping[str, Node]
    symbolic: bool
    known: dict[str, Piecewise | None] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)

    def of(self, name: str) -> Piecewise | None:
        """Return a value as a function of x; None if it is not known as one.

        Proof that it ends: every further break lies inside a region, so it is new, and their number
        is limited.
        """
        if name not in self.known:
            self.known[name] = None
            breaks: list[Fraction] = []
            while len(breaks) <= _MOST_BREAKS and self.known[name] is None:
                try:
                    self.known[name] = Piecewise(tuple(breaks), self._pieces(name, breaks))
                except _BreakError as found:
                    breaks = sorted({*breaks, *found.points})
                except NotKnownError:
                    break
        return self.known[name]

    def _pieces(self, name: str, breaks: list[Fraction]) -> tuple[_Found, ...]:
        regions = [_Region(self, low, high) for low, high in pairwise([None, *breaks, None])]
        for place, point in enumerate(breaks):
            regions.insert(2 * place + 1, _Region(self, point, point))
        return tuple(region.of(name) for region in regions)

    def behind(self, name: str) -> set[str]:
        """Return the values from which one is computed, up to x and to symbols."""
        pending, found = [name], {self.x}
        while pending:
            name = pending.pop()
            if name in found:
                continue
            found.add(name)
            node = self.producers.get(name)
            is_constant = isinstance(self.values.get(name), Constant)
            if node is not None and not is_constant and node.op_type in OPERATORS:
                pending += node.inputs
        return found - {self.x}

    def is_slope(self, name: str) -> bool:
        """Whether a factor is stored, and may be the slopes of a PRelu."""
        value = self.values.get(name)
        is_stored = isinstance(value, Constant) and name not in self.producers
        is_vector = value is not None and value.shape != ()
        return self.symbolic and is_stored and is_vector and self.fits(value)

    def fits(self, value: Value | None) -> bool:
        """Whether a value beside x leaves x the shape and the batch that it has."""
        return value is not None and leaves(value, self.values[self.x])

    def constant(self, name: str, value: Constant) -> _Found | None:
        """Return a stored number, or a symbol for several."""
        if not self.fits(value) or value.lo.dtype.kind not in "fiu":
            return None
        if value.varies is not None and value.varies.any():
            return None
        found = value.uniform()
        if value.lo.size != 1 and (value.sources or found is None):
            return _symbol(name) if value.is_float else None
        if found is None or not math.isfinite(found):
            return None
        self.plain.add(name)
        return number(Fraction(found)) if value.is_float else int(found)
