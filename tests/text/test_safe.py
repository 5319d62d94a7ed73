"""Strings chosen by an attacker are inert in every report."""

import csv as csv_module
import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.report.analysis import analysis_csv, analysis_json
from lipcert.report.inspection import inspection_json
from lipcert.report.json import error_json
from lipcert.text.safe import safe, shortened
from tests.report.samples import inspection, refused, sample
from tests.report.written import analysis_markdown, analysis_text, inspection_text

NASTY = [
    "[/]",
    "[bold]x[/bold]",
    "\x1b[31mred",
    "\n::error::x",
    "  ::add-mask::x",
    "##[error]x",
    "##vso[task.complete]",
    "a\u202egnp.exe",
    "\u2066x",
    "\ud800",
    "\x00\x07\x7f\x9b",
    "a\r\nb\u2028c",
    "x" * 40 + "::error::x",
    "x" * 33 + "::error::x",
    "x" * 100 + "::error::x",
    "|x|`<script>`",
    "=cmd()",
    "",
    "🙂:smile:",
]
names = st.one_of(st.sampled_from(NASTY), st.text(max_size=60))

FOR_PEOPLE = {
    "text": lambda name: analysis_text(sample(name), width=100, color=False, show_all=True),
    "narrow": lambda name: analysis_text(sample(name), width=40, color=False, show_all=False),
    "markdown": lambda name: analysis_markdown(sample(name)),
    "csv": lambda name: analysis_csv(sample(name)),
    "inspection": lambda name: inspection_text(inspection(name), width=80, color=False),
    "refusal": lambda name: inspection_text(refused(name), width=80, color=False),
}
FOR_PROGRAMS = {
    "analysis": lambda name: analysis_json(sample(name)),
    "inspection": lambda name: inspection_json(inspection(name)),
    "refusal": lambda name: inspection_json(refused(name)),
    "error": lambda name: error_json(3, name, refused(name).refusals),
}


def check_inert(text: str) -> None:
    for line in text.split("\n"):
        assert not line.strip().startswith("::"), line
        assert "##[" not in line
        assert "##vso" not in line
        for character in line:
            assert character == " " or unicodedata.category(character) not in {
                "Cc",
                "Cf",
                "Cs",
                "Zl",
                "Zp",
            }, ascii(line)


@pytest.mark.parametrize("emitter", FOR_PEOPLE)
@given(name=names)
def test_no_report_for_people_carries_a_control_sequence(emitter: str, name: str) -> None:
    check_inert(FOR_PEOPLE[emitter](name))


@pytest.mark.parametrize("emitter", FOR_PROGRAMS)
@given(name=names)
def test_json_is_inert_ascii(emitter: str, name: str) -> None:
    text = FOR_PROGRAMS[emitter](name)
    assert text.isascii()
    check_inert(text)
    json.loads(text)


@given(name=names)
def test_json_keeps_names_exactly(name: str) -> None:
    assert json.loads(analysis_json(sample(name)))["nodes"][0]["name"] == name
    assert json.loads(inspection_json(inspection(name)))["parameters"][0]["name"] == name


@given(name=names)
def test_csv_has_one_row_per_parameter(name: str) -> None:
    rows = list(csv_module.reader(io.StringIO(analysis_csv(sample(name)))))
    assert len(rows) == 4
    assert {len(row) for row in rows} == {8}
    assert not any(row[0].startswith(("=", "+", "-", "@")) for row in rows)


@pytest.mark.parametrize("name", NASTY)
def test_colour_adds_only_its_own_escapes(name: str) -> None:
    text = analysis_text(sample(name), width=100, color=True, show_all=True)
    assert "\x1b[31mred" not in text


def test_escapes_are_visible() -> None:
    assert safe("a\nb\x1b[0m") == "a\\nb\\x1b[0m"
    assert safe("\u202e") == "\\u202e"
    assert safe("conv1.weight") == "conv1.weight"
    assert safe("[/]") == "[/]"
    assert safe("onnx::MatMul_133") == "onnx::MatMul_133"
    assert safe(" ::error::x") == " \\x3a:error::x"


def test_shortened_keeps_both_ends() -> None:
    text = shortened("encoder.layer.11.attention.weight", 15)
    assert len(text) == 15
    assert text.startswith("encoder")
    assert text.endswith("weight")


def test_markdown_escapes_html_and_tables() -> None:
    text = analysis_markdown(sample("|x|`<script>`"))
    assert "<script>" not in text
    assert "\\|x\\|" in text
