"""Pytest plugin: fixtures that audit a network, or a training loop, within a test.

    def test_nothing_but_noised_gradients_depends_on_an_example(lipcert_twin):
        lipcert_twin(train, (x, y))

    def test_gradients_stay_within_their_bounds(lipcert_audit):
        lipcert_audit("net.onnx", data="examples.npz", input_norm=1.0, max_slack=100.0)
        lipcert_audit(module, x[:1], data=(x, y), input_norm=1.0, max_slack=100.0)

pytest loads this module wherever LipCert is installed, so it has no heavy imports. Its fixtures
take the arguments of `lipcert audit` and return the report of a pass; any other verdict fails the
test, which shows the report. Invariant: an undecided audit does not pass, and is never skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from lipcert.audit.records import AuditReport
    from lipcert.audit.twins import TwinReport

_WIDTH: Final = 100


@pytest.fixture
def lipcert_audit(
    record_property: Callable[[str, object], None],
) -> Callable[..., AuditReport]:
    """Audit a network, `lipcert_audit(TARGET, **words)`, and fail unless it passes.

    TARGET: an ONNX file, a certificate of the network next to it or in `model=`, or an `nn.Module`
    followed by one batch that shows what it reads: `lipcert_audit(module, x[:1], …)`. words:
    arguments of `lipcert.audit` (data, trace, attack_steps, limit, …), fields of
    `lipcert.settings.gates.Gates` (max_grad_norm, max_slack, …) and, unless TARGET is a
    certificate, fields of `lipcert.Settings`, or `settings=`; without any of these, settings come
    from lipcert.toml and the environment, as on the command line.
    Returns the `AuditReport`. Verdict and numbers become properties of the test in JUnit XML.
    """

    def audited(target: Any, /, *example: Any, **words: Any) -> AuditReport:
        from lipcert.cli.output import FOLDED, document_text
        from lipcert.report.audit import audit_document
        from lipcert.verbs import audit

        report = audit(target, *example, **_completed(target, words))
        for name, value in _properties(report).items():
            record_property(f"lipcert_{name}", value)
        if report.verdict.value != "pass":
            shown = document_text(audit_document(report, FOLDED), "text", width=_WIDTH)
            pytest.fail(f"lipcert audit {report.model}\n{shown}", pytrace=False)
        return report

    return audited


@pytest.fixture
def lipcert_twin(record_property: Callable[[str, object], None]) -> Callable[..., TwinReport]:
    """Train twice, `lipcert_twin(FUNCTION, DATA, **words)`, and fail if the runs differ.

    FUNCTION, DATA, words: as for `lipcert.audit.twin`.
    Returns the `TwinReport`.
    """

    def compared(function: Callable[[Any], Any], data: Any, **words: Any) -> TwinReport:
        from lipcert.audit.twins import twin

        report = twin(function, data, **words)
        record_property("lipcert_twin_largest", report.largest)
        if not report.passed:
            pytest.fail(str(report), pytrace=False)
        return report

    return compared


def _completed(target: object, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with gates and settings as `lipcert.audit` takes them.

    Raises:
        UsageError: if they contradict each other.
    """
    from lipcert.cli.sources import effective_settings, find_file
    from lipcert.errors import UsageError
    from lipcert.settings.gates import Gates
    from lipcert.settings.settings import Settings
    from lipcert.verbs import is_certificate

    left = dict(words)

    def taken(kind: Any) -> dict[str, Any]:
        names = {item.name for item in fields(kind)}.intersection(left)
        return {name: left.pop(name) for name in sorted(names)}

    left["gates"], given = Gates(**taken(Gates)), taken(Settings)
    if given and "settings" in left:
        raise UsageError(f"lipcert_audit: {min(given)!r} belongs to settings=, which is given")
    if given:
        left["settings"] = Settings(**given)
    elif "settings" not in left and not is_certificate(target):
        left["settings"] = effective_settings({}, os.environ, find_file(Path.cwd())).settings
    return left


def _properties(report: AuditReport) -> Mapping[str, object]:
    found = {
        "verdict": report.verdict.value,
        "grad_norm_bound": report.gradient.grad_norm_bound,
        "slack": report.gradient.slack,
        "detectable_error_factor": report.detectable_error_factor,
        "examples": report.examples,
    }
    return {name: value for name, value in found.items() if value is not None}
