"""`lipcert analyze`: the sensitivity report of a model."""

from __future__ import annotations

from pathlib import Path

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
from lipcert.cli.output import Output
from lipcert.errors import ExitCode
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
    Exits with 0 when the sensitivity is finite and every gate holds, with 1 (after the report)
    when a gate is exceeded, with 3 when there is no finite sensitivity or no number for a gate.
    """
    gates = gates_of(words)
    settings = chosen_settings(context).settings
    paths.require_model(model)
    require_data(words)
    result.require_writable([model])
    from lipcert.analysis.pipeline import analyze
    from lipcert.importer.load import load_under

    imported = load_under(model, settings)
    examples = some_examples(words, imported)
    with ProgressReport(result.progress) as report:
        analysis = analyze(imported, settings, report.observe, examples=examples, gates=gates)
    result.report(analysis_report, analysis)
    outcome = worst_of(analysis.gates)
    if outcome is GateOutcome.EXCEEDED:
        return ExitCode.NEGATIVE
    is_known = analysis.network.grad_norm is not None and outcome is GateOutcome.HOLDS
    return ExitCode.HOLDS if is_known else ExitCode.NO_VERDICT
