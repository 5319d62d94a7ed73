"""`lipcert audit`: replay batches, and hold every per-example gradient against its bound."""

from __future__ import annotations

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
from lipcert.process.progress import ProgressReport
from lipcert.report.formats import AUDIT_FORMATS, audit_report
from lipcert.settings.gates import OF_AUDITS
from lipcert.verbs import require_torch

if TYPE_CHECKING:
    from lipcert.audit.job import Job
    from lipcert.audit.records import AuditReport


@click.command("audit")
@click.argument("target", type=paths.FILE, required=False)
@audit_options
@gate_options(*OF_AUDITS)
@click.option(
    "--results",
    type=paths.FILE,
    metavar="DIR",
    help="Keep the result of every unit of work there, and go on from those that are.",
)
@click.option(
    "--cluster",
    metavar="WHERE",
    help="Units are done by workers of Dask: tcp://SCHEDULER:8786, or local:N for N processes of "
    "this machine.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Do every Nth unit from the Ith on, 0 to N-1, keep the results, and report nothing.",
)
@click.option(
    "--merge",
    type=paths.FILE,
    metavar="DIR",
    help="Report on the results in a folder, of shards say, and do nothing else.",
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
    results: Path | None,
    cluster: str | None,
    shard: str | None,
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
    near, data that do not fit, or a recording that does not show the whole run.
    """
    destinations = [parse_report(word, AUDIT_FORMATS) for word in reports]
    settings = chosen_settings(context).settings
    if merge is None:
        job = job_of(target, settings, given(context), words)
        require_inputs(job)
        if results is not None:
            paths.require_own_folder(results, "job.json")
    else:
        _require_alone(target, results, cluster, shard)
        paths.require_folder(merge)
    paths.require_writable([out_file, *(file for _, file in destinations)], [target])
    if shard is not None:
        reports_something = compare_speed or out_file is not None or bool(reports)
        return _do_shard(job, shard, results, cluster is not None or reports_something, progress)
    require_torch()
    from lipcert.audit.run import audit, merged_report

    with ProgressReport(progress) as shown:
        if merge is not None:
            report = merged_report(merge, shown.observe)
        else:
            report = audit(
                job,
                results=results,
                cluster=cluster,
                compare_speed=compare_speed,
                observe=shown.observe,
            )
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


def _do_shard(
    job: Job, word: str, results: Path | None, has_more: bool, progress: bool | None
) -> ExitCode:
    """The units of a shard, into the folder. has_more: whether options ask for anything else."""
    from lipcert.audit.job import Shard

    shard = Shard.of(word)
    if results is None:
        raise UsageError("audit: --shard needs --results DIR, a folder that all shards see")
    if has_more:
        raise UsageError(
            "audit: a shard does its units here and reports nothing; leave out --cluster, "
            "--compare-speed and reports, and then report with --merge"
        )
    require_torch()
    from lipcert.audit.run import audit_shard

    with ProgressReport(progress) as shown:
        count = audit_shard(job, shard, results, shown.observe)
    click.echo(
        f"lipcert: shard {shard}: {count} units are done; report with --merge {results}", err=True
    )
    return ExitCode.HOLDS


def _require_alone(*others: object) -> None:
    if any(other is not None for other in others):
        raise UsageError(
            "audit: --merge takes the folder alone; it holds the description of the audit"
        )
