"""`lipcert explain`: print the page of a rule or a diagnostic code, or the lines of a bound."""

from pathlib import Path

import click

from lipcert.cli.options import chosen_settings, given, knob_options, output_options
from lipcert.cli.output import BOUND_FORMATS, FOLDED, Output
from lipcert.errors import ExitCode, UsageError


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
def command(
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
    from lipcert.process.progress import ProgressReport
    from lipcert.report.reasons import bound_document, bound_json
    from lipcert.report.sources import page_of

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
        html=lambda said: page_of(bound_json(said)),
    )
    return ExitCode.HOLDS
