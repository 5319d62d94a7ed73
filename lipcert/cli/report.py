"""`lipcert report`: make one page from what the other verbs wrote about a model."""

from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.options import output_options
from lipcert.cli.output import Output
from lipcert.errors import ExitCode


@click.command("report")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=paths.FILE)
@output_options("html", "markdown", "json", default="html")
def command(*, inputs: tuple[Path, ...], result: Output) -> ExitCode:
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
