"""Findings of audits: nothing that speaks against a pass is lost, the worst comes first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.records import AuditReport, Quantity, Verdict, largest
from lipcert.diagnostics import CODES, Level
from lipcert.report.audit import chosen_groups, chosen_values
from lipcert.report.audit_findings import audit_findings
from lipcert.text.numbers import beside, share_text
from tests.report.audit_samples import (
    ALL,
    check,
    group,
    inconclusive,
    many,
    mismatched,
    nothing,
    passed,
    value,
    violated,
    with_nan,
)
from tests.report.audit_strategies import reports
from tests.report.shown import number_of

FINITE = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)


def codes(report: AuditReport) -> list[str]:
    return [finding.code for finding in audit_findings(report)]


def test_a_pass_has_no_findings() -> None:
    assert codes(passed()) == []


def test_each_kind_of_violation_has_its_code() -> None:
    assert codes(violated()) == ["LC314", "LC301", "LC303"]
    broken = value("h1", Quantity.OUTPUT_NORM, max_observed=40.0, violations=1)
    assert codes(replace(passed(), verdict=Verdict.VIOLATION, values=(broken,))) == ["LC302"]


def test_undecided_norms_and_missing_units() -> None:
    assert codes(inconclusive()) == ["LC305", "LC318"]
    assert "2 of 8 units" in audit_findings(inconclusive())[1].message


def test_nan_is_a_finding_of_its_own() -> None:
    found = audit_findings(with_nan())
    assert {finding.place for finding in found if finding.code == "LC306"} == {
        "nan", "attacked", "inf", "conv1",
    }  # fmt: skip
    assert [finding.place for finding in found if finding.code == "LC102"] == ["free"]


def test_what_was_not_tried_is_said() -> None:
    assert codes(mismatched())[:3] == ["LC319", "LC318", "LC300"]
    assert codes(nothing()) == ["LC300"]
    untried = replace(passed(), groups=(group(max_observed=None, max_attacked=None),))
    found = audit_findings(untried)
    assert [(finding.code, finding.level) for finding in found] == [("LC300", Level.WARNING)]


def test_a_bound_that_nothing_came_near_is_an_error() -> None:
    groups = (
        group("far", max_observed=12.4e-5, max_attacked=None),
        group("dead", max_observed=0.0, max_attacked=0.0),
        group(),
    )
    report = replace(
        passed(), verdict=Verdict.INCONCLUSIVE, groups=groups, max_detectable_factor=1e3
    )
    far, dead = audit_findings(report)
    assert (far.code, far.level, far.place) == ("LC307", Level.ERROR, "far")
    assert "reached 1/100000 of its bound (0.000124 against 12.41)" in far.message
    assert (dead.code, dead.place) == ("LC307", "dead")
    assert "is 0 in every example" in dead.message
    assert codes(replace(report, verdict=Verdict.PASS, max_detectable_factor=None)) == []


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASS])
def test_a_verdict_alone_is_a_finding(verdict: Verdict) -> None:
    bare = replace(passed(), verdict=verdict, reasons=("for a reason of its own",))
    (finding,) = audit_findings(bare)
    assert (finding.level, finding.message) == (Level.ERROR, "for a reason of its own")


def test_codes_of_reasons_are_findings_unless_they_are_known() -> None:
    reasons = ("[LC320] the chain is broken at step 7", "[LC305] two norms", "[LC999] none")
    found = codes(replace(inconclusive(), reasons=reasons))
    assert found == ["LC305", "LC320"]


def test_each_fact_is_one_finding() -> None:
    """A check that says its place says it once, and no reason repeats a check or a norm."""
    placed = check(verdict=Verdict.VIOLATION, code="LC320", where="line 3", message="line 3: torn")
    reasons = ("[LC320] line 3: torn", "[LC320] another", "[LC305] two norms")
    report = replace(inconclusive(), checks=(placed,), reasons=reasons)
    told = [finding.message for finding in audit_findings(report)]
    assert sorted(codes(report)) == ["LC305", "LC320", "LC320"]
    assert {"line 3: torn", "another"} < set(told)


def test_a_check_names_its_place_and_advice() -> None:
    bad = check(verdict=Verdict.VIOLATION, where="step 3", message="too large", remedy="shrink it")
    (finding,) = audit_findings(replace(passed(), verdict=Verdict.VIOLATION, checks=(bad,)))
    assert (finding.message, finding.remedy) == ("step 3: too large", "shrink it")


@given(reports)
def test_nothing_fails_open(report: AuditReport) -> None:
    found = audit_findings(report)
    errors = {(finding.kind, finding.place) for finding in found if finding.level is Level.ERROR}
    assert report.verdict is Verdict.PASS or errors
    assert all(finding.code in CODES for finding in found)
    for item in report.groups:
        assert not (item.violations or item.undecided) or ("group", item.name) in errors
    for item in report.checks:
        assert item.verdict is Verdict.PASS or ("check", item.name) in errors
    levels = [list(Level).index(finding.level) for finding in found]
    assert levels == sorted(levels)


@given(FINITE, FINITE)
def test_numbers_side_by_side_are_on_the_right_sides(norm: float, bound: float) -> None:
    limit, shown = beside(bound, norm)
    assert (number_of(shown) <= number_of(limit)) == (norm <= bound)


@given(st.integers(-200, 200), st.integers(1, 10**6))
def test_nearly_equal_numbers_too(steps: int, scale: int) -> None:
    bound = scale / 7.0
    norm = bound * (1.0 + steps * 2.0**-52)
    limit, shown = beside(bound, norm)
    assert (number_of(shown) <= number_of(limit)) == (norm <= bound)
    share = share_text(group(grad_norm_bound=bound, max_observed=norm, max_attacked=None).tightness)
    assert (float(share) > 1.0) == (norm / bound > 1.0)


def test_nan_is_larger_than_any_number() -> None:
    for norms in ((float("nan"), 1.0), (1.0, float("nan")), (float("inf"), float("nan"))):
        assert str(largest(*norms)) == "nan"
    assert largest(None, 2.0) == 2.0
    assert largest(None, None) is None


def test_of_many_rows_the_broken_ones_are_chosen() -> None:
    chosen = chosen_groups(many(), 100)
    assert len(chosen) == 100
    assert all(item.violations for item in chosen)
    assert chosen_values(many(), 40)[0].value == "block299.out"


@pytest.mark.parametrize("name", ALL)
def test_all_rows_are_all_rows(name: str) -> None:
    report = ALL[name]()
    assert chosen_groups(report, None) == report.groups
    assert chosen_values(report, None) == report.values
