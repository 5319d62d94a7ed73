"""Pages of the documentation: the blocks in them, and sessions that run as they are shown.

A `console` block is a session: lines that begin with `$ ` are commands, what follows is what they
print, but for what `…` leaves out. It runs in a folder with the models and examples of the
repository, after the blocks above it; blocks of Python on such a page run in one namespace.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commands import lipcert, printed_by, script

ROOT = Path(__file__).resolve().parents[1]
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
FOUND = re.compile(r"would have been noticed|the true value is|times what clipping|largest")
"""a line whose numbers an ascent found"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page, below a heading."""

    heading: str
    language: str
    text: str


def read(page: str) -> str:
    """The text of a page, by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str):
    """All fenced blocks of a page."""
    heading = ""
    text = re.sub(r"^ +(?=```)", "", read(page), flags=re.MULTILINE)
    for found in re.finditer(
        r"^#+ ([^\n]*)$|^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        if found[1] is not None:
            heading = found[1]
        else:
            yield Block(heading, found[2], found[3])


def run_page(page: str, folder: Path) -> None:
    """Run the Python and the sessions of a page, in order, in a folder."""
    for name in ("models", "examples"):
        (folder / name).symlink_to(ROOT / name)
    names = {}
    for block in blocks(page):
        if block.language == "python":
            printed_by(block.text, folder, names)
        elif block.language == "console":
            _session(block.text, folder)


def _session(text: str, folder: Path) -> None:
    code = 0
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        program, *words = shlex.split(command)
        if program == "python":
            printed = script(folder / words[0], *words[1:], cwd=folder)
            code = 0
        elif command == "echo $?":
            printed = f"{code}\n"
        else:
            assert program == "lipcert", command
            done = lipcert(words, folder)
            printed, code = DIGEST.sub("<sha256 of the certificate>", done.stdout), done.exit_code
            assert code == 0 or "echo $?" in text, (command, done.output)
        _compare(command, shown, printed)


def _compare(command: str, shown: str, printed: str) -> None:
    """Line by line, in order, but for what `…` leaves out."""
    lines, place = printed.splitlines(), 0
    elided = False
    for part in re.split(r"^…\n", shown, flags=re.MULTILINE):
        wanted = part.splitlines()
        last = len(lines) - len(wanted) if elided else place
        starts = range(place, last + 1)
        place = next(
            (i + len(wanted) for i in starts if _alike(wanted, lines[i : i + len(wanted)])), -1
        )
        assert place >= 0, f"$ {command}\nprints no such lines:\n{part}\nbut:\n{printed}"
        elided = True
    assert shown.endswith("…\n") or place == len(lines), f"$ {command}\nprints more:\n{printed}"


def _alike(shown: list[str], printed: list[str]) -> bool:
    """The same words; numbers within 1e-3, since BLAS libraries differ in the last digits."""
    return len(shown) == len(printed) and all(map(_alike_line, shown, printed))


def _alike_line(shown: str, printed: str) -> bool:
    close = 0.05 if FOUND.search(shown) else 1e-3
    words = [NUMBER.sub("#", line).split() for line in (shown, printed)]
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=False)
    return words[0] == words[1] and all(
        float(one.replace(",", "")) == pytest.approx(float(other.replace(",", "")), rel=close)
        for one, other in pairs
    )
