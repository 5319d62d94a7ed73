"""`lipcert suggest`: find settings with which a private run of a model learns more."""

from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.options import (
    chosen_settings,
    data_options,
    knob_options,
    option,
    output_options,
    require_data,
    some_examples,
)
from lipcert.cli.output import SUGGEST_FORMATS, Output, write
from lipcert.errors import ExitCode, UsageError
from lipcert.process.progress import ProgressReport
from lipcert.settings.written import settings_toml


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
    "Rehearse every recipe and the first changes on --data, not only what may be better than "
    "gradient clipping.",
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
def command(
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
    settings = chosen_settings(context).settings
    paths.require_model(model)
    result.require_writable([model], [settings_file])
    if settings_file is not None and settings_file.exists() and not force:
        raise UsageError(f"--apply: {settings_file} exists; name another file, or give --force")
    if probe and words["data"] is None:
        raise UsageError("--probe: a run needs examples with their labels; give --data WHERE")
    require_data(words)
    from lipcert.importer.load import load_under
    from lipcert.suggestions.engine import suggest

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
