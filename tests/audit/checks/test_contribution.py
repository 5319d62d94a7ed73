"""Contributions next to a claim: a millionth above it passes, and a little more does not."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from lipcert.audit.checks.contribution import contribution
from lipcert.audit.checks.run_check import claimed_divisor
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import CheckReport, Verdict
from tests.audit.checks.runs import Plan, bad, only, recorded

pytestmark = pytest.mark.filterwarnings("ignore::lipcert.audit.trace.writing.PrivateDataWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return RecordedRun(*recorded(tmp_path_factory.mktemp("run") / "t", Plan()))


def reports(run: RecordedRun) -> dict[str, CheckReport]:
    noise, claim = contribution(run).reports
    return {"noise": noise, "claim": claim}


def exceeded(run: RecordedRun, over: float) -> RecordedRun:
    """With a claim that the longest contribution is above by this share of it."""
    report = reports(run)["claim"]
    group = report.where.partition("group ")[2]
    bound = (report.measured or 0.0) * claimed_divisor(run.settings) / (1.0 + over)
    groups = tuple(
        replace(item, grad_norm=bound) if item.name == group else item for item in run.claims.groups
    )
    claims = replace(run.claims, groups=groups)
    trace = run.trace
    return RecordedRun(claims, trace)


def test_a_right_run_passes(run: RecordedRun) -> None:
    found = contribution(run)
    assert {report.verdict for report in found.reports} == {Verdict.PASS}
    assert found.not_done == ()


def test_the_worst_step_is_reported(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    each: list[CheckReport] = []
    for step in run.steps:
        alone = RecordedRun(run.claims, run.trace)
        monkeypatch.setitem(alone.__dict__, "steps", (step,))
        each += contribution(alone).reports
    for is_noise in (True, False):
        own = [report for report in each if ("deviations" in report.message) is is_noise]
        worst = max(own, key=lambda report: report.measured / report.expected)
        assert worst in contribution(run).reports


@pytest.mark.parametrize(
    ("over", "verdict"), [(0.0, Verdict.PASS), (5e-7, Verdict.PASS), (2e-6, Verdict.VIOLATION)]
)
def test_what_is_above_its_claim_by_more_than_a_millionth_violates_it(
    run: RecordedRun, over: float, verdict: Verdict
) -> None:
    report = reports(exceeded(run, over))["claim"]
    assert (report.code, report.verdict) == ("LC312", verdict)


@pytest.mark.parametrize(
    ("over", "verdict"), [(0.0, Verdict.PASS), (5e-7, Verdict.PASS), (3e-6, Verdict.VIOLATION)]
)
def test_the_margin_counts_against_the_noise_as_well(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch, over: float, verdict: Verdict
) -> None:
    """σ too large for the noise that one example meets."""
    sigma = (1.0 + over) / (reports(run)["noise"].measured or 0.0)
    wanted = RecordedRun(run.claims, run.trace)
    monkeypatch.setitem(wanted.__dict__, "multiplier", sigma)
    assert reports(wanted)["noise"].verdict is verdict


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "backprop_clipping_bug.py"


def example():
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
def test_the_published_sensitivity_and_the_corrected_one(tmp_path: Path) -> None:
    module = example()
    path = tmp_path / "model.onnx"
    network = module.exported(path)
    bug = module.audited(network, path, tmp_path / "bug", divided=True)
    assert bad(bug) == {("LC311", "schedule"), ("LC312", "contribution")}
    noise = only(bug, "schedule")
    assert noise.measured == pytest.approx(module.SIGMA / module.B, rel=1e-6)
    against_noise, against_claim = [r for r in bug.reports if r.name == "contribution"]
    assert against_noise.verdict is against_claim.verdict is Verdict.VIOLATION
    assert against_claim.measured > 100.0 * against_claim.expected
    assert against_noise.measured > 100.0 * against_noise.expected
    assert bad(module.audited(network, path, tmp_path / "right", divided=False)) == set()
