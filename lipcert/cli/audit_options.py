"""The options of `lipcert audit` besides the knobs: what to replay, where, and in which precision.

What enters: click's parse of them. What leaves: a `Job`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from lipcert.cli import paths
from lipcert.cli.data_options import data_options, require_data
from lipcert.cli.gate_options import gates_of
from lipcert.errors import NoVerdictError, UsageError
from lipcert.verbs import is_certificate, model_beside

if TYPE_CHECKING:
    from lipcert.audit.job import Job
    from lipcert.settings.settings import Settings

_Command = TypeVar("_Command", bound=Callable[..., object])
_PRECISIONS: Final = ("float32", "float64", "tf32", "bfloat16", "float16")
_STEPS: Final = 30

_OPTIONS: Final = (
    click.option(
        "--model",
        type=paths.FILE,
        help="The ONNX file that the certificate TARGET speaks of.  "
        "[default: beside it, with the ending .onnx]",
    ),
    data_options(
        "Examples to replay: an .npz file of arrays x [examples, ...] and y; a folder of .npz "
        "files or of x/y pairs of .npy files; Parquet; or package.module:function, which returns "
        "arrays (x, y), a torch Dataset, IterableDataset or DataLoader."
    ),
    click.option(
        "--trace",
        type=paths.FILE,
        metavar="DIR",
        help="A recorded run: replay its batches at its weights, and check its steps.",
    ),
    click.option(
        "--interrupted",
        is_flag=True,
        help="The recorded run was killed: fewer steps than declared, and no end, may pass.",
    ),
    click.option(
        "--attack",
        type=click.Choice(("pga",)),
        help="Also look for the worst examples, by projected gradient ascent.",
    ),
    click.option(
        "--attack-steps", type=click.IntRange(min=1), metavar="N", help="Its steps.  [default: 30]"
    ),
    click.option(
        "--attack-weights",
        is_flag=True,
        help="Let the attack move the weights too, within their constraints.",
    ),
    click.option(
        "--device",
        default="auto",
        show_default=True,
        metavar="NAME",
        help="cpu, cuda, or auto: a GPU where there is one.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(_PRECISIONS),
        default="float32",
        show_default=True,
        help="Arithmetic to replay in; what it leaves undecided is replayed in float64.",
    ),
    click.option(
        "--values/--no-values",
        "watch_values",
        default=True,
        show_default=True,
        help="Hold the norms of layers' outputs, and of gradients with respect to them, against "
        "their bounds as well.",
    ),
    click.option(
        "--limit", type=click.IntRange(min=1), metavar="N", help="Audit the first N examples only."
    ),
    click.option(
        "--micro-batch",
        type=click.IntRange(min=1),
        default=128,
        show_default=True,
        metavar="N",
        help="Examples evaluated at once; lower it where memory runs out.",
    ),
    click.option(
        "--unit-size",
        type=click.IntRange(min=1),
        default=2048,
        show_default=True,
        metavar="N",
        help="Examples in one unit of shared work.",
    ),
    click.option(
        "--max-detectable-factor",
        type=click.FLOAT,
        metavar="X",
        help="No pass where a bound could be wrong by more than X unnoticed; inf: no limit.  "
        "[default: 1000]",
    ),
)


def audit_options(command: _Command) -> _Command:
    """Add them; `job_of` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def require_inputs(job: Job) -> None:
    """NoVerdictError where something that the job refers to is not there."""
    from lipcert.audit.trace.files import MANIFEST

    paths.require_model(Path(job.model))
    if job.certificate is not None:
        paths.require_file(Path(job.certificate))
    require_data({"data": job.data, "data_x": job.data_x, "data_y": job.data_y})
    if job.trace is not None:
        paths.require_folder(Path(job.trace))
        if not (Path(job.trace) / MANIFEST).exists():
            raise NoVerdictError(f"audit: {job.trace} is no trace: it holds no {MANIFEST}")


def job_of(
    target: Path | None,
    settings: Settings,
    given: Mapping[str, object],
    words: Mapping[str, Any],
) -> Job:
    """The job that the options describe. given: the knobs of the command line.

    Raises UsageError where they contradict each other: a certificate states its own settings.
    """
    from lipcert.audit.job import MAX_DETECTABLE_FACTOR, Job
    from lipcert.audit.precision import Precision

    if target is None:
        raise UsageError("audit: give an ONNX file or a certificate")
    certificate = target if is_certificate(target) else None
    if certificate is not None and given:
        raise UsageError(
            f"audit: --{next(iter(given))} is stated by the certificate; leave it out, or audit "
            "the model itself"
        )
    if certificate is None and words["model"] is not None:
        raise UsageError("audit: --model is for certificates; give the model alone")
    model = target if certificate is None else words["model"] or model_beside(certificate)
    if words["attack"] is None and (words["attack_steps"] or words["attack_weights"]):
        raise UsageError("audit: --attack-steps and --attack-weights need --attack pga")
    limit = words["max_detectable_factor"]
    return Job(
        model=str(model),
        settings=settings,
        certificate=None if certificate is None else str(certificate),
        data=words["data"],
        data_x=words["data_x"],
        data_y=words["data_y"],
        trace=_text(words["trace"]),
        attack_steps=0 if words["attack"] is None else words["attack_steps"] or _STEPS,
        attack_weights=words["attack_weights"],
        device=words["device"],
        precision=Precision(words["dtype"]),
        watch_values=words["watch_values"],
        unit_size=words["unit_size"],
        micro_batch=words["micro_batch"],
        limit=words["limit"],
        gates=gates_of(words),
        max_detectable_factor=MAX_DETECTABLE_FACTOR if limit is None else limit,
        interrupted=words["interrupted"],
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
