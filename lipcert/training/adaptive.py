"""Adaptive: the noise of each step from bounds at the weights of that step (weight clipping).

What enters: certified norms of the present weights. What leaves: the calibration of this step.
Invariant: the weights at hand lie within the radii of the calibration that is given, so its bounds
are bounds at these weights; radii follow from weights that were noised, and are public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, final

from lipcert.training.calibration import Calibration, recalibrated
from lipcert.upper import Upper

_LEAST: Final = 1e-3
"""of a radius: norms below it are taken for it, so that weights may start at 0"""


@final
class AdaptiveNoise:
    """Calibrations that are made anew when the weights have left the radii of the last one.

    norms: certified upper bounds for every trained parameter. caps: radii that training enforces.
    slack: by how much the radii exceed the norms when they are chosen.
    """

    def __init__(
        self,
        planned: Calibration,
        norms: Callable[[], Mapping[str, float]],
        caps: Mapping[str, float],
        slack: float,
    ) -> None:
        self._planned = planned
        self._norms = norms
        self._caps = caps
        self._slack = slack
        self._radii: Mapping[str, float] = {}
        self._current = planned

    def present(self) -> Calibration:
        """The noise for a release at the present weights."""
        norms = {name: self._held(name, norm) for name, norm in self._norms().items()}
        wanted = {name: self._radius(name, norm) for name, norm in norms.items()}
        if not (self._radii and self._serve(norms, wanted)):
            self._radii = wanted
            self._current = recalibrated(self._planned, self._radii)
        return self._current

    def _held(self, name: str, norm: float) -> float:
        """A norm that is held within its cap is at most that, however its bound was rounded."""
        return min(norm, self._caps.get(name, norm))

    def _radius(self, name: str, norm: float) -> float:
        cap = self._caps.get(name)
        least = _LEAST * (1.0 if cap is None else cap)
        wide = max((Upper(norm) * Upper(1.0 + self._slack)).value, least)
        return wide if cap is None else min(wide, cap)

    def _serve(self, norms: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
        """Whether no norm left its radius, and new radii would not be much smaller altogether."""
        if any(norm > self._radii[name] for name, norm in norms.items()):
            return False
        fallen = sum(math.log(self._radii[name] / radius) for name, radius in wanted.items())
        return fallen <= len(wanted) * math.log1p(self._slack)
