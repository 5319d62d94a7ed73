"""Which values of a file its outputs depend on, where it holds an If.

What enters: a walk over the file that has seen no node yet. What leaves: names. Of an If whose
condition is a constant that no batch changes, the branch that it takes is followed, and what the
other one reads is not; of any other If, both. To know conditions, the nodes before them are walked.
Proof that nothing is missed: a value depends on what its node reads, and a node that is an If with
this condition computes the results of that branch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import Walk
from lipcert.core.reader.records import Branch, Node


def followed(walk: Walk, outputs: Iterable[str]) -> frozenset[str]:
    """The names of all values that outputs depend on, also inside of branches."""
    found = _Followed(walk)
    names: set[str] = set()
    pending = list(outputs)
    while pending:
        name = pending.pop()
        if name and name not in names:
            names.add(name)
            pending += found.read_by(name)
    return frozenset(names)


def taken(walk: Walk) -> dict[str, Branch]:
    """The branches taken of all Ifs, also inside of each other, by their first output."""
    found = _Followed(walk)
    pending = [node for node in walk.model.nodes if is_if(node) and _first(node)]
    while pending:
        node = pending.pop()
        found.read_by(_first(node))
        branch = found.taken[_first(node)]
        pending += (
            []
            if branch is None
            else (item for item in branch.nodes if is_if(item) and _first(item))
        )
    return {name: branch for name, branch in found.taken.items() if branch is not None}


@final
class _Followed:
    """The nodes by the names of their values, with those of the branches that are taken.

    taken: of an If, by its first output.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk: Final = walk
        self._makers = _makers(walk.model.nodes)
        self.taken: dict[str, Branch | None] = {}
        self._done: set[str] = set()

    def read_by(self, name: str) -> tuple[str, ...]:
        """The names that a value is computed from."""
        node = self._makers.get(name)
        if node is None:
            return ()
        if not is_if(node):
            return node.inputs
        self._evaluate(node.inputs[0])
        result = self._result(node, name)
        return node.inputs if result is None else (node.inputs[0], result)

    def _result(self, node: Node, name: str) -> str | None:
        """What an output of an If is called in the branch that it takes; None if that is unknown.

        Its condition has been walked.
        """
        first = _first(node)
        if first not in self.taken:
            try:
                branch = self._walk.chosen(node)
            except Unsupported:
                branch = None
            self.taken[first] = branch
            self._makers |= {} if branch is None else _makers(branch.nodes)
        branch = self.taken[first]
        return None if branch is None else branch.outputs[node.outputs.index(name)]

    def _evaluate(self, wanted: str) -> None:
        """Walk the nodes that a value is computed from, as far as they are understood."""
        pending = [wanted]
        while pending:
            name = pending[-1]
            missing = self._missing(name)
            pending += missing
            if missing:
                continue
            pending.pop()
            if self._is_open(name):
                self._walk_maker(name)

    def _is_open(self, name: str) -> bool:
        return name in self._makers and name not in self._done

    def _missing(self, name: str) -> list[str]:
        """The names that have to be walked before this one."""
        if not self._is_open(name):
            return []
        node = self._makers[name]
        names = node.inputs[:1] if is_if(node) else node.inputs
        if is_if(node) and not self._is_open(names[0]):
            result = self._result(node, name)
            names = () if result is None else (result,)
        return [item for item in names if self._is_open(item)]

    def _walk_maker(self, name: str) -> None:
        node, values = self._makers[name], self._walk.values
        self._done.update([name] if is_if(node) else node.outputs)
        if is_if(node):
            result = self._result(node, name)
            if result in values:
                values[name] = values[result]
            return
        try:
            self._walk.node(node, 0)
        except Unsupported:
            return


def is_if(node: Node) -> bool:
    """Whether a node chooses between branches."""
    return node.op_type == "If" and not node.domain


def _first(node: Node) -> str:
    return next(filter(None, node.outputs), "")


def _makers(nodes: Iterable[Node]) -> dict[str, Node]:
    return {name: node for node in nodes for name in node.outputs if name}
