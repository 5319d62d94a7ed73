"""Inspection: what `lipcert inspect` understood of a file, as a record, as JSON and for readers.

A refused model has an empty graph, and `refusals` that say why. `export_advice` says what a file
lost on its way out of a module: from the findings whose remedy is to export again, it takes what
each means, and the line of Python that exports again.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lipcert.core.codec import member
from lipcert.diagnostics import CODES, EXPORT, Diagnostic
from lipcert.errors import Refusal, UnsupportedModelError
from lipcert.graph.ir import BatchProof, EvalLayer, Graph, Node
from lipcert.importer.model import ImportedModel, MacroLayer, Outline, Verification
from lipcert.report import document as doc
from lipcert.report.json import DOCUMENT, dump
from lipcert.text.numbers import counted, shape_text

_TORCH: Final = "pytorch"
_TORCHSCRIPT: Final = (
    "TorchScript's exporter wrote the file (dynamo=False)",
    "it does not say which tensors are parameters, so their names decide",
)


@dataclass(frozen=True, slots=True)
class ExportMistake:
    """One mistake. code: of the finding, or ""; done: what that means; why: what was found."""

    code: str
    done: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ExportAdvice:
    """What to do differently, and the line of Python that does all of it (`EXPORT`, filled in)."""

    mistakes: tuple[ExportMistake, ...]
    again: str


def export_advice(
    path: str, findings: Iterable[Diagnostic | Refusal], producer: str = "", *, signed: bool = True
) -> ExportAdvice | None:
    """Return advice for a file that torch wrote, or may have; None if it could not be better.

    signed: whether the exporter says which tensors are parameters.
    """
    if not _TORCH.startswith(producer.partition(" ")[0]):
        return None
    mistakes = {}
    for item in findings:
        if EXPORT in item.remedy:
            why = item.message if isinstance(item, Diagnostic) else item.reason
            done = CODES[item.code].rstrip(".")
            mistakes[item.code] = ExportMistake(item.code, done, why, item.remedy)
    if not signed:
        mistakes[""] = ExportMistake("", *_TORCHSCRIPT, EXPORT)
    again = EXPORT.replace('"net.onnx"', json.dumps(Path(path).name))
    return ExportAdvice(tuple(mistakes.values()), again) if mistakes else None


Shape = tuple[int, ...]
_WIDTH: Final = 44
_FACTS: Final = (
    *("producer", "opset", "sha256", "inputs", "outputs", "ops", "tensors", "numbers", "batch"),
    *("eval_mode", "fixed", "verification"),
)
"""Members of the document that readers see as they are."""
_WHOLE: Final = 10**6


@dataclass(frozen=True, slots=True)
class InspectedNode:
    """One use of an op; parameters: slot → name of the trained tensor."""

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str
    shape: Shape
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InspectedParameter:
    """One tensor and the nodes that use it; folded: computed from trained tensors."""

    name: str
    shape: Shape
    size: int
    trainable: bool
    folded: bool
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InspectedValue:
    """An input or output, and its shape in one example."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that was understood, or why nothing was."""

    path: str = field(metadata=member("model.path"))
    sha256: str = field(default="", metadata=member("model.sha256"))
    size: int = field(default=0, metadata=member("model.parameters"))
    opset: Mapping[str, int] = field(default_factory=dict, metadata=member("model.opset"))
    producer: str = field(default="", metadata=member("model.producer"))
    inputs: tuple[InspectedValue, ...] = ()
    outputs: tuple[InspectedValue, ...] = ()
    nodes: tuple[InspectedNode, ...] = ()
    parameters: tuple[InspectedParameter, ...] = ()
    macros: tuple[MacroLayer, ...] = field(default=(), metadata=member("macro_layers"))
    outline: Outline | None = None
    batch: BatchProof | None = None
    eval_layers: tuple[EvalLayer, ...] = field(
        default=(), metadata=member("eval_mode", optional=True)
    )
    fixed: Mapping[str, str] = field(default_factory=dict, metadata=member(optional=True))
    export: ExportAdvice | None = field(default=None, metadata=member(optional=True))
    verification: Verification | None = None
    refusals: tuple[Refusal, ...] = field(default=(), metadata=member("unsupported"))
    diagnostics: tuple[Diagnostic, ...] = ()


def inspection_json(inspection: Inspection) -> str:
    """Return the document `lipcert.inspection/1` of an inspection."""
    return dump({"schema": "lipcert.inspection/1", **DOCUMENT.write(inspection)})


def refused_inspection(
    path: str, error: UnsupportedModelError, outline: Outline | None = None
) -> Inspection:
    """Return the inspection of a refused model: every reason, and what the file states."""
    stated = outline or Outline("", "", {}, (), (), {}, 0, 0)
    return Inspection(
        path=path,
        sha256=stated.sha256,
        producer=stated.producer,
        opset=stated.opset,
        outline=outline,
        refusals=error.refusals,
        export=export_advice(path, error.refusals, stated.producer, signed=stated.signed),
    )


