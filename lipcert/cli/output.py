"""Output: a result in the format that was asked for, to standard output or, atomically, into files.

The modules of a format are imported when it is named.
Invariant: a regular file either keeps its old content or holds the whole new one, and stdout
carries results only.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from lipcert.cli.paths import path_of, require_writable
from lipcert.errors import NoVerdictError, UsageError
from lipcert.process.files import write_whole

if TYPE_CHECKING:
    from lipcert.report.ci import CiReport
    from lipcert.report.document import Document

CI_FORMATS: Final = ("sarif", "junit", "github")
ANALYSIS_FORMATS: Final = ("text", "json", "markdown", "csv", "html", *CI_FORMATS)
AUDIT_FORMATS: Final = ("text", "json", "markdown", *CI_FORMATS)
CHECK_FORMATS: Final = ("text", "json", *CI_FORMATS)
SUGGEST_FORMATS: Final = ("text", "json", "markdown")
BOUND_FORMATS: Final = ("text", "json", "markdown", "html")
FOLDED: Final = 40
"""rows of a table in text, unless all are asked for"""
Destination = tuple[str, Path]
"""a format and the file that receives it"""

_WIDTH_OF_A_PIPE: Final = 120


def write(text: str | bytes, file: Path | None = None) -> None:
    """Write to a file, or to standard output."""
    if file is None:
        text = text if isinstance(text, bytes) else text.encode(_encoding(), "backslashreplace")
        click.echo(text, nl=False)
        return
    text = text if isinstance(text, bytes) else text.encode("utf-8")
    try:
        if file.exists() and not file.is_file():  # a pipe or a device is no file to be replaced
            _write_to_device(text, file)
        else:
            write_whole(file, text)
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.ENXIO:
            why = "it is a pipe without a reader; start its reader first"
        raise NoVerdictError(f"cannot write {file}: {why}") from error


@dataclass(frozen=True, slots=True)
class Output:
    """How a verb writes its result: what `options.output_options` read.

    file: None: standard output. further: reports besides. color: auto, always or never.
    """

    format: str
    file: Path | None
    further: tuple[Destination, ...]
    show_all: bool
    progress: bool | None
    color: str

    def require_writable(
        self, sources: Iterable[Path | None] = (), also: Iterable[Path | None] = ()
    ) -> None:
        """NoVerdictError unless results can be put where they go; see `paths.require_writable`."""
        files = [self.file, *(file for _, file in self.further), *also]
        require_writable(files, sources)

    def write(self, rendered: Callable[[str, bool], str]) -> None:
        """The result, and the further reports; only standard output is coloured.

        rendered: from the name of a format, and whether to colour it.
        """
        for name, file in self.further:
            write(rendered(name, False), file)
        write(rendered(self.format, self.file is None and use_color(self.color)), self.file)

    def show(
        self,
        document: Callable[..., Document] | None,
        *found: object,
        ci: Callable[..., CiReport] | None = None,
        most: Mapping[str, int] | None = None,
        **files: Callable[..., str],
    ) -> None:
        """The same of what was found, by what makes a document of it, a report for CI systems, and
        files in other formats. document: None where all of them are files. most: rows of tables by
        format, of a document that takes a limit."""

        def rendered(name: str, color: bool) -> str:
            if name in files:
                return files[name](*found)
            if ci is not None and name in CI_FORMATS:
                from lipcert.report.ci import ci_text

                return ci_text(ci(*found), name)
            if document is None:
                raise TypeError(f"a result has no {name}")
            limit = () if most is None else (None if self.show_all else most.get(name),)
            shown = document(*found, *limit)
            return document_text(shown, name, width=text_width(), color=color)

        self.write(rendered)


def document_text(document: Document, name: str, *, width: int = 120, color: bool = False) -> str:
    """The document as "text" or "markdown"."""
    if name == "markdown":
        from lipcert.report.markdown import markdown

        return markdown(document)
    from lipcert.report.text import text

    return text(document, width=width, color=color)


def parse_report(word: str, formats: tuple[str, ...]) -> Destination:
    """Read `--report FMT=FILE`."""
    name, equals, file = word.partition("=")
    if not equals or not file or name not in formats:
        raise UsageError(f"--report: {word!r} is not FMT=FILE with FMT one of {', '.join(formats)}")
    return name, path_of(file, "--report")


def use_color(choice: str) -> bool:
    """Whether text on standard output is coloured."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def text_width() -> int:
    """Columns of the terminal; 120 where there is none."""
    return shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 24)).columns


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _write_to_device(text: bytes, file: Path) -> None:
    """Write to a pipe or a device; where a pipe has no reader, an error and not an endless wait."""
    handle = os.open(file, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as stream:
        stream.write(text)
