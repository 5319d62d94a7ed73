"""`lipcert analyze`: the sensitivity report of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from lipcert.cli import paths
from lipcert.cli.exit_codes import ExitCode
from lipcert.cli.options import chosen_settings, knob_options, report_options
from lipcert.cli.output import parse_report, text_width, use_color, write
from lipcert.progress import ProgressReport

if TYPE_CHECKING:
    from lipcert.analysis.records import Analysis

_FORMATS: Final = ("text", "json", "markdown", "csv", "html", "sarif", "junit", "github")


@click.command("analyze")
@click.argument("model", type=click.Path(path_type=Path))
@knob_options
@report_options(*_FORMATS)
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
    destinations = [parse_report(word, _FORMATS) for word in reports]
    paths.require_model(model)
    paths.require_writable([out_file, *(file for _, file in destinations)])
    from lipcert.analysis.pipeline import analyze
    from lipcert.importer.load import load_model

    imported = load_model(
        model,
        output=settings.output,
        as_exported=settings.as_exported,
        input_norm=settings.input_norm,
        input_box=settings.input_box,
    )
    with ProgressReport(progress) as report:
        analysis = analyze(imported, settings, report.observe)
    for name, file in destinations:
        write(_rendered(analysis, name, False, show_all), file)
    coloured = out_file is None and use_color(color)
    write(_rendered(analysis, output_format, coloured, show_all), out_file)
    return ExitCode.HOLDS if analysis.network.grad_norm is not None else ExitCode.NO_VERDICT


def _rendered(analysis: Analysis, output_format: str, color: bool, show_all: bool) -> str:
    match output_format:
        case "json":
            from lipcert.report.json import analysis_json

            return analysis_json(analysis)
        case "markdown":
            from lipcert.report.markdown import analysis_markdown

            return analysis_markdown(analysis)
        case "html":
            from lipcert.report.html.writing import study_html
            from lipcert.report.study.joining import analysis_study

            return study_html(analysis_study(analysis))
        case "sarif" | "junit" | "github":
            from lipcert.report.analysis_ci import analysis_ci
            from lipcert.report.ci_formats import ci_text

            return ci_text(analysis_ci(analysis), output_format)
        case "csv":
            from lipcert.report.csv import analysis_csv

            return analysis_csv(analysis)
        case _:
            from lipcert.report.text import analysis_text

            return analysis_text(analysis, width=text_width(), color=color, show_all=show_all)
