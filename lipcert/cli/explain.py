"""`lipcert explain`: the page behind a rule name or a diagnostic code."""

from __future__ import annotations

import click

from lipcert.cli.exit_codes import ExitCode
from lipcert.cli.options import output_options
from lipcert.cli.output import Output, write


@click.command("explain")
@click.argument("key", metavar="[RULE|LC-CODE]", required=False)
@output_options("text", "json", file=False)
def command(key: str | None, result: Output) -> ExitCode:
    """Print statement, hypotheses and proof of a rule, or the page of a code. Alone: list all."""
    from lipcert.explain import all_keys, explain

    if result.format == "json":
        from lipcert.report.json import dump

        found = {"keys": all_keys()} if key is None else {"key": key, "text": explain(key)}
        write(dump({"schema": "lipcert.explanation/1", **found}))
    elif key is None:
        write("".join(f"{name:<40}  {title}\n".rstrip(" ") for name, title in all_keys().items()))
    else:
        write(explain(key) + "\n")
    return ExitCode.HOLDS
