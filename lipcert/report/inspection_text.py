"""Text of an inspection: what was understood of a file, or every reason why it is refused.

What enters: an `Inspection`. What leaves: text for a terminal; strings of the model are made safe.
"""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from lipcert.report.inspection import Inspection
from lipcert.report.numbers import shape_text
from lipcert.report.safe import safe, shortened
from lipcert.report.text import canvas, diagnostic_lines, table, text_of

__all__ = ["inspection_text"]

_WIDTH: Final = 44


def inspection_text(inspection: Inspection, *, width: int, color: bool) -> str:
    """The whole report."""
    console = canvas(width, color)
    console.print(Text(safe(inspection.path), "bold"))
    if inspection.refusals:
        _refusals(console, inspection)
    else:
        _summary(console, inspection)
        _tables(console, inspection)
    diagnostic_lines(console, inspection.diagnostics)
    return text_of(console)


def _refusals(console: Console, inspection: Inspection) -> None:
    count = len(inspection.refusals)
    console.print(Text(f"refused, for {count} reason{'s' if count > 1 else ''}:", "bold red"))
    for refusal in inspection.refusals:
        where = f" {safe(refusal.node)} ({safe(refusal.op)}):" if refusal.node else ""
        console.print(Text(f"  {safe(refusal.code)}{where} {safe(refusal.reason)}"))
        if refusal.remedy:
            console.print(Text(f"    remedy: {safe(refusal.remedy)}", "dim"))


def _summary(console: Console, inspection: Inspection) -> None:
    opset = ", ".join(f"{domain} {version}" for domain, version in inspection.opset.items())
    size = sum(parameter.size for parameter in inspection.parameters)
    lines = [
        ("producer", f"{inspection.producer or 'not stated'}; opset {opset}"),
        ("sha256", inspection.sha256),
        *(
            ("input", f"{name} {shape_text(shape)} per example")
            for name, shape in inspection.inputs
        ),
        *(("output", f"{name} {shape_text(shape)}") for name, shape in inspection.outputs),
        ("parameters", f"{len(inspection.parameters)} tensors, {size:,} numbers"),
    ]
    if inspection.batch is not None:
        batch = inspection.batch
        lines.append(
            ("examples", f"independent: {batch.status}, axis {batch.axis}; {batch.witness}")
        )
    if inspection.verification is not None:
        run = inspection.verification
        lines.append(
            (
                "checked",
                f"graph against onnxruntime on {run.examples} examples, largest relative "
                f"difference {run.max_difference:.2g}",
            )
        )
    for topic, sentence in lines:
        console.print(Text(f"  {topic:<12}{safe(sentence)}"))


def _tables(console: Console, inspection: Inspection) -> None:
    console.print()
    nodes = [
        (
            shortened(node.name, _WIDTH),
            shortened(node.op, 20),
            shape_text(node.shape),
            shortened(", ".join(node.parameters.values()), _WIDTH),
        )
        for node in inspection.nodes
    ]
    console.print(table(("node", "op", "shape", "parameters"), nodes, left=4))
    console.print()
    parameters = [
        (
            shortened(parameter.name, _WIDTH),
            shape_text(parameter.shape),
            shortened(", ".join(parameter.nodes), _WIDTH),
            f"{parameter.size:,}",
        )
        for parameter in inspection.parameters
    ]
    console.print(table(("parameter", "shape", "used by", "numbers"), parameters, left=3))
