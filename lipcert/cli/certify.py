"""`lipcert certify`: analyse a model and write a certificate that the checker has accepted."""

import sys
from pathlib import Path

import click

from lipcert.cli import paths
from lipcert.cli.options import chosen_settings, knob_options, option, output_options
from lipcert.cli.output import Output, write
from lipcert.errors import ExitCode
from lipcert.process.progress import ProgressReport


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
def command(
    context: click.Context,
    *,
    model: Path,
    certificate: Path | None,
    engine: str,
    result: Output,
) -> ExitCode:
    """Certify the bounds of MODEL, an ONNX file, for `lipcert check`.

    Takes the options of `lipcert analyze`. If MODEL lacks trained biases of zeros, the certificate
    is about a completed file, which is written next to it (NAME.completed.onnx). The certificate is
    checked before it is written. Exits with 0 if the certificate bounds gradients, with 3 if it
    bounds only values and Lipschitz constants.
    """
    settings = chosen_settings(context).settings
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
