"""Replace each If of a file by the branch that it takes.

Input: a walk over the file that has seen no node yet. Output: the nodes, with their positions in
the file. An If whose condition is a constant that no batch changes is replaced by the nodes of its
branch and an Identity for each result, which also reads the condition; any other If stays, and
reads what both branches read. Only nodes that conditions depend on are walked.

Proof: an If with this condition computes the results of that branch, from names that are unique in
the file; so a value depends on what the nodes that compute it read.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from lipcert.core.lower.call import refused
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import Walk
from lipcert.core.lower.values import Constant
from lipcert.core.reader.records import Branch, Model, Node, with_nested


class Splicer:
    """Splices branches. taken: the branch of each If, also of nested ones, by its first output."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._conditions = _conditions(walk.model)
        self.taken: dict[str, Branch] = {}

    def nodes(self) -> list[tuple[int, Node]]:
        """Return every node with its position, in an order of computation."""
        numbered = enumerate(self._walk.model.nodes)
        return [(position, item) for position, node in numbered for item in self._spliced([node])]

    def _spliced(self, nodes: Iterable[Node]) -> Iterator[Node]:
        for node in nodes:
            branch = self._branch(node) if is_if(node) else None
            if branch is not None:
                yield from self._spliced(branch.nodes)
                pairs = zip(node.outputs, branch.outputs, strict=True)
                yield from (self._walked(_identity(node, *pair)) for pair in pairs if pair[0])
            else:
                yield self._walked(node)

    def _walked(self, node: Node) -> Node:
        """Return the node; walk it first if a condition may depend on it and it is understood."""
        if not self._conditions.isdisjoint(node.outputs):
            with suppress(Unsupported):
                self._walk.node(node, 0)
        return node

    def _branch(self, node: Node) -> Branch | None:
        with suppress(Unsupported):
            first = next(filter(None, node.outputs), "")
            return self.taken.setdefault(first, _chosen(self._walk, node))
        return None


def _identity(node: Node, output: str, result: str) -> Node:
    inputs = (result, node.inputs[0])
    return replace(node, op_type="Identity", inputs=inputs, outputs=(output,), attributes={})


def _conditions(model: Model) -> set[str]:
    """Return the names of all values that conditions depend on, whichever branches are taken."""
    nodes = list(with_nested(model.nodes))
    makers = {name: node for node in nodes for name in node.outputs if name}
    pending = [node.inputs[0] for node in nodes if is_if(node)]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name in makers and name not in found:
            found.add(name)
            pending += makers[name].inputs
            values = (item.value for item in makers[name].attributes.values())
            pending += (out for item in values if isinstance(item, Branch) for out in item.outputs)
    return found


def is_if(node: Node) -> bool:
    """Whether a node chooses between branches."""
    return node.op_type == "If" and not node.domain


def lower_branch(walk: Walk, node: Node, position: int) -> None:
    """Add the outputs of an If, by the nodes of the branch that it takes."""
    chosen = _chosen(walk, node)
    for inner in chosen.nodes:
        walk.node(inner, position)
    for name, result in zip(node.outputs, chosen.outputs, strict=True):
        walk.values[name] = walk.known(result)


def _chosen(walk: Walk, node: Node) -> Branch:
    """Return the branch that an If with a constant condition takes."""
    condition = walk.values.get(node.inputs[0])
    if not isinstance(condition, Constant) or condition.lo.size != 1:
        raise refused(node, Unsupported("it branches on the data; export one branch alone"))
    condition.check_fixed()
    walk.sink.untracked.update(condition.sources)
    chosen = node.attributes.get("then_branch" if condition.lo.all() else "else_branch")
    if chosen is None or not isinstance(chosen.value, Branch):
        raise refused(node, Unsupported("the branch that it takes is missing"))
    if len(chosen.value.outputs) != len(node.outputs):
        raise refused(node, Unsupported("its branches have other outputs"))
    return chosen.value
