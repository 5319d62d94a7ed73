"""LinearMap: the linear maps whose operator norm the rules need, described without a graph.

What enters: a weight operand and how it is applied. What leaves: a description that `scope.py`
bounds, either from the weight's numbers or from a constraint that the weight obeys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from lipcert.norms.geometry import Geometry, Window
from lipcert.norms.reads import Border, Reads
from lipcert.operand import Operand


@final
@dataclass(frozen=True, slots=True)
class DenseMap:
    """x ↦ W x on the last axis, the same at every position. weight: [out, in]."""

    weight: Operand


@final
@dataclass(frozen=True, slots=True)
class ConvMap:
    """Zero-padded (grouped, strided, dilated) cross-correlation, or its adjoint (same norm).

    weight: [out, in/groups, *taps], one `Window` per spatial dimension.
    """

    weight: Operand
    geometry: Geometry
    groups: int = 1


@final
@dataclass(frozen=True, slots=True)
class PaddedConvMap:
    """A convolution of an input that is padded first, by its own entries.

    geometry: windows over the padded input. pads: entries added before and after, per dimension.
    """

    weight: Operand
    geometry: Geometry
    pads: tuple[tuple[int, int], ...]
    border: Border
    groups: int = 1

    def reads(self) -> tuple[Reads, ...]:
        """Per dimension, which position of the input that is not padded yet each tap reads."""
        return tuple(
            Reads.padded(window, begin, end, self.border)
            for window, (begin, end) in zip(self.geometry, self.pads, strict=True)
        )

    def repetitions(self) -> int:
        """How often one entry stands in the padded input at most: the squared norm of padding."""
        whole = zip(self.geometry, self.pads, strict=True)
        sizes = (Reads.padded(Window(w.size, 1), *pads, self.border) for w, pads in whole)
        return math.prod(reads.overlap for reads in sizes)


LinearMap = DenseMap | ConvMap | PaddedConvMap
