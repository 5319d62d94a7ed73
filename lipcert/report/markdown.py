"""Markdown: a document as GitHub-flavoured Markdown, for pull requests and step summaries.

Every string of a model, a trace or a user is inert: it is made safe, and each character with a
meaning in Markdown or HTML is escaped. The text is below one mebibyte, and says if it was cut.
Figures are left out.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from lipcert.report import document as doc
from lipcert.text.safe import safe, shortened

LARGEST: Final = 1024 * 1024 - 1
"""Most bytes in UTF-8; GitHub refuses a step summary of 1 MiB."""

_SPECIAL: Final = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~#!&@$:"})
_LONGEST: Final = 1000
_DIGITS: Final = 5
_CUT: Final = "\n\nThe rest was cut: it does not fit into a step summary.\n"


def markdown(*documents: doc.Document) -> str:
    """Return the text of documents, one after another."""
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
    """Return a text in which no character has a special meaning."""
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
            yield from _rest(hidden)
        case doc.Findings(lines, hidden):
            titles = ("level", "code", "where", "finding", "remedy")
            yield _table(
                titles, [(x.level.value, x.code, x.where, x.message, x.remedy) for x in lines]
            )
            yield from _rest(hidden)
        case doc.Table(columns, rows, hidden):
            yield _table([column.title for column in columns], rows)
            yield from _rest(hidden)
        case doc.Commands(lines):
            # an indented block: nothing in it can end it, because every command is one line
            comments = [f"    # {safe(comment)}\n" if comment else "" for comment, _ in lines]
            pairs = zip(comments, lines, strict=True)
            yield "\n".join(f"{comment}    {safe(line)}" for comment, (_, line) in pairs)


def _table(titles: Sequence[str], rows: Sequence[Sequence[doc.Cell]]) -> str:
    lines = [titles, ["---"] * len(titles)]
    lines += [[escaped(doc.cell_text(cell, _DIGITS)).strip() for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _rest(hidden: int) -> Iterator[str]:
    if hidden > 0:
        yield f"{hidden:,} further rows are in the other formats."


def _cut(text: str) -> str:
    """Cut at the end of a line, with a note."""
    data = text.encode("utf-8")
    if len(data) <= LARGEST:
        return text
    head = data[: LARGEST - len(_CUT.encode("utf-8"))].decode("utf-8", "ignore")
    return head.rpartition("\n")[0] + _CUT
