"""Guards: functions that jump, inside of continuous ones, as exporters write them.

What enters: nodes in order, and the constants so far. What leaves: for a node that joins the
pieces of a continuous function, a node that computes it from what does not jump. Known are

    Where(x > 0, x, 0)                           Relu(x)
    Where(b·x > t, x, Softplus(b·x)/b), t ≥ 15   Softplus(b·x)/b
    Where(x > t, x − s, t − s)                   Max(x − s, t − s), or Min with < for >
    Where(x > y, x, y)                           Max(x, y)
    Where(IsNaN(x), c, x)                        x

with <, ≥ and ≤ and the branches as they then stand, and all functions of one value that `pieces`
writes down, such as x·[x > 0] + a·(e^x − 1)·[x ≤ 0], an Elu. Invariant: each is an identity of real
functions for the numbers of the file, but for the softplus, whose guard only avoids overflow: the
branches differ by less than ln(1 + e^−15) < 4e-7, and the bounds of softplus hold for either. No
rule bounds a value that is not defined, so that a guard against NaN guards nothing; but for an
attention of which a value hides tokens, perhaps all of them. Behind that no guard is known but
Where(IsNaN(p), 0, p) for its softmax p, as an `Attention` has it: others take a NaN for a number.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from fractions import Fraction
from typing import Final, final

from lipcert.core.lower.call import Sink
from lipcert.core.lower.operators import COMPARISONS, JUMPING
from lipcert.core.lower.pieces import SATURATED, Pieces
from lipcert.core.lower.values import Constant, Data, Value
from lipcert.core.program import Hide
from lipcert.core.reader.records import Attribute, Node

_ABOVE: Final = frozenset({"Greater", "GreaterOrEqual"})
_ONE: Final = Fraction(1)


@final
class Guards:
    """The nodes so far, by the values they compute; jumps: the node at which a value jumps.

    What a match looks at is a plain number.
    """

    def __init__(self, values: dict[str, Value], sink: Sink) -> None:
        self.jumps: dict[str, Node] = {}
        self._values = values
        self._sink = sink
        self._producers: dict[str, Node] = {}
        self._looked_at: list[Constant] = []
        self._pieces = Pieces(values, sink, self._producers, self.jumps, self._may_be_hidden)

    def taken(self, node: Node) -> list[Node]:
        """The nodes to lower: as it is, or those of its function; none for one that jumps."""
        self._producers.update(dict.fromkeys(node.outputs, node))
        found = self._replaced(node) if not node.domain else None
        made = self._pieces.nodes(node) if not node.domain else []
        if found is not None or made:
            return made if found is None else [found]
        is_step = node.op_type in JUMPING and not node.domain
        first = next((self.jumps[name] for name in node.inputs if name in self.jumps), None)
        data = [item for item in map(self._values.get, node.inputs) if isinstance(item, Data)]
        if is_step and any(item.is_real for item in data):
            first = node
        if first is None:
            return [node]
        self.jumps.update(dict.fromkeys(filter(None, node.outputs), first))
        return []

    @property
    def parts(self) -> Set[str]:
        """The values that jump, or are parts of functions that are written with such."""
        return self.jumps.keys() | self._pieces.parts.keys() | self._pieces.read

    def _replaced(self, node: Node) -> Node | None:
        if self.jumps.keys().isdisjoint(node.inputs):
            return None
        self._looked_at.clear()
        found, rank = None, 0
        if node.op_type == "Where" and len(node.inputs) == 3:
            step = self._producers.get(node.inputs[0])
            data = [self._values.get(name) for name in step.inputs] if step else []
            rank = max((len(item.shape) for item in data if isinstance(item, Data)), default=0)
            found = self._choice(node, step)
        if found is None or any(len(item.shape) > rank for item in self._looked_at):
            return None
        self._sink.untracked.update(name for item in self._looked_at for name in item.sources)
        return found

    def _may_be_hidden(self, *names: str) -> bool:
        """Whether one of these values depends on scores that a value hides."""
        behind: set[str] = set()
        for step in self._sink.steps:
            if isinstance(step.op, Hide) or not behind.isdisjoint(step.inputs):
                behind.add(step.output)
        values = map(self._values.get, names)
        return any(isinstance(item, Data) and item.name in behind for item in values)

    def _choice(self, node: Node, step: Node | None) -> Node | None:
        """Where(x > t, above, below), the comparison in any of its forms."""
        if step is None:
            return None
        if step.op_type == "IsNaN" and step.inputs[0] == (x := node.inputs[2]):
            maker = self._producers.get(x)
            is_softmax = maker is not None and maker.op_type == "Softmax"
            if self._may_be_hidden(x) and not (is_softmax and self._number(node.inputs[1]) == 0):
                return None
            return _made(node, "Identity", x)
        if step.op_type not in COMPARISONS or self._may_be_hidden(*step.inputs):
            return None
        (left, right), is_above = step.inputs, step.op_type in _ABOVE
        if self._number(left) is not None:
            left, right, is_above = right, left, not is_above
        limit = self._number(right)
        if limit is None:
            return self._extremum(node, left, right, is_above=is_above)
        above, below = node.inputs[1:] if is_above else node.inputs[:0:-1]
        return self._kink(node, left, limit, above, below) or self._softplus(
            node, left, limit, above, below
        )

    def _extremum(self, node: Node, left: str, right: str, *, is_above: bool) -> Node | None:
        """The larger or the smaller one of the two that are compared."""
        if set(node.inputs[1:]) != {left, right} or left == right:
            return None
        is_max = is_above == (node.inputs[1] == left)
        return _made(node, "Max" if is_max else "Min", left, right)

    def _kink(self, node: Node, x: str, limit: Fraction, above: str, below: str) -> Node | None:
        """A branch x − s, the other one the number limit − s: their maximum or minimum."""
        if self._is_zero(below, x) and self._difference(above, x) == limit:
            return _made(node, "Relu", above)
        for branch, other, op_type in ((above, below, "Max"), (below, above, "Min")):
            shift, number = self._difference(branch, x), self._number(other)
            if shift is not None and number is not None and limit - shift == number:
                return _made(node, op_type, branch, other)
        return None

    def _softplus(
        self, node: Node, scaled: str, limit: Fraction, above: str, below: str
    ) -> Node | None:
        x, slope = self._scaled(scaled)
        inner, share = self._scaled(below)
        softplus = self._producers.get(inner)
        if softplus is None or softplus.op_type != "Softplus" or slope * share != 1:
            return None
        if softplus.inputs[0] != scaled or above != x or limit < SATURATED:
            return None
        return _made(node, "Identity", below)

    def _number(self, name: str) -> Fraction | None:
        """A constant of one finite entry, exactly."""
        found = self._values.get(name)
        if not isinstance(found, Constant) or found.lo.size != 1:
            return None
        if found.grows is not None and found.grows.any():
            return None
        number = found.uniform()
        if number is None or not math.isfinite(number):
            return None
        self._looked_at.append(found)
        return Fraction(number)

    def _is_zero(self, name: str, x: str) -> bool:
        """The number 0, or 0·x."""
        return self._number(name) == 0 or self._scaled(name) == (x, Fraction(0))

    def _difference(self, name: str, x: str) -> Fraction | None:
        """t, where the value is x − t."""
        node = self._producers.get(name)
        if name == x:
            return Fraction(0)
        if node is None or node.op_type not in {"Add", "Sub"} or node.inputs[0] != x:
            return None
        number = self._number(node.inputs[1])
        if number is None:
            return None
        return number if node.op_type == "Sub" else -number

    def _scaled(self, name: str) -> tuple[str, Fraction]:
        """(x, c) for a value c·x; (name, 1) otherwise."""
        node = self._producers.get(name)
        if node is None or node.op_type not in {"Mul", "Div"}:
            return name, _ONE
        number = self._number(node.inputs[1])
        if number is not None and node.op_type == "Mul":
            return node.inputs[0], number
        if number:
            return node.inputs[0], 1 / number
        number = self._number(node.inputs[0]) if node.op_type == "Mul" else None
        return (name, _ONE) if number is None else (node.inputs[1], number)


def _made(node: Node, op_type: str, *inputs: str, **attributes: Attribute) -> Node:
    return replace(node, op_type=op_type, inputs=inputs, attributes=attributes)
