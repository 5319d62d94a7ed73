"""Held: groups and values of an audit as what both are, norms held against bounds.

What enters: a `GroupAudit` or a `ValueAudit`. What leaves: one record with what findings, cases
and tables need of either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from lipcert.audit.records import AuditReport, ExampleReference, GroupAudit, Quantity, ValueAudit
from lipcert.report.audit_numbers import largest, tightness_of

QUANTITIES: Final = MappingProxyType(
    {Quantity.OUTPUT_NORM: "norm", Quantity.COTANGENT_NORM: "cotangent norm"}
)
_CODES: Final = MappingProxyType({Quantity.OUTPUT_NORM: "LC302", Quantity.COTANGENT_NORM: "LC303"})


@final
@dataclass(frozen=True, slots=True)
class Held:
    """A norm that was held against a bound.

    code: of its violation. kind, place: where it is ("group", "conv1"). subject: in words.
    quantity: tells several at one place apart, "" for groups. norm: the largest that was found,
    None if nothing was tried. share: norm over bound.
    """

    code: str
    kind: str
    place: str
    subject: str
    quantity: str
    bound: float | None
    norm: float | None
    share: float | None
    violations: int
    undecided: int
    worst_example: ExampleReference | None


def held_items(report: AuditReport) -> Iterator[Held]:
    """All groups, then all values."""
    yield from map(held_group, report.groups)
    yield from map(held_value, report.values)


def held_group(group: GroupAudit) -> Held:
    """The joint gradient norm of the parameters of a group."""
    return Held(
        code="LC301",
        kind="group",
        place=group.name,
        subject=f"the gradient norm of {group.name}",
        quantity="",
        bound=group.grad_norm_bound,
        norm=largest(group.max_observed, group.max_attacked),
        share=tightness_of(group),
        violations=group.violations,
        undecided=group.undecided,
        worst_example=group.worst_example,
    )


def held_value(value: ValueAudit) -> Held:
    """The norm, or the cotangent's norm, of a value; it is placed at the node that computes it."""
    return Held(
        code=_CODES[value.quantity],
        kind="node" if value.node else "value",
        place=value.node or value.value,
        subject=f"the {QUANTITIES[value.quantity]} of {value.value}",
        quantity=f"{value.quantity.value} {value.value}",
        bound=value.bound,
        norm=value.max_observed,
        share=tightness_of(value),
        violations=value.violations,
        undecided=value.undecided,
        worst_example=value.worst_example,
    )


def rank(item: Held) -> tuple[bool, bool, float]:
    """A key that sorts the worst first: violations, then what is undecided, then the tightest."""
    share = -1.0 if item.share is None else item.share
    worst = math.inf if math.isnan(share) else share
    return (item.violations == 0, item.undecided == 0, -worst)
