"""What the site makes of the repository, for MkDocs (`hooks` in mkdocs.yml).

Pages that lie elsewhere in the repository (README, CONTRIBUTING, …) become pages of the site, with
their links, and a link to any other file of the repository leads to a page that shows it.
Options are those that click knows (`<!-- options: VERB -->` in a page, `<!-- options: settings -->`
for those that are settings), public names those of a module's `__all__` (`<!-- api: MODULE -->`),
diagnostics and rules those of `lipcert explain`. A page that loads anything from elsewhere fails
the build.
"""

from __future__ import annotations

import importlib
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
from lipcert.cli.sources import KNOBS
from lipcert.explain import all_keys, explain

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = {
    "index.md": "README.md",
    "audit_faults.md": "benchmarks/audit_faults.md",
    "changelog.md": "CHANGELOG.md",
    "conformance.md": "tests/conformance/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "gain.md": "benchmarks/suggested_runs/results.md",
    "gpu.md": "benchmarks/gpu.md",
    "digits_gap.md": "benchmarks/digits_gap/page.md",
    "models.md": "models/README.md",
    "private_training.md": "benchmarks/private_training.md",
    "reproductions.md": "benchmarks/reproductions/results.md",
    "security.md": "SECURITY.md",
}
"""pages of the site that are files of the repository outside of docs/"""
_HOMES: Final = {path: uri for uri, path in OUTSIDE.items()}
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")
_CODE: Final = re.compile(r"(?<!\[)`(LC\d{3})`")
_OPTIONS: Final = re.compile(r"<!-- options: ([a-z ]+) -->")
_API: Final = re.compile(r"<!-- api: ([a-z.]+) -->")
_FETCHED: Final = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|"""
    r"""<link[^>]*rel=["']?(?:stylesheet|preload|icon)[^>]*href=["']?(?:https?:)?//|"""
    r"""@?import[\s(]+(?:url\()?["']?(?:https?:)?//"""
)
_MERMAID: Final = re.compile(
    r"<script type=.module.>(?:(?!</script>).)*mermaid.*?</script>", re.DOTALL
)
"""in every notebook, for diagrams that none of them has"""


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
    markdown = _API.sub(lambda found: _public(found[1]), markdown)
    folder = posixpath.dirname(uri) or "."

    def moved(link: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_target(uri, link[1])), folder)

    codes = posixpath.relpath("diagnostics.md", folder)

    def linked(text: str) -> str:
        text = _LINK.sub(moved, text)
        return _CODE.sub(lambda code: f"[`{code[1]}`]({codes}#{code[1].lower()})", text)

    parts = _FENCED.split(markdown)
    parts[::2] = map(linked, parts[::2])
    return "".join(parts)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads anything from elsewhere."""
    del config
    output = _MERMAID.sub("", output)
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


def _public(module: str) -> str:
    """What mkdocstrings makes a reference of."""
    names = (n for n in importlib.import_module(module).__all__ if not n.startswith("__"))
    return "\n\n".join(f"::: {module}.{name}" for name in names)


def _options(words: list[str]) -> str:
    """Usage and options of a verb as click knows them, settings left to their own page."""
    if words == ["settings"]:
        values = [_cell(knob.metavar.replace("|", " | ")) for knob in KNOBS]
        rows = [(f"`{k.key}`", v, _cell(k.text)) for k, v in zip(KNOBS, values, strict=True)]
        return _table(("setting", "value", "meaning"), rows)
    command: click.Command = cli
    context = click.Context(cli, info_name="lipcert", max_content_width=100)
    for word in words:
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            raise PluginError(f"there is no verb {' '.join(words)!r}")
        command, context = found, click.Context(found, info_name=word, parent=context)
    parameters = command.get_params(context)
    takes_settings = any("--config" in parameter.opts for parameter in parameters)
    if takes_settings:
        settings = {knob.option for knob in KNOBS}
        parameters = [p for p in parameters if settings.isdisjoint(p.opts)]
    records = filter(None, (parameter.get_help_record(context) for parameter in parameters))
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"```text\n{context.command_path} {usage}\n```"]
    parts.append(
        _table(("option", "meaning"), [(f"`{o}`", _cell(text)) for o, text in records if text])
    )
    if takes_settings:
        parts.append("Further options are the [settings](settings.md).")
    return "\n\n".join(parts)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"([<>*_|\[\]])", r"\\\1", text)
