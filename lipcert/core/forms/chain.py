"""Quadratic forms that bound a Jacobian: JJᵀ ≤ P, and what follows from that, rounded upwards.

A form comes from a chain of links and multipliers, which are not trusted: P is proposed, and proved
by one factorisation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import multiply_up, round_down, round_up
from lipcert.core.forms.descent import Inequality, inequality_of, unknowns
from lipcert.core.forms.links import Diagonal, Edge, links_of
from lipcert.core.interval import Array, Interval, exact, norm_up, up
from lipcert.core.norms.claim import MAX_SIZE, Definite, room_for
from lipcert.core.norms.residual import lower_factor
from lipcert.core.program import Shape, Step
from lipcert.core.rules.facts import Hull


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """JJᵀ ≤ 4^exponent·matrix for every Jacobian J of one run: ‖Jᵀg‖² ≤ 4^exponent·gᵀ·matrix·g.

    matrix: symmetric, finite. runs: how many runs of equal length a value has; the Jacobian of
    each is bounded so. proof: decides whether a matrix is positive semidefinite. norm ≥ ‖J‖, where
    that is stated and proved by `has_norm`.
    """

    matrix: Array
    exponent: int
    runs: int
    proof: Definite
    norm: float = math.inf

    def has_norm(self, norm: float) -> bool:
        """Whether ‖J‖ ≤ norm could be proved, for all runs: their squares add up.

        Proof: JJᵀ ≤ level·I in units of 4^exponent, by the Frobenius norm of the matrix, or as
        level·I − matrix is positive semidefinite. It is scaled so that entries are below ½, with
        one rounding on the diagonal, of a number below the level.
        """
        level = round_down(Fraction(norm) ** 2 / Fraction(4) ** self.exponent)
        if norm_up(self.matrix) <= level:
            return True
        with np.errstate(over="ignore", under="ignore"):
            gap = level * np.eye(len(self.matrix)) - self.matrix
            scaled = np.ldexp(gap, -math.frexp(level)[1] - 1)
        return level > 0.0 and self.proof(scaled, Fraction(1, 1 << 53))

    def over_hull(self, hull: Hull, *others: Form) -> float:
        """≥ sup ‖Jᵀg‖ over a hull of one class for each entry of a single run; else inf.

        others: more forms of the same Jacobians.
        Proof: ‖Jᵀg‖ is a convex function of g, largest at a vertex; there each form bounds it.
        """
        forms = self, *others
        if any(form.runs != 1 or hull.classes != len(form.matrix) for form in forms):
            return math.inf
        squares = hull.squares(exact(self.matrix))
        for one in others:
            with np.errstate(over="ignore", under="ignore"):
                own = np.ldexp(hull.squares(exact(one.matrix)), 2 * (one.exponent - self.exponent))
            squares = np.minimum(squares, up(own))
        return multiply_up(hull.length(squares), Fraction(2) ** self.exponent)

    def swing(self, radius: float) -> Array:
        """≥ |Jd| entry by entry of a run, for ‖d‖ ≤ radius.

        Proof: e_iᵀJJᵀe_i ≤ Q_ii.
        """
        roots = up(np.sqrt(np.maximum(self.matrix.diagonal(), 0.0)))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            lengths = up(np.ldexp(roots, self.exponent))
            return np.where(np.isfinite(lengths), up(radius * lengths), np.inf)


def chain_form(
    start: str,
    steps: Sequence[Step],
    shapes: Mapping[str, Shape],
    slopes: Mapping[str, Interval],
    multipliers: Sequence[Sequence[float]],
    *,
    proof: Definite,
) -> Form | None:
    """A form with JJᵀ ≤ P for every Jacobian J of these steps; None where none is proved.

    steps: all those on the ways from `start` to the output of the last one. Arguments as for
    `links_of`; the operands of the steps are those of the file. proof: which arithmetic decides.
    Proof: `descent`. For ‖δ‖ alone, slopes at the very bottom, where no matrix follows, are their
    largest magnitudes: ‖Ds‖² is a sum over the entries. The runs of a value have one form.
    """
    try:
        found = links_of(start, steps, shapes, slopes, multipliers)
    except ValueError:
        return None
    if found is None:
        return None
    edges, runs = at_the_bottom(found[0]), found[1]
    size = int(np.prod(steps[-1].shape)) // runs
    if unknowns(edges) + size > MAX_SIZE:
        return None
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rough = inequality_of(edges, size, 0)
        guess = None if rough is None else _completion(rough, 0.0)
        if rough is None or guess is None:
            return None
        exponent = -_half_exponent(guess - rough.block) - 2
        scaled = inequality_of(edges, size, exponent)
        if scaled is None:
            return None
        matrix = _proved(scaled, np.ldexp(guess, 2 * exponent), proof)
        return None if matrix is None else Form(matrix, -exponent, runs, proof)


def _proved(inequality: Inequality, guess: Array, proof: Definite) -> Array | None:
    """P, proposed and proved. guess: roughly what is added to the block of g to make it CᵀA⁻¹C.

    Proof: all is scaled by a power of two so that entries are below 1, and the error of the
    inequality is left as the least eigenvalue.
    """
    matrix = inequality.matrix
    scale = 2 * max(_half_exponent(matrix), _half_exponent(guess)) + 1
    error = inequality.error(guess - inequality.block)
    room = round_up(2 * error + room_for(len(matrix)) * Fraction(2) ** scale)
    completed = _completion(inequality, room)
    form = None if completed is None else completed - inequality.block + room * np.eye(len(guess))
    if form is None or not norm_up(form) < np.inf:
        return None
    whole = matrix.copy()
    whole[-len(form) :, -len(form) :] += form
    least = inequality.error(form) / Fraction(2) ** scale
    return form if proof(np.ldexp(whole, -scale), least) else None


def _completion(inequality: Inequality, room: float) -> Array | None:
    """Untrusted: CᵀA⁻¹C for M − room·I = [[A, C], [Cᵀ, ·]]; None unless A is positive definite."""
    below = len(inequality.matrix) - len(inequality.block)
    shifted = inequality.matrix - room * np.eye(len(inequality.matrix))
    factor = lower_factor(shifted, below)
    if factor is None:
        return None
    half = factor[below:]
    completed: Array = half @ half.T
    return 0.5 * (completed + completed.T) if np.isfinite(completed).all() else None


def _half_exponent(matrix: Array) -> int:
    """The least k with entries below 4^k."""
    return int(-(-np.frexp(np.max(np.abs(matrix), initial=1e-300))[1] // 2))


def at_the_bottom(edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """Edges of which the slopes below every matrix and every branch are known."""
    sources = Counter(edge.source for edge in edges)
    targets = Counter(edge.target for edge in edges)
    found = list(edges)
    for index, edge in enumerate(edges):
        alone = sources[edge.source] == targets[edge.target] == 1
        if not (alone and isinstance(edge.link, Diagonal)):
            break
        link = replace(edge.link, slopes=exact(edge.link.slopes.magnitude()), weights=None)
        found[index] = replace(edge, link=link)
    return tuple(found)
