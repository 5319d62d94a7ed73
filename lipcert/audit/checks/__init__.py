"""Checks besides the bounds: whether a recorded run did what its claims assume.

Each module states its checks: what each one compares, and why its threshold gives no false alarms,
or how many. `run_checks` runs all of them for a job. `leave_one_out` and `batch_independence` check
functions of the user's own.
"""

from collections.abc import Iterator
from typing import Final

from lipcert.audit.bounds import Claims
from lipcert.audit.checks.assumptions import file_weights, recorded_weights
from lipcert.audit.checks.chain import chain
from lipcert.audit.checks.clean_gradient import clean_gradients
from lipcert.audit.checks.contribution import contribution
from lipcert.audit.checks.epsilon import epsilon
from lipcert.audit.checks.functions import GradientFunction, batch_independence, leave_one_out
from lipcert.audit.checks.noise import noise
from lipcert.audit.checks.released import released
from lipcert.audit.checks.run_check import Checked, Finding, RunCheck, joined, run_check
from lipcert.audit.checks.schedule import schedule
from lipcert.audit.checks.seed_reuse import seed_reuse
from lipcert.audit.prepared_job import Ready
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.files import FaultKind
from lipcert.audit.trace.reading import Trace, verify
from lipcert.audit.trace.records import Manifest
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import Readable
from lipcert.graph.ir import parameters_of

__all__ = [
    "Checked",
    "GradientFunction",
    "batch_independence",
    "check_recorded_run",
    "leave_one_out",
    "run_checks",
]

_CHECKS: Final[tuple[RunCheck, ...]] = (
    schedule,
    noise,
    released,
    seed_reuse,
    recorded_weights,
    contribution,
    clean_gradients,
    chain,
    epsilon,
)
_ASSUMED: Final = frozenset({noise.check.name, seed_reuse.check.name, released.check.name})


def run_checks(ready: Ready) -> Checked:
    """Return everything that can be checked of a job besides norms."""
    if ready.recorded is None:
        weights = parameters_of(ready.claims.engine.graph)
        return Checked(tuple(file_weights(ready.claims, weights)))
    others = _others(ready, ready.recorded.trace.manifest)
    return joined(others, _checked(ready.recorded))


def check_recorded_run(
    claims: Claims, trace: Trace, device: str = "cpu", data: Readable | None = None
) -> Checked:
    """Compare a recorded run with claims; if the trace is damaged, report only that.

    Args:
        data: the data set, for a trace that names its examples.
    """
    return _checked(RecordedRun(claims, trace, device, data))


def _checked(run: RecordedRun) -> Checked:
    intact = integrity(run)
    if any(report.verdict is not Verdict.PASS for report in intact.reports):
        return intact
    missing: list[str] = []
    if run.trace.manifest.redaction is not None:
        missing.append(
            "the trace is redacted: checks of tensors that it no longer holds are left out"
        )
    if run.gap is not None:
        missing.append(f"replay: {run.gap}")
    if not run.steps:
        missing.append(f"{schedule.check.name}: the trace has no steps")
    found = joined(intact, Checked(not_done=tuple(missing)), *(_each(run) if run.steps else ()))
    return _without_ground(found)


def _without_ground(found: Checked) -> Checked:
    """Remove the ε from below if the noise is not as it assumes, unless that ε contradicts, too.

    (It measures too little Gaussian noise, so then it still counts.)
    """
    other = [r for r in found.reports if r.name in _ASSUMED and r.verdict is not Verdict.PASS]
    own = [r for r in found.reports if r.name == epsilon.check.name]
    if not other or not own or any(r.verdict is Verdict.VIOLATION for r in own):
        return found
    why = f"epsilon: no ε from below, because the noise is not what is stated ({other[0].code})"
    kept = tuple(report for report in found.reports if report not in own)
    return Checked(kept, (*found.not_done, why))


@run_check(Check("LC320", "trace-integrity", "take an intact copy, or record the run again"))
def integrity(run: RecordedRun) -> Iterator[Finding]:
    """Report each damage of the trace; if there is one, nothing in the trace proves anything.

    Statement: every line has the digest that it states and follows the line before it; every tensor
    that a line names exists and has the digest of its name. Compared: SHA-256 digests, exactly.
    False alarms: none. Not detected: a forger who computes all digests anew, and complete lines
    missing at the end of a rank that does not state its end.
    """
    found, check = verify(run.trace.folder), integrity.check
    damages = [fault for fault in found.faults if fault.kind is not FaultKind.TORN]
    for fault in damages:
        where = f"{fault.file}:{fault.line}" if fault.line else fault.file
        message = f"the trace is damaged: {fault}"
        yield check.failed(message, where, verdict=Verdict.MISMATCH)
    if damages:
        return
    open_ranks = [str(item.rank) for item in found.ranks if not item.closed]
    if open_ranks:
        yield (
            f"the recording of rank {', '.join(open_ranks)} does not state that it ended, so steps "
            "may be missing after its last line; call recorder.close()"
        )
    lines = sum(item.lines for item in found.ranks)
    yield check.passed(
        f"{lines} lines and {found.blobs} files of tensors are as they were recorded"
    )


def _each(run: RecordedRun) -> list[Checked]:
    """Run all checks; if records do not fit the model, report one mismatch, once for each
    message."""
    found: list[Checked] = []
    reported: set[str] = set()
    for check in _CHECKS:
        try:
            found.append(check(run))
        except NoVerdictError as error:
            message = str(error)
            if message not in reported:
                reported.add(message)
                found.append(Checked((_mismatch(check.check.name, message),)))
    return found


def _mismatch(name: str, message: str) -> CheckReport:
    """Report an error as a mismatch, under its own code."""
    code, separator, text = message.removeprefix("[").partition("] ")
    if not (message.startswith("[LC3") and separator):
        code, text = "LC319", message
    return CheckReport(code, name, Verdict.MISMATCH, text)


def _others(ready: Ready, manifest: Manifest) -> Checked:
    """Report a model file, or the data set of the run, of another digest than the run states."""
    data = ready.identity if manifest.examples_key else None
    check = Check("LC319", "agreement", "give the files that were those of the run, in their form")
    files = [("model file", manifest.model_sha256, ready.model.sha256, "was bounded")]
    if data is not None:
        files.append(("data", manifest.declaration.data_sha256, data.sha256, f"({data.of}) given"))
    texts = [
        f"the run was recorded with the {what} {recorded[:16]}…, and {found[:16]}… {how}"
        for what, recorded, found, how in files
        if recorded not in (None, found)
    ]
    return Checked(tuple(check.failed(text, verdict=Verdict.MISMATCH) for text in texts))
