"""`lipcert audit`: replay batches, and compare every per-example gradient with its bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

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
    together,
)
from lipcert.cli.output import AUDIT_FORMATS, FOLDED, Output
from lipcert.errors import ExitCode, NoVerdictError, UsageError
from lipcert.measure.precision import Precision
from lipcert.process.progress import ProgressReport
from lipcert.settings.gates import OF_AUDITS
from lipcert.verbs import is_certificate, model_beside, require_torch

if TYPE_CHECKING:
    from lipcert.audit.job import Job
    from lipcert.audit.records import AuditReport
    from lipcert.audit.twins import TwinReport
    from lipcert.settings.settings import Settings


_STEPS: Final = 30
_SUMMARY: Final = 200
"""Most rows of a table in Markdown, which must fit into a step summary."""
_COUNT: Final = click.IntRange(min=1)
_TWINS: Final = ("twin", "twin_example", "twin_count", "twin_seed", "twin_far")
_OUTPUTS: Final = ("output_format", "out_file", "reports", "show_all", "progress", "color")
_OF_TWINS: Final = frozenset(
    (*_TWINS, "data", "data_x", "data_y", "neighbours", "config", *_OUTPUTS)
)
"""Options that need no TARGET."""
_OPTIONS: Final = (
    option(
        "--model",
        "The ONNX file that the certificate TARGET is about.  [default: next to it, with the "
        "ending .onnx]",
        type=paths.FILE,
    ),
    data_options(
        "Examples to replay: an .npz file of arrays x [examples, ...] and y, or "
        "package.module:function, which returns arrays (x, y), a torch Dataset, IterableDataset or "
        "DataLoader."
    ),
    option(
        "--trace",
        "A recorded run: replay its batches at its weights, and check its steps.",
        "DIR",
        type=paths.FILE,
    ),
    option(
        "--interrupted",
        "The recorded run was killed: accept fewer steps than declared, and a missing end.",
        is_flag=True,
    ),
    option(
        "--attack",
        "Also look for the worst examples, by projected gradient ascent.",
        type=click.Choice(("pga",)),
    ),
    option("--attack-steps", f"Steps of the attack.  [default: {_STEPS}]", "N", type=_COUNT),
    option(
        "--attack-weights",
        "Let the attack move the weights too, within their constraints.",
        is_flag=True,
    ),
    option("--device", "cpu, cuda, or auto: a GPU if there is one.", "NAME", "auto"),
    option(
        "--dtype",
        "Arithmetic for replays; examples that it leaves undecided are replayed in float64.",
        default="float32",
        type=click.Choice([item.value for item in Precision]),
    ),
    click.option(
        "--values/--no-values",
        "watch_values",
        default=True,
        show_default=True,
        help="Also compare the norms of layers' outputs, and of gradients with respect to them, "
        "with their bounds.",
    ),
    option("--limit", "Audit the first N examples only.", "N", type=_COUNT),
    option(
        "--micro-batch",
        "Examples evaluated at once; lower it if memory runs out.",
        "N",
        128,
        type=_COUNT,
    ),
    option("--unit-size", "Examples in one unit of shared work.", "N", 2048, type=_COUNT),
    option(
        "--max-detectable-factor",
        "No pass if a bound could be wrong by a factor above X unnoticed; inf: no limit.  "
        "[default: 1000]",
        "X",
        type=click.FLOAT,
    ),
    gate_options(*OF_AUDITS),
    option(
        "--twin",
        "Run this function, which trains on the data that it is given and returns what is "
        "published, on --data, and again without one example: only what noise hides may "
        "differ. With TARGET, this is done in addition to its audit.",
        "FILE.py:NAME",
        type=paths.WHERE,
    ),
    option(
        "--twin-example",
        "The number of an example to leave out, or to replace as the relation of the run says; "
        "may be repeated.  [default: the largest, one of the rarest label, then at random]",
        "I",
        multiple=True,
        type=click.INT,
    ),
    option("--twin-count", "How many examples are chosen.  [default: 2]", "N", type=_COUNT),
    click.option(
        "--twin-far/--no-twin-far",
        default=True,
        show_default=True,
        help="Also run it on data in which one example replaces most others.",
    ),
    option(
        "--twin-seed",
        "Seed of torch, numpy and random in twin runs, and of the choice of examples.",
        "N",
        0,
        type=click.IntRange(min=0),
    ),
    option(
        "--results",
        "Keep the result of every unit of work in DIR, and continue from the results in it.",
        "DIR",
        type=paths.FILE,
    ),
    option(
        "--cluster",
        "Let Dask workers do the units: tcp://SCHEDULER:8786, or local:N for N processes on "
        "this machine.",
        "WHERE",
    ),
    option(
        "--shard",
        "Do every Nth unit, beginning with unit I (0 to N-1), keep the results, report nothing.",
        "I/N",
    ),
    option(
        "--merge",
        "Report on the results in a folder, of shards say, and do nothing else.",
        "DIR",
        type=paths.FILE,
    ),
    option(
        "--compare-speed", "Also time a plain training step on the same examples.", is_flag=True
    ),
)


@click.command("audit")
@click.argument("target", type=paths.FILE, required=False)
@together(_OPTIONS)
@knob_options
@output_options(*AUDIT_FORMATS, further=True, show_all=True, progress=True, color=True)
@click.pass_context
def audit(
    context: click.Context,
    /,
    *,
    target: Path | None,
    results: Path | None,
    cluster: str | None,
    shard: str | None,
    merge: Path | None,
    compare_speed: bool,
    result: Output,
    **words: object,
) -> ExitCode:
    """Audit TARGET, an ONNX file or a certificate, on real batches, a recorded run or an attack.

    The bounds are those of `lipcert analyze` with the same options, or those that the certificate
    claims. Exits with 0 if every norm is within its bound, with 1 if a bound is violated or a gate
    exceeded, with 3 if there is no verdict: nothing audited, undecided, bounds that no norm came
    near, data that do not fit, or a recording that does not show the whole run. Without TARGET,
    --twin alone audits what a function does.
    """
    settings = chosen_settings(context).settings
    if words["twin"] is None and (words["twin_example"] or words["twin_count"]):
        raise UsageError("audit: --twin-example and --twin-count need --twin")
    if words["twin"] is not None and target is None:
        return _twin_alone(context, words, result)
    if merge is None:
        job = _job_of(target, settings, given(context), words)
        _require_inputs(job)
        if results is not None:
            paths.require_own_folder(results, "job.json")
    elif any(item is not None for item in (target, results, cluster, shard)):
        raise UsageError(
            "audit: --merge takes the folder alone; it holds the description of the audit"
        )
    else:
        paths.require_folder(merge)
    result.require_writable([target])
    if shard is not None:
        has_more = compare_speed or cluster or result.file is not None or result.further
        return _do_shard(job, shard, results, bool(has_more), result.progress)
    require_torch()
    from lipcert.audit.run import audit, merged_report

    with ProgressReport(result.progress) as shown:
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
        if words["twin"] is not None:
            from lipcert.audit.conclusion import with_check

            report = with_check(report, _twin(context, words, shown).check)
    from lipcert.report.audit import audit_ci, audit_document
    from lipcert.report.audit_json import audit_json

    most = {"text": FOLDED, "markdown": _SUMMARY}
    result.show(audit_document, report, ci=audit_ci, most=most, json=audit_json)
    return _exit_code(report)


def _twin_alone(context: click.Context, words: Mapping[str, Any], result: Output) -> ExitCode:
    """Run a function twice, without knowing a network."""
    for item in context.command.params:
        source = context.get_parameter_source(str(item.name))
        if source is ParameterSource.COMMANDLINE and item.name not in _OF_TWINS:
            raise UsageError(
                f"audit: {item.opts[0]} needs TARGET; a twin run does what its function does"
            )
    result.require_writable()
    with ProgressReport(result.progress) as shown:
        report = _twin(context, words, shown)
    from lipcert.report.audit import twin_ci, twin_document, twin_json

    result.show(twin_document, words["twin"], report, ci=twin_ci, json=twin_json)
    return _exit_code(report)


def _twin(context: click.Context, words: Mapping[str, Any], shown: ProgressReport) -> TwinReport:
    from lipcert.data.source import Columns

    if words["data"] is None:
        raise UsageError("audit: --twin needs --data, which its function is called with")
    require_data(words)
    require_torch()
    from lipcert.audit.twins import DEFAULT_COUNT, twin_of

    return twin_of(
        words["twin"],
        words["data"],
        Columns.of(words["data_x"], words["data_y"]),
        neighbours=given(context).get("neighbours"),
        examples=words["twin_example"] or None,
        count=words["twin_count"] or DEFAULT_COUNT,
        far=words["twin_far"],
        seed=words["twin_seed"],
        observe=shown.observe,
    )


def _exit_code(report: AuditReport | TwinReport) -> ExitCode:
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
    """Do the units of a shard. has_more: whether options ask for anything else."""
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


def _require_inputs(job: Job) -> None:
    """Raise NoVerdictError if something that the job refers to does not exist."""
    from lipcert.audit.trace.files import MANIFEST

    paths.require_model(Path(job.model))
    if job.certificate is not None:
        paths.require_file(Path(job.certificate))
    require_data({"data": job.data, "data_x": job.data_x, "data_y": job.data_y})
    if job.trace is not None:
        paths.require_folder(Path(job.trace))
        if not (Path(job.trace) / MANIFEST).exists():
            raise NoVerdictError(f"audit: {job.trace} is not a trace: it has no {MANIFEST}")


def _job_of(
    target: Path | None,
    settings: Settings,
    given: Mapping[str, object],
    words: Mapping[str, Any],
) -> Job:
    """Return the job that the options describe; most are fields of it under the same name.

    given: the settings on the command line.

    Raises:
        UsageError: if they contradict each other: a certificate states its own settings.
    """
    from lipcert.audit.job import MAX_DETECTABLE_FACTOR, Job

    if target is None:
        raise UsageError("audit: give an ONNX file or a certificate")
    certificate = target if is_certificate(target) else None
    if certificate is not None and given:
        raise UsageError(
            f"audit: --{next(iter(given))} is stated by the certificate; leave it out, or audit "
            "the model itself"
        )
    if certificate is not None:
        paths.require_file(Path(certificate))
    if certificate is None and words["model"] is not None:
        raise UsageError("audit: --model is for certificates; give the model alone")
    model = target if certificate is None else words["model"] or model_beside(certificate)
    if words["attack"] is None and (words["attack_steps"] or words["attack_weights"]):
        raise UsageError("audit: --attack-steps and --attack-weights need --attack pga")
    limit = words["max_detectable_factor"]
    as_given = {item.name: words[item.name] for item in fields(Job) if item.name in words}
    made: dict[str, Any] = as_given | {
        "model": str(model),
        "settings": settings,
        "certificate": None if certificate is None else str(certificate),
        "trace": None if words["trace"] is None else str(words["trace"]),
        "attack_steps": 0 if words["attack"] is None else words["attack_steps"] or _STEPS,
        "precision": Precision(words["dtype"]),
        "gates": gates_of(words),
        "max_detectable_factor": MAX_DETECTABLE_FACTOR if limit is None else limit,
    }
    return Job(**made)
