"""Checks besides the bounds: whether a recorded run did what its claims assume.

What enters: a job made ready. What leaves: a `CheckReport` for each thing that was compared, and a
sentence for each check that the records do not suffice for. Each module here states one check,
what it compares, and why its threshold raises no, or only so many, false alarms. `leave_one_out`
and `batch_independence` ask functions of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lipcert.audit.bounds import Claims
from lipcert.audit.checks.admissible_batches import admissible_batches
from lipcert.audit.checks.batch_independence import batch_independence, moving_statistics
from lipcert.audit.checks.chain import chain
from lipcert.audit.checks.clean_gradient import clean_gradients
from lipcert.audit.checks.contribution import contribution
from lipcert.audit.checks.integrity import integrity
from lipcert.audit.checks.leave_one_out import GradientFunction, leave_one_out
from lipcert.audit.checks.noise import noise
from lipcert.audit.checks.released import released
from lipcert.audit.checks.schedule import schedule
from lipcert.audit.checks.seed_reuse import seed_reuse
from lipcert.audit.checks.subject import Checked, RecordedRun, joined
from lipcert.audit.checks.weight_constraint import file_weights, recorded_weights
from lipcert.audit.prepared_job import Ready
from lipcert.audit.recorded import examples_gap
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.reading import Trace
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import Readable
from lipcert.graph.viewed import parameters_of

__all__ = [
    "Checked",
    "GradientFunction",
    "batch_independence",
    "check_recorded_run",
    "leave_one_out",
    "run_checks",
]

_CHECKS: Final[tuple[tuple[str, Callable[[RecordedRun], Checked]], ...]] = (
    ("schedule", schedule),
    ("noise", noise),
    ("released", released),
    ("seed-reuse", seed_reuse),
    ("batch-independence", moving_statistics),
    ("admissibility", admissible_batches),
    ("weight-constraint", recorded_weights),
    ("contribution", contribution),
    ("agreement", clean_gradients),
    ("chain", chain),
)


def run_checks(ready: Ready) -> Checked:
    """Everything that can be checked of a job besides norms."""
    if ready.trace is None:
        return file_weights(ready.claims, parameters_of(ready.claims.engine.graph))
    other = _other_model(ready.trace, ready.model.sha256)
    found = check_recorded_run(ready.claims, ready.trace, ready.job.device, ready.data)
    return joined(other, found)


def check_recorded_run(
    claims: Claims, trace: Trace, device: str = "cpu", data: Readable | None = None
) -> Checked:
    """Hold a recorded run against claims; where the trace is damaged, nothing else is said.

    data: the data set, for a trace that names its examples.
    """
    intact = integrity(trace)
    if any(report.verdict is not Verdict.PASS for report in intact.reports):
        return intact
    run = RecordedRun(claims, trace, device, data)
    missing: list[str] = []
    if trace.manifest.redaction is not None:
        missing.append(
            "the trace is redacted: checks of tensors that it no longer holds are left out"
        )
    gap = examples_gap(trace, data)
    if gap is not None:
        missing.append(f"replay: {gap}")
    return joined(intact, Checked(not_done=tuple(missing)), *_each(run))


def _each(run: RecordedRun) -> list[Checked]:
    """All checks; one whose records do not fit the model is a mismatch, said once."""
    found: list[Checked] = []
    said: set[str] = set()
    for name, check in _CHECKS:
        try:
            found.append(check(run))
        except NoVerdictError as error:
            message = str(error)
            if message not in said:
                said.add(message)
                found.append(Checked((_mismatch(name, message),)))
    return found


def _mismatch(name: str, message: str) -> CheckReport:
    """What an error says, under its own code."""
    code, separator, text = message.removeprefix("[").partition("] ")
    if not (message.startswith("[LC3") and separator):
        code, text = "LC319", message
    return CheckReport(code, name, Verdict.MISMATCH, text)


def _other_model(trace: Trace, sha256: str) -> Checked:
    """Whether the run names another model file than the one that was bounded."""
    recorded = trace.manifest.model_sha256
    if recorded is None or recorded == sha256:
        return Checked()
    message = (
        f"the run was recorded with the model file {recorded[:16]}…, and {sha256[:16]}… was bounded"
    )
    remedy = "audit with the file that was named to the recorder"
    check = Check("LC319", "agreement", remedy)
    return Checked((check.failed(message, verdict=Verdict.MISMATCH),))
