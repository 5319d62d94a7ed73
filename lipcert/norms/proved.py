"""Proved: a bound together with what replays its proof.

What enters: the result of a search. What leaves: a record that the ladder of norms passes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from lipcert.facts import Witness
from lipcert.upper import INFINITE, Upper


@final
@dataclass(frozen=True, slots=True)
class Proved:
    """A bound, inf where there is none; witness: None where the rule and the bound suffice."""

    bound: Upper
    witness: Witness | None = None


UNPROVED: Final = Proved(INFINITE)
"""No bound."""
