"""An inspection as a document: what was understood of a file, or every reason why it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lipcert.report import document as doc
from lipcert.report.inspection import Inspection
from lipcert.report.numbers import shape_text
from lipcert.report.repeated import diagnostics_told, refusals_told

if TYPE_CHECKING:
    from lipcert.importer.outline import Outline

_WIDTH: Final = 44
_WHOLE: Final = 10**6
_NODE_COLUMNS: Final = (
    doc.Column("node", least=12, most=_WIDTH),
    doc.Column("op", least=10),
    doc.Column("shape", rank=1),
    doc.Column("parameters", least=16, most=_WHOLE),
)
_MACRO_COLUMNS: Final = (
    doc.Column("macro layer", least=12, most=_WHOLE),
    doc.Column("in place of", least=12, most=_WIDTH),
    doc.Column("nodes", is_number=True),
    doc.Column("all of them", most=_WHOLE, rank=1),
)
_PARAMETER_COLUMNS: Final = (
    doc.Column("parameter", least=16, most=_WIDTH),
    doc.Column("shape", rank=1),
    doc.Column("used by", least=10, most=_WHOLE),
    doc.Column("numbers", is_number=True),
)


def inspection_document(inspection: Inspection) -> doc.Document:
    """What people read of an inspection."""
    answers = [doc.Answer(inspection.path, doc.Tone.SUBJECT)]
    diagnostics = doc.Section(
        "Diagnostics", (doc.Findings(diagnostics_told(inspection.diagnostics)),)
    )
    if not inspection.refusals:
        return doc.Document(
            "LipCert inspection",
            tuple(answers),
            doc.Statements.of(list(_summary(inspection))),
            doc.sections_of(
                doc.Section("", (_nodes(inspection),)),
                doc.Section("", (_macros(inspection),)),
                doc.Section("", (_parameters(inspection),)),
                diagnostics,
            ),
        )
    count = len(inspection.refusals)
    outline = inspection.outline
    answers.append(
        doc.Answer(f"refused, for {count} reason{'s' if count > 1 else ''}", doc.Tone.BAD)
    )
    reasons = doc.Findings(refusals_told(inspection.refusals))
    more = doc.explained(min(refusal.code for refusal in inspection.refusals))
    return doc.Document(
        "LipCert inspection",
        tuple(answers),
        doc.Statements.of([] if outline is None else list(_stated(inspection, outline))),
        doc.sections_of(doc.Section("Reasons", (reasons, more)), diagnostics),
    )


def _origin(inspection: Inspection) -> Iterator[tuple[str, str]]:
    opset = ", ".join(f"{domain} {version}" for domain, version in inspection.opset.items())
    yield "producer", f"{inspection.producer or 'not stated'}; opset {opset}"
    yield "sha256", inspection.sha256


def _stated(inspection: Inspection, outline: Outline) -> Iterator[tuple[str, str]]:
    """What a refused file states."""
    yield from _origin(inspection)
    yield from (("input", text) for text in outline.inputs)
    yield from (("output", name) for name in outline.outputs)
    yield "operators", ", ".join(f"{op} {count}" for op, count in outline.ops.items())
    yield "tensors", f"{outline.tensors}, {outline.numbers:,} numbers"


def _summary(inspection: Inspection) -> Iterator[tuple[str, str]]:
    """What was understood of the whole."""
    yield from _origin(inspection)
    for topic, values in (("input", inspection.inputs), ("output", inspection.outputs)):
        yield from ((topic, f"{name} {shape_text(shape)} per example") for name, shape in values)
    size = sum(parameter.size for parameter in inspection.parameters)
    yield "parameters", f"{len(inspection.parameters)} tensors, {size:,} numbers"
    batch, run = inspection.batch, inspection.verification
    if batch is not None:
        known = "proved" if batch.status == "proved" else f"ASSUMED ({batch.status})"
        known += ", in eval mode" if inspection.eval_layers else ""
        yield "batch", f"axis {batch.axis}; examples independent of each other: {known}"
        yield "witness", batch.witness
    if run is not None:
        yield (
            "checked",
            f"graph against onnxruntime on {run.examples} examples, largest relative difference "
            f"{run.max_difference:.2g}",
        )


def _nodes(inspection: Inspection) -> doc.Table:
    rows = [
        (item.name, item.op, shape_text(item.shape), ", ".join(item.parameters.values()))
        for item in inspection.nodes
    ]
    return doc.table(_NODE_COLUMNS, rows)


def _macros(inspection: Inspection) -> doc.Table:
    rows = [
        (item.kind, item.node, f"{len(item.nodes)}", ", ".join(item.nodes))
        for item in inspection.macros
    ]
    return doc.table(_MACRO_COLUMNS, rows)


def _parameters(inspection: Inspection) -> doc.Table:
    rows = [
        (
            item.name,
            shape_text(item.shape),
            ", ".join(item.nodes) + (" (folded: not what is trained)" * item.folded),
            f"{item.size:,}",
        )
        for item in inspection.parameters
    ]
    return doc.table(_PARAMETER_COLUMNS, rows)
