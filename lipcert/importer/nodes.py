"""The nodes of a model with Ifs resolved, and what torch.export noted about their calls.

`Branches` holds the branches that Ifs take. A `Call` holds the name of the call that a
node was made from, and its arguments as they were written, such as `%x`, `[1, -1]` or `1e-05`; a
name behind `%` is that of a placeholder or of another call. Invariant: nothing is guessed; a note
of another form is ignored.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from lipcert.core.lower.branches import Splicer, is_if
from lipcert.core.lower.lower import Walk
from lipcert.core.lower.values import Constant
from lipcert.core.reader.records import Branch, Model, Node, Tensor

FX_NODE: Final = "pkg.torch.onnx.fx_node"
_CALL: Final = re.compile(
    r"(?:^%(?P<result>\w+) :.*)?"
    r"target=(?:torch\.ops\.aten\.(?P<name>\w+)|(?P<other>[\w.]+))[^\]]*\]"
    r"\(args = \((?P<args>.*)\), kwargs = \{(?P<kwargs>.*)\}\)$",
    re.DOTALL,
)
_NAME: Final = re.compile(r"%(\w+)")
_SHAPED: Final = frozenset(
    ["expand", "new_zeros", "permute", "repeat", "reshape", "slice", "unflatten", "view"]
)
"""Calls of which only the first argument is a tensor."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a torch operator, or of another function, whose name then contains a dot.

    result: the name of its result in the exported program.
    """

    name: str
    result: str
    arguments: tuple[str, ...]
    keywords: str

    @property
    def tensors(self) -> list[str]:
        """Names of the tensors that the call may read."""
        if self.name in _SHAPED:
            return names_in(", ".join(self.arguments[:1]))
        return names_in(", ".join((*self.arguments, self.keywords)))


def call_of(node: Node) -> Call | None:
    """Return the call that a node was made from, if the exporter noted it."""
    found = _CALL.search(node.metadata.get(FX_NODE, ""))
    if found is None:
        return None
    arguments = tuple(_arguments(found["args"]))
    name = found["name"] or found["other"]
    return Call(name, found["result"] or "", arguments, found["kwargs"])


def names_in(text: str) -> list[str]:
    """Return the names behind % in their order."""
    return _NAME.findall(text)


def _arguments(text: str) -> Iterator[str]:
    """Yield the arguments, cut at the commas outside of brackets."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    if text[start:].strip():
        yield text[start:].strip()


@dataclass(frozen=True, slots=True, eq=False)
class NotedNode:
    """A node with its exporter's notes, and the stored tensors that it reads."""

    node: Node
    tensors: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """The branch that each If with a constant condition takes, also nested ones, by first output.

    known: conditions outside of branches that are constants for any batch, by name.
    """

    taken: Mapping[str, Branch]
    known: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: Model) -> Self:
        """Find them by walks over what the conditions depend on."""
        taken, known = dict[str, Branch](), dict[str, Tensor]()
        left = outer = list(filter(is_if, model.nodes))
        for batched in (True, False):
            if left:  # a condition that holds for any batch holds for one example
                splicer = Splicer(walk := Walk.over(model, batched=batched))
                left = [node for _, node in splicer.nodes() if is_if(node)]
                taken |= splicer.taken
                for node in outer if batched else ():
                    value = walk.values.get(node.inputs[0])
                    if output_names(node)[0] in taken and isinstance(value, Constant):
                        numbers = value.lo.astype(bool)
                        known[node.inputs[0]] = Tensor("bool", numbers.shape, numbers.tobytes())
        return cls(taken, known)

    def followed(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Yield the nodes, with each If replaced by the branch taken and an Identity per result.

        So the other branch is not a reason for a refusal. An If stays as it is, and reads what both
        branches read, if the core does not know which branch it takes.
        """
        for node in nodes:
            branch = self.taken.get(output_names(node)[0])
            if branch is None:
                yield node
                continue
            yield from self.followed(branch.nodes)
            for given, made in zip(branch.outputs, node.outputs, strict=True):
                yield Node(node.name, "Identity", "", (given,), (made,), {}, node.metadata)

    def decided(self, model: Model) -> Model:
        """Return the model with known conditions as stored numbers, which nothing computes."""
        nodes = tuple(node for node in model.nodes if not self.known.keys() >= set(node.outputs))
        return replace(model, nodes=nodes, initializers={**model.initializers, **self.known})


def output_names(node: Node) -> tuple[str, ...]:
    """Return the outputs that are not left out; the reader refuses a node without outputs."""
    return tuple(filter(None, node.outputs))


def label(node: Node) -> str:
    """Return the name of a node, or one made from its operator and output."""
    return node.name or f"{node.op_type}_{output_names(node)[0]}"


def needed_values(model: Model, *outputs: str) -> set[str]:
    """Return the names of the values that the outputs are computed from."""
    live = set(outputs)
    for node in reversed(model.nodes):
        if any(name in live for name in node.outputs):
            live.update(filter(None, node.inputs))
    return live


def needed_nodes(model: Model, *outputs: str) -> list[Node]:
    """Return the nodes that the outputs are computed from, in order."""
    live = needed_values(model, *outputs)
    return [node for node in model.nodes if not live.isdisjoint(output_names(node))]
