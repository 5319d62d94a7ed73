"""`lipcert trace`: say what a recorded run holds, verify it, and make a copy without the data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lipcert.cli import paths
from lipcert.cli.exit_codes import ExitCode
from lipcert.cli.options import color_option, format_option
from lipcert.cli.output import text_width, use_color, write
from lipcert.report.formats import document_text

if TYPE_CHECKING:
    from lipcert.report.document import Document

_FOLDER = click.argument("folder", metavar="DIR", type=paths.FILE)


@click.group("trace")
def command() -> None:
    """A recorded run: what lipcert.Recorder wrote."""


@command.command("info")
@_FOLDER
@format_option("text", "json", of_file=False)
@color_option
def info(folder: Path, output_format: str, color: str) -> ExitCode:
    """Say what the trace in DIR holds: steps, sampling, noise, tensors."""
    paths.require_folder(folder)
    from lipcert.audit.trace.reading import read_trace
    from lipcert.audit.trace.summary import summary_of
    from lipcert.report.trace import summary_document, summary_json

    summary = summary_of(read_trace(folder))
    if output_format == "json":
        write(summary_json(str(folder), summary))
    else:
        write(_text(summary_document(str(folder), summary), color))
    return ExitCode.HOLDS if sum(summary.steps) else ExitCode.NO_VERDICT


@command.command("verify")
@_FOLDER
@format_option("text", "json", of_file=False)
@color_option
def verify_trace(folder: Path, output_format: str, color: str) -> ExitCode:
    """Read every line and every tensor of the trace in DIR.

    Leaves with 1 where the chain is broken or a tensor is missing or corrupt, each with its file
    and line; with 3 where there is no trace, or no step in it.
    """
    paths.require_folder(folder)
    from lipcert.audit.trace.verification import verify
    from lipcert.report.trace import verification_document, verification_json

    found = verify(folder)
    if output_format == "json":
        write(verification_json(str(folder), found))
    else:
        write(_text(verification_document(str(folder), found), color))
    if found.faults:
        return ExitCode.NEGATIVE
    return ExitCode.HOLDS if found.steps else ExitCode.NO_VERDICT


@command.command("redact")
@_FOLDER
@click.option("-o", "--out", "out", required=True, type=paths.FILE, help="A new folder.")
@click.option("--keep-weights", is_flag=True, help="Keep the recorded weights.")
@format_option("text", "json", of_file=False)
def redact_trace(folder: Path, out: Path, keep_weights: bool, output_format: str) -> ExitCode:
    """Copy the trace in DIR without inputs, labels, gradients, logits and weights.

    Steps, rates, losses of batches, noise and norms are kept; indices become random tags. What is
    kept was computed from private data and is not differentially private.
    """
    paths.require_folder(folder)
    from lipcert.audit.trace.redaction import redact
    from lipcert.audit.trace.verification import verify
    from lipcert.report.trace import redaction_document, redaction_json

    redact(folder, out, keep_weights=keep_weights)
    found = verify(out)
    write(
        redaction_json(str(out), found)
        if output_format == "json"
        else _text(redaction_document(str(out), found), "never")
    )
    return ExitCode.NEGATIVE if found.faults else ExitCode.HOLDS


def _text(document: Document, color: str) -> str:
    return document_text(document, "text", width=text_width(), color=use_color(color))
