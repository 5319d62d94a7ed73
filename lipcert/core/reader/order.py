"""That every name means one thing, and that nodes stand in an order of computation."""

from __future__ import annotations

from collections.abc import Iterable

from lipcert.core.reader.records import ModelReadError, Node, shown


def check_order(nodes: Iterable[Node], given: set[str], outputs: Iterable[str]) -> None:
    """Raise `ModelReadError` unless each node reads only given names and earlier outputs.

    So there is no cycle. Likewise if a name is defined twice, or an output never.
    """
    known = set(given)
    for node in nodes:
        for name in filter(None, node.inputs):
            if name not in known:
                raise ModelReadError(
                    f"node {shown(node.name)} ({shown(node.op_type)}) reads {shown(name)} before it"
                    " is computed (a cycle, a missing value or unsorted nodes)"
                )
        for name in filter(None, node.outputs):
            if name in known:
                raise ModelReadError(f"{shown(name)} is computed twice")
            known.add(name)
    for name in outputs:
        if name not in known:
            raise ModelReadError(f"the graph output {shown(name)} is never computed")
