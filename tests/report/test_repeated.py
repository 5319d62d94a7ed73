"""What is found of many nodes with one remedy is one line for people, and each for programs."""

import json
from dataclasses import replace

import pytest

from lipcert.analysis.records import Analysis
from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import Refusal
from lipcert.report.analysis import analysis_ci, analysis_json
from lipcert.report.document import diagnostics_told, refusals_told
from lipcert.report.sources import joined, read_source, study_report
from tests.report.samples import refused, sample
from tests.report.written import analysis_html, analysis_markdown, analysis_text, inspection_text

COUNT = 27


def lost(number: int, reason: str = "a norm has no bound", remedy: str = "constrain") -> Diagnostic:
    return Diagnostic("LC102", Level.WARNING, f"layer{number}.weight", reason, remedy)


def repeated() -> Analysis:
    return replace(sample(), diagnostics=tuple(lost(number) for number in range(COUNT)))


@pytest.mark.parametrize(
    "printed",
    [
        lambda found: analysis_text(found, width=200, color=False, show_all=False),
        analysis_markdown,
        lambda found: study_report(
            joined([read_source("", json.loads(analysis_json(found)))]), "markdown"
        ),
        lambda found: analysis_html(found).partition('id="data"')[0],
    ],
    ids=["text", "markdown", "page in markdown", "html"],
)
def test_people_are_told_once_how_often_and_where(printed) -> None:
    page = printed(repeated())
    assert page.count("LC102") == 1
    assert page.count("a norm has no bound") == 1
    assert "27 in all" in page
    assert "layer0.weight, layer1.weight" in page


def test_programs_are_told_of_each() -> None:
    found = json.loads(analysis_json(repeated()))["diagnostics"]
    assert [item["node"] for item in found] == [f"layer{number}.weight" for number in range(COUNT)]
    places = [(item.kind, item.place) for item in analysis_ci(repeated()).findings]
    assert places[:2] == [("parameter", "layer0.weight"), ("parameter", "layer1.weight")]
    assert len(places) >= COUNT


def test_few_places_are_all_named() -> None:
    (line,) = diagnostics_told([lost(1), lost(2)])
    assert line.where == "layer1.weight, layer2.weight (2 in all)"
    assert line.what == "a norm has no bound"


def test_other_reasons_with_the_same_remedy_are_similar() -> None:
    (line,) = diagnostics_told([lost(1), lost(2, "another norm has no bound")])
    assert line.what == "a norm has no bound; similar for the rest"


@pytest.mark.parametrize(
    "other",
    [
        lost(2, remedy="freeze"),
        replace(lost(2), level=Level.INFO),
        replace(lost(2), code="LC101"),
        replace(lost(2), node=""),
    ],
    ids=["remedy", "level", "code", "of the model"],
)
def test_what_differs_stays_apart(other: Diagnostic) -> None:
    assert len(diagnostics_told([lost(1), other])) == 2


def test_findings_without_a_place_are_joined_where_they_are_the_same() -> None:
    one, other = replace(lost(1), node=""), replace(lost(1, "another"), node="")
    assert [line.what for line in diagnostics_told([one, other, one])] == [
        "a norm has no bound (2 times)",
        "another",
    ]


def test_errors_come_first() -> None:
    error = Diagnostic("LC401", Level.ERROR, "", "wrong", "repair")
    assert [line.label for line in diagnostics_told([lost(1), error])] == [
        ("error", "LC401"),
        ("warning", "LC102"),
    ]


def test_a_refusal_of_many_nodes_is_one_line() -> None:
    reasons = tuple(
        Refusal("LC003", f"loop{number}", "Loop", "loops are not supported", "unroll it")
        for number in range(COUNT)
    )
    shown = inspection_text(replace(refused(), refusals=reasons), width=200, color=False)
    assert shown.count("LC003") == 2  # the reason, and how to read more about it
    assert "node 'loop0' (Loop), node 'loop1' (Loop)" in shown
    assert "(27 in all): loops are not supported" in shown
    assert len(refusals_told(reasons)) == 1
