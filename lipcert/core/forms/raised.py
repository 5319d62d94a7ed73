"""Raised weights: without negative entries below, a ReLU is bounded by larger weights.

Let x and τ have no negative entries. If A ≥ [W, b/τ], entry by entry, then Wx + b ≤ A(x, τ), and
    0 ≤ relu(Wx + b) ≤ relu(A(x, τ)),    hence    ‖relu(Wx + b)‖ ≤ ‖A‖·√(‖x‖² + τ²).
A is max([W, b/τ], −pqᵀ). The numbers p, q and τ ≥ 0 are not trusted: with any of them A ≥ [W, b/τ],
and ‖A‖ may be far below ‖W‖, since what W does to signs of all kinds is not asked for.
Attained: where a best left and a best right singular vector of A have no negative entries, and no
entry was raised between entries of theirs that are positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.core.arithmetic import multiply_up, sqrt_up
from lipcert.core.forms.descent import descent_of, unknowns
from lipcert.core.forms.links import links_of
from lipcert.core.interval import Array, up
from lipcert.core.norms.claim import FloatMatrix
from lipcert.core.program import Shape, Step

_ROOM: Final = 1.0 + 2.0**-24
_LARGEST: Final = 1 << 22


@final
@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """upper ≥ W [after, before], entry by entry, of the map x ↦ Wx + b on each of some runs."""

    upper: Array
    runs: int


def affine_of(start: str, steps: Sequence[Step], shapes: Mapping[str, Shape]) -> Affine | None:
    """Of all steps on the ways from `start` to the output of the last one; None if not affine.

    The operands of the steps are those of the file. Proof: the distance of an entry of a matrix
    from the exact one is at most the norm of their rows' difference.
    """
    try:
        linked = links_of(start, steps, shapes, {}, ())
    except ValueError:
        return None
    if linked is None or unknowns(linked[0]):
        return None
    edges, runs = linked
    before, after = (math.prod(shapes[name]) // runs for name in (start, steps[-1].output))
    if before * after > _LARGEST:
        return None
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        descent = descent_of(edges, after, 0)
        if descent is None:
            return None
        upper = up(descent.bottom.rows + descent.bottom.errors[:, None]).T
    return Affine(upper, runs) if upper.shape == (after, before) else None


@final
@dataclass(frozen=True, slots=True)
class Raised:
    """‖relu(Wx + b)‖ ≤ factor·√(‖x‖² + τ²) for one run x without negative entries."""

    factor: float
    tau: float

    def times(self, norm: float, runs: int) -> float:
        """The bound of so many runs of this norm together: their squares add up."""
        if not math.isfinite(norm):
            return math.inf
        square = Fraction(norm) ** 2 + runs * Fraction(self.tau) ** 2
        return multiply_up(self.factor, sqrt_up(square))


def raised_of(
    affine: Affine,
    constants: Array,
    numbers: Sequence[Sequence[float]],
    norms: Callable[[FloatMatrix, float], bool],
) -> Raised | None:
    """What these numbers prove; None where they prove nothing.

    constants: upper limits of b, the same for all runs. numbers: p, one for each entry of b; q, one
    for each entry of x and one more; τ alone. norms: of ‖A‖ ≤ c, decided by some arithmetic.
    """
    rows, columns = affine.upper.shape
    if [len(part) for part in numbers] != [rows, columns + 1, 1]:
        return None
    p, q, (tau,) = (np.array(part, dtype=np.float64) for part in numbers)
    if not 0.0 < tau < math.inf:
        return None
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        whole = np.concatenate([affine.upper, up(constants / tau)[:, None]], axis=1)
        raised: Array = np.maximum(whole, -np.outer(p, q))
        square = raised @ raised.T if rows < columns else raised.T @ raised
    if not (np.isfinite(raised).all() and np.isfinite(square).all()):
        return None
    try:
        largest = float(np.linalg.eigvalsh(square).max(initial=0.0))
        guess = math.sqrt(largest) * _ROOM
        return Raised(guess, float(tau)) if norms(raised, guess) else None
    except ValueError:  # beyond the limits of a proof
        return None
