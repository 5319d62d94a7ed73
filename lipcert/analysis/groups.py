"""Groups: which trained parameters are noised together.

What enters: a graph and the gradient bound of each parameter. What leaves: groups in graph order,
each with the joint bound √Σ G² of its members, since the gradient with respect to several tensors
is their concatenation. Every trained parameter is in exactly one group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from lipcert.graph.ir import Graph, Parameter
from lipcert.importer.metadata import is_anonymous
from lipcert.importer.origins import module_of
from lipcert.upper import Upper, root_sum_square


@final
@dataclass(frozen=True, slots=True)
class Group:
    """Parameters noised together. grad_norm: bound of the norm of their joint gradient."""

    name: str
    parameters: tuple[Parameter, ...]
    grad_norm: Upper

    @property
    def dimension(self) -> int:
        """Number of trained entries."""
        return sum(parameter.size for parameter in self.parameters)


def group_parameters(
    graph: Graph, grad_norms: Mapping[str, float], per_layer: bool
) -> tuple[Group, ...]:
    """Trained parameters, one group each or one group per layer.

    A layer is what a state_dict calls one: "conv1.weight" and "conv1.bias" share the prefix
    "conv1". Parameters without such a prefix are grouped by the node that uses them first; those
    with names that an exporter made up, by its module.
    """
    uses = first_uses(graph)
    modules = _modules(graph)
    members: dict[str, list[Parameter]] = {}
    for name in uses:
        parameter = graph.parameters[name]
        if parameter.trainable:
            key = name
            if per_layer:
                node = uses[name]
                key = modules.get(node, name) if is_anonymous(name) else layer_of(name, node)
            members.setdefault(key, []).append(parameter)
    return tuple(
        Group(key, tuple(group), root_sum_square(Upper(grad_norms[p.name]) for p in group))
        for key, group in members.items()
    )


def first_uses(graph: Graph) -> dict[str, str]:
    """For each parameter, the node that uses it first; parameters no node uses stand last."""
    uses: dict[str, str] = {}
    for use in graph.uses():
        uses.setdefault(use.parameter, use.node.name)
    for name in graph.parameters:
        uses.setdefault(name, "")
    return uses


def _modules(graph: Graph) -> dict[str, str]:
    """Node → what a state_dict calls its module, or the node itself where nothing tells.

    A node of a layer reads parameters of one prefix, or has the path of its module for a name.
    """
    prefixes: dict[str, set[str]] = {}
    for use in graph.uses():
        own = prefixes.setdefault(use.node.name, set())
        if not is_anonymous(use.parameter):
            own.update(filter(None, [use.parameter.rpartition(".")[0]]))
    found = {}
    for node, known in prefixes.items():
        path = module_of(node, graph.parameters) if node.startswith("/") else ""
        found[node] = next(iter(known)) if len(known) == 1 else path or node
    return found


def layer_of(parameter: str, node: str) -> str:
    """The layer of a parameter: its prefix, or the node that uses it first."""
    prefix, dot, _ = parameter.rpartition(".")
    return prefix if dot and prefix else node or parameter
