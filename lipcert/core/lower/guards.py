"""Guards: replace functions that jump inside continuous ones, as exporters write them.

Input: nodes in order, and the values so far. Output: for a node that joins the pieces of a
continuous function, nodes that compute it and do not jump. Known are

    Where(x > y, x, y)             Max(x, y), or Min with < for >, for any two values
    Where(IsNaN(x), c, x)          x
    all functions of one value x   as `piecewise` writes them down and `pieces` makes them

such as x·[x > 0] + a·(e^x − 1)·[x ≤ 0], an Elu, and Where(b·x > t, x, Softplus(b·x)/b), t ≥ 15,
which is Softplus(b·x)/b. Invariant: each is an identity of real functions for the numbers of the
file, but for the softplus, whose guard only avoids overflow: the branches differ by less than
ln(1 + e^−15) < 4e-7, and the bounds of softplus hold for either. No rule bounds a value that is not
defined, so that a guard against NaN guards nothing; but for an attention of which a value hides
tokens, perhaps all of them. Behind that no guard is known but Where(IsNaN(p), 0, p) for its softmax
p, as an `Attention` has it: others take a NaN for a number.

All that goes into a function of x is broadcast to the shape of x, with the batch on the same axis,
which so is that of the output. Numbers that shape the function no longer count as parameters
(`Sink.untracked`), but for the slopes of a PRelu.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from typing import Final

from lipcert.core.lower.call import Sink, refused
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.operators import COMPARISONS, JUMPING
from lipcert.core.lower.pieces import Maker
from lipcert.core.lower.piecewise import DEPTH, OPERATORS, Reader, leaves
from lipcert.core.lower.values import Constant, Data, Value
from lipcert.core.reader.records import Node
from lipcert.core.token_kinds import Hide

_ABOVE: Final = frozenset({"Greater", "GreaterOrEqual"})
_OF_ONE: Final = frozenset(
    {"Abs", "Add", "Cast", "Clip", "Div", "Identity", "LeakyRelu", "Max", "Min", "Mul", "Neg"}
    | {"Relu", "Sub"}
)
"""Operators whose output may be compared instead of their input."""


class Guards:
    """The nodes so far, by the values they compute; jumps: the node at which a value jumps."""

    def __init__(self, values: dict[str, Value], sink: Sink) -> None:
        self.jumps: dict[str, Node] = {}
        self._values, self._sink = values, sink
        self._producers: dict[str, Node] = {}
        self._variables: dict[str, tuple[str, ...]] = {}
        """For each part of a function, the values x of which it is a function."""
        self._read: set[str] = set()
        """The values from which functions that have been replaced were computed."""
        self._readers: dict[tuple[str, bool], Reader] = {}

    @property
    def parts(self) -> Set[str]:
        """The values that jump, or are parts of functions that are written with them."""
        return self.jumps.keys() | self._variables.keys() | self._read

    def lower(self, node: Node, lower: Callable[[Node], None]) -> None:
        """Lower a node, or the nodes of its function, which its inputs have to fit."""
        made = self._taken(node)
        for item in made:
            lower(item)
        if not made or made[0] is node:
            return
        result = self._values[node.outputs[0]]
        others = [self._values[name] for name in node.inputs if name in self._values]
        if not all(leaves(other, result) for other in others):
            raise refused(node, Unsupported("its inputs have shapes that do not fit"))

    def _taken(self, node: Node) -> list[Node]:
        """Return the nodes to lower: this one, or those of its function; none if it jumps."""
        self._producers.update(dict.fromkeys(node.outputs, node))
        if not node.domain:
            written = self._written(node)
            made = self._choice(node) or written
            if made:
                return made
        is_step = node.op_type in JUMPING and not node.domain
        first = next((self.jumps[name] for name in node.inputs if name in self.jumps), None)
        data = [item for item in map(self._values.get, node.inputs) if isinstance(item, Data)]
        if is_step and any(item.is_real and not self._is_whole(node, item) for item in data):
            first = node
        if first is None:
            return [node]
        self.jumps.update(dict.fromkeys(filter(None, node.outputs), first))
        return []

    def _is_whole(self, node: Node, value: Data) -> bool:
        """Whether a comparison is one of whole numbers, as `truth` has it."""
        from lipcert.core.lower.truth import read_by_ids  # noqa: PLC0415  for such alone

        return node.op_type in COMPARISONS and read_by_ids(self._sink, value) is not None

    def _may_be_hidden(self, *names: str) -> bool:
        """Whether one of these values depends on scores that a value hides."""
        behind: set[str] = set()
        for step in self._sink.steps:
            if isinstance(step.op, Hide) or not behind.isdisjoint(step.inputs):
                behind.add(step.output)
        values = map(self._values.get, names)
        return any(isinstance(item, Data) and item.name in behind for item in values)

    # choices between two values ----------------------------------------------------------------

    def _choice(self, node: Node) -> list[Node]:
        """Return nodes for Where(x > y, x, y), with any comparison, or Where(IsNaN(x), c, x)."""
        step = self._producers.get(node.inputs[0]) if node.inputs else None
        if node.op_type != "Where" or len(node.inputs) != 3 or step is None or step.domain:
            return []
        if self.jumps.keys().isdisjoint(node.inputs):
            return []
        first, second = node.inputs[1:]
        if step.op_type == "IsNaN" and step.inputs[0] == second:
            if self._may_be_hidden(second) and not self._is_softmax_guard(first, second):
                return []
            return [_made(node, "Identity", second)]
        is_pair = len(step.inputs) == 2 and {first, second} == {*step.inputs} and first != second
        if step.op_type not in COMPARISONS or not is_pair or self._may_be_hidden(*step.inputs):
            return []
        given = [self._values.get(name) for name in step.inputs]
        if any(isinstance(item, Constant) and item.lo.size == 1 for item in given):
            return []  # a function of one value
        is_max = (step.op_type in _ABOVE) == (first == step.inputs[0])
        return [_made(node, "Max" if is_max else "Min", *step.inputs)]

    def _is_softmax_guard(self, zero: str, value: str) -> bool:
        """Whether a number 0 replaces undefined results of a softmax."""
        maker, found = self._producers.get(value), self._values.get(zero)
        if maker is None or maker.op_type != "Softmax" or not isinstance(found, Constant):
            return False
        if found.lo.size != 1 or found.uniform() != 0.0:
            return False
        self._sink.untracked.update(found.sources)
        return True

    # functions of one value --------------------------------------------------------------------

    def _written(self, node: Node) -> list[Node]:
        """Return the nodes for a function behind a comparison; none if it is not known.

        A node that combines a stored number with replaced functions stays as it is: the number may
        be trained, such as the scale of an activation.
        """
        if node.op_type not in OPERATORS or len(node.outputs) != 1:
            return []
        found: list[str] = []
        made: list[Node] = []
        is_own = self.jumps.keys().isdisjoint(node.inputs) and self._has_stored(node)
        for x in self._candidates(node):
            if self._may_be_hidden(x) or self._reader(x).of(node.outputs[0]) is None:
                continue
            found.append(x)
            made = made or ([] if is_own else self._made(node, x))
        if found:
            self._variables[node.outputs[0]] = tuple(found)
        return made

    def _has_stored(self, node: Node) -> bool:
        given = (self._values.get(name) for name in node.inputs)
        return any(isinstance(item, Constant) and item.sources for item in given)

    def _made(self, node: Node, x: str) -> list[Node]:
        """Return nodes that keep the slopes of a PRelu a tensor, or else nodes with all numbers."""
        output = node.outputs[0]
        for symbolic in (True, False):
            reader = self._reader(x, symbolic=symbolic)
            function = reader.of(output)
            maker = Maker(reader, node, self._values, self._sink)
            made = [] if function is None else maker.made(function)
            if not made:
                continue
            for name in reader.behind(output):
                self._read.add(name)
                value = self._values.get(name)
                if isinstance(value, Constant) and name not in made[-1].inputs:
                    self._sink.untracked.update(value.sources)
            return made
        return []

    def _reader(self, x: str, *, symbolic: bool = False) -> Reader:
        if (x, symbolic) not in self._readers:
            own = Reader(x, self._values, self._producers, self.jumps, symbolic)
            self._readers[x, symbolic] = own
        return self._readers[x, symbolic]

    def _candidates(self, node: Node) -> Iterator[str]:
        """Yield the values of which the output may be a function."""
        if node.op_type in COMPARISONS or node.op_type == "Sign":
            for name in node.inputs:
                yield from self._behind(name)
            return
        known = [self._variables[name] for name in node.inputs if name in self._variables]
        yield from (x for x in (known[0] if known else ()) if all(x in names for names in known))

    def _behind(self, name: str) -> Iterator[str]:
        """Yield a value, then the one that it is computed from, as long as there is only one."""
        for _ in range(DEPTH):
            value = self._values.get(name)
            if isinstance(value, Data) and value.is_real:
                yield name
            node = self._producers.get(name)
            if node is None or node.domain or node.op_type not in _OF_ONE:
                return
            data = [item for item in node.inputs if isinstance(self._values.get(item), Data)]
            if len(data) != 1:
                return
            (name,) = data


def _made(node: Node, op_type: str, *inputs: str) -> Node:
    return replace(node, op_type=op_type, inputs=inputs, attributes={})
