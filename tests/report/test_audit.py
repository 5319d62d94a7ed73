"""Audits: the answer first, all that is bad shown, findings worst first, JSON read back."""

import json
import math
import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.analysis.records import VerdictName
from lipcert.audit.records import AuditReport, GradientAudit, Quantity, Verdict, largest
from lipcert.cli.output import AUDIT_FORMATS
from lipcert.diagnostics import CODES, Level
from lipcert.errors import NoVerdictError
from lipcert.report.audit import audit_findings
from lipcert.report.audit_json import audit_from_document, audit_json
from lipcert.report.markdown import LARGEST
from lipcert.settings.gates import GateResult
from lipcert.text.numbers import beside, share_text
from lipcert.version import __version__
from tests.report.audit_samples import (
    ALL,
    HOSTILE,
    check,
    group,
    hostile,
    inconclusive,
    interval,
    many,
    passed,
    recorded,
    usefulness,
    value,
    violated,
    with_nan,
)
from tests.report.audit_strategies import reports
from tests.report.shown import number_of
from tests.report.written import audit_written, check_kept

ACTIVE = re.compile(r"^\s*::|##\[|\x1b|\u202e|\r|\x00", flags=re.MULTILINE)


def text(report: AuditReport, *, width: int = 120, color: bool = False, show_all: bool = False):
    return audit_written(report, "text", width=width, color=color, show_all=show_all)


def audit_markdown(report: AuditReport) -> str:
    return audit_written(report, "markdown")


NOISE = check(verdict=Verdict.VIOLATION)
OVER = GateResult("max-grad-norm", 10.0, 12.5)
BROKEN = value("h1", Quantity.OUTPUT_NORM, max_observed=40.0, violations=1)
ABOVE = interval(lower=8.111, is_certified=False)
KEPT = {name: ALL[name]() for name in ALL if name not in {"hostile", "many"}} | {
    "the noise alone": replace(passed(), verdict=Verdict.VIOLATION, checks=(NOISE,)),
    "a value": replace(passed(), verdict=Verdict.VIOLATION, values=(BROKEN,)),
    "a gate": replace(passed(), verdict=Verdict.EXCEEDED, gates=(OVER,)),
    "above by chance": replace(passed(), epsilon=ABOVE),
    "against the account": replace(passed(), epsilon=replace(ABOVE, is_contradicted=True)),
}
COSTS = {
    verdict: replace(
        passed(),
        usefulness=usefulness(verdict),
        gradient=GradientAudit(12.5, 0.5, 6.25, 2048),
    )
    for verdict in get_args(VerdictName)
}
"""a right bound may be of no use"""


def test_what_is_said_is_what_is_kept() -> None:
    said = {name: text(report, color=name == "a gate") for name, report in KEPT.items()}
    said |= {name: text(report, color=True) for name, report in COSTS.items()}
    check_kept("audit.txt", said)
    few = {name: KEPT[name] for name in ("recorded", "violated", "inconclusive")}
    few["costly"] = COSTS["costly"]
    for form in ("github", "junit", "markdown", "sarif"):
        said = {name: audit_written(few[name], form) for name in few}
        number = f'"version": "{__version__}"'
        check_kept(f"audit.{form}", {name: said[name].replace(number, "") for name in few})
    for report in (recorded(), *COSTS.values()):
        assert audit_from_document(json.loads(audit_json(report))) == report


def test_long_tables_are_folded_and_keep_what_is_broken() -> None:
    folded, whole = text(many()), text(many(), show_all=True)
    assert "260 further rows: --all shows them" in folded
    broken = [item.name for item in many().groups if item.violations]
    assert all(name in folded for name in broken[:40])
    for i in (0, 1, 150, 299):
        assert f"block{i}.attention" in whole
    assert "further rows" not in whole


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [20, 40, 80, 250])
def test_every_width(name: str, width: int) -> None:
    shown = text(ALL[name](), width=width)
    assert max(len(line) for line in shown.splitlines()) <= max(width, 40)


def test_hostile_names_are_inert() -> None:
    for shown in (text(hostile()), text(hostile(), show_all=True), audit_markdown(hostile())):
        assert not ACTIVE.search(shown)
        assert "\ud800" not in shown
    markdown = audit_markdown(hostile())
    assert not re.search(r"(?<!\\)[<`]", markdown)
    assert HOSTILE not in markdown


