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

from lipcert.core.arithmetic import round_down
from lipcert.core.forms.descent import inequality_of, unknowns
from lipcert.core.forms.links import Diagonal, Edge, links_of
from lipcert.core.interval import Array, Interval, exact, norm_up, up
from lipcert.core.line import NotProved
from lipcert.core.norms.claim import MAX_SIZE, Definite, is_semidefinite, lowered, room_for
from lipcert.core.norms.residual import lower_factor
from lipcert.core.program import Shape, Step
from lipcert.core.rules.facts import Hull


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """JJᵀ ≤ matrix for every Jacobian J of one run: ‖Jᵀg‖² ≤ gᵀ·matrix·g.

    matrix: symmetric, finite. runs: how many runs of equal length a value has; the Jacobian of
    each is bounded so. proof: decides whether a matrix is positive semidefinite. norm ≥ ‖J‖, where
    that is stated and proved by `has_norm`.
    """

    matrix: Array
    runs: int
    proof: Definite
    norm: float = math.inf

    def has_norm(self, norm: float) -> bool:
        """Whether ‖J‖ ≤ norm could be proved, for all runs: their squares add up.

        Proof: JJᵀ ≤ norm²·I follows from the Frobenius norm of the matrix, or because the
        difference is positive semidefinite; only its diagonal is rounded.
        """
        level = round_down(Fraction(norm) ** 2)
        if norm_up(self.matrix) <= level:
            return True
        return is_semidefinite(*below_level(self.matrix, level), self.proof)

    def over_hull(self, hull: Hull, *others: Form) -> float:
        """≥ sup ‖Jᵀg‖ over a hull of one class for each entry of a single run; else inf.

        others: more forms of the same Jacobians.
        Proof: ‖Jᵀg‖ is a convex function of g, largest at a vertex; there each form bounds it.
        """
        forms = self, *others
        if any(form.runs != 1 or hull.classes != len(form.matrix) for form in forms):
            return math.inf
        squares = [hull.squares(exact(form.matrix)) for form in forms]
        return hull.length(np.minimum.reduce(squares))

    @np.errstate(over="ignore")
    def swing(self, radius: float) -> Array:
        """≥ |Jd| entry by entry of a run, for ‖d‖ ≤ radius.

        Proof: e_iᵀJJᵀe_i ≤ Q_ii.
        """
        return up(radius * up(np.sqrt(np.maximum(self.matrix.diagonal(), 0.0))))


def below_level(matrix: Array, level: float) -> tuple[Array, Array]:
    """Return level·I − matrix, and the distance of each entry from the exact one."""
    found = level * np.eye(len(matrix)) - matrix
    return found, np.diag(np.abs(found.diagonal()) * 2.0**-52)


def chain_form(
    start: str,
    steps: Sequence[Step],
    shapes: Mapping[str, Shape],
    slopes: Mapping[str, Interval],
    multipliers: Sequence[Sequence[float]],
    *,
    proof: Definite,
) -> Form:
    """Return a form with JJᵀ ≤ P for every Jacobian J of these steps, or raise NotProved.

    steps: all steps on the ways from `start` to the output of the last one, with the operands of
    the file. proof: the arithmetic that decides. The other arguments are those of `links_of`.
    Proof: `descent`. Slopes at the very bottom, below every matrix, may be replaced by their
    largest magnitudes, because ‖Ds‖² is a sum over the entries. All runs of a value share one form.
    Adding P rounds once.
    """
    links, runs = links_of(start, steps, shapes, slopes, multipliers)
    edges, size = at_the_bottom(links), math.prod(steps[-1].shape) // runs
    if unknowns(edges) + size > MAX_SIZE:
        raise NotProved("the form is too large")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        matrix, error = inequality_of(edges, size)
        form = _completion(matrix, error, size)
        matrix[-size:, -size:] += form
        error[-size:, -size:] += np.abs(matrix[-size:, -size:]) * 2.0**-52
        if not is_semidefinite(matrix, error, proof):
            raise NotProved("its multipliers prove no form")
    return Form(form, runs, proof)


def _completion(matrix: Array, error: Array, size: int) -> Array:
    """Untrusted: P with which M is likely to be proved, about CᵀA⁻¹C − B for M = [[A, C], [Cᵀ, B]].

    Once without what the error takes, and once with it, in the scale of the proof.
    """
    below, room = len(matrix) - size, 2.0 * float(room_for(len(matrix)))
    found, whole = np.zeros((size, size)), matrix.copy()
    for share in (0.0, 2.0):
        scaled, scale = lowered(whole, share * error)
        factor = lower_factor(scaled - room * np.eye(len(scaled)), below)
        if factor is None:
            raise NotProved("its multipliers prove no form")
        factor, scaled, top = factor[below:].copy(), scaled[below:, below:].copy(), scale[below:]
        more = factor @ factor.T - scaled + room * np.eye(size)
        found = found + 0.5 * (more + more.T) / top[:, None] / top
        whole[below:, below:] = matrix[below:, below:] + found
    return found


def at_the_bottom(edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """Return edges in which the slopes below every matrix and every branch are known."""
    sources = Counter(edge.source for edge in edges)
    targets = Counter(edge.target for edge in edges)
    found = list(edges)
    for index, edge in enumerate(edges):
        alone = sources[edge.source] == targets[edge.target] == 1
        if not (alone and isinstance(edge.link, Diagonal)):
            break
        link = replace(edge.link, entries=exact(edge.link.entries.magnitude()), weights=None)
        found[index] = replace(edge, link=link)
    return tuple(found)
