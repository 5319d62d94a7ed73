"""`lipcert inspect`: show what was understood of a model, or every reason for a refusal."""

from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.options import output_options
from lipcert.cli.output import Output
from lipcert.errors import ExitCode, UnsupportedModelError
from lipcert.settings.settings import AS_EXPORTED


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
def command(
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
