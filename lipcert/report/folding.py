"""Folding: which rows of a long table a reader sees first.

What enters: all rows. What leaves: a `Fold` of the rows to show and one sentence about the rest;
diagnostics name every row without a bound, shown or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, final

from lipcert.analysis.records import NodeReport

_MOST_ROWS: Final = 40
_Row = TypeVar("_Row")


@final
@dataclass(frozen=True, slots=True)
class Fold(Generic[_Row]):
    """Rows in their order: a head, and a tail after a gap (empty: no gap)."""

    head: tuple[_Row, ...]
    tail: tuple[_Row, ...] = ()
    note: str = ""


def fold(rows: Sequence[_Row], show_all: bool, hidden: int = 0) -> Fold[_Row]:
    """The first and the last rows; `hidden` were left out before."""
    if show_all or len(rows) <= _MOST_ROWS:
        return Fold(tuple(rows), note=_note(hidden))
    half = _MOST_ROWS // 2
    note = _note(hidden + len(rows) - 2 * half)
    return Fold(tuple(rows[:half]), tuple(rows[-half:]), note)


def fold_nodes(nodes: Sequence[NodeReport], show_all: bool) -> Fold[NodeReport]:
    """Long models: nodes that stretch nothing are hidden first, then the middle."""
    if show_all or len(nodes) <= _MOST_ROWS:
        return fold(nodes, show_all)
    telling = [node for node in nodes if _is_telling(node)]
    return fold(telling, show_all, len(nodes) - len(telling))


def _is_telling(node: NodeReport) -> bool:
    stretches = any(bound is None or bound > 1.0 for bound in node.input_lipschitz)
    return stretches or node.operator_norm is not None


def _note(hidden: int) -> str:
    return f"{hidden} further rows: --all shows them" if hidden else ""
