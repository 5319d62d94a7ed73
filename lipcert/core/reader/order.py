"""An order of computation, and with it that every name means one thing."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from lipcert.core.reader.records import ModelReadError, Node, shown


def ordered(nodes: tuple[Node, ...], given: set[str], outputs: Iterable[str]) -> tuple[Node, ...]:
    """The nodes so that each reads only given names and outputs of earlier nodes.

    `ModelReadError` if a name is defined twice, if a node or the graph reads one that never is,
    or if there is a cycle. Nodes that stand in order in the file stay as they are.
    """
    _check_defined_once(nodes, given)
    readers: dict[str, list[int]] = {}
    missing = [0] * len(nodes)
    for index, node in enumerate(nodes):
        for name in set(node.inputs) - given - {""}:
            readers.setdefault(name, []).append(index)
            missing[index] += 1
    ready = [index for index, count in enumerate(missing) if count == 0]  # ascending: a heap
    result: list[Node] = []
    while ready:
        node = nodes[heappop(ready)]
        result.append(node)
        for name in node.outputs:
            for reader in readers.pop(name, ()):
                missing[reader] -= 1
                if missing[reader] == 0:
                    heappush(ready, reader)
    if readers:
        name = next(iter(readers))
        raise ModelReadError(f"{shown(name)} is read but never computed, or only from itself")
    known = given.union(*(node.outputs for node in nodes))
    for name in outputs:
        if name not in known:
            raise ModelReadError(f"the graph output {shown(name)} is never computed")
    return tuple(result)


def _check_defined_once(nodes: tuple[Node, ...], given: set[str]) -> None:
    known = set(given)
    for node in nodes:
        for name in filter(None, node.outputs):
            if name in known:
                raise ModelReadError(f"{shown(name)} is computed twice")
            known.add(name)
