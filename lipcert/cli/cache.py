"""The cache of proposals on the command line: where it is, and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from lipcert.analysis.records import Analysis
from lipcert.cli.paths import path_of
from lipcert.cli.sources import CACHE_VARIABLE
from lipcert.search.cache import ProposalCache
from lipcert.text.safe import safe


def open_cache(enabled: bool, environment: Mapping[str, str]) -> ProposalCache | None:
    """The cache of this user; None where there is none or it is not wanted."""
    directory = cache_directory(environment) if enabled else None
    return None if directory is None else ProposalCache(directory)


def cache_directory(environment: Mapping[str, str]) -> Path | None:
    """LIPCERT_CACHE_DIR, else `lipcert` in XDG_CACHE_HOME or ~/.cache; None without a home.

    Environment only: a settings file may come with another person's project, and must not choose
    what is proposed.
    """
    chosen = environment.get(CACHE_VARIABLE)
    if chosen:
        return path_of(chosen, CACHE_VARIABLE)
    shared = Path(environment.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():  # the XDG specification: a relative path is ignored
        return shared / "lipcert"
    try:
        return Path.home() / ".cache" / "lipcert"
    except RuntimeError:
        return None


def with_note(analysis: Analysis, cache: ProposalCache | None) -> Analysis:
    """The analysis, with a note on norms that were remembered; warns about an unused directory."""
    if cache is None:
        return analysis
    if cache.complaint:
        where = safe(f"{cache.directory}: {cache.complaint}")
        click.echo(f"lipcert: warning: norms are not cached in {where}", err=True)
    if not cache.hits:
        return analysis
    note = (
        "operator norms that an earlier run found, read from the private cache of this user and "
        f"proved again: {cache.hits}; --no-cache searches them anew"
    )
    facts = analysis.assumptions
    return replace(analysis, assumptions=replace(facts, notes=(*facts.notes, note)))
