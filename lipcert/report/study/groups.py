"""Groups of a study: per group what is bounded, what was observed, and what noise it gets.

What enters: a study. What leaves: one row per group, in the order of the network. Bound and
observations of a row come from the same document: of an audit where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lipcert.analysis.records import GroupReport
from lipcert.audit.records import GroupAudit
from lipcert.report.study.records import Study


@final
@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group; release: its sensitivity and noise. audit: what was measured of it."""

    name: str
    dimension: int
    grad_norm: float | None
    release: GroupReport | None
    audit: GroupAudit | None


def group_rows(study: Study) -> tuple[GroupRow, ...]:
    """Every group of the study."""
    stated = _stated(study)
    if study.audit is None or not study.audit.groups:
        return tuple(
            GroupRow(group.name, group.dimension, group.grad_norm, group, None) for group in stated
        )
    by_name = {group.name: group for group in stated}
    return tuple(
        GroupRow(item.name, item.dimension, item.grad_norm_bound, by_name.get(item.name), item)
        for item in study.audit.groups
    )


def noise_shares(study: Study) -> dict[str, float]:
    """The share of every group in the noise energy Σ d·s² (empty: not known of every group)."""
    groups = _stated(study)
    energies = {
        group.name: group.dimension * (group.noise_std * group.noise_std)
        for group in groups
        if group.noise_std is not None
    }
    whole = sum(energies.values())
    if len(energies) < len(groups) or not 0.0 < whole < float("inf"):
        return {}
    return {name: energy / whole for name, energy in energies.items()}


def _stated(study: Study) -> tuple[GroupReport, ...]:
    """Of the analysis, else of the certificate."""
    if study.analysis is not None:
        return study.analysis.analysis.groups
    return study.certificate.groups if study.certificate is not None else ()