def test_markdown_fits_into_a_step_summary() -> None:
    long = "x" * 100 + "<" * 400
    groups = tuple(group(f"{i}{long}", violations=1, max_observed=99.0) for i in range(300))
    checks = tuple(
        check(f"{i}{long}", message=long * 3, verdict=Verdict.VIOLATION) for i in range(1500)
    )
    huge = replace(
        violated(), groups=groups, checks=checks, reasons=(long,) * 300,
    )  # fmt: skip
    shown = audit_markdown(huge)
    assert len(shown.encode("utf-8")) <= LARGEST < 2**20
    assert shown.endswith("does not fit into a step summary.\n")
    assert "further rows are in the other formats" in shown
    assert "cut" not in audit_markdown(many())


@given(reports)
def test_no_audit_is_too_odd_to_print(report: AuditReport) -> None:
    for name in AUDIT_FORMATS:
        shown = audit_json(report) if name == "json" else audit_written(report, name, width=100)
        assert shown.endswith("\n")
        assert "\x00" not in shown
        shown.encode("utf-8")


FINITE = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)


def codes(report: AuditReport) -> list[str]:
    return [finding.code for finding in audit_findings(report)]


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
    assert "In 1 of 3 groups there is no bound, or no" in text(
        replace(report, verdict=Verdict.PASS)
    )


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


def strict(text: str) -> Any:
    """As a strict reader of JSON: no NaN, no member twice."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)


def test_numbers_are_exact() -> None:
    document = strict(audit_json(passed()))
    assert document["detectable_error_factor"] == 1.0 / (9.92 / 12.4)
    assert document["groups"][0]["histogram"]["counts"] == {"-8": 1500, "-4": 500, "-2": 48}


def test_what_is_not_finite_is_null_and_listed() -> None:
    document = strict(audit_json(with_nan()))
    assert document["groups"][0]["max_observed"] is None
    listed = {tuple(item["path"]): item["number"] for item in document["not_finite"]}
    assert listed["groups", 0, "max_observed"] == "nan"
    assert listed["groups", 2, "max_observed"] == "inf"
    assert listed["checks", 0, "expected"] == "-inf"
    assert listed["seconds",] == "nan"
    assert document["groups"][3]["grad_norm_bound"] is None
    assert ("groups", 3, "grad_norm_bound") not in listed
    assert {found["code"] for found in document["diagnostics"]} >= {"LC306"}


@given(reports)
def test_reading_is_the_inverse_of_writing(report: AuditReport) -> None:
    text = audit_json(report)
    strict(text)
    assert text.isascii()
    assert "##" not in text
    assert repr(audit_from_document(json.loads(text))) == repr(
        report
    )  # NaN is not equal to itself, its text is


def paths(item: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = item.items() if isinstance(item, dict) else enumerate(item)
    found = []
    for key, child in children:
        found.append((*path, key))
        if isinstance(child, dict | list):
            found += paths(child, (*path, key))
    return found


DERIVED = ("tightness", "detectable_error_factor", "diagnostics")
DOCUMENT = json.loads(audit_json(with_nan()))
PATHS = [path for path in paths(DOCUMENT) if not set(path) & set(DERIVED)]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def test_a_missing_member_is_refused() -> None:
    for path in PATHS:
        if not isinstance(path[-1], str):
            continue
        document = json.loads(json.dumps(DOCUMENT))
        place = document
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]
        if path[-2:-1] in {("assumptions",), ("counts",)}:
            audit_from_document(document)
            continue
        with pytest.raises(NoVerdictError, match="audit: not a complete result"):
            audit_from_document(document)


@given(st.sampled_from(PATHS), ANYTHING)
def test_damage_is_refused_or_read_in_one_way(path: tuple[Any, ...], damage: object) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = damage
    try:
        report = audit_from_document(document)
    except NoVerdictError:
        return
    assert isinstance(report, AuditReport)
    audit_json(report)


DEEP = json.dumps(DOCUMENT)[:-1] + ', "deep": ' + "[" * 900 + "]" * 900 + "}"


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"schema": "lipcert.analysis/1"}', DEEP])
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(NoVerdictError, match="write it again" if text == DEEP else "^audit: not"):
        audit_from_document(json.loads(text))


def test_derived_numbers_are_not_believed() -> None:
    document = json.loads(audit_json(violated()))
    document["groups"][1]["tightness"] = 0.1
    document["detectable_error_factor"] = 1.0
    report = audit_from_document(document)
    assert math.isclose(report.groups[1].tightness or 0.0, 1.5)
