"""Text: a document for a person at a terminal.

Its first lines are the answers. Strings pass through `safe` and are printed as text, never as
markup; a number is shown in full or not at all, because a bound that lost its last digits would
read as a smaller one; no line is a command of a CI log.

Markdown: a document as GitHub-flavoured Markdown, for pull requests and step summaries.

Every string of a model, a trace or a user is inert: made safe, and each character with a meaning in
Markdown or HTML escaped. The text is below one mebibyte, and says where it was cut. Figures are
left out.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from lipcert.report import document as doc
from lipcert.text.numbers import NO_BOUND, bar
from lipcert.text.safe import safe, shortened

_COMMAND: Final = re.compile(r"^(\s*)::")  # a word may have been folded in its middle
_DIGITS: Final = 4
_NAME: Final = 36
_INDENT: Final = 2
_GAP: Final = 2
_STYLES: Final = {
    doc.Tone.GOOD: "bold green",
    doc.Tone.BAD: "bold red",
    doc.Tone.OPEN: "bold yellow",
    doc.Tone.PLAIN: "",
    doc.Tone.SUBJECT: "bold",
}
_LEVELS: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def text(document: doc.Document, *, width: int, color: bool) -> str:
    """The whole document, in so many columns."""
    console = _canvas(width, color)
    for answer in document.answers:
        console.print(Text(safe(answer.text), _STYLES[answer.tone]))
    _print(console, document.facts)
    for section in document.sections:
        console.print()
        if section.title:
            console.print(Text(safe(section.title), "bold"))
        for part in section.parts:
            _print(console, part)
    return _written(console)


def _canvas(width: int, color: bool) -> Console:
    """A console that writes into memory and interprets no markup."""
    return Console(
        file=io.StringIO(),
        width=max(width, 40),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def _written(console: Console) -> str:
    """What was written, without trailing blanks."""
    written = console.file
    if not isinstance(written, io.StringIO):
        raise TypeError("the console does not write into memory")
    lines = (_COMMAND.sub(r"\1\\x3a:", line.rstrip()) for line in written.getvalue().splitlines())
    return "\n".join(lines).strip("\n") + "\n"


def _print(console: Console, part: doc.Part) -> None:
    match part:
        case doc.Statements(rows) if rows:
            _print_statements(console, part)
        case doc.Listing(sentences, hidden):
            grid = _grid()
            for sentence in sentences:
                grid.add_row("  -", Text(safe(sentence)))
            console.print(grid)
            _rest(console, hidden)
        case doc.Findings():
            _print_findings(console, part)
        case doc.Table():
            _print_table(console, part)
        case doc.Ranking(bars):
            grid = Grid.grid(padding=(0, 2))
            for item in bars:
                style = _STYLES[item.tone] or "magenta"
                cells = [Text(f"  {shortened(item.name, _NAME)}")]
                cells += [Text(shortened(item.kind, 20), "dim")] if _kinds(part) else []
                cells += [Text(safe(item.number), _STYLES[item.tone], justify="right")]
                grid.add_row(*cells, Text(f"{bar(item.share)} {safe(item.remark)}", style))
            console.print(grid)
        case doc.Commands(lines):
            for comment, line in lines:
                if comment:
                    console.print(Text(f"# {safe(comment)}", "dim"))
                console.print(Text(safe(line)), soft_wrap=True)


def _kinds(ranking: doc.Ranking) -> bool:
    return any(item.kind for item in ranking.rows)


def _grid(labels: int = 1) -> Grid:
    """A grid of labels and a text that wraps beside them."""
    grid = Grid.grid(padding=(0, 2))
    for _ in range(labels):
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _print_statements(console: Console, part: doc.Statements) -> None:
    grid = _grid(1 + part.has_status)
    for row in part.rows:
        status = [Text(safe(row.status), _STYLES[row.tone])] if part.has_status else []
        topic = Text(f"  {shortened(row.topic, _NAME)}", "dim")
        grid.add_row(topic, *status, Text(safe(row.text), _STYLES[part.tone]))
    console.print(grid)


def _print_findings(console: Console, part: doc.Findings) -> None:
    grid = _grid()
    for line in part.rows:
        where = f"{safe(line.where)}: " if line.where else ""
        label = Text(f"  {safe(' '.join(line.label))}", _LEVELS.get(line.label[0], ""))
        grid.add_row(label, Text(f"{where}{safe(line.what)}"))
        if line.remedy:
            grid.add_row("", Text(f"remedy: {safe(line.remedy)}", "dim"))
    console.print(grid)
    _rest(console, part.hidden)


def _rest(console: Console, hidden: int) -> None:
    if hidden > 0:
        console.print(Text(f"  {hidden:,} further rows: --all shows them", "dim"))


def _print_table(console: Console, table: doc.Table) -> None:
    """What fits, and one line about the columns that do not."""
    rows = [
        [shortened(doc.cell_text(cell, _DIGITS), _most(column)) for cell, column in pairs]
        for pairs in (zip(row, table.columns, strict=True) for row in table.rows)
    ]
    kept, widths = _fitted(table.columns, rows, console.width)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, width in zip(kept, widths, strict=True):
        column = table.columns[index]
        title = Text(column.title, justify="right" if column.is_number else "left")
        grid.add_column(title, justify=title.justify or "left", no_wrap=True, width=width)
    for row in rows:
        cells = (shortened(row[index], width) for index, width in zip(kept, widths, strict=True))
        grid.add_row(*(Text(cell, "bold red" if cell == NO_BOUND else "") for cell in cells))
    console.print(Padding(grid, (0, 0, 0, _INDENT), expand=False))
    missing = [column.title for i, column in enumerate(table.columns) if i not in kept]
    if missing:
        note = f"  without {', '.join(missing)}: the terminal is too narrow"
        console.print(Text(note, "dim"))
    _rest(console, table.hidden)


def _most(column: doc.Column) -> int:
    return 10**6 if column.is_number else column.most


def _fitted(
    columns: Sequence[doc.Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[int], list[int]]:
    """The columns to show and their widths: names give way before numbers."""
    natural = [
        max([len(column.title), *(len(row[i]) for row in rows)]) for i, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while True:
        widths = [natural[i] for i in kept]
        least = [max(columns[i].least, len(columns[i].title)) for i in kept]
        excess = _INDENT + sum(widths) + _GAP * len(kept) - width
        while excess > 0:
            spare = [
                now - low if columns[i].least else 0
                for i, now, low in zip(kept, widths, least, strict=True)
            ]
            if max(spare) <= 0:
                break
            widths[spare.index(max(spare))] -= 1
            excess -= 1
        leaving = max(kept, key=lambda i: columns[i].rank)
        if excess <= 0 or columns[leaving].rank == 0:
            return kept, widths
        kept.remove(leaving)


LARGEST: Final = 1024 * 1024 - 1
"""bytes in UTF-8; GitHub refuses a step summary of 1 MiB"""

_SPECIAL: Final = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~#!&@$:"})
_LONGEST: Final = 1000
_MARKDOWN_DIGITS: Final = 5
_CUT: Final = "\n\nThe rest was cut: it does not fit into a step summary.\n"


def markdown(*documents: doc.Document) -> str:
    """The text of documents, one after another."""
    blocks: list[str] = []
    for document in documents:
        blocks.append(f"# {escaped(document.title)}")
        blocks += [*map(_answer, document.answers), *_blocks(document.facts)]
        for section in document.sections:
            found = [block for part in section.parts for block in _blocks(part)]
            title = [f"## {escaped(section.title)}"] if section.title and found else []
            blocks += [*title, *found]
    return _cut("\n\n".join(blocks) + "\n")


def escaped(text: str) -> str:
    """A text that means itself, whatever it holds."""
    return shortened(text, _LONGEST).translate(_SPECIAL)


def _answer(answer: doc.Answer) -> str:
    text = escaped(answer.text)
    return text if answer.tone is doc.Tone.SUBJECT else f"**{text}**"


def _blocks(part: doc.Part) -> Iterator[str]:
    match part:
        case doc.Statements(rows, _) if rows:
            if part.has_status:
                cells = [(row.topic, row.status, row.text) for row in rows]
                yield _table(("", "status", "statement"), cells)
            else:
                yield _table(("", ""), [(row.topic, row.text) for row in rows])
        case doc.Listing(sentences, hidden):
            yield "\n".join(f"- {escaped(sentence)}" for sentence in sentences)
            yield from _rest_of(hidden)
        case doc.Findings(lines, hidden):
            width = max((len(line.label) for line in lines), default=1)
            titles = (*("level", "code")[-width:], "where", "finding", "remedy")
            yield _table(titles, [(*i.label, i.where, i.what, i.remedy) for i in lines])
            yield from _rest_of(hidden)
        case doc.Table(columns, rows, hidden):
            yield _table([column.title for column in columns], rows)
            yield from _rest_of(hidden)
        case doc.Ranking(bars):
            yield _table(("", "", ""), [(b.name, b.kind, f"{b.number} {b.remark}") for b in bars])
        case doc.Commands(lines):
            # an indented block: nothing in it can end it, because every command is one line
            comments = [f"    # {safe(comment)}\n" if comment else "" for comment, _ in lines]
            pairs = zip(comments, lines, strict=True)
            yield "\n".join(f"{comment}    {safe(line)}" for comment, (_, line) in pairs)


def _table(titles: Sequence[str], rows: Sequence[Sequence[doc.Cell]]) -> str:
    lines = [titles, ["---"] * len(titles)]
    lines += [
        [escaped(doc.cell_text(cell, _MARKDOWN_DIGITS)).strip() for cell in row] for row in rows
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _rest_of(hidden: int) -> Iterator[str]:
    if hidden > 0:
        yield f"{hidden:,} further rows are in the other formats."


def _cut(text: str) -> str:
    """At the end of a line, with a note."""
    data = text.encode("utf-8")
    if len(data) <= LARGEST:
        return text
    head = data[: LARGEST - len(_CUT.encode("utf-8"))].decode("utf-8", "ignore")
    return head.rpartition("\n")[0] + _CUT
