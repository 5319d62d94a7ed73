"""Rows of an audit's tables, shared by text and Markdown.

What enters: an audit. What leaves: the groups, values and checks to show, and each as cells of raw
text. Invariant: what violates or is undecided is shown before anything else, and never left out
in favour of what holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, final

from lipcert.audit.records import (
    AuditReport,
    CheckReport,
    ExampleReference,
    GroupAudit,
    ValueAudit,
    Verdict,
)
from lipcert.report.audit_held import QUANTITIES, held_group, held_value, rank
from lipcert.report.audit_numbers import beside, factor_of, measured, share_of
from lipcert.report.numbers import at_most

GROUP_TITLES: Final = (
    "group",
    "dimension",
    "bound",
    "observed",
    "attacked",
    "tightness",
    "noticed from",
    "violations",
    "undecided",
    "worst example",
)
VALUE_TITLES: Final = (
    "value",
    "node",
    "quantity",
    "bound",
    "observed",
    "tightness",
    "violations",
    "undecided",
    "worst example",
)
_MOST_VALUES: Final = 8
_CHECK_ORDER: Final = (Verdict.VIOLATION, Verdict.MISMATCH, Verdict.INCONCLUSIVE, Verdict.PASS)
_OPTIONAL: Final = frozenset({"attacked", "undecided", "worst example"})
_SILENT: Final = frozenset({"–", "0", ""})
_Row = TypeVar("_Row", GroupAudit, ValueAudit)


@final
@dataclass(frozen=True, slots=True)
class Chosen(Generic[_Row]):
    """The rows to show, and how many there are besides."""

    rows: tuple[_Row, ...]
    hidden: int


def chosen_groups(report: AuditReport, most: int | None) -> Chosen[GroupAudit]:
    """Groups in their order, or, where there are more than `most`, the worst of them."""
    groups = report.groups
    if most is None or len(groups) <= most:
        return Chosen(groups, 0)
    ranked = sorted(groups, key=lambda group: rank(held_group(group)))
    return Chosen(tuple(ranked[:most]), len(groups) - most)


def chosen_values(report: AuditReport, most: int | None) -> Chosen[ValueAudit]:
    """Values that are broken or undecided, and the tightest of the others; None: all of them."""
    values = report.values
    if most is None:
        return Chosen(values, 0)
    bad = sum(value.violations > 0 or value.undecided > 0 for value in values)
    ranked = sorted(values, key=lambda value: rank(held_value(value)))
    shown = ranked[: min(most, bad + _MOST_VALUES)]
    return Chosen(tuple(shown), len(values) - len(shown))


def checks_in_order(report: AuditReport) -> list[CheckReport]:
    """Those that did not pass first."""
    return sorted(report.checks, key=lambda check: _CHECK_ORDER.index(check.verdict))


def check_sentence(check: CheckReport) -> str:
    """Where, what was found, and the two numbers."""
    where = f"{check.where}: " if check.where else ""
    numbers = []
    if check.measured is not None:
        numbers.append(f"measured {measured(check.measured)}")
    if check.expected is not None:
        numbers.append(f"expected {measured(check.expected)}")
    return f"{where}{check.message}" + (f" ({', '.join(numbers)})" if numbers else "")


def group_cells(group: GroupAudit) -> tuple[str, ...]:
    """In the order of GROUP_TITLES."""
    norms = (group.max_observed, group.max_attacked)
    limit, observed, attacked = beside(group.grad_norm_bound, *norms)
    return (
        group.name,
        f"{group.dimension:,}",
        limit,
        observed,
        attacked,
        share_of(group),
        _factor(group),
        f"{group.violations:,}",
        f"{group.undecided:,}",
        _reference(group.worst_example),
    )


def value_cells(value: ValueAudit) -> tuple[str, ...]:
    """In the order of VALUE_TITLES."""
    limit, observed = beside(value.bound, value.max_observed)
    return (
        value.value,
        value.node or "input",
        QUANTITIES[value.quantity],
        limit,
        observed,
        share_of(value),
        f"{value.violations:,}",
        f"{value.undecided:,}",
        _reference(value.worst_example),
    )


def told(
    titles: Sequence[str], rows: Sequence[tuple[str, ...]]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Without the columns that say nothing: no attack, nothing undecided, nothing tried."""
    kept = [
        index
        for index, title in enumerate(titles)
        if title not in _OPTIONAL or any(row[index] not in _SILENT for row in rows)
    ]
    return [titles[i] for i in kept], [tuple(row[i] for i in kept) for row in rows]


def _factor(group: GroupAudit) -> str:
    factor = factor_of(group)
    return measured(None) if factor is None else at_most(factor, 3)


def _reference(example: ExampleReference | None) -> str:
    return "" if example is None else f"{example.index} at {example.weights}"
