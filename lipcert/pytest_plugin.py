"""A fixture for pytest: teams that gate in tests audit a network in one of them.

    def test_gradients_stay_within_their_bounds(lipcert_audit):
        lipcert_audit("net.onnx", data="examples.npz", input_norm=1.0, max_slack=100.0)

pytest loads this module wherever LipCert is installed, so it imports nothing that is heavy. What
enters: what `lipcert audit` takes. What leaves: the report of a pass; with any other the test
fails, and shows it. Invariant: what is not settled is no pass, and is never skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from lipcert.audit.job import Job
    from lipcert.audit.records import AuditReport

_WIDTH: Final = 100


@pytest.fixture
def lipcert_audit(
    record_property: Callable[[str, object], None],
) -> Callable[..., AuditReport]:
    """Audit a network, `lipcert_audit(TARGET, **words)`, and fail unless it passes.

    TARGET: an ONNX file, or a certificate of the network beside it or in `model=`. words: of
    `lipcert.audit.job.Job` (data, trace, attack_steps, limit, …), of `lipcert.gates.Gates`
    (max_grad_norm, max_slack, …), and, for an ONNX file, of `lipcert.Settings`, or `settings=`;
    where none of these is given, those of lipcert.toml and of the environment count, as they do
    on the command line. data may also be what holds the examples: arrays (x, y), a torch data set
    or loader.
    Returns the `AuditReport`. Verdict and numbers become properties of the test in JUnit XML.
    """

    def audited(target: str | os.PathLike[str], **words: Any) -> AuditReport:
        from lipcert.cli.audit_options import require_torch

        examples = words.get("data")
        if isinstance(examples, str | os.PathLike):
            examples = None
        elif examples is not None:
            is_pair = isinstance(examples, tuple)
            words["data"] = "arrays" if is_pair else type(examples).__name__
        job = _job(Path(target), words)
        require_torch()
        from lipcert.audit.run import audit
        from lipcert.report.formats import audit_report

        report = audit(job, data=examples)
        if report is None:
            raise AssertionError("an audit without other workers has a report")
        for name, value in _properties(report).items():
            record_property(f"lipcert_{name}", value)
        if report.verdict.value != "pass":
            shown = audit_report(report, "text", width=_WIDTH, color=False, show_all=False)
            pytest.fail(f"lipcert audit {target}\n{shown}", pytrace=False)
        return report

    return audited


def _job(target: Path, words: dict[str, Any]) -> Job:
    """The audit that the words describe; UsageError where one belongs to nothing."""
    from lipcert.audit.job import Job
    from lipcert.cli.paths import model_beside
    from lipcert.cli.sources import effective_settings, find_file
    from lipcert.errors import UsageError
    from lipcert.gates import Gates
    from lipcert.settings import Settings

    def taken(kind: Any, *but: str) -> dict[str, Any]:
        names = {item.name for item in fields(kind)}.difference(but)
        return {name: _plain(words.pop(name)) for name in names.intersection(words)}

    model, settings = words.pop("model", None), words.pop("settings", None)
    gates, given = Gates(**taken(Gates)), taken(Settings)
    of_job = taken(Job, "certificate", "gates")
    if words:
        raise UsageError(f"lipcert_audit: {min(words)!r} is no word of Job, Gates or Settings")
    if settings is not None and given:
        raise UsageError(f"lipcert_audit: {min(given)!r} belongs to settings=, which is given")
    if target.suffix == ".json":
        if settings is not None or given:
            raise UsageError("lipcert_audit: a certificate states its settings; leave them out")
        found = str(model or model_beside(target))
        return Job(found, Settings(), certificate=str(target), gates=gates, **of_job)
    if model is not None:
        raise UsageError("lipcert_audit: model= is for certificates; give the model alone")
    if settings is None:
        settings = Settings(**given)
        if not given:
            settings = effective_settings({}, os.environ, find_file(Path.cwd())).settings
    return Job(str(target), settings, gates=gates, **of_job)


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _properties(report: AuditReport) -> Mapping[str, object]:
    found = {
        "verdict": report.verdict.value,
        "grad_norm_bound": report.gradient.grad_norm_bound,
        "slack": report.gradient.slack,
        "detectable_error_factor": report.detectable_error_factor,
        "examples": report.examples,
    }
    return {name: value for name, value in found.items() if value is not None}
