"""Output: write a result in the requested format, to standard output or atomically to files.

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
"""Most rows of a table in text, unless all are requested."""
Destination = tuple[str, Path]
"""A format and the file that receives it."""

_WIDTH_OF_A_PIPE: Final = 120


def write(text: str | bytes, file: Path | None = None) -> None:
    """Write to a file, or to standard output."""
    if file is None:
        text = text if isinstance(text, bytes) else text.encode(_encoding(), "backslashreplace")
        click.echo(text, nl=False)
        return
    text = text if isinstance(text, bytes) else text.encode("utf-8")
    try:
        if file.exists() and not file.is_file():  # a pipe or a device is not replaced
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
    """How a verb writes its result, as read by `options.output_options`.

    file: None: standard output. further: additional reports. color: auto, always or never.
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
        """Raise NoVerdictError if results cannot be written; see `paths.require_writable`."""
        files = [self.file, *(file for _, file in self.further), *also]
        require_writable(files, sources)

    def write(self, rendered: Callable[[str, bool], str]) -> None:
        """Write the result and the additional reports; only standard output is coloured.

        rendered: returns the text for the name of a format, and whether to colour it.
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
        """Write what was found, in every requested format.

        document: makes a document of it; None if all formats are files. ci: makes a report for CI
        systems. most: rows of tables by format, for a document that takes a limit. files: make the
        other formats; a page is made of the JSON.
        """

        def rendered(name: str, color: bool) -> str:
            if name in files:
                return files[name](*found)
            if name == "html":
                from lipcert.report.sources import page_of

                return page_of(files["json"](*found))
            if ci is not None and name in CI_FORMATS:
                from lipcert.report.ci import ci_text

                return ci_text(ci(*found), name)
            if document is None:
                raise TypeError(f"a result has no {name}")
            limit = () if most is None else (None if self.show_all else most.get(name),)
            shown = document(*found, *limit)
            width = shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 24)).columns
            return document_text(shown, name, width=width, color=color)

        self.write(rendered)


def document_text(document: Document, name: str, *, width: int = 120, color: bool = False) -> str:
    """Return the document as "text" or "markdown"."""
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


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _write_to_device(text: bytes, file: Path) -> None:
    """Write to a pipe or a device; a pipe without a reader is an error instead of a long wait."""
    handle = os.open(file, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as stream:
        stream.write(text)
