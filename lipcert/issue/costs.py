"""Costs: how much looser what is certified is than what was analysed, and where that begins.

What enters: an analysis and the certificate made for it. What leaves: the bounds that differ, the
network's first. A bound of the engine that is below the checker's is either of a rule that the
checker does not have, or a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from lipcert.analysis.records import Analysis
from lipcert.core.certificate.records import Certificate

_NOTEWORTHY: Final = 1.0 + 1e-3


@final
@dataclass(frozen=True, slots=True)
class Cost:
    """A bound that grew on the way from analysis to certificate."""

    what: str
    analysed: float
    certified: float

    @property
    def ratio(self) -> float:
        """How many times looser the certificate is."""
        return self.certified / self.analysed if self.analysed else float("inf")


def costs_of(analysis: Analysis, certificate: Certificate) -> tuple[Cost, ...]:
    """All bounds that grew by more than a thousandth."""
    return tuple(cost for cost in _pairs(analysis, certificate) if cost.ratio > _NOTEWORTHY)


def _pairs(analysis: Analysis, certificate: Certificate) -> Iterator[Cost]:
    network, claimed = analysis.network, certificate.network
    pairs = [
        ("network gradient", network.grad_norm, claimed.grad_norm),
        ("network Lipschitz constant", network.lipschitz, claimed.lipschitz),
    ]
    parameters = {item.name: item.grad_norm for item in analysis.parameters}
    pairs += [
        (f"gradient of {claim.name}", parameters.get(claim.name), claim.grad_norm)
        for claim in certificate.parameters
    ]
    if analysis.privacy is not None and certificate.privacy is not None:
        pairs.append(("ε", analysis.privacy.epsilon, certificate.privacy.epsilon))
    for what, analysed, certified in pairs:
        if analysed is not None and certified is not None:
            yield Cost(what, analysed, certified)
