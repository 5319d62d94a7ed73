"""Text, markdown and csv: what a reader needs comes first, tables fit, nothing is hidden."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.cli.output import document_text
from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import Refusal
from lipcert.report import analysis as attribution
from lipcert.report.analysis import (
    CSV_COLUMNS,
    analysis_ci,
    analysis_csv,
    analysis_json,
)
from lipcert.report.document import (
    Column,
    Document,
    Findings,
    Section,
    table,
)
from lipcert.report.sources import joined, read_source, study_report
from lipcert.text.safe import shortened
from tests.report.samples import node, refused, sample
from tests.report.written import (
    analysis_html,
    analysis_markdown,
    analysis_text,
    check_kept,
    inspection_text,
)


def text(show_all: bool = False, **changes) -> str:
    analysis = replace(sample(), **changes)
    return analysis_text(analysis, width=120, color=False, show_all=show_all)


def test_what_is_said_is_what_is_kept() -> None:
    parameters, network, facts = sample().parameters, sample().network, sample().assumptions
    lost = (replace(parameters[0], grad_norm=None), *parameters[1:])
    held = {f"layer{i}.weight": "spectral:1" for i in range(50)} | {"b": "frobenius:2"}
    other = replace(facts, neighbours="replace-one", reduction="sum", batch="per-example")
    found = {
        "sample": {"network": replace(network, sensitivity=0.125)},
        "lower ends": {"network": replace(network, grad_norm_witness=20.05, lipschitz_witness=9.8)},
        "no bound": {"network": replace(network, sensitivity=None), "parameters": lost},
        "other assumptions": {"assumptions": replace(other, constraints=held)},
    }
    check_kept("analysis.txt", {name: text(**changes) for name, changes in found.items()})
    check_kept("analysis.markdown", {"sample": analysis_markdown(sample())})


def test_long_models_are_folded_and_say_so() -> None:
    nodes = tuple(node(f"layer{i}", inputs=(f"layer{i - 1}_out",)) for i in range(100))
    folded = text(nodes=nodes)
    assert "60 further rows: --all shows them" in folded
    assert "layer50 " not in folded
    assert "layer50 " in text(show_all=True, nodes=nodes)


def test_where_the_bound_is_lost() -> None:
    nodes = (
        node("first", input_lipschitz=(2.0,)),
        node("flat", input_lipschitz=(1.0001,)),
        node("second", input_lipschitz=(1.0, 6.0, None)),
        node("absent", input_lipschitz=(None,)),
    )
    found = attribution.stretches(sample(nodes=nodes))
    assert [(row[0], row[2]) for row in found.rows] == [("second", "6×"), ("first", "2×")]


def test_gradient_shares_add_up() -> None:
    shares = attribution.gradient_shares(sample())
    assert abs(sum(shares.values()) - 1.0) < 1e-12
    assert "conv1.scale" not in shares


def test_no_shares_without_all_bounds() -> None:
    analysis = sample()
    lost = replace(analysis.parameters[1], grad_norm=None)
    analysis = replace(analysis, parameters=(analysis.parameters[0], lost))
    assert attribution.gradient_shares(analysis) == {}


def test_csv_is_the_table_of_parameters() -> None:
    rows = list(csv.DictReader(io.StringIO(analysis_csv(sample()))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert float(rows[0]["sensitivity"]) == 0.0240234375
    assert rows[2]["sensitivity"] == ""
    assert [row["trainable"] for row in rows] == ["yes", "yes", "no"]


COLUMNS = (
    Column("node", least=8, most=60),
    Column("op", least=6, most=60, rank=1),
    Column("G", is_number=True),
    Column("noise", is_number=True, rank=2),
)
NUMBERS = st.floats(1e-300, 1e300).map(lambda value: f"{value:.4e}")
WORDS = st.text("abcdefgh./[]", min_size=1, max_size=40)
ROWS = st.lists(st.tuples(WORDS, WORDS, NUMBERS, NUMBERS), min_size=1, max_size=6)


def printed(rows: list[tuple[str, ...]], width: int) -> str:
    document = Document("", (), sections=(Section("", (table(COLUMNS, rows),)),))
    return document_text(document, "text", width=width)


@given(rows=ROWS, width=st.integers(40, 120))
def test_no_number_is_cut(rows: list[tuple[str, ...]], width: int) -> None:
    report = printed(rows, width)
    for line in report.splitlines():
        assert len(line) <= width
    shows_noise = "noise" in report.splitlines()[0]
    for row, line in zip(rows, report.splitlines()[2:], strict=False):
        numbers = [word for word in row[2:] if re.search(rf"(^|\s){re.escape(word)}(\s|$)", line)]
        assert set(numbers) >= ({row[2], row[3]} if shows_noise else {row[2]}), line


@given(rows=ROWS)
def test_a_wide_terminal_shows_everything(rows: list[tuple[str, ...]]) -> None:
    report = printed(rows, 200)
    assert "too narrow" not in report
    for row in rows:
        assert all(shortened(cell, 60) in report for cell in row)


def test_columns_that_leave_are_named() -> None:
    report = printed([("a" * 40, "Convolution", "1.2345e+100", "1.2345e+100")], 40)
    assert "without noise: the terminal is too narrow" in report.replace("\n", " ")
    assert report.count("1.2345e+100") == 1


COUNT = 27


def lost(number: int, reason: str = "a norm has no bound", remedy: str = "constrain") -> Diagnostic:
    return Diagnostic("LC102", Level.WARNING, f"layer{number}.weight", reason, remedy)


def repeated():
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
    (line,) = Findings.of([lost(1), lost(2)]).rows
    assert line.where == "parameter layer1.weight, layer2.weight (2 in all)"
    assert line.message == "a norm has no bound"


def test_other_reasons_with_the_same_remedy_are_similar() -> None:
    (line,) = Findings.of([lost(1), lost(2, "another norm has no bound")]).rows
    assert line.message == "a norm has no bound; similar for the rest"


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
    assert len(Findings.of([lost(1), other]).rows) == 2


def test_findings_without_a_place_are_joined_where_they_are_the_same() -> None:
    one, other = replace(lost(1), node=""), replace(lost(1, "another"), node="")
    assert [line.message for line in Findings.of([one, other, one]).rows] == [
        "a norm has no bound (2 times)",
        "another",
    ]


def test_a_refusal_of_many_nodes_is_one_line() -> None:
    reasons = tuple(
        Refusal("LC003", f"loop{number}", "Loop", "loops are not supported", "unroll it")
        for number in range(COUNT)
    )
    shown = inspection_text(replace(refused(), refusals=reasons), width=200, color=False)
    assert shown.count("LC003") == 2  # the reason, and how to read more about it
    assert "Loop loop0, loop1" in shown
    assert "(27 in all): loops are not supported" in shown
    assert len(Findings.of(reasons).rows) == 1
