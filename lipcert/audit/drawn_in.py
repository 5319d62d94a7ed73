"""Drawn in: by how little the audit stays inside of everything that bounds are attained at.

A bound that is attained exactly cannot be told from one that is exceeded by rounding. So what is
replayed stays off the edge by one part in 10^9: examples off the sphere, the loss and the radii of
clips a little smaller. The bounds hold for all of that, too; the audit is blind to an error of a
bound below some parts in 10^9.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lipcert.ir import Graph, Node
from lipcert.ops.clip import CotangentClip, InputClip
from lipcert.upper import Upper

__all__ = ["INSIDE", "with_clips_drawn_in"]

INSIDE: Final = 1.0 - 2.0**-30


def with_clips_drawn_in(graph: Graph) -> Graph:
    """The graph with the radii of its clips a little smaller."""
    return replace(graph, nodes=tuple(_drawn_in(node) for node in graph.nodes))


def _drawn_in(node: Node) -> Node:
    match node.op:
        case InputClip(radius=radius) | CotangentClip(radius=radius) if radius.is_finite:
            return replace(node, op=replace(node.op, radius=Upper(radius.value * INSIDE)))
    return node
