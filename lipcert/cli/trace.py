"""`lipcert trace`: describe a recorded run, verify it, or copy it without the data."""

from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.options import output_options
from lipcert.cli.output import Output
from lipcert.errors import ExitCode

_FOLDER = click.argument("folder", metavar="DIR", type=paths.FILE)


@click.group("trace")
def command() -> None:
    """Work on a recorded run, as lipcert.Recorder writes it."""


@command.command("info")
@_FOLDER
@output_options("text", "json", file=False, color=True)
def info(folder: Path, result: Output) -> ExitCode:
    """Describe the trace in DIR: steps, sampling, noise, tensors."""
    paths.require_folder(folder)
    from lipcert.audit.trace.reading import read_trace
    from lipcert.report.trace import summary_document, summary_json, summary_of

    summary = summary_of(read_trace(folder))
    result.show(summary_document, str(folder), summary, json=summary_json)
    return ExitCode.HOLDS if sum(summary.steps) else ExitCode.NO_VERDICT


@command.command("verify")
@_FOLDER
@output_options("text", "json", file=False, color=True)
def verify_trace(folder: Path, result: Output) -> ExitCode:
    """Read every line and every tensor of the trace in DIR.

    Exits with 1 if the chain is broken or a tensor is missing or corrupt, each with its file and
    line; with 3 if there is no trace, or no step in it.
    """
    paths.require_folder(folder)
    from lipcert.audit.trace.reading import verify
    from lipcert.report.trace import verification_document, verification_json

    found = verify(folder)
    result.show(verification_document, str(folder), found, json=verification_json)
    if found.faults:
        return ExitCode.NEGATIVE
    return ExitCode.HOLDS if found.steps else ExitCode.NO_VERDICT


@command.command("redact")
@_FOLDER
@click.option("-o", "--out", "out", required=True, type=paths.FILE, help="A new folder.")
@click.option("--keep-weights", is_flag=True, help="Keep the recorded weights.")
@output_options("text", "json", file=False)
def redact_trace(folder: Path, out: Path, keep_weights: bool, result: Output) -> ExitCode:
    """Copy the trace in DIR without inputs, labels, gradients, logits and weights.

    Steps, rates, losses of batches, noise and norms are kept; indices become random tags. What is
    kept was computed from private data and is not differentially private.
    """
    paths.require_folder(folder)
    from lipcert.audit.trace.reading import verify
    from lipcert.audit.trace.redaction import redact
    from lipcert.report.trace import redaction_document, redaction_json

    redact(folder, out, keep_weights=keep_weights)
    found = verify(out)
    result.show(redaction_document, str(out), found, json=redaction_json)
    return ExitCode.NEGATIVE if found.faults else ExitCode.HOLDS
