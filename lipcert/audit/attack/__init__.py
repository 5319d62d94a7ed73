"""Attacks: examples, and weights, constructed to come close to the bounds of an audit.

What enters: claims and a few examples. What leaves: proposals. An attack proves nothing and judges
nothing: what it proposes is replayed like any other example.
"""

from __future__ import annotations

from lipcert.audit.attack.proposal import Progress, Proposal, proposals

__all__ = ["Progress", "Proposal", "proposals"]
