"""What the site makes of the repository, for MkDocs (`hooks` in mkdocs.yml).

Pages that lie elsewhere in the repository (README, CONTRIBUTING, …) become pages of the site, with
their links, and a link to any other file of the repository leads to a page that shows it.
Options of verbs are those that click knows (`<!-- options: VERB -->` in a page), diagnostics and
rules those of `lipcert explain`. A page that loads anything from elsewhere fails the build.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from lipcert.cli.main import cli
from lipcert.explain import all_keys, explain

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "conformance.md": "tests/conformance/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "models.md": "models/README.md",
    "security.md": "SECURITY.md",
}
"""pages of the site that are files of the repository outside of docs/"""
_HOMES: Final = {path: uri for uri, path in OUTSIDE.items()}
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")
_OPTIONS: Final = re.compile(r"<!-- options: ([a-z ]+) -->")
_FETCHED: Final = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|"""
    r"""<link[^>]*rel=["']?(?:stylesheet|preload|icon)[^>]*href=["']?(?:https?:)?//|"""
    r"""@import\s+(?:url\()?["']?(?:https?:)?//"""
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated, and the files of the repository that pages link to."""
    for uri, path in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "diagnostics.md", content=_explained("Diagnostics")))
    files.append(File.generated(config, "rules.md", content=_explained("Rules")))
    pages = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    linked = {path for uri, text in pages for path in _linked(uri, text)}
    for path in sorted(linked):
        if _uri(path) == f"source/{path}.md" and (ROOT / path).is_file():
            shown = f"# {path}\n\n```{Path(path).suffix.lstrip('.')}\n{_read(path)}```\n"
            file = File.generated(config, _uri(path), content=shown)
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put options in, and make links within the repository links within the site."""
    del config, files
    uri = page.file.src_uri
    markdown = _OPTIONS.sub(lambda found: _options(found[1].split()), markdown)
    folder = posixpath.dirname(uri) or "."

    def moved(link: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_target(uri, link[1])), folder)

    parts = _FENCED.split(markdown)
    parts[::2] = [_LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads anything from elsewhere."""
    del config
    if found := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {found[0]}")
    return output


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _target(uri: str, link: str) -> str:
    """The path within the repository to which a link of a page leads."""
    path = OUTSIDE.get(uri, f"docs/{uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _uri(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return _HOMES.get(path, f"source/{path}.md")


def _linked(uri: str, text: str) -> Iterator[str]:
    for part in _FENCED.split(text)[::2]:
        yield from (_target(uri, link) for link in _LINK.findall(part))


def _explained(title: str) -> str:
    """All pages of `lipcert explain` of one kind."""
    is_code = re.compile(r"LC\d{3}")
    keys = [key for key in all_keys() if bool(is_code.fullmatch(key)) is (title == "Diagnostics")]
    parts = [f"# {title}", "`lipcert explain KEY` prints each of these."]
    for key in keys:
        head, _, text = explain(key).partition("\n\n")
        if title == "Diagnostics":
            parts += [f"## {key}", f"**{head.removeprefix(f'{key}: ')}**", text]
        else:
            parts += [f"## {key}", f"```text\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def _options(words: list[str]) -> str:
    """Usage and options of a verb, as click knows them."""
    command: click.Command = cli
    context = click.Context(cli, info_name="lipcert", max_content_width=100)
    for word in words:
        assert isinstance(command, click.Group)  # noqa: S101
        found = command.get_command(context, word)
        if found is None:
            raise PluginError(f"there is no verb {' '.join(words)!r}")
        command, context = found, click.Context(found, info_name=word, parent=context)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"```text\n{context.command_path} {usage}\n```", ""]
    if isinstance(command, click.Group):
        return "\n".join(lines)
    lines += ["| option | meaning |", "|---|---|"]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            name, text = (cell.replace("|", "\\|") for cell in record)
            lines.append(f"| `{name}` | {_escaped(text)} |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return re.sub(r"([<>*_])", r"\\\1", text)
