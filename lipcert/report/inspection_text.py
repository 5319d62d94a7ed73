"""Text of an inspection: what was understood of a file, or every reason why it is refused.

What enters: an `Inspection`. What leaves: text for a terminal; strings of the model are made safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from lipcert.report.inspection import InspectedBatch, InspectedRun, Inspection
from lipcert.report.numbers import shape_text
from lipcert.report.repeated import refusals_told
from lipcert.report.table import Column, print_table
from lipcert.report.text import canvas, diagnostic_lines, text_of, two_columns
from lipcert.safe import safe, shortened

if TYPE_CHECKING:
    from lipcert.importer.outline import Outline

_WIDTH: Final = 44
_NODE_COLUMNS: Final = (
    Column("node", least=12),
    Column("op", least=10),
    Column("shape", rank=1),
    Column("parameters", least=16),
)
_MACRO_COLUMNS: Final = (
    Column("macro layer", least=12),
    Column("in place of", least=12),
    Column("nodes", right=True),
    Column("all of them", rank=1),
)
_PARAMETER_COLUMNS: Final = (
    Column("parameter", least=16),
    Column("shape", rank=1),
    Column("used by", least=10),
    Column("numbers", right=True),
)


def inspection_text(inspection: Inspection, *, width: int, color: bool) -> str:
    """The whole report."""
    console = canvas(width, color)
    console.print(Text(safe(inspection.path), "bold"))
    if inspection.refusals:
        if inspection.outline is not None:
            _outline(console, inspection, inspection.outline)
        _refusals(console, inspection)
    else:
        _summary(console, inspection)
        _tables(console, inspection)
    diagnostic_lines(console, inspection.diagnostics)
    return text_of(console)


def _outline(console: Console, inspection: Inspection, outline: Outline) -> None:
    """What a refused file states."""
    grid = two_columns()
    for topic, sentence in [
        *_origin(inspection),
        *(("input", text) for text in outline.inputs),
        *(("output", name) for name in outline.outputs),
        ("operators", ", ".join(f"{op} {count}" for op, count in outline.ops.items())),
        ("tensors", f"{outline.tensors}, {outline.numbers:,} numbers"),
    ]:
        grid.add_row(Text(f"  {topic}", "dim"), Text(safe(sentence)))
    console.print(grid)
    console.print()


def _origin(inspection: Inspection) -> list[tuple[str, str]]:
    opset = ", ".join(f"{domain} {version}" for domain, version in inspection.opset.items())
    return [
        ("producer", f"{inspection.producer or 'not stated'}; opset {opset}"),
        ("sha256", inspection.sha256),
    ]


def _refusals(console: Console, inspection: Inspection) -> None:
    count = len(inspection.refusals)
    console.print(Text(f"refused, for {count} reason{'s' if count > 1 else ''}:", "bold red"))
    grid = two_columns()
    for line in refusals_told(inspection.refusals):
        where = f"{safe(line.where)}: " if line.where else ""
        grid.add_row(Text(f"  {safe(line.label[0])}"), Text(f"{where}{safe(line.what)}"))
        if line.remedy:
            grid.add_row("", Text(f"remedy: {safe(line.remedy)}", "dim"))
    console.print(grid)
    codes = sorted({refusal.code for refusal in inspection.refusals})
    console.print(Text(f"`lipcert explain {safe(codes[0])}` says more.", "dim"))


def _summary(console: Console, inspection: Inspection) -> None:
    size = sum(parameter.size for parameter in inspection.parameters)
    lines = [
        *_origin(inspection),
        *(
            ("input", f"{name} {shape_text(shape)} per example")
            for name, shape in inspection.inputs
        ),
        *(
            ("output", f"{name} {shape_text(shape)} per example")
            for name, shape in inspection.outputs
        ),
        ("parameters", f"{len(inspection.parameters)} tensors, {size:,} numbers"),
        *(_batch_lines(inspection, inspection.batch) if inspection.batch else ()),
        *(_run_lines(inspection.verification) if inspection.verification else ()),
    ]
    grid = two_columns()
    for topic, sentence in lines:
        grid.add_row(Text(f"  {topic}", "dim"), Text(safe(sentence)))
    console.print(grid)


def _batch_lines(inspection: Inspection, batch: InspectedBatch) -> list[tuple[str, str]]:
    known = "proved" if batch.status == "proved" else f"ASSUMED ({batch.status})"
    if inspection.eval_layers:
        known += ", in eval mode"
    return [
        ("batch", f"axis {batch.axis}; examples independent of each other: {known}"),
        ("witness", batch.witness),
    ]


def _run_lines(run: InspectedRun) -> list[tuple[str, str]]:
    return [
        (
            "checked",
            f"graph against onnxruntime on {run.examples} examples, largest relative difference "
            f"{run.max_difference:.2g}",
        )
    ]


def _tables(console: Console, inspection: Inspection) -> None:
    console.print()
    nodes = [
        (
            shortened(node.name, _WIDTH),
            node.op,
            shape_text(node.shape),
            ", ".join(node.parameters.values()),
        )
        for node in inspection.nodes
    ]
    print_table(console, _NODE_COLUMNS, nodes)
    console.print()
    macros = [
        (item.kind, shortened(item.node, _WIDTH), f"{len(item.nodes)}", ", ".join(item.nodes))
        for item in inspection.macros
    ]
    if macros:
        print_table(console, _MACRO_COLUMNS, macros)
        console.print()
    parameters = [
        (
            shortened(parameter.name, _WIDTH),
            shape_text(parameter.shape),
            ", ".join(parameter.nodes) + (" (folded: not what is trained)" * parameter.folded),
            f"{parameter.size:,}",
        )
        for parameter in inspection.parameters
    ]
    print_table(console, _PARAMETER_COLUMNS, parameters)
