"""Frequencies: rational multiples of 2π, reduced exactly before any cosine is taken.

What enters: frequencies w = 2π · numerators / denominators and integer shifts δ. What leaves: the
angles w·δ, so accurate that their cosines and sines err by at most `TWIDDLE_ERROR`.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from lipcert.norms.geometry import IndexArray
from lipcert.upper import FloatArray, Upper

TWIDDLE_ERROR: Final = Upper(2.0**-48)
"""|computed − true| of cos and sin: the angle, at most π, is rounded three times (3 · 2^-53 · π
< 2^-49) and the functions of numpy err by at most 4 units in the last place (< 2^-50)."""


def reduced_angles(
    shifts: IndexArray, numerators: IndexArray, denominators: IndexArray
) -> FloatArray:
    """w·δ in (−π, π], reduced exactly as integers: [n, terms]."""
    turns = (numerators @ shifts.T) % denominators[:, None]
    turns = np.where(2 * turns > denominators[:, None], turns - denominators[:, None], turns)
    angles: FloatArray = 2.0 * np.pi * (turns / denominators[:, None])
    return angles


def half_space(spans: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shifts δ that are 0, first, or whose first non-zero entry is positive."""
    every = itertools.product(*(range(-span, span + 1) for span in spans))
    origin = (0,) * len(spans)
    return [shift for shift in every if shift >= origin]
