"""`lipcert analyze`: report the sensitivity of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lipcert.cli import paths
from lipcert.cli.options import (
    chosen_settings,
    data_options,
    gate_options,
    gates_of,
    knob_options,
    output_options,
    require_data,
    some_examples,
)
from lipcert.cli.output import ANALYSIS_FORMATS, FOLDED, Output
from lipcert.errors import ExitCode
from lipcert.process.progress import ProgressReport
from lipcert.settings.gates import OF_ANALYSES, GateOutcome, worst_of

if TYPE_CHECKING:
    from lipcert.analysis.records import Analysis


@click.command("analyze")
@click.argument("model", type=paths.FILE)
@knob_options
@data_options(
    "Measure gradients at these examples (the forms are those of `lipcert audit --data`), which "
    "costs privacy that no ε covers: give public or generated ones.  [default: random admissible]"
)
@gate_options(*OF_ANALYSES)
@output_options(*ANALYSIS_FORMATS, further=True, show_all=True, progress=True, color=True)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    model: Path,
    result: Output,
    **words: object,
) -> ExitCode:
    """Bound gradients and sensitivities of MODEL, an ONNX file.

    Every option but those about output is also a key of lipcert.toml and a LIPCERT_* variable.
    Exits with 0 if the sensitivity is finite and every gate holds, with 1 (after the report) if a
    gate is exceeded, with 3 if there is no finite sensitivity or no number for a gate.
    """
    gates = gates_of(words)
    settings = chosen_settings(context).settings
    paths.require_model(model)
    require_data(words)
    result.require_writable([model])
    from lipcert.analysis.pipeline import analyze
    from lipcert.importer.load import load_under
    from lipcert.report.analysis import analysis_ci, analysis_csv, analysis_document, analysis_json

    imported = load_under(model, settings)
    examples = some_examples(words, imported)
    with ProgressReport(result.progress) as report:
        analysis = analyze(imported, settings, report.observe, examples=examples, gates=gates)
    result.show(
        analysis_document,
        analysis,
        ci=analysis_ci,
        most={"text": FOLDED},
        json=analysis_json,
        csv=analysis_csv,
        html=_page,
    )
    outcome = worst_of(analysis.gates)
    if outcome is GateOutcome.EXCEEDED:
        return ExitCode.NEGATIVE
    is_known = analysis.network.grad_norm is not None and outcome is GateOutcome.HOLDS
    return ExitCode.HOLDS if is_known else ExitCode.NO_VERDICT


def _page(analysis: Analysis) -> str:
    from lipcert.report.analysis import analysis_json
    from lipcert.report.sources import page_of  # charts, and all that may be on a page

    return page_of(analysis_json(analysis))
