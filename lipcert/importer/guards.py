"""Guards: step functions that stand inside of continuous ones, as exporters write them.

What enters: the nodes of the data path, in order. What leaves: for a node that joins the pieces of
a continuous function, the operator that it is. Known are

    Where(x > 0, x, 0)                           Relu(x)
    Where(b·x > t, x, Softplus(b·x)/b), t ≥ 15   Softplus(b·x)/b
    Where(|x| > t, x − t·sign(x), 0)             x − Clip(x, −t, t), the soft threshold
    Where(x > t, x − s, t − s)                   Max(x − s, t − s), or Min with < for >
    sign(x)·Relu(|x|)                            x
    Where(IsNaN(x), c, x)                        x

with <, ≥ and ≤ and the branches as they then stand. Invariant: every rewriting is exact in the
numbers of the file, but for the softplus, whose guard only avoids overflow: below ln(1 + e^−15) <
4e-7 is what the branches differ by, and the bounds of Softplus hold for either one.
No rule gives a bound where a value is undefined, so a guard against NaN guards nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final, final

from lipcert.importer.constant import Constant
from lipcert.importer.raw import RawNode

_COMPARISONS: Final = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
STEPS: Final = _COMPARISONS | {"IsNaN", "Sign"}
"""ops that jump, and that a continuous function may hide"""
_ABOVE: Final = frozenset({"Greater", "GreaterOrEqual"})
_SATURATED: Final = 15
_ONE: Final = Fraction(1)


@final
class Guards:
    """Looks up the producers of values; `constants` may grow while it is in use."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self._constants = constants
        self._producers: dict[str, RawNode] = {}

    def add(self, node: RawNode) -> None:
        """A node that later ones may read."""
        self._producers.update(dict.fromkeys(node.output_names, node))

    def replaced(self, node: RawNode) -> RawNode:
        """The operator that a node stands for, or the node itself."""
        if node.op_type == "Where" and not node.domain:
            return self._choice(node) or node
        if node.op_type == "Mul" and not node.domain:
            return self._signed_magnitude(node) or node
        return node

    def _choice(self, node: RawNode) -> RawNode | None:
        """Where(x > t, above, below), the comparison in any of its forms."""
        step = self._producers.get(node.inputs[0])
        if step is not None and step.op_type == "IsNaN" and step.inputs[0] == node.inputs[2]:
            return _made(node, "Identity", node.inputs[2])
        if step is None or step.op_type not in _COMPARISONS:
            return None
        (left, right), is_above = step.inputs, step.op_type in _ABOVE
        if self._entry(left) is not None:
            left, right, is_above = right, left, not is_above
        limit = self._entry(right)
        if limit is None:
            return None
        above, below = node.inputs[1:] if is_above else reversed(node.inputs[1:])
        return (
            self._kink(node, left, limit, above, below)
            or self._softplus(node, left, limit, above, below)
            or self._soft_threshold(node, left, limit, above, below)
        )

    def _kink(
        self, node: RawNode, x: str, limit: Fraction, above: str, below: str
    ) -> RawNode | None:
        """A branch x − s, the other one the number limit − s: their maximum or minimum."""
        if self._is_zero(below, x) and self._difference(above, x) == limit:
            return _made(node, "Relu", above)
        upper, lower = self._number(above), self._number(below)
        for branch, other, number, op_type in (
            (above, below, lower, "Max"),
            (below, above, upper, "Min"),
        ):
            shift = self._difference(branch, x)
            if shift is not None and number is not None and limit - shift == number:
                return _made(node, op_type, branch, other)
        return None

    def _softplus(
        self, node: RawNode, scaled: str, limit: Fraction, above: str, below: str
    ) -> RawNode | None:
        x, slope = self._scaled(scaled)
        inner, share = self._scaled(below)
        softplus = self._producers.get(inner)
        if softplus is None or softplus.op_type != "Softplus" or slope * share != 1:
            return None
        if softplus.inputs[0] != scaled or above != x or limit < _SATURATED:
            return None
        return _made(node, "Identity", below)

    def _soft_threshold(
        self, node: RawNode, magnitude: str, limit: Fraction, above: str, below: str
    ) -> RawNode | None:
        absolute, sub = self._producers.get(magnitude), self._producers.get(above)
        if absolute is None or absolute.op_type != "Abs" or sub is None or sub.op_type != "Sub":
            return None
        x, (minuend, offset) = absolute.inputs[0], sub.inputs
        sign, factor = self._scaled(offset)
        step = self._producers.get(sign)
        is_sign = step is not None and step.op_type == "Sign" and step.inputs[0] == x
        if minuend != x or not is_sign or factor != limit or not limit >= 0:
            return None
        if not self._is_zero(below, x):
            return None
        return RawNode(
            "SoftThreshold",
            "",
            1,
            node.name,
            (x,),
            node.outputs,
            {"limit": float(limit)},
            node.metadata,
        )

    def _signed_magnitude(self, node: RawNode) -> RawNode | None:
        """sign(x)·|x| = x, also behind a Relu that changes nothing."""
        for first, second in (node.inputs, tuple(reversed(node.inputs))):
            sign, magnitude = self._producers.get(first), self._producers.get(second)
            if magnitude is not None and magnitude.op_type == "Relu":
                magnitude = self._producers.get(magnitude.inputs[0])
            if sign is None or magnitude is None or magnitude.op_type != "Abs":
                continue
            if sign.op_type == "Sign" and sign.inputs == magnitude.inputs:
                return _made(node, "Identity", sign.inputs[0])
        return None

    def _number(self, name: str) -> Fraction | None:
        """A plain constant of one finite entry, exactly."""
        constant = self._constants.get(name)
        number = None if constant is None or constant.is_parameter else constant.scalar()
        return None if number is None or not math.isfinite(number) else Fraction(number)

    def _entry(self, name: str) -> Fraction | None:
        """A constant of one finite entry of which nothing says that it is a parameter, exactly."""
        constant = self._constants.get(name)
        number = None if constant is None else constant.entry()
        return None if number is None or not math.isfinite(number) else Fraction(number)

    def _is_zero(self, name: str, x: str) -> bool:
        """The number 0, or 0·x."""
        return self._entry(name) == 0 or self._scaled(name) == (x, Fraction(0))

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


def _made(node: RawNode, op_type: str, *inputs: str) -> RawNode:
    version = {"Relu": 14, "Max": 13, "Min": 13}.get(op_type, 1)
    return replace(node, op_type=op_type, since_version=version, inputs=inputs, attributes={})
