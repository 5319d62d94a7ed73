"""Matcher: small questions about a data path, asked backwards from a node.

What enters: a static graph. What leaves: answers in terms of value names; "" or None where the
structure is another one. Constants count as plain numbers only if they are not parameters.
Invariant: numbers are exactly those that stand in the file, and factors are their exact products.

An optimiser stores the numbers of a formula as tensors like those of parameters. A tensor of one
entry, of which nothing says that it is a parameter, counts as a number where it holds just what the
formula is made of (`FORMULAS`, exponents, the 1 of 1 + x, the 1/√d of an attention) or stands where
nobody trains: under the root of a normalization.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, final

import numpy as np

from lipcert.core.program import Shape
from lipcert.importer.constant import Constant
from lipcert.importer.raw import Array, RawNode
from lipcert.importer.rearrange import axes_of, slices_of
from lipcert.importer.static_graph import StaticGraph

_ONE: Final = Fraction(1)
_VERSIONS: Final = {
    "Gelu": 20,
    "GroupNormalization": 21,
    "HardSwish": 14,
    "LayerNormalization": 17,
    "Mish": 18,
    "RMSNormalization": 23,
    "Swish": 24,
}


FORMULAS: Final = (0.5, math.sqrt(0.5), math.sqrt(2.0), math.sqrt(2 / math.pi), 0.044715)
"""factors in the formulas of GELU"""
_LARGEST_EPSILON: Final = 0.1


@final
class Matcher:
    """Looks up producers and constants of one graph; collects reshaped constants."""

    def __init__(self, graph: StaticGraph) -> None:
        self.graph = graph
        self._producers = {name: node for node in graph.nodes for name in node.output_names}
        self._new: dict[str, Constant] = {}

    def producer(self, name: str, op_type: str) -> RawNode | None:
        """The node that computes a value, if it is of this type."""
        node = self._producers.get(name)
        return node if node is not None and node.op_type == op_type and not node.domain else None

    def number(self, name: str, *formula: float) -> float | None:
        """A plain constant whose entries are all equal, or a stored number of the formula."""
        constant = self.graph.constants.get(name)
        if constant is None or not constant.is_float:
            return None
        number = self.entry(name) if constant.is_parameter else constant.uniform()
        if not constant.is_parameter or number is None:
            return number
        return number if any(_is_near(number, item) for item in formula) else None

    def entry(self, name: str) -> float | None:
        """The number that a constant of one entry holds, unless it is known to be trained."""
        constant = self.graph.constants.get(name)
        return None if constant is None or not constant.is_float else constant.entry()

    def scaled(self, name: str, *formula: float) -> tuple[str, Fraction]:
        """(x, c) for a value c·x, written as a product or quotient; (name, 1) otherwise."""
        node = self.producer(name, "Mul") or self.producer(name, "Div")
        if node is None:
            return name, _ONE
        left, right = (self._fraction(item, *formula) for item in node.inputs)
        if right is not None and node.inputs[0] in self.graph.values:
            if node.op_type == "Mul":
                return node.inputs[0], right
            return (node.inputs[0], 1 / right) if right else (name, _ONE)
        if left is not None and node.op_type == "Mul":
            return node.inputs[1], left
        return name, _ONE

    def _fraction(self, name: str, *formula: float) -> Fraction | None:
        """`number`, if it is finite, exactly."""
        number = self.number(name, *formula)
        return None if number is None or not math.isfinite(number) else Fraction(number)

    def product(self, name: str, stop: frozenset[str]) -> tuple[Fraction, list[str]]:
        """A value as number · Π factors; factors in `stop` are not taken apart further."""
        if name in stop:
            return _ONE, [name]
        number = self._fraction(name, *FORMULAS)
        if number is not None:
            return number, []
        power = self.producer(name, "Pow")
        if power is not None:
            exponent = self.number(power.inputs[1], 2.0, 3.0)
            if exponent in {2.0, 3.0}:
                scale, rest = self.product(power.inputs[0], stop)
                return scale ** int(exponent), rest * int(exponent)
        inner, factor = self.scaled(name, *FORMULAS)
        if inner != name:
            scale, rest = self.product(inner, stop)
            return scale * factor, rest
        node = self.producer(name, "Mul")
        if node is None:
            return _ONE, [name]
        left, right = (self.product(item, stop) for item in node.inputs)
        return left[0] * right[0], left[1] + right[1]

    def factors(self, name: str, depth: int = 3) -> list[str]:
        """All values that are factors of a nested product."""
        node = self.producer(name, "Mul") or self.producer(name, "Div")
        if node is None or depth == 0:
            return [name]
        inner = node.inputs if node.op_type == "Mul" else node.inputs[:1]
        return [name, *(item for part in inner for item in self.factors(part, depth - 1))]

    def plus_number(self, name: str) -> tuple[str, float]:
        """(x, c) for a value x + c; ("", 0) otherwise."""
        node = self.producer(name, "Add")
        if node is not None:
            for value, other in (node.inputs, tuple(reversed(node.inputs))):
                number = self.entry(other) if self._is_fixed(other) else self.number(other)
                if number is not None and value in self.graph.values:
                    return value, number
        return "", 0.0

    def _is_fixed(self, name: str) -> bool:
        """Whether a summand of one entry is a 1 or an epsilon, which nobody trains."""
        number = self.entry(name)
        return number is not None and (number == 1.0 or 0.0 < number <= _LARGEST_EPSILON)

    def plus_one(self, name: str) -> str | None:
        """x for a value x + 1."""
        value, number = self.plus_number(name)
        return value if value and number == 1.0 else None

    def under_root(self, name: str) -> str:
        """x for a value √x."""
        root = self.producer(name, "Sqrt")
        if root is not None:
            return root.inputs[0]
        power = self.producer(name, "Pow")
        is_root = power is not None and self.number(power.inputs[1], 0.5) == 0.5
        return power.inputs[0] if power is not None and is_root else ""

    def over_root(self, node: RawNode) -> list[tuple[str, str]]:
        """(a, b) for a value a/√b, the root perhaps inverted first."""
        if node.op_type == "Div":
            total = self.under_root(node.inputs[1])
            return [(node.inputs[0], total)] if total else []
        pairs = [] if node.op_type != "Mul" else [node.inputs, tuple(reversed(node.inputs))]
        found = [(value, self._under_inverse_root(other)) for value, other in pairs]
        return [(value, total) for value, total in found if total]

    def _under_inverse_root(self, name: str) -> str:
        """x for a value 1/√x."""
        inverse = self.producer(name, "Reciprocal")
        if inverse is not None:
            return self.under_root(inverse.inputs[0])
        quotient = self.producer(name, "Div")
        if quotient is not None and self.entry(quotient.inputs[0]) == 1.0:
            return self.under_root(quotient.inputs[1])
        power = self.producer(name, "Pow")
        is_root = power is not None and self.number(power.inputs[1], -0.5) == -0.5
        return power.inputs[0] if power is not None and is_root else ""

    def average(self, name: str) -> RawNode | None:
        """The ReduceMean behind a value whose reduced axes have size 1, or stretch again."""
        name = self.stretched(name)
        shape = self.graph.shape(name)
        node = self.producer(name, "Reshape") or self.producer(name, "Unsqueeze")
        mean = self.producer(name if node is None else node.inputs[0], "ReduceMean")
        if mean is None:
            return None
        axes = self.axes(mean)
        whole = self.graph.shape(mean.inputs[0])
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(whole))
        return mean if shape == kept else None

    def stretched(self, name: str) -> str:
        """The value behind an Expand that adds no axes."""
        node = self.producer(name, "Expand")
        if node is None:
            return name
        before = self.graph.shape(node.inputs[0])
        return node.inputs[0] if len(self.graph.shape(name)) == len(before) else name

    def ones(self, size: int) -> str:
        """A vector of ones."""
        name = f"@ones{size}"
        self._new[name] = Constant(np.ones(size))
        return name

    def with_constant(self, node: RawNode) -> tuple[str, str]:
        """(value, constant) of a binary node; ("", "") where both or none are constant."""
        for value, constant in (node.inputs, tuple(reversed(node.inputs))):
            if value in self.graph.values and constant in self.graph.constants:
                return value, constant
        return "", ""

    def unchanged(self, name: str) -> str:
        """The value behind nodes that change nothing."""
        for kind in ("Identity", "Dropout"):
            node = self.producer(name, kind)
            if node is not None:
                return self.unchanged(node.inputs[0])
        node = self.producer(name, "Slice")
        if node is not None and self.graph.shape(name) == self.graph.shape(node.inputs[0]):
            bounds = self._bounds(node)
            if all(step == 1 for _, _, step in bounds):
                return self.unchanged(node.inputs[0])
        return name

    def is_last_axis(self, node: RawNode) -> bool:
        """Whether a Softmax works on the last axis alone."""
        default = -1 if node.since_version >= 13 else 1
        rank = len(self.graph.shape(node.inputs[0]))
        return node.integer("axis", default) % rank == rank - 1

    def masked(self, name: str) -> tuple[str, str]:
        """(x, mask) for x plus constants, or x with −∞ in constant places; ("" without mask)."""
        total: Array | None = None
        shape = self.graph.shape(name)
        while True:
            inner, mask = self._mask_of(name)
            if mask is None or self.graph.shape(inner) != shape:
                break
            both = mask.astype(np.float64) if total is None else _exact_sum(total, mask)
            if both is None:
                break
            name, total = inner, both
        if total is None:
            return name, ""
        new = f"{name}@mask"
        self._new[new] = Constant(total)
        return name, new

    def _mask_of(self, name: str) -> tuple[str, Array | None]:
        """The last step of `masked`."""
        add, choice = self.producer(name, "Add"), self.producer(name, "Where")
        if add is not None:
            value, other = self.with_constant(add)
            constant = self.graph.constants.get(other)
            is_plain = constant is not None and not constant.is_parameter
            return (value, constant.array) if constant is not None and is_plain else (name, None)
        condition = choice and self.graph.constants.get(choice.inputs[0])
        if choice is None or condition is None:
            return name, None
        for position, hides in ((1, True), (2, False)):
            number = self.number(choice.inputs[position])
            value = choice.inputs[3 - position]
            if number == -math.inf and value in self.graph.values:
                return value, np.where(condition.array == hides, -np.inf, 0.0)
        return name, None

    def axes(self, node: RawNode) -> tuple[int, ...]:
        """Axes of a Reduce node, counted from the front."""
        rank = len(self.graph.shape(node.inputs[0]))
        axes = axes_of(node, self.graph.control(node))
        return tuple(sorted(axis % rank for axis in axes)) if axes else tuple(range(rank))

    def shaped(self, name: str, shape: Shape) -> str:
        """A constant of this trailing shape (leading axes 1); "?" where it is another."""
        if not name:
            return ""
        own = self.graph.constants[name].shape
        lead = len(own) - len(shape)
        if lead < 0 or own[lead:] != shape or any(size != 1 for size in own[:lead]):
            return "?"
        return self._reshaped(name, shape)

    def per_channel(self, name: str, shape: Shape) -> str:
        """A constant [C, 1, …] that multiplies the channels of `shape`, as [C]."""
        if not name:
            return ""
        own = self.graph.constants[name].shape
        full = (1,) * (len(shape) - len(own)) + own
        if full != (1, shape[1], *(1,) * (len(shape) - 2)):
            return "?"
        return self._reshaped(name, (shape[1],))

    def _reshaped(self, name: str, shape: Shape) -> str:
        constant = self.graph.constants[name]
        if constant.shape == shape:
            return name
        new = f"{name}@{'x'.join(map(str, shape))}"
        self._new[new] = constant.rearranged(lambda array: array.reshape(shape))
        return new

    def whole_of_halves(self, names: Sequence[str], axis: int) -> str:
        """x, where the two values are the first and the second half of x along an axis."""
        found = [self._part(name, axis) for name in names]
        if len(found) != 2 or None in found:
            return ""
        parts = sorted(part for part in found if part is not None)
        if parts[0][0] != parts[1][0]:
            return ""
        size = self.graph.shape(parts[0][0])[axis]
        expected = [(0, size // 2), (size // 2, size)]
        is_halved = size % 2 == 0 and [part[1:] for part in parts] == expected
        return parts[0][0] if is_halved else ""

    def _part(self, name: str, axis: int) -> tuple[str, int, int] | None:
        split = self.producer(name, "Split")
        if split is not None:
            rank = len(self.graph.shape(split.inputs[0]))
            if split.integer("axis", 0) % rank != axis:
                return None
            position = split.outputs.index(name)
            sizes = [self.graph.shape(output)[axis] for output in split.outputs]
            start = sum(sizes[:position])
            return self.unchanged(split.inputs[0]), start, start + sizes[position]
        node = self.producer(self.unchanged(name), "Slice")
        if node is None:
            return None
        shape = self.graph.shape(node.inputs[0])
        bounds = self._bounds(node)
        if any(bound[2] != 1 for bound in bounds) or any(
            bound[:2] != (0, size)
            for place, (bound, size) in enumerate(zip(bounds, shape, strict=True))
            if place != axis
        ):
            return None
        return self.unchanged(node.inputs[0]), bounds[axis][0], bounds[axis][1]

    def _bounds(self, node: RawNode) -> list[tuple[int, int, int]]:
        """(start, stop, step) of a Slice along every axis."""
        shape = self.graph.shape(node.inputs[0])
        parts = slices_of(node, self.graph.control(node), len(shape))
        return [part.indices(size) for part, size in zip(parts, shape, strict=True)]

    def macro(
        self, node: RawNode, op_type: str, inputs: tuple[str, ...], attributes: Mapping[str, Any]
    ) -> RawNode:
        """A node that takes the place of `node`."""
        version = _VERSIONS.get(op_type, 1)
        return RawNode(op_type, "", version, node.name, inputs, node.outputs, attributes)

    def take_constants(self) -> dict[str, Constant]:
        """The constants made since the last call."""
        new, self._new = self._new, {}
        return new


def _exact_sum(total: Array, mask: Array) -> Array | None:
    """The sum of two masks, unless float64 rounds it: a − (s − b) and b − (s − a) tell."""
    added = mask.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        both: Array = np.asarray(total + added)
        error = (total - (both - added)) + (added - (both - (both - added)))
    is_exact = np.isneginf(total) | np.isneginf(added) | (error == 0.0)
    return both if bool(np.all(is_exact)) else None


def _is_near(number: float, formula: float) -> bool:
    """Up to the rounding of float32: it tells which number is meant, and replaces none."""
    return math.isclose(number, formula, rel_tol=2.0**-22)
