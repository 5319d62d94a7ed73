"""Continuous functions that are written with comparisons, such as x·[x > 0] + α·(e^x − 1)·[x ≤ 0].

What enters: nodes in order, and the values so far. What leaves: for a node behind comparisons whose
output is a known function of one value x, nodes that compute that function and do not jump.

Proof: the output is written down piece by piece as the exact function of the real number x that the
nodes compute for the numbers of the file (`piecewise`), also at the very points where a comparison
turns over; it is replaced only where the pieces meet there exactly, and by nodes that compute the
same function (`_Maker`). All that goes into it is broadcast to the shape of x, with the batch on
the same axis, which so is that of the output. Numbers that shape the function are no parameters any
more (`Sink.untracked`), but for the slopes of a PRelu. A softplus is the one exception: its guard
only avoids overflow, see `guards`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Final, TypeAlias, final

import numpy as np

from lipcert.core.arithmetic import round_down, round_up
from lipcert.core.lower.call import Sink
from lipcert.core.lower.operators import COMPARISONS, REALS
from lipcert.core.lower.piecewise import (
    UNIT,
    ZERO,
    NotKnownError,
    Piecewise,
    Sum,
    Term,
    X,
    at,
    exponential,
    line,
    mirrored,
    moved,
    number,
    slope_of,
)
from lipcert.core.lower.values import Constant, Data, Value, leaves
from lipcert.core.reader.records import Attribute, Node

SATURATED: Final = 15
"""from where on a softplus may be left for x: they differ by less than ln(1 + e^−15) < 4e-7"""
_DEPTH: Final = 24
_BOOL: Final = 9
_WHOLE: Final = frozenset({6, 7})
Nodes: TypeAlias = Mapping[str, Node]
_Line: TypeAlias = tuple[Fraction, Fraction]


@final
@dataclass(frozen=True, slots=True)
class _Written:
    """A function of x; kind: real numbers, truth values, or whole numbers; truth is 0 and 1."""

    function: Piecewise
    kind: str = "real"

    def of(self, kind: str) -> Piecewise:
        """The function, if its values are of a kind."""
        if self.kind != kind:
            raise NotKnownError
        return self.function


@final
class Pieces:
    """The functions behind comparisons so far.

    parts: the values that are parts of one, with the values x of which they are functions.
    read: the values that are replaced by such functions. is_hidden: whether a value may not be a
    number, see `guards`.
    """

    def __init__(
        self,
        values: dict[str, Value],
        sink: Sink,
        producers: Nodes,
        jumps: Nodes,
        is_hidden: Callable[[str], bool],
    ) -> None:
        self.parts: dict[str, tuple[str, ...]] = {}
        self.read: set[str] = set()
        self.values = values
        self.sink = sink
        self.producers = producers
        self.jumps = jumps
        self._is_hidden = is_hidden
        self._readers: dict[tuple[str, bool], _Reader] = {}

    def nodes(self, node: Node) -> list[Node]:
        """The nodes to lower for one behind a comparison; none if its function is not known.

        A node that puts a stored number beside functions that are replaced stays as it is: the
        number may be what is trained, such as the scale of an activation.
        """
        if node.op_type not in _RULES or len(node.outputs) != 1:
            return []
        found: list[str] = []
        made: list[Node] = []
        is_own = self.jumps.keys().isdisjoint(node.inputs) and self._has_stored(node)
        for x in self._variables(node):
            if self._is_hidden(x):
                continue
            try:
                reader = self._reader(x, symbolic=False)
                written = reader.of(node.outputs[0])
                found.append(x)
                made = made or ([] if is_own else self._made(node, x, written))
            except NotKnownError:
                continue
        if found:
            self.parts[node.outputs[0]] = tuple(found)
        return made

    def _has_stored(self, node: Node) -> bool:
        given = (self.values.get(name) for name in node.inputs)
        return any(isinstance(item, Constant) and item.sources for item in given)

    def _made(self, node: Node, x: str, written: _Written) -> list[Node]:
        if written.kind != "real":
            return []
        with_slopes = self._reader(x, symbolic=True).maybe(node.outputs[0])
        made = None if with_slopes is None else self._with_slopes(node, x, with_slopes.function)
        if made is None:
            made = _Maker(self, node, x).made(written.function)
        if not made:
            return []
        for name in self._reader(x, symbolic=False).behind(node.outputs[0]):
            self.read.add(name)
            value = self.values.get(name)
            if isinstance(value, Constant) and name not in made[-1].inputs:
                self.sink.untracked.update(value.sources)
        return made

    def _with_slopes(self, node: Node, x: str, function: Piecewise) -> list[Node] | None:
        """x above 0, a·x below, where a is stored: its entries may be what is trained."""
        found = function.simplified()
        if found is None or list(found.breaks) != [0] or found.pieces[2] != line(1):
            return None
        ((term, factor), *more) = found.pieces[0].items() or [(UNIT, Fraction(0))]
        if more or factor != 1 or term.power != 1 or len(term.symbols) != 1:
            return None
        (name,) = term.symbols
        if term != Term(1, symbols=(name,)) or not isinstance(self.values.get(name), Constant):
            return None
        if name in self._reader(x, symbolic=True).plain:  # it shapes the function elsewhere, too
            return None
        return [replace(node, op_type="PRelu", inputs=(x, name), attributes={})]

    def inner(self, x: str, name: str) -> Piecewise | None:
        """A value as a function of x, if it is one."""
        found = self._reader(x, symbolic=False).maybe(name)
        return None if found is None or found.kind != "real" else found.function

    def _reader(self, x: str, *, symbolic: bool) -> _Reader:
        return self._readers.setdefault((x, symbolic), _Reader(self, x, symbolic=symbolic))

    def _variables(self, node: Node) -> Iterator[str]:
        """The values of which the output may be a function."""
        if node.op_type in COMPARISONS or node.op_type == "Sign":
            for name in node.inputs:
                yield from self._behind(name)
            return
        known = [set(self.parts[name]) for name in node.inputs if name in self.parts]
        first = next((self.parts[name] for name in node.inputs if name in self.parts), ())
        yield from (x for x in first if all(x in names for names in known))

    def _behind(self, name: str) -> Iterator[str]:
        """A value, and the one that it is computed from, as long as there is one alone."""
        for _ in range(_DEPTH):
            value = self.values.get(name)
            if isinstance(value, Data) and value.is_real:
                yield name
            node = self.producers.get(name)
            if node is None or node.domain or node.op_type not in _OF_ONE:
                return
            data = [item for item in node.inputs if isinstance(self.values.get(item), Data)]
            if len(data) != 1:
                return
            (name,) = data


_OF_ONE: Final = frozenset(
    {"Abs", "Add", "Cast", "Clip", "Div", "Identity", "LeakyRelu", "Max", "Min", "Mul", "Neg"}
    | {"Relu", "Sub"}
)
"""operators whose output may be compared in place of their input"""


@final
class _Reader:
    """Functions of one value x. symbolic: stored factors of one number are symbols, too.

    plain: constants that entered as plain numbers.
    """

    def __init__(self, pieces: Pieces, x: str, *, symbolic: bool) -> None:
        self._pieces = pieces
        self._x = x
        self._symbolic = symbolic
        self._known: dict[str, _Written | None] = {}
        self._depth = 0
        self.plain: set[str] = set()

    def of(self, name: str) -> _Written:
        """A value as a function of x; `NotKnownError` where it is not."""
        if name == self._x:
            return _Written(Piecewise.of(line(1)))
        if name not in self._known:
            self._known[name] = self._read(name)
        found = self._known[name]
        if found is None:
            raise NotKnownError
        return found

    def maybe(self, name: str) -> _Written | None:
        """The same, or None."""
        try:
            return self.of(name)
        except NotKnownError:
            return None

    def behind(self, name: str) -> set[str]:
        """The values that one is computed from, up to x and to symbols."""
        pending, found = [name], {self._x}
        while pending:
            name = pending.pop()
            if name in found:
                continue
            found.add(name)
            node = self._pieces.producers.get(name)
            is_constant = isinstance(self._pieces.values.get(name), Constant)
            if node is not None and not is_constant and node.op_type in _RULES:
                pending += node.inputs
        return found - {self._x}

    def factors(self, node: Node) -> list[Piecewise]:
        """What a Mul multiplies, of which a stored vector may be the slopes of a PRelu."""
        return [
            _symbol(name).function if self._is_slope(name) else self.of(name).of("real")
            for name in node.inputs
        ]

    def _is_slope(self, name: str) -> bool:
        value = self._pieces.values.get(name)
        is_stored = isinstance(value, Constant) and name not in self._pieces.producers
        is_vector = value is not None and value.shape != ()
        return self._symbolic and is_stored and is_vector and self._fits(value)

    def _read(self, name: str) -> _Written | None:
        value = self._pieces.values.get(name)
        if isinstance(value, Constant):
            return self._constant(name, value)
        node = self._pieces.producers.get(name)
        if node is not None and not node.domain and self._depth < _DEPTH:
            rule = _RULES.get(node.op_type)
            self._depth += 1
            try:
                if rule is not None:
                    return rule(self, node)
            except (NotKnownError, ValueError, TypeError, ZeroDivisionError):
                pass
            finally:
                self._depth -= 1
        is_value = isinstance(value, Data) and value.is_real and name not in self._pieces.jumps
        return _symbol(name) if is_value and self._fits(value) else None

    def _fits(self, value: Value | None) -> bool:
        """Whether a value beside x leaves x the shape and the batch that it has."""
        return value is not None and leaves(value, self._pieces.values[self._x])

    def _constant(self, name: str, value: Constant) -> _Written | None:
        if not self._fits(value) or value.lo.dtype.kind not in "fiu":
            return None
        if value.grows is not None and value.grows.any():
            return None
        found = value.uniform()
        if value.lo.size != 1 and (value.sources or found is None):
            return _symbol(name) if value.is_float else None
        if found is None or not math.isfinite(found):
            return None
        self.plain.add(name)
        return _Written(
            Piecewise.of(number(Fraction(found))), "real" if value.is_float else "whole"
        )


def _symbol(name: str) -> _Written:
    return _Written(Piecewise.of({Term(symbols=(name,)): Fraction(1)}))


# what nodes do ----------------------------------------------------------------------------------

_Rule: TypeAlias = Callable[[_Reader, Node], _Written]
_ONE: Final = Piecewise.of(number(1))


def _reals(reader: _Reader, node: Node) -> list[Piecewise]:
    return [reader.of(name).of("real") for name in node.inputs]


def _truths(reader: _Reader, node: Node) -> list[Piecewise]:
    return [reader.of(name).of("truth") for name in node.inputs]


def _only(*signs: int) -> Callable[[Sum], Sum]:
    """1 where a sign is one of these, else 0."""
    wanted = [number(sign) for sign in signs]
    return lambda piece: number(int(piece in wanted))


def _above(first: Piecewise, second: Piecewise) -> Piecewise:
    """The larger one."""
    difference = first - second
    return second + difference * difference.signs().mapped(_only(1))


def _below(first: Piecewise, second: Piecewise) -> Piecewise:
    """The smaller one."""
    return first + second - _above(first, second)


def _of_reals(act: Callable[..., Piecewise]) -> _Rule:
    return lambda reader, node: _Written(act(*_reals(reader, node)))


def _over_reals(act: Callable[[Piecewise, Piecewise], Piecewise]) -> _Rule:
    return lambda reader, node: _Written(reduce(act, _reals(reader, node)))


def _of_truths(act: Callable[..., Piecewise]) -> _Rule:
    return lambda reader, node: _Written(act(*_truths(reader, node)), "truth")


def _compared(*signs: int) -> _Rule:
    def rule(reader: _Reader, node: Node) -> _Written:
        first, second = _reals(reader, node)
        return _Written((first - second).signs().mapped(_only(*signs)), "truth")

    return rule


def _divided(reader: _Reader, node: Node) -> _Written:
    first, second = _reals(reader, node)
    return _Written(first * second.mapped(lambda piece: number(1 / _number(piece))))


def _number(piece: Sum) -> Fraction:
    if piece.keys() - {UNIT}:
        raise NotKnownError
    return piece.get(UNIT, Fraction(0))


def _powered(reader: _Reader, node: Node) -> _Written:
    base = reader.of(node.inputs[0]).of("real")
    exponent = {_number(piece) for piece in reader.of(node.inputs[1]).function.pieces}
    if len(exponent) != 1 or not exponent <= {1, 2, 3}:
        raise NotKnownError
    return _Written(reduce(Piecewise.__mul__, [base] * int(exponent.pop())))


def _clipped(reader: _Reader, node: Node) -> _Written:
    found = reader.of(node.inputs[0]).of("real")
    limits: list[Piecewise | None] = [
        reader.of(name).of("real") if name else None for name in node.inputs[1:]
    ]
    keys = ("min", "max")
    limits += [None] * (2 - len(limits))
    for place, key in enumerate(keys):
        given = node.attributes.get(key)
        if given is not None:
            limits[place] = Piecewise.of(number(Fraction(_real(given))))
    low, high = limits
    found = found if low is None else _above(found, low)
    return _Written(found if high is None else _below(found, high))


def _real(attribute: Attribute) -> float:
    if not isinstance(attribute.value, float) or not math.isfinite(attribute.value):
        raise NotKnownError
    return attribute.value


def _leaky(reader: _Reader, node: Node) -> _Written:
    (found,) = _reals(reader, node)
    given = node.attributes.get("alpha")
    alpha = Fraction(0.01 if given is None else _real(given))
    slopes = found.signs().mapped(lambda piece: number(1 if piece == number(1) else alpha))
    return _Written(found * slopes)


def _cast(reader: _Reader, node: Node) -> _Written:
    """To real numbers, or of truth values to whole ones; what rounds is not known."""
    found, target = reader.of(node.inputs[0]), node.attributes["to"].value
    if target in REALS:
        return _Written(found.function)
    if found.kind == "truth" and target in _WHOLE:
        return _Written(found.function, "whole")
    if found.kind == "truth" and target == _BOOL:
        return found
    raise NotKnownError


def _chosen(reader: _Reader, node: Node) -> _Written:
    condition, first, second = (reader.of(name) for name in node.inputs)
    flag = condition.of("truth")
    found = second.of("real") + flag * (first.of("real") - second.of("real"))
    return _Written(found)


_RULES: Final[Mapping[str, _Rule]] = {
    "Abs": _of_reals(lambda f: f * f.signs()),
    "Add": _of_reals(Piecewise.__add__),
    "And": _of_truths(Piecewise.__mul__),
    "Cast": _cast,
    "Clip": _clipped,
    "Div": _divided,
    "Exp": _of_reals(lambda f: f.mapped(exponential)),
    "Greater": _compared(1),
    "GreaterOrEqual": _compared(0, 1),
    "Identity": lambda reader, node: reader.of(node.inputs[0]),
    "LeakyRelu": _leaky,
    "Less": _compared(-1),
    "LessOrEqual": _compared(-1, 0),
    "Max": _over_reals(_above),
    "Min": _over_reals(_below),
    "Mul": lambda reader, node: _Written(reduce(Piecewise.__mul__, reader.factors(node))),
    "Neg": _of_reals(lambda f: Piecewise.of(ZERO) - f),
    "Not": _of_truths(lambda f: _ONE - f),
    "Or": _of_truths(lambda f, g: f + g - f * g),
    "Pow": _powered,
    "Relu": _of_reals(lambda f: _above(f, Piecewise.of(ZERO))),
    "Sign": _of_reals(Piecewise.signs),
    "Sub": _of_reals(Piecewise.__sub__),
    "Sum": _over_reals(Piecewise.__add__),
    "Where": _chosen,
}


# nodes for functions -----------------------------------------------------------------------------


def _exact(value: Fraction) -> bool:
    """Whether a float64 is this number."""
    try:
        return Fraction(float(value)) == value
    except OverflowError:
        return False


@final
class _Maker:
    """Nodes that compute a function of x for the output of a node: a line, a function, a line."""

    def __init__(self, pieces: Pieces, node: Node, x: str) -> None:
        self._pieces = pieces
        self._node = node
        self._x = x
        self._made: list[Node] = []

    def made(self, function: Piecewise) -> list[Node] | None:
        """The nodes, or None for a function that jumps or is not known here."""
        found = function.simplified()
        name = self._softplus(function) if found is None else self._function(found)
        if name is None:
            return None
        if not self._made:
            self._add("Identity", name)
        self._made[-1] = replace(self._made[-1], outputs=self._node.outputs)
        return self._made

    def _function(self, found: Piecewise) -> str | None:
        lines = [slope_of(piece) for piece in found.pieces[::2]]
        known = [item for item in lines if item is not None]
        if len(known) < len(lines):
            return self._exponential(found) or self._hard_swish(found) or self._parts(found)
        match len(found.breaks):
            case 0:
                return self._line(self._x, *known[0])
            case 1:
                return self._kink(found.breaks[0], known)
            case 2:
                return self._two_kinks(found.breaks, known) or self._parts(found)
        return self._parts(found)

    def _parts(self, found: Piecewise) -> str | None:
        """Polynomials, each of x held between two breaks t, so that they follow each other.

        Proof: for x between two breaks, all pieces before have run their course and contribute
        p(t') − p(t), their part of the way to p(x); all behind contribute p(t) − p(t) = 0.
        """
        points, total, offset = found.breaks, list[str](), Fraction(0)
        for place, piece in enumerate(found.pieces[::2]):
            if not points or any(term._replace(power=0) != UNIT for term in piece):
                return None
            inner = self._x
            if place:
                inner = self._add("Max", inner, self._constant(points[place - 1]))
            if place < len(points):
                inner = self._add("Min", inner, self._constant(points[place]))
            start = points[max(place - 1, 0)]
            value = at(piece, start).get(UNIT, Fraction(0))
            offset += value if place == 0 else 0
            for term, factor in sorted(piece.items()):
                if term.power:
                    offset -= factor * start**term.power
                    name = reduce(lambda a, b: self._add("Mul", a, b), [inner] * term.power)
                    total.append(self._line(name, factor, Fraction(0)))
        if not total:
            return None
        name = total[0] if len(total) == 1 else self._add("Sum", *total)
        return self._line(name, Fraction(1), offset)

    def _add(self, op_type: str, *inputs: str, **numbers: Fraction) -> str:
        name = self._pieces.sink.fresh(self._node.outputs[0])
        attributes = {key: Attribute("FLOAT", float(value)) for key, value in numbers.items()}
        made = replace(
            self._node, op_type=op_type, inputs=inputs, outputs=(name,), attributes=attributes
        )
        self._made.append(made)
        return name

    def _constant(self, value: Fraction) -> str:
        """A constant of this number, or of the two float64 around it."""
        name = self._pieces.sink.fresh(self._node.outputs[0])
        low = np.asarray(round_down(value))
        high = low if _exact(value) else np.asarray(round_up(value))
        self._pieces.values[name] = Constant(low, high)
        return name

    def _line(self, name: str, slope: Fraction, offset: Fraction) -> str:
        if slope != 1:
            name = self._add("Mul", name, self._constant(slope))
        return self._add("Add", name, self._constant(offset)) if offset else name

    def _kink(self, t: Fraction, lines: list[_Line]) -> str | None:
        """Slope a below t, c above, and v there: v + c·leaky(x − t), and simpler ones."""
        (a, _), (c, offset) = lines
        v = c * t + offset
        if a == 0 and t == 0:
            return self._line(self._add("Relu", self._x), c, v)
        if a == 0:
            return self._line(self._add("Max", self._x, self._constant(t)), c, v - c * t)
        if c == 0:
            return self._line(self._add("Min", self._x, self._constant(t)), a, v - a * t)
        if a == -c:
            return self._line(self._add("Abs", self._line(self._x, Fraction(1), -t)), c, v)
        if _exact(a / c):
            u = self._line(self._x, Fraction(1), -t)
            return self._line(self._add("LeakyRelu", u, alpha=a / c), c, v)
        if _exact(c / a):
            u = self._line(self._x, Fraction(-1), t)
            return self._line(self._add("LeakyRelu", u, alpha=c / a), -a, v)
        return None

    def _two_kinks(self, breaks: tuple[Fraction, ...], lines: list[_Line]) -> str | None:
        """A clip, or the same slope on both sides of a flat piece."""
        (low, high), ((a, _), (b, offset), (c, _)) = breaks, lines
        if a == c == 0:
            inner = self._add("Max", self._x, self._constant(low))
            return self._line(self._add("Min", inner, self._constant(high)), b, offset)
        limit = (high - low) / 2
        if b == 0 and a == c and _exact(limit):
            u = self._line(self._x, Fraction(1), -(low + high) / 2)
            return self._line(self._add("Shrink", u, lambd=limit, bias=limit), a, offset)
        return None

    def _exponential(self, found: Piecewise) -> str | None:
        """β·u above 0 and γ·(e^(δ·u) − 1) below, plus v, for u = x − t or t − x."""
        if len(found.breaks) != 1:
            return None
        (t,) = found.breaks
        below, above = moved(found.pieces[0], t), moved(found.pieces[2], t)
        sign = Fraction(1)
        if slope_of(above) is None:
            below, above, sign = mirrored(above), mirrored(below), Fraction(-1)
        straight = slope_of(above)
        powers = [(term, factor) for term, factor in below.items() if term != UNIT]
        if straight is None or len(powers) != 1:
            return None
        (beta, v), ((term, gamma),) = straight, powers
        delta = term.rate
        if term != Term(rate=delta) or delta <= 0 or below.get(UNIT, Fraction(0)) != v - gamma:
            return None
        if beta == 0:
            u = self._line(self._x, sign * delta, -sign * delta * t)
            power = self._add("Exp", self._add("Min", u, self._constant(Fraction(0))))
            return self._line(power, gamma, v - gamma)
        if delta != 1 and beta == gamma * delta and _exact(1 / delta):
            u = self._line(self._x, sign, -sign * t)
            return self._line(self._add("Celu", u, alpha=1 / delta), beta, v)
        alpha, gain = gamma * delta / beta, beta / delta
        if not _exact(alpha):
            return None
        u = self._line(self._x, sign * delta, -sign * delta * t)
        if gain == 1 or not _exact(gain):
            return self._line(self._add("Elu", u, alpha=alpha), gain, v)
        return self._line(self._add("Selu", u, alpha=alpha, gamma=gain), Fraction(1), v)

    def _hard_swish(self, found: Piecewise) -> str | None:
        """x·(x + 3)/6 between −3 and 3, 0 below, x above."""
        middle = {Term(2): Fraction(1, 6), X: Fraction(1, 2)}
        if list(found.breaks) != [-3, 3] or list(found.pieces[::2]) != [ZERO, middle, line(1)]:
            return None
        return self._add("HardSwish", self._x)

    def _softplus(self, function: Piecewise) -> str | None:
        """softplus(c·x)/c up to t, x beyond, for c·t ≥ `SATURATED`."""
        below, above = function.pieces[0], function.pieces[-1]
        if len(function.breaks) != 1 or function.pieces[1] not in (below, above):
            return None
        if above != line(1) or len(below) != 1:
            return None
        ((term, share),) = below.items()
        if len(term.symbols) != 1 or term != Term(symbols=term.symbols):
            return None
        maker = self._pieces.producers.get(term.symbols[0])
        if maker is None or maker.op_type != "Softplus" or maker.domain:
            return None
        inner = self._pieces.inner(self._x, maker.inputs[0])
        (t,) = function.breaks
        if inner is None or inner.breaks or inner.pieces[0] != line(1 / share):
            return None
        if share < 0 or t < SATURATED * share:
            return None
        return self._line(term.symbols[0], share, Fraction(0))
