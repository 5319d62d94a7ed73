"""The cache of norms, as the command line uses it: where it is, and what is said about it.

What enters: the environment and the setting `cache`. What leaves: a rule for norms, a warning
where the directory is not used, and a note in the report where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from lipcert.analysis.records import Analysis
from lipcert.cli.sources import CACHE_VARIABLE
from lipcert.norm_cache import NormCache
from lipcert.safe import safe


def open_cache(enabled: bool, environment: Mapping[str, str], rules: str) -> NormCache | None:
    """The cache of this user; None where there is none or it is not wanted.

    rules: digest of the rules, taken before the engine was imported; "" if there is none.
    """
    directory = cache_directory(environment) if enabled and rules else None
    return None if directory is None else NormCache(directory, rules)


def cache_directory(environment: Mapping[str, str]) -> Path | None:
    """LIPCERT_CACHE_DIR, else `lipcert` in XDG_CACHE_HOME or ~/.cache; None without a home.

    Environment only: a settings file may come with somebody else's project, and must not choose
    which norms are believed.
    """
    chosen = environment.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    shared = Path(environment.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():  # the XDG specification: a relative path is ignored
        return shared / "lipcert"
    try:
        return Path.home() / ".cache" / "lipcert"
    except RuntimeError:
        return None


def with_note(analysis: Analysis, cache: NormCache | None) -> Analysis:
    """The analysis, with a note on norms that were remembered; warns about an unused directory."""
    if cache is None:
        return analysis
    if cache.complaint:
        where = safe(f"{cache.directory}: {cache.complaint}")
        click.echo(f"lipcert: warning: norms are not cached in {where}", err=True)
    if not cache.hits:
        return analysis
    note = (
        "operator norms that an earlier run certified and that were read from the private cache "
        f"of this user: {cache.hits}; --no-cache computes them again"
    )
    facts = analysis.assumptions
    return replace(analysis, assumptions=replace(facts, notes=(*facts.notes, note)))
