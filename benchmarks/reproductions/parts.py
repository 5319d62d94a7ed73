"""Parts: every table there is, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

from benchmarks.reproductions.rows import Part, Row

__all__ = ["PARTS"]


def _part(name: str, module: str, paper: str, duration: str | None = None) -> Part:
    """A part whose module is loaded when its rows are asked for."""

    def rows() -> Iterator[Row]:
        found = import_module(f"benchmarks.reproductions.{module}")
        yield from found.rows()

    return Part(name, paper, rows, duration)


_ALL: Final = (
    _part("guo", "guo", "Guo, 2024"),
    _part("barczewski-e", "clipping_bias", "Barczewski and Ramon, 2024, Appendix E"),
    _part("theorem-1", "theorem_one", "Béthune et al., 2024, Theorem 1"),
    _part("gnp", "norm_preserving", "Béthune et al., 2024, Section 3.1"),
    _part("stevens", "backprop_clipping", "Stevens et al., 2022, Theorem 3"),
    _part("accounting", "accounting", "Stevens et al., Barczewski and Ramon, Béthune et al."),
    _part("allocation", "allocation", "Béthune et al., 2024, Section 2.2"),
    _part(
        "breast-cancer",
        "breast_cancer",
        "Barczewski and Ramon, 2024, Tables 1 and 5",
        "three minutes",
    ),
    _part("small-sets", "small_sets", "all of them, side by side", "four minutes"),
)
PARTS: Final[Mapping[str, Part]] = MappingProxyType({part.name: part for part in _ALL})