def inspection_of(model: ImportedModel) -> Inspection:
    """Return the inspection of a model that was imported."""
    graph = model.graph
    parameters = _parameters(graph)
    return Inspection(
        path=model.path,
        sha256=model.sha256,
        size=sum(parameter.size for parameter in parameters),
        opset=model.opset,
        producer=model.producer,
        inputs=_values(graph.arrays or ((graph.input_name, graph.input_shape),)),
        outputs=_values(graph.outputs),
        nodes=_nodes(graph),
        parameters=parameters,
        macros=model.macros,
        batch=model.batch,
        eval_layers=graph.eval_layers,
        fixed=graph.fixed,
        export=export_advice(model.path, model.diagnostics, model.producer, signed=model.signed),
        verification=model.verification,
        diagnostics=model.diagnostics,
    )


def _values(found: Iterable[tuple[str, Shape]]) -> tuple[InspectedValue, ...]:
    return tuple(InspectedValue(name, shape) for name, shape in found)


def _nodes(graph: Graph) -> tuple[InspectedNode, ...]:
    return tuple(
        InspectedNode(node.name, node.kind, node.inputs, node.output, node.shape, _named(node))
        for node in graph.nodes
    )


def _parameters(graph: Graph) -> tuple[InspectedParameter, ...]:
    users: dict[str, list[str]] = {name: [] for name in graph.parameters}
    for node in graph.nodes:
        for name in sorted(set(_named(node).values())):
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


def _named(node: Node) -> dict[str, str]:
    return {use.slot: use.parameter for use in node.uses()}


def _used_by(item: InspectedParameter) -> str:
    return ", ".join(item.nodes) + (" (folded: not what is trained)" * item.folded)


_NODE_COLUMNS: Final = (
    doc.Column("node", least=12, most=_WIDTH, cell=lambda node: node.name),
    doc.Column("op", least=10, cell=lambda node: node.op),
    doc.Column("shape", rank=1, cell=lambda node: shape_text(node.shape)),
    doc.Column(
        "parameters", least=16, most=_WHOLE, cell=lambda node: ", ".join(node.parameters.values())
    ),
)
_MACRO_COLUMNS: Final = (
    doc.Column("macro layer", least=12, most=_WHOLE, cell=lambda layer: layer.kind),
    doc.Column("in place of", least=12, most=_WIDTH, cell=lambda layer: layer.node),
    doc.Column("nodes", is_number=True, cell=lambda layer: f"{len(layer.nodes)}"),
    doc.Column("all of them", most=_WHOLE, rank=1, cell=lambda layer: ", ".join(layer.nodes)),
)
_PARAMETER_COLUMNS: Final = (
    doc.Column("parameter", least=16, most=_WIDTH, cell=lambda item: item.name),
    doc.Column("shape", rank=1, cell=lambda item: shape_text(item.shape)),
    doc.Column("used by", least=10, most=_WHOLE, cell=_used_by),
    doc.Column("numbers", is_number=True, cell=lambda item: f"{item.size:,}"),
    doc.Column("trained", cell=lambda item: "yes" if item.trainable else "frozen"),
)


def inspection_document(inspection: Inspection) -> doc.Document:
    """Return an inspection as a document."""
    members = DOCUMENT.write(inspection)
    members |= {"tensors": len(inspection.parameters), "numbers": inspection.size}
    members |= members.pop("model") | (members.pop("outline") or {})
    facts = {name: members[name] for name in _FACTS if members.get(name) not in (None, [], {}, "")}
    answers = [doc.Answer(inspection.path, doc.Tone.SUBJECT)]
    reasons, more, export = doc.Findings(()), doc.Commands(()), inspection.export
    if inspection.refusals:
        head = f"refused, for {counted(len(inspection.refusals), 'reason')}"
        answers.append(doc.Answer(head, doc.Tone.BAD))
        reasons = doc.Findings.of(inspection.refusals)
        more = doc.explained(min(refusal.code for refusal in inspection.refusals))
    unsaid = [x for x in (export.mistakes if export else ()) if not x.code]
    again = [("again, from the module in Python", export.again)] if export else []
    return doc.Document(
        "LipCert inspection",
        tuple(answers),
        doc.Statements.of(doc.described(facts)),
        doc.sections_of(
            (
                "Export",
                doc.Listing(tuple(f"{item.done}; {item.why}" for item in unsaid)),
                doc.Commands(tuple(again)),
            ),
            ("Reasons", reasons, more),
            ("", doc.tabled(_NODE_COLUMNS, inspection.nodes)),
            ("", doc.tabled(_MACRO_COLUMNS, inspection.macros)),
            ("", doc.tabled(_PARAMETER_COLUMNS, inspection.parameters)),
            ("Diagnostics", doc.Findings.of(inspection.diagnostics)),
        ),
    )
