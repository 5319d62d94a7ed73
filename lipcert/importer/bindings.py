"""Tensors that the exporter renamed or shared, under the names of their parameters again.

What enters: a node and the exporter's notes. What leaves: the node reading constants of new names,
and these constants. Invariant: a tensor gets the name of a parameter only where it holds that
parameter's own numbers, perhaps transposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from lipcert.importer.constant import Constant, Origin, View
from lipcert.importer.metadata import Provenance
from lipcert.importer.raw import RawNode

__all__ = ["Binding", "with_bindings"]


class Binding(NamedTuple):
    """A constant that shows a parameter, and the name under which the node reads it."""

    parameter: str
    name: str
    constant: Constant


def with_bindings(
    node: RawNode, provenance: Provenance, constants: Mapping[str, Constant]
) -> tuple[RawNode, tuple[Binding, ...]]:
    """The node with its tensors named after the parameters that they hold."""
    inputs = list(node.inputs)
    found: list[Binding] = []
    for position, target in provenance.bindings(node).items():
        name = node.input(position)
        constant = constants.get(name)
        if constant is None or constant.view is None or constant.view.origin.name == target:
            continue
        if target in provenance.stored or constant.view.scale != 1:
            continue
        if node.op_type == "MatMul" and constant.array.ndim != 2:
            continue
        inputs[position] = f"{name}@{target}"
        view = _shown(node, target, constant)
        found.append(Binding(target, inputs[position], Constant(constant.array, view)))
    return replace(node, inputs=tuple(inputs)), tuple(found)


def _shown(node: RawNode, target: str, constant: Constant) -> View:
    """The whole parameter; a MatMul reads it transposed."""
    if node.op_type != "MatMul":
        return View.whole(Origin(target, constant.shape))
    view = View.whole(Origin(target, constant.shape[::-1]))
    return replace(view, index=view.index.T)
