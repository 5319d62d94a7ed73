"""`lipcert compare`: show what changed from one certificate or analysis to another."""

import math
from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.options import output_options
from lipcert.cli.output import Output
from lipcert.errors import ExitCode, UsageError


@click.command("compare")
@click.argument("old", type=paths.FILE)
@click.argument("new", type=paths.FILE)
@click.option("--fail-on-regression", is_flag=True, help="Exit with 1 if NEW states less.")
@click.option(
    "--tolerance",
    type=float,
    default=0.0,
    show_default=True,
    help="By what fraction a bound may grow without being a regression (0.01: one per cent).",
)
@output_options("text", "json", "markdown")
def command(
    *,
    old: Path,
    new: Path,
    fail_on_regression: bool,
    tolerance: float,
    result: Output,
) -> ExitCode:
    """Compare OLD with NEW: two certificates, or two files of `lipcert analyze --format json`.

    A regression is a bound or an ε that grew or disappeared, a noise multiplier that fell, or an
    assumption that was added or changed, unless it assumes less than before. This compares what the
    files state, not whether it is true: for certificates, `lipcert check` decides that.
    """
    if not 0.0 <= tolerance < math.inf:
        raise UsageError("--tolerance: give a number of at least 0, say 0.01")
    result.require_writable([old, new])
    from lipcert.report.comparison import (
        compared,
        comparison_document,
        comparison_json,
        read_statement,
    )

    statements = []
    for path in (old, new):
        data, document = paths.read_json(path)
        statements.append(read_statement(str(path), document, data))
    comparison = compared(statements[0], statements[1], tolerance)
    result.show(comparison_document, comparison, json=comparison_json)
    if fail_on_regression and comparison.regression:
        return ExitCode.NEGATIVE
    return ExitCode.HOLDS
