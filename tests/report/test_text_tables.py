"""Tables fit their width; names are shortened, numbers are shown in full or not at all."""

import re

from hypothesis import given
from hypothesis import strategies as st

from lipcert.cli.output import document_text
from lipcert.report.document import Column, Document, Section, table
from lipcert.text.safe import shortened

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
