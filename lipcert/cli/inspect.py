"""`lipcert inspect`: what was understood of a model, or every reason why it is refused."""

from __future__ import annotations

from pathlib import Path

import click

from lipcert.cli.exit_codes import ExitCode
from lipcert.cli.options import color_option, format_option
from lipcert.cli.output import text_width, use_color, write
from lipcert.errors import UnsupportedModelError

__all__ = ["command"]


@click.command("inspect")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--output", metavar="NAME", help="Output of the model, if it has several.")
@click.option("--as-exported", is_flag=True, help="Accept a model with anonymous parameters.")
@format_option("text", "json")
@click.option("-o", "--out", "out_file", type=click.Path(path_type=Path), help="Write to a file.")
@color_option
def command(
    *,
    model: Path,
    output: str | None,
    as_exported: bool,
    output_format: str,
    out_file: Path | None,
    color: str,
) -> ExitCode:
    """Show the ops, shapes, parameters and batch proof of MODEL, an ONNX file."""
    from lipcert.importer.load import load_model
    from lipcert.report.inspection import inspection_of, refused_inspection

    try:
        inspection = inspection_of(load_model(model, output=output, as_exported=as_exported))
    except UnsupportedModelError as error:
        inspection = refused_inspection(str(model), error)
    if output_format == "json":
        from lipcert.report.json import inspection_json

        write(inspection_json(inspection), out_file)
    else:
        from lipcert.report.inspection_text import inspection_text

        coloured = out_file is None and use_color(color)
        write(inspection_text(inspection, width=text_width(), color=coloured), out_file)
    return ExitCode.NO_VERDICT if inspection.refusals else ExitCode.HOLDS
