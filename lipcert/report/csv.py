"""CSV report: one table, one row per trained tensor of the file, for spreadsheets and scripts.

What enters: an analysis. What leaves: RFC 4180 text with the header `COLUMNS`; numbers in full
precision, an empty field for "no bound" and for what a frozen parameter does not have. Names are
made safe, and one that a spreadsheet would take for a formula starts with an apostrophe. Nodes
and assumptions are in the other formats.
"""

from __future__ import annotations

import csv
import io
from typing import Final

from lipcert.analysis.records import Analysis
from lipcert.safe import safe

COLUMNS: Final = (
    "parameter",
    "shape",
    "node",
    "group",
    "trainable",
    "grad_norm",
    "sensitivity",
    "noise_std",
)


def analysis_csv(analysis: Analysis) -> str:
    """The table of parameters."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for parameter in analysis.parameters:
        writer.writerow(
            (
                _name(parameter.name),
                "x".join(str(size) for size in parameter.shape),
                _name(parameter.node),
                _name(parameter.group or ""),
                "yes" if parameter.trainable else "no",
                _number(parameter.grad_norm),
                _number(parameter.sensitivity),
                _number(parameter.noise_std),
            )
        )
    return buffer.getvalue()


def _name(text: str) -> str:
    text = safe(text)
    return f"'{text}" if text.lstrip()[:1] in {"=", "+", "-", "@"} else text


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))
