"""Blocks of a value that are normalised one by one: the mathematics of LayerNorm and its relatives.

What enters: how a value is cut into blocks, epsilon, and the norm of the input. What leaves:
bounds of the normalised value x̂ and of the Jacobian of x ↦ x̂, for any way of cutting.
"""

from __future__ import annotations
