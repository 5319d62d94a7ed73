"""One document with every kind of part, in every format that writes documents."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.cli.output import document_text
from lipcert.diagnostics import Level
from lipcert.report.document import (
    Answer,
    Column,
    Commands,
    Document,
    Finding,
    Findings,
    Listing,
    Section,
    Statement,
    Statements,
    Tone,
    cell_text,
    ranking,
    sections_of,
    table,
)
from lipcert.report.html import page_html
from tests.report.html.test_writing import check_inert as check_inert_page
from tests.report.shown import number_of
from tests.report.written import check_kept
from tests.text.test_safe import check_inert, names

COLUMNS = (
    Column("node", least=8),
    Column("‖W‖", is_number=True),
    Column("undecided", is_number=True, optional=True),
)
FINDINGS = Findings(
    (Finding("LC101", Level.ERROR, "node", "fc", "no bound", "freeze it"),), hidden=3
)
RICH = Document(
    "LipCert sample",
    (
        Answer("net.onnx", Tone.SUBJECT),
        Answer("All holds.", Tone.GOOD),
        Answer("As far as it was tried.", Tone.GOOD),
    ),
    Statements.of([("sha256", "abab")]),
    sections_of(
        ("Assumptions", Statements((Statement("A-RNG", "of the noise", "checked"),))),
        ("Why", Listing(("one", "two"), hidden=2)),
        ("Findings", FINDINGS),
        ("Nodes", table(COLUMNS, [("fc", 1.00001, "0"), *[("head|", None, "0")] * 8], 2)),
        ("Shares", ranking(("node", "op", "share"), [("fc", "Gemm", "75%", 0.75)])),
        ("Nothing", Listing(()), table(COLUMNS, [])),
        ("Again", Commands((("the same", "lipcert analyze net.onnx"),))),
    ),
    word="PASS",
)


def test_what_is_said_is_what_is_kept() -> None:
    said = {form: document_text(RICH, form, width=60) for form in ("text", "markdown")}
    check_kept("document.txt", said)


def test_html_has_every_text_of_the_document() -> None:
    shown = page_html(RICH.facts, [RICH], {"schema": "sample"})
    words = {"net.onnx", "All holds.", "PASS", "LipCert sample", "As far as it was tried.", "abab"}
    words |= {"Assumptions", "A-RNG", "of the noise", "checked", "one", "two", "no bound"}
    words |= {"freeze it", "LC101", "1.0001", "head|", "75%", "# the same", "Gemm"}
    found = {text.strip() for text in re.findall(r">([^<>]+)<", shown)}
    assert words <= found
    assert "lipcert analyze net.onnx" in shown
    assert "undecided" not in found
    for hidden in (2, 3, 7):
        assert f"{hidden} further rows are in the data at the end of the page" in found


def hostile(name: str) -> Document:
    """A document with the name at every place but the titles of columns, which are our own."""
    statement = Statement(name, name, name)
    return Document(
        name,
        (Answer(name, Tone.SUBJECT), Answer(name, Tone.BAD)),
        Statements.of([(name, name)]),
        (
            Section(
                name,
                (
                    Statements((statement,)),
                    Listing((name,)),
                    Findings((Finding(name, Level.ERROR, name, name, name, name),)),
                    table((Column("node", least=4), Column("op")), [(name, name)]),
                    ranking(("node", "share"), [(name, name, 0.5)]),
                    Commands(((name, name),)),
                ),
            ),
        ),
        word=name,
    )


@given(names)
def test_every_text_of_a_document_is_inert(name: str) -> None:
    for width in (40, 120):
        check_inert(document_text(hostile(name), "text", width=width))
    written = document_text(hostile(name), "markdown")
    check_inert(written)
    prose = [line for line in written.splitlines() if not line.startswith("    ")]
    assert not any(re.search(r"(?<!\\)[<`]", line) for line in prose)
    check_inert_page(page_html(hostile(name).facts, [hostile(name)], {"name": name}))


@pytest.mark.parametrize("width", [20, 40, 57, 80])
def test_text_fits_its_width(width: int) -> None:
    long = hostile("a name of a layer that goes on and on/" * 4)
    (section,) = long.sections
    printed = replace(long, sections=(replace(section, parts=section.parts[:-1]),))
    for document in (RICH, printed):
        shown = document_text(document, "text", width=width)
        assert max(map(len, shown.splitlines())) <= max(width, 40)


@given(st.floats(min_value=0.0, allow_nan=False, allow_infinity=False), st.integers(1, 6))
def test_a_bound_in_a_cell_is_never_shown_below_itself(bound: float, digits: int) -> None:
    shown = cell_text((bound, bound), digits).split(", ")
    assert all(number_of(text) >= Fraction(bound) for text in shown)
    assert number_of(cell_text(bound, digits)) >= Fraction(bound)
    assert cell_text(None, digits) == "no bound"
