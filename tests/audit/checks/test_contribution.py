"""Contributions next to a claim: how far rounding goes is asked where it matters, and obeyed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lipcert.audit.bounds import Claims
from lipcert.audit.checks.contribution import contribution
from lipcert.audit.checks.gradients import Gradients
from lipcert.audit.checks.subject import RecordedRun
from lipcert.audit.checks.units import claimed_divisor
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.trace.reading import Trace
from tests.audit.checks.runs import Plan, recorded

pytestmark = pytest.mark.filterwarnings(
    "ignore::lipcert.audit.trace.writing.PrivateDataWarning",
)
OVER = 1e-6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return RecordedRun(*recorded(tmp_path_factory.mktemp("run") / "t", Plan()))


def reports(run: RecordedRun) -> dict[str, CheckReport]:
    noise, claim = contribution(run).reports
    return {"noise": noise, "claim": claim}


def exceeded(run: RecordedRun) -> RecordedRun:
    """With a claim that the longest contribution is above by a millionth of it."""
    report = reports(run)["claim"]
    group = report.where.partition("group ")[2]
    bound = (report.measured or 0.0) * claimed_divisor(run.settings) / (1.0 + OVER)
    groups = tuple(
        replace(item, grad_norm=bound) if item.name == group else item for item in run.claims.groups
    )
    claims: Claims = replace(run.claims, groups=groups)
    trace: Trace = run.trace
    return RecordedRun(claims, trace)


def test_nobody_asks_for_the_drift_of_what_is_below_its_claim(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> float:
        raise AssertionError

    monkeypatch.setattr(Gradients, "drift", asked)
    found = contribution(run)
    assert {report.verdict for report in found.reports} == {Verdict.PASS}
    assert found.not_done == ()
    with pytest.raises(AssertionError):
        contribution(exceeded(run))


@pytest.mark.parametrize(
    ("share", "code", "verdict"),
    [
        (2.0 * OVER, "LC312", Verdict.PASS),
        (0.1 * OVER, "LC312", Verdict.VIOLATION),
        (float("inf"), "LC305", Verdict.INCONCLUSIVE),
    ],
    ids=["explained", "not-explained", "unknown"],
)
def test_what_is_above_its_claim_is_what_rounding_explains_or_a_violation(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch, share: float, code: str, verdict: Verdict
) -> None:
    wanted = exceeded(run)
    claim = reports(wanted)["claim"].expected or 0.0
    monkeypatch.setattr(Gradients, "drift", lambda *_: share * claim)
    found = contribution(wanted)
    (report,) = [r for r in found.reports if "claimed" in r.message]
    assert (report.code, report.verdict) == (code, verdict)
    assert any("is not known" in text for text in found.not_done) == (code == "LC305")


@pytest.mark.parametrize(
    ("share", "verdict"), [(2.0 * OVER, Verdict.PASS), (0.01 * OVER, Verdict.VIOLATION)]
)
def test_the_drift_counts_against_the_noise_as_well(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch, share: float, verdict: Verdict
) -> None:
    """σ a millionth too large for the noise that one example meets."""
    report = reports(run)["noise"]
    sigma = (1.0 + OVER) / (report.measured or 0.0)
    wanted = RecordedRun(run.claims, run.trace)
    monkeypatch.setitem(wanted.__dict__, "multiplier", sigma)
    claim = reports(run)["claim"].measured or 0.0
    monkeypatch.setattr(Gradients, "drift", lambda *_: share * claim)
    assert reports(wanted)["noise"].verdict is verdict
