"""`lipcert audit`: replay batches, and hold every per-example gradient against its bound."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lipcert.cli import paths
from lipcert.cli.audit_options import audit_options, job_of, require_inputs
from lipcert.cli.exit_codes import ExitCode
from lipcert.cli.gate_options import gate_options
from lipcert.cli.options import chosen_settings, given, knob_options, report_options
from lipcert.cli.output import parse_report, text_width, write_reports
from lipcert.errors import UsageError
from lipcert.gates import OF_AUDITS
from lipcert.progress import ProgressReport
from lipcert.report.formats import AUDIT_FORMATS, audit_report
from lipcert.verbs import require_torch

if TYPE_CHECKING:
    from lipcert.audit.records import AuditReport


@click.command("audit")
@click.argument("target", type=click.Path(path_type=Path), required=False)
@audit_options
@gate_options(*OF_AUDITS)
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Share the work with other processes that are given the same folder.",
)
@click.option(
    "--merge",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Report on the results in a folder of work, and do nothing else.",
)
@click.option(
    "--compare-speed",
    is_flag=True,
    help="Also time a plain training step on the same examples.",
)
@knob_options
@report_options(*AUDIT_FORMATS)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    target: Path | None,
    work: Path | None,
    merge: Path | None,
    compare_speed: bool,
    output_format: str,
    out_file: Path | None,
    reports: tuple[str, ...],
    show_all: bool,
    progress: bool | None,
    color: str,
    **words: object,
) -> ExitCode:
    """Audit TARGET, an ONNX file or a certificate, on real batches, a recorded run or an attack.

    The bounds are those of `lipcert analyze` with the same options, or those that the certificate
    claims. Leaves with 0 when every norm is within its bound, with 1 when one is violated or a gate
    exceeded, with 3 when there is no verdict: nothing audited, undecided, bounds that no norm came
    near, or data that do not fit.
    """
    destinations = [parse_report(word, AUDIT_FORMATS) for word in reports]
    settings = chosen_settings(context).settings
    from lipcert.audit.job import Worker

    worker = Worker.of(os.environ)
    if merge is None:
        _check_shared(worker.count, work)
        job = job_of(target, settings, given(context), words)
        require_inputs(job)
    else:
        _check_alone("--merge", target, work)
        paths.require_folder(merge)
    paths.require_writable([out_file, *(file for _, file in destinations)])
    require_torch()
    from lipcert.audit.run import audit, merged_report

    with ProgressReport(progress) as shown:
        if merge is not None:
            report: AuditReport | None = merged_report(merge, shown.observe)
        else:
            report = audit(
                job,
                folder=work,
                worker=worker,
                compare_speed=compare_speed,
                observe=shown.observe,
            )
    if report is None:
        click.echo(f"lipcert: all units are done; worker 0 of {worker.count} reports", err=True)
        return ExitCode.HOLDS
    rendered = partial(audit_report, report, width=text_width(), show_all=show_all)
    write_reports(rendered, output_format, out_file, destinations, color)
    return _exit_code(report)


def _exit_code(report: AuditReport) -> ExitCode:
    from lipcert.audit.records import Verdict

    match report.verdict:
        case Verdict.PASS:
            return ExitCode.HOLDS
        case Verdict.VIOLATION | Verdict.EXCEEDED:
            return ExitCode.NEGATIVE
    return ExitCode.NO_VERDICT


def _check_alone(option: str, target: Path | None, work: Path | None) -> None:
    if target is not None or work is not None:
        raise UsageError(
            f"audit: {option} takes the folder alone; it holds the description of the audit"
        )


def _check_shared(workers: int, work: Path | None) -> None:
    if workers > 1 and work is None:
        raise UsageError(
            f"audit: the launcher runs {workers} workers; give them --work DIR, a folder that all "
            "of them see, or each of them would do everything"
        )
