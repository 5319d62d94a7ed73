"""The decay inside the clip: the norm of ∇ℓ_i + λθ, which stands for ∇ℓ_i there.

What enters: the network at its weights, λ, norms of ∇ℓ_i. What leaves: norms of ∇ℓ_i + λθ, group by
group, by ‖∇ℓ_i‖² + 2λ⟨∇ℓ_i, θ⟩ + λ²‖θ‖². Invariant: each is off by its error at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import numpy as np
from torch import Tensor

from lipcert.audit.checks.differentiable import DifferentiableNetwork
from lipcert.audit.measured import Measured
from lipcert.upper import FloatArray


@final
class Decay:
    """λθ at one set of weights; λ = 0 where no decay is clipped."""

    def __init__(self, network: DifferentiableNetwork, factor: float) -> None:
        self._network = network
        self._factor = factor

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self._factor != 0.0

    def of(self, name: str) -> FloatArray:
        """λθ of one parameter."""
        decayed: FloatArray = self._factor * self._network.theta(name)
        return decayed

    def length(self, names: Iterable[str]) -> float:
        """λ‖θ‖ over some parameters."""
        squares = sum(np.sum(self._network.theta(name) ** 2) for name in names)
        return self._factor * float(np.sqrt(squares))

    def added(
        self, plain: Measured, names: tuple[str, ...], x: Tensor, targets: Tensor
    ) -> Measured:
        """‖∇ℓ_i + λθ‖ of one group, given ‖∇ℓ_i‖.  # [examples]

        Of the square, a share of the largest it could be is conceded to rounding: 2^-40, or 8·N·u,
        N the longest sum in a product with these parameters, where u is so large. Its root is then
        off by at most min(√d, d/root), d what is conceded.
        """
        length = self.length(names)
        product = self._factor * self._network.products(names, x, targets)
        a, e = plain.norm, plain.error
        root = np.sqrt(np.maximum(a * a + 2.0 * product + length * length, 0.0))
        off = 2.0 * (a + length) * e + e * e + self._share(names) * (a + length) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.fmin(np.sqrt(off), off / root)
        return Measured(root, error)

    def _share(self, names: tuple[str, ...]) -> float:
        shapes = [self._network.parameters[name].shape for name in names]
        sums = [shape.numel() // max(1, min(shape, default=1)) for shape in shapes]
        return max(2.0**-40, 8.0 * max(sums) * self._network.arithmetic.precision.unit)
