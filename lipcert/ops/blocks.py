"""Blocks of a value that are normalised one by one: the mathematics of LayerNorm and its relatives.

What enters: how a value is cut into blocks, epsilon, and the norm of the input. What leaves:
bounds of the normalised value x̂ and of the Jacobian of x ↦ x̂, for any way of cutting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lipcert.upper import ONE, ZERO, Lower, Upper


@final
@dataclass(frozen=True, slots=True)
class Blocks:
    """`count` blocks of `size` entries, each divided by √(q + ε), q its mean square or variance.

    radius: norm X of the whole input; centred: whether the mean of each block is removed first.
    """

    count: int
    size: int
    centred: bool
    epsilon: float
    radius: Upper

    def norm(self, blocks: int, picked: int) -> Upper:
        """Returns B ≥ sup ‖x̂_S‖ where S picks `picked` entries in each of `blocks` blocks.

        Proof: within one block Σ_S x̂² ≤ s·q/(q + ε): s = n for n entries, as Σ x̂² = n·q/(q + ε);
        s = n − 1 for a single entry when Σ x̂ = 0 (Cauchy–Schwarz on the others). q/(q + ε) is
        concave in q and Σ n·q ≤ X², so τ blocks together give at most s·τ·X²/(X² + n·τ·ε).
        Attained: s = n − 1 by one entry against all others; s = n by two opposite entries, or any
        entry of an uncentred block; norm shared equally between blocks.
        """
        square = Upper(float(self._share(picked))) * Upper(float(blocks)) * self._fraction(blocks)
        return square.sqrt()

    @property
    def slope(self) -> Upper:
        """Returns 1/√ε ≥ sup of the Jacobian of x ↦ x̂; inf for ε = 0, 0 where x̂ is always 0.

        Proof: the Jacobian of a block is (P − x̂x̂ᵀ/n)/√(q + ε) with the projection P = I, or
        P = I − 11ᵀ/n, and 0 ≤ P − x̂x̂ᵀ/n ≤ I.
        Attained: at q = 0.
        """
        if self.centred and self.size == 1:
            return ZERO
        return ONE.over(Lower(self.epsilon).sqrt())

    def _share(self, picked: int) -> int:
        return self.size - 1 if self.centred and picked == 1 else self.size

    def _fraction(self, blocks: int) -> Upper:
        """X²/(X² + n·τ·ε), rounded up."""
        square = self.radius * self.radius
        if square.value == 0.0:
            return ZERO if self.epsilon > 0.0 else ONE
        damping = Lower(float(self.size)) * Lower(float(blocks)) * Lower(self.epsilon)
        return ONE.over(Lower(1.0) + damping.over(square))
