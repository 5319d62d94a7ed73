"""`lipcert analyze`: the sensitivity report of a model."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.data_options import data_options, require_data, some_examples
from lipcert.cli.exit_codes import ExitCode
from lipcert.cli.gate_options import gate_options, gates_of
from lipcert.cli.options import chosen_settings, knob_options, report_options
from lipcert.cli.output import parse_report, text_width, write_reports
from lipcert.process.progress import ProgressReport
from lipcert.report.formats import ANALYSIS_FORMATS, analysis_report
from lipcert.settings.gates import OF_ANALYSES, GateOutcome, worst_of


@click.command("analyze")
@click.argument("model", type=paths.FILE)
@knob_options
@data_options(
    "Measure gradients at these examples (the forms are those of `lipcert audit --data`), which "
    "costs privacy that no ε covers: give public or generated ones.  [default: random admissible]"
)
@gate_options(*OF_ANALYSES)
@report_options(*ANALYSIS_FORMATS)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    model: Path,
    output_format: str,
    out_file: Path | None,
    reports: tuple[str, ...],
    show_all: bool,
    progress: bool | None,
    color: str,
    **words: object,
) -> ExitCode:
    """Bound gradients and sensitivities of MODEL, an ONNX file.

    Every option but those about output is also a key of lipcert.toml and a LIPCERT_* variable.
    Leaves with 0 when the sensitivity is finite and every gate holds, with 1 (after the report)
    when a gate is exceeded, with 3 when there is no finite sensitivity or no number for a gate.
    """
    gates = gates_of(words)
    settings = chosen_settings(context).settings
    destinations = [parse_report(word, ANALYSIS_FORMATS) for word in reports]
    paths.require_model(model)
    require_data(words)
    paths.require_writable([out_file, *(file for _, file in destinations)], [model])
    from lipcert.analysis.pipeline import analyze
    from lipcert.cli.cache import open_cache, with_note
    from lipcert.importer.load import load_under
    from lipcert.search.proposals import proposals

    imported = load_under(model, settings)
    examples = some_examples(words, imported)
    cache = open_cache(settings.cache, os.environ)
    with ProgressReport(progress) as report:
        analysis = analyze(
            imported, settings, report.observe, cache or proposals, examples=examples, gates=gates
        )
    analysis = with_note(analysis, cache)
    rendered = partial(analysis_report, analysis, width=text_width(), show_all=show_all)
    write_reports(rendered, output_format, out_file, destinations, color)
    outcome = worst_of(analysis.gates)
    if outcome is GateOutcome.EXCEEDED:
        return ExitCode.NEGATIVE
    is_known = analysis.network.grad_norm is not None and outcome is GateOutcome.HOLDS
    return ExitCode.HOLDS if is_known else ExitCode.NO_VERDICT
