"""Inspection: what `lipcert inspect` understood of a file, as a plain record for the reports.

What enters: an imported model, or the error that refused it. What leaves: an `Inspection`; for a
refused model the graph is empty and `refusals` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from lipcert.diagnostics import Diagnostic
from lipcert.errors import Refusal, UnsupportedModelError

if TYPE_CHECKING:
    from lipcert.importer.model import ImportedModel
    from lipcert.importer.outline import Outline
    from lipcert.ir import Graph
    from lipcert.modes import EvalLayer
    from lipcert.ops.base import Op

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class InspectedNode:
    """One use of an op; parameters: slot → name of the trained tensor."""

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str
    shape: Shape
    parameters: Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class InspectedParameter:
    """One tensor and the nodes that use it; folded: computed from what is trained."""

    name: str
    shape: Shape
    size: int
    trainable: bool
    folded: bool
    nodes: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class InspectedMacro:
    """An op that several nodes of the file spell out."""

    kind: str
    node: str
    nodes: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class InspectedBatch:
    """How it is known that examples stay independent."""

    status: str
    axis: int
    witness: str


@final
@dataclass(frozen=True, slots=True)
class InspectedRun:
    """The comparison with onnxruntime."""

    examples: int
    max_difference: float


@final
@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that was understood, or why nothing was."""

    path: str
    sha256: str = ""
    producer: str = ""
    opset: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[tuple[str, Shape], ...] = ()
    outputs: tuple[tuple[str, Shape], ...] = ()
    nodes: tuple[InspectedNode, ...] = ()
    parameters: tuple[InspectedParameter, ...] = ()
    batch: InspectedBatch | None = None
    verification: InspectedRun | None = None
    macros: tuple[InspectedMacro, ...] = ()
    outline: Outline | None = None
    refusals: tuple[Refusal, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    eval_layers: tuple[EvalLayer, ...] = ()


def refused_inspection(
    path: str, error: UnsupportedModelError, outline: Outline | None = None
) -> Inspection:
    """The inspection of a model that is refused: every reason, and what the file states."""
    if outline is None:
        return Inspection(path, refusals=error.refusals)
    return Inspection(
        path=path,
        sha256=outline.sha256,
        producer=outline.producer,
        opset=outline.opset,
        outline=outline,
        refusals=error.refusals,
    )


def inspection_of(model: ImportedModel) -> Inspection:
    """The inspection of a model that was imported."""
    graph, batch, run = model.graph, model.batch, model.verification
    return Inspection(
        path=model.path,
        sha256=model.sha256,
        producer=model.producer,
        opset=model.opset,
        inputs=((graph.input_name, graph.input_shape),),
        outputs=((graph.output_name, graph.output_shape),),
        nodes=_nodes(graph),
        parameters=_parameters(graph),
        batch=InspectedBatch(batch.status.value, batch.axis, batch.witness),
        verification=InspectedRun(run.examples, run.max_difference),
        macros=tuple(InspectedMacro(item.kind, item.node, item.nodes) for item in model.macros),
        diagnostics=model.diagnostics,
        eval_layers=model.graph.eval_layers,
    )


def _nodes(graph: Graph) -> tuple[InspectedNode, ...]:
    return tuple(
        InspectedNode(
            node.name, node.op.kind, node.inputs, node.output, node.shape, dict(_named(node.op))
        )
        for node in graph.nodes
    )


def _parameters(graph: Graph) -> tuple[InspectedParameter, ...]:
    users: dict[str, list[str]] = {name: [] for name in graph.parameters}
    for node in graph.nodes:
        for name in sorted(set(_named(node.op).values())):
            users[name].append(node.name)
    return tuple(
        InspectedParameter(
            name=name,
            shape=parameter.shape,
            size=parameter.size,
            trainable=parameter.trainable,
            folded=parameter.folded,
            nodes=tuple(users[name]),
        )
        for name, parameter in graph.parameters.items()
    )


def _named(op: Op) -> dict[str, str]:
    return {
        slot: operand.parameter
        for slot, operand in op.operands().items()
        if operand.parameter is not None
    }
