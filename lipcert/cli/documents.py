"""Verbs that read no network: compare, report, trace and config."""

import math
from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.options import chosen_settings, knob_options, output_options
from lipcert.cli.output import Output, write
from lipcert.errors import ExitCode, UsageError
from lipcert.report.document import one_line
from lipcert.report.json import dump
from lipcert.settings.written import plain
from lipcert.text.safe import safe

_FOLDER = click.argument("folder", metavar="DIR", type=paths.FILE)


@click.command("compare")
@click.argument("old", type=paths.FILE)
@click.argument("new", type=paths.FILE)
@click.option("--fail-on-regression", is_flag=True, help="Exit with 1 if NEW states less.")
@click.option(
    "--tolerance",
    type=float,
    default=0.0,
    show_default=True,
    help="By what fraction a bound may grow without being a regression (0.01: one per cent).",
)
@output_options("text", "json", "markdown")
def compare(
    *,
    old: Path,
    new: Path,
    fail_on_regression: bool,
    tolerance: float,
    result: Output,
) -> ExitCode:
    """Compare OLD with NEW: two certificates, or two files of `lipcert analyze --format json`.

    A regression is a bound or an ε that grew or disappeared, a noise multiplier that fell, or an
    assumption that was added or changed, unless it assumes less than before. This compares what the
    files state, not whether it is true: for certificates, `lipcert check` decides that.
    """
    if not 0.0 <= tolerance < math.inf:
        raise UsageError("--tolerance: give a number of at least 0, say 0.01")
    result.require_writable([old, new])
    from lipcert.report.comparison import (
        compared,
        comparison_document,
        comparison_json,
        read_statement,
    )

    statements = []
    for path in (old, new):
        data, document = paths.read_json(path)
        statements.append(read_statement(str(path), document, data))
    comparison = compared(statements[0], statements[1], tolerance)
    result.show(comparison_document, comparison, json=comparison_json)
    if fail_on_regression and comparison.regression:
        return ExitCode.NEGATIVE
    return ExitCode.HOLDS


@click.command("report")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=paths.FILE)
@output_options("html", "markdown", "json", default="html")
def report(*, inputs: tuple[Path, ...], result: Output) -> ExitCode:
    """Make one report from INPUTs: certificates, and results that verbs wrote as JSON.

    Reads results of analyze, check, audit and privacy, one of each, all about the same model. HTML
    is one file with charts, without scripts; JSON has all documents in one. Exits with 0 if the
    report is written, whatever it says: the verbs themselves judge.
    """
    result.require_writable(inputs)
    from lipcert.report.sources import joined, read_source, study_report

    sources = []
    for name in inputs:
        data, document = paths.read_json(name)
        sources.append(read_source(str(name), document, data))
    study = joined(sources)
    result.write(lambda name, _: study_report(study, name))
    return ExitCode.HOLDS


@click.group("trace")
def trace() -> None:
    """Work on a recorded run, as lipcert.Recorder writes it."""


@trace.command("info")
@_FOLDER
@output_options("text", "json", file=False, color=True)
def info(folder: Path, result: Output) -> ExitCode:
    """Describe the trace in DIR: steps, sampling, noise, tensors."""
    paths.require_folder(folder)
    from lipcert.audit.trace.reading import read_trace
    from lipcert.report.trace import summary_document, summary_of

    summary = summary_of(str(folder), read_trace(folder))
    result.show(summary_document, summary, json=dump)
    return ExitCode.HOLDS if summary["steps"] else ExitCode.NO_VERDICT


@trace.command("verify")
@_FOLDER
@output_options("text", "json", file=False, color=True)
def verify_trace(folder: Path, result: Output) -> ExitCode:
    """Read every line and every tensor of the trace in DIR.

    Exits with 1 if the chain is broken or a tensor is missing or corrupt, each with its file and
    line; with 3 if there is no trace, or no step in it.
    """
    paths.require_folder(folder)
    from lipcert.audit.trace.reading import verify
    from lipcert.report.trace import verification_document, verification_of

    found = verify(folder)
    result.show(verification_document, verification_of(str(folder), found), json=dump)
    if found.faults:
        return ExitCode.NEGATIVE
    return ExitCode.HOLDS if found.steps else ExitCode.NO_VERDICT


@trace.command("redact")
@_FOLDER
@click.option("-o", "--out", "out", required=True, type=paths.FILE, help="A new folder.")
@click.option("--keep-weights", is_flag=True, help="Keep the recorded weights.")
@output_options("text", "json", file=False)
def redact_trace(folder: Path, out: Path, keep_weights: bool, result: Output) -> ExitCode:
    """Copy the trace in DIR without inputs, labels, gradients, logits and weights.

    Steps, rates, losses of batches and noise are kept; indices become random tags. What is
    kept was computed from private data and is not differentially private.
    """
    paths.require_folder(folder)
    from lipcert.audit.trace.reading import verify
    from lipcert.audit.trace.redaction import redact
    from lipcert.report.trace import redaction_document, redaction_of

    redact(folder, out, keep_weights=keep_weights)
    found = verify(out)
    result.show(redaction_document, redaction_of(str(out), found), json=dump)
    return ExitCode.NEGATIVE if found.faults else ExitCode.HOLDS


@click.group("config")
def config() -> None:
    """Settings: command line, LIPCERT_* environment, TOML file, defaults."""


@config.command("show")
@knob_options
@output_options("text", "json", file=False)
@click.pass_context
def show(context: click.Context, /, result: Output, **_: object) -> ExitCode:
    """Print the effective value of every setting and where it comes from."""
    effective = chosen_settings(context)
    found = {
        key: {"value": plain(name, getattr(effective.settings, name)), "source": origin}
        for key, origin in effective.origins.items()
        for name in [key.replace("-", "_")]
    }
    if result.format == "json":
        write(dump({"schema": "lipcert.config/1", "settings": found}))
        return ExitCode.HOLDS
    for key, item in found.items():
        value, source = safe(one_line(item["value"])), safe(str(item["source"]))
        write(f"{key:<18}{value:<24}  {source}\n")
    return ExitCode.HOLDS
