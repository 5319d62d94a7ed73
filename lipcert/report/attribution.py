"""Attribution: which nodes and parameters a bound is lost at, ranked for the readable reports.

What enters: an analysis. What leaves: short ranked lists. These numbers orient a reader; they are
ratios of certified bounds, not bounds themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from lipcert.analysis.records import Analysis, NodeReport

_SHOWN: Final = 5
_LEAST_SHARE: Final = 5e-4
_LEAST_STRETCH: Final = 1.001


@final
@dataclass(frozen=True, slots=True)
class Share:
    """One row of a ranking: who, the number that ranks it, and the length of its bar in [0, 1]."""

    name: str
    op: str
    value: float
    bar: float


def stretches(analysis: Analysis, most: int = _SHOWN) -> list[Share]:
    """The nodes with the largest Lipschitz constants above 1; bars on a logarithmic scale."""
    factors = [(node, _stretch(node)) for node in analysis.nodes]
    found = [(node, factor) for node, factor in factors if factor >= _LEAST_STRETCH]
    longest = max((math.log(factor) for _, factor in found), default=0.0)
    return _top(
        [Share(node.name, node.op, factor, math.log(factor) / longest) for node, factor in found],
        most,
    )


def gradient_shares(analysis: Analysis) -> dict[str, float]:
    """Share of every trained parameter in the squared gradient bound G² (empty: no bound)."""
    found = {item.name: item.grad_norm for item in analysis.parameters if item.trainable}
    norms = {name: norm for name, norm in found.items() if norm is not None}
    largest = max(norms.values(), default=0.0)
    if largest == 0.0 or len(norms) < len(found):
        return {}
    squares = {name: (norm / largest) ** 2 for name, norm in norms.items()}
    whole = sum(squares.values())
    return {name: square / whole for name, square in squares.items()}


def largest_gradients(analysis: Analysis, most: int = _SHOWN) -> list[Share]:
    """Parameters with the largest share of the squared gradient bound G²."""
    return _top(
        [Share(name, "", share, share) for name, share in gradient_shares(analysis).items()], most
    )


def noise_shares(analysis: Analysis) -> list[Share]:
    """Groups with the largest share of the noise energy Σ d·s²."""
    return _top(
        [
            Share(group.name, "", group.noise_energy_share, group.noise_energy_share)
            for group in analysis.groups
            if group.noise_energy_share is not None
        ]
    )


def _stretch(node: NodeReport) -> float:
    return max((bound for bound in node.input_lipschitz if bound is not None), default=0.0)


def _top(shares: list[Share], most: int = _SHOWN) -> list[Share]:
    """The largest; what would be displayed as nothing is left out."""
    seen = [share for share in shares if share.value >= _LEAST_SHARE]
    return sorted(seen, key=_value, reverse=True)[:most]


def _value(share: Share) -> float:
    return share.value
