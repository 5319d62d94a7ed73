"""Verbs that read a network: inspect, analyze, suggest, certify, explain.

What computes is imported when a verb runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.options import (
    chosen_settings,
    data_options,
    gate_options,
    gates_of,
    given,
    knob_options,
    option,
    output_options,
    require_data,
    some_examples,
)
from lipcert.cli.output import (
    ANALYSIS_FORMATS,
    BOUND_FORMATS,
    FOLDED,
    SUGGEST_FORMATS,
    Output,
    write,
)
from lipcert.errors import ExitCode, UnsupportedModelError, UsageError
from lipcert.process.progress import ProgressReport
from lipcert.settings.gates import OF_ANALYSES, GateOutcome, worst_of
from lipcert.settings.settings import AS_EXPORTED
from lipcert.settings.written import settings_toml


@click.command("inspect")
@click.argument("model", type=paths.FILE)
@click.option(
    "--output",
    metavar="NAME",
    multiple=True,
    help="Output of the model, if it has several; repeat it for all that have a loss.",
)
@click.option("--as-exported", is_flag=True, help=AS_EXPORTED)
@output_options("text", "json", color=True)
def inspect(
    *,
    model: Path,
    output: tuple[str, ...],
    as_exported: bool,
    result: Output,
) -> ExitCode:
    """Show the ops, shapes, parameters and batch proof of MODEL, an ONNX file.

    If the model is refused, prints all reasons and remedies and exits with 3.
    """
    paths.require_model(model)
    result.require_writable([model])
    from lipcert.importer.load import load_model
    from lipcert.importer.model import outline_of
    from lipcert.report.inspection import (
        inspection_document,
        inspection_json,
        inspection_of,
        refused_inspection,
    )

    try:
        inspection = inspection_of(load_model(model, output=output, as_exported=as_exported))
    except UnsupportedModelError as error:
        inspection = refused_inspection(str(model), error, outline_of(model))
    result.show(inspection_document, inspection, json=inspection_json)
    return ExitCode.NO_VERDICT if inspection.refusals else ExitCode.HOLDS


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
def analyze(
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
    settings = chosen_settings(context, complete=True).settings
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
    )
    outcome = worst_of(analysis.gates)
    if outcome is GateOutcome.EXCEEDED:
        return ExitCode.NEGATIVE
    is_known = analysis.network.grad_norm is not None and outcome is GateOutcome.HOLDS
    return ExitCode.HOLDS if is_known else ExitCode.NO_VERDICT


@click.command("suggest")
@click.argument("model", type=paths.FILE)
@data_options(
    "Examples at which gradients are measured, and on which recipes and gradient clipping are "
    "rehearsed in short private runs (the forms are those of `lipcert audit --data`); "
    "default: random admissible inputs, and no rehearsal. What is learned from private data costs "
    "privacy that no ε covers."
)
@option(
    "--probe",
    "Rehearse every recipe on --data, not only what may be better than gradient clipping.",
    is_flag=True,
)
@option(
    "--budget",
    "Time after which nothing more is tried.",
    "SECONDS",
    type=click.FloatRange(min=0.0, min_open=True),
    default=120.0,
)
@click.option(
    "--apply",
    "settings_file",
    metavar="FILE",
    type=paths.FILE,
    help="Write the settings of the recipe to a new settings file (TOML).",
)
@click.option("--force", is_flag=True, help="With --apply: replace an existing file.")
@knob_options
@output_options(*SUGGEST_FORMATS, show_all=True, progress=True, color=True)
@click.pass_context
def suggest(
    context: click.Context,
    /,
    *,
    model: Path,
    probe: bool,
    budget: float,
    settings_file: Path | None,
    force: bool,
    result: Output,
    **words: object,
) -> ExitCode:
    """Analyse MODEL, an ONNX file, with changed settings, and rank them by noise over signal.

    Settings are analysed one by one, then combined into recipes: the first is gradient clipping, or
    what a rehearsal on --data shows to be better. Changes of the network that may make bounds
    smaller are printed as lines of code. Exits with 0 if the recipe is usable, with 3 (after the
    report) if nothing is.
    """
    settings = chosen_settings(context, complete=True).settings
    paths.require_model(model)
    result.require_writable([model], [settings_file])
    if settings_file is not None and settings_file.exists() and not force:
        raise UsageError(f"--apply: {settings_file} exists; name another file, or give --force")
    if probe and words["data"] is None:
        raise UsageError("--probe: a run needs examples with their labels; give --data WHERE")
    require_data(words)
    from lipcert.importer.load import load_under
    from lipcert.suggestions.session import suggest

    imported = load_under(model, settings)
    examples = some_examples(words, imported)
    with ProgressReport(result.progress) as report:
        found = suggest(imported, settings, examples, budget, report.observe, probe=probe)
    from lipcert.report.suggestions import SHOWN, suggestions_document, suggestions_json

    result.show(suggestions_document, found, most={"text": SHOWN}, json=suggestions_json)
    if settings_file is not None:
        head = "written by `lipcert suggest --apply`: the settings of its recipe"
        write(settings_toml(found.recipe.settings, head), settings_file)
        click.echo(f"lipcert: the settings of the recipe are in {settings_file}", err=True)
    return ExitCode.HOLDS if found.recipe.outcome.usable else ExitCode.NO_VERDICT


@click.command("certify")
@click.argument("model", type=paths.FILE)
@knob_options
@click.option(
    "-o",
    "--out",
    "certificate",
    type=paths.FILE,
    help="The certificate.  [default: MODEL with the ending .lipcert.json]",
)
@option(
    "--engine",
    "The arithmetic with which the certificate is checked before it is written.",
    type=click.Choice(("float", "exact")),
    default="float",
)
@output_options("text", "json", file=False, progress=True)
@click.pass_context
def certify(
    context: click.Context,
    /,
    *,
    model: Path,
    certificate: Path | None,
    engine: str,
    result: Output,
    **_: object,
) -> ExitCode:
    """Certify the bounds of MODEL, an ONNX file, for `lipcert check`.

    Takes the options of `lipcert analyze`. If MODEL lacks trained biases of zeros, the certificate
    is about a completed file, which is written next to it (NAME.completed.onnx). The certificate is
    checked before it is written. Exits with 0 if the certificate bounds gradients, with 3 if it
    bounds only values and Lipschitz constants.
    """
    settings = chosen_settings(context, complete=True).settings
    paths.require_model(model)
    target = certificate or model.with_suffix(".lipcert.json")
    paths.require_writable([target], [model])
    from lipcert.analysis.certificate import certify
    from lipcert.importer.load import load_under
    from lipcert.report.certificate import certification_document, certification_json

    imported = load_under(model, settings)
    with ProgressReport(result.progress) as report:
        issued = certify(imported, settings, engine, report.observe)
    if issued.completed is not None:
        write(issued.completed, issued.model_beside(target))
    write(issued.data, target)
    result.show(certification_document, issued, target, json=certification_json)
    if issued.certificate.network.grad_norm is None:
        sys.stderr.write("lipcert: the certificate has no gradient bound; see the analysis\n")
        return ExitCode.NO_VERDICT
    return ExitCode.HOLDS


@click.command("explain")
@click.argument("key", metavar="[RULE|LC-CODE|MODEL]", required=False)
@click.option(
    "--bound",
    metavar="NAME",
    help="Explain why a bound of MODEL is so large: that of G (the gradient of one example), L "
    "(the Lipschitz constant), a parameter, or a value of the network.",
)
@knob_options
@output_options(*BOUND_FORMATS, show_all=True, progress=True, color=True)
@click.pass_context
def explain(
    context: click.Context, /, *, key: str | None, bound: str | None, result: Output, **_: object
) -> ExitCode:
    """Print statement, hypotheses and proof of a rule, or the page of a code; alone, list all.

    With --bound, print the lines from which a bound of MODEL follows, and its largest factors; the
    other options are then those of `lipcert analyze`.
    """
    if bound is not None:
        if key is None:
            raise UsageError("explain: --bound asks for a model: lipcert explain MODEL --bound G")
        return _bound(context, Path(key), bound, result)
    if words := given(context):
        raise UsageError(
            f"explain: --{min(words)} is a setting of the bound that --bound NAME explains "
            "(-o names the file to write)"
        )
    if key is not None and key.endswith(".onnx"):
        raise UsageError(f"explain: which bound of {key}? Give --bound G, L, or a parameter's name")
    from lipcert.explain import all_keys, explain

    if result.format == "json":
        from lipcert.report.json import dump

        found = {"keys": all_keys()} if key is None else {"key": key, "text": explain(key)}
        page = dump({"schema": "lipcert.explanation/1", **found})
    elif key is None:
        page = "".join(f"{name:<40}  {title}".rstrip() + "\n" for name, title in all_keys().items())
    else:
        page = explain(key) + "\n"
    result.write(lambda *_: page)
    return ExitCode.HOLDS


def _bound(context: click.Context, model: Path, name: str, result: Output) -> ExitCode:
    """Print the lines behind one bound of a model."""
    settings = chosen_settings(context).settings
    from lipcert.analysis.bounded import bounded
    from lipcert.analysis.reasons import bound_report
    from lipcert.importer.load import load_under
    from lipcert.report.reasons import bound_document, bound_json

    imported = load_under(model, settings)
    settings = settings.with_inputs(imported.graph.inputs)
    with ProgressReport(result.progress) as report:
        found = bounded(imported, settings, report.observe)
    said = bound_report(found, str(model), imported.sha256, name)
    result.show(
        bound_document,
        said,
        most={"text": FOLDED},
        json=bound_json,
    )
    return ExitCode.HOLDS
