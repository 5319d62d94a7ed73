"""The mechanism of a planned run: its record, and what it makes of a gradient bound.

What enters: the settings, groups with the bounds of the network. What leaves: a `Mechanism`, and
groups with the bounds of the run, after the clips that the core takes account of.
"""

from __future__ import annotations

from dataclasses import replace

from lipcert.analysis.groups import Group
from lipcert.core.claims import clipped_group
from lipcert.core.ledger import MECHANISMS, Mechanism, Premises
from lipcert.core.ledger.mechanism import names_of
from lipcert.settings.settings import Settings
from lipcert.upper import Upper, root_sum_square


def mechanism_of(settings: Settings) -> Mechanism:
    """The mechanism that the settings name, with what it enforces."""
    found = MECHANISMS[settings.mechanism]
    given = {name: getattr(settings, name) for name in names_of(found)}
    return found(**{name: value for name, value in given.items() if value is not None})


def clipped_groups(
    groups: tuple[Group, ...], premises: Premises, *, lasts: bool
) -> tuple[Group, ...]:
    """Groups as the mechanism releases them, given those that the network bounds.

    A flat clip bounds all parameters jointly, and says no more of any part: they are one group.
    lasts: whether bounds of the network hold at every step that is spoken of, as it is trained.
    """
    if premises.clip is None or not groups:
        return groups
    if premises.clip.clip_scope == "flat":
        joint = root_sum_square(group.grad_norm for group in groups)
        groups = (Group("all", tuple(p for group in groups for p in group.parameters), joint),)
    return tuple(
        replace(
            group,
            grad_norm=Upper(
                clipped_group(group.grad_norm.value, len(groups), premises, lasts=lasts)
            ),
        )
        for group in groups
    )
