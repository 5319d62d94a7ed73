"""The row of a node in a table of bounds, shared by the formats that show every node."""

from __future__ import annotations

from typing import Final

from lipcert.analysis.records import NodeReport
from lipcert.report.numbers import at_most, shape_text

NODE_TITLES: Final = (
    "node",
    "op",
    "shape",
    "‖input‖",
    "‖W‖",
    "Lipschitz",
    "‖output‖",
    "‖cotangent‖",
)


def node_cells(node: NodeReport) -> tuple[str, ...]:
    """What a node is, and its bounds; one cell for each of NODE_TITLES."""
    return (
        node.name,
        node.op,
        shape_text(node.shape),
        at_most(node.input_norm),
        "" if node.operator_norm is None else at_most(node.operator_norm),
        ", ".join(at_most(bound) for bound in node.input_lipschitz),
        at_most(node.output_norm),
        at_most(node.cotangent_norm),
    )
