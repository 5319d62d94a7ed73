"""`lipcert analyze`: the sensitivity report of a model."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.exit_codes import ExitCode
from lipcert.cli.options import chosen_settings, knob_options, report_options
from lipcert.cli.output import parse_report, text_width, write_reports
from lipcert.progress import ProgressReport
from lipcert.report.formats import ANALYSIS_FORMATS, analysis_report


@click.command("analyze")
@click.argument("model", type=click.Path(path_type=Path))
@knob_options
@report_options(*ANALYSIS_FORMATS)
@click.pass_context
def command(
    context: click.Context,
    *,
    model: Path,
    output_format: str,
    out_file: Path | None,
    reports: tuple[str, ...],
    show_all: bool,
    progress: bool | None,
    color: str,
) -> ExitCode:
    """Bound gradients and sensitivities of MODEL, an ONNX file.

    Every option but those about output is also a key of lipcert.toml and a LIPCERT_* variable.
    Leaves with 0 when the sensitivity is finite, with 3 (after the report) when it is not.
    """
    settings = chosen_settings(context).settings
    destinations = [parse_report(word, ANALYSIS_FORMATS) for word in reports]
    paths.require_model(model)
    paths.require_writable([out_file, *(file for _, file in destinations)])
    from lipcert.analysis.pipeline import analyze
    from lipcert.cli.cache import open_cache, with_note
    from lipcert.importer.load import load_model
    from lipcert.search.proposals import proposals

    imported = load_model(
        model,
        output=settings.output,
        as_exported=settings.as_exported,
        input_norm=settings.input_norm,
        input_box=settings.input_box,
    )
    cache = open_cache(settings.cache, os.environ)
    with ProgressReport(progress) as report:
        analysis = analyze(imported, settings, report.observe, cache or proposals)
    analysis = with_note(analysis, cache)
    rendered = partial(analysis_report, analysis, width=text_width(), show_all=show_all)
    write_reports(rendered, output_format, out_file, destinations, color)
    return ExitCode.HOLDS if analysis.network.grad_norm is not None else ExitCode.NO_VERDICT
